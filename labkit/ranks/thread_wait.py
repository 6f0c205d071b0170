"""Tell what a thread waits for, where that is certain.

- "work": a collective or message. The thread is in ``wait()`` of one, in torch.distributed, in the
  forward of DistributedDataParallel, or in a backward pass, where C++ waits for what DDP has begun.
- "gpu": its GPU, for which it may use a core.
- "thread": another thread of its process. It is in a lock, a queue or a join, and Linux says that
  only another thread can wake it, and no clock.
- "": none of these, or it cannot be told. Such a thread is alive: it may go on by itself.
"""

from __future__ import annotations

import linecache
import os
import queue
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import thread as pool_thread
from inspect import getattr_static
from types import FrameType
from typing import Any

from labkit.ranks.frames import is_readers, outwards, place_of

_WORK_LOG = os.path.join(os.path.dirname(__file__), "work_log.py")
_RANKS = ("distributed/", "nn/parallel/distributed.py", "autograd/")  # files of torch that wait for ranks
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
_PRIVATE = 128  # the flag of a futex in which no other process has a part


def what_it_waits_for(frame: FrameType | None, native_id: int | None) -> str:
    """Return what a thread waits for, given its innermost frame and its number in Linux."""
    if frame is None:
        return ""
    cuda = sys.modules.get("torch.cuda")
    has_gpu = cuda is not None and cuda.is_initialized()
    if waits_for_work(frame):
        return "gpu" if has_gpu else "work"
    if has_gpu and waits_for_gpu(frame):
        return "gpu"
    return "thread" if _is_in_lock(frame) and _waits_for_thread(native_id) else ""


def waits_for_work(frame: FrameType) -> bool:
    """Return whether a thread is in code that waits for other ranks, for as long as it takes."""
    if frame.f_code.co_filename == _WORK_LOG:
        limits = [*frame.f_locals.get("args", ()), *frame.f_locals.get("options", {}).values()]
        return frame.f_code.co_name == "call" or (frame.f_code.co_name == "wait" and not any(limits))
    files = list(_files_of_torch(frame))
    return bool(files) and not files[0].startswith(_DISKS) and any(file.startswith(_RANKS) for file in files)


def waits_for_gpu(frame: FrameType) -> bool:
    """Return whether a thread is where torch waits for the GPU, for which it may use a core.

    It may as well compute there. Then it is taken for one that waits, and yet nothing wrong is
    said: a rank whose GPU has nothing left to do, or what others join, can go on.
    """
    if is_readers(frame.f_code.co_filename):
        return place_of(frame).call().endswith(_READS)
    file = next(_files_of_torch(frame), "")
    return bool(file) and not file.startswith(_DISKS)


def _files_of_torch(frame: FrameType) -> Iterator[str]:
    """Yield the files of torch that a thread is in, from the innermost to what called torch."""
    torch = sys.modules.get("torch")
    folder = os.path.join(os.path.dirname(torch.__file__ or ""), "") if torch else ""
    for each in outwards(frame):
        if not folder or not each.f_code.co_filename.startswith(folder):
            return
        yield each.f_code.co_filename.removeprefix(folder)


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
