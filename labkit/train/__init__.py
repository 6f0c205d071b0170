"""The training tasks, in all modes: in notebooks, by command line, and under torchrun.

    python -m labkit.train translate --world-size 2 --batch-size 128 --epochs 2
    python -m labkit.train translate --mode pipeline_parallel --n-micro 4
    torchrun --nproc-per-node 2 -m labkit.train translate --batch-size 128 --epochs 2
    python -m labkit.train glue --sync all_reduce --world-size 2

In a notebook: ``launch(translate, TranslateConfig(epochs=2), world_size=2)``, then
``metrics.merge(run.values)``; ``launch(glue, GlueConfig(sync="ddp"), world_size=2).values``. Each
value has ``steps``, a table with a row per step.
"""

from labkit.train.command import main
from labkit.train.glue_task import GlueConfig, glue, load_glue
from labkit.train.translation_task import TranslateConfig, load, translate

__all__ = ["GlueConfig", "TranslateConfig", "glue", "load", "load_glue", "main", "translate"]
