"""The training tasks, in all modes: in notebooks, by command line, and under torchrun.

    python -m labkit.train translate --world-size 2 --batch-size 128 --epochs 2
    python -m labkit.train translate --mode pipeline_parallel --n-micro 4
    torchrun --nproc-per-node 2 -m labkit.train translate --batch-size 128 --epochs 2
    python -m labkit.train glue --sync all_reduce --world-size 2

In a notebook: ``launch(translate, TranslateConfig(epochs=2), world_size=2)``, then
``metrics.merge(run.values)``; ``launch(glue, GlueConfig(sync="ddp"), world_size=2).values``. Each
value has ``steps``, a table with a row per step.

trainer                           the training loop, and ways to average gradients in it
translation_task, translation     GPT-2 learns to translate: its modes; its texts, batches and BLEU
glue_task, entailment             BERT learns which sentence follows: sync methods; texts, batches
options, command                  options as fields, which are flags; the command line
assignment_flags                  flags of the assignment's run_glue.py
rank_start                        a process becomes a rank: by torchrun, or by hand
exchange                          what rank 0 reads goes to all; what all find comes back
metrics, steps_file               a run summed up; each step's row on disk as it is taken
"""

from labkit.train.command import main
from labkit.train.glue_task import GlueConfig, glue, load_glue
from labkit.train.translation_task import TranslateConfig, load, translate

__all__ = ["GlueConfig", "TranslateConfig", "glue", "load", "load_glue", "main", "translate"]
