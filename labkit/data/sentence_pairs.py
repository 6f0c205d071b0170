"""German-English sentence pairs: the lab's own, Multi30k, or any parallel text."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from labkit.base import hub

SHIPPED = Path(__file__).resolve().parents[2] / "data"
_SHIPPED_WORDS = "data/translation, which ships with the lab"

# A split and the stems its files have: Multi30k calls its second half "val" and has several test
# sets.
_STEMS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test_2016_flickr", "test")}

# The assignment's data set is a loading script, which `datasets` no longer runs; the hub keeps its
# rows as Parquet too.
_TRANSLATION_ON_HUB: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bbaaaa/iwslt14-de-en-preprocess", {"revision": "refs/convert/parquet"}),
    ("bentrevett/multi30k", {}),
)


class Pairs(list[dict[str, str]]):
    """Sentence pairs, each ``{"de": ..., "en": ...}``. ``source`` says where they are from."""

    def __init__(self, pairs: Iterable[dict[str, str]], source: str):
        super().__init__(pairs)
        self.source = source


def translation(split: str, source: str = "auto") -> Pairs:
    """Return German-English sentence pairs of a split: ``"train"``, ``"validation"``, ``"test"``.

    ``"val"`` is ``"validation"``. ``source`` is ``"auto"`` (see :mod:`labkit.data`), ``"shipped"``,
    ``"hub"``, a folder, or a data set's name on the hub. A folder holds either Multi30k's files
    (``train.de`` and ``train.en``, one sentence a line, plain or ``.gz``, in the folder or in
    ``multi30k/`` below it) or a data set that ``datasets.load_dataset`` reads, with a column
    ``translation`` or columns ``de`` and ``en``.

    Raises ValueError for an unknown split, a malformed line (file and line number) or an empty data
    set, and FileNotFoundError for a source that has no such files.
    """
    split = {"val": "validation"}.get(split, split)
    if split not in _STEMS:
        raise ValueError(f"split is {split!r}, expected one of 'train', 'validation', 'test'")
    pairs, described = _translation(split, os.fspath(source))
    if not pairs:
        raise ValueError(f"{described}: the {split} split is empty, expected at least one sentence pair")
    print(f"translation, {split}: {len(pairs):,} sentence pairs from {described}")
    return pairs


def _translation(split: str, source: str) -> tuple[Pairs, str]:
    """Return the pairs and a description of their source, for the printed line."""
    if source == "auto":
        return _translation_auto(split)
    if source == "shipped":
        return _shipped(split), _SHIPPED_WORDS
    if source == "hub":
        return _translation_from_hub(split)
    if Path(source).is_dir():
        return _translation_from_folder(split, Path(source)), f"the folder {source}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        options = dict(_TRANSLATION_ON_HUB).get(source, {})
        return _load_dataset(source, split, **options), f"the hub: {source}"
    raise FileNotFoundError(
        f"source is {source!r}, which is not a folder; expected 'auto', 'shipped', 'hub', a folder, or owner/name on the hub"
    )


def _translation_auto(split: str) -> tuple[Pairs, str]:
    if named := os.environ.get("LABKIT_DATA"):
        if not Path(named).is_dir():
            raise FileNotFoundError(f"LABKIT_DATA is {named!r}, which is not a folder; correct it or unset it")
        return _from_parallel_files(split, Path(named)), f"LABKIT_DATA: {named}"
    if hub.reachable():
        try:
            return _translation_from_hub(split)
        except Exception as error:
            print(f"translation: the hub answers, but {error}")
    return _shipped(split), _SHIPPED_WORDS


def _shipped(split: str) -> Pairs:
    folder = SHIPPED / "translation"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the shipped sentences are not at {folder}: labkit is installed without its repository. "
            "Install it from a checkout (pip install -e .) or name another source"
        )
    pairs = _from_parallel_files(split, folder)
    pairs.source = "shipped"
    return pairs


def _translation_from_folder(split: str, folder: Path) -> Pairs:
    if _parallel_files(split, folder):
        return _from_parallel_files(split, folder)
    if not any(folder.iterdir()):
        raise FileNotFoundError(f"the folder {folder} is empty; {_expected_files(split)}")
    return _load_dataset(str(folder), split)


# --- parallel text files --------------------------------------------------------------------------


def _from_parallel_files(split: str, folder: Path) -> Pairs:
    files = _parallel_files(split, folder)
    if files is None:
        raise FileNotFoundError(
            f"the folder {folder} has no sentence pairs of the {split} split; {_expected_files(split)}"
        )
    german, english = (_read_sentences(path) for path in files)
    if len(german) != len(english):
        (longer, _), (shorter, n) = sorted(zip(files, map(len, (german, english)), strict=True), key=lambda p: -p[1])
        raise ValueError(
            f"{longer}, line {n + 1}: has no partner, since {shorter} ends after line {n}; "
            "expected two parallel files of the same number of lines"
        )
    return Pairs(({"de": de, "en": en} for de, en in zip(german, english, strict=True)), str(folder))


def _expected_files(split: str) -> str:
    stem = _STEMS[split][0]
    return f"expected {stem}.de and {stem}.en (or .de.gz and .en.gz), there or in multi30k/ below it"


def _parallel_files(split: str, folder: Path) -> tuple[Path, Path] | None:
    """Return the German and the English file of a split, or None where the folder has none."""
    for place in (folder / "multi30k", folder):
        for stem in _STEMS[split]:
            found = [_plain_or_gzip(place / f"{stem}.{language}") for language in ("de", "en")]
            if found[0] and found[1]:
                return found[0], found[1]
            if found[0] or found[1]:
                raise FileNotFoundError(
                    f"{found[0] or found[1]} is there without its partner; {_expected_files(split)}"
                )
    return None


def _plain_or_gzip(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def _read_sentences(path: Path) -> list[str]:
    """Return the lines of a file, plain or gzip: what ends in a newline byte."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    sentences: list[str] = []
    try:
        with opener(path, "rb") as file:
            for line in file:
                sentences.append(line.decode("utf-8-sig").strip())
                if not sentences[-1]:
                    raise ValueError(f"{path}, line {len(sentences)}: empty, expected a sentence")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {len(sentences) + 1}: not UTF-8 ({error.reason}); convert the file") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path}, after line {len(sentences)}: not a whole gzip file ({error})") from error
    return sentences


