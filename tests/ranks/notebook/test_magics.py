"""%ranks and %%ranks in an IPython shell: what ranks are given, and what is refused before."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from labkit import todo
from labkit.cost import ETHERNET_1G, Link
from labkit.ranks.faults.errors import RankError
from labkit.ranks.notebook import cells, magics
from labkit.ranks.notebook.cells import CellRun, Ranks
from labkit.ranks.processes.plan import decide


class FakeRanks:
    """Ranks that note what they are asked, and show what the test says."""

    def __init__(self, plan, idle_s):
        self.idle_s = idle_s
        self.plan, self.world_size = plan, plan.world_size
        self.asked: list = []
        self.shown: dict = {}
        self.error: BaseException | None = None
        self.there: list[str] = []

    def run_cell(self, source, file, on=None):
        self.asked.append((source, on))
        if self.error is not None:
            raise self.error
        return CellRun(SimpleNamespace(has_spans=False), self.shown)

    def fits(self, plan):
        return plan == self.plan

    def restart(self, *ranks):
        self.asked.append(("restart", *ranks))

    def stop(self):
        self.asked.append("stop")

    def complete(self, code, cursor, timeout_s):
        self.asked.append((code[:cursor], timeout_s))
        return self.there

    def names(self):
        return self.there


@pytest.fixture
def shell(monkeypatch):
    """An IPython shell in which %ranks and %%needs are known."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there
    monkeypatch.setattr(todo, "_WAITING", {})
    shell = InteractiveShell.instance(colors="nocolor")
    todo.load_ipython_extension(shell)
    monkeypatch.setattr(cells, "Ranks", FakeRanks)
    magics.load(decide)
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def four(shell):
    """Four ranks, started in that shell."""
    run(shell, "ranks = %ranks 4")
    return shell.user_ns["ranks"]


def run(shell, cell: str) -> str:
    """Run a cell, and return what it prints and shows. An error is printed."""
    with capture_output() as output:
        shell.run_cell(cell, store_history=True)
    return output.stdout + output.stderr + "".join(each.data["text/plain"] + "\n" for each in output.outputs)


# --- %ranks ---------------------------------------------------------------------------------------


def test_options_are_those_of_launch_and_a_link_is_known_by_its_name(four, shell):
    assert (four.plan.timeout_s, four.plan.link) == (120.0, None)
    run(shell, "ranks = %ranks 2 --link ethernet_1g --threads 3 --timeout-s 7.5")
    plan = shell.user_ns["ranks"].plan
    assert (plan.world_size, plan.link, plan.threads, plan.timeout_s) == (2, ETHERNET_1G, 3, 7.5)


def test_a_link_of_the_notebooks_own_is_known_by_its_variable(shell):
    shell.user_ns["slow"] = Link(1e-3, 1e6)
    run(shell, "ranks = %ranks 2 --link slow")
    assert shell.user_ns["ranks"].plan.link is shell.user_ns["slow"]


def test_starting_others_ends_the_ranks_that_were_there_and_says_which_variables_go(four, shell):
    four.there = ["model", "x"]
    assert run(shell, "more = %ranks 2") == "labkit: the ranks before these are ended, and with them model and x\n"
    assert four.asked == ["stop"] and shell.user_ns["more"].world_size == 2
    assert run(shell, "more = %ranks 2 --threads 3") == ""  # nothing was lost, so nothing is said


def test_starting_the_same_ranks_again_keeps_them_and_says_so(four, shell):
    four.there = ["model"]
    assert "these ranks are there already, and keep their variables" in run(shell, "again = %ranks 4")
    assert shell.user_ns["again"] is four and four.asked == []


