"""living_bytes: what lives in a step, by closed forms."""

from __future__ import annotations

import torch
from torch import nn

from labkit.lab.living_bytes import KINDS, living_bytes, mib_after_each

WIDTH, LAYERS, ROWS = 6, 3, 5
WEIGHTS = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)  # bytes
OF_A_LAYER = 4 * ROWS * WIDTH


def counted_steps(**options):
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters())
    with living_bytes(model, optimizer, **options) as counted:
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


def test_a_row_of_the_table_is_what_lives_when_a_phase_is_over_and_before_gradients_are_cleared():
    moments = counted_steps()
    table = mib_after_each(moments.assign(**{kind: moments[kind] * 2**20 for kind in [*KINDS, "alive"]}))
    assert table.index.tolist() == [
        f"step {n}, {phase}" for n in (1, 2) for phase in ("forward", "backward", "optimizer")
    ]
    state = 2 * WEIGHTS + 4 * 2 * LAYERS
    assert table.loc["step 1, forward"].tolist() == [WEIGHTS, 0, 0, (LAYERS + 1) * OF_A_LAYER, table.alive.iloc[0]]
    assert table.loc["step 2, optimizer", KINDS].tolist() == [WEIGHTS, WEIGHTS, state, 0]


def test_on_an_emulated_device_the_block_ends_where_more_is_alive_and_says_so(capsys):
    highest = counted_steps().alive[:2.9].max()  # of the first step
    moments = counted_steps(device_mib=highest / 2**20)
    assert moments.alive.iloc[-1] > highest and moments.index[-1] >= 3
    assert "out of memory in" in (printed := capsys.readouterr().out) and "of step 2" in printed
