"""Find what an answer uses and is not allowed to: by the names in its code, and when it is run.

What is not allowed stands in ``restrictions.toml``.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any

from labkit.base.texts import listed
from labkit.check.used_names import UNREADABLE, Use, used_names
from labkit.todo import read_source, task_file


@dataclass(frozen=True)
class Rule:
    """A rule of ``restrictions.toml``, where its fields are explained."""

    tasks: tuple[str, ...]
    why: str
    instead: str
    forbidden: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    new_imports: bool = False
    layout: str = ""

    def holds_for(self, task: str, layout: str) -> bool:
        return self.layout in ("", layout) and any(fnmatch(task, pattern) for pattern in self.tasks)

    def forbids(self, name: str) -> bool:
        allowed = _is_in(name, self.allowed) or any(_is_in(each, [name]) for each in self.allowed)
        return _is_in(name, self.forbidden) and not allowed

    def sentence(self, task: str, uses: Iterable[Use]) -> str:
        """Return where and how an answer broke the rule, all of it in one file."""
        used = list(dict.fromkeys(use.name for use in uses))
        names = [name for name in used if not any(_is_in(other, [name]) for other in used if other != name)]
        lines = sorted({use.line for use in uses} - {0})
        where = f", line{'s' * (len(lines) > 1)} {listed(lines)}" if lines else ""
        verb, what = "are" if len(names) > 1 else "is", "this file" if self.new_imports else task
        file = next(iter(uses)).file
        return f"{file}{where}: {listed(names)} {verb} not allowed in {what} ({self.why}). Use {self.instead} instead"


def _is_in(name: str, names: Iterable[str]) -> bool:
    """Return whether ``name`` is one of ``names``, or under one."""
    return any(name == each or name.startswith(f"{each}.") for each in names)


def _rule(table: dict[str, Any]) -> Rule:
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in table.items()}
    return Rule(**fields)


RULES = [*map(_rule, tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["rule"])]


def forbidden(task: str) -> list[str]:
    """Return the names that are forbidden in ``task`` under every layout."""
    return [name for rule in RULES if rule.holds_for(task, "") for name in rule.forbidden]


def broken(task: str, layout: str = "", source: str | None = None, given: str | None = None) -> list[str]:
    """Return what the code of ``task`` uses and must not, a sentence for each rule and file.

        broken("dp.4")
        ['labkit/dp.py, line 42: torch.nn.DataParallel is not allowed in dp.4 (…). Use … instead']

    ``layout`` adds the rules of that layout of ``labkit submit``. ``source`` is the task's file as
    text, by default as it is on disk; ``given`` is that file as it came with the lab, without which
    new imports are not looked for. A file that is no Python breaks no rule.
    """
    return _sentences(task, _by_name(task, layout, source, given))


def warnings(task: str, reached: Iterable[Use]) -> tuple[str, ...]:
    """Return the sentences of ``broken(task)``, and of other rules that what was reached breaks."""
    found = _by_name(task)
    for rule in RULES:
        if rule.holds_for(task, "") and not found[rule]:
            found[rule] = [use for use in reached if rule.forbids(use.name)]
    return tuple(_sentences(task, found))


def _sentences(task: str, found: dict[Rule, list[Use]]) -> list[str]:
    def file(use: Use) -> str:
        return use.file

    return [rule.sentence(task, [*uses]) for rule in found for _, uses in groupby(sorted(found[rule], key=file), file)]


def _by_name(task: str, layout: str = "", source: str | None = None, given: str | None = None) -> dict[Rule, list[Use]]:
    """Return for each rule what breaks it, in the order of the lines."""
    used, new = list[Use](), list[Use]()
    with suppress(*UNREADABLE):  # no Python, so it uses nothing
        source = read_source(task_file(task)) if source is None else source
        used = sorted(used_names(task, source), key=lambda use: use.line)
        if given is not None:
            old, file = dict(_imports(given)), f"labkit/{task_file(task).name}"
            new = [Use(name, file, line) for name, line in _imports(source) if name not in old]
    rules = [rule for rule in RULES if rule.holds_for(task, layout)]
    return {rule: new if rule.new_imports else [use for use in used if rule.forbids(use.name)] for rule in rules}


def _imports(source: str) -> list[tuple[str, int]]:
    """Return what a file imports, each as a statement of its own, and the line."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [
        (ast.unparse(type(node)(**vars(node) | {"names": [alias]})), node.lineno)
        for node in nodes
        for alias in node.names
    ]
