"""What a cell shows while ranks run: their lines, those that they overwrite, and bars of loops."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import ClassVar

import pytest
import tqdm.auto

from labkit.ranks.messages.message import Progress
from labkit.ranks.output.cell_output import CellDisplay
from labkit.ranks.output.rank_output import RankOutput

# --- bars -----------------------------------------------------------------------------------------


class Bar:
    """A bar that notes what it has shown: (n, total) each time."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, desc: str, total: int | None):
        self.total, self.n, self.shown = total, 0, []
        Bar.made.append(self)

    def refresh(self) -> None:
        self.shown.append((self.n, self.total))

    def reset(self, total: int | None) -> None:
        self.total, self.n = total, 0

    def close(self) -> None:
        pass


@pytest.fixture
def bars(monkeypatch) -> list[Bar]:
    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    return Bar.made


def shown(bars: list[Bar], *messages: tuple[int, Progress]) -> list[list[tuple[int, int | None]]]:
    """Return what each bar has shown, given (rank, message) in turn."""
    with CellDisplay() as display:
        for rank, message in messages:
            display.progress(rank, message)
    return [bar.shown for bar in bars]


def test_a_bar_is_as_far_as_the_slowest_rank(bars):
    messages = [(rank, Progress("steps", done, 10)) for rank, done in [(0, 4), (1, 2), (0, 9), (1, 3)]]
    assert shown(bars, *messages) == [[(4, 10), (2, 10), (2, 10), (3, 10)]]


def test_a_second_loop_of_a_description_has_its_own_length_and_waits_for_the_slower_rank(bars):
    first, second = Progress("train", 100, 100, over=True), Progress("train", 3, 10, number=1)
    messages = [
        (0, first),
        (1, first._replace(done=40, over=False)),
        (0, second),
        (1, first),
        (1, second._replace(done=1)),
    ]
    assert shown(bars, *messages) == [[(100, 100), (40, 100), (40, 100), (3, 10), (1, 10)]]


def test_a_loop_that_was_left_early_holds_no_later_one_up(bars):
    left = Progress("train", 4, 100, over=True)
    assert shown(bars, (0, left), (1, left), (0, Progress("train", 2, 10, number=1))) == [[(4, 100), (4, 100), (2, 10)]]


def test_a_loop_inside_another_of_the_same_description_has_a_bar_of_its_own(bars):
    outer, inner = Progress("", 1, 3), Progress("", 5, 20, depth=1)
    assert shown(bars, (0, outer), (0, inner), (0, outer._replace(done=2))) == [[(1, 3), (2, 3)], [(5, 20)]]


# --- lines that a rank overwrites -----------------------------------------------------------------


@pytest.fixture
def pipe():
    """What a rank prints, and both ends of its pipe."""
    end, start = os.pipe()
    output = RankOutput(end)
    yield output, start
    os.close(start)
    output.close()


OVERWRITTEN = {
    "a bar": ([b"\r 0%|    |", "\r50%|██  |\r99%|███ |".encode(), b"\n"], ["99%|███ |"]),
    "by a shorter text": ([b"step 100\rstep 99\n"], ["step 990"]),
    "between the bytes of a character": ([b"0\r" + "█".encode()[:1], "█".encode()[1:] + b"\n"], ["█"]),
    "with nothing": ([b"\r50%\r   \r\nafter\n"], ["after"]),
    "of Windows, which are none": ([b"one\r\ntwo\r\n"], ["one", "two"]),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_of_a_line_that_is_overwritten_is_read_what_a_terminal_shows(pipe, name):
    output, start = pipe
    pieces, expected = OVERWRITTEN[name]
    read = []
    for piece in pieces:
        os.write(start, piece)
        read += output.read()[0]
    assert read == expected


def test_a_line_that_is_overwritten_is_known_before_it_ends_and_takes_no_more_memory_than_is_seen(pipe):
    output, start = pipe
    for i in range(1000):
        os.write(start, f"step {i}\r".encode())
        assert output.read()[0] == []
    assert output.overwritten == "step 999" and len(output._partial_line) < 20
    assert output.read_unfinished_line() == ["step 999"]


def test_an_unfinished_line_that_nothing_overwrites_is_not_shown_before_it_ends(pipe):
    output, start = pipe
    os.write(start, b"half a ")
    output.read()
    assert output.overwritten == ""


def seen(text: str) -> list[str]:
    """Return the lines of a terminal, or of a notebook, that was sent a text."""
    lines = []
    for line in text.split("\n"):
        cells: list[str] = []
        at = 0
        for character in line:
            if character == "\r":
                at = 0
            else:
                cells[at : at + 1] = [character]
                at += 1
        lines.append("".join(cells).rstrip())
    return lines


def test_lines_that_ranks_overwrite_stand_below_all_others_with_their_ranks(capsys, monkeypatch):
    monkeypatch.setattr("labkit.ranks.output.cell_output.in_notebook", lambda: True)
    monkeypatch.setattr("labkit.ranks.output.cell_output.REWRITE_S", 0.0)
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    shown = ""
    with CellDisplay() as display:
        for rank, lines, unfinished, expected in [
            (0, [], "step 100", ["[rank 0] step 100"]),
            (1, [], "step 7", ["[rank 0] step 100  [rank 1] step 7"]),
            (0, [], "step 9", ["[rank 0] step 9  [rank 1] step 7"]),
            (1, ["hello"], "step 8", ["[rank 1] hello", "[rank 0] step 9  [rank 1] step 8"]),
            (0, ["step 9"], "", ["[rank 1] hello", "[rank 0] step 9", "[rank 1] step 8"]),
        ]:
            display.lines(rank, lines, unfinished)
            shown += capsys.readouterr().out
            assert seen(shown) == expected
        display.lines(1, ["step 8"])
    shown += capsys.readouterr().out
    assert seen(shown) == ["[rank 1] hello", "[rank 0] step 9", "[rank 1] step 8", ""]


@pytest.mark.parametrize("stdout", [None, SimpleNamespace(write=lambda text: None)], ids=["none", "no terminal's"])
def test_where_there_is_no_terminal_an_overwritten_line_is_no_error(stdout, monkeypatch):
    monkeypatch.setattr("sys.stdout", stdout)
    with CellDisplay() as display:
        display.lines(0, [], "step 1")


def test_into_a_file_only_whole_lines_are_written(capsys, monkeypatch):
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    with CellDisplay() as display:
        display.lines(0, [], "step 1")
        display.lines(0, ["step 2"])
    assert capsys.readouterr().out == "[rank 0] step 2\n"
