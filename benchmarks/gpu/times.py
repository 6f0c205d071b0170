"""Times and memory on a GPU, compared with what was predicted, and how far two clocks drift apart.

python3 benchmarks/on_gpu.py runs it, after the tests of tests/gpu, and keeps what it measures.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import statistics
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import dp, models, pipe
from labkit.cost import fit_link
from labkit.explore.schedules.measure import run_schedules
from labkit.launch import device, launch
from labkit.parallel.pipe.scheduled_stage import Stage
from labkit.schedule import Op, Schedule, gpipe, one_f_one_b
from labkit.simulate import TimedSchedule, makespan, simulate
from labkit.simulate.measures import peak_activations
from labkit.stats import repeats
from labkit.trace import barrier, span

pytestmark = pytest.mark.gpu
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TOLERANCE_S = 100e-6  # an event is recorded a moment after the host has asked for it


def batch_times(sizes, repeats=9):
    """What notebook 00 draws against the size of a batch: the forward pass of two layers."""
    layers = torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    model = torch.nn.Sequential(*layers).to(device())
    for size in sizes:
        rows = torch.randn(size, 512, device=device())
        model(rows)  # warm-up: another size may take another kernel
        for _ in range(repeats):
            with span("batch", step=size), torch.no_grad():
                model(rows)


def test_on_a_gpu_a_big_batch_costs_far_less_than_its_rows_one_by_one(measured):
    sizes = [2**i for i in range(16)]
    events = launch(batch_times, sizes, world_size=1).events
    ms = 1e3 * (events.end_s - events.start_s).groupby(events.step).median()
    for size in sizes:
        measured(f"a forward pass of notebook 00's two layers, {size} rows", ms[size], "ms")
    assert ms[sizes[-1]] < 0.1 * sizes[-1] * ms[1]


def passes_of_a_block(rows, tokens, count=12):
    """A GPT-2 block's forward pass, and backward whole and in two parts. Gives the gradients of
    both: input and weights.

    Nothing here waits for the GPU, so what is timed is its work, and not how quickly Python hands
    it out.
    """
    block = models.gpt2("gpt2", n_layer=1).transformer.h[0].to(device())
    whole, split = Stage(block, 1), Stage(copy.deepcopy(block), 1)
    x = torch.randn(rows, tokens, 768, device=device(), requires_grad=True)
    dy = torch.randn_like(x)
    for i in range(count):
        whole.forward(i, x)
        at_once = whole.backward(i, dy)
        split.forward(i, x)
        first = split.input_grad(i, dy)
        split.weight_grad(i)
    ours, theirs = ([parameter.grad for parameter in stage.module.parameters()] for stage in (whole, split))
    return [at_once, *ours], [first, *theirs]


def test_the_backward_pass_of_a_gpt2_block_costs_hardly_more_in_two_parts(measured, rows=8, tokens=1024):
    run = launch(passes_of_a_block, rows, tokens, world_size=1)
    torch.testing.assert_close(*run.values[0], rtol=1e-3, atol=1e-3)
    f, b, i, w = (run.timings.set_index("name").median_s)[["forward", "backward", "input_grad", "weight_grad"]]
    for name, seconds in {"F": f, "B": b, "I": i, "W": w}.items():
        measured(f"{name} of a GPT-2 block, {rows} × {tokens} tokens", 1e3 * seconds, "ms")
    assert max(i, w) < b
    assert i + w < 1.2 * b


def on_one_rank(schedule):
    """The ops of all ranks on one, in the order in which they start."""
    events = simulate(schedule).sort_values(["start_s", "stage"])
    kinds = {"forward": "F", "backward": "B"}
    return Schedule([[Op(kinds[row.name], int(row.stage), int(row.micro_batch)) for row in events.itertuples()]])


def memory_of_a_step(schedule, width=768, rows=4, tokens=256):
    """What a step takes on top of the model and its gradients, and what a stage keeps of a
    micro-batch, in bytes."""
    blocks = models.gpt2("gpt2", n_embd=width, n_layer=schedule.n_stages).transformer.h.to(device())
    pipeline = pipe.ScheduledPipeline(list(blocks), schedule, torch.nn.functional.mse_loss)
    x, target = torch.randn(2, rows * schedule.n_micro, tokens, width, device=device())
    pipeline.step(x, target)  # makes the gradients
    before = torch.cuda.memory_allocated()
    kept = Stage(blocks[1], 1)
    kept.forward(0, x[:rows].clone().requires_grad_())
    activation = torch.cuda.memory_allocated() - before
    del kept
    torch.cuda.reset_peak_memory_stats()
    pipeline.step(x, target)
    return torch.cuda.max_memory_allocated() - before, activation


def test_1f1bs_order_on_one_gpu_saves_the_activations_that_the_simulator_counts(measured, n=4, m=8):
    schedules = {"GPipe": on_one_rank(gpipe(n, m)), "1F1B": on_one_rank(one_f_one_b(n, m))}
    peaks = {name: peak_activations(simulate(schedule))[0] for name, schedule in schedules.items()}
    assert peaks == {"GPipe": n * m, "1F1B": peaks["1F1B"]} and peaks["1F1B"] < n * m / 2
    taken = {}
    for name, order in schedules.items():
        taken[name], activation = launch(memory_of_a_step, order, world_size=1).values[0]
        measured(
            f"a step of {name}'s order, {n} GPT-2 blocks, m = {m}: memory beside the model", taken[name] / 2**20, "MiB"
        )
    measured("what a stage keeps of a micro-batch", activation / 2**20, "MiB")
    saved = (taken["GPipe"] - taken["1F1B"]) / activation
    assert saved == pytest.approx(peaks["GPipe"] - peaks["1F1B"], rel=0.15)


def memory_after_a_step(wrap):
    """Bytes in use on the device once the gradients are averaged, without the model's own; and the
    gradients' bytes."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).to(device())
    own = torch.cuda.memory_allocated()
    wrapped = wrap(model)
    wrapped(torch.ones(4, 2048, device=device())).mean().backward()
    if isinstance(wrapped, dp.BucketedDataParallel):
        wrapped.finish_gradient_synchronization()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - own, sum(parameter.nbytes for parameter in model.parameters())


