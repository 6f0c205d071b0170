"""What the widgets' JavaScript claims of itself: every *.test.mjs beside this file, run by node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

# In a module, what is right and what a mistake would make of it. Some claim has to notice.
MISTAKES = [
    ("viewport", "x - share * span", "x - 0.5 * span"),  # zooms around the middle, not the pointer
    ("viewport", "Math.min(left, last - span)", "left"),  # pans beyond the end
    ("viewport", "if (!same) this.fit();", "this.fit();"),  # every new picture loses the zoom
    ("playback", "Math.min(this.step + direction, last)", "this.step + direction"),
    ("playback", "position <= place", "position < place"),  # another kind of step goes one back
    ("playback", "Math.min(this.rest, 0)", "-1"),  # back from the first step of a grid nothing is shown
    ("playback", "Math.min(MOVE_MS, this.intervalMs)", "MOVE_MS"),  # a long schedule never arrives
    ("messages", "number <= this.done ||", ""),  # busy although it has answered
    ("messages", "Math.max(this.done, number)", "number"),
    (
        "messages",
        "if (next) this.send(next);\n    else this.free();",
        "this.free();",
    ),  # the last place of a slider is lost
    ("messages", "this.isLost || number", "number"),  # busy although it has gone
    ("bars", "if (this.left[i] > x1) break;", "if (this.right[i] > x1) break;"),
    ("bars", "this.appear[i] <= step && step < this.vanish[i]", "this.appear[i] <= step"),
    ("bars", "if (this.right[i] < x0) continue;", "if (this.right[i] < x0) break;"),  # after a short bar none is seen
    ("bars", "free = Math.max(free, bars.right[bar])", "free = bars.right[bar]"),  # idle while an outer span runs
    ("layout", "y += GAP;", ""),
    ("layout", "TITLE_LOOK) + BESIDE <= left", "TITLE_LOOK) <= plot"),  # facts run over the title
    ("layout", "Math.min(1, apart / widest)", "1"),  # names of columns run into each other
    ("scene", ".slice(); // aligned", ";"),
    ("scene", "sort((a, b) => a - b)", "sort(() => 0)"),  # stops in the order of the panels
]


def run_claims(file: Path) -> subprocess.CompletedProcess[str]:
    """Run a file of claims with node's own test runner."""
    command = [str(NODE), "--test", "--test-reporter=spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_its_claims_hold(file):
    result = run_claims(file)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("module", "right", "wrong"), MISTAKES)
def test_a_mistake_is_noticed(module, right, wrong, tmp_path):
    browser, claims = tmp_path / "labkit" / "explore" / "browser", tmp_path / "tests" / "explore"
    shutil.copytree(PROJECT / "labkit" / "explore" / "browser", browser)
    claims.mkdir(parents=True)
    file = browser / f"{module}.js"
    text = file.read_text()
    assert text.count(right) == 1, f"{module}.js has {text.count(right)} times {right!r}"
    file.write_text(text.replace(right, wrong))
    result = run_claims(Path(shutil.copy(HERE / f"{module}.test.mjs", claims)))
    assert result.returncode == 1, result.stdout