def test_load_ext_labkit_brings_all_magics_and_loads_no_torch():
    code = """
import sys, labkit
assert len([name for name in sys.modules if name.startswith("labkit")]) == 1
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "labkit")
shell.run_line_magic("reload_ext", "labkit")
assert "torch" not in sys.modules
print([bool(shell.find_line_magic("ranks")), bool(shell.find_cell_magic("ranks")), bool(shell.find_cell_magic("needs"))])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert found.stdout == "[True, True, True]\n", found.stderr


REFUSED = {
    "no number": ("%ranks four", "UsageError: %ranks four: expected a number of ranks to start, or stop"),
    "two numbers": ("%ranks 4 5", "UsageError: %ranks 4 5: expected a number of ranks"),
    "no ranks at all": ("%ranks 0", "UsageError: %ranks: world_size is 0, expected 1 or more"),
    "fewer than none": ("%ranks -1", "UsageError: %ranks: world_size is -1, expected 1 or more"),
    "an unknown link": (
        "%ranks 2 --link modem",
        "UsageError: %ranks: --link is 'modem', expected ethernet_1g, ethernet_10g, infiniband_hdr or nvlink4",
    ),
    "an unknown backend": ("%ranks 2 --backend mpi", "UsageError: %ranks: backend is 'mpi', expected one of 'auto'"),
    "threads that are no number": (
        "%ranks 2 --threads many",
        "UsageError: argument --threads: invalid int value: 'many'",
    ),
    "an unknown option": ("%ranks 2 --ranks 3", "UsageError: unrecognized arguments: --ranks"),
    "a rank to restart that is not there": ("%ranks restart 4", "rank 4 is not there; ranks 0 to 3 are"),
    "a cell for a rank that is not there": ("%%ranks 0,4\n1", "%%ranks 0,4: rank 4 is not there; ranks 0 to 3 are"),
    "a cell for no number": ("%%ranks zero\n1", "'zero' is not a rank; expected something like 0, 0,2 or 0-2"),
    "a cell for ranks in reverse": ("%%ranks 2-0\n1", "UsageError: %%ranks 2-0: '2-0' is not a rank"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_cannot_be_meant_is_refused_in_one_sentence_and_the_ranks_stay(four, shell, name):
    line, sentence = REFUSED[name]
    assert sentence in run(shell, line)
    run(shell, "%%ranks\n1")
    assert four.asked == [("%%ranks \n1\n", None)]


@pytest.mark.parametrize("line", ["%ranks", "%ranks restart 0", "%%ranks\n1", "%%ranks 0\n1"])
def test_where_none_are_started_it_says_what_starts_them(shell, line):
    assert "UsageError: no ranks are there: %ranks 4 starts four" in run(shell, line)


def test_restart_begins_those_ranks_anew_and_stop_ends_all(four, shell):
    run(shell, "%ranks restart 2")
    run(shell, "%ranks restart 0 1")
    run(shell, "%ranks restart")
    run(shell, "%ranks stop")
    assert four.asked == [("restart", 2), ("restart", 0, 1), ("restart", 0, 1, 2, 3), "stop"]
    assert "no ranks are there" in run(shell, "%ranks")
    assert run(shell, "%ranks stop") == ""


# --- %%ranks --------------------------------------------------------------------------------------

CHOICES = {
    "%%ranks": None,
    "%%ranks 0,2": [0, 2],
    "%%ranks 0, 2": [0, 2],
    "%%ranks 0-2": [0, 1, 2],
    "%%ranks 3,0-1": [0, 1, 3],
    "%%rank 0": [0],
    "%%rank[0,1]": [0, 1],
    "%%rank [0, 1]": [0, 1],
    "%%px": None,
}


@pytest.mark.parametrize("line", CHOICES)
def test_a_cell_runs_on_the_ranks_that_its_first_line_names(four, shell, line):
    assert run(shell, f"{line}\nx = 1\n") == ""
    ((source, on),) = four.asked
    assert source.startswith("%%ranks") and source.endswith("\nx = 1\n")
    assert on == CHOICES[line]


def test_a_cell_keeps_its_line_numbers_below_needs_too(four, shell):
    run(shell, "%%needs guess.none\n%%ranks 0\n1 / 0")
    assert four.asked == []
    todo.GUESSES["none"] = lambda: None
    run(shell, "%%needs guess.none\n%%rank[0]\n1 / 0")
    ((source, on),) = four.asked
    assert source.split("\n").index("1 / 0") == 2 and on == [0]


def test_braces_and_dollars_are_the_cells_own(four, shell):
    run(shell, "x = 5\n")
    run(shell, "%%ranks\nf'{x}' + '$x'")
    assert four.asked[0][0] == "%%ranks \nf'{x}' + '$x'\n"


def test_what_ranks_have_shown_is_shown_and_before_an_error_as_well(four, shell):
    four.shown = {rank: [{"kind": "result", "data": {"text/plain": "6"}, "metadata": {}}] for rank in range(4)}
    assert run(shell, "%%ranks\n6") == "all 4 ranks: 6\n"
    four.error = RuntimeError("rank 1 raised")
    four.error.shown = four.shown
    shown = run(shell, "%%ranks\n6")
    assert "rank 1 raised" in shown and shown.endswith("all 4 ranks: 6\n")


def test_a_magic_that_another_extension_has_brought_stays_its_own(four, shell):
    shell.register_magic_function(lambda line, cell: print("ipyparallel's"), "cell", "px")
    assert run(shell, "%%px\n1") == "ipyparallel's\n"


def test_a_syntax_error_is_shown_as_in_any_cell_and_no_rank_is_asked(four, shell):
    shown = run(shell, "%%ranks\nx = 1\nx = = 1")
    assert re.search(r"line 3\n\s+x = = 1\n\s+\^\nSyntaxError: invalid syntax\n+$", shown)
    assert "Traceback" not in shown and four.asked == []


def test_a_cell_that_is_still_being_written_is_incomplete_and_not_wrong(four, shell):
    assert shell.input_transformer_manager.check_complete("%%ranks\nfor i in range(3):")[0] == "incomplete"


def test_a_name_that_only_the_notebook_has_is_explained(four, shell):
    shell.user_ns["loader"] = 1
    four.error = RankError(0, "NameError", "raised NameError: name 'loader' is not defined")
    assert "ranks.push(loader=loader)" in run(shell, "%%ranks\nloader")
    four.error = RankError(0, "NameError", "raised NameError: name 'nobodys' is not defined")
    assert "push" not in run(shell, "%%ranks\nnobodys")


def test_an_interrupt_is_shown_without_the_labs_own_lines(four, shell):
    four.error = KeyboardInterrupt()
    four.error.add_note("Variables are kept.")
    assert run(shell, "%%ranks\nx").split("\n")[:2] == ["KeyboardInterrupt", "Variables are kept."]


# --- completion -----------------------------------------------------------------------------------


def completions(shell, cell: str) -> list[str]:
    """What the notebook offers at the end of a cell."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return [each.text for each in shell.Completer.completions(cell, len(cell))]


