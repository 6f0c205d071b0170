"""diffs: what is shown takes one file to the other, and a reader who sees no colours can tell what
comes from what goes."""

from __future__ import annotations

import html
import re
from pathlib import Path

from labkit.lab.diffs import diff

SIGNS = {"ins": "+", "del": "-"}


def files(folder: Path, before: str, after: str) -> tuple[Path, Path]:
    paths = folder / "a.py", folder / "b.py"
    for path, text in zip(paths, (before, after), strict=True):
        path.write_text(text)
    return paths


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


def test_lines_that_come_are_counted_once_each_where_they_contain_one_of_the_texts(tmp_path):
    found = diff(*files(tmp_path, "rank\n", "rank\nrank of world_size\nworld_size\nother\n"))
    assert (found.added, found.count("rank"), found.count("rank", "world_size")) == (3, 1, 2)
