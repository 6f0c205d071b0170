"""The rank's side of launch: become a rank, run what is sent, send back what it gives, and never outlive the notebook."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import linecache
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit import trace
from labkit.base.rendezvous import loopback_store
from labkit.ranks import pickling
from labkit.ranks.protocol import Done, Failed, Hello, Message, encode

if TYPE_CHECKING:  # a rank without an emulated link need not wait for this import
    from labkit.cost import Link

STACKS_SIGNAL = signal.SIGUSR1
NO_CUDA_AFTER_FORK = "CUDA was initialised before the fork"


class Place(NamedTuple):
    """Where this rank stands among the others, and what it runs on. ``device`` is such as ``"cpu"`` or ``"cuda:0"``."""

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    init: bool
    master_port: int
    variables: dict[str, str]  # environment variables that only ranks get
    link: Link | None  # an emulated one

    @property
    def environment(self) -> dict[str, str]:
        """What torchrun would set, for one machine, and this launch's own variables."""
        rank, world_size = str(self.rank), str(self.world_size)
        return {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.master_port),
            # As under torchrun: the store at MASTER_PORT is there already, nobody has to open one.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": str(self.threads),
            **self.variables,
        }


class Surroundings(NamedTuple):
    """What a rank takes over from the notebook for each call, as it is at that moment."""

    environment: dict[str, str]
    directory: str
    sys_path: list[str]
    argv: list[str]
    cell_sources: dict[str, list[str]]  # file name of a cell -> its lines, for tracebacks

    @classmethod
    def here(cls) -> Surroundings:
        cells = {
            name: entry[2] for name, entry in linecache.cache.items() if len(entry) == 4 and not os.path.exists(name)
        }
        return cls(dict(os.environ), os.getcwd(), list(sys.path), list(sys.argv), cells)

    def enter(self, place: Place) -> None:
        wanted = self.environment | place.environment
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        os.environ.update(wanted)
        os.chdir(self.directory)
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        for name, lines in self.cell_sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


class Rank:
    """This process as a rank: the connection to the notebook, and the loop that serves it."""

    def __init__(self, connection: Connection, place: Place, listener: int):
        self.connection, self.place, self.listener = connection, place, listener
        self.store: Any = None
        self._sending = threading.Lock()
        self._groups = self._messages = 0

    def send(self, message: Message) -> None:
        """Send a message to the notebook, from any thread. The value of a Done goes after it, uncopied."""
        value = None
        if isinstance(message, Done):
            value, message = message.value, message._replace(value=b"")
        data = encode(message)
        with self._sending:
            self.connection.send_bytes(data)
            if value is not None:
                self.connection.send_bytes(value)

    def serve(self) -> None:
        """Run one call after another until the notebook closes the connection."""
        while True:
            try:
                surroundings = pickling.loads(self.connection.recv_bytes())
                call = self.connection.recv_bytes()
            except EOFError:
                return
            self._answer(surroundings, call)

    def _answer(self, surroundings: Surroundings, call: bytes) -> None:
        recorder = trace.Recorder()
        try:
            surroundings.enter(self.place)
            self._prepare_torch()
            fn, args, kwargs = pickling.loads(call)
            recorder.start("cuda" if self.place.device.startswith("cuda") else "cpu")
            value = fn(*args, **kwargs)
            rows = recorder.finish()
            self._reply(Done(rows, recorder.notes, self._group_state(), self._pack(value, fn)))
        except BaseException as error:  # SystemExit too: the rank stays until the notebook has heard of it
            with contextlib.suppress(Exception):
                recorder.finish()
            self._reply(Failed(time.perf_counter_ns(), type(error).__name__, str(error), format_error(error)))

    def _reply(self, message: Message) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        _libc.fflush(None)
        self.send(message)

    def _pack(self, value: Any, fn: Any) -> bytes:
        try:
            return pickling.dumps(value)
        except Exception as error:
            name = getattr(fn, "__name__", "fn")
            raise TypeError(
                f"{name} returned what cannot be sent back: {pickling.explain({'the value': value}, error)}"
            ) from None

    def _prepare_torch(self) -> None:
        """Threads, device, store and process group: what a rank has before its function is called."""
        import torch
        import torch.distributed as dist

        place = self.place
        if self.store is None:
            torch.set_num_threads(place.threads)
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # a fork would share its state with the other ranks
            if place.device.startswith("cuda"):
                torch.cuda.set_device(torch.device(place.device))
            listener = self.listener if place.rank == 0 else None
            self.store = loopback_store(place.rank, place.world_size, "127.0.0.1", place.master_port, listener)
        if place.init and not dist.is_initialized():
            self._groups += 1
            store = dist.PrefixStore(f"labkit/{self._groups}", self.store)
            dist.init_process_group(self._backend(), store=store, rank=place.rank, world_size=place.world_size)
            self._messages = 0
            if self._groups == 1 and place.backend == "gloo":  # NCCL numbers them apart
                self._count_messages()

    def _count_messages(self) -> None:
        """Keep count of the sends and receives in the number of :meth:`_group_state`.

        gloo numbers them like collectives, and in a pipeline the ranks in the middle have more of them than the others.
        """
        from torch.distributed import GroupMember

        lock = threading.Lock()  # threads of a rank may send and receive at the same time

        def counting(method: Any) -> Any:
            def call(group: Any, *args: Any, **options: Any) -> Any:
                work = method(group, *args, **options)
                if group is GroupMember.WORLD:
                    with lock:
                        self._messages += 1
                return work

            return call

        kind = type(GroupMember.WORLD)  # an emulated link has a class of its own
        for name in ("send", "recv", "recv_anysource"):
            setattr(kind, name, counting(getattr(kind, name)))

    def _backend(self) -> str:
        """The name by which torch.distributed knows what this rank's process group runs on."""
        if self.place.link is not None:
            from labkit import link

            return link.register(self.place.link)
        return "cpu:gloo,cuda:nccl" if self.place.backend == "nccl" else self.place.backend

    def _group_state(self) -> int | None:
        """How many collectives the process group has begun; None where there is no group any more.

        Equal on all ranks exactly if the function left the group in step.
        """
        import torch.distributed as dist

        if not self.place.init:
            return 0
        if not dist.is_initialized():
            return None
        group: Any = dist.distributed_c10d._get_default_group()
        return group._get_sequence_number_for_group() - self._messages


