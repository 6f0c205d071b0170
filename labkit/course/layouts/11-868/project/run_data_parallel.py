"""Train GPT-2 to translate on one device, or data parallel on several (problems 1.2 and 1.3).

    python project/run_data_parallel.py --world_size 1 --batch_size 64
    python project/run_data_parallel.py --world_size 2 --batch_size 128
    python project/run_data_parallel.py --pytest True --n_epochs 1     # gradients to tests/

Other flags are those of python -m labkit.train translate, such as --size mini.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from utils import flag_parser, save_gradients, train_flags

from labkit.base.machine import cores, usable_gpus
from labkit.dp import average_gradients, run_processes, setup
from labkit.train.command import check_flags, main

__all__ = ["average_gradients", "run_dp", "setup"]


def run_dp(rank, world_size, backend, flags):
    """Become a rank, and train as one; average_gradients is called after each backward pass."""
    if backend == "nccl":
        torch.cuda.set_device(rank)
    setup(rank, world_size, backend, master_port=int(os.environ.get("MASTER_PORT", 11868)))
    main(flags)


if __name__ == "__main__":
    parser = flag_parser(__doc__, n_epochs=10, batch_size=128)
    parser.add_argument("--world_size", default=2, type=int, help="ranks, each a process (%(default)s)")
    args, others = parser.parse_known_args()
    flags = train_flags(args, others, args.world_size)
    check_flags([*flags, "--world-size", str(args.world_size)])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // max(2, args.world_size))))
    backend = "nccl" if usable_gpus() >= max(2, args.world_size) else "gloo"  # one rank is compared with two
    with tempfile.TemporaryDirectory() as results:
        if args.pytest == "True":
            flags += ["--save-gradients", "--out", results]
        run_processes(partial(run_dp, flags=flags), args.world_size, backend)
        save_gradients(results)
