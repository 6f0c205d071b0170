"""What notebook 04 says in numbers is so."""

import re
from pathlib import Path

import nbformat
import pytest

from labkit.cost import ETHERNET_1G, Link, ring_all_reduce_s
from labkit.dp import MIB, assign_buckets
from labkit.explore.buckets.gradients import predicted_gradients
from labkit.explore.buckets.reducer import best_cap, predict
from labkit.explore.buckets.widget import CAPS_MB
from labkit.models import gpt2
from labkit.parallel.emulated_step import EmulatedStep

CELLS = nbformat.read(Path(__file__).parents[2] / "notebooks" / "04_overlap.ipynb", as_version=4).cells
TEXT = " ".join("\n".join(cell.source for cell in CELLS).split())


def said(pattern):
    """Return the numbers that the notebook's text has in the groups of ``pattern``."""
    found = re.search(pattern, TEXT)
    assert found, f"the text has no {pattern}"
    return [float(number) for number in found.groups()]


def test_sizes_and_buckets_of_the_small_gpt2_are_those_of_the_text():
    settings = {"n_layer": 4, "n_embd": 128, "vocab_size": 512, "n_positions": 64}
    assert all(f'"{name}": {value}' in TEXT for name, value in settings.items())
    sizes = [parameter.nbytes for parameter in gpt2("mini", **settings).parameters()]
    one_s = ring_all_reduce_s(sum(sizes), 2, ETHERNET_1G.latency_s, ETHERNET_1G.bytes_per_s)
    assert said(r"([\d.]+) MB take (\d+) ms in one message") == [round(sum(sizes) / 1e6, 1), round(1000 * one_s)]
    assert said(r"for each of the (\d+) parameters") == [len(sizes)]
    assert len(assign_buckets(sizes, MIB // 2)) == 7 and "seven of about 0.5 MiB" in TEXT
    assert len(assign_buckets(sizes, 4 * MIB)) == 1 and "4 MiB holds all gradients" in TEXT


def test_an_emulated_step_computes_as_long_as_the_text_says():
    (forward_s, backward_s) = said(r"EmulatedStep\(forward_s=([\d.]+), backward_s=([\d.]+)\)")
    step = EmulatedStep(forward_s, backward_s)
    assert said(r"instead of computing\*\*, (\d+) ms a step") == [round(1000 * step.predict(1)["end_s"].max())]
    n_kib, latency_us, mb_per_s = said(
        r"four buckets of (\d+) KiB over a slow emulated link, (\d+) µs and ([\d.]+) MB/s"
    )
    assert list(step.bucket_bytes) == 4 * [1024 * n_kib]
    assert (step.link.latency_s, step.link.bytes_per_s) == pytest.approx((latency_us * 1e-6, mb_per_s * 1e6))


def test_where_the_best_bucket_size_of_the_whole_gpt2_moves_with_the_latency():
    gradients = predicted_gradients("gpt2")
    plans = {cap: assign_buckets(gradients.sizes_bytes, cap * MIB, MIB) for cap in CAPS_MB}
    slow, quick = (Link(latency_s, 12.5e9) for latency_s in (200e-6, 20e-6))
    assert said(r"with 200 µs the best size is (\d+) MiB") == [best_cap(gradients, plans, 8, slow)]
    ones, best = (predict(gradients, plans[cap], 8, slow).end_s for cap in (1, 50))
    assert 1.7 < ones / best < 2.0 and "1 MiB makes the pass almost twice as long" in TEXT
    assert predict(gradients, plans[500], 8, quick).hidden_share < 0.05 and "almost nothing hides" in TEXT
    last = assign_buckets(gradients.sizes_bytes, 25 * MIB, MIB)[-1]
    n_bucket, n_mib = said(r"Bucket (\d+) stays exposed: in it is `wte`, (\d+) MiB")
    assert n_mib == gradients.sizes_bytes[0] // MIB and 0 in last
    assert n_bucket == len(assign_buckets(gradients.sizes_bytes, 25 * MIB, MIB)) - 1
