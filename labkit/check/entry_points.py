"""Note which forbidden classes an answer makes, and which modules it imports, while it runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Note = Callable[[str], None]


@contextmanager
def watched(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Note which of these classes are made meanwhile, and which of these modules are imported.

    Each stands under the lines of labkit that led there, outermost first, as in a traceback; of
    several, as where one class makes another, the first. Classes are patched in place, so it does
    not matter by what name or subclass somebody reaches them.
    """
    reached: dict[str, str] = {}

    def note(name: str) -> None:
        reached.setdefault("\n".join(_lines_of_labkit()), name)

    finder = _Finder(tuple(names), note)
    classes = {id(cls): (name, cls) for name in reversed(names) if isinstance(cls := _loaded(name), type)}
    with ExitStack() as stack:
        for name, cls in classes.values():
            stack.enter_context(mock.patch.object(cls, "__init__", _noting(cls, name, note)))
        sys.meta_path.insert(0, finder)
        try:
            yield reached
        finally:
            sys.meta_path.remove(finder)


def _loaded(name: str) -> Any:
    """Return what a full name stands for, if it is loaded; nothing is imported."""
    parts = name.split(".")
    found = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    value: Any = sys.modules.get(".".join(parts[:found]))
    for part in parts[found:]:
        value = getattr(value, "__dict__", {}).get(part)
    return value


def _noting(cls: Any, name: str, note: Note) -> Any:
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807
        note(name)
        return original(self, *args, **options)

    return __init__


class _Finder:
    """Finds no module; notes those that are looked for from outside of site-packages."""

    def __init__(self, names: tuple[str, ...], note: Note):
        self.names, self.note = names, note

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.names and not _imported_by_a_package():
            self.note(name)


def _imported_by_a_package() -> bool:
    frame: Any = sys._getframe(2)
    while frame and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and "-packages" in frame.f_code.co_filename


def _lines_of_labkit() -> list[str]:
    lines, frame = list[str](), sys._getframe(2).f_back
    while frame:
        folder, _, file = frame.f_code.co_filename.rpartition("/")
        if folder.endswith("/labkit"):
            lines.append(f'File "labkit/{file}", line {frame.f_lineno}')
        frame = frame.f_back
    return lines[::-1]
