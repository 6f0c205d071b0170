"""Training in turns as notebook 03 does it: the lessons that it ends on, by counts."""

from __future__ import annotations

import contextlib
import io

import pytest
from to_do import task

from labkit import dp
from labkit.lab import data_parallel
from labkit.trace import span
from labkit.train import TranslateConfig, load
from labkit.train.translation import target_loss


def step(model, batch, targets, optimizer, sync):
    with span("forward"):
        loss = target_loss(model, batch) / targets
    with span("backward"):
        loss.backward()
    with span("all_reduce", lane="comm"):
        sync()
    with span("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


@pytest.fixture(scope="module")
def scaling():
    with contextlib.redirect_stdout(io.StringIO()):
        corpus = load(TranslateConfig(source="shipped", limit=32, limit_eval=2))
    ways = {"1 × 4": (1, 4, data_parallel.skip), "2 × 4": (2, 4, dp.average_gradients)}
    return data_parallel.in_turns(step, ways, corpus, rounds=3)


@task("dp.4")
def test_of_a_way_with_one_device_the_other_rank_takes_no_step(scaling):
    of_rank = scaling.events.dropna(subset="step").groupby("rank")["step"].unique()
    assert set(of_rank[0]) == set(range(6)) and set(of_rank[1]) == {1, 3, 5}


@task("dp.4")
def test_the_time_of_a_sentence_is_that_of_a_step_over_the_sentences_of_all_devices(scaling):
    assert (scaling.sentence_s["1 × 4"] * 4).tolist() == pytest.approx(scaling.step_s["1 × 4"].tolist())
    assert (scaling.sentence_s["2 × 4"] * 8).tolist() == pytest.approx(scaling.step_s["2 × 4"].tolist())


@task("dp.4")
def test_the_median_step_is_one_of_its_way_on_both_ranks_and_begins_at_0(scaling):
    step = scaling.median_step("2 × 4")
    assert set(step["rank"]) == {0, 1} and step.start_s.min() == 0 and step.step.nunique() == 1
    assert set(step["name"]) == set(data_parallel.PARTS)
