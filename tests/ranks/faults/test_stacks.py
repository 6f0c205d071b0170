"""A rank's stacks can be asked for at any time, and asking never ends the rank."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from labkit.launch import launch
from labkit.ranks.faults.rank_watch import STACKS_SIGNAL
from labkit.ranks.processes import rank

SEEK_CUR = 1


def hold_the_lock_asked_for_stacks():
    """Ask this rank for its stacks in C calls that keep Python's lock: return the bytes written."""
    libc, stacks = ctypes.PyDLL(None), rank.current._watch._stacks
    sys.setswitchinterval(60)  # nor does the interpreter hand it on between two of them
    time.sleep(0.1)  # nobody waits for it any more
    libc.kill(os.getpid(), int(STACKS_SIGNAL))
    libc.usleep(100_000)
    while_held = libc.lseek(stacks, 0, SEEK_CUR)
    sys.setswitchinterval(0.005)
    while not libc.lseek(stacks, 0, SEEK_CUR):
        time.sleep(0.01)
    return while_held


def stay_in_c_with_the_lock():
    sum(range(10**15))  # for hours


def test_stacks_are_written_only_with_pythons_lock_else_a_frame_may_be_freed_while_it_is_read():
    assert launch(hold_the_lock_asked_for_stacks, world_size=1, init=False).values == [0]


def test_a_rank_whose_c_code_keeps_the_lock_shows_its_stack_too_and_once(hang):
    assert hang(stay_in_c_with_the_lock, 1, init=False)[0].count("sum(range(10**15))") == 1
