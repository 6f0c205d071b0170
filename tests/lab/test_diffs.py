"""diffs: what is shown takes one file to the other, and a reader who sees no colours can tell what
comes from what goes."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path

import pytest

from labkit.lab.diffs import diff

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNGS = sorted(EXAMPLES.glob("[1-9]_*.py"))
SIGNS = {"ins": "+", "del": "-"}


def files(folder: Path, before: str, after: str) -> tuple[Path, Path]:
    paths = folder / "a.py", folder / "b.py"
    for path, text in zip(paths, (before, after), strict=True):
        path.write_text(text)
    return paths


def side(lines: list[str], left_out: str) -> list[str]:
    return [line[1:] for line in lines if line[0] != left_out]


@pytest.mark.parametrize("pair", list(itertools.pairwise(RUNGS)), ids=lambda pair: pair[1].stem)
def test_a_diff_holds_both_files_and_counts_what_differs(pair):
    before, after = pair
    (lines,) = diff(before, after, context=1000).hunks
    assert side(list(lines), left_out="+") == before.read_text().splitlines()
    assert side(list(lines), left_out="-") == after.read_text().splitlines()
    short = diff(before, after)
    assert (short.added, short.removed) == (sum(x[0] == "+" for x in lines), sum(x[0] == "-" for x in lines))
    assert short.added - short.removed == len(after.read_text().splitlines()) - len(before.read_text().splitlines())
    assert short.added and short.removed


def test_the_text_has_a_sign_before_each_line_and_one_line_around_each_change(tmp_path):
    before = "first\nsecond\n" + "same\n" * 5 + "--- last\n"
    shown = diff(*files(tmp_path, before, before.replace("second", "2nd").replace("last", "end")))
    assert repr(shown) == ("a.py → b.py: +2 −2 lines\n\n first\n-second\n+2nd\n same\n\n same\n---- last\n+--- end")


def test_in_html_what_comes_and_goes_has_a_sign_a_tag_and_a_colour_of_its_own(tmp_path):
    page = diff(*files(tmp_path, "kept\nx < 1\n", "kept\nx & 2\n"))._repr_html_()
    marked = re.findall(r"<(ins|del) style=\"[^\"]*background: ([^\"]*)\">(.*?)</\1>", page)
    assert [(SIGNS[tag], html.unescape(text)) for tag, _, text in marked] == [("-", "-x < 1"), ("+", "+x & 2")]
    assert len({colour for _, colour, _ in marked}) == 2
    assert " kept\n" in page and "x < 1" not in page


def test_a_file_that_is_not_there_and_a_negative_context_are_refused(tmp_path):
    there, _ = files(tmp_path, "a\n", "b\n")
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.py"):
        diff(there, tmp_path / "none.py")
    with pytest.raises(ValueError, match="context is -1"):
        diff(there, there, context=-1)
