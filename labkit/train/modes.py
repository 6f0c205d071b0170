"""The modes of training: processes and stages of each, and what each needs to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.schedule import Schedule, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v

DATA_PARALLEL, MODEL_PARALLEL, PIPELINE_PARALLEL = "data_parallel", "model_parallel", "pipeline_parallel"
ONE_PROCESS = (MODEL_PARALLEL, PIPELINE_PARALLEL)  # it drives all devices; in the others a process is a rank
_SCHEDULES: dict[str, Callable[..., Schedule]] = {  # of ranks and micro-batches; interleaved, of stages per rank too
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zero_bubble_h1,
    "zb_v": zero_bubble_v,
}
SCHEDULED = tuple(_SCHEDULES)
MODES = (DATA_PARALLEL, *ONE_PROCESS, *SCHEDULED)


def schedule_for_mode(mode: str, n_ranks: int, n_micro: int, stages_per_rank: int) -> Schedule:
    """Return the schedule of a mode of SCHEDULED; ``stages_per_rank`` is of ``interleaved``.

    Raises ValueError for micro-batches that interleaved 1F1B cannot take in rounds.
    """
    chunks = (stages_per_rank,) if mode == "interleaved" else ()
    return _SCHEDULES[mode](n_ranks, n_micro, *chunks)


def forward_of(schedule: Schedule) -> Schedule:
    """Return the forward passes of ``schedule``, on its ranks and in its order."""
    return Schedule([[op for op in ops if op.kind == "F"] for ops in schedule.ops], f"{schedule.name}, forward only")


def describe(mode: str, n_ranks: int, devices: Sequence[object], n_micro: int, stages_per_rank: int) -> str:
    """Return what runs where, in a line. ``devices`` are those of one process."""
    if mode == DATA_PARALLEL:
        return f"{mode}: each rank has the whole model and a share of every batch"
    micro_batches = f"{n_micro} micro-batches a batch"
    if mode in ONE_PROCESS:
        kind = "virtual device" if str(devices[0]).startswith("cpu") else "GPU"
        at_once = "one after the other" if mode == MODEL_PARALLEL else micro_batches
        return f"{mode}: {len(devices)} {kind}{'s' * (len(devices) > 1)} in one process, {at_once}"
    n_stages = schedule_for_mode(mode, n_ranks, n_micro, stages_per_rank).n_stages
    return f"{mode}: {n_stages} stages on {n_ranks} ranks, {micro_batches}"


def tasks_for_mode(mode: str, world_size: int) -> tuple[str, ...]:
    """Return the students' tasks that training needs."""
    if mode == DATA_PARALLEL:
        return ("dp.1", "dp.4") if world_size > 1 else ("dp.1",)
    if mode == MODEL_PARALLEL:
        return ("dp.1",)
    return ("dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4") if mode == PIPELINE_PARALLEL else ("dp.1", "pipe.5")


def check_stages(
    mode: str, world_size: int, n_devices: int, batch_size: int, n_micro: int, stages_per_rank: int, n_blocks: int
) -> None:
    """Raise ValueError for a world size, a batch, micro-batches or blocks that do not fit."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected 1 or more")
    if mode == DATA_PARALLEL and batch_size < world_size:
        raise ValueError(
            f"batch_size is {batch_size} and world_size {world_size}: the batch is that of all ranks "
            "together, and each of them needs a sample of it"
        )
    if mode in ONE_PROCESS and world_size > 1:
        raise ValueError(
            f"mode is {mode}, in which one process drives all devices, and there are {world_size} processes: start 1. How many "
            "devices it drives is n_devices, on the command line --world-size"
        )
    if mode in (PIPELINE_PARALLEL, *SCHEDULED) and batch_size < n_micro:
        raise ValueError(
            f"batch_size is {batch_size} and n_micro {n_micro}: a batch is cut into n_micro micro-batches, and each of them "
            "needs a sample of it"
        )
    if mode in ONE_PROCESS:
        _check_blocks(mode, n_devices, n_blocks)
    if mode in SCHEDULED:
        _check_blocks(mode, world_size * {"interleaved": stages_per_rank, "zb_v": 2}.get(mode, 1), n_blocks)
        try:  # only now: a schedule of a billion ops takes the machine's memory
            schedule_for_mode(mode, world_size, n_micro, stages_per_rank)
        except ValueError as error:
            raise ValueError(f"mode is {mode}: {error}") from None


def _check_blocks(mode: str, n_stages: int, n_blocks: int) -> None:
    """Raise ValueError unless each stage can have a block of the model."""
    if n_stages <= n_blocks:
        return
    parts = f"puts it on {n_stages} devices" if mode in ONE_PROCESS else f"cuts it into {n_stages} stages"
    raise ValueError(
        f"the model has {n_blocks} blocks and mode {mode} {parts}, expected at least a block for each: take n_layer={n_stages} "
        f"(--n-layer {n_stages}), a bigger size, or fewer {'devices' if mode in ONE_PROCESS else 'ranks'}"
    )
