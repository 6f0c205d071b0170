"""labkit.simulate.step: every instant of a step is in one part, what was lost is found where it was
put, and all of it adds up."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.base.formats import MeasuredTable
from labkit.cost import ddp_step
from labkit.simulate import explain_step, hidden_and_exposed, largest_difference
from labkit.trace import event_table

IDEAL = ddp_step(1.0, [2.0, 1.0], 0.5, [100, 100], [[1], [0]], 2, 0.0, 100.0, host_s=0.25)  # 4.75 s

# --- bad input ------------------------------------------------------------------------------------


def without(name, events=IDEAL):
    return events[events["name"] != name]


TWO_RANKS = pd.concat([IDEAL, IDEAL.assign(rank=1)], ignore_index=True)


@pytest.mark.parametrize(
    "predicted, measured, message",
    [
        (IDEAL, event_table([]), "measured is empty"),
        (event_table([]), IDEAL, "predicted is empty"),
        (IDEAL, IDEAL.drop(columns="step"), "measured lacks the columns step"),
        (IDEAL, without("optimizer"), "measured has no span named optimizer, which predicted has in step 0 of rank 0"),
        (without("forward"), IDEAL, "predicted has no span named forward, which measured has in step 0 of rank 0"),
        (IDEAL[IDEAL["lane"] != "compute"], IDEAL, "predicted has no span named forward, backward, optimizer"),
        (
            IDEAL,
            without("all_reduce"),
            "measured has no span in the lane comm in step 0 of rank 0, and predicted has. torch's DDP",
        ),
        (
            IDEAL,
            TWO_RANKS.drop(TWO_RANKS.index[-1]),
            "1 spans named all_reduce in step 0 of rank 1 and 2 on another rank",
        ),
        (
            IDEAL,
            pd.concat([IDEAL, IDEAL.assign(step=1), IDEAL.assign(rank=1)]),
            "measured has step 1 on some ranks only, expected the same steps on all",
        ),
    ],
)
def test_tables_that_are_not_the_same_kind_of_step_are_refused(predicted, measured, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        explain_step(predicted, measured)


def test_steps_that_are_not_there_are_refused_and_what_is_no_table():
    with pytest.raises(ValueError, match="measured has no step 7, expected some of its steps, 0"):
        explain_step(IDEAL, IDEAL, steps=[0, 7])
    with pytest.raises(ValueError, match="steps is empty"):
        explain_step(IDEAL, IDEAL, steps=[])
    with pytest.raises(ValueError, match="measured has no step 0"):
        explain_step(IDEAL, IDEAL.assign(step=pd.NA), steps=[0])
    with pytest.raises(TypeError, match="measured is of type list"):
        explain_step(IDEAL, [])  # type: ignore[arg-type]


# --- each instant is in one part ------------------------------------------------------------------


def parts(events, steps=None, column="measured_s"):
    return explain_step(events, events, steps).set_index("part")[column].to_dict()


def test_the_parts_of_a_step_drawn_by_hand():
    # forward 1 s, backward 2 s and two calls of 0.25 s, 1 s more on the link, optimizer 0.5 s
    assert parts(IDEAL) == {"compute": 3.5, "waiting": 0.0, "communication": 1.0, "host": 0.5}
    assert parts(IDEAL, column="predicted_s") == parts(IDEAL)


def row(rank, lane, name, start_s, end_s, step=0):
    return (rank, lane, name, step, None, None, None, None, start_s, end_s)


def test_who_is_early_waits_until_the_last_rank_joins_and_then_both_communicate():
    late = event_table(
        [
            row(0, "compute", "backward", 0, 2),
            row(0, "comm", "all_reduce", 2, 10),
            row(1, "compute", "backward", 0, 7),
            row(1, "comm", "all_reduce", 7, 10),
        ]
    )
    found = parts(late)
    assert found == {"compute": (2 + 7) / 2, "waiting": (5 + 0) / 2, "communication": 3, "host": 0}


def test_waiting_that_hides_behind_compute_is_compute():
    hidden = event_table(
        [
            row(0, "comm", "all_reduce", 0, 8),
            row(0, "compute", "backward", 0, 8),
            row(1, "comm", "all_reduce", 4, 8),
            row(1, "compute", "backward", 0, 8),
        ]
    )
    assert parts(hidden) == {"compute": 8, "waiting": 0, "communication": 0, "host": 0}


def test_a_bucket_on_its_way_is_communication_even_if_the_next_one_waits_for_a_rank():
    # Rank 0 hands bucket 1 over at 1, rank 1 at 6; bucket 0 travels until 4.
    first = [row(rank, "comm", "all_reduce", 0, 4) for rank in (0, 1)]
    second = [row(0, "comm", "all_reduce", 1, 8), row(1, "comm", "all_reduce", 6, 8)]
    backward = [row(rank, "compute", "backward", 8, 9) for rank in (0, 1)]
    found = parts(event_table([*first, *second, *backward]))
    assert found == {"compute": 1, "waiting": (2 + 0) / 2, "communication": 6, "host": (0 + 2) / 2}


def test_a_wait_in_which_nothing_travels_and_what_no_span_covers_are_the_hosts():
    gaps = event_table(
        [row(0, "compute", "forward", 0, 1), row(0, "compute", "wait", 2, 3), row(0, "compute", "optimizer", 3, 4)]
    )
    assert parts(gaps) == {"compute": 2, "waiting": 0, "communication": 0, "host": 2}


def test_what_has_no_number_belongs_to_the_step_in_whose_time_it_begins_and_is_cut_at_its_end():
    steps = event_table(
        [
            row(0, "compute", "backward", 0, 2, step=4),
            row(0, "compute", "optimizer", 5, 6, step=4),
            row(0, "compute", "backward", 20, 22, step=5),
            row(0, "compute", "optimizer", 22, 24, step=5),
            row(0, "comm", "all_reduce", 1, 4, step=None),
            row(0, "comm", "all_reduce", 23.5, 30, step=None),
            row(0, "comm", "barrier", 10, 19, step=None),
        ]
    )
    assert parts(steps, steps=[4]) == {"compute": 3, "waiting": 0, "communication": 2, "host": 1}
    assert parts(steps, steps=[5]) == {"compute": 4, "waiting": 0, "communication": 0, "host": 0}


# --- it adds up, and finds what was lost ----------------------------------------------------------

seconds = st.floats(0, 10)


@st.composite
def measured_steps(draw):
    """Steps of some ranks: forward, backward with calls and buckets under it, and an optimizer."""
    rows, durations = [], []
    n_buckets = draw(st.integers(1, 3))
    ranks, steps = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    for rank in range(ranks):
        for step in range(steps):
            start = 1000.0 * step + draw(seconds)
            spans = [("compute", "forward"), ("compute", "backward"), ("compute", "wait"), ("compute", "optimizer")]
            at, end = start, start
            for lane, name in spans:
                at = end + draw(seconds)
                end = at + draw(seconds)
                rows.append(row(rank, lane, name, at, end, step))
            for _ in range(n_buckets):
                sent = start + draw(seconds) if draw(st.booleans()) else start
                rows.append(row(rank, "host", "hand over", sent, sent + draw(seconds), None))
                rows.append(row(rank, "comm", "all_reduce", sent, sent + draw(st.floats(0, 100)), None))
            first = min(each[-2] for each in rows if each[0] == rank and each[3] == step)
            durations.append(end - first)
            for i, each in enumerate(rows):  # a bucket belongs to a step: none begins before or after it
                if each[0] == rank and each[3] is None and each[-2] >= 1000.0 * step:
                    rows[i] = (*each[:-2], min(max(each[-2], first), end), max(each[-1], first))
    return event_table(rows), sum(durations) / len(durations)


@given(measured_steps(), measured_steps())
@settings(deadline=None, max_examples=50)
def test_the_differences_add_up_to_that_of_the_durations(one, other):
    (predicted, predicted_s), (measured, measured_s) = one, other
    table = explain_step(predicted, measured)
    assert table["predicted_s"].sum() == pytest.approx(predicted_s, abs=1e-9)
    assert table["measured_s"].sum() == pytest.approx(measured_s, abs=1e-9)
    assert table["difference_s"].sum() == pytest.approx(measured_s - predicted_s, abs=1e-9)
    assert (table[["predicted_s", "measured_s"]] >= 0).to_numpy().all()


@pytest.mark.parametrize(
    "changed, part, difference_s",
    [
        ({"forward_s": 1.5}, "compute", 0.5),
        ({"host_s": 0.5}, "host", 0.25),
        ({"bytes_per_s": 50.0}, "communication", 2.0),
        ({"optimizer_s": 0.25}, "compute", -0.25),
    ],
)
def test_what_was_lost_is_found_in_its_part_alone(changed, part, difference_s):
    given_as = {"forward_s": 1.0, "optimizer_s": 0.5, "bytes_per_s": 100.0, "host_s": 0.25} | changed
    step = ddp_step(
        ready_s=[2.0, 1.0], sizes_bytes=[100, 100], buckets=[[1, 0]], world_size=2, latency_s=0.0, **given_as
    )
    plain = ddp_step(1.0, [2.0, 1.0], 0.5, [100, 100], [[1, 0]], 2, 0.0, 100.0, host_s=0.25)
    table = explain_step(plain, step).set_index("part")["difference_s"]
    assert table[part] == pytest.approx(difference_s)
    assert table.drop(part).abs().max() < 1e-12


# --- how it is told -------------------------------------------------------------------------------


def test_it_prints_as_measured_where_the_run_does_and_says_what_was_emulated():
    run = event_table(
        IDEAL.astype(object).where(IDEAL.notna(), None).values.tolist(), measured=True, emulated="emulated link: x"
    )
    table = explain_step(IDEAL, run)
    assert isinstance(table, MeasuredTable) and table.attrs["emulated"] == "emulated link: x"
    assert list(table.columns) == ["part", "predicted_s", "measured_s", "difference_s"]
    assert not isinstance(explain_step(IDEAL, IDEAL), MeasuredTable)


@pytest.mark.parametrize(
    "differences_s, sentence",
    [
        ([0.001, 0.0042, 0.0029, 0.001], "9.1 ms longer than predicted; most by waiting, 4.2 ms longer"),
        ([-0.006, 0.002, 0.0, 0.001], "3.0 ms shorter than predicted; most by compute, 6.0 ms shorter"),
    ],
)
def test_the_largest_difference_is_told_with_its_part_as_a_fact_of_the_run(differences_s, sentence):
    table = pd.DataFrame({"part": ["compute", "waiting", "communication", "host"], "difference_s": differences_s})
    told = largest_difference(table)
    assert sentence in told and told.startswith("[~") and told.endswith("]")


# --- what hides -----------------------------------------------------------------------------------

NAMES = ["compute", "hidden communication", "exposed communication"]


def drawn(rank=0, number=0, start=0.0, sent=((2.0, 4.0), (3.5, 7.0)), sent_step=None):
    """Backward from 1 to 5, a wait until 7, the optimizer until 8; and two buckets."""
    spans = [("forward", 0, 1), ("backward", 1, 5), ("wait", 5, 7), ("optimizer", 7, 8)]
    rows = [(rank, "compute", name, number, None, None, None, None, start + a, start + b) for name, a, b in spans]
    rows += [
        (rank, "comm", "all_reduce", sent_step, None, None, k, 8, start + a, start + b) for k, (a, b) in enumerate(sent)
    ]
    return rows


@pytest.mark.parametrize("sent_step", [None, 0])
def test_what_is_sent_while_a_rank_computes_hides_and_two_buckets_at_once_count_once(sent_step):
    table = hidden_and_exposed(event_table(drawn(sent_step=sent_step), measured=True, emulated="emulated link"))
    assert table[NAMES].values.tolist() == [[1 + 1 + 1, 3.0, 2.0]]
    assert table.attrs["emulated"] == "emulated link" and "[~" in repr(table)


def test_steps_are_apart_and_ranks_are_averaged():
    rows = drawn() + drawn(rank=1, sent=((5.0, 7.0),)) + drawn(number=1, start=20.0) + drawn(1, 1, 20.0)
    table = hidden_and_exposed(event_table(rows))
    assert table.step.tolist() == [0, 1]
    assert table[NAMES].values.tolist() == [[4.5, 1.5, 2.0], [3.0, 3.0, 2.0]]
    assert (table[NAMES].sum(axis=1) == 8.0).all()


def test_a_bucket_that_outlasts_its_step_counts_up_to_its_end():
    table = hidden_and_exposed(event_table(drawn(sent=((4.0, 30.0),))))
    assert table[NAMES].values.tolist() == [[4.0, 2.0, 2.0]]


def test_spans_without_a_step_make_no_step():
    with pytest.raises(ValueError, match="no span of events has a step"):
        hidden_and_exposed(event_table(drawn(number=None)))
