"""launch when things go wrong: the error says what and where, nobody is left behind, and the next
launch works."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import io
import math
import multiprocessing
import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client import BlockingKernelClient, KernelManager
from rank_functions import a_child, a_child_with_a_session_of_its_own, a_daemon, all_reduce_works, spans_never_end

import labkit
from labkit.course.notebooks import over_ipc
from labkit.launch import LaunchTimeout, RankError, WarmRanks, launch, progress, workers
from labkit.ranks.messages import connection
from labkit.ranks.messages.message import GroupNumber
from labkit.ranks.processes import diagnosis, fork_server, plan, pool, rank, server_handle
from labkit.ranks.processes.rank_handle import RankHandle
from labkit.trace import gpu_time, span

# The promise is 2 s, on a machine that is free. A test host may be busy; a launch that does wait
# for its ranks waits for minutes.
RANK_GONE_S = 30.0
EARLIER = set[psutil.Process]()
OWN_FILES = os.path.dirname(labkit.__file__) + os.sep


def rank_processes(notebook: psutil.Process | None = None) -> list[psutil.Process]:
    """Every rank that a process has started, and what the ranks have started: all that is neither
    in its own session nor in a server's. By default of this process, its kernels left out, and what
    was there before this file's tests, such as the kernels of a browser test's JupyterLab."""
    others = set() if notebook else {process for kernel in Kernel.opened for process in kernel.family()} | EARLIER
    notebook = notebook or psutil.Process()
    sessions = {os.getsid(notebook.pid), *(child.pid for child in notebook.children())}
    found = []
    for process in notebook.children(recursive=True):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if process not in others and os.getsid(process.pid) not in sessions:
                found.append(process)
    return found


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended: one of the launch before may not be reaped yet."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def processes(*pids: int) -> list[psutil.Process]:
    """Those of the processes with these ids that have not ended yet."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


@pytest.fixture(scope="module", autouse=True)
def _packages_are_imported():
    EARLIER.update(rank_processes())
    for _ in server_handle.PACKAGES:  # each of the first launches may wait for an import
        launch(all_reduce_works, world_size=1)
        assert gone(rank_processes(), RANK_GONE_S)


@pytest.fixture(autouse=True)
def nobody_is_left_and_the_next_launch_works():
    yield
    assert gone(rank_processes(), RANK_GONE_S)
    assert launch(all_reduce_works, world_size=2).values == [2.0, 2.0]


def fails(fn, **options):
    """The error of a rank. A launch that waits for the others has no limit, and never returns."""
    with pytest.raises(RankError) as caught:
        launch(fn, timeout_s=math.inf, **options)
    return caught.value


def test_a_rank_that_raises_ends_the_others_and_shows_its_traceback_with_source():
    def fn():
        if dist.get_rank() == 1:
            raise ValueError("no such luck")
        dist.barrier()

    error = fails(fn)
    assert (error.rank, error.error_type) == (1, "ValueError")
    assert str(error) == "rank 1 raised ValueError: no such luck"
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback in "".join(traceback.format_exception(error))  # Python shows it below the message
    assert 'raise ValueError("no such luck")' in error.traceback
    assert OWN_FILES not in error.traceback  # the path through our own files is nobody's business


def test_the_first_to_raise_is_reported_not_one_that_failed_because_of_it():
    def fn():
        if dist.get_rank() == 0:
            time.sleep(0.1)
            raise RuntimeError("a consequence")
        raise ValueError("the cause")

    error = fails(fn, world_size=3)
    assert (error.rank, error.error_type) == (1, "ValueError")
    assert str(error) == "rank 1 raised ValueError: the cause (and so did rank 2)"


def test_the_first_to_raise_is_reported_however_long_its_spans_take():
    def fn():
        spans_never_end()
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            store.set("rank 0 raises", "")
            raise ValueError("the cause")
        store.wait(["rank 0 raises"])
        time.sleep(0.1)
        raise RuntimeError("a consequence")

    error = fails(fn)
    assert (error.rank, error.error_type) == (0, "ValueError")


