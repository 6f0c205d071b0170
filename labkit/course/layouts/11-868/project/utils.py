"""The assignment's flags, and where it keeps the ranks' gradients."""

import argparse
import shutil
from pathlib import Path

from labkit.base.machine import usable_gpus

ROOT = Path(__file__).resolve().parents[1]
GPT2 = ["--size", "gpt2", "--vocab-size", "50257"]  # the assignment's model; on CPUs a smaller one trains


def flag_parser(description, n_epochs, batch_size):
    """Return a parser of the flags that both scripts have, with their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--pytest", default="False", choices=("True", "False"), help="train on one batch, and keep its gradients")
    add("--dataset", default="auto", help="a folder, a data set's name on the hub, or shipped (%(default)s)")
    add("--model_max_length", default=128, help="tokens of a sentence pair, at most (%(default)s)")
    add("--n_epochs", default=n_epochs, help="times through the training pairs (%(default)s)")
    add("--batch_size", default=batch_size, type=int, help="pairs in a step, of all ranks together (%(default)s)")
    add("--learning_rate", help="the highest, by default what suits the model")
    add("--benchmark_only", action="store_true", help="do not translate the test sentences")
    add("--max_batches", default=0, type=int, help="batches in an epoch; 0: all")
    return parser


def train_flags(args, others, n_devices):
    """Return what ``args`` say, and the ``others`` after it, as flags of labkit.train translate."""
    one_batch = args.pytest == "True"
    flags = GPT2 if usable_gpus() >= max(2, n_devices) else []  # one device is compared with two
    flags = [*flags, "--source", args.dataset, "--max-length", str(args.model_max_length)]
    flags += ["--epochs", "1" if one_batch else str(args.n_epochs), "--batch-size", str(args.batch_size)]
    flags += ["--learning-rate", args.learning_rate] if args.learning_rate else []
    flags += ["--no-bleu"] if one_batch or args.benchmark_only else []
    max_batches = 1 if one_batch else args.max_batches
    flags += ["--limit", str(max_batches * args.batch_size)] if max_batches else []
    return ["translate", *flags, *others]


def save_gradients(results):
    """Copy the ranks' gradients from the folder of ``results`` to where the tests read them."""
    (ROOT / "tests").mkdir(exist_ok=True)
    for file in sorted(Path(results).glob("model?_gradients.pth")):
        print("gradients:", shutil.copy(file, ROOT / "tests"))
