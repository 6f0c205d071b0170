"""Every place that may have a data set is read as it is; what is malformed is named."""

import gzip
import json
import socket
from functools import partial

import pytest

from labkit import data
from labkit.base import hub

PAIRS = [{"de": "Ein Hund läuft.", "en": "A dog runs."}, {"de": "Zwei Katzen.", "en": "Two cats."}]
CLAIMS = [
    {"sentence1": 'A dog "runs.', "sentence2": "A dog moves.", "label": 0},
    {"sentence1": "Two cats.", "sentence2": "Three cats.", "label": 1},
]
HEADER = "index\tsentence1\tsentence2\tlabel"
LINES = ['0\tA dog "runs.\tA dog moves.\tentailment', "1\tTwo cats.\tThree cats.\tnot_entailment"]
EACH = pytest.mark.parametrize("read", [data.translation, data.rte])


def text(*lines):
    return "".join(line + "\n" for line in lines).encode()


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_pairs(folder, stem="train", pairs=PAIRS, packed=False):
    for language in ("de", "en"):
        lines = text(*(pair[language] for pair in pairs))
        name, lines = (f"{stem}.{language}.gz", gzip.compress(lines)) if packed else (f"{stem}.{language}", lines)
        write(folder, {name: lines})


def write_claims(folder, name="dev.tsv"):
    write(folder, {name: text(HEADER, *LINES)})


@pytest.mark.parametrize(("below", "packed"), [("", False), ("multi30k", True)])
def test_auto_takes_sentence_pairs_from_labkit_data(below, packed, tmp_path, monkeypatch, capsys):
    write_pairs(tmp_path / below, "val", packed=packed)
    taken_from_labkit_data(data.translation, ("validation", "val"), PAIRS, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("below", ["", "RTE", "glue/RTE"])
def test_auto_takes_rte_from_labkit_data(below, tmp_path, monkeypatch, capsys):
    write_claims(tmp_path / below)
    taken_from_labkit_data(data.rte, ("validation", "val", "dev"), CLAIMS, tmp_path, monkeypatch, capsys)


def taken_from_labkit_data(read, names, rows, folder, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA", str(folder))
    monkeypatch.setattr(hub, "require", lambda _: pytest.fail("the hub was asked although LABKIT_DATA has it"))
    for name in names:
        found = read(name)
        assert found == rows and found.source == str(folder)
        line = f", {names[0]}: 2 sentence pairs from the folder {folder}\n"
        assert capsys.readouterr().out.endswith(line)


@EACH
def test_without_anything_else_auto_takes_what_ships_and_says_that_it_is_generated(read, capsys):
    found = read("train")
    assert found.source == "shipped" and len(read("train", found.source)) == len(found)
    printed = capsys.readouterr().out
    assert "generated sentence pairs, which ship with the lab" in printed and "hub" not in printed


IWSLT = ("bbaaaa/iwslt14-de-en-preprocess", {"revision": "refs/convert/parquet"})
HUB = [
    (data.translation, PAIRS, "hub", IWSLT),
    (data.translation, PAIRS, "bentrevett/multi30k", ("bentrevett/multi30k", {})),
    (data.rte, CLAIMS, "hub", ("nyu-mll/glue", {"name": "rte"})),
    (data.rte, CLAIMS, "somebody/claims", ("somebody/claims", {})),
]


@pytest.mark.parametrize(("read", "rows", "source", "name"), HUB, ids=["translation", "its other", "rte", "by name"])
def test_a_name_on_the_hub_goes_straight_to_datasets(read, rows, source, name, tmp_path, monkeypatch, capsys):
    import datasets

    real, loaded = datasets.load_dataset, []
    write(tmp_path / "hub", {"train.jsonl": text(*map(json.dumps, rows))})

    def load_dataset(repository, split, **options):
        loaded.append((repository, options))
        return real(str(tmp_path / "hub"), split=split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = read("train", source)
    assert found == read("train", found.source) == rows
    assert loaded == [name, name]
    assert f"2 sentence pairs from the hub: {name[0]}\n" in capsys.readouterr().out


def test_a_hub_that_never_answers_is_asked_once_and_given_up(monkeypatch):
    monkeypatch.setattr(hub.time, "monotonic", lambda: 0.0)  # an answer is kept for a minute, and none ends in here
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name in ("hub", "somebody/sentences"):
            with pytest.raises(ConnectionError, match=r"does not answer.*HF_HUB_OFFLINE=1"):
                data.translation("val", name)
        silent.accept()[0].close()
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):  # nobody else has called
            silent.accept()


def swedish(split, source):
    return data.translation(split, source, ("sv", "en"))


SWEDISH = [{"sv": "En hund.", "en": "A dog."}, {"sv": "En till.", "en": "Another."}]
FORMS = {
    "two files": {"train.sv": text("En hund.", "En till."), "train.en": text("A dog.", "Another.")},
    "columns": {"train.jsonl": text(*map(json.dumps, SWEDISH))},
    "tab-separated columns": {"train.tsv": text("en\tsv", "A dog.\tEn hund.", "Another.\tEn till.")},
    "a translation column": {"train.jsonl": text(*(json.dumps({"translation": pair}) for pair in SWEDISH))},
}


@pytest.mark.parametrize("form", FORMS)
def test_two_other_languages_are_read_from_files_or_columns_named_by_them_in_the_order_asked_for(form, tmp_path):
    write(tmp_path, FORMS[form])
    found = swedish("train", str(tmp_path))
    assert found == SWEDISH and [*found[0]] == ["sv", "en"]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("sv", "en"), "what ships with the lab is German and English, not sv and en: name a folder"),
        (("en",), "languages are 'en', expected two codes"),
        (("en", "en"), "languages are 'en en', expected two codes"),
        (("e/n", "de"), "languages are 'e/n de', expected two codes"),
    ],
)
def test_languages_that_are_not_two_or_not_there_are_refused(languages, message, monkeypatch):
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    with pytest.raises(ValueError, match=message):
        data.translation("train", "auto", languages)


