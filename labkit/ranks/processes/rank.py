"""A rank at work: run what the notebook sends, and send back what that gives."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit import trace
from labkit.base.consequence import is_consequence
from labkit.base.deprecations import hide_deprecations
from labkit.base.rendezvous import without_name_server
from labkit.ranks.faults.rank_watch import RankWatch
from labkit.ranks.faults.tracebacks import advice, format_error, message_of
from labkit.ranks.messages import pickling
from labkit.ranks.messages.caller_environment import CallerEnvironment
from labkit.ranks.messages.connection import receive_message, send_message
from labkit.ranks.messages.message import Done, Failed, GroupNumber, GroupState, Message, encode
from labkit.ranks.processes.call_reader import CallReader
from labkit.ranks.processes.loader_workers import clear_frames, workers_end_soon
from labkit.ranks.processes.plan import LaunchPlan

if TYPE_CHECKING:  # it loads torch
    from labkit.ranks.processes.group_sockets import GroupSockets

STORE_TIMEOUT_S = 300.0
AFTER_NOTEBOOK_S = 15.0  # more than the notebook takes to end ranks once their time is up
BARRIER_CHOOSES = r"barrier\(\): using the device under current context"  # on NCCL alone: it is the rank's own
MAX_TIMEOUT_S = 1e8  # years, which torch can still count in nanoseconds
_libc = ctypes.CDLL(None)


def _print_below(text: str) -> None:
    """Print a text below what the function has printed, if its stderr still takes one."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))


