"""Hold what others published, for comparison with the reader's own and with predictions.

RTE: bert-base-cased at length 128, four GPUs with 16 pairs each, NCCL, three epochs of 39 steps;
from the report in the public repository wenzhe-li/cos598d_sp24. Its seconds are means over the
first epoch without its first step.

Playbook: a model of 1B parameters, data parallel on 8 to 256 H100s, sequences of 4,096 tokens; from
the benchmarks of the Ultra-Scale Playbook (Hugging Face, 2025).

Homework: GPT-2 on two GPUs beside one, homework 4 of CMU's 11-868; how many times as fast an epoch
is, median and range of 13 public repositories.

Overlap: the fraction of a step that sending gradients during backward saves on 32 GPUs; from Li et
al., VLDB 2020, arXiv 2006.15704.
"""

from __future__ import annotations

from labkit.stats import Interval

RTE_LOSSES = {"one process": (0.763, 0.775, 0.716, 0.752, 0.726)}  # of the first five iterations
RTE_ACCURACY = {  # after each epoch
    "one process": (0.614, 0.628, 0.653),
    "gather_scatter": (0.610, 0.628, 0.628),
    "all_reduce": (0.610, 0.628, 0.628),
    "ddp": (0.607, 0.628, 0.632),
}
RTE_SECONDS = {"gather_scatter": 3.730, "all_reduce": 0.836, "ddp": 0.438}  # of an iteration
_PLAYBOOK_TOKENS_PER_S = {8: 39_273, 16: 37_610, 32: 35_368, 64: 31_112, 128: 24_494, 256: 15_700}  # of each GPU
PLAYBOOK_SPEED = {n: tokens / 39_273 for n, tokens in _PLAYBOOK_TOKENS_PER_S.items()}  # of a GPU; of eight: 1
HOMEWORK_SPEEDUP = {"weak": Interval(1.74, 1.38, 1.94)}
OVERLAP_GAINS = {"ResNet50, NCCL": 0.38, "BERT, NCCL": 0.352, "ResNet50, gloo": 0.268, "BERT, gloo": 0.215}
