"""Hold what others published, for comparison with the reader's own and with predictions.

RTE: bert-base-cased at length 128, four GPUs with 16 pairs each, NCCL, three epochs of 39 steps;
from the report in the public repository wenzhe-li/cos598d_sp24.
"""

from __future__ import annotations

RTE_LOSSES = {"one process": (0.763, 0.775, 0.716, 0.752, 0.726)}  # of the first five iterations
RTE_ACCURACY = {  # after each epoch
    "one process": (0.614, 0.628, 0.653),
    "gather_scatter": (0.610, 0.628, 0.628),
    "all_reduce": (0.610, 0.628, 0.628),
    "ddp": (0.607, 0.628, 0.632),
}
