"""Every notebook of the lab reproduces what is stored in it, and a stored output that is wrong by
one digit is noticed. In the student edition, which stores none, each runs to its end."""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import nbformat
import notebook_tiers
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from labkit.base.formats import as_html
from labkit.course import normal_form
from labkit.course import notebooks as machinery
from labkit.course.notebook_contract import breaches
from labkit.course.student import is_student_edition

TESTS = Path(__file__).resolve().parents[1]
PROJECT = TESTS.parent
NOTEBOOKS = PROJECT / "notebooks"
# README names each, so a lost one is noticed
EXPECTED = re.findall(r"^\| `(\d\d_\w+)` \| [^|]+ \|$", (PROJECT / "README.md").read_text("utf-8"), re.MULTILINE)
REPLAYED = [
    name if name.startswith(notebook_tiers.FAST) else pytest.param(name, marks=pytest.mark.slow) for name in EXPECTED
]
STUDENT_EDITION = is_student_edition(PROJECT)
stored = pytest.mark.skipif(STUDENT_EDITION, reason="a student edition stores no outputs")
CPU_RULES, GPU_RULES = TESTS / "nbval_sanitize.cfg", TESTS / "nbval_sanitize_gpu.cfg"

# pytest with this folder to import the plugin from; PYTHONPATH would reach the kernels and the
# ranks as well
PYTEST = "import sys, pytest; sys.path.insert(0, sys.argv.pop(1)); sys.exit(pytest.main(sys.argv[1:]))"


def rules_of_this_machine() -> Path:
    import torch

    return GPU_RULES if torch.cuda.is_available() else CPU_RULES


