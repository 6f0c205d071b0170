"""labkit.schedule: orders are the papers', errors say the place, and CSV goes both ways."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import MAKERS, feeder, ops_of, play, random_schedules, rank_of, schedules

from labkit.schedule import (
    Op,
    Schedule,
    ScheduleError,
    find_dependencies,
    gpipe,
    interleaved,
    one_f_one_b,
    validate,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.schedule.p2p_order import Message, p2p_order

BY_COUNTS = [*MAKERS, lambda n, m: interleaved(n, m, 2)]

small = st.integers(1, 5)
micro = st.integers(1, 14)
any_schedule = schedules(max_ranks=5, max_micro_batches=14)
Spans = dict[Op, tuple[float, float]]


def ranks_of(*rows: str) -> list[list[Op]]:
    return [[Op.parse(op) for op in row.split()] for row in rows]


# --- an executor that shares nothing with the code under test -------------------------------------


def can_run(ranks: list[list[Op]]) -> bool:
    """Run op after op, each once its rank has it next and what it needs is done, until none can."""
    n_stages = 1 + max((op.stage for ops in ranks for op in ops), default=-1)
    done: set[Op] = set()
    home: dict[int, int] = {}
    left = [list(ops) for ops in ranks]

    def is_done(kinds: str, stage: int, op: Op) -> bool:
        return any(Op(kind, stage, op.micro_batch) in done for kind in kinds)

    def may_run(op: Op, rank: int) -> bool:
        if op in done or home.setdefault(op.stage, rank) != rank:
            return False
        if op.kind == "F":
            return op.stage == 0 or is_done("F", op.stage - 1, op)
        if op.kind == "W":
            return is_done("I", op.stage, op)
        return is_done("F", op.stage, op) and (op.stage == n_stages - 1 or is_done("BI", op.stage + 1, op))

    while ready := [ops for rank, ops in enumerate(left) if ops and may_run(ops[0], rank)]:
        done.add(ready[0].pop(0))
    return not any(left) and all(ranks) and _is_whole(done)


def _is_whole(ops: set[Op]) -> bool:
    """Every stage has every forward, and nothing more, or with it B, or with it I and W."""
    stages, micro_batches = {op.stage for op in ops}, {op.micro_batch for op in ops}
    if not ops or stages != set(range(len(stages))) or micro_batches != set(range(len(micro_batches))):
        return False
    places = list(itertools.product(stages, micro_batches))
    kinds = {"".join(k for k in "FBIW" if Op(k, stage, i) in ops) for stage, i in places}
    return kinds <= {"F"} or kinds <= {"FB", "FIW"}


# --- bad input ------------------------------------------------------------------------------------

NUMBER = "expected a whole number, 1 or more$"
COUNTS = [
    *[(lambda make=make: make(0, 4), ValueError, rf"^n_(stages|ranks) is 0, {NUMBER}") for make in BY_COUNTS],
    *[(lambda make=make: make(4, True), TypeError, rf"^n_micro is True, {NUMBER}") for make in BY_COUNTS],
    (lambda: interleaved(4, 8, 0), ValueError, rf"^n_chunks is 0, {NUMBER}"),
    (lambda: interleaved(4, 9, 2), ValueError, r"^n_micro is 9, .* take 8, 10, or any multiple of 4$"),
]
OPS = [
    (lambda: Op("FB", 0, 0), ValueError, "kind is 'FB', expected one of F, B, I, W"),
    (lambda: Op("F", -1, 0), ValueError, "stage is -1 and micro_batch 0; both count from 0"),
    *[
        (lambda text=text: Op.parse(text), ValueError, rf"^'{text}' is not an op, expected .* such as 2F0$")
        for text in ("", "2FB0", "2F0x")
    ],
    (lambda: Schedule([["0F0"]]), TypeError, r"^rank 0, position 0: '0F0' is not an Op; .*Op\.parse\(\"2F0\"\)"),
]
CELLS = {
    "0F0,0X0": (1, 2, "0X0"),
    "0F0,0B0\n1F0,,1B\n": (2, 3, "1B"),
    "stage,kind,micro\n": (1, 1, "stage"),
    "0F0,(0B0;0Q1)OVERLAP_F_B\n": (1, 2, "(0B0;0Q1)OVERLAP_F_B"),
    f"0F0,0F{'9' * 5000}\n": (1, 2, f"0F{'9' * 5000}"),
}
CSV = [
    *[
        (
            lambda text=text: Schedule.from_csv(text),
            ValueError,
            rf"^row {row}, column {column}: {re.escape(repr(cell))} is not an action, expected",
        )
        for text, (row, column, cell) in CELLS.items()
    ],
    (lambda: Schedule.from_csv("0F0,0B1,0F1,0B0\n"), ScheduleError, "^rank 0, position 1, 0B1: it needs 0F1"),
    (lambda: Schedule.from_csv("0F0\n\n1F0\n"), ScheduleError, "^rank 1, position 0: the rank has nothing"),
    (lambda: Schedule.from_csv(""), ScheduleError, ": the schedule has no ranks"),
    *[
        (
            lambda nowhere=nowhere: Schedule.from_csv(nowhere),
            FileNotFoundError,
            rf"^there is no file {re.escape(repr(str(nowhere)))}, and as text",
        )
        for nowhere in (Path("no/such.csv"), ".", "x" * 5000)
    ],
]


@pytest.mark.parametrize(("call", "error", "says"), [*COUNTS, *OPS, *CSV])
def test_what_is_no_count_op_or_csv_is_refused_with_what_was_given_and_expected(call, error, says):
    with pytest.raises(error, match=says):
        call()


# --- what validate refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "rank 0, position 0: the schedule has no ranks"),
        (["0F0 0B0", ""], "rank 1, position 0: the rank has nothing to do"),
        (["0F0 0B0 0B0"], "rank 0, position 2, 0B0: it is there twice"),
        (["0F0 0B0", "1F0 1B0 0F0"], "rank 1, position 2, 0F0: it is there twice"),
        (["0F0 0B0", "0F1 0B1"], "rank 1, position 0, 0F1: stage 0 is on rank 0 already"),
        (["0B0 0F0"], "rank 0, position 0, 0B0: it needs 0F0, which does not come before it"),
        (["0F0 0W0 0I0"], "rank 0, position 1, 0W0: it needs 0I0, which does not come before it"),
        (["0F0 0B0 0F1"], "rank 0, position 3, 0B1: it is missing (or I and W in its place)"),
        (["0F0 0I0"], "rank 0, position 2, 0W0: it is missing"),
        (["0F0 0F1000000000000"], "rank 0, position 2, 0F1: it is missing"),  # at once
        (["0F0", "5F0 4F0"], "rank 1, position 1, 4F0: stage 1 comes before its stage, and no rank has it"),
        (
            ["0F0 0I0 0B0 0W0"],
            "rank 0, position 2, 0B0: the backward pass is there whole (B) and split (I, W), expected one of the two",
        ),
    ],
)
def test_validate_says_rank_position_op_and_reason_of_what_is_wrong(rows, says):
    ranks = ranks_of(*rows)
    with pytest.raises(ScheduleError) as caught:
        validate(Schedule(ranks))
    error = caught.value
    assert str(error) == says
    named = re.fullmatch(r"rank (\d+), position (\d+)(?:, (\w+))?: (.*)", says)
    assert (str(error.rank), str(error.position), error.op and str(error.op), error.reason) == named.groups()
    assert not can_run(ranks)


@pytest.mark.parametrize(
    ("rows", "rank", "position", "waits"),
    [
        (["1F0 0F0"], 0, 0, "1F0 on rank 0 waits for 0F0, which rank 0 runs later"),
        (["1F0 0F0", "3F0 2F0"], 0, 0, "1F0 on rank 0 waits for 0F0, which rank 0 runs later"),  # and so does rank 1
        (
            ["3F0 0F0", "1F0", "2F0"],
            *(0, 0),
            "3F0 on rank 0 waits for 2F0, which rank 2 runs later; 2F0 on rank 2 waits for 1F0, "
            "which rank 1 runs later; 1F0 on rank 1 waits for 0F0, which rank 0 runs later",
        ),
        (  # rank 0 waits too, but for the two that wait for each other
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"],
            *(1, 1),
            "1B0 on rank 1 waits for 2B0, which rank 2 runs later; 2F1 on rank 2 waits for 1F1, which rank 1 runs later",
        ),
    ],
)
def test_a_deadlock_is_told_as_the_circle_of_ranks_that_wait(rows, rank, position, waits):
    ranks = ranks_of(*rows)
    for refuse in (validate, p2p_order):
        with pytest.raises(ScheduleError) as caught:
            refuse(Schedule(ranks))
        assert (caught.value.rank, caught.value.position) == (rank, position)
        assert caught.value.op == ranks[rank][position]
        assert caught.value.reason == f"a deadlock: {waits}"
    assert not can_run(ranks)


# --- what the generators make: torch's orders are in test_torch_schedules -------------------------


def test_names_are_those_of_the_papers_and_h2_starts_as_drawn_there():
    names = [make(2, 4).name for make in BY_COUNTS]
    assert names == ["forward only", "GPipe", "1F1B", "ZB-H1", "ZB-H2", "ZB-V", "interleaved 1F1B"]
    assert str(gpipe(2, 1)) == "GPipe\nrank 0: 0F0 0B0\nrank 1: 1F0 1B0"
    first, *_, last = str(zero_bubble_h2(4, 8)).splitlines()[1:]
    assert first.startswith("rank 0: 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0")
    assert last.endswith("3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7")


# --- how long they take and what they keep: the closed forms of the papers ------------------------


def played(schedule: Schedule, **times: float) -> Spans:
    """When each op runs, as soon as it can; ``times`` are of F, B, I and W, 1 unless given."""
    return play(schedule, lambda op: times.get(op.kind, 1))


def peaks(schedule: Schedule) -> list[int]:
    """By rank, the most forwards at once whose B or W has not ended."""
    changes = [[{"F": 1, "I": 0, "B": -1, "W": -1}[op.kind] for op in ops] for ops in schedule.ops]
    return [max(itertools.accumulate(of_rank)) for of_rank in changes]


def idle_inside(schedule: Schedule, spans: Spans) -> list[float]:
    """By rank, the idle time between its first op and its last."""
    return [sum(spans[b][0] - spans[a][1] for a, b in itertools.pairwise(ops)) for ops in schedule.ops]


def makespan(spans: Spans) -> float:
    return max(end for _, end in spans.values())


@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (3, 2)])
@settings(max_examples=20, deadline=None)
@given(n=small, m=micro, v=st.integers(1, 3))
def test_gpipe_and_1f1b_take_equally_long_interleaving_idles_for_one_chunk_and_each_keeps_its_own(
    n, m, v, forward, backward
):
    kept = [(gpipe(n, m), [m] * n), (one_f_one_b(n, m), [min(n - r, m) for r in range(n)])]
    if m >= n and m % (m // n) == 0:
        k = m // (m // n)  # micro-batches a round
        kept.append((interleaved(n, m, v), [min(m * v, (v - 1) * k + 2 * (n - 1 - r) + 1) for r in range(n)]))
    for schedule, peak in kept:
        spans = played(schedule, F=forward, B=backward)
        chunks = schedule.n_stages // n
        assert makespan(spans) == (m * chunks + n - 1) * (forward + backward)
        assert peaks(schedule) == peak


@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 2), (5, 4, 3)])  # F, I, W; W the shortest
@settings(max_examples=20, deadline=None)
@given(n=small, more=st.integers(0, 8))
def test_zero_bubble_schedules_idle_and_keep_as_much_as_the_paper_says(n, more, times):
    forward, input_grad, weight_grad = times
    for schedule, n_w, peak in (
        (zero_bubble_h1(n, n + more), 1, n),
        (zero_bubble_h2(n, 2 * n - 1 + more), 2, 2 * n - 1),
    ):
        spans = played(schedule, F=forward, I=input_grad, W=weight_grad)
        hop = forward + input_grad - n_w * weight_grad
        assert idle_inside(schedule, spans) == [(n - 1 - r) * hop for r in range(n)]
        assert peaks(schedule) == [peak] * n
        assert n_w == 2 or makespan(spans) == schedule.n_micro * sum(times) + (n - 1) * hop
    v = zero_bubble_v(n, 2 * n - 1 + more)
    assert idle_inside(v, played(v)) == [0] * n and peaks(v) == [2 * n] * n


# --- CSV, as torch writes it ----------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(schedule=st.one_of(any_schedule, random_schedules()))
def test_a_schedule_comes_back_from_its_csv_and_knows_what_each_op_comes_after_and_takes(schedule):
    assert Schedule.from_csv(schedule.to_csv()) == schedule
    assert can_run(schedule.ops)
    found, ops = find_dependencies(schedule), ops_of(schedule)
    assert found.ops == ops
    assert found.rank == [rank for rank, listed in enumerate(schedule.ops) for _ in listed]
    comes_after = {op: before for listed in schedule.ops for before, op in itertools.pairwise(listed)}
    assert [None if i is None else ops[i] for i in found.previous_op] == [comes_after.get(op) for op in ops]
    assert [None if i is None else ops[i] for i in found.input_op] == [feeder(schedule, op) for op in ops]
    home = rank_of(schedule)
    takes = {op: source for op in ops if (source := feeder(schedule, op)) and home[source.stage] != home[op.stage]}
    messages = [Message(source, op, home[source.stage], home[op.stage]) for op, source in takes.items()]
    assert sorted(p2p_order(schedule)) == sorted(messages)
    place = {i: k for k, i in enumerate(found.order)}
    assert sorted(found.order) == list(range(len(ops)))
    assert all(place[j] < place[i] for i in place for j in (found.previous_op[i], found.input_op[i]) if j is not None)


def test_what_computes_nothing_is_skipped_and_overlapped_ops_come_one_after_the_other():
    first = " ,0UNSHARD, 0F0 , 0SEND_F0 ,0F1,,(0B0; 0B1)OVERLAP_F_B,0REDUCE_GRAD,0RESHARD\n"
    text = first + "1RECV_F0,1F0,1B0,(1F1;1B1)OVERLAP_F_B,\n"
    expected = ranks_of("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert Schedule.from_csv(text).ops == expected
    assert Schedule.from_csv(text.replace("\n", "\r\n")).ops == expected
    assert Schedule.from_csv('"0F0","0B0"\n').ops == ranks_of("0F0 0B0")