def test_in_a_ranks_cell_names_of_rank_0_are_offered_and_none_of_the_notebooks(four, shell):
    shell.user_ns["weights_here"] = 1
    four.there = ["weights_there"]
    assert completions(shell, "%%ranks 1\nx = 1\nweights_") == ["weights_there"]
    assert four.asked == [("x = 1\nweights_", 0.5)]


# --- with ranks that are there --------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_ranks():
    ranks = Ranks(decide(2, "gloo", threads=1))
    yield ranks
    ranks.stop()


@pytest.fixture
def two(shell, real_ranks):
    """Two ranks that the shell speaks to."""
    shell.magics_manager.registry["RankMagics"]._ranks = real_ranks
    return real_ranks


def test_a_file_edited_between_two_cells_is_reloaded_on_the_ranks(two, shell, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "answer_of_mine.py").write_text("def f():\n    return 1\n")
    run(shell, "%load_ext autoreload\n%autoreload 2")
    assert run(shell, "%%ranks\nfrom answer_of_mine import f\nf()") == "both ranks: 1\n"
    (tmp_path / "answer_of_mine.py").write_text("def f():\n    return 'another'\n")
    assert run(shell, "%%ranks\nf()") == "both ranks: 'another'\n"


def test_they_are_shown_as_who_is_there_and_in_kept_outputs_what_is_the_machines_own_is_marked(two, shell, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    shown = run(shell, "%ranks")
    pids = list(two.status()["pid"])
    assert all(f"[~ {pid}" in shown for pid in pids)
    marked = re.sub(r"\[~[^]]*\]", "~", shown)
    assert not re.search(r"\d{3}|cpu", marked) and marked.count("waits for a cell") == 2
