"""Sentence pairs, of which the second may follow from the first: RTE, its form, or generated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from labkit.data.sources import DataSet, Row, Rows, check_columns, lines

LABELS = ("entailment", "not_entailment")  # a label's number is its place, as in GLUE
_STEMS = {"train": "train", "validation": "dev"}  # the labels of RTE's test split are not public
_COLUMNS = ("sentence1", "sentence2", "label")


def rte(split: str, source: str | os.PathLike[str] = "auto") -> Rows:
    """Return the rows of a split of RTE (recognising textual entailment, of GLUE), or of its like.

    Splits are ``"train"`` and ``"validation"``, which is also ``"val"`` and ``"dev"``. A row is
    ``{"sentence1": ..., "sentence2": ..., "label": ...}``; label 0, entailment, says that sentence2
    follows from sentence1, and 1 that it does not.

    ``source`` is ``"auto"`` (see :mod:`labkit.data`), ``"shipped"`` (generated pairs, not RTE's),
    ``"hub"``, a folder, or a data set's name on the hub. A folder holds either GLUE's files
    (``train.tsv`` and ``dev.tsv``, in the folder, in ``RTE/`` or in ``glue/RTE/`` below it; fields
    are separated by tabs, and a quote is a character like any other) or a data set that
    ``datasets.load_dataset`` reads.

    Raises ValueError for an unknown split, a malformed line (file and line number), an unknown
    label or an empty data set, and FileNotFoundError for a source that has no such files.
    """
    return _RTE.load(split, source)


# --- GLUE's files ---------------------------------------------------------------------------------


def _from_glue_folder(split: str, folder: Path) -> list[Row] | None:
    for place in (folder, folder / "RTE", folder / "glue" / "RTE"):
        if (path := place / f"{_STEMS[split]}.tsv").is_file():
            return _read_tsv(path)
    return None


def _expected(split: str) -> str:
    return (
        f"expected {_STEMS[split]}.tsv, there, in RTE/ or in glue/RTE/ below it. To get it: "
        "https://dl.fbaipublicfiles.com/glue/data/RTE.zip, unpacked (docs/training.md has the command)"
    )


def _read_tsv(path: Path) -> list[Row]:
    text = enumerate(lines(path), 1)
    header = next(text, (1, ""))[1].split("\t")
    if not set(_COLUMNS) <= set(header):
        raise ValueError(
            f"{path}, line 1: the header is {', '.join(header)!r}; "
            f"expected index, {', '.join(_COLUMNS)}, with tabs between them"
        )
    rows = []
    for number, line in text:
        fields = line.split("\t")
        if len(fields) != len(header):
            expected = f"{len(header)} with tabs between them: {', '.join(header)}"
            raise ValueError(f"{path}, line {number}: {len(fields)} fields, expected {expected}")
        rows.append(_row(dict(zip(header, fields, strict=True)), f"{path}, line {number}"))
    return rows


def _row(fields: Row, where: str) -> Row:
    """Return a row with its label as a number; it may be a word in ``fields``."""
    label = fields["label"]
    if label not in (*LABELS, 0, 1):
        raise ValueError(f"{where}: the label is {label!r}, expected {LABELS[0]!r} or {LABELS[1]!r}")
    for column in _COLUMNS[:2]:
        if not fields[column].strip():
            raise ValueError(f"{where}: {column} is empty, expected a sentence")
    number = LABELS.index(label) if label in LABELS else label
    return {column: fields[column] for column in _COLUMNS[:2]} | {"label": number}


# --- its other form -------------------------------------------------------------------------------


def _from_table(table: Any, name: str, split: str) -> list[Row]:
    check_columns(table, name, _COLUMNS)
    return [_row(row, f"{name}, {split}, row {number}") for number, row in enumerate(table)]


_RTE = DataSet(
    name="entailment",
    splits={"train": "train", **dict.fromkeys(("validation", "val", "dev"), "validation")},
    from_folder=_from_glue_folder,
    expected=_expected,
    from_table=_from_table,
    on_hub={"nyu-mll/glue": {"name": "rte"}},
)
