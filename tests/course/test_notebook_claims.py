"""What the texts of notebooks 04 and 08 claim, where no cell of theirs computes it."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

import nbformat
import pytest

from labkit.cost import Link
from labkit.dp import MIB, assign_buckets
from labkit.explore.buckets.gradients import predicted_gradients
from labkit.explore.buckets.reducer import best_cap, predict
from labkit.explore.buckets.widget import CAPS_MB
from labkit.explore.puzzle.levels import level
from labkit.explore.puzzle.recognise import recognise
from labkit.explore.schedules.state import parse
from labkit.explore.schedules.values import work_of
from labkit.schedule import Op, Schedule, ScheduleError, gpipe
from labkit.simulate import bubble_fraction, makespan, peak_activations, simulate

# --- 04_overlap -----------------------------------------------------------------------------------


def test_the_best_bucket_size_of_the_whole_gpt2_grows_with_the_latency_and_the_embedding_stays_exposed():
    gradients = predicted_gradients("gpt2")
    plans = {cap: assign_buckets(gradients.sizes_bytes, cap * MIB, MIB) for cap in CAPS_MB}
    slow, quick = (Link(latency_s, 12.5e9) for latency_s in (200e-6, 20e-6))
    assert best_cap(gradients, plans, 8, slow) == 50 > best_cap(gradients, plans, 8, quick)
    ones, best = (predict(gradients, plans[cap], 8, slow).end_s for cap in (1, 50))
    assert 1.7 < ones / best < 2.0
    assert predict(gradients, plans[500], 8, quick).hidden_share < 0.05
    assert len(plans[25]) - 1 == 12 and 0 in plans[25][12] and gradients.sizes_bytes[0] // MIB == 147


# --- 08_clock_cycles ------------------------------------------------------------------------------


def compared(state):
    """Return the event tables of what a state's text compares."""
    return [work_of(parse(state), choice).simulate() for choice in parse(state).choices]


def test_no_schedule_of_the_papers_is_named_before_the_reader_has_built_one():
    path = Path(__file__).resolve().parents[2] / "notebooks" / "08_clock_cycles.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    build = next(i for i, cell in enumerate(cells) if "schedule_puzzle(level=3)" in cell.source)
    before = "\n".join(str(cell) for cell in cells[: build + 1])
    assert re.findall(r"1F1B|one_f_one_b|gpipe|zero.bubble|\bZB-|interleaved", before, re.IGNORECASE) == []
    assert "1F1B" in cells[build + 1].source


def orders(cap, n_micro, done=(), forwards=0, backwards=0):
    """Yield what a rank may do that keeps at most ``cap``, with micro-batches in order."""
    if backwards == n_micro:
        yield done
    if forwards < min(n_micro, backwards + cap):
        yield from orders(cap, n_micro, (*done, ("F", forwards)), forwards + 1, backwards)
    if backwards < forwards:
        yield from orders(cap, n_micro, (*done, ("B", backwards)), forwards, backwards + 1)


def test_the_only_way_to_reach_par_in_level_3_is_1f1b():
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
    few = bubble_fraction(compared("zb-h1 n=4 m=8")[0])
    many = bubble_fraction(compared(f"1f1b n=4 m={m}")[0])
    assert (many <= few + 1e-9) == (m == 24)


@pytest.mark.parametrize("hop", [0.0, 0.14, 0.15, 0.16])
def test_zb_v_ends_sooner_than_zb_h2_up_to_a_hop_of_0_15(hop):
    h2, v = compared(f"zb-h2 n=4 m=8 hop={hop} vs zb-v")
    assert max(peak_activations(h2).values()) == 7 and max(peak_activations(v).values()) == 2 * 4
    assert makespan(v) - makespan(h2) == pytest.approx(10 * (hop - 0.15))


def test_a_slow_last_stage_idles_the_others_however_many_micro_batches_come():
    even = compared("gpipe n=4 m=64 vs 1f1b")
    for slow, each in zip(compared("gpipe n=4 m=64 F=1,1,1,2 vs 1f1b"), even, strict=True):
        assert round(100 * bubble_fraction(slow), 1) == 38.9
        assert round(100 * bubble_fraction(each), 1) == 4.5
    busiest, all_work = 2, 1 + 1 + 1 + 2
    assert 1 - all_work / (4 * busiest) == 0.375


def test_both_orders_of_gpipes_backward_passes_take_the_same_time():
    ours = gpipe(4, 8)
    as_autograd = Schedule([[*ops[:8], *reversed(ops[8:])] for ops in ours.ops])
    assert [op.micro_batch for op in as_autograd.ops[0]][8:] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert makespan(simulate(as_autograd)) == makespan(simulate(ours))
