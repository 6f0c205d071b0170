"""Tell what a thread waits for, where that is certain.

- RANKS: a collective or message. The thread is in ``wait()`` of one, in torch.distributed, in the
  forward of DistributedDataParallel, or in a backward pass, where C++ waits for what DDP has begun.
  A call with a time limit of its own is no such wait, if that limit is over before the rank's is.
- GPU: its GPU, for which it may use a core.
- THREADS: another thread of its process. It is in a lock, a queue or a join, and Linux says that
  only another thread can wake it, and no clock.
- "": none of these, or it cannot be told. Such a thread is alive: it may go on by itself.
"""

from __future__ import annotations

import linecache
import math
import os
import queue
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import thread as pool_thread
from datetime import timedelta
from inspect import getattr_static
from types import FrameType
from typing import Any

from labkit.ranks.faults.frames import WRAPPERS, is_readers, outwards, place_of
from labkit.ranks.messages.message import GPU, RANKS, THREADS

_OF_RANKS = ("distributed/", "nn/parallel/distributed.py", "autograd/")  # files of torch that wait for ranks
_DISKS = ("distributed/checkpoint/", "multiprocessing/", "utils/", "hub.py", "serialization.py")  # for files
_READS = (".item()", ".tolist()", ".cpu()", ".numpy()")  # of a tensor, which wait for its GPU
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, queue.SimpleQueue)
_LOCKING = {
    (threading.__file__, "wait"),
    (threading.__file__, "join"),
    (threading.__file__, "_wait_for_tstate_lock"),
    (threading.__file__, "__enter__"),
    (pool_thread.__file__, "_worker"),
}
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)  # Linux's number of this system call
MAX_LEFT_S = 1e9  # which a timedelta can hold
_PRIVATE = 128  # the flag of a futex in which no other process has a part


def what_it_waits_for(frame: FrameType | None, native_id: int | None, left_s: float = math.inf) -> str:
    """Return what a thread waits for, given its innermost frame and its number in Linux.

    ``left_s`` is how long the rank had until its time is up when it began to stand still.
    """
    if frame is None:
        return ""
    cuda = sys.modules.get("torch.cuda")
    has_gpu = cuda is not None and cuda.is_initialized()
    if waits_for_work(frame, left_s):
        return GPU if has_gpu else RANKS
    if has_gpu and waits_for_gpu(frame):
        return GPU
    return THREADS if _is_in_lock(frame) and _waits_for_thread(native_id) else ""


def waits_for_work(frame: FrameType, left_s: float) -> bool:
    """Return whether a thread is in code that waits for other ranks, for as long as it takes."""
    if frame.f_code.co_filename in WRAPPERS:
        limits = [*frame.f_locals.get("args", ()), *frame.f_locals.get("options", {}).values()]
        is_wait = frame.f_code.co_name == "wait" and not any(is_limit(each, left_s) for each in limits)
        return is_wait or frame.f_code.co_name == "call"
    calls = list(_calls_of_torch(frame))
    files = [file for file, _ in calls]
    waits = bool(files) and not files[0].startswith(_DISKS) and any(file.startswith(_OF_RANKS) for file in files)
    return waits and not any(is_limit(call.f_locals.get("timeout"), left_s) for _, call in calls)


def is_limit(limit: object, left_s: float) -> bool:
    """Return whether a time limit of torch's is the reader's own, and is over within ``left_s``."""
    if not isinstance(limit, timedelta) or limit in _default_limits():
        return False
    return timedelta(0) < limit < timedelta(seconds=min(left_s, MAX_LEFT_S))


def _default_limits() -> list[timedelta]:
    """Return what torch gives the groups that are formed without a limit."""
    constants = vars(sys.modules["torch.distributed.constants"])
    return [limit for limit in constants.values() if isinstance(limit, timedelta)]


def waits_for_gpu(frame: FrameType) -> bool:
    """Return whether a thread is where torch waits for the GPU, for which it may use a core.

    It may as well compute there. Then it is taken for one that waits, and yet nothing wrong is
    said: a rank whose GPU has nothing left to do, or what others join, can go on.
    """
    if is_readers(frame.f_code.co_filename):
        return place_of(frame).call().endswith(_READS)
    file, _ = next(_calls_of_torch(frame), ("", None))
    return bool(file) and not file.startswith(_DISKS)


def _calls_of_torch(frame: FrameType) -> Iterator[tuple[str, FrameType]]:
    """Yield the calls of torch that a thread is in, and their files, from the innermost on."""
    torch = sys.modules.get("torch")
    folder = os.path.join(os.path.dirname(torch.__file__ or ""), "") if torch else ""
    for each in outwards(frame):
        if not folder or not each.f_code.co_filename.startswith(folder):
            return
        yield each.f_code.co_filename.removeprefix(folder), each


def _is_in_lock(frame: FrameType) -> bool:
    """Return whether a thread takes a lock or takes from a queue, as far as its source says."""
    if (frame.f_code.co_filename, frame.f_code.co_name) in _LOCKING:
        return True
    place = place_of(frame)
    line = linecache.getline(place.file, place.line).strip()
    source = place.call() or (line if line.startswith("with ") else "")
    return any(_names_lock(name, frame) for name in re.findall(r"[^\W\d][\w.]*", source))


def _names_lock(name: str, frame: FrameType) -> bool:
    """Return whether a dotted name, such as ``self.lock.acquire``, begins with a lock or queue's.

    No code of the reader's is executed to find out.
    """
    first, *attributes = name.split(".")
    found: Any = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in attributes:
        if isinstance(found, _LOCKS):
            break
        found = getattr_static(found, attribute, None)
    return isinstance(found, _LOCKS)


def _waits_for_thread(native_id: int | None) -> bool:
    """Return whether Linux says that only another thread of this process can wake this one."""
    number, _, operation, _, timeout = (*_system_call(native_id), *[""] * 5)[:5]
    return number == str(_FUTEX) and bool(int(operation, 16) & _PRIVATE) and int(timeout, 16) == 0


def _system_call(native_id: int | None) -> list[str]:
    """Return the system call that a thread is in: its number, and its arguments in hexadecimal.

    Empty where that cannot be read, as on macOS and in some containers.
    """
    try:
        with open(f"/proc/self/task/{native_id}/syscall") as file:
            return file.read().split()
    except OSError:
        return []