def test_an_error_of_the_gpu_is_that_of_the_run_whose_work_failed_not_the_next_ones():
    def fails_on_the_gpu_after_its_return():
        def fails(device):
            raise RuntimeError(f"CUDA error: device-side assert triggered on {device}")

        torch.cuda.synchronize, gpu_time.gpus_in_use = fails, lambda: [torch.device("cuda", 0)]
        rank.current.device = "cuda:0"

    error = fails(fails_on_the_gpu_after_its_return, world_size=1)
    assert "device-side assert triggered on cuda:0" in str(error)


@pytest.mark.parametrize("timeout_s", [0.5, float("inf")])
def test_nccl_ends_a_rank_later_than_its_launch_does_and_not_much_later(monkeypatch, timeout_s):
    formed = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: formed.update(options, backend=backend))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    decided = plan.decide(1, "gloo", timeout_s=timeout_s)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        started = rank.Rank(mine, replace(decided, backend="nccl", devices=["cuda:0"]), 0, listener=0, stacks=-1)
        started.group = GroupNumber(1, 0)
        monkeypatch.setattr(started, "_meet", lambda port: dist.HashStore())
        started._prepare_torch(form=True)
    assert formed["backend"] == "cpu:gloo,cuda:nccl"
    longest_s = diagnosis.STACKS_S + 2 * pool.EXIT_S
    assert longest_s < formed["timeout"].total_seconds() - min(timeout_s, rank.MAX_TIMEOUT_S) < 60


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_hang_that_ignores_signals_ends_too_and_on_nccl_it_names_what_to_try(backend):
    def deaf():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(1000)

    decided = replace(plan.decide(1, "gloo", timeout_s=0.3, threads=1, init=False), backend=backend)
    with WarmRanks(decided) as ranks, pytest.raises(LaunchTimeout) as caught:
        ranks.run(deaf)
    shown = "\n".join(caught.value._render_traceback_())
    assert [name in shown for name in ("NCCL_P2P_DISABLE", "NCCL_DEBUG")] == [backend == "nccl"] * 2


