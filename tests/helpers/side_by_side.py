"""Launches whose ranks mostly wait, several at a time: how each of them ended."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import psutil
import pytest
from torch.utils.data import DataLoader
from tqdm import tqdm

from labkit.cost import Link
from labkit.launch import Run, launch
from labkit.ranks.processes import diagnosis

N_LAUNCHES = 8  # at a time
QUIET_S = 0.5  # so long ranks must have stood still here before they are taken for deadlocked


class Case(NamedTuple):
    """A function of the rank, to be launched."""

    fn: Callable[[int], Any]
    world_size: int = 2
    link: Link | None = None
    init: bool = True

    def __str__(self) -> str:
        return self.fn.__name__ + " on a link" * (self.link is not None)


def on_this_rank(fn: Callable[[int], Any]) -> Any:
    return fn(int(os.environ["RANK"]))


# --- what may run beside a rank's work ------------------------------------------------------------


def heartbeat(seconds, beats):
    while True:
        time.sleep(seconds)
        beats.append(time.time())


class Sampler(threading.Thread):
    """Asks again and again how much memory this process uses."""

    def run(self):
        while True:
            self.last = psutil.Process().memory_info().rss
            time.sleep(0.05)


def much_runs_beside():
    """Leave threads and handlers behind that have no part in what ranks wait for."""
    assert list(tqdm(range(3), file=io.StringIO(), disable=False))
    assert list(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))
    for target, args in ((time.sleep, (99,)), (heartbeat, (0.1, [])), (subprocess.run, (["sleep", "99"],))):
        threading.Thread(target=target, args=args, daemon=True).start()
    Sampler(daemon=True).start()


# --- launches ------------------------------------------------------------------------------------


def outcome(case: Case) -> Run | Exception:
    """Return what launching a case gives, or raises."""
    try:
        options = case._asdict()
        return launch(on_this_rank, options.pop("fn"), **options, backend="gloo", timeout_s=240)
    except Exception as error:
        return error


@contextlib.contextmanager
def launched(cases: Iterable[Case]) -> Iterator[dict[Case, Future[Run | Exception]]]:
    """Launch every case, and give what each will have ended in: a test waits for its own alone.

    Ranks that stand still are given less time than usual to move on.
    """
    cases = list(dict.fromkeys(cases))
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(N_LAUNCHES) as launches:
        patch.setattr(diagnosis, "QUIET_S", QUIET_S)
        try:
            yield {case: launches.submit(outcome, case) for case in cases}
        finally:
            launches.shutdown(cancel_futures=True)


def selected(request: pytest.FixtureRequest) -> list[Case]:
    """Return the cases of the tests that this session runs in the file that asks."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return [item.callspec.params["case"] for item in items if "case" in item.callspec.params]