current: Rank | None = None  # set in a rank, None everywhere else


def serve(connection: int, output: int, stacks: int, listener: int, *, life: int) -> int:
    """Be a rank until the notebook closes the connection or is gone. The arguments are file descriptors. Gives an exit status."""
    global current
    with contextlib.suppress(PermissionError):  # leads a session already
        os.setsid()  # an interrupt of the notebook's process group must not reach the ranks
    # The server held it back; a rank may use it as it likes.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_notebook, args=(life,), daemon=True).start()
    _die_with_parent()
    atexit._clear()  # what the preloaded packages registered is the server's to run; a rank runs what it registers itself
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    _redirect_output(output)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    link = Connection(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        link.send_bytes(encode(Hello(NO_CUDA_AFTER_FORK if _cuda_is_open() else "")))
        place = pickling.loads(link.recv_bytes())
        if place.rank != 0:
            os.close(listener)  # rank 0 alone hosts the store
        current = Rank(link, place, listener)
        current.serve()
        atexit._run_exitfuncs()
    return 0


def _end_with_notebook(life: int) -> None:
    """Wait for the other end of the pipe to close; then end this rank and whatever it started."""
    while os.read(life, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _die_with_parent() -> None:
    """On Linux the kernel ends this process with the server that forked it, even if Python never gets to run again."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _libc.prctl(pr_set_pdeathsig, signal.SIGKILL)


_libc = ctypes.CDLL(None)


def _redirect_output(output: int) -> None:
    """Send what Python and C code print to the notebook, a line at a time."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    line_buffered = 1  # C's _IOLBF, in glibc and on macOS
    stdout = ctypes.c_void_p.in_dll(_libc, "stdout" if sys.platform == "linux" else "__stdoutp")
    _libc.setvbuf(stdout, None, line_buffered, 0)


def _cuda_is_open() -> bool:
    """Whether this process was born with CUDA in use, which no fork survives. The device files tell, whoever opened them."""
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                    return True
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda._is_in_bad_fork()


def format_error(error: BaseException) -> str:
    """The traceback as Python prints it, from the launched function's frame on."""
    return "".join(traceback.format_exception(type(error), error, _skip_own_frames(error.__traceback__))).rstrip()


def _skip_own_frames(tb: TracebackType | None) -> TracebackType | None:
    inner = tb
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return inner


def readable_stacks(dump: str) -> str:
    """A faulthandler dump as Python's own tracebacks are: most recent call last, with source lines (a cell's too).

    The lab's own threads and frames are left out.
    """
    threads = dump.split("Extension modules:")[0].split("\n\n")
    return "\n\n".join(text for text in map(_readable_stack, threads) if text)


def _readable_stack(thread: str) -> str:
    heading, frames = [], []
    for line in thread.splitlines():
        file, _, rest = line.strip().removeprefix('File "').partition('", line ')
        if file == __file__:  # below it stand only frames of the lab
            break
        if not rest:
            heading.append(line.replace("most recent call first", "most recent call last"))
            continue
        source = linecache.getline(file, int(rest.split(" ")[0])).strip()
        frames.append(f"{line}\n    {source}" if source else line)
    if not frames and any("Thread 0x" in line for line in heading):
        return ""
    return "\n".join([*heading, *reversed(frames)]).strip()
