"""A pytest plugin for nbval: run notebooks on kernels that no other user reaches, compare all but
stderr, and report each cell as JSON to the file that LABKIT_NBVAL_REPORT names.

    LABKIT_STATIC=1 PYTHONPATH=tests/helpers python -m pytest -p nbval_replay \\
        --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

# ruff: noqa: E402
# jsonschema, under nbformat, would build 38 grammars for a format that no notebook has: a second.
sys.modules["rfc3987_syntax"] = None

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

from labkit.course.notebooks import over_ipc

nbval.kernel.KernelManager = lambda **options: over_ipc(KernelManager(**options))

cells: list[dict[str, str]] = []


def pytest_collectstart(collector: Any) -> None:
    """Warnings on stderr name paths and process numbers: the one stream that is not compared."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    result = (yield).get_result()
    if call.when == "call":
        cells.append({"outcome": result.outcome, "message": str(result.longrepr or "")})


def pytest_sessionfinish() -> None:
    if path := os.environ.get("LABKIT_NBVAL_REPORT"):
        with open(path, "w") as file:
            json.dump(cells, file)