@pytest.mark.parametrize(
    ("end", "error_type", "message"),
    [
        (lambda: os._exit(3), "exit status 3", "ended without an answer (exit status 3)"),
        (lambda: sys.exit(0), "SystemExit", "raised SystemExit: 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL", "was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV", "was killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), 40), "signal 40", "was killed by signal 40"),  # one without a name
    ],
)
def test_a_rank_that_ends_is_named_with_how_it_ended_and_what_it_had_printed(capsys, end, error_type, message):
    def ends_here():
        if dist.get_rank() == 1:
            print("so far so good")
            end()
        dist.barrier()

    error = fails(ends_here)
    assert (error.rank, error.error_type) == (1, error_type)
    assert str(error).startswith(f"rank 1 {message}")
    assert "[rank 1] so far so good\n" in capsys.readouterr().out
    assert error_type not in ("SIGSEGV", "SystemExit") or "in ends_here" in error.traceback


def test_a_hang_ends_after_the_timeout_with_every_ranks_stack_and_its_source_from_any_folder(monkeypatch, tmp_path):
    folder = tmp_path / "my course ü 数 😀"
    folder.mkdir()
    code = """
        import torch.distributed as dist
        def joins_alone():
            if dist.get_rank() == 1:
                dist.barrier()  # a line of the reader's
    """
    (folder / "hangs.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(folder))
    from hangs import joins_alone

    with pytest.raises(LaunchTimeout, match=r"within timeout_s=2 s") as caught:
        launch(joins_alone, timeout_s=2)
    stacks = caught.value.stacks
    assert stacks[0] == "finished" and set(stacks) == {0, 1}
    assert stacks[1].index("in joins_alone") < stacks[1].index("in barrier")  # most recent call last
    assert "# a line of the reader's" in stacks[1] and str(folder) in stacks[1]
    assert "_end_with_notebook" not in stacks[1]  # our own threads are not the student's problem


def test_children_of_a_failed_rank_end_with_it():
    fails(lambda: a_child() and 1 / 0, world_size=1)


@pytest.mark.parametrize("leave", [a_child, a_child_with_a_session_of_its_own, a_daemon])
def test_what_a_rank_leaves_running_ends_with_its_launch(leave):
    if leave is not a_child and sys.platform != "linux":
        pytest.skip("only Linux knows whose a child with a session of its own was")
    (child,) = launch(leave, world_size=1).values
    assert gone(processes(child), RANK_GONE_S)


def test_what_a_warm_rank_starts_runs_on_until_the_rank_ends_whoever_else_ends_before():
    with workers(world_size=1) as ranks:
        (daemon,) = ranks.run(a_daemon).values
        launch(all_reduce_works, world_size=1)
        assert psutil.pid_exists(daemon)
    assert gone(processes(daemon), RANK_GONE_S)


def test_a_killed_server_takes_its_ranks_along_with_what_they_have_started_in_their_sessions(monkeypatch):
    monkeypatch.setattr(server_handle, "forks", server_handle.ServerHandle(["torch"], fork=True))
    with pytest.raises(RankError), workers(world_size=1) as ranks:
        ((server, child),) = ranks.run(lambda: (os.getppid(), a_child())).values
        os.kill(server, signal.SIGKILL)
        ranks.run(time.sleep, 1000)
    assert gone(processes(child), RANK_GONE_S)


def test_a_script_whose_whole_group_is_killed_leaves_nothing_of_its_ranks(tmp_path):
    (tmp_path / "script.py").write_text(
        "import subprocess\nfrom labkit.launch import launch\nfrom labkit.ranks.processes import server_handle\n"
        "server_handle.forks.packages.clear()  # this rank needs no torch\n"
        "def fn():\n    print('begun')\n    subprocess.run(['sleep', '1000'])\n"
        "launch(fn, world_size=1, init=False)\n"
    )
    command = [sys.executable, tmp_path / "script.py"]
    script = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert script.stdout.readline() == "[rank 0] begun\n"
    family = psutil.Process(script.pid).children(recursive=True)
    os.killpg(script.pid, signal.SIGKILL)
    assert script.wait() == -signal.SIGKILL
    script.stdout.close()
    assert gone(family, RANK_GONE_S)


def test_a_script_needs_no_main_guard_and_warm_ranks_that_it_leaves_open_end_with_it_in_silence(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\nfrom labkit.launch import launch, workers\nfrom labkit.ranks.processes import server_handle\n"
        "del server_handle.forks.packages[1:]  # torch alone\nscale = 10\n"
        "def fn():\n    import torch.distributed as dist\n    return dist.get_rank() * scale\n"
        "print(launch(fn, world_size=2).values)\n"
        "ranks = workers(2)\nprint(*ranks.run(os.getpid).values)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=100)
    values, pids = done.stdout.splitlines()
    assert (values, done.stderr, done.returncode) == ("[0, 10]", "", 0)
    assert len(pids.split()) == 2 and gone(processes(*map(int, pids.split())), RANK_GONE_S)


@pytest.mark.slow
def test_a_launch_in_a_rank_ends_with_it():
    def nested():
        from labkit.launch import launch

        return launch(os.getpid, world_size=2).values

    (pids,) = launch(nested, world_size=1, timeout_s=60).values
    assert len(pids) == 2
    assert gone(processes(*pids), RANK_GONE_S)


def test_launches_leave_no_process_descriptor_file_or_port(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other programs write to the common one
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def used():
        me = psutil.Process()
        shared = [name for name in os.listdir("/dev/shm") if name.startswith(("torch", "sem.", "nccl", "labkit"))]
        counts = me.num_fds(), len(me.net_connections("inet")), me.num_threads(), len(shared)
        return len(me.children(recursive=True)), *counts

    def fn():  # by itself: a rank need not import this file
        x = torch.ones(1)
        with span("all_reduce"):
            dist.all_reduce(x)
        return x.item()

    launch(fn)
    assert gone(rank_processes(), RANK_GONE_S)  # nobody waits for the end of ranks that have answered
    before = used()
    for _ in range(20):
        assert launch(fn).values == [2.0, 2.0]
    assert gone(rank_processes(), RANK_GONE_S)
    after = used()
    more = [
        now > then for now, then in zip(after, before, strict=True)
    ]  # fewer: what an earlier test started has ended
    assert not any(more), (before, after)
    assert os.listdir(tmp_path) == []


def test_launches_that_fail_or_fail_to_start_leave_no_descriptor_either(monkeypatch):
    fails(lambda: 1 / 0)  # what is opened once for all launches is open now
    assert gone(rank_processes(), RANK_GONE_S)
    gc.collect()
    before = psutil.Process().num_fds()
    for fn in (lambda: os._exit(1), lambda: 1 / 0, threading.Lock):
        fails(fn)
    with workers(2) as ranks, pytest.raises(RankError):
        ranks.run(lambda: 1 / 0)
    with monkeypatch.context() as patch:
        pipes = iter([os.pipe(), os.pipe()])
        patch.setattr(os, "pipe", lambda: next(pipes))
        with pytest.raises(StopIteration):
            workers(world_size=3)
    assert gone(rank_processes(), RANK_GONE_S)
    assert psutil.Process().num_fds() <= before  # fewer: what an earlier test started has ended


def test_ranks_that_never_begin_end_in_a_timeout_that_says_so_and_are_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "EXIT_S", 1000.0)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)\n")
    server = server_handle.ServerHandle(["hangs"], fork=True)
    monkeypatch.setattr(server_handle, "forks", server)
    try:
        with pytest.raises(LaunchTimeout, match=r"^no rank had begun within timeout_s=0\.5 s, which counts") as caught:
            launch(all_reduce_works, timeout_s=0.5)
        assert all("not started yet" in stack and "importing" in stack for stack in caught.value.stacks.values())
    finally:
        server._process.kill()
        server._process.wait()


@pytest.fixture
def started(monkeypatch):
    """The ranks that were asked for, a list; they come from the fork server as always."""
    numbers, start_rank = [], server_handle.ServerHandle.start_rank
    monkeypatch.setattr(
        server_handle.ServerHandle,
        "start_rank",
        lambda *args, **kinds: numbers.append(len(numbers)) or start_rank(*args, **kinds),
    )
    return numbers


def test_an_interrupt_ends_a_launch_between_the_starts_of_two_ranks(monkeypatch, started):
    monkeypatch.setattr(pool, "RankHandle", lambda *args: os.kill(os.getpid(), signal.SIGINT) or RankHandle(*args))
    with pytest.raises(KeyboardInterrupt):
        launch(time.sleep, 1000, world_size=50)
    assert started == [0]


def test_the_deadline_ends_a_launch_between_the_starts_of_two_ranks(monkeypatch, started):
    with pytest.raises(LaunchTimeout, match="no rank had begun") as caught:
        launch(time.sleep, 1000, world_size=50, timeout_s=1e-9)
    assert started == [] and len(caught.value.stacks) == 50
    assert "ranks 0, 1, 2" in caught.value.__notes__[0] and len(caught.value.__notes__) == 1


def test_an_argument_that_a_rank_does_not_take_ends_in_a_timeout():
    with workers(world_size=1, timeout_s=60) as ranks:
        process = psutil.Process(ranks.run(os.getpid).values[0])
        process.suspend()
        ranks.timeout_s = 0.5
        with pytest.raises(LaunchTimeout):
            ranks.run(len, b"x" * 10_000_000)


def test_a_fork_of_the_notebook_keeps_no_rank_alive():
    fork = multiprocessing.get_context("fork")
    stop, ranks = fork.Event(), workers(world_size=1)
    pids = ranks.run(os.getpid).values
    forked = fork.Process(target=stop.wait)  # as a data loader's worker
    forked.start()
    try:
        ranks.close(wait=False)
        assert gone(processes(*pids), RANK_GONE_S)
    finally:
        stop.set()
        forked.join()


def test_an_exception_whose_str_raises_is_named_by_its_type_and_line():
    class Unspeakable(Exception):
        def __str__(self):
            raise KeyError("within __str__")

    def fn():
        raise Unspeakable("on purpose")  # the reader's line

    error = fails(fn, world_size=1)
    assert error.error_type == "Unspeakable" and str(error).startswith("rank 0 raised Unspeakable: ")
    assert "# the reader's line" in error.traceback and OWN_FILES not in error.traceback


def test_a_rank_that_cpp_aborts_gives_the_reason_that_was_printed_last():
    def disagree():
        print("before")
        dist.all_reduce(torch.ones(10_000, dtype=torch.float64 if dist.get_rank() else torch.float32))

    error = fails(disagree)
    assert error.error_type == "SIGABRT"
    assert "enforce fail" in "\n".join(error.last_lines) and error.last_lines[0] == "before"
    assert "enforce fail" in "".join(traceback.format_exception(error))


# --- what a function does to its own process ------------------------------------------------------


def test_a_rank_answers_whatever_its_function_has_made_of_its_output():
    def nothing():
        sys.stdout = sys.stderr = None

    def closed():
        sys.stdout.close()

    def only_write():
        sys.stdout = sys.stderr = SimpleNamespace(write=len)

    def no_descriptors():
        print("begun", end="")
        os.closerange(0, 3)

    for spoil in (nothing, closed, only_write, no_descriptors):
        with workers(world_size=1, init=False) as ranks:
            assert ranks.run(lambda spoil: spoil() or 7, spoil).values == [7]
            assert ranks.run(lambda: 8).values == [8]
            with pytest.raises(RankError, match="rank 0 raised ZeroDivisionError"):
                ranks.run(lambda: 1 / 0)


def test_a_rank_that_closes_its_connection_to_the_notebook_ends_without_an_answer():
    error = fails(lambda: os.closerange(3, 256), world_size=1, init=False)
    assert str(error) == "rank 0 ended without an answer (exit status 1)"


def test_a_forked_process_that_leaves_the_function_as_well_is_ended_with_a_word_and_the_rank_alone_answers(capsys):
    def forks(leave):
        if (child := os.fork()) == 0:
            return leave()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with workers(world_size=1) as ranks:
        assert ranks.run(forks, lambda: "the child's").values == [0]
        assert "only the rank itself answers" in capsys.readouterr().out
        assert ranks.run(forks, lambda: 1 / 0).values == [1]
        assert "ZeroDivisionError" in capsys.readouterr().out
        assert ranks.run(forks, lambda: sys.exit(3)).values == [3]
        assert ranks.run(lambda: 7).values == [7]


def test_an_answer_that_has_not_come_whole_when_the_time_is_up_ends_in_a_timeout(hang):
    def answers_in_part_only():
        os.write(rank.current.connection.fileno(), connection._HEADER.pack(0, 1 << 30))
        time.sleep(1000)

    assert "answers_in_part_only" in hang(answers_in_part_only, world_size=1, timeout_s=0.5)[0]


def test_a_message_takes_only_the_memory_that_has_come_whatever_it_says_of_its_length():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(connection._HEADER.pack(0, 4 << 30) + b"a few bytes")
        tracemalloc.start()
        with pytest.raises(TimeoutError):
            connection.receive_message(mine, deadline=0.0)
        assert tracemalloc.get_traced_memory()[1] < 10e6
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has these scores")
def test_where_memory_runs_out_linux_takes_a_rank_and_an_interrupt_of_the_notebooks_group_reaches_none():
    def look():
        with open("/proc/self/oom_score_adj") as file:
            return int(file.read()), os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()

    assert launch(look, world_size=1).values == [(1000, True, True)] and look()[0] < 1000


def test_a_function_that_multiprocessing_cannot_send_is_told_to_stand_in_a_module():
    def starts_a_process():
        multiprocessing.get_context("spawn").Process(target=lambda: 0).start()

    def pickles_by_itself():
        import pickle

        pickle.dumps(lambda: 0)

    assert "must stand in a module" in str(fails(starts_a_process, world_size=1))
    assert "must stand in a module" not in str(fails(pickles_by_itself, world_size=1))


def test_of_two_ranks_that_die_the_first_is_named():
    def dies_after_the_other():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.set("pid", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        other = int(store.get("pid"))
        while psutil.pid_exists(other):
            pass
        os.abort()

    assert str(fails(dies_after_the_other)).startswith("rank 1 was killed by SIGKILL")


def test_the_others_cpp_stacks_do_not_hide_the_reason_of_a_ranks_end(capsys):
    def waits_for_a_rank_that_aborts():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            store.wait(["waits"])
            time.sleep(0.1)
            os.abort()
        store.set("waits", "")
        store.get("what nobody sets")

    error = fails(waits_for_a_rank_that_aborts)
    shown = capsys.readouterr().out
    assert (error.rank, error.error_type) == (0, "SIGABRT") and "os.abort()" in error.traceback
    assert (
        "TCPStore" in shown and "frame #" not in shown
    )  # torch says that its store is gone; its C++ frames are left out


# --- what the machine does not have ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ascii", "none", "closed", "only write"])
def test_the_values_come_back_whatever_the_notebooks_stdout_can_take(monkeypatch, kind):
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    if kind == "closed":
        out.close()
    streams = {"ascii": out, "none": None, "closed": out, "only write": SimpleNamespace(write=lambda text: None)}
    monkeypatch.setattr(sys, "stdout", streams[kind])

    def prints():
        print("ü")
        return sum(progress(range(3), desc="ü"))

    run = launch(prints, world_size=1)
    monkeypatch.undo()
    assert run.values == [3]
    assert kind != "ascii" or written.getvalue() == b"[rank 0] \\xfc\n"


def test_too_many_open_files_for_so_many_ranks_say_what_to_do():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/dev/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(
            OSError, match=r"Too many open files\. launch: the system refuses what 64 ranks need.*ulimit -a"
        ):
            workers(world_size=64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_the_system_refuses_says_what_to_do(monkeypatch):
    def refused(server, fds, is_first):
        control, servers_end = socket.socketpair()
        with servers_end:
            servers_end.sendall(fork_server.STATUS.pack(-errno.EAGAIN, 0))
        return control

    monkeypatch.setattr(server_handle.ServerHandle, "start_rank", refused)
    with pytest.raises(
        BlockingIOError, match=r"Resource temporarily unavailable\. launch: the system refuses what 2 ranks"
    ):
        launch(all_reduce_works, world_size=2)
    monkeypatch.undo()  # and the next launch works


@pytest.mark.parametrize("missing", ["temporary", "working"])
def test_without_a_folder_that_ranks_need_launch_says_what_to_do(monkeypatch, tmp_path, missing):
    said = r"launch: the working directory of this notebook has been deleted.*os\.chdir"
    if missing == "temporary":
        error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
        monkeypatch.setattr(tempfile, "gettempdir", lambda: (_ for _ in ()).throw(error))
        said = "No usable temporary directory.*Set TMPDIR to a folder"
    else:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
    for start in (functools.partial(launch, os.getpid), workers):
        with pytest.raises(FileNotFoundError, match=said):
            start()
    monkeypatch.undo()  # and the next launch works


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no files without a folder")
def test_launch_needs_no_folder_for_files_of_its_own(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    assert launch(os.getenv, "TMPDIR", world_size=1).values == ["/nonexistent"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has network namespaces")
def test_a_loopback_interface_that_is_down_is_named_before_anything_starts():
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()

    def in_a_network_of_its_own():
        clone_newnet = 0x40000000
        if ctypes.CDLL(None).unshare(clone_newnet):
            said.put("not allowed")
            return
        try:
            launch(all_reduce_works)
        except Exception as error:
            said.put(f"{type(error).__name__}: {error}")

    process = fork.Process(target=in_a_network_of_its_own)
    process.start()
    if (text := said.get()) == "not allowed":
        pytest.skip("a network of its own is not allowed here")
    process.join()
    assert text.startswith("ConnectionError: launch: the loopback interface") and "ip link set lo up" in text


def test_a_rank_and_a_server_that_are_stopped_are_named_as_such(hang):
    stacks = hang(lambda: os.kill(os.getpid(), signal.SIGSTOP), world_size=1, timeout_s=0.5)
    assert "stopped by a signal" in stacks[0]
    server = psutil.Process(server_handle.forks.pid)
    server.suspend()
    try:
        with pytest.raises(LaunchTimeout) as caught:
            launch(os.getpid, world_size=1, timeout_s=0.5)
    finally:
        server.resume()
    assert f"process {server.pid}, from which ranks are started, is stopped" in caught.value.stacks[0]


# --- in a real kernel -----------------------------------------------------------------------------


class Kernel:
    """A Jupyter kernel to type cells into."""

    opened: ClassVar[set[Kernel]] = set()

    def __init__(self):
        self.opened.add(self)
        self.manager = over_ipc(KernelManager(kernel_name="python3"))
        self.manager.start_kernel(env=os.environ | {"MPLBACKEND": "agg"})
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start(self, source: str) -> None:
        self.client.execute(textwrap.dedent(source), stop_on_error=False)  # nor keep the next cell from running

    def run(self, source: str) -> tuple[str, str]:
        """(what the cell displayed, its error)."""
        shown: list[str] = []
        hook = lambda message: shown.append(message["content"].get("data", {}).get("text/plain", ""))  # noqa: E731
        options = {"stop_on_error": False, "output_hook": hook, "timeout": 60}
        reply = self.client.execute_interactive(textwrap.dedent(source), **options)
        return "".join(shown), re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(reply["content"].get("traceback", [])))

    def error(self) -> str:
        """The name of the error of a cell that runs already, or an empty text."""
        return self.client.get_shell_msg(timeout=60)["content"].get("ename", "")

    def wait_for_ranks(self, count: int) -> list[psutil.Process]:
        deadline, kernel = time.monotonic() + 100, psutil.Process(self.manager.provisioner.pid)
        while len(found := living(rank_processes(kernel))) != count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(found) == count
        return found

    def family(self) -> list[psutil.Process]:
        """The process of this kernel, and all that it has started."""
        process = psutil.Process(self.manager.provisioner.pid)
        return [process, *process.children(recursive=True)]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.opened.remove(self)


@pytest.fixture(scope="module")  # its server imports torch once
def kernel():
    kernel = Kernel()
    kernel.run("from labkit.ranks.processes import server_handle\ndel server_handle.forks.packages[1:]  # torch alone")
    kernel.run("import os, time\nfrom labkit.launch import launch, workers\nlaunch(int, world_size=1)")
    yield kernel
    kernel.close()


def gone(processes, within_s):
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not alive


def test_an_interrupt_ends_the_ranks_and_the_kernel_lives(kernel):
    kernel.start("launch(time.sleep, 1000, world_size=2)")
    ranks = kernel.wait_for_ranks(2)
    kernel.manager.interrupt_kernel()
    assert gone(ranks, RANK_GONE_S)
    assert kernel.error() == "KeyboardInterrupt"
    assert kernel.run("launch(os.getenv, 'RANK', world_size=2).values") == ("['0', '1']", "")


def test_a_cell_shows_its_own_lines_in_errors_and_the_run_as_its_last_line(kernel):
    _, error = kernel.run(
        """
        def divide():
            return 1 / 0  # a line of the cell
        launch(divide, world_size=1)
        """
    )
    assert "RankError: rank 0 raised ZeroDivisionError: division by zero" in error
    assert "return 1 / 0  # a line of the cell" in error and "pool.py" not in error
    shown, error = kernel.run("launch(os.getpid, world_size=1)")
    assert error == "" and shown.startswith("1 rank ")


def test_killing_the_kernel_ends_its_ranks(kernel):  # the last of these tests: they share it
    code = """
        def stubborn():
            import ctypes
            if os.environ["RANK"] == "1":
                ctypes.PyDLL(None).sleep(1000)  # holds the GIL: no Python thread of this rank runs again
            time.sleep(1000)
        launch(stubborn, world_size=2)
    """
    kernel.start(code)
    ranks = kernel.wait_for_ranks(2)
    time.sleep(0.3)
    process, *family = kernel.family()
    process.kill()
    assert gone(ranks, 5.0)
    assert gone(family, 5.0)  # the fork server as well


# --- what an error says, and keeps ----------------------------------------------------------------


def forms_the_group():
    dist.init_process_group("gloo")


def test_a_function_that_forms_the_group_again_is_told_to_leave_the_line_out_and_its_error_can_be_pickled():
    error = fails(forms_the_group)
    assert "twice! The ranks have their process group already: leave the line out, or launch with init=False" in str(
        error
    )
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is RankError and str(copied) == str(error) and vars(copied) == vars(error)


def test_a_timeout_can_be_pickled_with_its_stacks():
    error = LaunchTimeout(3.0, {0: "File x", 1: "File y"}, advice="Wait.")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is LaunchTimeout and str(copied) == str(error) and vars(copied) == vars(error)