PACKED = gzip.compress(text(*[pair["de"] for pair in PAIRS] * 100))
DE, EN = text("Ein Hund.", "Noch einer."), text("A dog.", "Another.")
tsv = partial(text, HEADER, *LINES)
REFUSALS = [
    (data.rte, {"train.tsv": tsv("2\tA dog.\tno")}, "line 4: 3 fields, expected 4 with tabs between them: index, sent"),
    (data.rte, {"train.tsv": tsv("2\tA\tB\t0")}, "line 4: the label is '0', expected 'entailment'"),
    (data.rte, {"train.tsv": tsv("2\t \tB\tentailment")}, "line 4: sentence1 is empty, expected a sentence"),
    (data.rte, {"train.tsv": ""}, "line 1: the header is ''; expected index, sentence1"),
    (data.rte, {"train.tsv": text(HEADER) + b"0\tB\xe4r\tBear\tentailment\n"}, r"train\.tsv, line 2: not UTF-8"),
    (data.rte, {"train.tsv": text(HEADER)}, "the train split is empty, expected at least one sentence pair"),
    (data.rte, {"train.jsonl": '{"premise": "a", "label": 0}'}, "columns premise, label; expected 'sentence1', 'sent"),
    (data.rte, {"train.jsonl": json.dumps(CLAIMS[0] | {"label": -1})}, "train, row 0: the label is -1, expected 'ent"),
    (data.rte, {}, r"no sentence pairs of .*; expected train\.tsv, there, in RTE/ or in glue/RTE/ below it\. To get"),
    (data.translation, {"train.de": DE, "train.en": text("A dog.", " ")}, r"train\.en, line 2: empty, expected a sen"),
    (data.translation, {"train.de": DE, "train.en": EN[:7]}, r"train\.de, line 2: has no partner, since .*en ends aft"),
    (data.translation, {"train.de.gz": PACKED[:-10], "train.en": EN}, r"de\.gz, after line \d+: not a whole gzip file"),
    (data.translation, {"train.de": DE}, r"train\.de is there without its partner"),
    (data.translation, {"train.jsonl": '{"source": "a"}'}, "columns source; expected 'translation', or 'de' and 'en'"),
    (data.translation, {}, r"no sentence pairs of the train split; expected train\.de"),
    (swedish, {"train.sv": DE}, r"train\.sv is there without its partner; expected train\.sv and train\.en"),
    (swedish, {"train.jsonl": '{"de": "a", "en": "b"}'}, "columns de, en; expected 'translation', or 'sv' and 'en'"),
    (swedish, {"train.jsonl": '{"translation": {"de": "a", "en": "b"}}'}, "row 0: there is no 'sv'; it has de, en"),
]


@pytest.mark.parametrize(("read", "files", "message"), REFUSALS)
def test_what_is_malformed_or_not_there_is_named_with_its_file_and_line(read, files, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read("train", write(tmp_path, files))


@EACH
def test_a_source_or_a_split_that_there_is_not_is_refused(read, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"split is 'all', expected 'train'(, 'validation')? or '\w+'$"):
        read("all", "shipped")
    with pytest.raises(FileNotFoundError, match=r"nowhere', which is not a folder; .* In a folder, expected \w"):
        read("train", tmp_path / "nowhere")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"LABKIT_DATA is .*typo.*not a folder; correct it or unset it"):
        read("train")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path} has no sentence pairs"):
        read("train")
