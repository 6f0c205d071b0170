"""Keep out of a cell what its reader can do nothing about: deprecations in the lab's own calls."""

from __future__ import annotations

import warnings

# The student files are the reader's own code.
_NOT_THE_READERS = r"(?:torch|labkit\.(?!(?:dp|pipe|shard)$))"
_KINDS = (FutureWarning, DeprecationWarning, PendingDeprecationWarning)


def hide_deprecations() -> None:
    """Ignore deprecations at lines of torch and of the lab, as a newer torch than ours may have.

    At the reader's own lines, and in the student files, they are shown. Much of torch deprecates by
    a UserWarning, so of these the word counts.
    """
    for kind in _KINDS:
        warnings.filterwarnings("ignore", category=kind, module=_NOT_THE_READERS)
    warnings.filterwarnings("ignore", "(?is).*deprecated", UserWarning, _NOT_THE_READERS)
