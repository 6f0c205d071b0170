"""Judge a student's answer as it stands on disk: what is right, what is wrong, what to do about it.

    check("dp.1")
    check("dp.1", hint=1)     # and a hint under that; 2 and 3 say more

One file a task, such as ``dp_6.py``, with its record (minutes, points, hints …) and its claims.

harness        how such a file is written, and what becomes of it
observer       an answer runs in processes of its own
plain          what these send is data, never code
closeness      whether a gradient is the expected one, or a multiple of it
calls          an answer's calls to torch.distributed, recorded
shares         what the claims of shard.1 have in common
failure        what stopped an answer, and at which line
restrictions   what an answer must not use: restrictions.toml
result         the verdict: claims, findings, points
"""

from labkit.check.harness import check, points_of, record
from labkit.check.result import CheckResult, Claim

__all__ = ["CheckResult", "Claim", "check", "points_of", "record"]
