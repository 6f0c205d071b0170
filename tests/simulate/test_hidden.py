"""labkit.simulate.hidden: compute, hidden and exposed communication of a step add up to it."""

import pytest

from labkit.simulate import hidden_and_exposed
from labkit.trace import event_table

NAMES = ["compute", "hidden communication", "exposed communication"]


def step(rank=0, number=0, start=0.0, sent=((2.0, 4.0), (3.5, 7.0)), sent_step=None):
    """Backward from 1 to 5, a wait until 7, the optimizer until 8; and two buckets."""
    spans = [("forward", 0, 1), ("backward", 1, 5), ("wait", 5, 7), ("optimizer", 7, 8)]
    rows = [(rank, "compute", name, number, None, None, None, None, start + a, start + b) for name, a, b in spans]
    rows += [
        (rank, "comm", "all_reduce", sent_step, None, None, k, 8, start + a, start + b) for k, (a, b) in enumerate(sent)
    ]
    return rows


@pytest.mark.parametrize("sent_step", [None, 0])
def test_what_is_sent_while_a_rank_computes_hides_and_two_buckets_at_once_count_once(sent_step):
    table = hidden_and_exposed(event_table(step(sent_step=sent_step), measured=True, emulated="emulated link"))
    assert table[NAMES].values.tolist() == [[1 + 1 + 1, 3.0, 2.0]]
    assert table.attrs["emulated"] == "emulated link" and "[~" in repr(table)


def test_steps_are_apart_and_ranks_are_averaged():
    rows = step() + step(rank=1, sent=((5.0, 7.0),)) + step(number=1, start=20.0) + step(1, 1, 20.0)
    table = hidden_and_exposed(event_table(rows))
    assert table.step.tolist() == [0, 1]
    assert table[NAMES].values.tolist() == [[4.5, 1.5, 2.0], [3.0, 3.0, 2.0]]
    assert (table[NAMES].sum(axis=1) == 8.0).all()


def test_a_bucket_that_outlasts_its_step_counts_up_to_its_end():
    table = hidden_and_exposed(event_table(step(sent=((4.0, 30.0),))))
    assert table[NAMES].values.tolist() == [[4.0, 2.0, 2.0]]


def test_spans_without_a_step_make_no_step():
    with pytest.raises(ValueError, match="no span of events has a step"):
        hidden_and_exposed(event_table(step(number=None)))
