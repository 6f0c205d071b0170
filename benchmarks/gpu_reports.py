"""Tell benchmarks/on_gpu.py, from within pytest, what becomes of every test: a plugin of pytest.

A process that CUDA has become of no use to is left, so that another one goes on with the tests that
are left.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

CONNECTION, ENDS_AT, DONE = "LABKIT_GPU_CONNECTION", "LABKIT_GPU_ENDS_AT", "LABKIT_GPU_DONE"
MAX_CHARACTERS = 4_000  # of what a failed test has printed
_connection: Connection | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rehearse", action="store_true", help="run over gloo what needs a GPU only for NCCL")


def pytest_configure() -> None:
    global _connection
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a process or rank that is aborted leaves no file of its memory
    _connection = Connection(int(os.environ[CONNECTION]), readable=False)


def _tell(kind: str, **what: Any) -> None:
    assert _connection is not None
    _connection.send((kind, what))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell("not collected", name=report.nodeid, reason=report.longreprtext)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = set(json.loads(os.environ[DONE]))
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collection_finish(session: pytest.Session) -> None:
    _tell("collected", names=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell("began", name=nodeid)


def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ[ENDS_AT]):
        pytest.skip("no time left")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        test = {"outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.skipped:
            test["reason"] = report.longrepr[2]  # type: ignore[index]
        elif report.failed:
            test |= {"reason": report.longreprtext, "printed": (report.capstdout + report.capstderr)[-MAX_CHARACTERS:]}
        _tell("test", name=report.nodeid, test=test)
    if report.when == "teardown":
        _tell("noted", properties=[each for each in report.user_properties if each[0] in ("measured", "fact")])


def pytest_runtest_logfinish() -> None:
    """End this process if a test has left a CUDA error that every later call would raise again."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        try:
            cuda.synchronize()
        except RuntimeError as error:
            pytest.exit(f"CUDA is of no more use in this process: {error}", returncode=1)