def test_gradients_that_are_views_into_buckets_save_a_copy_of_the_gradients(measured):
    ours, gradients = launch(memory_after_a_step, dp.BucketedDataParallel, world_size=1).values[0]
    theirs, _ = launch(memory_after_a_step, DistributedDataParallel, world_size=1).values[0]
    measured("memory beside the model: BucketedDataParallel", ours / 2**20, "MiB")
    measured("memory beside the model: torch's DDP", theirs / 2**20, "MiB")
    measured("memory beside the model: the gradients alone", gradients / 2**20, "MiB")
    assert theirs - ours > 0.9 * gradients


# --- drift ----------------------------------------------------------------------------------------


def mark(where):
    """Now, on the clock of a device."""
    if where.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_s(first, second):
    """Between two marks. Of events that is a float32 of milliseconds: 4 µs steps after a minute."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def anchor(where):
    """The same moment on both clocks."""
    if where.type == "cuda":
        torch.cuda.synchronize()
    event = mark(where)
    if where.type == "cuda":
        event.synchronize()
    return event, time.perf_counter()


def ops_at(times_s, count=50):
    """``count`` ops, each waited for in a span of the host, once so many seconds have passed. Gives
    of each op its step, and when it and its host span began and ended: the op in seconds since a
    first anchor on the device's clock, the host's since the same anchor on its own. Then the
    second anchor, on both clocks."""
    where = device()
    x = torch.randn(512, 512, device=where)
    for _ in range(20):
        x @ x
    (first, first_s), rows = anchor(where), []
    for step, wait_s in enumerate(times_s):
        while (left := first_s + wait_s - time.perf_counter()) > 0:
            time.sleep(left)
        for i in range(count):
            begin_s = time.perf_counter()
            with span("host", lane="host", step=step, micro_batch=i):
                begin = mark(where)
                with span("op", step=step, micro_batch=i):
                    x @ x
                end = mark(where)
                if where.type == "cuda":
                    torch.cuda.synchronize()
            rows.append((step, begin, end, begin_s - first_s, time.perf_counter() - first_s))
    second, second_s = anchor(where)
    table = [(step, between_s(first, a), between_s(first, b), *host) for step, a, b, *host in rows]
    return table, (between_s(first, second), second_s - first_s)


def test_ops_lie_in_the_host_spans_that_wait_for_them_after_a_minute_too(rig, measured):
    times_s = (0, 30, 60) if rig.on_gpu else (0, 1, 2)
    run = rig.launch(ops_at, times_s, world_size=1, timeout_s=max(times_s) + 60)
    rows, (device_s, host_s) = run.values[0]
    measured("the device's clock against the host's", 1e6 * (device_s / host_s - 1), "ppm")
    for name, rate in (("one anchor", 1.0), ("two anchors", host_s / device_s)):
        late = [(step, rate * end - host_end) for step, _, end, _, host_end in rows]
        for step, seconds in enumerate(times_s):
            value = statistics.median(each for number, each in late if number == step)
            measured(f"{name}: device end − host end of a synchronised op after {seconds} s", 1e6 * value, "µs")
        inside = [begin <= rate * start <= end for _, start, _, begin, end in rows]
        measured(f"{name}: ops that begin within their host spans", 100 * sum(inside) / len(inside), "%")
    events = run.events.set_index(["name", "step", "micro_batch"])
    ops, hosts = events.loc["op"], events.loc["host"]
    early, late = (hosts.start_s - ops.start_s).max(), (ops.end_s - hosts.end_s).max()
    measured("spans: the most by which an op begins before its host span", 1e6 * early, "µs")
    measured("spans: the most by which an op ends after its host span", 1e6 * late, "µs")
    assert early < TOLERANCE_S and late < TOLERANCE_S


# --- collectives, and what is fitted to their times -----------------------------------------------

SIZES = [2**10, 2**14, 2**18, 2**22, 2**26]  # bytes


def message_times(sizes, times=9):
    """all_reduces of all ranks, and messages from rank 0 to rank 1 and back, of each size. What
    came is checked against arithmetic."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for size in sizes:
        for i in range(times + 1):  # the first loads kernels, and is left out
            ones, back = torch.ones(size // 4, device=device()), torch.zeros(size // 4, device=device())
            barrier()
            with span("all_reduce" if i else "warm-up", lane="comm", bytes=size):
                dist.all_reduce(ones)
            if rank < 2:
                with span("there and back" if i else "warm-up", lane="comm", bytes=size):
                    dist.send(ones, 1) if rank == 0 else dist.recv(back, 0)
                    dist.recv(back, 1) if rank == 0 else dist.send(back, 0)
        assert ones[-1].item() == world_size and (rank > 1 or back[-1].item() == world_size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_messages_of_ranks_that_share_a_gpu_take_longer_the_larger_they_are(world_size, rig, measured):
    events = rig.launch(message_times, SIZES, world_size=world_size).events
    for name, hops, ring in (("all_reduce", 1, world_size), ("there and back", 2, None)):
        seconds = repeats(events, by="bytes", name=name).median() / hops
        fit = fit_link(SIZES, seconds[SIZES].tolist(), ring)
        what = f"{name if ring else 'a message'}, {world_size} ranks on one {rig.device}"
        measured(f"{what}: {SIZES[0] >> 10} KiB", 1e6 * seconds[SIZES[0]], "µs")
        measured(f"{what}: {SIZES[-1] >> 20} MiB", 1e3 * seconds[SIZES[-1]], "ms")
        measured(f"{what}: fitted bandwidth", fit.bytes_per_s / 1e6, "MB/s")
        assert seconds[SIZES[-1]] > 2 * seconds[SIZES[0]]


class Notebook:
    """Cells of a notebook, found by what stands in them, run without Jupyter on a rig's ranks."""

    def __init__(self, name, rig, **names):
        cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        self.sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self.names = {"__name__": "__main__"}  # as in a kernel
        for statement in ast.parse(without_magics(self.sources[0])).body:
            with contextlib.suppress(ImportError):  # of what Jupyter brings
                exec(ast.unparse(statement), self.names)
        self.names |= {"launch": rig.launch, "guess": lambda *_, **__: None} | names

    def run(self, *texts):
        for text in texts:
            (source,) = [source for source in self.sources if text in source]
            exec(without_magics(source), self.names)


def without_magics(source):
    return "\n".join(line for line in source.splitlines() if not line.startswith("%"))


def test_what_notebook_10_solves_for_costs_more_than_nothing(rig, measured):
    notebook = Notebook("10_gpt2_pipeline", rig, pipe=pipe)
    cells = (
        "corpus = load(",
        "import gpt2, parallelize",
        "def token_loss(",
        "scale = 8",
        "def wide_pipeline(",
        "w, c = ",
    )
    notebook.run(*cells)
    for name in ("w", "c"):
        measured(f"notebook 10 solves for {name}", 1e6 * float(notebook.names[name]), "µs")
        assert notebook.names[name] > 0


# --- explorers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_what_run_it_does_in_the_explorers_takes_about_as_long_as_was_predicted(n, rig, measured, m=8):
    (run,) = run_schedules(TimedSchedule(one_f_one_b(n, m)), emulated=False)
    assert len(run.measured) == 2 * n * m and list(run.measured.columns) == list(run.ideal.columns)
    ratio = makespan(run.measured) / makespan(run.ideal)
    measured(f"Run it, {n} {'rank' if n == 1 else 'ranks'}: measured ÷ predicted makespan", ratio, "×")
    assert not rig.on_gpu or 0.3 < ratio < 3  # where a GPU is, there is a core for each rank
