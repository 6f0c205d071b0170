"""What an answer did when it was tried, including that it raised, and where; never with this machine's paths in it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DP = "labkit/dp.py"  # the student's file, as it is named in findings


@dataclass(frozen=True)
class Failure:
    """Evidence that could not be had, because the answer raised. ``what`` says what it raised, and where."""

    what: str


class EvidenceMissing(Exception):
    """A claim asked for evidence that could not be had. The message is that of the :class:`Failure`."""


class Evidence(Mapping[str, Any]):
    """Evidence by name. Asking for what could not be had raises EvidenceMissing, so no claim can hold for lack of it."""

    def __init__(self, found: Mapping[str, Any]):
        self._found = found

    def __getitem__(self, name: str) -> Any:
        if isinstance(value := self._found[name], Failure):
            raise EvidenceMissing(value.what)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def attempt(code: Callable[[], Any], file: str) -> Any:
    """What ``code()`` gives, or a :class:`Failure` if it raises. ``file`` is the student's, such as ``"labkit/dp.py"``."""
    try:
        return code()
    except (Exception, KeyboardInterrupt) as error:
        text = "".join(traceback.format_exception(error))
        return Failure(raised(type(error).__name__, str(error), text, file))


def raised(error_type: str, message: str, text: str, file: str) -> str:
    """``it raised ValueError: … (labkit/dp.py, line 42)``: an exception and the last line of ``file`` in its traceback."""
    first_line = message.strip().partition("\n")[0]
    places = _lines_of(file, text)
    return f"it raised {error_type}{first_line and ': ' + first_line}" + (
        f" ({file}, line {places[-1]})" if places else ""
    )


def stands_at(stack: str, file: str) -> str:
    """``labkit/dp.py, line 42``: the innermost line of ``file`` in a faulthandler stack (innermost last); may be empty."""
    places = _lines_of(file, stack)
    return f"{file}, line {places[-1]}" if places else ""


def _lines_of(file: str, text: str) -> list[str]:
    return re.findall(rf'File "[^"\n]*{re.escape(file)}", line (\d+)', text)
