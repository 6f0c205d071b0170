"""living_bytes: what lives in a step, by closed forms."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from labkit.lab.living_bytes import KINDS, at_peak, living_bytes, peaks_mib

WIDTH, LAYERS, ROWS = 6, 3, 5
WEIGHTS = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)  # bytes
OF_A_LAYER = 4 * ROWS * WIDTH


def counted_steps():
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters())
    with living_bytes(model, optimizer) as counted:
        for _ in range(2):
            model(torch.ones(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return counted.moments


def test_bytes_are_those_of_the_tensors_and_each_storage_counts_once():
    moments = counted_steps()
    state = 2 * WEIGHTS + 4 * 2 * LAYERS  # two averages, and a count of steps for each weight and bias
    for step in (0, 3):
        forward, backward = moments.loc[step : step + 0.999], moments.loc[step + 1 : step + 1.999]
        kept = state if step else 0
        # the rows, and what each ReLU gives: kept for the ReLU and for the next layer
        assert forward[KINDS].iloc[-1].tolist() == [WEIGHTS, 0, kept, (LAYERS + 1) * OF_A_LAYER]
        assert backward[KINDS].iloc[-1].tolist() == [WEIGHTS, WEIGHTS, kept, 0]
        assert moments.loc[step + 2, KINDS].tolist() == [WEIGHTS, WEIGHTS, state, 0]
        assert moments.loc[step + 2.5, KINDS].tolist() == [WEIGHTS, 0, state, 0]


def test_the_peak_is_the_first_of_the_moments_at_which_most_is_alive():
    moments = counted_steps().iloc[:-1]
    again = moments.set_axis(moments.index + 6)
    assert at_peak(moments).alive == moments.alive.max()
    assert at_peak(pd.concat([moments, again])).name == at_peak(moments).name
    of_kinds = peaks_mib({"plain": moments.assign(**{kind: moments[kind] * 2**20 for kind in KINDS})})
    assert of_kinds["plain"].tolist() == at_peak(moments)[KINDS].tolist()
