"""Python programs that start in milliseconds: forks of one process that has imported torch.

For tests of what a program does; one of how Python starts it takes subprocess.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

# Nothing of the lab: a program has that of its folder and its PYTHONPATH.
PRELOADED = ["torch.distributed", "torch.nn.parallel", "transformers.models.auto.modeling_auto", "pandas", "psutil"]
PRELOADED += ["transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert", "tokenizers"]
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(PRELOADED)


def run(*arguments: str | Path, folder: Path | str = ".", **variables: str) -> CompletedProcess[str]:
    """Run ``python ARGUMENTS`` in a folder to its end, with these environment variables beside the
    present ones: a script, ``-m MODULE`` or ``-c CODE``."""
    return Program(*arguments, folder=folder, **variables).ended()


class Program:
    """The same, begun: a process of which one may wait for a line, or send it a signal."""

    def __init__(self, *arguments: str | Path, folder: Path | str = ".", **variables: str):
        self._printed = [tempfile.NamedTemporaryFile(), tempfile.NamedTemporaryFile()]  # noqa: SIM115
        self.arguments, files = [str(each) for each in arguments], [file.name for file in self._printed]
        given: tuple[Any, ...] = (self.arguments, str(folder), dict(os.environ) | variables, files)
        self.process = _forks.Process(target=_do, args=given)
        self.process.start()

    def prints(self, text: str, within_s: float = 60) -> bool:
        """Return True once the text appears on stdout.

        Raises AssertionError, with all that was printed, where the time is up or the program ends
        before that.
        """
        until = time.monotonic() + within_s
        while text not in self._text(0):
            if time.monotonic() > until or not self.process.is_alive():
                printed = "".join(map(self._text, range(2)))
                assert text in self._text(0), f"{text!r} was not printed, but\n{printed}"
            time.sleep(0.02)
        return True

    def ended(self, within_s: float = 200) -> CompletedProcess[str]:
        """Its exit status and what it has printed, once it has ended."""
        self.process.join(within_s)
        self.process.kill()  # one that has ended does not mind
        self.process.join()
        return CompletedProcess(self.arguments, self.process.exitcode or 0, self._text(0), self._text(1))

    def _text(self, number: int) -> str:
        return Path(self._printed[number].name).read_text(encoding="utf-8")


def _do(arguments: list[str], folder: str, variables: dict[str, str], files: list[str]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.modules["torch"].set_num_threads(int(variables.get("OMP_NUM_THREADS", "1")))
    what, *others = arguments
    program = None if what in ("-m", "-c") else os.path.abspath(what)
    begins_with = os.path.dirname(program) if program else os.getcwd()
    sys.path[:0] = [begins_with, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if program:
            sys.argv = [program, *others]
            runpy.run_path(program, run_name="__main__")
        elif what == "-m":
            sys.argv = others
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *others[1:]]
            exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # a fork of multiprocessing's does not
