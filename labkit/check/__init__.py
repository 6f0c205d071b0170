"""Judge a student's answer as it stands on disk: what is right, what is wrong, what to do about it.

    check("dp.1")

One file a task, such as ``dp_6.py``; how such a file is written, and what becomes of it:
``harness.py``.
"""

from labkit.check.harness import check
from labkit.check.result import CheckResult, Claim

__all__ = ["CheckResult", "Claim", "check"]
