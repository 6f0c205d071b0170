"""All that waits for a GPU, in one call: facts of the machine, the tests marked gpu, and the
numbers that RESULTS.md does not have yet.

    make gpu
    python benchmarks/on_gpu.py [--out FOLDER] [--minutes 9] [--part faults] [--notebooks]
    python benchmarks/on_gpu.py --rehearse --part faults --part clocks      over gloo, without a GPU

It needs torch, transformers, pytest and other plain packages, and nothing installed of this folder;
no Jupyter. Facts come first, then the parts, which are the files of tests/gpu, in their order, and
of benchmarks/gpu, what is only measured.
After every test it writes what there is to gpu.json and gpu.md in FOLDER (``runs``). A test that
hangs, or takes its process along, has failed, and another process goes on with the rest. What the
minutes do not suffice for is skipped, and said to be. Without a GPU the facts are written, and
every test is skipped. A rehearsal writes rehearsal.json and rehearsal.md: no result of a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
PARTS = {path.stem.split("_", 2)[2]: path for path in sorted((PROJECT / "tests" / "gpu").glob("test_*.py"))}
PARTS |= {name: PROJECT / "benchmarks" / "gpu" / f"{name}.py" for name in ("rates", "times")}
PARTS["notebooks"] = PARTS.pop("notebooks")  # last
PACKAGES = ("transformers", "numpy", "pandas", "pytest")
LAST_MINUTE_S = 45.0  # what a test that began in time may take before all is ended
MAX_TEST_S = 150.0
FACT_S = 60.0  # for one question about the machine


# --- facts ----------------------------------------------------------------------------------------

MODES = ("index", "name", "driver_version", "compute_mode", "persistence_mode", "mig.mode.current", "memory.total")
SMI = {
    "nvidia-smi -L": ["-L"],
    "nvidia-smi topo -m": ["topo", "-m"],
    "modes": [f"--query-gpu={','.join(MODES)}", "--format=csv"],
}
GPUS = """
import torch
print("NVML's, in torch:", torch.cuda.device_count())  # before CUDA is used, torch asks NVML
from labkit.base import machine
print("that CUDA can use:", machine.usable_gpus())
try:
    torch.cuda.init()
except Exception as error:
    print("CUDA cannot be used:", str(error).splitlines()[0])
"""
MACHINE = "import json, on_gpu; print(json.dumps(on_gpu.machine()))"
LAUNCHES = """
import time
import torch, torch.distributed as dist
from labkit.launch import device, launch
from labkit.ranks.processes import server_handle
def all_reduce():
    x = torch.ones(1000, device=device())
    dist.all_reduce(x)
    return x.sum().item()
for name, world_size in (("cold, 1 rank", 1), ("warm, 1 rank", 1), ("warm, 2 ranks", 2), ("again, 2 ranks", 2)):
    begin = time.perf_counter()
    run = launch(all_reduce, world_size=world_size, share_gpu=True)
    print(f"{name}: {time.perf_counter() - begin:.2f} s until all had added up ({run.backend})")
print("ranks are forked:", server_handle.forks.usable)
"""


def machine() -> dict[str, Any]:
    """Return what the numbers hold for: GPUs, versions of what counts, and the date."""
    import torch

    from labkit.base.machine import usable_gpus

    gpus = [torch.cuda.get_device_properties(index) for index in range(usable_gpus())]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpus": [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def facts() -> dict[str, str]:
    """Return what this machine says of its GPUs and how ranks start on it, by question."""
    found = {name: answer(["nvidia-smi", *arguments]) for name, arguments in SMI.items()}
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_TELLING)]
    found["environment"] = "\n".join(variables) or "none of " + ", ".join(_TELLING)
    found["GPUs"] = answer([sys.executable, "-c", GPUS])
    found["launches"] = answer([sys.executable, "-c", LAUNCHES])
    return found


_TELLING = ("CUDA_", "NCCL_", "NVIDIA_VISIBLE", "TORCH_", "PYTORCH_", "SLURM_")


def _environment() -> dict[str, str]:
    """Return the environment of other processes, which find the lab, and this folder's files."""
    path = [str(PROJECT), str(PROJECT / "benchmarks"), os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def answer(command: list[str]) -> str:
    """Return what a command prints, or in one line why it prints nothing."""
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=FACT_S)
    except FileNotFoundError:
        return f"{command[0]}: not found"
    except subprocess.TimeoutExpired:
        return f"{command[0]}: no answer within {FACT_S:g} s"
    failed = f"\nexit status {done.returncode}: {done.stderr.strip()[-500:]}" if done.returncode else ""
    return (done.stdout.strip("\n") + failed).strip("\n")  # a table may begin with a tab


