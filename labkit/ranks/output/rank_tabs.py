"""Show what ranks have displayed: equal outputs once, text in a line per rank, the rest in tabs.

Tabs are HTML and CSS alone, so they also work in a notebook without its kernel and in an exported
page. Where styles are stripped, each rank's output stands under its number.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.base.measurement_html import Lines, as_html
from labkit.base.texts import listed

Output = dict[str, Any]  # see labkit.ranks.notebook.cells.CellRun
_ByRank = dict[int, list[Output]]

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif")

# Radio buttons: the checked one shows the panel after its heading. In a form of their own they are
# a group of their own, whatever else is on the page.
_STYLE = """<style>
div.labkit-ranks > form { display: flex; flex-wrap: wrap; margin: 0; }
div.labkit-ranks div.labkit-rank { order: 1; margin: 0; }
div.labkit-ranks div.labkit-rank > label { display: block; padding: 8px 14px; cursor: pointer;
  border-bottom: 3px solid transparent; }
div.labkit-ranks div.labkit-rank input { position: absolute; opacity: 0; }
div.labkit-ranks div.labkit-rank:not(:has(:checked)) strong { font-weight: normal; }
div.labkit-ranks div.labkit-rank:has(:checked) > label { border-bottom-color: var(--jp-brand-color1, #1976d2); }
div.labkit-ranks div.labkit-rank:has(:focus-visible) > label { outline: 2px solid var(--jp-brand-color1, #1976d2);
  outline-offset: -2px; }
div.labkit-ranks div.labkit-rank + div { order: 2; display: none; width: 100%; padding-top: 8px;
  border-top: 1px solid var(--jp-border-color1, #bdbdbd); overflow-x: auto; }
div.labkit-ranks div.labkit-rank:has(:checked) + div { display: block; }
@media print {
  div.labkit-ranks > form { display: block; }
  div.labkit-ranks div.labkit-rank + div { display: block; }
}
</style>"""


def cell_outputs(shown: Mapping[int, Sequence[Output]], world_size: int) -> list[Any]:
    """Return what a cell shows of what its ranks have displayed (see CellRun in cells.py).

    What is equal on all ranks that showed something stands once: ``all 4 ranks: tensor([6.])``.
    Text that differs has a line per rank: ``rank 0: …``. Everything else is in a tab per rank, and
    its text form has a line per rank. Outputs are compared one by one, and last expressions with
    each other; where ranks displayed different numbers of outputs, all of a rank stay together.
    """
    outputs: list[Any] = []
    for form, group in itertools.groupby(_rows(shown), _form):
        rows = list(group)
        if form is _tabs:  # they share one set of tabs, if they can
            rows = _joined(rows)
        outputs += [form(row, world_size) for row in rows]
    return outputs


def _rows(shown: Mapping[int, Sequence[Output]]) -> Iterator[_ByRank]:
    """Yield outputs of ranks that belong together."""
    for kind in ("display", "result"):
        of_kind = {rank: [each for each in shown[rank] if each["kind"] == kind and each["data"]] for rank in shown}
        by_rank = {rank: outputs for rank, outputs in sorted(of_kind.items()) if outputs}
        if len({len(outputs) for outputs in by_rank.values()}) > 1:
            yield by_rank
            continue
        for outputs in zip(*by_rank.values(), strict=True):
            yield {rank: [output] for rank, output in zip(by_rank, outputs, strict=True)}


def _form(row: _ByRank) -> Callable[[_ByRank, int], Any]:
    """Return the function that shows a row of outputs."""
    first, *others = ([(output["data"], output["metadata"]) for output in outputs] for outputs in row.values())
    if all(each == first for each in others):
        return _once
    return _lines if all(map(_is_text, itertools.chain(*row.values()))) else _tabs


def _joined(rows: list[_ByRank]) -> list[_ByRank]:
    """Return rows as one if they are of the same ranks."""
    if any(row.keys() != rows[0].keys() for row in rows):
        return rows
    return [{rank: [output for row in rows for output in row[rank]] for rank in rows[0]}]


def _is_text(output: Output) -> bool:
    return bool(output["data"].keys() == {"text/plain"})


class RankOutputs:
    """What ranks have displayed, as HTML and as text."""

    def __init__(self, page: str, text: str):
        self._page, self._text = page, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._page


# --- three forms ----------------------------------------------------------------------------------


def _once(row: _ByRank, world_size: int) -> Any:
    label, outputs = _ranks(row, world_size), next(iter(row.values()))
    text = "\n".join(_labelled(label, output) for output in outputs)
    if all(map(_is_text, outputs)):
        return Lines(text, aligned=True)
    content = "".join(map(_content, outputs))
    return RankOutputs(f'{_STYLE}<div class="labkit-ranks"><p>{label}:</p>{content}</div>', text)


def _lines(row: _ByRank, world_size: int) -> Lines:
    return Lines(_text(row), aligned=True)


def _tabs(row: _ByRank, world_size: int) -> RankOutputs:
    panels = {rank: "".join(map(_content, outputs)) for rank, outputs in row.items()}
    name, first = _group_name("".join(panels.values())), next(iter(panels))
    # A form with a disabled button is never sent, whichever key is pressed in it. JupyterLab would
    # take the arrow keys for its own, and list an h4 among the notebook's headings.
    tabs = "".join(
        f'<div class="labkit-rank" role="heading" aria-level="4"><label><input type="radio" name="{name}"'
        f'{" checked" * (rank == first)} data-lm-suppress-shortcuts="true"><strong>rank {rank}</strong></label></div>'
        f"<div>{page}</div>"
        for rank, page in panels.items()
    )
    return RankOutputs(
        f'{_STYLE}<div class="labkit-ranks"><form aria-label="output of each rank">'
        f"<button disabled hidden></button>{tabs}</form></div>",
        _text(row),
    )


_names: Counter[str] = Counter()


def _group_name(page: str) -> str:
    """Return a name for radio buttons: the same in each run of a notebook, another in each cell."""
    digest = hashlib.sha256(page.encode()).hexdigest()[:12]
    _names[digest] += 1
    return f"labkit-rank-{digest}-{_names[digest]}"


def _ranks(row: _ByRank, world_size: int) -> str:
    match [*row]:
        case [rank]:
            return f"rank {rank}"
        case ranks if len(ranks) == world_size:
            return "both ranks" if world_size == 2 else f"all {world_size} ranks"
        case ranks:
            return f"ranks {listed(ranks)}"


# --- one output -----------------------------------------------------------------------------------


def _text(row: _ByRank) -> str:
    return "\n".join(_labelled(f"rank {rank}", output) for rank, outputs in row.items() for output in outputs)


def _labelled(label: str, output: Output) -> str:
    """Return the text of an output after its label; further lines keep their columns."""
    line_end = "\n" + " " * (len(label) + 2)
    return f"{label}: {_plain_text(output).replace(chr(10), line_end)}"


def _plain_text(output: Output) -> str:
    return str(output["data"].get("text/plain", f"<{listed(output['data'])}>"))


def _content(output: Output) -> str:
    """Return an output as HTML: in the richest form that needs no kernel."""
    data = output["data"]
    if "text/html" in data:
        return str(data["text/html"])
    for kind in _IMAGES:
        if kind in data:
            return _image(kind, output)
    if "text/latex" in data:
        return f"<div>{html.escape(data['text/latex'])}</div>"
    text = as_html(str(data.get("text/markdown", _plain_text(output))))
    return f'<pre style="white-space: pre-wrap; margin: 0">{text}</pre>'


def _image(kind: str, output: Output) -> str:
    data = output["data"][kind]
    if kind == "image/svg+xml":  # in a page of its own, where its names meet no other rank's
        data = base64.b64encode(data.encode()).decode()
    about = {"alt": _plain_text(output)} | output["metadata"].get(kind, {})
    known = " ".join(f'{key}="{html.escape(str(about[key]))}"' for key in ("alt", "width", "height") if key in about)
    return (
        f'<p><img src="data:{kind};base64,{"".join(data.split())}" {known} style="max-width: 100%; height: auto"></p>'
    )
