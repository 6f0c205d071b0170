"""Ranks that nobody uses end after a time; it is counted from the end of the last cell."""

from __future__ import annotations

import threading

import pytest

from labkit.ranks.notebook import cells, idle
from labkit.ranks.notebook.cells import Ranks
from labkit.ranks.notebook.idle import IdleLimit
from labkit.ranks.processes.plan import decide


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_counts_from_the_end_of_a_use_and_nothing_ends_while_it_is_used():
    clock, ended = Clock(), []
    limit = IdleLimit(60.0, lambda: ended.append(clock.now_s), clock)
    try:
        with limit.use():
            clock.now_s = 1000.0
            check = threading.Thread(target=limit.check)
            check.start()
            check.join()
        clock.now_s = 1059.0
        assert not limit.check() and ended == []
        clock.now_s = 1060.0
        assert limit.check() and ended == [1060.0]
        assert not limit.check()
    finally:
        limit.stop()


def test_a_thread_ends_what_is_not_used_and_none_is_there_without_a_limit():
    ended = threading.Event()
    limit = IdleLimit(0.05, ended.set)
    assert ended.wait(60)
    limit.stop()
    before = threading.active_count()
    IdleLimit(idle.limit_s(), ended.set)
    assert threading.active_count() <= before


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan"])
def test_what_is_not_a_time_is_refused_with_what_was_expected(given, monkeypatch):
    monkeypatch.setenv("LABKIT_IDLE_MINUTES", given)
    with pytest.raises(ValueError, match=f"LABKIT_IDLE_MINUTES is '{given}', expected minutes"):
        idle.limit_s()
    monkeypatch.setenv("LABKIT_IDLE_MINUTES", "1.5")
    assert idle.limit_s() == 90.0


def test_the_cell_after_an_idle_time_has_new_ranks_and_is_told_which_variables_are_gone(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(cells, "show", said.append)
    ranks = Ranks(decide(2, "gloo", threads=1), idle_s=1800.0)
    try:
        ranks.run_cell("%%ranks\nmodel, losses = 1, 2", "first cell")
        before = [handle.pid for handle in ranks._running().handles]
        ranks._idle._clock = lambda: 1e12
        assert ranks._idle.check()
        ended = "these ranks were idle for 30 minutes (LABKIT_IDLE_MINUTES), so they were ended"
        sentence = f"{ended}, and with them model and losses"
        assert repr(ranks) == sentence and ranks.complete("lo", 2) == [] and ranks.names() == ["model", "losses"]
        with pytest.raises(RuntimeError, match=r"LABKIT_IDLE_MINUTES.*start new ones"):
            ranks["model"]
        assert not ranks.fits(ranks.plan) and said == []
        run = ranks.run_cell(
            "%%ranks\nimport torch.distributed as dist\n'model' in globals(), dist.get_world_size()", "cell"
        ).run
        assert said == [f"labkit: {sentence}. New ones start.\n"] and run.values == ["(False, 2)"] * 2
        assert not {*before} & {handle.pid for handle in ranks._running().handles}
    finally:
        ranks.stop()
