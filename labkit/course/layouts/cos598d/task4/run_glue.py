"""Record three steps of task 2(a), 2(b) or 3 in torch's profiler: task 4 of COS 568.

    python run_glue.py --sync ddp [the assignment's flags] --world_size 4 --local_rank 0
    torchrun --nproc-per-node 4 run_glue.py --sync ddp [the assignment's flags]

``--sync`` is gather_scatter, all_reduce or ddp. Each rank writes a timeline for ui.perfetto.dev,
runs/task4/{sync}_{rank}.json.gz, and rank 0 prints how many per cent of a step are communication.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.lab import ladder
from labkit.train import main

THREE_STEPS = {"wait": 1, "warmup": 1, "active": 3, "repeat": 1}

if __name__ == "__main__":
    if "--sync" not in sys.argv[1:-1]:
        sys.exit("which way? Give --sync gather_scatter, --sync all_reduce or --sync ddp")
    sync, ranks = sys.argv[sys.argv.index("--sync") + 1], set[int]()

    def count_step(*_):
        ranks.add(dist.get_rank())
        profiler.step()

    with torch.profiler.profile(schedule=torch.profiler.schedule(**THREE_STEPS)) as profiler:
        register_optimizer_step_post_hook(count_step)
        main(["glue", "--iterations", "6", *sys.argv[1:]])
    if not ranks:
        sys.exit("no step was taken here: start each rank with --local_rank, or all with torchrun, and with --do_train")
    folder, (rank,) = Path("runs", "task4"), ranks
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"{sync}_{rank}.json.gz"))
    if rank == 0:
        print(ladder.communication(ladder.ops_of(profiler)))
