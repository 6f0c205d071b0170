"""All that waits for a GPU, in one call: the tests marked gpu, and the numbers that RESULTS.md does not have yet.

    make gpu                          or, from any folder: python benchmarks/on_gpu.py [--out FOLDER] [--minutes 9]

It needs torch, transformers, pytest and other plain packages, and nothing installed of this folder; no Jupyter. After every test
it writes what there is to gpu.json and gpu.md in FOLDER (``runs``): device, versions, date, each test, each number. What
the minutes do not suffice for is skipped, and said to be. Without a GPU every test is collected, and skipped.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("transformers", "numpy", "pandas", "pytest")
LAST_MINUTE_S = 45.0  # what a test that began in time may take before all is ended


def machine() -> dict[str, Any]:
    """Return what the numbers hold for: GPUs, versions of what counts, and the date."""
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
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


class Recorder:
    """A pytest plugin that keeps what became of every test, with what it measured, in two files that are always whole."""

    def __init__(self, folder: Path, ends_at: float):
        self.folder, self.ends_at = folder, ends_at
        self.machine = machine()
        self.tests: dict[str, dict[str, Any]] = {}
        self.measured: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_setup(self) -> None:
        import pytest

        if time.monotonic() > self.ends_at:
            pytest.skip("no time left")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            reason = report.longrepr[2] if report.skipped else report.longreprtext
            test = {"outcome": report.outcome, "seconds": round(report.duration, 2), "reason": reason}
            self.tests[report.nodeid] = test
        if report.when == "teardown":
            self.measured += [value for name, value in report.user_properties if name == "measured"]
            self.write()

    def write(self) -> None:
        everything = {"machine": self.machine, "tests": self.tests, "measured": self.measured}
        for name, text in (
            ("gpu.json", json.dumps(everything, indent=1, ensure_ascii=False)),
            ("gpu.md", self.table()),
        ):
            (self.folder / f"{name}.new").write_text(text + "\n", encoding="utf-8")
            (self.folder / f"{name}.new").replace(self.folder / name)

    def table(self) -> str:
        """Return the result as RESULTS.md would show it."""
        outcomes = Counter(test["outcome"] for test in self.tests.values())
        reasons = Counter(test["reason"] for test in self.tests.values() if test["outcome"] == "skipped")
        lines = [", ".join(self.machine["gpus"]) or "no GPU", "", "| what | value |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.machine.items() if name != "gpus"]
        lines += [f"| tests {outcome} | {count} |" for outcome, count in outcomes.items()]
        lines += [f"| skipped: {reason.removeprefix('Skipped: ')} | {count} |" for reason, count in reasons.items()]
        lines += [f"| **failed** | {name} |" for name, test in self.tests.items() if test["outcome"] == "failed"]
        for each in self.measured:
            value = f"{each['value']:,.0f}" if each["value"] >= 1000 else f"{each['value']:.4g}"
            lines.append(f"| {each['what']} | {value} {each['unit']} |")
        return "\n".join(lines)


def main() -> int:
    """Run everything; pytest's exit code, which is 0 where all passed or were skipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=PROJECT / "runs", help="the folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=9.0, help="the most that it may take")
    options = parser.parse_args()
    limit_s = 60 * options.minutes
    faulthandler.dump_traceback_later(limit_s - 5, exit=True)  # the ranks end with this process
    sys.path.insert(0, str(PROJECT))  # ranks are given it as well
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    import pytest

    recorder = Recorder(options.out.resolve(), time.monotonic() + limit_s - LAST_MINUTE_S)
    selected = [
        "-m",
        "gpu",
        str(PROJECT / "tests"),
        f"--rootdir={PROJECT}",
        "-c",
        str(PROJECT / "pyproject.toml"),
    ]
    plugins = ["-p", "no:cacheprovider", "-p", "no:faulthandler"]  # pytest's would call off the end of time above
    code = int(pytest.main([*selected, *plugins, "-q"], plugins=[recorder]))
    print(recorder.table())
    print(f"\nwritten to {recorder.folder}/gpu.json and gpu.md")
    return code


if __name__ == "__main__":
    sys.exit(main())
