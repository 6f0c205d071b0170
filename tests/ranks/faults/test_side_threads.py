"""What the code of a thread leads to: other ranks, what other threads wait for, both, or neither.

That a rank's threads count by this, test_hangs and test_correct_runs show.
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import queue
import sched
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

from labkit.ranks.faults.side_threads import leads_to
from labkit.ranks.messages.message import RANKS, THREADS

EVENT, LETTERS, MODEL, LOG = threading.Event(), queue.Queue(), nn.Linear(1, 1), logging.getLogger("test")
LOCKS = {"one": threading.Lock()}


# --- neither --------------------------------------------------------------------------------------


def samples(beats):
    while True:
        time.sleep(1)
        beats.append((psutil.cpu_percent(), torch.get_num_threads()))


def makes_a_list():
    return [samples for _ in range(3)]


class Heart:
    def __init__(self):
        self.beats = []

    def beat(self):
        self.beats.append(time.time())

    def send(self):
        dist.barrier()


# --- what other threads wait for ------------------------------------------------------------------


def logs():
    LOG.info("still here")


def waits_with_a_limit():
    while not EVENT.wait(1):
        pass


def answers(mailbox):
    mailbox.put(1)


def holds_one_of_many():
    with LOCKS["one"]:
        time.sleep(1)


def repeats():
    threading.Timer(1, repeats).start()


# --- other ranks ----------------------------------------------------------------------------------


def sends():
    dist.send(torch.ones(1), 1)


def calls_what_sends():
    for each in [print, sends]:
        each()


def imports():
    from torch import distributed

    distributed.send(torch.ones(1), 1)


def says_its_rank():
    return dist.get_rank(), torch.distributed.get_world_size(), dist.is_initialized()


def differentiates(loss):
    loss.backward()


def has_a_model():
    return MODEL(torch.ones(1))


@functools.lru_cache
def remembers():
    sends()


@functools.wraps(samples)
def looks_like_it_samples():
    sends()


def calls(function):
    def call():
        function()

    return call


def calls_two():
    calls(time.time)()
    FIRST()
    SECOND()


FIRST, SECOND = calls(time.time), calls(sends)


class Sender(Heart):
    __slots__ = ("other",)

    def __init__(self):
        self.other = Heart()

    def __call__(self):
        self.other.send()

    @property
    def last(self):
        return sends()

    def uses_it(self):
        return self.last


class Proxy:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class SendingThread(threading.Thread):
    def run(self):
        self.end()

    def end(self):
        sends()


async def sends_in_a_loop():
    sends()


def scheduler():
    plan = sched.scheduler()
    plan.enter(1, 1, sends)
    return plan.run


def thread(target, *args):
    return threading.Thread(target=target, args=args)


NEITHER: set[str] = set()
LEADS_TO = {
    "time.sleep": (thread(time.sleep, 9), NEITHER),
    "a sampler": (thread(samples, []), NEITHER),
    "a method beside one that sends": (thread(Heart().beat), NEITHER),
    "a lambda": (thread(lambda: time.sleep(9)), NEITHER),
    "its rank": (thread(says_its_rank), NEITHER),
    "a function that it does not call": (thread(makes_a_list), NEITHER),
    "a logger": (thread(logs), {THREADS}),
    "an event": (thread(waits_with_a_limit), {THREADS}),
    "a queue": (thread(answers, LETTERS), {THREADS}),
    "a lock by its key": (thread(holds_one_of_many), {THREADS}),
    "a lock's own method": (threading.Timer(1, threading.Lock().release), {THREADS}),
    "a timer that starts anew": (threading.Timer(1, repeats), {THREADS}),
    "a send": (thread(sends), {RANKS}),
    "a send among what it calls": (thread(calls_what_sends), {RANKS}),
    "a send of a timer": (threading.Timer(1, dist.send, (torch.ones(1), 1)), {RANKS}),
    "a send of a partial": (thread(functools.partial(functools.partial(sends))), {RANKS}),
    "a send in a default": (thread(lambda send=sends: send()), {RANKS}),
    "a send in an argument": (thread(lambda jobs: jobs["first"](), {"first": sends}), {RANKS}),
    "a send in a namespace": (thread(lambda jobs: jobs.next(), SimpleNamespace(next=sends)), {RANKS}),
    "a send that is cached": (thread(remembers), {RANKS}),
    "a send by another name": (thread(looks_like_it_samples), {RANKS}),
    "a send in one of two closures": (thread(calls_two), {RANKS}),
    "a send of a slot's": (thread(Sender()), {RANKS}),
    "a send of a property": (thread(Sender().uses_it), {RANKS}),
    "a send of a thread's class": (SendingThread(), {RANKS}),
    "a send that is scheduled": (thread(scheduler()), {RANKS, THREADS}),
    "a send of a coroutine": (thread(asyncio.run, sends_in_a_loop()), {RANKS}),
    "an import": (thread(imports), {RANKS}),
    "a backward pass": (thread(differentiates, torch.ones(1)), {RANKS}),
    "a model": (thread(has_a_model), {RANKS}),
    "what passes on any name": (thread(lambda group: group.go(), Proxy(None)), {RANKS, THREADS}),
}


@pytest.fixture(scope="module")
def asleep():
    """Return the innermost frame of a thread that sleeps."""
    sleeper = threading.Thread(target=time.sleep, args=(99,), daemon=True)
    sleeper.start()
    return sys._current_frames()[sleeper.ident]


@pytest.mark.parametrize(("which", "what"), LEADS_TO.values(), ids=LEADS_TO)
def test_a_thread_leads_to_what_its_code_names(which, what, asleep):
    assert leads_to(which, asleep) == what


def test_the_monitor_of_a_progress_bar_leads_to_nothing():
    list(tqdm(range(3), file=io.StringIO()))
    (monitor,) = [each for each in threading.enumerate() if each.name == "tqdm_monitor"]
    assert leads_to(monitor, sys._current_frames()[monitor.ident]) == set()
