"""Find a data set: in a folder, in what ships, or on the hub. Read its files line by line.

The sentences that ship are generated, by ``data/make_translation.py`` and
``data/make_entailment.py``: a score on them says nothing about Multi30k or RTE.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.base import hub
from labkit.base.texts import listed

GENERATED = Path(__file__).with_name("generated")
SHIPPED = "shipped"

Row = dict[str, Any]
UNIT = "sentence pair"


class Rows(list[Row]):
    """The rows of a data set. ``source`` says where they are from, and finds them again."""

    def __init__(self, rows: Iterable[Row], source: str):
        super().__init__(rows)
        self.source = source


@dataclass(frozen=True)
class DataSet:
    """A data set of sentence pairs, and how each of its places is read.

    - ``name``: also that of its folder of generated sentences.
    - ``splits``: their names, and for each the one under which its places have it.
    - ``from_folder(split, folder)``: the form that the data set has on the web, or None where the
      folder does not hold it. ``expected(split)`` says what was looked for.
    - ``from_table(table, name, split)``: from what ``datasets`` loads, of the hub or of a folder.
    - ``on_hub``: its names there, the first one is ``"hub"``, with options of ``load_dataset``.
    """

    name: str
    splits: dict[str, str]
    from_folder: Callable[[str, Path], list[Row] | None]
    expected: Callable[[str], str]
    from_table: Callable[[Any, str, str], list[Row]]
    on_hub: dict[str, dict[str, str]]

    def load(self, split: str, source: str | os.PathLike[str]) -> Rows:
        """Return a split, and print what was taken.

        Raises ValueError for one that there is not, and for an empty one.
        """
        if split not in self.splits:
            expected = listed(map(repr, dict.fromkeys(self.splits.values())), "or")
            raise ValueError(f"split is {split!r}, expected {expected}")
        split, source = self.splits[split], os.fspath(source)
        if source == "auto":
            source = labkit_data() or SHIPPED
        if source == "hub":
            source = next(iter(self.on_hub))
        folder = GENERATED / self.name if source == SHIPPED else Path(source)
        where = f"the folder {source}"
        rows = self.from_folder(split, folder) if folder.is_dir() else None
        if rows is None:
            options = self.on_hub.get(source, {})
            where, table = load_table(source, split, self.expected(split), **options)
            rows = self.from_table(table, source, split)
        if not rows:
            raise ValueError(f"{where}: the {split} split is empty, expected at least one {UNIT}")
        found = f"generated {UNIT}s, which ship with the lab" if source == SHIPPED else f"{UNIT}s from {where}"
        print(f"{self.name}, {split}: {len(rows):,} {found}")
        return Rows(rows, source)


def source_in_words(source: str) -> str:
    """Return where sentences are from, as it stands beside a score on them."""
    return "generated sentences (shipped)" if source == SHIPPED else source


def labkit_data() -> str | None:
    """Return the folder that ``LABKIT_DATA`` names, None if unset.

    Raises FileNotFoundError if there is no such folder.
    """
    named = os.environ.get("LABKIT_DATA")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"LABKIT_DATA is {named!r}, which is not a folder; correct it or unset it")
    return named


def load_table(source: str, split: str, expected: str, **options: str) -> tuple[str, Any]:
    """Return where a split is from, in words, and what ``datasets`` loads: of a folder or the hub.

    ``expected`` says what was looked for. Raises FileNotFoundError for a source that is not there,
    or without the split.
    """
    from datasets import load_dataset

    if Path(source).is_dir():
        where = f"the folder {source}"
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source):
        where = f"the hub: {source}"
        hub.require(f"the data set {source}")
    else:
        raise FileNotFoundError(
            f"source is {source!r}, which is not a folder; expected 'auto', 'shipped', 'hub', a folder, or "
            f"owner/name on the hub. In a folder, {expected}"
        )
    try:
        return where, load_dataset(source, split=split, **options)
    except (FileNotFoundError, ValueError) as error:  # no file that it reads, or none of the split
        raise FileNotFoundError(f"{source} has no {UNIT}s of the {split} split; {expected}") from error


def check_columns(table: Any, name: str, columns: Iterable[str]) -> None:
    """Raise ValueError unless ``table``, of what ``datasets`` loads, has these columns."""
    if not set(columns) <= set(there := table.column_names or []):
        raise ValueError(f"{name} has the columns {', '.join(there)}; expected {listed(map(repr, columns))}")


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or ``.gz``: what ends in a newline byte, without it.

    Raises ValueError, with file and line number, where it is not UTF-8 or not a whole gzip file.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for line in file:
                number += 1
                yield line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the file") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file ({error})") from error
