"""Measure how long RTE takes from its files to token numbers.

    python benchmarks/bench_train.py [--source FOLDER]

Prints the seconds of reading and of tokenising, without the time of imports: the least of several
rounds. Exits with 1 if both together take more than 2 s. Without a folder of RTE it takes what
ships with the lab, which is somewhat smaller, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from pathlib import Path

from labkit import data
from labkit.train import entailment

MOST_S = 2.0
ROUNDS = 5
BESIDE_THE_PROJECT = Path(__file__).resolve().parents[2] / "shared" / "data"


def read_and_tokenise(source: str) -> dict[str, float]:
    """Return seconds of reading both splits, training a tokenizer, and all that a run loads."""
    times: dict[str, float] = {}
    began = time.perf_counter()
    rows = data.rte("train", source)
    data.rte("validation", source)
    times["read"] = time.perf_counter() - began
    began = time.perf_counter()
    entailment.train_tokenizer(rows, 2000)
    times["train the tokenizer"] = time.perf_counter() - began
    began = time.perf_counter()
    entailment.load_corpus(source)
    times["all: load_corpus"] = time.perf_counter() - began
    return times


def measure(source: str, rounds: int) -> dict[str, float]:
    """Return the least of the rounds: noise only adds. The first one imports, and is left out."""
    with contextlib.redirect_stdout(io.StringIO()):
        measured = [read_and_tokenise(source) for _ in range(1 + rounds)][1:]
    return {part: min(times[part] for times in measured) for part in measured[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    there = (BESIDE_THE_PROJECT / "glue" / "RTE").is_dir()
    parser.add_argument(
        "--source", default=str(BESIDE_THE_PROJECT) if there else "shipped", help="as data.rte takes it"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    seconds = measure(options.source, options.rounds)
    total = seconds["all: load_corpus"]
    if options.json:
        print(json.dumps({"source": options.source, "seconds": seconds}))
    else:
        print(f"entailment from {options.source}, without imports")
        for part, each in seconds.items():
            print(f"{part:<22} {each:8.3f} s")
        print(f"at most {MOST_S:g} s: {'yes' if total <= MOST_S else 'NO'}")
    return 0 if total <= MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
