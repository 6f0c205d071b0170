"""What the widgets' JavaScript claims of itself: every *.test.mjs beside this file, run by node."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")


def run_claims(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(NODE), "--test", "--test-reporter=spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_its_claims_hold(file):
    result = run_claims(file)
    assert result.returncode == 0, result.stdout + result.stderr
