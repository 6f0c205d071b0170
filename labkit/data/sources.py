"""Where a data set comes from: its places, the order in which they are tried, and reading lines."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from labkit.base import hub
from labkit.base.texts import listed

SHIPPED = Path(__file__).resolve().parents[2] / "data"

Found = TypeVar("Found", bound=Sized)


class Rows(list[dict[str, Any]]):
    """The rows of a data set. ``source`` says where they are from, and finds them again."""

    def __init__(self, rows: Iterable[dict[str, Any]], source: str):
        super().__init__(rows)
        self.source = source


@dataclass(frozen=True)
class DataSet(Generic[Found]):
    """A data set and how each of its places is read. ``name`` and ``unit`` are for printed lines.

    - ``splits``: their names, and for each the one under which its places have it.
    - ``shipped(split)``, which ``shipped_words`` describe.
    - ``from_folder(split, folder)``: the form that the data set has on the web, or None where the
      folder does not hold it. ``expected(split)`` says what was looked for.
    - ``from_table(table, name, split)``: from what ``datasets`` loads, of the hub or of a folder.
    - ``on_hub``: names, the first one that loads is taken, each with options of ``load_dataset``.
    - ``labkit_data_may_lack_it``: whether a ``LABKIT_DATA`` without it is passed over, or an error.
    """

    name: str
    unit: str
    splits: dict[str, str]
    shipped: Callable[[str], Found]
    shipped_words: str
    from_folder: Callable[[str, Path], Found | None]
    expected: Callable[[str], str]
    from_table: Callable[[Any, str, str], Found]
    on_hub: tuple[tuple[str, dict[str, Any]], ...]
    labkit_data_may_lack_it: bool = False

    def load(self, split: str, source: str | os.PathLike[str]) -> Found:
        """Return a split, and print what was taken.

        Raises ValueError for one that there is not, and for an empty one.
        """
        if split not in self.splits:
            expected = listed(map(repr, dict.fromkeys(self.splits.values())), "or")
            raise ValueError(f"split is {split!r}, expected {expected}")
        split = self.splits[split]
        found, described = self._find(split, os.fspath(source))
        if not len(found):
            raise ValueError(f"{described}: the {split} split is empty, expected at least one {self.unit}")
        print(f"{self.name}, {split}: {len(found):,} {self.unit}s from {described}")
        return found

    def _find(self, split: str, source: str) -> tuple[Found, str]:
        """Return the data and a description of their source."""
        if source == "auto":
            return self._first_there(split)
        if source == "shipped":
            return self.shipped(split), self.shipped_words
        if source == "hub":
            return self._from_hub(split)
        if Path(source).is_dir():
            return self._from_named_folder(split, Path(source)), f"the folder {source}"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
            hub.require(f"the data set {source}")
            return self._named_on_hub(split, source, dict(self.on_hub).get(source, {}))
        raise FileNotFoundError(
            f"source is {source!r}, which is not a folder; expected 'auto', 'shipped', 'hub', a folder, or "
            f"owner/name on the hub. In a folder, {self.expected(split)}"
        )

    def _first_there(self, split: str) -> tuple[Found, str]:
        if named := os.environ.get("LABKIT_DATA"):
            if not Path(named).is_dir():
                raise FileNotFoundError(f"LABKIT_DATA is {named!r}, which is not a folder; correct it or unset it")
            if (found := self.from_folder(split, Path(named))) is not None:
                return found, f"LABKIT_DATA: {named}"
            if not self.labkit_data_may_lack_it:
                raise self._missing(split, Path(named))
        if hub.reachable():
            try:
                return self._from_hub(split)
            except Exception as error:
                print(f"{self.name}: the hub answers, but {error}")
        return self.shipped(split), self.shipped_words

    def _from_named_folder(self, split: str, folder: Path) -> Found:
        found = self.from_folder(split, folder)
        return self.load_folder(split, folder) if found is None else found

    def load_folder(self, split: str, folder: Path) -> Found:
        """Return a split of a folder that ``datasets`` reads; FileNotFoundError if it does not."""
        from datasets import load_dataset

        try:
            table = load_dataset(str(folder), split=split)
        except (FileNotFoundError, ValueError) as error:  # no file that it reads, or none of the split
            raise self._missing(split, folder) from error
        return self.from_table(table, str(folder), split)

    def _missing(self, split: str, folder: Path) -> FileNotFoundError:
        return FileNotFoundError(
            f"the folder {folder} has no {self.unit}s of the {split} split; {self.expected(split)}"
        )

    def _from_hub(self, split: str) -> tuple[Found, str]:
        hub.require(f"the {self.name} data")
        reasons = []
        for name, options in self.on_hub:
            try:
                return self._named_on_hub(split, name, options)
            except Exception as error:
                reasons.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        raise ConnectionError(f"none of these could be loaded: {'; '.join(reasons)}")

    def _named_on_hub(self, split: str, name: str, options: dict[str, Any]) -> tuple[Found, str]:
        from datasets import load_dataset

        return self.from_table(load_dataset(name, split=split, **options), name, split), f"the hub: {name}"


def check_columns(table: Any, name: str, columns: Iterable[str]) -> None:
    """Raise ValueError unless ``table``, of what ``datasets`` loads, has these columns."""
    if not set(columns) <= set(there := table.column_names or []):
        raise ValueError(f"{name} has the columns {', '.join(there)}; expected {listed(map(repr, columns))}")


def shipped_folder(name: str) -> Path:
    """Return a folder of ``data/``. Raises FileNotFoundError where labkit is without it."""
    folder = SHIPPED / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the shipped sentences are not at {folder}: labkit is installed without its repository. "
            "Install it from a checkout (pip install -e .) or name another source"
        )
    return folder


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or ``.gz``: what ends in a newline byte, without it.

    Raises ValueError, with file and line number, for what is not UTF-8 or not a whole gzip file.
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
