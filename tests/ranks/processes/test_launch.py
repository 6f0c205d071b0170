"""launch: what goes in, what comes out, and what it refuses before anything starts."""

import ctypes
import functools
import itertools
import linecache
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from types import ModuleType, SimpleNamespace

import numpy
import psutil
import pytest
import torch
import torch.distributed as dist
from rank_functions import rank_and_sum
from tqdm import tqdm

import labkit
from labkit.base import machine
from labkit.cost import ETHERNET_1G
from labkit.launch import RankError, device, launch, progress, workers
from labkit.ranks.messages import caller_environment, pickling
from labkit.ranks.messages.caller_environment import CallerEnvironment
from labkit.ranks.processes import plan, server_handle

# --- refused before anything starts ---------------------------------------------------------------


@pytest.fixture
def no_rank_starts(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(server_handle.ServerHandle, "start_rank", refuse)


def test_more_ranks_than_there_is_free_memory_for_are_refused_with_how_many_fit(no_rank_starts, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 30)
    reason = r"at least 12 MiB: the 1\.0 GiB that are free here are enough for 85 ranks"
    with pytest.raises(ValueError, match=f"world_size is 86, and a rank needs {reason}"):
        launch(rank_and_sum, world_size=86)


REFUSED_OPTIONS = [
    ({"world_size": 0}, ValueError, "world_size is 0, expected 1 or more"),
    ({"world_size": 2.0}, TypeError, r"world_size is 2\.0, expected a whole number of ranks"),
    ({"compared_with": 0}, ValueError, "compared_with is 0, expected 1 or more"),
    ({"backend": "mpi"}, ValueError, "backend is 'mpi', expected one of 'auto', 'gloo', 'nccl'"),
    ({"timeout_s": 0}, ValueError, "timeout_s is 0, expected seconds"),
    ({"threads": 0}, ValueError, "threads is 0, expected"),
    ({"threads": 10**6}, ValueError, "threads is 1000000, expected a whole number of threads per rank, 1 to 1024"),
    ({"world_size": True}, TypeError, "world_size is True, expected a whole number of ranks"),
    (
        {"link": ETHERNET_1G, "backend": "nccl"},
        ValueError,
        "link is emulated over gloo, on the CPU; use backend='auto'",
    ),
    ({"link": ETHERNET_1G, "init": False}, ValueError, "link needs the process group that launch forms"),
    ({"link": "fast"}, TypeError, r"link is 'fast', expected a labkit.cost.Link, such as ETHERNET_1G or Link\("),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED_OPTIONS)
def test_an_option_out_of_range_is_refused_by_name(no_rank_starts, options, error, message):
    for start in (functools.partial(launch, rank_and_sum), workers):
        with pytest.raises(error, match=message):
            start(**options)


def test_workers_refuse_an_option_that_launch_has_not(no_rank_starts):
    with pytest.raises(TypeError, match=r"workers: there is no option 'backned'\. Did you mean backend="):
        workers(backned="gloo")


LOCK = threading.Lock()


def losses():
    yield 1.0


async def job():
    return 1.0


class Trainer:
    async def __call__(self):
        return 1.0


def with_an_empty_cell():
    def inner():
        return before, the_lock

    the_lock = LOCK
    if LOCK is None:
        before = 1
    return inner


WAY_OUT = r"parameter named '{0}'.*functools.partial\(<lambda>, {0}="
REFUSED_CALLS = [
    (((0, 1),), {}, r"fn is \(0, 1\), expected a function"),
    ((rank_and_sum, 1), {}, r"rank_and_sum\(\) -> .* cannot be called with what was given: too many"),
    ((lambda a: a,), {}, "missing a required argument: 'a'"),
    ((rank_and_sum,), {"backned": "gloo"}, r"'backned'\. Did you mean backend="),
    ((rank_and_sum, 2), {}, r"Did you mean world_size=2\?"),
    ((lambda world_size: 0,), {}, WAY_OUT.format("world_size")),
    ((lambda a, init: 0, 1), {}, WAY_OUT.format("init")),
    (
        (lambda a, b: None, 1, SimpleNamespace(content={"locks": [LOCK]})),
        {},
        r"argument 1\.content\['locks'\]\[0\] is a _thread\.lock",
    ),
    ((lambda key: None,), {"key": LOCK}, r"argument 'key' is a _thread\.lock"),
    (((lambda lock: lambda: lock)(LOCK),), {}, r"<lambda>'s variable lock is a _thread\.lock"),
    ((with_an_empty_cell(),), {}, r"inner's variable the_lock is a _thread\.lock"),
    ((losses,), {}, "losses is a generator function: to call it runs none of its lines"),
    ((functools.partial(job),), {}, "is a coroutine function"),
    ((Trainer(),), {}, "is a coroutine function"),
    ((len, tqdm([], disable=True)), {}, "argument 0 is a tqdm.*a bar belongs to its process: make it in the function"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), REFUSED_CALLS)
def test_a_call_that_no_rank_could_do_is_refused_with_what_is_wrong_in_it(no_rank_starts, args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        launch(*args, **kwargs)


def test_nccl_without_enough_gpus_says_how_many_there_are_and_names_share_gpu(monkeypatch, no_rank_starts):
    monkeypatch.setattr(plan, "_gpu_count", lambda: 1)
    with pytest.raises(ValueError, match=r"each of the 2 ranks, and this machine has 1 GPU.*share_gpu=True"):
        launch(rank_and_sum, backend="nccl")
    monkeypatch.setattr(plan, "_gpu_count", lambda: 0)
    with pytest.raises(ValueError, match="this machine has no GPU"):
        launch(rank_and_sum, backend="nccl", share_gpu=True)


@pytest.mark.parametrize(
    "gpus, world_size, options, backend, devices, why",
    [
        (0, 2, {}, "gloo", ["cpu", "cpu"], "there is no GPU here"),
        (1, 1, {}, "nccl", ["cuda:0"], "a GPU of its own"),
        (1, 2, {}, "gloo", ["cpu", "cpu"], "there is 1 GPU here"),
        (1, 2, {"share_gpu": True}, "nccl", ["cuda:0", "cuda:0"], "1 GPU shared, for correctness only"),
        (8, 2, {}, "nccl", ["cuda:0", "cuda:1"], "a GPU of its own"),
        (1, 1, {"compared_with": 2}, "gloo", ["cpu"], "CPU, as 2 ranks are, where there is 1 GPU"),
        (3, 2, {"compared_with": 4}, "gloo", ["cpu"] * 2, "CPU, as 4 ranks are, where there are 3 GPUs"),
        (1, 1, {"compared_with": 2, "backend": "nccl"}, "nccl", ["cuda:0"], "a GPU of its own"),
        (8, 1, {"backend": "gloo"}, "gloo", ["cpu"], "as asked for"),
        (8, 1, {"link": ETHERNET_1G}, "gloo", ["cpu"], "as link= asks for"),
        (8, 2, {"link": ETHERNET_1G}, "gloo", ["cpu"] * 2, "as a link is emulated over it"),
    ],
)
def test_auto_takes_nccl_exactly_where_each_rank_and_each_of_those_compared_with_has_a_gpu(
    monkeypatch, gpus, world_size, options, backend, devices, why
):
    monkeypatch.setattr(plan, "_gpu_count", lambda: gpus)
    decided = plan.decide(world_size, **options)
    assert (decided.backend, decided.devices) == (backend, devices)
    assert why in decided.why and f" · {backend}: {decided.why} · " in decided.header(0.1)
    hidden = "" if backend == "gloo" and "backend" not in options else None  # on the CPU by choice, not by wish
    assert {variables.get("CUDA_VISIBLE_DEVICES") for variables in decided.variables} == {hidden}


def test_ranks_that_share_a_gpu_are_on_a_host_each_for_nccl_and_know_which_gpu_is_theirs(monkeypatch):
    """NCCL refuses two ranks on one GPU; Accelerate and FSDP take the GPU of LOCAL_RANK."""
    monkeypatch.setattr(plan, "_gpu_count", lambda: 2)
    shared = plan.decide(3, share_gpu=True).variables
    assert len({variables["NCCL_HOSTID"] for variables in shared}) == 3
    assert [variables["LOCAL_RANK"] for variables in shared] == ["0", "1", "0"]
    assert {variables["LOCAL_WORLD_SIZE"] for variables in shared} == {"2"}
    own = plan.decide(2, share_gpu=True)
    assert not any("NCCL_HOSTID" in variables for variables in own.variables)


# --- what a rank is -------------------------------------------------------------------------------


def test_ranks_are_up_with_their_environment_on_the_loopback_interface_and_their_values_come_back_in_order():
    def look():
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        dist.barrier()
        return (
            [os.environ[name] for name in names],
            (dist.get_rank(), dist.get_world_size(), str(device())),
            os.getpid(),
            int(os.environ["MASTER_PORT"]),
            {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN},
        )

    run = launch(look, world_size=3, backend="gloo")
    environments, ranks, pids, ports, listening = zip(*run.values, strict=True)
    assert environments == tuple([str(r), str(r), "3", "3", "127.0.0.1"] for r in range(3))
    assert ranks == ((0, 3, "cpu"), (1, 3, "cpu"), (2, 3, "cpu")) and len({*pids, os.getpid()}) == 4
    assert len(set(ports)) == 1 and ports[0] > 0
    assert listening == ({"127.0.0.1"},) * 3
    assert (run.backend, run.world_size, run.devices) == ("gloo", 3, ["cpu"] * 3)


@pytest.mark.usefixtures("static")
def test_all_reduce_sums_over_ranks_and_its_span_is_in_both_tables_with_everything_measured_in_brackets():
    run = launch(rank_and_sum, world_size=2, backend="gloo")
    assert all(torch.equal(x, torch.full((3,), 3.0)) for _, x in run.values)
    spans = [[rank, "comm", "all_reduce", 12] for rank in (0, 1)]
    assert run.events[["rank", "lane", "name", "bytes"]].values.tolist() == spans
    assert (run.events.start_s >= 0).all() and (run.events.end_s <= run.seconds).all()
    assert abs(run.events.end_s[0] - run.events.end_s[1]) < 0.5  # one clock: those of two processes differ by hours
    assert run.timings[["rank", "name", "count"]].values.tolist() == [[0, "all_reduce", 1], [1, "all_reduce", 1]]
    header, *_, last = re.sub(r"\[~[^\]]*\]", "[~]", repr(run)).splitlines()
    assert header == "2 ranks [~] [~] [~]" and last.split() == ["1", "1", "all_reduce", "1", *["[~]"] * 5]
    assert "gloo: CPU, as asked for" in repr(run)
    shown = re.sub(r'<span class="labkit-measured"[^>]*>[^<]*</span>', "[]", run._repr_html_())
    assert "<table" in shown and "2 ranks [] [] []" in shown and not re.search(r"\d\.\d|~", shown)


def test_threads_are_the_cores_shared_out_unless_said_otherwise():
    def threads(timeout_s):  # a parameter that launch takes itself gets through a partial
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], timeout_s

    bound, share = functools.partial(threads, timeout_s=5), max(1, len(os.sched_getaffinity(0)) // 2)
    assert launch(bound, world_size=2).values == [(share, str(share), 5)] * 2
    assert launch(bound, world_size=1, threads=3).values == [(3, "3", 5)]


def test_ranks_see_the_notebooks_present_environment_directory_and_path(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_TEST_VARIABLE", "now")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def look():
        return os.environ.get("LABKIT_TEST_VARIABLE"), os.getcwd(), str(tmp_path) in sys.path

    assert launch(look, world_size=1).values == [("now", str(tmp_path), True)]
    monkeypatch.delenv("LABKIT_TEST_VARIABLE")
    assert launch(look, world_size=1).values[0][0] is None


def test_a_rank_begins_without_any_module_that_the_student_edits_or_that_imports_one():
    def of_the_lab():
        return [name for name in sys.modules if name.split(".")[0] == "labkit"]

    (loaded,) = launch(of_the_lab, world_size=1).values
    assert "labkit.ranks.processes.rank" in loaded
    behind_launch = ("labkit.ranks", "labkit.base", "labkit.trace")
    assert [name for name in loaded if not name.startswith(behind_launch) and name != "labkit"] == []


def test_what_is_on_disk_now_runs_the_students_file_and_the_lab_itself(monkeypatch, tmp_path):
    package = tmp_path / "labkit"
    shutil.copytree(os.path.dirname(labkit.__file__), package)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = [package / "dp.py", package / "ranks" / "messages" / "caller_environment.py"]

    def launched():
        def edited():
            from labkit import dp
            from labkit.ranks.messages import caller_environment

            found = [getattr(module, "edited", None) for module in (dp, caller_environment)]
            return found, [dp.__file__, caller_environment.__file__], os.getppid()

        return launch(edited, world_size=1).values[0]

    before = launched()
    assert before[:2] == ([None, None], list(map(str, files)))
    files[0].write_text(files[0].read_text() + "\nedited = 1\n")
    assert launched() == ([1, None], *before[1:])  # from the same server
    for number in (1, 2):
        files[1].write_text(files[1].read_text() + f"\nedited = {number}\n")
        assert launched() == ([1, number], *before[1:])


def test_without_init_the_function_makes_its_own_group_as_under_torchrun():
    def init():
        before = dist.is_initialized()
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
        return before, x.item(), listening

    assert launch(init, world_size=2, init=False).values == [(False, 2.0, {"127.0.0.1"})] * 2


# --- where it can be called from ------------------------------------------------------------------


COUNT = """
import psutil
{}
print(len(psutil.Process().children()))
"""
STARTED_EARLY = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance()
from labkit.ranks.processes import server_handle
server_handle.forks.packages.clear()  # it need not import torch here
import labkit.launch
"""


def python_prints(code):
    """What this code prints where each warning is an error, on stdout and stderr."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
    return done.stdout


def test_importing_launch_starts_no_process_and_warns_of_nothing():
    assert python_prints(COUNT.format("import labkit.launch")) == "0\n"


def test_in_ipython_the_server_starts_with_the_import_and_ends_with_it_without_a_warning():
    started = int(python_prints(COUNT.format(STARTED_EARLY)))
    assert started == 2  # the server, and multiprocessing's tracker of resources


@pytest.fixture
def server_with(monkeypatch, tmp_path):
    """server_with(source): have ranks come from a server that imports only a package with it."""

    def use(source):
        (tmp_path / "package.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(server_handle, "forks", server_handle.ServerHandle(["package"], fork=True))
        return server_handle.forks

    yield use
    server_handle.forks.stop()


@pytest.mark.parametrize(
    ("source", "opens_gpu"),
    [("raise RuntimeError('broken package')", False), ("import os; os.readlink = lambda path: '/dev/nvidia0'", True)],
)
def test_where_the_fork_server_dies_or_cannot_fork_a_fresh_interpreter_serves(server_with, source, opens_gpu, capsys):
    server = server_with(source)
    assert launch(lambda: "package" in sys.modules, world_size=1, init=False).values == [False]
    assert ("importing package opens the GPU" in capsys.readouterr().out) == opens_gpu
    assert server.usable == (not opens_gpu)  # else it is tried once more


@pytest.mark.slow
def test_a_variable_that_packages_read_when_imported_reaches_later_ranks_and_warm_ones_stay(server_with, monkeypatch):
    server_with("import os; offline = os.environ.get('HF_HUB_OFFLINE')")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    def offline():
        return sys.modules["package"].offline

    with workers(1, init=False) as ranks:
        assert ranks.run(offline).values == ["0"]
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert launch(offline, world_size=1, init=False).values == ["1"]
        assert ranks.run(offline).values == ["0"]


def test_a_function_of_a_module_that_no_rank_can_import_travels_by_value(monkeypatch):
    module = ModuleType("elsewhere")
    module.__file__ = "elsewhere.py"
    exec("offset = 5\ndef add(x):\n    return x + offset", vars(module))
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    with workers(world_size=numpy.int64(1), threads=numpy.int32(1), timeout_s=numpy.float32(60), init=False) as ranks:
        assert ranks.run(module.add, 1).values == [6]
        assert ranks.run(functools.partial(functools.partial(module.add), 1)).values == [6]
        assert ranks.run(functools.partial(called, module.add), 1).values == [6]
        assert ranks.run(called, module.add, 1).values == [6]


def called(fn, x):
    return fn(x)


def takes_an_option(backend):
    return backend


@functools.lru_cache(maxsize=9)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_a_call_may_name_what_launch_names_and_a_cached_function_travels(monkeypatch):
    assert (
        launch(called, fn=abs, x=-1, world_size=1, init=False).values == launch(fn=one, world_size=1, init=False).values
    )
    monkeypatch.setattr(fibonacci, "__module__", "__main__")  # as in a cell
    with workers(world_size=1, init=False) as ranks:
        assert ranks.run(takes_an_option, backend="x").values == ["x"]
        assert ranks.run(called, fn=fibonacci, x=20).values == [6765]
        ((maxsize, size),) = ranks.run(
            lambda: (fibonacci.cache_parameters()["maxsize"], fibonacci.cache_info().currsize)
        ).values
    assert (maxsize, size) == (9, 0)


def one():
    return 1


def test_what_other_threads_do_to_sources_and_variables_meanwhile_does_no_harm(monkeypatch):
    def another_thread_reads_a_file(name):
        linecache.cache[f"{name}, {len(linecache.cache)}"] = (1, None, [], "")
        os.environ.pop("LABKIT_GONE", None)
        return False

    monkeypatch.setenv("LABKIT_GONE", "1")
    monkeypatch.setattr(linecache, "cache", {"<cell>": (2, None, ["1"], "<cell>")})
    monkeypatch.setattr(os.path, "exists", another_thread_reads_a_file)
    assert CallerEnvironment.here().cell_sources == {"<cell>": ["1"]}


def test_a_notebooks_rank_has_no_arguments_as_those_are_its_kernels(monkeypatch):
    for argv, in_rank in (
        (["/x/ipykernel_launcher.py", "-f", "kernel.json"], [""]),
        (["/x/colab_kernel_launcher.py", "-f", "kernel.json"], [""]),
        (["train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(caller_environment, "in_notebook", lambda: True)
        assert CallerEnvironment.here().argv == in_rank


# --- what they print ------------------------------------------------------------------------------


def test_what_ranks_print_from_python_and_c_appears_line_by_line_with_their_rank(capsys):
    def chatter():

        print("from Python")
        ctypes.CDLL(None).puts(b"from C")
        print("to stderr", file=sys.stderr)
        os.system("echo from a child")
        print("no newline at the end", end="")

    launch(chatter, world_size=2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"[rank {rank}]")] == [
            f"[rank {rank}] {text}"
            for text in ("from Python", "from C", "to stderr", "from a child", "no newline at the end")
        ]


UNBATCHED = (
    "[rank0]:[W701 09:03:30.190545785 ProcessGroupNCCL.cpp:4094] Warning: [PG ID 0 PG GUID 0(default_pg) Rank 0] "
    "An unbatched P2P op (send/recv) was called on this ProcessGroup with size 3.  In {} initialization mode, "
)
GUESSING = (
    "[rank0]:[W415 18:57:09.249883195 ProcessGroupNCCL.cpp:5138] Guessing device ID based on global rank. This can"
)


def test_what_torch_says_of_choices_that_are_launchs_own_is_left_out_and_other_warnings_stay(capsys):
    """gloo of torch 2.9 prints a line for each group, NCCL at each rank's first message and first
    barrier."""

    def chatter():
        print("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1")
        print(UNBATCHED.format("lazy") + "this will result in a new 2-rank NCCL communicator to be created.")
        print(GUESSING + " cause a hang if rank to GPU mapping is heterogeneous.", file=sys.stderr)
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        warnings.filterwarnings("default", "something else")  # whatever PYTHONWARNINGS says
        warnings.warn("something else", stacklevel=1)
        warnings.warn("barrier(): using the device under current context. You can specify `device_id`", stacklevel=1)
        print(UNBATCHED.format("eager") + "unbatched P2P ops are treated as independent collective ops")
        print("[rank0]:[W415 18:57:09.2 ProcessGroupNCCL.cpp:1] WARNING: destroy_process_group() was not called")
        print("[Gloo] An unbatched P2P op (send/recv) is the reader's own")

    launch(chatter, world_size=1)
    shown = capsys.readouterr().out.splitlines()
    kept = ("something else", "warnings.warn", "eager initialization", "was not called", "the reader's own")
    assert len(shown) == 5 and all(map(str.__contains__, shown, kept))


def test_a_line_appears_while_the_rank_is_still_running(monkeypatch, tmp_path):
    def wait_to_be_seen(path):
        print("started")
        while not os.path.exists(path):
            time.sleep(0.01)

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=lambda text: (tmp_path / "seen").write_text(text)))
    launch(wait_to_be_seen, str(tmp_path / "seen"), world_size=1, timeout_s=40)
    assert (tmp_path / "seen").read_text() == "[rank 0] started\n"


def test_many_lines_and_a_long_one_arrive_complete_and_in_order(capsys):
    def chatter():
        for i in range(1000):
            print("line", i)
        print("x" * 2_000_000)

    launch(chatter, world_size=2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        *short, long = (line for line in lines if line[6] == str(rank))
        assert short == [f"[rank {rank}] line {i}" for i in range(1000)]
        assert long == f"[rank {rank}] {'x' * 2_000_000}"


def test_kept_outputs_are_in_rank_order_and_without_bars(capsys, monkeypatch):
    def chatter():
        for i in progress(range(3), "steps"):
            time.sleep(0.05 * (2 - dist.get_rank()))
            print(i)

    monkeypatch.setenv("LABKIT_STATIC", "1")
    launch(chatter, world_size=2)
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"[rank {rank}] {i}" for rank in (0, 1) for i in range(3)]
    assert err == ""


# --- random numbers -------------------------------------------------------------------------------


def unseeded():
    return torch.randn(1).item(), torch.nn.Linear(1, 1).weight.item(), numpy.random.rand(), random.random()


def test_without_a_seed_no_rank_of_any_launch_draws_the_numbers_of_another_and_with_one_all_draw_the_same():
    with workers() as ranks:
        drawn = [
            *launch(unseeded).values,
            *launch(unseeded).values,
            *ranks.run(unseeded).values,
            *ranks.run(unseeded).values,
        ]
        seeds = [*ranks.run(torch.initial_seed).values, *launch(torch.initial_seed).values, torch.initial_seed()]
        seeded = ranks.run(lambda: (torch.manual_seed(3), torch.randn(2))[1]).values
    assert len({*itertools.chain(*drawn)}) == 4 * len(drawn) and len({*seeds}) == len(seeds)
    assert torch.equal(*seeded) and torch.equal(seeded[0], torch.randn(2, generator=torch.Generator().manual_seed(3)))


# --- what they return -----------------------------------------------------------------------------


def test_a_value_that_cannot_be_sent_is_named():
    with pytest.raises(
        RankError, match=r"returned what cannot be sent back: the value\['lock'\] is a _thread\.lock"
    ) as error:
        launch(lambda: {"lock": threading.Lock()}, world_size=1)
    assert (error.value.rank, error.value.error_type) == (0, "TypeError")


def returns_its_model():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    return (0.93, model) if dist.get_rank() == 1 else 0.5


class Unreadable:
    def __reduce__(self):
        return __import__, ("not_there",)


def test_a_value_that_cannot_be_had_names_rank_and_part_and_costs_neither_the_other_values_nor_the_ranks():
    with workers() as ranks:
        pids = ranks.run(os.getpid).values
        for fn, words, values in (
            (returns_its_model, r"rank 1 returned .*: the value\[1\] is a torch.*send its \.module", {0: 0.5}),
            (
                lambda: dist.get_rank() or (each for each in ()),
                "rank 0 .*generator.* None of its lines has run",
                {1: 1},
            ),
            (
                lambda: dist.get_rank() or Unreadable(),
                "rank 0 returned what cannot be made again here: ModuleN",
                {1: 1},
            ),
        ):
            with pytest.raises(RankError, match=words) as error:
                ranks.run(fn)
            assert error.value.values == values
        assert ranks.run(os.getpid).values == pids


def test_values_may_be_functions_objects_of_a_cells_classes_and_modules_with_gradients():
    class Answer:
        def __init__(self, value):
            self.value = value

    def made_in_the_rank(values):
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2)).sum().backward()
        return [*values, Answer(42), model, [parameter.grad for parameter in model.parameters()]]

    values = [None, {"a": (1, 2.5)}, lambda x: x + 1]
    (came,) = launch(made_in_the_rank, values, world_size=1).values
    assert came[:2] == values[:2] and came[2](1) == 2
    assert type(came[3]) is Answer and came[3].value == 42
    assert [type(p) for p in came[4].parameters()] == [torch.nn.Parameter] * 2
    assert torch.equal(came[5][0], torch.ones(1, 2))


TENSORS = {
    **{str(d): torch.tensor([1.5, -2.0]).to(d) for d in (torch.float64, torch.bfloat16, torch.int8, torch.bool)},
    "complex, conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "expanded": torch.ones(1, 3).expand(4, 3),
    "one number with a stride": torch.full((1, 7), 3.0)[:, 0],
    "none with a stride": torch.ones(0, 7)[:, 0],
    "sparse": torch.eye(3).to_sparse(),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "meta": torch.empty(2, device="meta"),
}


def test_tensors_of_every_kind_survive_both_ways():
    came = launch(lambda tensors: tensors, TENSORS, world_size=1).values[0]
    assert came.keys() == TENSORS.keys()
    for a, b in zip(TENSORS.values(), came.values(), strict=True):
        assert (a.dtype, a.shape, a.layout, a.device) == (b.dtype, b.shape, b.layout, b.device)
        assert a.is_meta or torch.equal(a.to_dense() if a.is_sparse else a, b.to_dense() if b.is_sparse else b)


def test_a_slice_is_sent_without_its_storage_and_what_occurs_twice_arrives_as_one_that_can_be_written_to():
    big, x = torch.arange(1_000_000), torch.zeros(3, requires_grad=True)
    pickled = pickling.dumps([big[:2], x, x])
    part, a, b = pickling.loads(pickled)
    assert len(pickled) < 2000 and torch.equal(part, big[:2]) and a is b and a.requires_grad
    with torch.no_grad():
        a += 1
    assert a.sum() == 3 and x.sum() == 0


def test_pickled_bytes_hold_no_export_of_a_buffer():
    """One in a circle crashes Python 3.12.1's garbage collector, and 3.13's prints BufferError."""
    assert type(pickling.dumps([1])) is type(pickling.dumps_call(len, ([],), {})) is bytes


# --- warm ranks -----------------------------------------------------------------------------------


def test_warm_ranks_take_calls_from_several_threads_one_after_another():
    values = []
    with workers() as ranks:
        threads = [threading.Thread(target=lambda k=k: values.append(ranks.run(lambda: k).values)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(values) == [[k, k] for k in range(6)]


def test_warm_ranks_end_with_their_with_block_or_when_nobody_holds_them_any_more():
    with workers(world_size=1) as ranks:
        pids = ranks.run(os.getpid).values
    with pytest.raises(RuntimeError, match="these ranks ended with their with block"):
        ranks.run(os.getpid)
    held = workers(world_size=1)
    pids += held.run(os.getpid).values
    del held
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_warm_ranks_recover_from_an_error_and_from_a_broken_group(capsys):
    def fail():
        raise KeyError("on purpose")

    def out_of_step():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True)

    with workers(world_size=2) as ranks:
        with pytest.raises(RankError, match="raised KeyError: 'on purpose'"):
            ranks.run(fail)
        for break_group in (dist.destroy_process_group, out_of_step):
            ranks.run(break_group)
            assert torch.equal(ranks.run(rank_and_sum).values[1][1], torch.full((3,), 3.0))
    assert capsys.readouterr().out.count("left the process group out of step") == 2
