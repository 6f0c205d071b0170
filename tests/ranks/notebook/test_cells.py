"""Cells that live on ranks: what they leave there, what they show, and what a fault costs.

One set of two ranks serves most tests, one after the other: each leaves it usable for the next.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from labkit.cost import Link
from labkit.launch import LaunchTimeout, RankError
from labkit.ranks.faults.stacks import FINISHED, where_ranks_are
from labkit.ranks.notebook.cells import CellRun, Ranks
from labkit.ranks.processes import diagnosis
from labkit.ranks.processes import pool as pools
from labkit.ranks.processes.plan import decide

CELL = "/tmp/ipykernel_1/1.py"


IMPORTS = "import os, time, ctypes, torch, torch.distributed as dist\nrank = dist.get_rank()"


@contextlib.contextmanager
def started(n: int, **options: Any) -> Iterator[Ranks]:
    ranks = Ranks(decide(n, "gloo", **{"timeout_s": 60.0, "threads": 1} | options))
    run(ranks, f"{IMPORTS}; kept = rank + 7")
    try:
        yield ranks
    finally:
        ranks.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Ranks]:
    with started(2) as ranks:
        yield ranks


@pytest.fixture
def two(shared: Ranks) -> Ranks:
    run(shared, f"{IMPORTS}; kept = rank + 7")
    return shared


def run(ranks: Ranks, source: str, on: list[int] | None = None) -> CellRun:
    return ranks.run_cell("%%ranks\n" + textwrap.dedent(source), CELL, on)


def fails(ranks: Ranks, source: str, kind: type[BaseException] = RankError, on: list[int] | None = None) -> Any:
    with pytest.raises(kind) as caught:
        run(ranks, source, on)
    return caught.value


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def texts(shown: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["kind"], each["data"]["text/plain"]) for each in shown]


def sums(ranks: Ranks) -> list[str]:
    """Return what an all_reduce over all ranks gives on each: whether their group works."""
    return run(ranks, "_sum = torch.ones(1); dist.all_reduce(_sum); _sum.item()").run.values


# --- what a cell leaves, and what it shows --------------------------------------------------------


def test_a_cell_s_variables_are_there_in_the_next_one(two):
    run(two, "x = rank + 10\ndef twice(y): return 2 * y")
    cell = run(two, "twice(x)")
    assert two["x"] == [10, 11]
    assert cell.run.values == ["20", "22"]
    assert run(two, "_ + 1").run.values == ["21", "23"]


def test_a_cell_shows_what_it_displays_in_order_and_its_last_expression(two, capfd):
    cell = run(two, "from IPython.display import HTML, display\ndisplay(HTML('<b>1</b>'))\nprint('hello')\n[rank, 2]")
    assert texts(cell.shown[1]) == [("display", "<IPython.core.display.HTML object>"), ("result", "[1, 2]")]
    assert cell.shown[0][0]["data"]["text/html"] == "<b>1</b>"
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] hello", "[rank 1] hello"]


@pytest.mark.parametrize("magic", ["%matplotlib inline", "%matplotlib agg", "%gui"])
def test_a_magic_for_windows_does_no_harm(two, magic):
    run(two, f"{magic}\nafter = 1")
    assert two["after"] == [1, 1]


def test_after_matplotlib_inline_a_figure_is_a_picture_once(two):
    cell = run(two, "%matplotlib inline\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
    assert ["image/png" in each["data"] for each in cell.shown[0]] == [True]


def test_an_update_replaces_what_it_updates_and_clear_output_forgets(two):
    source = """
        from IPython.display import clear_output, display
        display("gone"); clear_output()
        handle = display("old", display_id=True); handle.update("new")"""
    assert texts(run(two, source).shown[0]) == [("display", "'new'")]


def test_a_figure_is_a_picture(two, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    cell = run(two, "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
    (picture,) = cell.shown[1]
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")


def test_magics_and_await_work(two):
    run(two, "import asyncio\nawait asyncio.sleep(0)\n%time y = 3\nz = await asyncio.sleep(0, 7)")
    assert two["z"] == [7, 7]
    assert two["y"] == [3, 3]
    run(two, "%%time\nw = 5")
    assert two["w"] == [5, 5]


def test_a_cell_s_spans_are_its_timings(two):
    cell = run(two, "from labkit.trace import span\nwith span('work'):\n    pass")
    assert list(cell.run.timings["name"]) == ["work", "work"]
    assert two.last is cell.run


def test_a_cell_on_some_ranks_leaves_the_others_alone(two):
    run(two, "here = []")
    cell = run(two, "here.append(rank)\nrank", on=[1])
    assert two["here"] == [[], [1]]
    assert (cell.run.values, list(cell.shown)) == (["1"], [1])


def test_a_name_that_no_rank_has_is_a_key_error_that_offers_near_ones(two):
    run(two, "weights = 1")
    with pytest.raises(KeyError, match=r"no rank has a variable 'wieghts'\. Did you mean weights"):
        two["wieghts"]
    run(two, "only_here = 1", on=[0])
    with pytest.raises(KeyError, match="rank 1 lacks a variable 'only_here'"):
        two["only_here"]


@pytest.mark.parametrize("key", [0, slice(0, 2), ("x", 0), None])
def test_what_is_no_name_is_refused_with_how_to_ask(two, key):
    with pytest.raises(TypeError, match=r"expected the name of a variable: ranks\['x'\] is its value on each rank"):
        two[key]


def test_push_sets_variables_and_names_what_cannot_be_sent(two):
    two.push(a=3, f=lambda y: y + 1)
    assert run(two, "f(a) + rank").run.values == ["4", "5"]
    with pytest.raises(TypeError, match=r"lock is a _thread\.lock"):
        two.push(a=4, lock=threading.Lock())
    assert two["a"] == [3, 3]


def test_a_variable_that_cannot_be_sent_is_named(two):
    run(two, "import threading\nlock = [threading.Lock()]")
    with pytest.raises(TypeError, match=r"'lock' of rank 0 cannot be sent here: lock\[0\] is a _thread\.lock"):
        two["lock"]
    assert sums(two) == ["2.0", "2.0"]


def test_status_says_who_is_there(two):
    run(two, "model = 1")
    status = two.status()
    assert list(status["rank"]) == [0, 1]
    assert list(status["doing"]) == ["waits for a cell"] * 2
    assert all(psutil.pid_exists(pid) for pid in status["pid"])
    assert "model" in status["names"][1].split(", ")
    assert (status["memory_mb"] > 10).all()


def test_names_of_rank_0_are_completed(two):
    run(two, "weights = torch.ones(3)")
    patience_s = 60.0
    assert two.complete("y = weig", 8, patience_s) == ["weights"]
    assert "weights.shape" in two.complete("weights.sha\nz = 1", 11, patience_s)


def test_importing_launch_on_a_rank_starts_no_server_there(two):
    run(two, "import labkit.launch, psutil\nchildren = len(psutil.Process().children(recursive=True))")
    assert two["children"] == [0, 0]


def test_the_huge_output_of_one_rank_is_cut_and_the_other_s_is_there(two, capfd, monkeypatch):
    monkeypatch.setattr("labkit.ranks.notebook.cells.MAX_PRINTED", 1000)
    cell = run(two, "print('x' * 5_000_000 if rank == 0 else 'small')\n'y' * (10_000_000 if rank == 0 else 1)")
    printed = capfd.readouterr().out
    assert "[rank 1] small" in printed
    assert "labkit: further output is left out" in printed
    assert len(printed) < 2000
    assert len(cell.shown[0][0]["data"]["text/plain"]) < 300_000
    assert cell.run.values[1] == "'y'"


# --- a cell that is wrong -------------------------------------------------------------------------


def test_a_syntax_error_is_the_notebook_s_and_no_rank_begins(two):
    error = fails(two, "began = 1\nx = = 2", SyntaxError)
    assert (error.filename, error.lineno) == (CELL, 3)
    with pytest.raises(KeyError):
        two["began"]


def test_ranks_that_are_not_there_are_refused(two):
    error = fails(two, "began_2 = 1", ValueError, on=[1, 2])
    assert str(error) == "there is no rank 2: these are rank 0 to 1"
    with pytest.raises(KeyError):
        two["began_2"]


def test_what_a_rank_raises_has_the_cell_s_lines_alone(two):
    error = fails(two, "def f():\n    return 1 / 0\nif rank == 1:\n    f()")
    assert (error.rank, error.error_type) == (1, "ZeroDivisionError")
    files = re.findall(r'File "(.*?)", line (\d+)', error.traceback)
    assert files == [(CELL, "5"), (CELL, "3")]
    assert "    return 1 / 0" in error.traceback
    assert two["kept"] == [7, 8]


def test_what_ranks_had_shown_before_an_error_is_there(two):
    error = fails(two, "display('before', rank)\nassert rank == 0")
    assert texts(error.shown[1]) == [("display", "'before'"), ("display", "1")]


def test_a_magic_that_only_the_notebook_has_is_explained(two):
    error = fails(two, "%autoreload_of_mine 2")
    assert "autoreload_of_mine" in str(error)
    assert "use it in a cell without %%ranks" in error.traceback


def test_sys_exit_costs_the_cell_alone(two):
    pids = list(two.status()["pid"])
    assert fails(two, "import sys\nsys.exit(3)").error_type == "SystemExit"
    assert list(two.status()["pid"]) == pids


@pytest.mark.parametrize("call", ["exit()", "quit(1)", "exit(status=3)"])
def test_exit_costs_the_cell_alone_and_says_what_ends_the_ranks(two, capfd, call):
    error = fails(two, f"before = 1\n{call}\nafter_exit = 1")
    assert error.error_type == "SystemExit" and "%ranks stop, in a cell without %%ranks, ends all ranks" in str(error)
    assert re.findall(r'File "(.*?)", line (\d+)', error.traceback) == [(CELL, "3")]
    assert two["before"] == [1, 1] and "To exit" not in capfd.readouterr().out
    with pytest.raises(KeyError):
        two["after_exit"]
    assert sums(two) == ["2.0", "2.0"]


def test_an_error_on_all_ranks_leaves_their_group_as_it_is(two):
    run(two, "group = dist.new_group([0, 1])")
    error = fails(two, "undefined")
    assert notes(error).endswith("Variables are kept.")
    run(two, "t = torch.ones(1); dist.all_reduce(t, group=group)")
    assert two["t"] == [2, 2]


LEFT_BEHIND = {
    "a message": (
        "if rank == 0: dist.isend(torch.ones(1), 1)",
        "dist.recv(t, 0) if rank else dist.send(t, 1)",
        [5.0, 5.0],
    ),
    "a receive": (
        "if rank == 0: dist.irecv(torch.ones(1), 1)",
        "dist.send(t, 0) if rank else dist.recv(t, 1)",
        [5.0, 5.0],
    ),
    "a message with another tag than its receive": (
        "dist.irecv(torch.ones(1), 0, tag=2) if rank else dist.isend(torch.ones(1), 1, tag=1)",
        "dist.recv(t, 0, tag=1) if rank else dist.send(t, 1, tag=1)",
        [5.0, 5.0],
    ),
    "a collective of another group": (
        "group = dist.new_group([0, 1])\nif rank == 0: dist.all_reduce(torch.ones(1), group=group, async_op=True)",
        "dist.all_reduce(t, group=dist.new_group([0, 1]))",
        [10.0, 10.0],
    ),
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_a_failed_cell_has_left_on_its_way_is_not_taken_by_the_next_one(two, what):
    first, second, found = LEFT_BEHIND[what]
    error = fails(two, f"{first}\nif rank == 1: raise ValueError('on purpose')")
    assert "The ranks are in a new process group." in notes(error)
    run(two, f"t = torch.full((1,), 5.0)\n{second}\nfound = t.item()")
    assert two["found"] == found


def test_messages_that_have_met_leave_the_group_as_it_is(two):
    run(two, "group = dist.new_group([0, 1])")
    meet = "(dist.irecv(torch.ones(1), tag=3) if rank else dist.isend(torch.ones(1), 1, tag=3)).wait()"
    assert notes(fails(two, f"{meet}\nundefined")).endswith("Variables are kept.")
    run(two, "t = torch.ones(1); dist.all_reduce(t, group=group)")
    assert two["t"] == [2, 2]


def test_an_old_group_that_a_variable_holds_raises_and_gives_no_number_of_then(two):
    run(two, "group = dist.new_group([0, 1])")
    left = "if rank == 0: dist.all_reduce(torch.ones(1), group=group, async_op=True)"
    assert "group belongs to the old one" in notes(fails(two, f"{left}\nif rank == 1: raise ValueError('on purpose')"))
    for on in ([1], [0], [0, 1]):
        fails(two, "dist.all_reduce(torch.ones(1), group=group)", on=on)
    assert sums(two) == ["2.0", "2.0"]


# --- a cell that does not end ---------------------------------------------------------------------


def test_a_rank_that_raises_frees_the_others_from_their_collective(two):
    error = fails(two, "if rank == 1: raise ValueError('on purpose')\ndist.barrier()")
    assert str(error) == "rank 1 raised ValueError: on purpose"
    assert "The ranks are in a new process group" in notes(error)
    assert two["kept"] == [7, 8]
    assert sums(two) == ["2.0", "2.0"]


def test_a_hang_is_named_and_variables_stay(two):
    error = fails(two, "if rank == 0:\n    dist.all_reduce(torch.ones(3))", LaunchTimeout)
    assert "rank 0 waits in all_reduce of 3 float32 (your cell, line 3), and rank 1 has returned" in str(error)
    waits = "waits in all_reduce of 3 float32, your cell, line 3: dist.all_reduce(torch.ones(3))"
    assert error.__notes__[0] == f"\nrank 0 {waits}\nrank 1 has returned"
    (recovered,) = error.__notes__[1:]  # no stacks: the cell's lines say enough
    assert recovered.startswith("\nVariables are kept.")
    assert "IPython" not in error.stacks[0]
    assert two["kept"] == [7, 8]
    assert sums(two) == ["2.0", "2.0"]


def test_a_second_hang_s_stacks_are_its_own(two):
    for _ in range(2):
        error = fails(two, "if rank == 0: dist.barrier()", LaunchTimeout)
        assert error.stacks[0].count("in <module>") == 1


@pytest.mark.parametrize(
    "source",
    [
        "group = dist.new_group([0, 1])\nif rank == 0:\n    dist.all_reduce(torch.ones(3), group=group)",
        "if rank == 0:\n    dist.recv(torch.ones(1), 1)",
        "import threading\nlock = threading.Lock(); lock.acquire()\nif rank == 0:\n    lock.acquire()\nelse: dist.barrier()",
        "if rank == 0:\n    dist.new_group([0, 1])",
    ],
    ids=["in a group of its own", "in a receive", "in a lock", "in the forming of a group"],
)
def test_a_hang_outside_the_default_group_is_ended_as_well(two, source):
    pids = list(two.status()["pid"])
    fails(two, source, LaunchTimeout)
    assert two["kept"] == [7, 8]
    assert list(two.status()["pid"]) == pids
    assert sums(two) == ["2.0", "2.0"]


def test_a_hang_is_named_after_a_progress_bar_over_a_data_loader_with_workers(two):
    run(
        two,
        """
        from tqdm import tqdm
        loader = torch.utils.data.DataLoader(range(4), num_workers=1, multiprocessing_context="fork")
        for _ in tqdm(loader, disable=False):
            pass
        """,
    )
    assert fails(two, "if rank == 0: dist.barrier()", LaunchTimeout).hang is not None
    assert sums(two) == ["2.0", "2.0"]


def test_a_rank_that_the_cell_does_not_run_on_is_named_as_the_one_that_is_missing(two):
    error = fails(two, "dist.all_reduce(torch.ones(3))", LaunchTimeout, on=[0])
    assert "rank 0 waits in all_reduce of 3 float32 (your cell, line 2), and rank 1 is not among the ranks" in str(
        error
    )
    assert two["kept"] == [7, 8]
    assert sums(two) == ["2.0", "2.0"]


def test_names_that_hold_the_old_group_are_listed(two):
    run(two, "plain, group = torch.nn.Linear(2, 2), dist.new_group([0, 1])")
    run(two, "ddp = torch.nn.parallel.DistributedDataParallel(plain); inside = {'model': [ddp]}")
    run(two, "mesh = dist.device_mesh.init_device_mesh('cpu', (2,))")
    error = fails(two, "if rank == 0: ddp(torch.ones(1, 2)); dist.barrier()", LaunchTimeout)
    assert "ddp, group, inside and mesh belong to the old one: make it anew." in notes(error)
    run(two, "del ddp, plain, inside, mesh, group")
    assert sums(two) == ["2.0", "2.0"]


def test_a_cell_that_leaves_the_group_out_of_step_is_followed_by_a_new_one(two, capfd):
    run(two, "if rank == 0: dist.all_reduce(torch.ones(1), async_op=True)")
    assert "the cell left the process group out of step. The ranks are in a new process group" in capfd.readouterr().out
    assert sums(two) == ["2.0", "2.0"]


def test_a_group_that_a_cell_has_destroyed_is_formed_anew(two):
    run(two, "dist.destroy_process_group()")
    assert sums(two) == ["2.0", "2.0"]


def test_sockets_of_a_cell_s_own_stay_open(two):
    run(two, "import socket\nmine, other = socket.socketpair()")
    fails(two, "if rank == 0: dist.barrier()", LaunchTimeout)
    assert run(two, "mine.send(b'x'); other.recv(1)").run.values == ["b'x'"] * 2


def test_what_a_cell_has_set_in_its_process_stays(two):
    run(two, "import sys\nhere = os.getcwd()\nos.environ['MINE'] = '1'; os.chdir('/'); sys.path.append('/mine')")
    assert run(two, "os.environ['MINE'], os.getcwd(), sys.path[-1]").run.values == ["('1', '/', '/mine')"] * 2
    run(two, "del os.environ['MINE'], sys.path[-1]; os.chdir(here)")


# --- the kernel is interrupted --------------------------------------------------------------------


def interrupted(ranks: Ranks, source: str, when: Callable[[], bool]) -> KeyboardInterrupt:
    """Run a cell and interrupt this process, as Jupyter does, once ``when()`` says so."""
    done = threading.Event()

    def interrupt() -> None:
        while not when():
            done.wait(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        error = fails(ranks, source, KeyboardInterrupt)
    finally:
        done.set()
        thread.join()
    assert isinstance(error, KeyboardInterrupt)
    return error


@pytest.mark.parametrize(
    "wait",
    [
        "(dist.barrier() if rank == 0 else time.sleep(1000))",
        "exec('while True: dist.all_reduce(torch.ones(1000))')",
        "exec('while True: pass')",
        "exec('while True:\\n    try: time.sleep(1000)\\n    except ValueError: pass')",
        "__import__('subprocess').run(['sleep', '1000'])",
        "await __import__('asyncio').sleep(1000)",
    ],
    ids=["in a collective", "in a loop of collectives", "in a loop", "asleep", "in a subprocess", "in an await"],
)
def test_an_interrupt_ends_the_cell_and_keeps_variables(two, tmp_path, wait):
    source = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close()\n{wait}"
    error = interrupted(two, source, lambda: len(list(tmp_path.iterdir())) == 2)
    assert "Variables are kept." in notes(error)
    assert two["kept"] == [7, 8]
    assert sums(two) == ["2.0", "2.0"]


def test_an_interrupt_says_where_each_rank_was(two, tmp_path):
    touch = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close()"
    both_there = lambda: len(list(tmp_path.iterdir())) == 2  # noqa: E731
    lines = [f"{touch}; time.sleep(1000)", f"while True: {touch}"]
    error = interrupted(two, f"if rank:\n    {lines[0]}\nelse:\n    {lines[1]}", both_there)
    places = [f"rank {rank} was in your cell, line {line}: {lines[1 - rank]}" for rank, line in ((0, 5), (1, 3))]
    assert error.__notes__[0] == "\n" + "\n".join(places)
    for file in tmp_path.iterdir():
        file.unlink()
    error = interrupted(two, lines[1], both_there)
    assert error.__notes__[0] == f"\nranks 0 and 1 were in your cell, line 2: {lines[1]}"


def test_a_rank_that_has_returned_or_is_in_no_line_of_the_readers_says_so():
    stacks = {0: FINISHED, 1: f'  File "{threading.__file__}", line 3 in wait', 2: FINISHED}
    assert where_ranks_are(stacks) == "ranks 0 and 2 had returned\nrank 1 was in no line of yours"


def test_a_rank_in_a_c_call_that_cannot_be_ended_is_replaced_and_says_what_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.ranks.notebook.cells.LEAVE_CELL_S", 1.0)
    with started(2) as ranks:
        # all() never comes back to Python code, and no signal ends it.
        source = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close()\nif rank: all(__import__('itertools').repeat(1))"
        error = interrupted(ranks, source, lambda: len(list(tmp_path.iterdir())) == 2)
        assert "Rank 1 could not be interrupted" in notes(error)
        assert "os, time, ctypes, torch, dist, rank, kept of rank 1 is lost" in notes(error)
        with pytest.raises(KeyError, match="rank 1 lacks a variable 'kept'"):
            ranks["kept"]
        run(ranks, "import torch, torch.distributed as dist")
        assert sums(ranks) == ["2.0", "2.0"]


def interrupting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is interrupted as it begins."""

    def call(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return method(*args)

    return call


def test_an_interrupt_while_ranks_start_anew_waits_until_they_have(two, monkeypatch):
    monkeypatch.setattr(pools.RankPool, "replace", interrupting(pools.RankPool.replace))
    with pytest.raises(KeyboardInterrupt):
        two.restart()
    assert [run(two, repr(i)).run.values for i in range(3)] == [[str(i)] * 2 for i in range(3)]


def test_one_more_interrupt_while_ranks_leave_a_cell_hides_no_error(two, monkeypatch):
    monkeypatch.setattr(Ranks, "_recover", interrupting(Ranks._recover))
    assert "Variables are kept." in notes(fails(two, "1 / 0"))


# --- a data loader with workers -------------------------------------------------------------------

READ = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        if {stuck}: open({folder!r} + f'/{{rank}}', 'w').close(); time.sleep(1000)
        return i

for i, _ in enumerate(torch.utils.data.DataLoader(Numbers(), num_workers=2)):
    open({folder!r} + f'/{{rank}}', 'w').close()
    if i == 3 and {fails}: raise ValueError("on purpose")
"""
ENDED = "import multiprocessing\nmultiprocessing.active_children()"


@pytest.mark.parametrize(
    "fault", ["an interrupt", "an interrupt of stuck workers", "an error", "an error of another rank"]
)
def test_workers_of_a_loader_end_with_the_cell_and_cost_no_variables(two, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(
        "labkit.ranks.notebook.cells.FORM_GROUP_S", 7.0
    )  # torch waits 5 s for each worker that does not end
    names = {"an error": "True", "an error of another rank": "rank == 1"}
    source = READ.format(stuck="stuck" in fault, folder=str(tmp_path), fails=names.get(fault, "False"))
    both_read = lambda: len(list(tmp_path.iterdir())) == 2  # noqa: E731
    error = interrupted(two, source, both_read) if "interrupt" in fault else fails(two, source)
    assert "Variables are kept." in notes(error)
    assert two["kept"] == [7, 8]
    assert run(two, ENDED).run.values == ["[]"] * 2
    assert sums(two) == ["2.0", "2.0"]


def test_a_loader_that_a_variable_holds_keeps_its_workers(two):
    run(two, "loader = torch.utils.data.DataLoader(range(8), num_workers=1, persistent_workers=True)\nlist(loader)")
    fails(two, "for _ in loader: raise ValueError('on purpose')")
    assert run(two, "torch.cat(list(loader)).tolist()").run.values == [str(list(range(8)))] * 2
    run(two, "del loader")


# --- a rank dies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_named_and_comes_back_with_restart(victim):
    with started(3) as ranks:
        error = fails(ranks, f"if rank == {victim}: os.kill(os.getpid(), 9)\ndist.barrier()")
        assert str(error).startswith(f"rank {victim} was killed by SIGKILL")
        assert f"%ranks restart {victim}" in notes(error)
        others = [rank for rank in range(3) if rank != victim]
        assert ranks["kept"] == [rank + 7 for rank in others]
        assert run(ranks, "kept", on=others).run.values == [str(rank + 7) for rank in others]
        assert f"rank {victim} was killed by SIGKILL" in str(fails(ranks, "1"))
        ranks.restart(victim)
        with pytest.raises(KeyError, match=f"rank {victim} lacks a variable 'kept'"):
            ranks["kept"]
        run(ranks, "import torch, torch.distributed as dist")
        assert sums(ranks) == ["3.0"] * 3


def test_ranks_that_have_all_died_are_all_named_until_they_are_back(two):
    all_back = "Bring them back, without variables: %ranks restart 0 1"
    assert notes(fails(two, "os._exit(3)")).endswith(f"No rank is left. {all_back}")
    for _ in range(2):
        assert str(fails(two, "1")).endswith(f"before this cell; so has rank 1. {all_back}")
    two.restart(0, 1)
    run(two, IMPORTS)
    assert sums(two) == ["2.0", "2.0"]


def test_a_rank_that_came_when_another_had_ended_has_its_threads_and_is_in_the_next_group(two):
    threads = run(two, "torch.get_num_threads()").run.values
    fails(two, "os._exit(3)")
    two._running().replace([1])
    assert run(two, "import torch; torch.get_num_threads()", on=[1]).run.values == threads[1:]
    two.restart(0)
    run(two, IMPORTS)
    assert sums(two) == ["2.0", "2.0"]


def test_ranks_that_form_no_group_even_when_they_are_new_are_ended():
    with started(1) as ranks:
        ranks.plan.variables[0]["TORCH_DISTRIBUTED_DEBUG"] = "no such level"  # which a rank reads before it forms one
        with pytest.raises(RankError, match="TORCH_DISTRIBUTED_DEBUG") as caught:
            ranks.restart()
        assert "have formed no process group, so they were ended" in notes(caught.value)
        with pytest.raises(RuntimeError, match="these ranks were stopped; start new ones"):
            run(ranks, "1")


def test_restart_brings_all_back_empty(two):
    two.restart()
    with pytest.raises(KeyError, match="no rank has a variable 'kept'"):
        two["kept"]


# --- an emulated link -----------------------------------------------------------------------------


def test_a_hang_on_an_emulated_link_keeps_variables():
    with started(2, link=Link(latency_s=1e-3, bytes_per_s=1e6)) as ranks:
        fails(ranks, "if rank == 0: dist.all_reduce(torch.ones(3))", LaunchTimeout)
        assert ranks["kept"] == [7, 8]
        assert sums(ranks) == ["2.0", "2.0"]


def test_an_interrupt_ends_an_emulated_wait(tmp_path):
    with started(2, link=Link(latency_s=1000.0, bytes_per_s=1e6)) as ranks:
        source = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close()\ndist.all_reduce(torch.ones(3))"
        interrupted(ranks, source, lambda: len(list(tmp_path.iterdir())) == 2)
        assert ranks["kept"] == [7, 8]


# --- nothing is left ------------------------------------------------------------------------------

COUNTS = """
def counts():
    links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')]
    pids = os.listdir('/proc/self/task')
    return len(links), len(pids), len(dist.distributed_c10d._world.pg_map)
"""


@pytest.mark.slow
def test_16_hangs_in_a_row_leave_variables_and_nothing_else(monkeypatch):
    monkeypatch.setattr(diagnosis, "QUIET_S", 0.5)
    with started(4) as ranks:
        run(ranks, COUNTS)
        hang = "if rank == {}: dist.all_reduce(torch.ones(3))"
        own = len(os.listdir("/proc/self/fd")), threading.active_count()
        for i in range(4):  # a rank's first: torch keeps the last group whose collectives were asked for
            fails(ranks, hang.format(i), LaunchTimeout)
        before = run(ranks, "counts()").run.values
        for i in range(16):
            fails(ranks, hang.format(i % 4), LaunchTimeout)
            assert ranks["kept"] == [7, 8, 9, 10]
        assert run(ranks, "counts()").run.values == before
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == own


KERNEL = """
from labkit.ranks.notebook.cells import Ranks
from labkit.ranks.processes.plan import decide
ranks = Ranks(decide(2, "gloo", threads=1))
print(*ranks.status()["pid"], flush=True)
ranks.run_cell("import time; time.sleep(1000)", "cell")
"""


def test_a_kernel_that_is_gone_leaves_no_rank_and_another_keeps_its_own(two):
    pids = list(two.status()["pid"])
    with subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        theirs = [psutil.Process(int(pid)) for pid in kernel.stdout.readline().split()]
        assert len(theirs) == 2
        kernel.kill()
    _, alive = psutil.wait_procs(theirs, timeout=60)
    assert not alive
    assert list(two.status()["pid"]) == pids
    assert sums(two) == ["2.0", "2.0"]


def test_stopped_ranks_are_gone_and_say_so():
    with started(2) as ranks:
        processes = [psutil.Process(pid) for pid in ranks.status()["pid"]]
    assert not psutil.wait_procs(processes, timeout=60)[1]
    with pytest.raises(RuntimeError, match="these ranks were stopped"):
        run(ranks, "1")
    ranks.stop()
