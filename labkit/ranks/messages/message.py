"""Define what the notebook and a rank say to each other. A rank's messages are JSON, never code.

The notebook's are pickled: a call is a CallerEnvironment with the GroupNumber or None, and the
function with its arguments as the payload.
"""

from __future__ import annotations

import json
import linecache
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from labkit.ranks.messages.connection import Buffer

# --- what the notebook sends ----------------------------------------------------------------------


class GroupNumber(NamedTuple):
    """Which process group a rank is to be in for a call, and the port of the store where it forms.

    A call without one, of ranks that run cells, goes on with the group that is there.
    """

    number: int
    port: int


class EndCall(NamedTuple):
    """Ask a rank to leave a call: its ``number``-th."""

    number: int


class Question(NamedTuple):
    """Ask a rank what needs no main thread: ``answer(*args)`` gives the message to send back."""

    answer: Callable[..., Message]
    args: tuple[Any, ...]


# --- what a rank sends ----------------------------------------------------------------------------


class Progress(NamedTuple):
    """How far a rank has come in a loop that :func:`labkit.launch.progress` watches.

    ``depth`` is how many loops of this description it is in, ``number`` how many of this depth came
    before it in the call. Once it is ``over``, no more is heard of it.
    """

    desc: str
    done: int
    total: int | None
    depth: int = 0
    number: int = 0
    over: bool = False


class GroupState(NamedTuple):
    """What a rank has begun in its process groups, since the default one was formed.

    ``collectives``: how many, for each backend of the default group. ``others``: how many in each
    other group, by its name. ``messages``: of each kind the group, whether they were sent, and the
    numbers of the sender and the receiver in the group; how many, and the sum of their tags.
    """

    collectives: Sequence[int]
    others: dict[str, int]
    messages: Sequence[tuple[str, bool, int, int, int, int]]


class Done(NamedTuple):
    """The function has returned ``value``, which stays pickled until it is wanted."""

    rows: list[tuple[Any, ...]]  # of spans, see labkit.trace
    notes: list[str]  # what was emulated
    group_state: GroupState | None  # None: the group is gone
    value: Buffer = b""
    calls: int = 0  # of the notebook, so far: this answers the last
    unsent: str = ""  # why there is no value


class Failed(NamedTuple):
    """The function, or the way to it, has raised: the exception as text, and when it was caught."""

    at_ns: int
    error_type: str
    message: str
    traceback: str
    is_consequence: bool  # of another rank's, which is the one to report
    group_state: GroupState | None = None  # as in Done
    calls: int = 0  # as in Done


class Shown(NamedTuple):
    """What a cell has shown: a mime bundle, as plain data.

    ``kind`` is "display", "result" for the last expression, "update" of what was displayed under
    ``display_id`` before, or "clear": forget what was shown.
    """

    kind: str
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str = ""


class Completed(NamedTuple):
    """What may stand for a word of the notebook's ``number``-th question."""

    number: int
    matches: list[str]


class Place(NamedTuple):
    """A line of the reader's code, and the columns of the call in it, where they are known."""

    file: str
    line: int
    left: int = 0
    right: int = 0

    def call(self) -> str:
        """Return the source of the call, "" where it is not known."""
        line = linecache.getline(self.file, self.line).encode()
        return line[self.left : self.right].decode(errors="replace")


NOWHERE = Place("", 0)
ANY = -1  # the peer of a receive from any rank


class Begun(NamedTuple):
    """A collective or message that a rank has begun: the ``number``-th of its group.

    ``ranks`` are those of its group. A message has a ``peer``, by its number in the group or ANY,
    and a ``tag``; its number is how many there were of this kind, to or from this peer. It is
    ``done`` while nothing waits for it.
    ``root`` is the rank that a collective goes to or comes from, -1 where it is not known. It
    ``is_limited`` if a time limit that the reader gave its group ends it before ``timeout_s`` does.
    """

    group: str
    ranks: Sequence[int]
    number: int
    name: str
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    done: bool
    place: Place
    peer: int | None = None
    tag: int = 0
    at_ns: int = 0
    root: int = -1
    is_limited: bool = False


RANKS, GPU, THREADS = "ranks", "gpu", "threads"  # that a thread may wait for: others, its GPU, threads of its process


class RankState(NamedTuple):
    """A rank that has stood still since ``since_ns``, and still did at ``at_ns`` (perf_counter).

    ``place`` is where, ``function`` that of torch.distributed in which it is, if any, and ``root``
    the rank that it names as source or destination there, -1 if it names none. ``wait`` is what its
    main thread waits for, as :mod:`labkit.ranks.faults.thread_wait` has it: RANKS, GPU, THREADS or
    "". ``can_progress``: one of its threads waits for nothing, as far as can be told. ``unknown``
    says why its collectives are not known, if they are not.
    """

    calls: int  # of the notebook, so far
    in_call: bool  # else it has returned from the last
    since_ns: int
    at_ns: int
    place: Place
    function: str
    root: int
    wait: str
    can_progress: bool
    begun: Sequence[Begun]
    unknown: str
    called: bool = True  # the call is for this rank; else it is as if it had returned


Message = Progress | Done | Failed | Shown | Completed | RankState
_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (Progress, Done, Failed, Shown, Completed, RankState)}


def encode(message: Message) -> tuple[bytes, Buffer]:
    """Return a message as JSON, its class and its fields, and its payload as it is."""
    fields = message._asdict()
    payload = fields.pop("value", b"")  # of a Done
    return json.dumps([type(message).__name__, fields], default=_own_number).encode(), payload


def _own_number(number: Any) -> int | float:
    """Return another library's number, such as a numpy integer, as Python's own."""
    return operator.index(number) if hasattr(type(number), "__index__") else float(number)


def decode(data: Buffer, payload: Buffer) -> Message:
    """Return the message that these bytes are. Raises ValueError if they are something else."""
    try:
        name, fields = json.loads(data)
        if name == "Done":
            fields["value"] = payload
        if state := fields.get("group_state"):
            fields["group_state"] = GroupState(*state)
        if name == "RankState":
            fields["place"] = Place(*fields["place"])
            begun = [Begun(*each) for each in fields["begun"]]
            fields["begun"] = [each._replace(place=Place(*each.place)) for each in begun]
        return _CLASSES[name](**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"this is not a message: {data!r:.60}") from None
