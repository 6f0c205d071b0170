"""Judge a student's answer as it stands on disk: what is right, what is wrong, what to do about it.

    check("dp.1")
    check("dp.1", hint=1)     # and a hint under that; 2 and 3 say more

One file a task, such as ``dp_6.py``, with its record (minutes, points, hints …) and its claims;
``harness.py`` says how such a file is written, and what becomes of it. What an answer must not use
is in ``restrictions.toml``.
"""

from labkit.check.harness import check, points_of, record
from labkit.check.result import CheckResult, Claim

__all__ = ["CheckResult", "Claim", "check", "points_of", "record"]
