"""The shipped sentences are right German and English; every source is read as it is, and what is
malformed is named."""

from __future__ import annotations

import gzip
import importlib.util
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from num2words import num2words

from labkit import data
from labkit.base import hub
from labkit.data import sources

PROJECT = Path(__file__).resolve().parents[2]
FILES = [f"{split}.{language}" for split in ("train", "val", "test_2016_flickr") for language in ("de", "en")]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_translation", PROJECT / "data" / "make_translation.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_source_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without a network and without LABKIT_DATA, unless a test says otherwise."""
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets-cache")


# --- the sentences that ship ----------------------------------------------------------------------


def test_the_script_makes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROJECT / "data" / "make_translation.py", tmp_path], check=True)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (sources.SHIPPED / "translation" / name).read_bytes(), name


def test_number_words_are_those_of_num2words(maker: ModuleType) -> None:
    for n in [*range(2200), *range(2200, 1_000_000, 7919)]:
        assert maker.number_de(n) == num2words(n, lang="de")
        assert maker.number_en(n) == num2words(n, lang="en").replace(",", "")
    for n in range(1, 100):
        assert maker.ordinal_de(n) == num2words(n, lang="de", to="ordinal") + "n"  # as it stands after "am"
        assert maker.ordinal_en(n) == num2words(n, lang="en", to="ordinal")
    for year in range(1700, 2025):
        assert maker.year_de(year) == num2words(year, lang="de", to="year")
        english = num2words(year, lang="en", to="year" if year < 2000 else "cardinal")
        assert maker.year_en(year) == english


def _minutes_de(words: str) -> int:
    """Read a spoken German time, by a grammar that knows nothing of the generator."""
    number = {num2words(n, lang="de"): n for n in range(60)} | {"ein": 1, "Viertel": 15}
    if found := re.fullmatch(r"(\w+) Uhr(?: (\w+))?", words):
        return 60 * number[found[1]] + (number[found[2]] if found[2] else 0)
    found = re.fullmatch(r"(?:(\w+) (vor|nach) )?(halb )?(\w+)", words)
    assert found, words
    shift = number[found[1]] * (-1 if found[2] == "vor" else 1) if found[1] else 0
    return 60 * number[found[4]] - (30 if found[3] else 0) + shift


def _minutes_en(words: str) -> int:
    number = {num2words(n): n for n in range(60)} | {"half": 30, "a quarter": 15}
    if found := re.fullmatch(r"(.+) (past|to) (\w+)", words):
        return 60 * number[found[3]] + number[found[1]] * (-1 if found[2] == "to" else 1)
    hour, _, rest = words.partition(" ")
    return 60 * number[hour] + (0 if rest == "o'clock" else number[rest.removeprefix("oh ")])


def test_each_minute_of_the_clock_is_said_rightly_in_both_languages(maker: ModuleType) -> None:
    assert maker.clock(2, 30) == ("halb drei", "half past two")
    for hour in range(1, 13):
        for minute in range(60):
            german, english = maker.clock(hour, minute)
            expected = (60 * hour + minute) % 720
            assert _minutes_de(german) % 720 == expected, german
            assert _minutes_en(english) % 720 == expected, english


def test_no_german_sentence_occurs_twice_within_or_across_splits() -> None:
    sentences = [pair["de"] for split in ("train", "val", "test") for pair in data.translation(split, "shipped")]
    assert len(sentences) == len(set(sentences)) == 4700


def test_training_never_shows_a_held_out_number_and_test_shows_all_of_them(maker: ModuleType) -> None:
    words = {n: (num2words(n, lang="de"), num2words(n), num2words(n, to="ordinal")) for n in maker.HELD_OUT}
    train = data.translation("train", "shipped")
    german, english = ("\n".join(pair[side] for pair in train) for side in ("de", "en"))
    test = " ".join(pair["de"] for pair in data.translation("test", "shipped"))
    for n, (de, en, ordinal) in words.items():
        assert not re.search(de, german.lower()), n
        assert not re.search(rf"\b({en}|{ordinal})\b", english.lower()), n
        assert de in test.lower(), n


def test_training_shows_each_unit_and_each_ten_of_the_held_out_numbers(maker: ModuleType) -> None:
    train = " ".join(pair["en"] for pair in data.translation("train", "shipped")).lower()
    shown = {n for n in range(21, 100) if n % 10 and re.search(rf"\b{num2words(n)}\b", train)}
    assert {n % 10 for n in shown} >= {n % 10 for n in maker.HELD_OUT}
    assert {n // 10 for n in shown} >= {n // 10 for n in maker.HELD_OUT}
    assert not shown & maker.HELD_OUT


# --- where the pairs come from --------------------------------------------------------------------


def write_pairs(folder: Path, stem: str, pairs: list[tuple[str, str]], packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(("de", "en")):
        text = "".join(pair[side] + "\n" for pair in pairs).encode()
        path = folder / f"{stem}.{language}{'.gz' * packed}"
        path.write_bytes(gzip.compress(text) if packed else text)


PAIRS = [("Ein Hund läuft.", "A dog runs."), ("Zwei Katzen.", "Two cats.")]
ROWS = [{"de": de, "en": en} for de, en in PAIRS]


def test_real_multi30k_has_its_published_sizes(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(shared_data))
    sizes = {split: len(data.translation(split)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 29_000, "validation": 1_014, "test": 1_000}
    assert data.translation("val")[0]["en"] == "A group of men are loading cotton onto a truck"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["", "multi30k"])
def test_labkit_data_is_taken_first(
    packed: bool, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path / below, "val", PAIRS, packed)
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("the hub was asked although LABKIT_DATA is set"))
    pairs = data.translation("val")
    assert pairs == ROWS
    assert pairs.source == str(tmp_path)
    assert capsys.readouterr().out == f"translation, validation: 2 sentence pairs from LABKIT_DATA: {tmp_path}\n"


def test_without_anything_else_auto_takes_what_ships_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = data.translation("test")
    assert pairs == data.translation("test", pairs.source)
    assert "400 sentence pairs from data/translation, which ships with the lab" in capsys.readouterr().out


def test_a_hub_that_never_answers_is_asked_once_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.time, "monotonic", lambda: 0.0)  # an answer is kept for a minute, and none ends in here
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert data.translation("val").source == "shipped"
        with pytest.raises(ConnectionError, match=r"does not answer.*HF_HUB_OFFLINE=1"):
            data.translation("val", "hub")
        silent.accept()[0].close()
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):  # nobody else has called
            silent.accept()


def test_a_hub_that_answers_is_reachable_unless_offline_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not hub.reachable()
        monkeypatch.delenv("HF_HUB_OFFLINE")

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert hub.reachable(5.0)


def test_the_hub_is_asked_for_the_assignments_data_and_then_for_multi30k(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    real, asked = datasets.load_dataset, []
    datasets.Dataset.from_list(ROWS).to_json(tmp_path / "train.jsonl")

    def load_dataset(name: str, **options: str) -> object:
        asked.append((name, options))
        if name.startswith("bbaaaa"):
            raise ConnectionError("gone")
        return real(str(tmp_path), split=options["split"])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    pairs = data.translation("train")
    assert (pairs, pairs.source) == (ROWS, "bentrevett/multi30k")
    assert asked == [
        ("bbaaaa/iwslt14-de-en-preprocess", {"split": "train", "revision": "refs/convert/parquet"}),
        ("bentrevett/multi30k", {"split": "train"}),
    ]
    assert "2 sentence pairs from the hub: bentrevett/multi30k" in capsys.readouterr().out


def test_a_local_folder_in_the_hubs_parquet_form_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import datasets

    rows = [*ROWS, {"de": "Allein.", "en": " "}]
    for split in ("train", "validation", "test"):  # the form of iwslt14-de-en-preprocess: one column of dictionaries
        path = tmp_path / "de-en" / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_list([{"translation": row} for row in rows]).to_parquet(path)
    assert data.translation("validation", str(tmp_path / "de-en")) == ROWS
    assert "1 of 3 pairs have an empty side: left out" in capsys.readouterr().out


def test_a_local_folder_in_the_hubs_json_form_is_read(tmp_path: Path) -> None:
    import datasets

    for split in ("train", "val", "test"):  # the form of bentrevett/multi30k: two columns
        datasets.Dataset.from_list(ROWS).to_json(tmp_path / f"{split}.jsonl")
    assert data.translation("val", str(tmp_path)) == ROWS


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_line_is_named_with_its_file_and_number(packed: bool, tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", [*PAIRS, ("Noch einer.", "  ")], packed)
    with pytest.raises(ValueError, match=r"train\.en(\.gz)?, line 3: empty, expected a sentence"):
        data.translation("train", str(tmp_path))


def test_files_of_different_length_are_named_with_the_first_line_too_many(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", PAIRS)
    (tmp_path / "train.en").write_text("A dog runs.\n")
    with pytest.raises(ValueError, match=r"train\.de, line 2: has no partner, since .*train\.en ends after line 1"):
        data.translation("train", str(tmp_path))


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").write_bytes("Ein Hund.\nEin Bär.\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.de, line 2: not UTF-8"):
        data.translation("train", str(tmp_path))


@pytest.mark.parametrize("damage", [lambda whole: whole[:-10], lambda whole: whole[:20] + bytes(9) + whole[29:]])
def test_a_gzip_file_that_ends_early_or_is_damaged_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_pairs(tmp_path, "train", PAIRS * 100, packed=True)
    whole = (tmp_path / "train.de.gz").read_bytes()
    (tmp_path / "train.de.gz").write_bytes(damage(whole))
    with pytest.raises(ValueError, match=r"train\.de\.gz, after line \d+: not a whole gzip file"):
        data.translation("train", str(tmp_path))


def test_lines_are_counted_by_newlines_alone(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", [("Erst\u2028dann.", "First\x0bthen."), PAIRS[0]])
    assert len(data.translation("train", str(tmp_path))) == 2


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", [])
    with pytest.raises(ValueError, match="the train split is empty"):
        data.translation("train", str(tmp_path))


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split is 'dev', expected 'train', 'validation' or 'test'"):
        data.translation("dev", "shipped")


def test_a_source_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="which is not a folder; expected 'auto', 'shipped', 'hub'"):
        data.translation("train", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"no sentence pairs of the train split; expected train\.de"):
        data.translation("train", str(tmp_path))


def test_a_labkit_data_folder_without_the_files_is_an_error_not_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no sentence pairs of the train split; expected train\.de"):
        data.translation("train")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"LABKIT_DATA is .*typo.*not a folder; correct it or unset it"):
        data.translation("train")


def test_a_half_pair_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("Ein Hund.\n")
    with pytest.raises(FileNotFoundError, match=r"train\.de is there without its partner"):
        data.translation("train", str(tmp_path))


def test_a_data_set_with_other_columns_is_refused(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_list([{"source": "a", "target": "b"}]).to_json(tmp_path / "train.jsonl")
    with pytest.raises(ValueError, match="has the columns source, target; expected 'translation', or 'de' and 'en'"):
        data.translation("train", str(tmp_path))


def test_an_installation_without_the_repository_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHIPPED", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"installed without its repository.*pip install -e"):
        data.translation("train", "shipped")
