"""Tell whether what ranks have begun in their process groups has met, or would meet the next cell.

Pure: a :class:`GroupState` of each rank goes in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from labkit.ranks.messages.message import ANY, GroupState


def is_in_step(states: Sequence[GroupState | None]) -> bool:
    """Return whether all ranks have begun as many collectives in the default group, and have it."""
    return None not in states and len({tuple(state.collectives) for state in states if state}) == 1


def is_settled(states: Sequence[GroupState | None]) -> bool:
    """Return whether ranks are in step in every group, and each message has its receive."""
    known = [state for state in states if state is not None]
    begun = defaultdict(set)
    for state in known:
        for group, number in state.others.items():
            begun[group].add(number)
    return is_in_step(states) and all(len(each) == 1 for each in begun.values()) and not _open_messages(known)


def _open_messages(states: Sequence[GroupState]) -> bool:
    """Return whether sends and receives differ, in number or in their tags."""
    each = [messages for state in states for messages in state.messages]
    from_any = {(group, to) for group, _, source, to, *_ in each if source == ANY}
    left: Counter[tuple[str, int, int, str]] = Counter()
    for group, is_send, source, to, number, tags in each:
        sign, source = 1 if is_send else -1, ANY if (group, to) in from_any else source
        left[group, source, to, "messages"] += sign * number
        left[group, source, to, "tags"] += sign * tags
    return any(left.values())