# --- the hub --------------------------------------------------------------------------------------


def _translation_from_hub(split: str) -> tuple[Pairs, str]:
    hub.require("the translation data")
    reasons = []
    for name, options in _TRANSLATION_ON_HUB:
        try:
            return _load_dataset(name, split, **options), f"the hub: {name}"
        except Exception as error:
            reasons.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    raise ConnectionError(f"none of these could be loaded: {'; '.join(reasons)}")


def _load_dataset(name_or_folder: str, split: str, **options: Any) -> Pairs:
    """Return rows of a data set. Rows with an empty side are left out, and a line says how many."""
    if not Path(name_or_folder).is_dir():
        hub.require(f"the data set {name_or_folder}")
    from datasets import load_dataset

    rows = load_dataset(name_or_folder, split=split, **options)
    columns: Sequence[str] = rows.column_names or []
    if "translation" in columns:
        found = [row["translation"] for row in rows]
    elif {"de", "en"} <= set(columns):
        found = list(rows)
    else:
        raise ValueError(
            f"{name_or_folder} has the columns {', '.join(columns)}; expected 'translation', or 'de' and 'en'"
        )
    pairs = Pairs(({"de": pair["de"].strip(), "en": pair["en"].strip()} for pair in found), name_or_folder)
    whole = Pairs((pair for pair in pairs if pair["de"] and pair["en"]), name_or_folder)
    if len(whole) < len(pairs):
        print(
            f"{name_or_folder}, {split}: {len(pairs) - len(whole)} of {len(pairs):,} pairs have an empty side: left out"
        )
    return whole
