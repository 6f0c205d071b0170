"""Write a table as HTML in the explorers' style."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.base.formats import short
from labkit.base.measurement_html import as_html


def table_html(table: pd.DataFrame) -> str:
    """Return a table in the explorers' style: its columns are headers, and rows that have names.

    Sentences, which end in a full stop, begin at the left.
    It is made here as it follows every move of a slider, for which pandas' own takes too long.
    """
    index = not isinstance(table.index, pd.RangeIndex)
    columns = (table.iloc[:, k] for k in range(table.shape[1]))
    text = [' class="lk-text"' if any(str(cell).endswith(".") for cell in each) else "" for each in columns]
    head = "".join(f'<th scope="col"{look}>{as_html(str(name))}</th>' for name, look in zip(table, text, strict=True))
    lines = []
    for name, *cells in table.itertuples():
        row = f'<th scope="row">{as_html(str(name))}</th>' if index else ""
        written = (f"<td{look}>{as_html(_cell(cell))}</td>" for cell, look in zip(cells, text, strict=True))
        lines.append(f"<tr>{row}{''.join(written)}</tr>")
    corner = "<td></td>" if index else ""
    return (
        f'<table class="labkit-metrics"><thead><tr>{corner}{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _cell(value: Any) -> str:
    return "" if pd.isna(value) else short(value) if isinstance(value, float) else str(value)
