"""Problem 2.3, from labkit/pipe.py: GPT-2 on several devices, with or without a pipeline."""

import torch
from transformers import GPT2LMHeadModel

from labkit import models
from labkit.parallel.pipe.gpt2 import take_out_of_pipe
from labkit.pipe import prepare_pipeline_parallel


class GPT2LMHeadModelParallel(GPT2LMHeadModel):
    """GPT-2 that goes on all GPUs, or on two virtual devices where there are not two."""

    def parallelize(self):
        n_gpus = torch.cuda.device_count()
        models.parallelize(self, [f"cuda:{i}" for i in range(n_gpus)] if n_gpus > 1 else ["cpu:0", "cpu:1"])

    def _prepare_pipeline_parallel(self, split_size=1):
        self.parallelize()
        prepare_pipeline_parallel(self, split_size)

    def _finalize_pipeline_parallel(self):
        take_out_of_pipe(self)
