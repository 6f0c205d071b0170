### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""check rejects each wrong answer with a finding that names the mistake, and accepts a right one that differs from ours.

A wrong answer is a definition that stands after the student's own in a copy of dp.py, so the later one counts. The ranks
import that copy; the claims are judged here.
"""

from __future__ import annotations

import pytest
from edited_package import LABKIT

from labkit import check as check_module
from labkit.check import check
from labkit.judging import dp_claims

# --- wrong answers ---------------------------------------------------------------------------------------------------

RIGHT_ORDER = "order = list(range(len(data))); random.Random(seed).shuffle(order)"
RIGHT_CUT = """
        edges, share = [0], 0.0
        for size in sizes:
            share += size
            edges.append(int(share * len(data) + 0.5))
        self.shards = [order[a:b] for a, b in zip(edges, edges[1:])]"""


def partitioner(order: str = RIGHT_ORDER, cut: str = RIGHT_CUT) -> str:
    """A DataPartitioner that differs from a right one in how it orders or cuts."""
    return f"""
class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        self.data = data
        {order}
        {cut.strip()}

    def use(self, rank):
        return Partition(self.data, self.shards[rank])
"""


def loader(body: str) -> str:
    return (
        "def partition_dataset(rank, world_size, dataset, batch_size=128, collate_fn=None):\n"
        "    shard = DataPartitioner(dataset, [1 / world_size] * world_size).use(rank)\n"
        f"    return DataLoader({body})\n"
    )


def averaging(body: str) -> str:
    return f"def average_gradients(model):\n    n = dist.get_world_size()\n    for p in model.parameters():\n        {body}\n"


CUT_DOWN = "n = len(data); lengths = [int(size * n) for size in sizes]; "
SLICES = "self.shards = [order[sum(lengths[:i]):sum(lengths[:i + 1])] for i in range(len(sizes))]"
CUT_UP = """
        starts = [int(sum(sizes[:i]) * len(data)) for i in range(len(sizes))]
        self.shards = [order[start : start + int(size * len(data)) + 1] for start, size in zip(starts, sizes)]"""
SPAWN = 'mp.start_processes(_run_rank, (fn, world_size, backend), nprocs=world_size, join=False, start_method="spawn")'
NO_WAIT = f"def run_processes(fn, world_size, backend):\n    {SPAWN}\n"
ONE_BY_ONE = (
    f"def run_processes(fn, world_size, backend):\n    for process in {SPAWN}.processes:\n        process.join()\n"
)
LEAVES_OTHERS = f"""
def run_processes(fn, world_size, backend):
    import time
    processes = {SPAWN}.processes
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            raise RuntimeError("a rank failed")
        time.sleep(0.05)
"""
NOT_THE_LAST = f"""
def _run_rank(rank, fn, world_size, backend):
    import time
    fn(rank, world_size, backend)
    time.sleep(20 * (rank == 2))

def run_processes(fn, world_size, backend):
    for process in {SPAWN}.processes[:2]:
        process.join()
"""
HIDES_ALL = """
def run_processes(fn, world_size, backend):
    try:
        mp.spawn(_run_rank, (fn, world_size, backend), nprocs=world_size)
    except Exception:
        pass
