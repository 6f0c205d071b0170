"""A guess that is missing holds back the cells that use its answer, and no others."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from labkit import todo

ROOT = Path(__file__).parents[2]
CELLS = {
    path.stem: [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
}
GUESSES = [(name, guess) for name in CELLS for guess in sorted({*re.findall(r"guess\.(\w+)", "\n".join(CELLS[name]))})]


def defined(cell: str) -> set[str]:
    """Return the names of a cell's imports, functions and classes."""
    names = set()
    for each in ast.parse(re.sub(r"^[%!].*$", "", cell, flags=re.MULTILINE)).body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            names.add(each.name)
        if isinstance(each, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in each.names}
    return names


@pytest.mark.parametrize(("name", "guess"), GUESSES)
def test_no_cell_waits_for_a_guess_only_because_it_uses_a_definition(name, guess, monkeypatch):
    monkeypatch.setattr(todo, "_WAITING", {})
    monkeypatch.setattr(todo, "missing", lambda task: "GUESS" if task == f"guess.{guess}" else None)
    wait_for_a_definition, definitions = [], set()
    for number, cell in enumerate(CELLS[name]):
        used, held_back = todo.names_of(cell)[0], {*todo._WAITING}
        waits = "show_missing" in todo.step_aside(cell.splitlines(keepends=True))[0]
        uses_answer = f"guess.{guess}" in cell.splitlines()[0] or "reveal(" in cell
        if waits and not uses_answer and (used & held_back) <= definitions:
            wait_for_a_definition.append(number)
        definitions = definitions | defined(cell) if waits else definitions - todo.names_of(cell)[1]
    assert wait_for_a_definition == []