def replay(notebook: Path, rules: Path) -> list[dict]:
    """What nbval says about each cell. Raises if pytest itself went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        environment = os.environ | {
            "LABKIT_STATIC": "1",
            "LABKIT_FIGURES": str(Path(scratch) / "figures"),  # those of the project stay as they are
            "LABKIT_NBVAL_REPORT": str(report),
        }
        environment.pop("MPLBACKEND", None)
        options = ["--nbval", "--nbval-current-env", f"--nbval-sanitize-with={rules}", "--nbval-cell-timeout=200"]
        plugins = ["-p", "nbval_replay", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={PROJECT}", "-q"]
        command = [sys.executable, "-c", PYTEST, str(TESTS / "helpers"), *options, *plugins, str(notebook)]
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=290)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # 5 would be: nothing collected
        return json.loads(report.read_text())


# --- the notebooks of the lab ---------------------------------------------------------------------


def test_the_lab_has_the_notebooks_that_are_tested_here():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(EXPECTED)


@pytest.mark.skipif(not STUDENT_EDITION, reason="the marked source compares what is stored, below")
@pytest.mark.parametrize("name", REPLAYED)
def test_a_notebook_runs_to_its_end(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_FIGURES", str(tmp_path))  # those of the project stay as they are
    before = (NOTEBOOKS / f"{name}.ipynb").read_bytes()
    cells = machinery.run(NOTEBOOKS / f"{name}.ipynb").cells
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code" and cell.source.strip())
    assert (NOTEBOOKS / f"{name}.ipynb").read_bytes() == before


@stored
@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_keeps_the_contract(name):
    assert breaches(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)) == []


@stored
def test_all_notebooks_together_keep_their_budget_of_words_and_of_guesses():
    """Words of the texts are counted without the targets of links, those of a file as wc does."""
    cells = [cell for name in EXPECTED for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells]
    texts = (cell.source for cell in cells if cell.cell_type == "markdown")
    n_words = sum(len(re.sub(r'\]\([^()\s]*(?: "[^"]*")?\)', "]", text).split()) for text in texts)
    questions, figures = ((NOTEBOOKS / f"{file}.toml").read_text("utf-8") for file in ("questions", "figures"))
    in_files = len(questions.split()) + len(figures.split())
    n_guesses = len(tomllib.loads(questions))
    assert n_words <= 12_500 and in_files <= 5_000 and n_guesses <= 45, (n_words, in_files, n_guesses)


@stored
@pytest.mark.parametrize("name", REPLAYED)
def test_every_cell_of_a_notebook_reproduces_its_stored_output(name):
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    results = replay(NOTEBOOKS / f"{name}.ipynb", rules_of_this_machine())
    assert "\n\n".join(cell["message"] for cell in results if cell["outcome"] != "passed") == ""
    assert len(results) == sum(cell["cell_type"] == "code" for cell in cells) >= 4


# --- the rules ------------------------------------------------------------------------------------


def sanitized(text: str, path: Path) -> str:
    for pattern, replacement in get_sanitize_patterns(path.read_text()):
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(("rules", "device"), [(CPU_RULES, "[≈ 4.5]"), (GPU_RULES, "[device]")])
def test_measurements_are_hidden_up_to_their_bracket_and_device_arithmetic_only_where_there_is_a_gpu(rules, device):
    text = "1 [~ 2 s] 3 [~&nbsp;&lt;4&gt;] [≈ 4.5] [~1.5] (~ 1.5)\n[~ 5\n6]"
    assert sanitized(text, rules) == f"1 [measured] 3 [measured] {device} [~1.5] (~ 1.5)\n[~ 5\n6]"
    assert sanitized(as_html("1 [~ 2 s] 3"), rules) == "1 [measured] 3"


# --- execution and tampering, on a small notebook -------------------------------------------------

AUTORELOAD = "%load_ext autoreload\n%autoreload 2"
SMALL = [
    AUTORELOAD,
    "import os, sys, time\nfrom labkit.base.formats import MeasuredTable, loss, measured, say",
    "print('3 ranks took', measured(time.perf_counter(), 's'), 'for step 7')\nprint(os.getpid(), file=sys.stderr)",
    "MeasuredTable({'rank': [0, 1], 'mean_s': [time.perf_counter(), 0.5]})",
    "loss(0.7627)",
    "MeasuredTable({'way': ['ring 3'], 'loss': [loss(0.5432)], 'took': [measured(time.perf_counter(), 's')]})",
    "say('4 ranks took', measured(time.perf_counter(), 's'), 'for step 8')\nsay('one', 'two', sep='\\n')",
    "import psutil\nfrom ipykernel.connect import get_connection_info\n"
    "listening = [each for each in psutil.Process().net_connections('tcp') if each.status == 'LISTEN']\n"
    "print(get_connection_info(unpack=True)['transport'], len(listening))",
    "from labkit.draw import show, timeline\nfrom labkit.trace import event_table\n"
    "row = (0, 'compute', 'forward', None, None, 0, None, None, 0.0, 1.0)\n"
    "show(timeline(event_table([row])), alt='One bar.')",
    "print('a')\nprint('b', flush=True)\nprint('c')",
    "assert os.environ['LABKIT_STATIC'] == '1'\nraise ValueError('shard 4 is empty')",
]


def make(path: Path, cells: list[str], raises: tuple[int, ...] = ()) -> Path:
    notebook = new_notebook(cells=[new_markdown_cell("# How long does it take?"), *map(new_code_cell, cells)])
    for i in raises:
        notebook.cells[i + 1].metadata["tags"] = ["raises-exception"]
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = make(tmp_path_factory.mktemp("small") / "small.ipynb", SMALL, raises=(10,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")  # as in CI: it would take pictures away
        machinery.execute(path)
    return path


HIDDEN = {r"\[~ +\d+": "[~ 99", r'"\d+\\n"': r'"1\\n"'}  # a measurement, and what stderr says
COMPARED = {
    "3 ranks took": "4 ranks took",
    r"<td>1</td>": "<td>2</td>",
    r"0\.7627(?!\))": "0.7628",
    "shard 4 is": "shard 5 is",
}


def test_nbval_fails_where_a_compared_digit_was_changed_and_only_there(small, tmp_path):
    """One notebook has the cells of the small one twice: with outputs in which what is hidden was
    changed, and with such in which what is compared was."""
    notebook = json.loads(small.read_text())
    start, *cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    tampered, changed = [start], [False]
    for edits in (HIDDEN, COMPARED):
        for cell in cells:
            outputs = json.dumps(cell["outputs"], ensure_ascii=False)
            for old, new in edits.items():
                outputs = re.sub(old, new, outputs)
            tampered.append(cell | {"outputs": json.loads(outputs), "id": f"{cell['id']}-{len(tampered)}"})
            changed.append(tampered[-1]["outputs"] != cell["outputs"])
    (tmp_path / "tampered.ipynb").write_text(json.dumps(notebook | {"cells": tampered}))
    results = replay(tmp_path / "tampered.ipynb", CPU_RULES)
    failed = [place for place, cell in enumerate(results) if cell["outcome"] != "passed"]
    assert sum(changed[: len(cells) + 1]) == 4
    assert failed == [place for place, each in enumerate(changed) if each and place > len(cells)] and len(failed) == 4


def test_an_executed_notebook_is_in_normal_form_and_its_kernel_was_not_to_be_reached_through_a_tcp_port(small):
    """Nor is nbval's kernel, or the test above would find another output.

    The one port is ipykernel's own: forked processes print through it, each message with a secret
    of the kernel's.
    """
    notebook = nbformat.read(small, as_version=4)
    assert breaches(notebook) == []
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == list(range(1, 12))
    assert notebook.metadata == {"kernelspec": normal_form.KERNEL, "language_info": {"name": "python"}}
    assert "0.7627" in notebook.cells[5].outputs[0].data["text/plain"]
    sentence, lines = (output.data for output in notebook.cells[7].outputs)  # an output for each call of say
    assert "labkit-measured" in sentence["text/html"] and sentence["text/plain"].startswith("4 ranks took [~ ")
    assert lines["text/plain"] == "one\ntwo"
    assert notebook.cells[8].outputs[0].text == "ipc 1\n"
    pictures = notebook.cells[9].outputs  # the picture once, not a second time by matplotlib
    assert [output.metadata["image/png"]["alt"] for output in pictures] == ["One bar."]
    assert [output.text for output in notebook.cells[10].outputs] == ["a\nb\nc\n"]


def test_a_notebook_that_raises_is_not_stored_and_named(tmp_path, capsys):
    path = make(tmp_path / "broken.ipynb", [AUTORELOAD, "1 / 0"])
    before = path.read_bytes()
    assert machinery.main(["execute", str(path)]) == 1
    assert path.read_bytes() == before
    error = capsys.readouterr().err
    assert "broken.ipynb" in error and "ZeroDivisionError" in error
    with pytest.raises(SystemExit):  # before anything runs
        machinery.main(["execute", str(path), str(tmp_path / "none.ipynb")])
    assert "none.ipynb" in capsys.readouterr().err


# --- the normal form and the contract -------------------------------------------------------------


def good_notebook() -> nbformat.NotebookNode:
    printed = [new_output("stream", name="stdout", text=f"{i}\n") for i in range(3)]
    picture = new_output("display_data", data={"image/png": "iVBORw0KGgo="}, metadata={"image/png": {"alt": "A bar."}})
    error = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=["…"])
    code = [new_code_cell(AUTORELOAD), *(new_code_cell(f"print({i})", outputs=[printed[i]]) for i in range(3))]
    code += [new_code_cell("picture", outputs=[picture]), new_code_cell("1 / 0", outputs=[error])]
    code[-1].metadata["tags"] = ["raises-exception"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
    return normal_form.normalised(new_notebook(cells=[new_markdown_cell("# How many ranks?"), *code]))


def change(notebook, text, /, **changes):
    cell = next(cell for cell in notebook.cells if cell.source == text)
    for name, value in changes.items():
        cell[name] = value


def add_cells(notebook, n, source="pass"):
    notebook.cells += [new_code_cell(source, execution_count=99) for _ in range(n)]


def show(notebook, text, kind="text/plain", cell="print(1)"):
    change(notebook, cell, outputs=[new_output("display_data", data={kind: text})])


LACKS, PATH = "the first code cell lacks %load_ext autoreload and", "path of this machine in its text"
WRONG = {
    "no question": (lambda n: change(n, "# How many ranks?", source="# Ranks"), "asks no question"),
    "no autoreload": (lambda n: change(n, AUTORELOAD, source="%load_ext autoreload"), LACKS),
    "too many cells": (lambda n: add_cells(n, 20), "26 code cells, at most 25"),
    "a long cell": (lambda n: add_cells(n, 1, "\n".join(["pass"] * 13)), "code cell 7: 13 lines, at most 12"),
    "long cells": (lambda n: add_cells(n, 8, "\n".join(["pass"] * 7)), "median code cell has 7 lines"),
    "no alt text": (lambda n: show(n, "iVBORw0KGgo=", "image/png", "picture"), "without alt text"),
    "widget state": (lambda n: n.metadata.update(widgets={"state": {}}), "metadata.widgets"),
    "an error": (lambda n: change(n, "1 / 0", metadata={}), "a stored ZeroDivisionError without the tag"),
    "not executed": (lambda n: change(n, "print(1)", execution_count=None), "code cell 3: was not executed"),
    "looks away": (lambda n: change(n, "print(1)", source="# NBVAL_IGNORE_OUTPUT\nprint(1)"), "not to be compared"),
    "home": (lambda n: show(n, "in /home/ada/lab/x.py"), f"{PATH}/plain"),
    "in a traceback": (lambda n: n.cells[6].outputs[0].update(traceback=["File /root/x.py"]), "machine in its traceb"),
    "a guess that nobody gave": (
        lambda n: show(n, "GUESS hidden: give"),
        '"hidden": {"guess": …} to notebooks/guesses',
    ),
    "a task that waits": (
        lambda n: show(n, "TODO dp.3: labkit/dp.py"),
        "cells waited for TODO dp.3: labkit/dp.py; fill",
    ),
    "JSON": (lambda n: show(n, {"a": 1}, "application/json"), "cannot hide"),
    "random ids": (lambda n: n.cells[0].update(id="12ab34cd"), "normal form"),
}


@pytest.mark.parametrize(("spoil", "breach"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_notebook_is_rejected_with_its_fault(spoil, breach):
    notebook = good_notebook()
    spoil(notebook)
    assert breach in "\n".join(breaches(notebook))


def test_tracebacks_and_stderr_are_stored_without_paths_of_this_machine(monkeypatch):
    project = Path("/srv/my course ü/labkit")  # whole: there is a space in it
    packages = f"{project}/.venv/lib/python3.11/site-packages"
    monkeypatch.setattr(normal_form, "PROJECT", project)
    monkeypatch.setattr(normal_form.sysconfig, "get_path", lambda name: packages)
    trace = [f"File {project}/labkit/dp.py:3, in f", f'File "{packages}/torch/x.py", line 1']
    trace += ["/tmp/ipykernel_12/345.py:1: UserWarning", "File /home/ada/secret.py:7"]
    outputs = [new_output("error", ename="E", evalue="e", traceback=trace)]
    outputs += [new_output("stream", name="stderr", text="\n".join(trace))]
    cell = normal_form.normalised(new_notebook(cells=[new_code_cell("x", outputs=outputs)])).cells[0]
    cleaned = ["File labkit/dp.py:3, in f", 'File "site-packages/torch/x.py", line 1']
    cleaned += ["cell:1: UserWarning", "File …:7"]
    assert (cell.outputs[0].traceback, cell.outputs[1].text) == (cleaned, "\n".join(cleaned))