"""
OWN_GROUPS = """
def setup(rank, world_size, backend, master_addr="127.0.0.1", master_port=11868):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
"""
OPEN_TO_ALL = """
def setup(rank, world_size, backend, master_addr="127.0.0.1", master_port=11868):
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{master_port}", rank=rank, world_size=world_size)
"""
NO_FINALLY = (
    f"def run_processes(fn, world_size, backend):\n    context = {SPAWN}\n    while not context.join():\n        pass\n"
)
TWO_AT_MOST = "def run_processes(fn, world_size, backend):\n    mp.spawn(_run_rank, (fn, 2, backend), nprocs=2)\n"

WRONG = {
    # dp.1
    "ignores the index": (
        dp_claims.partition_follows_its_index,
        "Partition.__getitem__ = lambda self, i: self.data[i]",
        "expected data[4], data[9], data[0], data[4]",
    ),
    "rounds every size down": (
        dp_claims.each_sample_is_in_one_shard,
        partitioner(cut=CUT_DOWN + SLICES),
        "1 is in no shard",
    ),
    "rounds every size up": (
        dp_claims.each_sample_is_in_one_shard,
        partitioner(cut=CUT_UP),
        "there more than once",
    ),
    "empty shards": (
        dp_claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = [[] for _ in sizes]"),
        "10 are in no shard",
    ),
    "everything to every rank": (
        dp_claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = [order for _ in sizes]"),
        "10 are there more than once",
    ),
    "the rest to the last shard": (
        dp_claims.shards_have_their_sizes,
        partitioner(cut=CUT_DOWN + "lengths[-1] += n - sum(lengths); " + SLICES),
        "gave shards of [25, 25, 25, 28]",
    ),
    "not shuffled": (
        dp_claims.samples_are_shuffled,
        partitioner("order = list(range(len(data)))"),
        "order of the data set",
    ),
    "shuffled within each shard": (
        dp_claims.samples_are_shuffled,
        partitioner(
            "order = list(range(len(data)))",
            RIGHT_CUT + "\n        for shard in self.shards: random.Random(seed).shuffle(shard)",
        ),
        "shuffle before the cut",
    ),
    "shuffled without a seed": (
        dp_claims.ranks_cut_alike,
        partitioner("order = list(range(len(data))); random.shuffle(order)"),
        "two ranks cut different shards",
    ),
    "one random order after another": (
        dp_claims.ranks_cut_alike,
        "_random = random.Random(1234)\n" + partitioner("order = list(range(len(data))); _random.shuffle(order)"),
        "different shards the second time",
    ),
    "always the same seed": (
        dp_claims.seed_decides,
        partitioner("order = list(range(len(data))); random.Random(1234).shuffle(order)"),
        "seed=99 gave the same shards",
    ),
    "shuffles the data in place": (
        dp_claims.data_stays,
        partitioner("order = list(range(len(data))); random.Random(seed).shuffle(data)"),
        "shuffled in place",
    ),
    "drops the last batch": (
        dp_claims.loaders_cover_the_data,
        loader("shard, batch_size // world_size, collate_fn=collate_fn, drop_last=True"),
        "drop_last",
    ),
    "loads everything on every rank": (
        dp_claims.loaders_cover_the_data,
        loader("dataset, batch_size // world_size, collate_fn=collate_fn"),
        "103 are there more than once",
    ),
    "takes the global batch on each rank": (
        dp_claims.batch_size_is_global,
        loader("shard, batch_size, collate_fn=collate_fn"),
        "rank 0 took 26 at once, expected 8",
    ),
    "rounds the batch up": (
        dp_claims.batch_size_is_global,
        loader("shard, -(-batch_size // world_size), collate_fn=collate_fn"),
        "took 11 at once, expected 10",
    ),
    "forgets collate_fn": (
        dp_claims.batches_are_collated,
        loader("shard, batch_size // world_size"),
        "pass collate_fn on",
    ),
    "raises": (
        dp_claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = order[len(data) / 2]"),
        "it raised TypeError: list indices must be integers or slices, not float (labkit/dp.py, line ",
    ),
    # dp.2
    "does not wait": (dp_claims.a_process_for_each_rank, NO_WAIT, "join all of them before returning"),
    "two ranks, whatever is asked for": (dp_claims.a_process_for_each_rank, TWO_AT_MOST, "expected [[0, 3, 'gloo']"),
    "a group for each rank": (dp_claims.ranks_form_a_group, OWN_GROUPS, "found itself (0, 1, 'gloo')"),
    "listens on every interface": (dp_claims.nothing_listens_to_others, OPEN_TO_ALL, "connections from other machines"),
    "leaves processes running": (dp_claims.no_process_is_left, NOT_THE_LAST, "1 of 3 were still running"),
    "hides a failure": (dp_claims.failure_is_raised, HIDES_ALL, "as if all were well"),
    "waits for one after the other": (dp_claims.failure_ends_the_others, ONE_BY_ONE, "went on to its end all the same"),
    "is not ready for an interrupt": (dp_claims.an_interrupt_ends_the_ranks, NO_FINALLY, "in its finally block"),
    "raises and leaves the others": (dp_claims.failure_ends_the_others, LEAVES_OTHERS, "rank 0 was still running"),
    # dp.4
    "does nothing": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("pass"),
        "still that of the rank's own shard",
    ),
    "sum": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad)"),
        "3 times too large: it is the sum over 3 ranks",
    ),
    "divides twice": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad.div_(n)); p.grad /= n"),
        "3 times too small",
    ),
    "divides only": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: p.grad /= n"),
        "own shard divided by 3",
    ),
    "divides by two": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad); p.grad /= 2"),
        "neither the mean over the ranks",
    ),
    "first parameter only": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("dist.all_reduce(p.grad); p.grad /= n; break"),
        "go through every parameter",
    ),
    "rank 0 decides": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.broadcast(p.grad, 0)"),
        "is that of rank 0's shard",
    ),
    "only rank 0 knows": (
        dp_claims.all_ranks_agree,
        averaging("if p.grad is not None: dist.reduce(p.grad.div_(n), 0)"),
        "rank 0 and rank 1 differ",
    ),
    "removes the gradients": (
        dp_claims.mean_is_the_gradient_of_the_batch,
        averaging("p.grad = None"),
        "is gone (None)",
    ),
    "gives zeros for None": (
        dp_claims.no_gradient_stays_none,
        averaging(
            "if p.grad is None: p.grad = torch.zeros_like(p)\n        dist.all_reduce(p.grad)\n        p.grad /= n"
        ),
        "leave out grad None",
    ),
    "averages the weights": (
        dp_claims.weights_stay,
        averaging("p.data += 1e-3; dist.all_reduce(p.data); p.data /= n"),
        "average parameter.grad, not the parameter",
    ),
}


def task_of(claim) -> str:
    return next(task for task, claims in dp_claims.CLAIMS.items() if claim in claims)


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_and_the_finding_names_the_mistake(mistake, answer):
    claim, code, phrase = WRONG[mistake]
    answer(code)
    result = check(task_of(claim))
    assert not result.passed
    rejected = {judged.text: judged.wrong for judged in result.claims if judged.wrong}
    assert phrase in (rejected.get(check_module.text_of(claim)) or ""), result
    assert str(LABKIT.parent) not in repr(result)


def test_every_claim_has_a_wrong_answer_that_it_rejects():
    claims = {claim for claims in dp_claims.CLAIMS.values() for claim in claims}
    assert {claim for claim, _, _ in WRONG.values()} == claims


def test_a_right_answer_that_differs_from_ours_passes(answer):
    answer(partitioner() + loader("shard, batch_size=batch_size // world_size, collate_fn=collate_fn"))
    assert check("dp.1").passed
