"""Record the queues of a Pipe's workers for a site, which has no Pipe to run.

    python data/make_worker_queue.py        # pipe.1 to pipe.3 have to be filled in

Writes labkit/course/worker_queue.csv: eight blocks of a small GPT-2, four on each of two stages,
and eight micro-batches.
"""

from pathlib import Path

import torch
from torch import nn

from labkit.explore import record_queue
from labkit.models import gpt2
from labkit.pipe import Pipe, WithDevice

FILE = Path(__file__).resolve().parents[1] / "labkit" / "course" / "worker_queue.csv"

if __name__ == "__main__":
    torch.set_num_threads(1)
    blocks = gpt2("mini", n_layer=8, n_embd=128).transformer.h
    halves = [WithDevice(nn.Sequential(*blocks[k : k + 4]), f"cpu:{k // 4}") for k in (0, 4)]
    with Pipe(nn.Sequential(*halves), split_size=4) as pipe:
        events = record_queue(pipe, torch.randn(32, 64, 128))
    events.dropna(axis="columns", how="all").round(7).to_csv(FILE, index=False)
