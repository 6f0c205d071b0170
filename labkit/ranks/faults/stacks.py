"""Show a dump of a rank's stacks as tracebacks, without the lab's threads and frames."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Mapping

from labkit.base.texts import listed
from labkit.ranks.faults.frames import RANKS_FOLDER, WRAPPERS, is_readers
from labkit.ranks.faults.hang import in_words
from labkit.ranks.messages.message import NOWHERE, Place

FINISHED = "finished"  # in place of the stack of a rank that has answered
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)
_IPYTHON = os.sep + os.path.join("IPython", "core", "")
_HEADING = re.compile(r"(Current thread|Thread) 0x")  # of a thread, in a dump
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")  # what is not ASCII, in a dump


def readable_stacks(dump: str) -> str:
    """Return a faulthandler dump in the form of a traceback, without the lab's threads and frames.

    It has source lines, and the most recent call comes last.
    """
    threads = _ESCAPED.sub(_character, dump).split("Extension modules:")[0].split("\n\n")
    texts = [text for text in map(_readable_stack, threads) if text]
    stacks = list(
        {_HEADING.sub("", text): text for text in texts}.values()
    )  # one that was asked twice wrote them twice
    if len(stacks) == 1 and _HEADING.match(stacks[0]):
        return stacks[0].partition("\n")[2]
    return "\n\n".join(stacks)


def where_ranks_are(stacks: Mapping[int, str]) -> str:
    """Return a line for each place of the reader's code in which ranks are, by readable stacks.

    The main thread comes last in them. A stack that says FINISHED is of a rank that has returned.
    """
    ranks_at: dict[str, list[int]] = {}
    for rank, stack in stacks.items():
        places = [Place(file, int(line)) for file, line in _FRAME.findall(stack) if is_readers(file)]
        place = in_words(places[-1] if places else NOWHERE).removeprefix("in ")
        ranks_at.setdefault("" if stack == FINISHED else place, []).append(rank)
    return "\n".join(
        f"rank{'s' * (len(ranks) > 1)} {listed(ranks)} "
        + (f"{'were' if len(ranks) > 1 else 'was'} in {place}" if place else "had returned")
        for place, ranks in ranks_at.items()
    )


def _character(escaped: re.Match[str]) -> str:
    code = int(escaped[1] or escaped[2] or escaped[3], 16)
    return escaped[0] if 0xD800 <= code < 0xE000 else chr(code)  # half of a character cannot be shown


def _readable_stack(thread: str) -> str:
    heading, frames = [], []
    for line in thread.splitlines():
        file, _, rest = line.strip().removeprefix('File "').partition('", line ')
        if file in WRAPPERS:
            continue
        if file.startswith(RANKS_FOLDER):  # below it stand only frames of the lab
            break
        if not rest:
            heading.append(line.replace("most recent call first", "most recent call last"))
            continue
        number = rest.split(" ")[0]  # ???, where the thread was on its way from one line to another
        source = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
        frames.append(f"{line}\n    {source}" if source else line)
    while frames and _IPYTHON in frames[-1]:  # on its way to a rank's cell
        frames.pop()
    if not frames and any(map(_HEADING.match, heading)):
        return ""
    return "\n".join([*heading, *reversed(frames)]).strip()
