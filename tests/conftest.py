"""What all tests share: no window, few threads, real data."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import edited_package
import matplotlib
import notebook_tiers
import pytest
import to_do

import labkit
from labkit.base import chromium
from labkit.course.student import is_student_edition

# jsonschema, under nbformat, would build 38 grammars for a format that no notebook has: seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in the background like this
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all tests are imported: that leaves no garbage, and looking for it takes a quarter of the time
os.environ["LABKIT_CHROMIUM"] = ""  # pictures of explorers cost a second each, and no notebook is compared by them
matplotlib.use("Agg")  # by hand, not by MPLBACKEND: kernels that a test starts would inherit it and lose their pictures

PROJECT = Path(__file__).resolve().parent.parent
if not (IMPORTED := Path(labkit.__file__).resolve()).is_relative_to(PROJECT):
    wrong = f"labkit is imported from {IMPORTED.parent}, but these tests are those of {PROJECT / 'labkit'}"
    raise pytest.UsageError(f"{wrong}: run make test there, or python -m pytest in {PROJECT}")


# Files that take long come first, so that no worker of pytest-xdist is left with one at the end.
LONGEST = ["test_notebooks", "test_student", "test_answers", "test_explorer_widgets", "test_ladder", "test_grade"]
LONGEST += ["test_glue_command", "test_cells", "test_launch_faults"]
LONGEST += ["test_hangs", "test_correct_runs", "test_link", "test_dp", "test_train"]

FORKS = ("test_ladder", "test_docs", "test_assignments")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Have ``pytest -m gpu`` import no other tests: they want Jupyter, which may not be there.

    In a student edition the fast tests are those of answers alone: a minute, not five.
    """
    if not collection_path.is_file():
        return None
    others = config.option.markexpr == "gpu" and collection_path.parent.name != "gpu"
    of_the_lab = (
        config.option.markexpr == "not slow" and is_student_edition() and not to_do.is_of_answers(collection_path)
    )
    return True if others or of_the_lab else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Skip a test that ends in a task which is still to do, in this process or in one of its own.

    So it counts what a test calls, whatever file it is in. After a wrong answer its tests fail.
    """
    report = yield
    if report.failed and (place := to_do.named_in(str(report.longrepr))):
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], place)
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what imports have made out of all later garbage collections, which it would make ten
    times as long."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":
        terminalreporter.write_line(notebook_tiers.left_out(() if is_student_edition() else notebook_tiers.FAST))


def what_a_worker_takes(test: str) -> str:
    """Return the name of the tests that one worker runs one after the other.

    Those in a browser share a JupyterLab, those of a file ranks and results. A notebook is by
    itself, and so are the answers to a task.
    What forks programs off one process (warm_python) does so from the same one.
    """
    file = test.partition("::")[0]
    notebook = re.search(r"test_notebooks\.py::.*\[(\d\d_\w+)\]$", test)
    if answers := re.search(r"test_answers\.py::.*\[(\w+\.\d+)", test):
        return f"answers to {answers[1]}"
    if notebook or "/browser/" in file:
        return notebook[1] if notebook else "browser"
    return "forks" if Path(file).stem in FORKS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = what_a_worker_takes  # xdist's own loadgroup does not see groups under pytest 9.2
    return scheduler


@pytest.fixture
def with_chromium(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let labkit have the Chromium that is there."""
    monkeypatch.delenv("LABKIT_CHROMIUM")
    if not chromium.find_chromium():
        pytest.skip("no Chromium on this machine")


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    """Have tests share the machine's cores."""
    if "torch" in sys.modules:  # importing it takes seconds, so only where a test has done so
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are for keeping, as in a stored notebook: what was measured stands in brackets."""
    monkeypatch.setenv("LABKIT_STATIC", "1")


REAL_DATA = ("glue/RTE/train.tsv", "multi30k/train.de.gz")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with RTE and Multi30k that LABKIT_TEST_DATA names, or the test is skipped."""
    if not (named := os.environ.get("LABKIT_TEST_DATA")):
        pytest.skip("needs the real RTE and Multi30k: set LABKIT_TEST_DATA to a folder that has glue/RTE and multi30k")
    if missing := [name for name in REAL_DATA if not Path(named, name).is_file()]:
        raise FileNotFoundError(f"LABKIT_TEST_DATA is {named!r}, which has no {' and no '.join(missing)}")
    return Path(named).resolve()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[..., Any]]:
    """ranks(n, **options): n warm ranks on gloo, a thread each, the same ones for all tests of a
    file that ask alike."""
    from labkit.launch import workers

    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(world_size: int = 2, **options: Any) -> Any:
            return stack.enter_context(
                workers(world_size, **{"backend": "gloo", "timeout_s": 60, "threads": 1} | options)
            )

        yield started


@pytest.fixture
def hang() -> Callable[..., dict[int, str]]:
    """hang(fn, world_size, **options): the ranks' stacks when the time of a function that never
    ends is up. It counts from when the ranks have started, however busy the machine is."""
    from labkit.launch import LaunchTimeout, workers

    def stacks(fn: Callable[..., Any], world_size: int = 2, timeout_s: float = 2.0, **options: Any) -> dict[int, str]:
        with workers(world_size, threads=1, **options) as ranks:
            ranks.run(int)
            ranks.timeout_s = timeout_s
            with pytest.raises(LaunchTimeout) as caught:
                ranks.run(fn)
        return caught.value.stacks

    return stacks


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """answer(code, file): let ranks import a labkit whose student ``file`` ends with ``code``, or,
    with ``whole=True``, is it."""

    def put(code: str, file: str = "dp.py", whole: bool = False) -> None:
        from labkit.base import lab as base_lab

        monkeypatch.setattr(base_lab, "PACKAGE", edited_package.put(tmp_path, code, file, whole))
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[list[Any]]:
    """Four hosts with addresses of their own, 10.77.0.1 to 10.77.0.4 (hosts.Host), or the test is
    skipped."""
    import hosts

    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hosts.network(4))
        except hosts.CannotMakeHosts as reason:
            pytest.skip(f"no hosts of their own: {reason}")
        yield made
