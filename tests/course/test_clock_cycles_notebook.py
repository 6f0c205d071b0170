"""What notebook 06 says of its puzzles and exercises is so."""

import contextlib
import itertools
import re
from pathlib import Path

import nbformat
import pytest

from labkit.explore.puzzle.levels import level
from labkit.explore.puzzle.recognise import recognise
from labkit.explore.schedules.state import parse
from labkit.explore.schedules.values import work_of
from labkit.schedule import Op, Schedule, ScheduleError
from labkit.simulate import bubble_fraction, makespan, peak_activations, simulate

CELLS = nbformat.read(Path(__file__).parents[2] / "notebooks" / "06_clock_cycles.ipynb", as_version=4).cells
TEXT = " ".join("\n".join(cell.source for cell in CELLS).split())


def compared(state):
    """Return the event tables of what a state's text compares."""
    return [work_of(parse(state), choice).simulate() for choice in parse(state).choices]


def test_no_schedule_of_the_papers_is_named_before_the_reader_has_built_one():
    build = next(i for i, cell in enumerate(CELLS) if "schedule_puzzle(level=3)" in cell.source)
    before = "\n".join(str(cell) for cell in CELLS[: build + 1])
    assert re.findall(r"1F1B|one_f_one_b|gpipe|zero.bubble|\bZB-|interleaved", before, re.IGNORECASE) == []
    assert "1F1B" in CELLS[build + 1].source


def orders(cap, n_micro, done=(), forwards=0, backwards=0):
    """Yield what a rank may do that keeps at most ``cap``, with micro-batches in order."""
    if backwards == n_micro:
        yield done
    if forwards < min(n_micro, backwards + cap):
        yield from orders(cap, n_micro, (*done, ("F", forwards)), forwards + 1, backwards)
    if backwards < forwards:
        yield from orders(cap, n_micro, (*done, ("B", backwards)), forwards, backwards + 1)


def test_who_reaches_par_in_level_3_has_built_1f1b():
    this = level(3)
    assert this.rules.caps is not None
    found = []
    for ranks in itertools.product(*(orders(cap, this.rules.n_micro) for cap in this.rules.caps)):
        schedule = Schedule([[Op(kind, r, i) for kind, i in ops] for r, ops in enumerate(ranks)])
        with contextlib.suppress(ScheduleError):  # orders that wait for each other
            if makespan(simulate(schedule)) <= this.par_s:
                found.append(recognise(schedule))
    assert found == ["1F1B"]


@pytest.mark.parametrize("m", [23, 24])
def test_24_micro_batches_of_1f1b_idle_as_little_as_8_of_zb_h1(m):
    assert "24, three times as many" in TEXT and '"1f1b n=4 m=8 vs zb-h1"' in TEXT
    few = bubble_fraction(compared("zb-h1 n=4 m=8")[0])
    many = bubble_fraction(compared(f"1f1b n=4 m={m}")[0])
    assert (many <= few + 1e-9) == (m == 24)


@pytest.mark.parametrize("hop", [0.0, 0.14, 0.15, 0.16])
def test_zb_v_ends_sooner_than_zb_h2_up_to_a_hop_of_0_15(hop):
    assert "With a hop of 0.15" in TEXT and "`zb-h2 n=4 m=8 vs zb-v cap=4`" in TEXT
    h2, v = compared(f"zb-h2 n=4 m=8 hop={hop} vs zb-v")
    assert max(peak_activations(h2).values()) == 7 and max(peak_activations(v).values()) == 2 * 4
    assert makespan(v) - makespan(h2) == pytest.approx(10 * (hop - 0.15))


def test_a_slow_last_stage_idles_the_others_however_many_micro_batches_come():
    assert "To 38.9 %, and it never falls below 37.5 %" in TEXT and '"gpipe n=4 m=8 F=1,1,1,2 vs 1f1b"' in TEXT
    for slow, even in zip(
        compared("gpipe n=4 m=64 F=1,1,1,2 vs 1f1b"), compared("gpipe n=4 m=64 vs 1f1b"), strict=True
    ):
        assert round(100 * bubble_fraction(slow), 1) == 38.9
        assert round(100 * bubble_fraction(even), 1) == 4.5
    busiest, all_work = 2, 1 + 1 + 1 + 2
    assert 1 - all_work / (4 * busiest) == 0.375
