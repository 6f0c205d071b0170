"""Observe an answer in processes of its own, so that whatever it does stays there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any

from labkit.check import plain
from labkit.check.failure import WAITS_FOR_RANKS, Source, stopped_by
from labkit.check.result import ENDS, IS_IMPORTED, Claim

TIMEOUT_S = 30.0  # for one case; an answer that is right takes a few seconds at most for all of them
START_S = 300.0  # until ranks run: on a busy machine it takes long to import torch
MAX_PRINTED = 20_000  # characters of what an answer prints that are shown
GROUP_IS_GONE = (
    "destroyed the process group, so nothing can be communicated after it. "
    "Leave out destroy_process_group: the code that formed the group ends it"
)


class Observer(contextlib.ExitStack):
    """Observes each case once, in ranks that stay."""

    def __init__(self, source: Source, waits: str, known: Mapping[str, str], seeds: Mapping[int, int]):
        super().__init__()
        self.observations: dict[int, Any] = {}  # by the case's id
        self._source, self._waits, self._known, self._seeds = source, waits, known, seeds
        self._started: dict[int | None, Any] = {}

    def observe(self, case: Any) -> Claim | None:
        """Keep what is seen of ``case``, by each rank if it has a ``world_size``.

        Or return what stops its answer.
        """
        from labkit.launch import LaunchTimeout, RankError

        if id(case) in self.observations:
            return None
        world_size = getattr(case, "world_size", None)
        waits = self._waits or ("" if world_size is None else WAITS_FOR_RANKS)
        try:
            _wait_for_a_first_rank()
            found = self._ranks(world_size).run(_observed, case, f"labkit.{self._source.path.stem}").values
        except (plain.NotPlain, RankError, LaunchTimeout) as error:
            what = stopped_by(error, self._source, waits)
            what += "".join(f". {meaning}" for known, meaning in self._known.items() if re.search(known, what))
            if self._source.fails_on_import(error):
                return Claim(IS_IMPORTED, what)
            needs_another = getattr(error, "error_type", "") == "TodoError"
            return Claim(ENDS, what if needs_another else self.named(case, what))
        gone = [rank for rank, (_, has_group) in enumerate(found) if not has_group]
        if world_size is not None and gone:
            return Claim(ENDS, self.named(case, f"rank {gone[0]} {GROUP_IS_GONE}"))
        seen = [seen for seen, _ in found]
        self.observations[id(case)] = seen[0] if world_size is None else seen
        return None

    def named(self, case: Any, text: str) -> str:
        """Return what is wrong in a case, after its name, and the seed that it was drawn with."""
        seed = self._seeds.get(id(case))
        drawn = "" if seed is None else f" (drawn with seed={seed})"
        return f"{case}{drawn}: {text}" if str(case) or drawn else text

    def _ranks(self, world_size: int | None) -> Any:
        """Return ``world_size`` ranks in a process group, or one without."""
        from labkit.launch import WarmRanks
        from labkit.ranks.processes.plan import decide

        if world_size not in self._started:
            plan = decide(world_size or 1, "gloo", START_S, threads=1, init=world_size is not None)
            ranks = WarmRanks(plan, plain.loads, MAX_PRINTED)
            self._started[world_size] = self.enter_context(ranks)
            ranks.run(int)  # they wait while the server imports a package, which is not the answer's time
            ranks.timeout_s = TIMEOUT_S
        return self._started[world_size]


@functools.cache
def _wait_for_a_first_rank() -> None:
    """Wait until ranks can be started, so that no answer is blamed for the time that takes."""
    from labkit.launch import launch
    from labkit.ranks.processes import server_handle

    server_handle.forks.start_ahead()
    import torch  # noqa: F401  # for the claims; meanwhile the server imports it as well

    launch(int, world_size=1, backend="gloo", init=False, timeout_s=START_S)


# --- in the rank ----------------------------------------------------------------------------------


def _observed(case: Any, student: str) -> list[Any]:
    """Return as plain data what a case observes, and whether there still is a process group.

    The student's module is imported first, so it binds no function that the case replaces.
    """
    import torch.distributed as dist

    importlib.import_module(student)
    return [plain.pack(case.observe()), dist.is_initialized()]
