"""What notebook 08 says of its puzzles and exercises is so."""

import contextlib
import itertools
import re
from pathlib import Path

import nbformat
import pytest

import labkit.pipe
from labkit.explore.puzzle.levels import level
from labkit.explore.puzzle.recognise import recognise
from labkit.explore.schedules.state import parse
from labkit.explore.schedules.values import work_of
from labkit.schedule import Op, Schedule, ScheduleError, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import bubble_fraction, makespan, peak_activations, simulate

CELLS = nbformat.read(Path(__file__).parents[2] / "notebooks" / "08_clock_cycles.ipynb", as_version=4).cells
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


# --- guesses --------------------------------------------------------------------------------------


def cell_with(pattern):
    """Return the only cell in whose source the pattern is found, and its place before it."""
    ((place, cell),) = [(i, cell) for i, cell in enumerate(CELLS) if re.search(pattern, cell.source)]
    return place, cell


def asked(name):
    return cell_with(rf'= guess\(\s*"{name}"')


def answered(name):
    return cell_with(rf"^{name}\.feedback\(|\n{name}\.feedback\(")


def test_the_guess_of_clocks_waits_for_no_task_and_asks_for_another_table_than_the_docstring():
    place, cell = asked("clocks")
    _, answer = answered("clocks")
    assert "%%needs" not in cell.source and answer.source.startswith("%%needs guess.clocks\n")
    assert "6 micro-batches need to pass 4 stages" in cell.source
    assert "With 4 micro-batches and 3 partitions" in " ".join(str(labkit.pipe.clock_cycles.__doc__).split())
    assert "m + n" not in "".join(cell.source for cell in CELLS[:place])


def test_the_formula_of_the_bubble_stands_below_its_guess():
    place, _ = asked("few_bubbles")
    formula = min(i for i, cell in enumerate(CELLS) if "n-1}{m+n-1" in cell.source or "n − 1)/(m + n" in cell.source)
    assert place < formula


@pytest.mark.parametrize("name", ["cut", "clocks", "few_bubbles", "kept", "zero_bubble", "hop_loser", "recompute"])
def test_a_guess_is_asked_for_in_one_cell_and_answered_in_a_later_one_that_waits_for_it(name):
    place, _ = asked(name)
    later, answer = answered(name)
    assert place < later
    assert f"guess.{name}" in answer.source.splitlines()[0]


# --- what is said of schedules --------------------------------------------------------------------


def test_both_orders_of_gpipe_s_backward_passes_take_the_same_time():
    assert "With equal stages both orders take the same time" in TEXT
    ours = gpipe(4, 8)
    as_autograd = Schedule([[*ops[:8], *reversed(ops[8:])] for ops in ours.ops])
    assert [op.micro_batch for op in as_autograd.ops[0]][8:] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert makespan(simulate(as_autograd)) == makespan(simulate(ours)) == 33


def test_alt_texts_of_the_schedules_hold():
    half = {"forward": 0.5, "backward": 1.0, "input_grad": 0.5, "weight_grad": 0.5}
    assert "GPipe and 1F1B end at 33, interleaved 1F1B at 28.5; rank 0 keeps 8, 4 and 5.5 micro-batches." in TEXT
    chunks = simulate(interleaved(4, 8, 2), **half)
    runs = [simulate(gpipe(4, 8)), simulate(one_f_one_b(4, 8)), chunks]
    assert [makespan(run) for run in runs] == [33, 33, 28.5]
    assert [peak_activations(run)[0] for run in runs] == [8, 4, 11]  # of chunks, each half a micro-batch
    assert "ZB-H1 and ZB-V, op by op: no rank keeps more than 4 micro-batches." in TEXT
    assert max(peak_activations(simulate(zero_bubble_h1(4, 8))).values()) == 4
    assert max(peak_activations(simulate(zero_bubble_v(4, 8), **half)).values()) == 2 * 4


@pytest.mark.parametrize(("n_ranks", "n_micro"), [(4, 8), (3, 5)])
def test_idle_time_of_a_rank_with_zb_h1_is_that_of_the_text(n_ranks, n_micro):
    assert "(n − 1)(F + I − W)" in TEXT
    events = simulate(zero_bubble_h1(n_ranks, n_micro), 1.0, 2.0, 1.0, 1.0)
    assert bubble_fraction(events) * makespan(events) == pytest.approx((n_ranks - 1) * (1 + 1 - 1))


@pytest.mark.parametrize("n_micro", [8, 16])
def test_gpipe_pays_2_n_minus_1_hops_a_step_and_1f1b_more_with_every_micro_batch(n_micro):
    assert "GPipe pays 2 (n − 1) hops a step" in TEXT
    late = {
        each.name: makespan(simulate(each, hop=0.5)) - makespan(simulate(each))
        for each in (gpipe(4, n_micro), one_f_one_b(4, n_micro))
    }
    assert late["GPipe"] == 0.5 * 2 * 3
    assert late["1F1B"] == 0.5 * {8: 16, 16: 28}[n_micro]