def _flush() -> None:
    """Flush what Python and C code have printed, into whatever stdout and stderr are by now."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _libc.fflush(None)


class Loops(NamedTuple):
    """Loops with a bar: how many are open now, by description, and how many began, by depth too."""

    open: Counter[str]
    begun: Counter[tuple[str, int]]


class Rank:
    """This process as a rank: the connection to the notebook, and the loop that serves it."""

    def __init__(self, connection: socket.socket, plan: LaunchPlan, rank: int, listener: int, stacks: int):
        self.connection, self.plan, self.rank, self.listener = connection, plan, rank, listener
        self.device = plan.devices[rank]
        self.group: GroupNumber | None = None  # as the last call that named one has it
        self.store: Any = None
        self._hosted: Any = None  # rank 0 keeps the store that it hosts, though it may connect to it anew
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._entered: CallerEnvironment | None = None  # by the last cell
        self._watch = RankWatch(self.send, stacks, plan.timeout_s)
        self._sockets: GroupSockets | None = None  # of ranks that run cells
        self.loops = Loops(Counter(), Counter())  # that progress has watched in this call
        self._calls = CallReader(connection, self.send, self._end_waits) if plan.cells else None

    def send(self, message: Message) -> None:
        """Send a message to the notebook, from any thread. A Done's value is not copied."""
        data, payload = encode(message)
        with self._sending:
            send_message(self.connection, data, payload)

    def serve(self) -> None:
        """Run one call after another until the notebook closes the connection."""
        receive = self._calls.receive if self._calls else functools.partial(receive_message, self.connection)
        while True:
            try:
                message, function = receive()
            except EOFError:
                return
            self._answer(message, function)

    def _answer(self, message: bytearray, function: bytearray) -> None:
        recorder, self.loops = trace.Recorder(), Loops(Counter(), Counter())
        self._watch.begin()
        try:
            if self._calls is not None:
                self._calls.begin()
            here: CallerEnvironment
            here, group = pickling.loads(message)
            if group is not None:
                self._leave_old_group(group)
            here.enter(self._variables(), self._entered)
            self._entered = here if self.plan.cells else None
            self._prepare_torch(form=group is not None)
            fn, args, kwargs = pickling.loads(function)
            recorder.start("cuda" if self.device.startswith("cuda") else "cpu")
            value = fn(*args, **kwargs)
            self._end_a_forked_copy(None)
            if self.device.startswith("cuda"):
                trace.synchronize()  # that is part of the run, and so is what fails there
            rows = recorder.finish()
            packed, unsent = self._pack(value, fn)
            done = Done(rows, recorder.notes, self._group_state(), packed, unsent=unsent)
            self._leave_call()
            self._reply(done)
        except BaseException as error:  # SystemExit too: the rank stays until the notebook has heard of it
            try:
                caught_ns = time.perf_counter_ns()  # first of all: the rank that failed first is named by it
                self._leave_call()
            except KeyboardInterrupt:  # it came in between; the next would come only later
                caught_ns = time.perf_counter_ns()
                self._leave_call()
            self._end_a_forked_copy(error)
            recorder.discard()
            what = type(error).__name__, message_of(error) + advice(error), format_error(error)
            self._reply(Failed(caught_ns, *what, is_consequence(error), self._state_after_failure()))
            if self.plan.cells:
                with workers_end_soon():
                    clear_frames(error)

    def _leave_call(self) -> None:
        if self._calls is not None:
            self._calls.leave()

    def _reply(self, message: Done | Failed) -> None:
        _flush()
        self._watch.end()
        self.send(message._replace(calls=self._watch.calls))

    def _end_a_forked_copy(self, error: BaseException | None) -> None:
        """End this process if it is a fork of the rank that has left the function as well.

        Only the rank answers.
        """
        if os.getpid() == self._pid:
            return
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            status = int(error is not None)
            if error is not None:
                _print_below(format_error(error))
            _print_below(
                f"labkit: process {os.getpid()}, forked by the function (os.fork), returned from the function. It was ended here "
                "and its result dropped: only the rank itself answers. End such a process with os._exit(0)"
            )
        _flush()
        os._exit(status & 0xFF)

    def _pack(self, value: Any, fn: Any) -> tuple[bytes, str]:
        """Return the value pickled, or why it cannot be: the other ranks may have sent theirs."""
        try:
            return pickling.dumps(value), ""
        except Exception as error:
            reason = pickling.explain({"the value": value}, error)
            if self.plan.cells:
                raise TypeError(
                    f"{getattr(fn, '__name__', 'fn')} returned what cannot be sent back: {reason}"
                ) from None
            return b"", f"{reason}. None of its lines has run" if pickling.is_lazy(value) else reason

    def _end_waits(self, firmly: bool) -> None:
        """Have what waits for other ranks raise: collectives, or ``firmly`` the store's as well."""
        if self._sockets is not None:
            self._sockets.shut()
            if firmly:
                self._sockets.shut_store()

    def _variables(self) -> dict[str, str]:
        """Return the environment variables that this rank gets beside the notebook's."""
        port = {"MASTER_PORT": str(self.group.port)} if self.group is not None else {}
        return self.plan.variables[self.rank] | port

    def _leave_old_group(self, wanted: GroupNumber) -> None:
        """Leave the process group if another is wanted, and the store if it is elsewhere."""
        if wanted == self.group:
            return
        dist = sys.modules.get("torch.distributed")
        if self.store is not None and dist is not None and dist.is_initialized():
            self._end_waits(firmly=False)  # nothing of it may go on, in a variable of the reader's
            with contextlib.suppress(Exception):  # a group whose connections are shut may complain
                dist.destroy_process_group()
            with workers_end_soon():
                gc.collect()  # what a failed cell has left in circles keeps connections and threads of the group
        shut = self._sockets is not None and self._sockets.store_is_shut
        if shut or self.group is None or wanted.port != self.group.port:
            self.store = None
        self.group = wanted

    def _prepare_torch(self, form: bool) -> None:
        """Set threads and device, as the function finds them; with ``form`` store and group, too.

        A call that is to form no group comes to ranks of which one has ended. One that is new then
        waits for the next call.
        """
        import torch.distributed as dist

        if self._watch.log is None:
            self._prepare_process()
        dist.set_debug_level_from_env()  # torch has been imported before, in another environment
        if not form:
            return
        assert self.group is not None
        if self.store is None:
            if self.plan.cells:
                from labkit.ranks.processes.group_sockets import GroupSockets

                self._sockets = self._sockets or GroupSockets()
                self._sockets.watch(self.group.port)
                self._sockets.store_is_shut = False
            self.store = self._meet(self.group.port)
        if self.plan.init and not dist.is_initialized():
            self._form_group(self.group.number)

    def _prepare_process(self) -> None:
        """Set threads and device, and have torch's groups watched: once."""
        import torch
        import torch.distributed as dist

        from labkit.ranks.faults.tensor_gaps import refuse_gaps
        from labkit.ranks.faults.work_log import WORK_LOG

        hide_deprecations()
        warnings.filterwarnings("ignore", BARRIER_CHOOSES)
        torch.set_num_threads(self.plan.threads)
        if self.device.startswith("cuda"):
            torch.cuda.set_device(torch.device(self.device))
            # torch says it once, from autograd's thread, when a GPU's first op there is a matrix
            # product. It does no harm.
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
        else:  # torch looks for GPUs in the first backward pass, and says what is wrong with them
            warnings.filterwarnings("ignore", "CUDA initialization")
        refuse_gaps(dist.ProcessGroup)
        if self.plan.link is None:  # an emulated one has a class of its own, over torch's
            WORK_LOG.watch(dist.ProcessGroup)
        self._watch.log = WORK_LOG

    def _form_group(self, number: int) -> None:
        """Form the default process group, together with all other ranks."""
        import torch.distributed as dist

        from labkit.ranks.faults.tensor_gaps import refuse_gaps
        from labkit.ranks.faults.work_log import WORK_LOG

        store = dist.PrefixStore(f"labkit/{number}", self.store)
        dist.init_process_group(
            self._backend(),
            timeout=self._group_timeout(),
            store=store,
            rank=self.rank,
            world_size=self.plan.world_size,
        )
        self._wait_for_all(store)
        kind: type = type(dist.GroupMember.WORLD)
        WORK_LOG.begin(kind)
        refuse_gaps(kind)

    def _meet(self, port: int) -> Any:
        """Return the store where the ranks meet; rank 0 serves it at ``port``, on loopback only.

        It does not wait for the others, for which torch would look every 10 ms: the process group
        waits for them.
        """
        from torch.distributed import TCPStore

        timeout, hosts = timedelta(seconds=STORE_TIMEOUT_S), self.rank == 0 and self._hosted is None
        listener = self.listener if hosts else None
        with without_name_server():
            store = TCPStore(
                "127.0.0.1",
                port,
                self.plan.world_size,
                hosts,
                timeout,
                wait_for_workers=False,
                master_listen_fd=listener,
            )
        self._hosted = store if hosts else self._hosted
        return store

    def _wait_for_all(self, store: Any) -> None:
        """Wait until every rank has its process group.

        gloo before torch 2.13 fails to form one whose peers have destroyed it already.
        """
        store.set(f"joined/{self.rank}", "")
        store.wait([f"joined/{rank}" for rank in range(self.plan.world_size)])

    def _backend(self) -> str:
        """Return torch.distributed's name of the backend of this rank's group."""
        if self.plan.link is not None:
            from labkit import link

            return link.register(self.plan.link)
        return "cpu:gloo,cuda:nccl" if self.plan.backend == "nccl" else self.plan.backend

    def _group_timeout(self) -> timedelta | None:
        """Return after how long NCCL ends a rank whose collective the others do not join.

        That is later than the notebook does, which shows where each rank is, and soon enough for a
        rank that the notebook has left behind. None is torch's own choice.
        """
        if self.plan.backend != "nccl":
            return None
        return timedelta(seconds=min(self.plan.timeout_s, MAX_TIMEOUT_S) + AFTER_NOTEBOOK_S)

    def _group_state(self) -> GroupState | None:
        """Return what this rank has begun in its groups; None if the default one is gone."""
        import torch.distributed as dist

        if self._watch.log is None or not self.plan.init:
            return GroupState((), {}, ())
        return self._watch.log.group_state() if dist.is_initialized() else None

    def _state_after_failure(self) -> GroupState | None:
        if not self.plan.cells:  # a rank that has failed is not used any more
            return None
        try:
            return self._group_state()
        except Exception:
            return None


current: Rank | None = None  # set in a rank, None everywhere else


def serve(plan_and_rank: bytes | bytearray, connection: socket.socket, listener: int, stacks: int) -> None:
    """Be a rank of a plan, both pickled, until the notebook closes the connection.

    ``listener`` is rank 0's to keep; ``stacks`` is a file descriptor.
    """
    global current
    plan, rank = pickling.loads(plan_and_rank)
    if rank != 0:
        os.close(listener)  # rank 0 alone hosts the store
    current = Rank(connection, plan, rank, listener, stacks)
    current.serve()
