"""What an answer did when it was tried, including that it raised, and where; never with this machine's paths in it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DP, PIPE = "labkit/dp.py", "labkit/pipe.py"  # the student's files, as they are named in findings
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class Failure:
    """Evidence that could not be had, because of what the answer did, which ``what`` says: what it raised, and where."""

    what: str


@dataclass(frozen=True)
class Untried:
    """Evidence that nobody tried to get. ``why`` says because of what, and another claim is wrong for that reason."""

    why: str


class EvidenceMissing(Exception):
    """A claim asked for evidence that could not be had. The message is that of the :class:`Failure`."""


class NotTried(Exception):
    """A claim can be neither right nor wrong as long as another one is wrong. The message says for what reason."""


class Stopped(Exception):
    """A probe goes no further, since the answer cannot be right any more. The message is what is wrong."""


class Evidence(Mapping[str, Any]):
    """Evidence by name. Asking for what is not there raises EvidenceMissing or NotTried, so no claim holds for lack of it."""

    def __init__(self, found: Mapping[str, Any]):
        self._found = found

    def __getitem__(self, name: str) -> Any:
        value = self._found[name]
        if isinstance(value, Failure):
            raise EvidenceMissing(value.what)
        if isinstance(value, Untried):
            raise NotTried(value.why)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def holds(claim: Callable[[Any], str | None], evidence: Any) -> bool:
    """Whether a claim holds. For another one that cannot be tried otherwise."""
    try:
        return claim(evidence) is None
    except (EvidenceMissing, NotTried):
        return False


def attempt(code: Callable[[], Any], file: str) -> Any:
    """What ``code()`` gives, or a :class:`Failure` if it raises. ``file`` is the student's, such as ``"labkit/dp.py"``."""
    try:
        return code()
    except Stopped as stopped:
        return Failure(str(stopped))
    except (Exception, KeyboardInterrupt) as error:
        text = "".join(traceback.format_exception(error))
        return Failure(raised(type(error).__name__, str(error), text, file))


def raised(error_type: str, message: str, text: str, file: str) -> str:
    """``it raised ValueError: … (labkit/dp.py, line 42)``: an exception and the last line of ``file`` in its traceback.

    For a TodoError ``dp.6 has to be done first (labkit/dp.py, line 42)``.
    """
    first_line = message.strip().partition("\n")[0]
    if error_type == "TodoError":
        task, _, place = first_line.removeprefix("TODO ").partition(": ")
        return f"{task} has to be done first ({place})"
    places = _lines_of(file, text)
    if places and error_type in SYNTAX_ERRORS:  # whose message names the place too
        first_line = re.sub(r" \([^()]*, line \d+\)$", "", first_line)
    return f"it raised {error_type}{first_line and ': ' + first_line}" + (
        f" ({file}, line {places[-1]})" if places else ""
    )


def fails_on_import(error_type: str, text: str, file: str) -> bool:
    """Whether a traceback is of a ``file`` that is no Python, or that raised while it was imported."""
    return error_type in SYNTAX_ERRORS or bool(re.search(rf'{re.escape(file)}", line \d+, in <module>', text))


def stands_at(stack: str, file: str) -> str:
    """``labkit/dp.py, line 42``: the innermost line of ``file`` in a faulthandler stack (innermost last); may be empty."""
    places = _lines_of(file, stack)
    return f"{file}, line {places[-1]}" if places else ""


def _lines_of(file: str, text: str) -> list[str]:
    return re.findall(rf'File "[^"\n]*{re.escape(file)}", line (\d+)', text)
