"""A pytest plugin for nbval: run notebooks, report each cell, and try every stored digit changed.

    LABKIT_STATIC=1 PYTHONPATH=tests/helpers python -m pytest -p nbval_replay \\
        --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks

A cell that passed is compared again, by nbval's own comparison, with its stored outputs changed by
one digit; so one execution serves all these trials. The report goes as JSON to the file that
LABKIT_NBVAL_REPORT names.
"""

from __future__ import annotations

import copy
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
from nbval.plugin import coalesce_streams

from labkit.course.notebooks import over_ipc

MAX_TRIALS = 60  # digits tried per text of an output, spread over it

nbval.kernel.KernelManager = lambda **options: over_ipc(KernelManager(**options))

report: dict[str, list[dict[str, Any]]] = {"cells": [], "trials": []}


def pytest_collectstart(collector: Any) -> None:
    """Warnings on stderr name paths and process numbers: the one stream that is not compared."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)


def pytest_runtest_setup(item: Any) -> None:
    item.stored = copy.deepcopy(item.cell.outputs)  # nbval joins streams in place while it compares


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    outcome = yield
    if call.when != "call":
        return
    result = outcome.get_result()
    place = {"notebook": item.path.name, "cell": item.cell_num}
    report["cells"].append({**place, "outcome": result.outcome, "message": str(result.longrepr or "")})
    if result.outcome == "passed":
        item.format_output_compare = lambda *_: None  # a readable difference takes long and nobody reads these
        report["trials"] += [{**place, **trial} for trial in trials(item)]


def pytest_sessionfinish() -> None:
    if path := os.environ.get("LABKIT_NBVAL_REPORT"):
        with open(path, "w") as file:
            json.dump(report, file)


def trials(item: Any) -> Iterator[dict[str, Any]]:
    """Each compared digit changed by one: where it stood, between which brackets if any, and
    whether nbval accepted it."""
    for holder, key in texts(item.stored, item.parent.skip_compare):
        original = holder[key]
        digits = [i for i, letter in enumerate(original) if letter in "0123456789"]
        for i in digits[:: len(digits) // MAX_TRIALS + 1]:
            holder[key] = original[:i] + str((int(original[i]) + 1) % 10) + original[i + 1 :]
            stored = coalesce_streams(copy.deepcopy(item.stored))
            accepted = item.compare_outputs(item.test_outputs, stored)
            yield {"text": original[max(0, i - 30) : i + 30], "brackets": brackets(original, i), "accepted": accepted}
        holder[key] = original


def texts(outputs: list[Any], skipped: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Every text of the outputs that is compared, as the dictionary that holds it and its key
    there."""
    for output in outputs:
        if output.output_type == "stream":
            found = [] if output.name in skipped else [(output, "text")]
        elif output.output_type == "error":
            found = [(output, "ename"), (output, "evalue")]
        else:
            found = [(output.data, mime) for mime in output.data if mime not in skipped]
        yield from ((holder, key) for holder, key in found if isinstance(holder[key], str))


def brackets(text: str, i: int) -> str:
    """``"~"`` or ``"≈"`` if position i of the text stands in such brackets, or in HTML between the
    tags that stand for them, else nothing. Says it without a pattern."""
    for name, sign in (("measured", "~"), ("device", "≈")):
        before, tag, _ = text[:i].rpartition(f'<span class="labkit-{name}"')
        rest = text[len(before) :] if tag else ""
        begin, end = rest.find(">") + 1, rest.find("</span>")
        if tag and begin <= i - len(before) < end:
            return sign
    line_start, line_end = text.rfind("\n", 0, i) + 1, (text + "\n").find("\n", i)
    opening, closing = text.rfind("[", line_start, i), text.find("]", i, line_end)
    if opening < 0 or closing < 0 or "]" in text[opening:i] or "[" in text[i:closing]:
        return ""
    sign = text[opening + 1 : opening + 2]
    return sign if sign in ("~", "≈") else ""
