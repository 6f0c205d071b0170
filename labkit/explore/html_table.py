"""Write a table as HTML in the explorers' style."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.base.formats import short
from labkit.base.measurement_html import as_html


def table_html(table: pd.DataFrame) -> str:
    """Return a table in the explorers' style: its columns are headers, and rows that have names.

    It is made here as it follows every move of a slider, for which pandas' own takes too long.
    """
    index = not isinstance(table.index, pd.RangeIndex)
    head = "".join(f'<th scope="col">{as_html(str(name))}</th>' for name in table)
    lines = []
    for name, *cells in table.itertuples():
        row = f'<th scope="row">{as_html(str(name))}</th>' if index else ""
        lines.append(f"<tr>{row}{''.join(f'<td>{as_html(_cell(cell))}</td>' for cell in cells)}</tr>")
    corner = "<td></td>" if index else ""
    return (
        f'<table class="labkit-metrics"><thead><tr>{corner}{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _cell(value: Any) -> str:
    return "" if pd.isna(value) else short(value) if isinstance(value, float) else str(value)
