"""Training in turns as notebooks 03 and 05 do it: the lessons that they end on, by counts."""

from __future__ import annotations

import contextlib
import io

import pytest
from to_do import task

from labkit import dp
from labkit.lab import data_parallel, gradient_sync
from labkit.lab.overlap import after_backward, no_sync, torch_ddp
from labkit.trace import span
from labkit.train import GlueConfig, TranslateConfig, load, load_glue
from labkit.train.entailment import summed_loss
from labkit.train.translation import target_loss


def step_of(loss_fn, sync_name):
    def step(model, batch, targets, optimizer, sync):
        with span("forward"):
            loss = loss_fn(model, batch) / targets
        with span("backward"):
            loss.backward()
        with span(sync_name, lane="comm"):
            sync()
        with span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.fixture(scope="module")
def scaling():
    with contextlib.redirect_stdout(io.StringIO()):
        corpus = load(TranslateConfig(source="shipped", limit=32, limit_eval=2))
    ways = {"1 × 4": (1, 4, data_parallel.skip), "2 × 4": (2, 4, dp.average_gradients)}
    return data_parallel.in_turns(step_of(target_loss, "all_reduce"), ways, corpus, rounds=3)


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


@pytest.fixture(scope="module")
def corpus():
    with contextlib.redirect_stdout(io.StringIO()):
        return load_glue(GlueConfig(source="shipped", limit=32, limit_eval=8))


STEP = step_of(summed_loss, "agree")
WAYS = {
    "gather_scatter": after_backward(dp.gather_scatter_gradients),
    "all_reduce": after_backward(dp.average_gradients),
    "ddp": torch_ddp(),
}


@pytest.mark.slow
@task("dp.3", "dp.4")
def test_four_ranks_that_agree_in_any_way_have_the_losses_of_one_process(corpus):
    one = gradient_sync.in_turns(STEP, {"one process": no_sync}, corpus, iterations=4, batch_size=8, world_size=1)
    four = gradient_sync.in_turns(STEP, WAYS, corpus, iterations=4, batch_size=8)
    for way in WAYS:
        assert four.losses[way].tolist() == pytest.approx(one.losses["one process"].tolist(), abs=1e-3)
    assert {way: len(found) for way, found in four.accuracy.items()} == dict.fromkeys(WAYS, 1)