# --- results --------------------------------------------------------------------------------------


class Results:
    """What is known so far, in two files that are always whole."""

    def __init__(self, folder: Path, rehearsal: bool = False):
        self.folder, self.rehearsal = folder, rehearsal
        self.machine: dict[str, Any] = {"gpus": []}
        self.facts: dict[str, str] = {}
        self.collected: list[str] = []
        self.tests: dict[str, dict[str, Any]] = {}
        self.measured: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> list[str]:
        return [f"{'rehearsal' if self.rehearsal else 'gpu'}.{kind}" for kind in ("json", "md")]

    @property
    def left(self) -> list[str]:
        return [name for name in self.collected if name not in self.tests]

    def count(self, outcome: str) -> int:
        return sum(test["outcome"] == outcome for test in self.tests.values())

    def fail(self, name: str, reason: str) -> None:
        self.tests[name] = {"outcome": "failed", "seconds": None, "reason": reason}
        self.write()

    def take(self, kind: str, what: dict[str, Any]) -> None:
        """Take what pytest's process tells (see gpu_reports.py)."""
        if kind == "collected":
            self.collected = list(dict.fromkeys([*self.collected, *what["names"]]))
        elif kind == "not collected":
            self.fail(what["name"], what["reason"])
        elif kind == "test":
            before = self.tests.get(what["name"], {})
            self.tests[what["name"]] = before if before.get("outcome") == "failed" else what["test"]
        elif kind == "noted":
            self.measured += [value for name, value in what["properties"] if name == "measured"]
            self.facts |= dict(value for name, value in what["properties"] if name == "fact")
            self.write()

    def write(self) -> None:
        everything = {"rehearsal": self.rehearsal, "machine": self.machine, "facts": self.facts}
        everything |= {"tests": self.tests, "measured": self.measured}
        for name, text in zip(
            self.files, (json.dumps(everything, indent=1, ensure_ascii=False), self.page()), strict=True
        ):
            (self.folder / f"{name}.new").write_text(text + "\n", encoding="utf-8")
            (self.folder / f"{name}.new").replace(self.folder / name)

    def page(self) -> str:
        """Return the result as RESULTS.md would show it."""
        reasons = Counter(test["reason"] for test in self.tests.values() if test["outcome"] == "skipped")
        title = ", ".join(self.machine["gpus"]) or "no GPU"
        lines = [f"REHEARSAL over gloo on CPUs, no result of a GPU ({title})" if self.rehearsal else title, ""]
        lines += ["| what | value |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.machine.items() if name != "gpus"]
        lines += [f"| {name} | {text} |" for name, text in self.facts.items() if "\n" not in text]
        lines += [f"| tests {outcome} | {self.count(outcome)} |" for outcome in ("passed", "failed", "skipped")]
        lines += [f"| skipped: {reason.removeprefix('Skipped: ')} | {count} |" for reason, count in reasons.items()]
        for name, test in self.tests.items():
            if test["outcome"] == "failed":
                lines.append(f"| **failed** | {name}: {_first_error(test['reason'])} |")
        for each in self.measured:
            value = f"{each['value']:,.0f}" if abs(each["value"]) >= 1000 else f"{each['value']:.4g}"
            lines.append(f"| {each['what']} | {value} {each['unit']} |")
        lines += [f"\n{name}:\n\n```\n{text}\n```" for name, text in self.facts.items() if "\n" in text]
        return "\n".join(lines)


def _first_error(reason: str) -> str:
    """Return the line of pytest's report that says what was wrong."""
    lines = [line for line in reason.splitlines() if line.strip()]
    found = next((line for line in lines if line.startswith("E ")), lines[-1] if lines else "")
    return found.removeprefix("E").strip().replace("|", "¦")


# --- tests ----------------------------------------------------------------------------------------


def run_tests(results: Results, paths: list[Path], ends_at: float, max_test_s: float = MAX_TEST_S) -> int:
    """Run the tests in ``paths``. Return pytest's exit code.

    While a process ends before its tests do, another one goes on with those that are left.
    """
    while True:
        done = len(results.tests)
        code = _one_process(results, paths, ends_at, max_test_s)
        if not results.left or len(results.tests) == done or time.time() > ends_at + LAST_MINUTE_S / 2:
            return code


def _one_process(results: Results, paths: list[Path], ends_at: float, max_test_s: float) -> int:
    """Run the tests that are left in one process. Where it ends too soon, its test has failed."""
    mine, theirs = Pipe(duplex=False)
    environment = _environment() | {"LABKIT_GPU_CONNECTION": str(theirs.fileno()), "LABKIT_GPU_ENDS_AT": str(ends_at)}
    environment |= {"LABKIT_GPU_DONE": json.dumps([*results.tests]), "LABKIT_GPU_OUT": str(results.folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "gpu_reports", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", f"--rootdir={PROJECT}", "-c", str(PROJECT / "pyproject.toml")]
    command += ["--rehearse"] * results.rehearsal + [str(path) for path in paths]
    child = subprocess.Popen(command, env=environment, cwd=PROJECT, pass_fds=[theirs.fileno()])
    theirs.close()
    with mine:
        running, silent = _listen(results, mine, ends_at, max_test_s)
        if silent:
            child.send_signal(signal.SIGABRT)  # pytest shows where it is; its ranks end with it
        try:
            code = child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    if running is not None and running not in results.tests:
        why = f"it did not end within {max_test_s:g} s, or the time was up" if silent else _ended(code)
        results.fail(running, why)
    return code


def _listen(results: Results, connection: Connection, ends_at: float, max_test_s: float) -> tuple[str | None, bool]:
    """Take what pytest's process tells, until it ends or is silent for too long.

    Return the test that it was at, and whether it was silent.
    """
    running: str | None = None
    try:
        while True:
            patience_s = max_test_s if running else MAX_TEST_S  # a process may take long to start
            if not connection.poll(max(0.0, min(patience_s, ends_at + LAST_MINUTE_S - 10 - time.time()))):
                return running, True
            kind, what = connection.recv()
            running = what["name"] if kind == "began" else None if kind == "noted" else running
            results.take(kind, what)
    except EOFError:
        return running, False


def _ended(code: int) -> str:
    return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    """Run everything. 0 where there were tests and each passed or was skipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=PROJECT / "runs", help="the folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=9.0, help="the most that it may take")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part alone; may be given several times")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: what can run over gloo does")
    parser.add_argument("--notebooks", action="store_true", help="run all notebooks too, where Jupyter is")
    options = parser.parse_args()
    ends_at = time.time() + 60 * options.minutes - LAST_MINUTE_S
    parts = options.part or [name for name in PARTS if name != "notebooks"]
    parts += ["notebooks"] if options.notebooks and "notebooks" not in parts else []
    results = Results(options.out.resolve(), options.rehearse)
    text = answer([sys.executable, "-c", MACHINE])  # another process: a GPU may be there for one at a time
    results.machine = json.loads(text) if text.startswith("{") else {"gpus": [], "no answer": _first_error(text)}
    results.facts = facts()
    results.write()
    code = run_tests(results, [PARTS[name] for name in sorted(parts, key=list(PARTS).index)], ends_at)
    results.write()
    print(results.page())
    if not results.collected:
        print(f"\nno test was collected (pytest ended with {code}); the facts are", end="")
    elif results.left:
        print(f"\n{len(results.left)} of {len(results.collected)} tests did not run; the others are", end="")
    print(f"\nwritten to {results.folder}: {' and '.join(results.files)}")
    return code or int(not results.collected or bool(results.left) or results.count("failed") > 0)


if __name__ == "__main__":
    sys.exit(main())
