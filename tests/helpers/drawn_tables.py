"""Small tables that the tests of labkit.draw, labkit.draw.charts and labkit.draw.picture draw."""

import pandas as pd

from labkit.trace import event_table

ALT = "Two ranks compute and then meet."

RESULTS = pd.DataFrame(
    {
        "setting": ["1 device", "2 devices", "1 device", "2 devices"],
        "source": ["measured", "measured", "published", "published"],
        "time_s": [12.0, 15.0, 3.5, 2.25],
        "low_s": [11.5, 14.0, 3.25, 2.125],
        "high_s": [12.5, 16.0, 3.75, 2.375],
    }
)

SWEEP = pd.DataFrame({"batch": [4, 1, 2], "time_s": [0.4, 0.1, 0.2], "model_s": [0.41, 0.11, 0.21]})
SWEEPS = {  # the same by source
    source: dict(SWEEP[["batch", column]].to_numpy().tolist())
    for source, column in {"measured": "time_s", "predicted": "model_s"}.items()
}


def event(rank, name, start, end, lane="compute", micro_batch=None, bucket=None):
    return (rank, lane, name, None, None, micro_batch, bucket, None, start, end)


def two_ranks(scale=1.0):
    rows = []
    for rank in (0, 1):
        rows += [event(rank, "forward", i, i + 1, micro_batch=i) for i in range(3)]
        rows += [event(rank, "backward", 3 + 2 * i, 5 + 2 * i, micro_batch=i) for i in range(3)]
        rows += [event(rank, "all_reduce", 6, 10, lane="comm", bucket=0)]
    return event_table([(*row[:8], row[8] * scale, row[9] * scale) for row in rows])
