"""The training tasks, in all modes: in notebooks, by command line, and under torchrun.

    python -m labkit.train translate --world-size 2 --batch-size 128 --epochs 2
    python -m labkit.train translate --mode 1f1b --n-micro 4 --world-size 2
    torchrun --nproc-per-node 2 -m labkit.train translate --batch-size 128 --epochs 2
    python -m labkit.train glue --sync all_reduce --world-size 2
    python -m labkit.train digits -w 2 -nr 0      in one terminal, and with -nr 1 in another

In a notebook: ``launch(translate, TranslateConfig(epochs=2), world_size=2)``, then
``metrics.merge(run.values)``; ``launch(glue, GlueConfig(sync="ddp"), world_size=2).values``.
"""

from labkit.train.command import main
from labkit.train.digits_task import DigitsConfig, train_digits
from labkit.train.glue_task import GlueConfig, glue, load_glue
from labkit.train.translation_task import TranslateConfig, load, translate

__all__ = [
    "DigitsConfig",
    "GlueConfig",
    "TranslateConfig",
    "glue",
    "load",
    "load_glue",
    "main",
    "train_digits",
    "translate",
]
