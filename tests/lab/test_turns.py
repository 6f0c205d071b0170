"""Ways that take turns: each step has its own spans, times and number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from labkit.lab.turns import Turns, take_turns
from labkit.launch import RankError, workers
from labkit.trace import event_table, span


def two_ways():
    def both():
        with span("forward"):
            pass
        with span("all_reduce", lane="comm"):
            dist.all_reduce(total := torch.ones(1, requires_grad=True) * 2)
        return total

    def alone():
        with span("forward"), span("inner"):
            pass

    return {"both": both, ("alone", 1): alone if dist.get_rank() == 0 else None}


@pytest.fixture(scope="module")
def turns():
    return take_turns(two_ways, rounds=3)


def test_every_way_has_a_step_a_round_without_the_warm_up_and_its_own_spans(turns):
    assert turns.ways == ["both", ("alone", 1)] and turns.step_s.shape == (3, 2)
    for step in turns.steps("both"):
        assert sorted(zip(step["rank"], step["name"], strict=True)) == [
            (rank, name) for rank in (0, 1) for name in ("all_reduce", "forward")
        ]
    assert [set(step["rank"]) for step in turns.steps(("alone", 1))] == [{0}] * 3


def test_the_spans_of_a_step_have_its_number_and_round_r_of_way_k_of_n_has_rn_plus_k(turns):
    numbers = {way: [step["step"].unique().tolist() for step in turns.steps(way)] for way in turns.ways}
    assert numbers == {"both": [[2], [4], [6]], ("alone", 1): [[3], [5], [7]]}


def test_what_steps_return_is_there_by_way_and_rank_from_the_first_round_on_and_detached(turns):
    of_rank_0, of_rank_1 = turns.returned["both"]
    assert [each.item() for each in of_rank_0] == [4.0] * 4 == [each.item() for each in of_rank_1]
    assert not of_rank_0[0].requires_grad and turns.returned["alone", 1] == [[None] * 4, []]


def test_warm_ranks_can_take_turns_as_well():
    with workers(world_size=2, threads=1) as ranks:
        assert take_turns(two_ways, rounds=1, ranks=ranks).step_s.shape == (1, 2)


# --- what is read off the events, of a run by hand ------------------------------------------------


def by_hand():
    """One way on two ranks, three rounds after a warm-up, the second the median: by arithmetic."""
    rows = []

    def step(number, start, forward_s, turn_s):
        for rank, longer in ((0, 0.0), (1, 0.5)):
            forward = ("forward", number, start + 0.25, start + 0.25 + forward_s + longer)
            inner = ("bucket", number, start + 0.5, start + 9.0)  # begins while forward is open
            whole = ("turn", number, start, start + turn_s + longer)
            for name, of, begin, end in (forward, inner, whole):
                lane = {"turn": "host", "bucket": "comm"}.get(name, "compute")
                rows.append((rank, lane, name, of, None, None, None, None, begin, end))

    for number, (forward_s, turn_s) in enumerate([(50.0, 60.0), (1.0, 3.0), (2.0, 4.0), (7.0, 8.0)]):
        step(number, 100.0 * number, forward_s, turn_s)
    returned = SimpleNamespace(names=["way"], of={"way": []})
    return Turns(SimpleNamespace(values=[returned, returned], events=event_table(rows), header="by hand"))


def test_a_step_lasts_until_the_last_rank_ends_and_the_typical_one_is_the_median_of_those():
    turns = by_hand()
    assert turns.step_s["way"].tolist() == [3.5, 4.5, 8.5]
    typical = turns.typical("way")
    assert set(typical["step"]) == {2} and set(typical["rank"]) == {0, 1} and "turn" not in set(typical["name"])
    assert typical["start_s"].min() == 0.25


def test_parts_are_means_over_ranks_and_with_the_rest_the_whole_step():
    turns = by_hand()
    assert turns.part_s("forward")["way"].tolist() == [1.25, 2.25, 7.25]
    parts = turns.parts.loc["way"]
    assert dict(parts) == {"forward": 2250.0, "rest": 2250.0, "step": 4500.0}


def test_a_measure_of_each_step_is_a_column_a_way():
    assert by_hand().each(lambda step: step["end_s"].max())["way"].tolist() == [9.0, 9.0, 9.0]


# --- what cannot take turns -----------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 6])
def test_an_even_number_of_rounds_has_no_median_step(rounds):
    with pytest.raises(ValueError, match=f"rounds is {rounds}, expected an odd number"):
        take_turns(two_ways, rounds=rounds)


def test_options_of_a_launch_beside_warm_ranks_are_refused():
    with pytest.raises(TypeError, match=r"world_size beside ranks=…"):
        take_turns(two_ways, ranks=object(), world_size=2)


@pytest.mark.parametrize(
    ("make_ways", "sentence"),
    [
        (lambda: {f"way {dist.get_rank()}": lambda: None}, r"rank 1 has the ways \['way 1'\], and rank 0 \['way 0'\]"),
        (dict, r"make_ways\(\) returned no way"),
    ],
)
def test_ways_that_are_none_or_differ_between_ranks_are_refused_before_a_step(make_ways, sentence):
    with pytest.raises(RankError, match=sentence):
        take_turns(make_ways, rounds=1)
