"""Every place that may have a data set is read as it is, in order; what is malformed is named."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections import Counter
from functools import partial

import datasets
import numpy as np
import pytest
from PIL import Image

from labkit import data
from labkit.base import hub
from labkit.data import sources

PAIRS = [{"de": "Ein Hund läuft.", "en": "A dog runs."}, {"de": "Zwei Katzen.", "en": "Two cats."}]
CLAIMS = [
    {"sentence1": 'A dog "runs.', "sentence2": "A dog moves.", "label": 0},
    {"sentence1": "Two cats.", "sentence2": "Three cats.", "label": 1},
]
HEADER = "index\tsentence1\tsentence2\tlabel"
LINES = ['0\tA dog "runs.\tA dog moves.\tentailment', "1\tTwo cats.\tThree cats.\tnot_entailment"]
EACH = pytest.mark.parametrize("read", [data.translation, data.rte, data.digits])


def text(*lines):
    return "".join(line + "\n" for line in lines).encode()


def write(folder, files):
    """Write texts by their names, and return the folder."""
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


def picture(number, side=28):
    """A white square on black, as bright as its number."""
    return Image.fromarray(np.full((side, side), 25 * number, dtype=np.uint8))


def write_pictures(folder, split="validation", numbers=(7, 0), sides=(28, 28)):
    """Write pictures as ylecun/mnist has them."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    images = [picture(*each) for each in zip(numbers, sides, strict=True)]
    rows = datasets.Dataset.from_dict({"image": images, "label": list(numbers)}, features=features)
    rows.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def rows_of(found):
    return found.labels.tolist() if isinstance(found, data.Digits) else found


# --- the places, in their order -------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "multi30k"])
@pytest.mark.parametrize("packed", [False, True])
def test_sentence_pairs_in_labkit_data_are_taken_first(below, packed, tmp_path, monkeypatch, capsys):
    write_pairs(tmp_path / below, "val", packed=packed)
    taken_from_labkit_data(data.translation, ("validation", "val"), PAIRS, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("below", ["", "RTE", "glue/RTE"])
def test_rte_in_labkit_data_is_taken_first(below, tmp_path, monkeypatch, capsys):
    write_claims(tmp_path / below)
    taken_from_labkit_data(data.rte, ("validation", "val", "dev"), CLAIMS, tmp_path, monkeypatch, capsys)


def test_mnist_in_labkit_data_is_taken_first(tmp_path, monkeypatch, capsys):
    write_pictures(tmp_path / "mnist", "test")
    found = taken_from_labkit_data(data.digits, ("test",), [7, 0], tmp_path, monkeypatch, capsys)
    assert found.images.shape == (2, 1, 28, 28) and found[0][0].unique().tolist() == pytest.approx([175 / 255])
    assert rows_of(data.digits("test", tmp_path / "mnist")) == rows_of(data.digits("test", found.source)) == [7, 0]


def taken_from_labkit_data(read, names, rows, folder, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA", str(folder))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("the hub was asked although LABKIT_DATA has it"))
    for name in names:
        found = read(name)
        assert rows_of(found) == rows and found.source.startswith(str(folder))
        printed = capsys.readouterr().out
        assert f", {names[0]}: 2 " in printed and printed.endswith(f"s from LABKIT_DATA: {folder}\n")
    return found


def test_real_data_has_its_published_sizes_and_labels(shared_data, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(shared_data))
    sizes = {split: len(data.translation(split)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 29_000, "validation": 1_014, "test": 1_000}
    assert data.translation("val")[0]["en"] == "A group of men are loading cotton onto a truck"
    for split, n in (("train", 2_490), ("dev", 277)):  # counted in the file as bytes, without the reader
        raw = (shared_data / "glue" / "RTE" / f"{split}.tsv").read_bytes()
        rows = data.rte(split)
        assert len(rows) == n
        labels = Counter(row["label"] for row in rows)
        assert labels == {0: raw.count(b"\tentailment\n"), 1: raw.count(b"\tnot_entailment\n")}
    assert (rows[0]["sentence2"], rows[0]["label"]) == ("Christopher Reeve had an accident.", 1)


@EACH
def test_without_anything_else_auto_takes_what_ships_and_says_so(read, capsys):
    found = read("train")
    assert found.source == "shipped" and len(read("train", found.source)) == len(found)
    printed = capsys.readouterr().out
    assert "which ships" in printed and "hub" not in printed


IWSLT = ("bbaaaa/iwslt14-de-en-preprocess", {"revision": "refs/convert/parquet"})
HUB = [
    (data.translation, PAIRS, [IWSLT, ("bentrevett/multi30k", {})]),
    (data.rte, CLAIMS, [("nyu-mll/glue", {"name": "rte"})]),
    (data.digits, [4, 2], [("ylecun/mnist", {})]),
]


@pytest.mark.parametrize(("read", "rows", "names"), HUB, ids=["translation", "rte", "digits"])
def test_the_hub_is_asked_for_one_after_the_other_and_a_failure_leaves_what_ships(
    read, rows, names, tmp_path, monkeypatch, capsys
):
    real, asked, gone = datasets.load_dataset, [], {name for name, _ in names[:-1]}
    if read is data.digits:
        write_pictures(tmp_path / "hub", "train", rows)
    else:
        write(tmp_path / "hub", {"train.jsonl": text(*map(json.dumps, rows))})

    def load_dataset(repository, split, **options):
        asked.append((repository, options))
        if repository in gone:
            raise ConnectionError("gone")
        return real(str(tmp_path / "hub"), split=split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    found = read("train")
    assert rows_of(found) == rows and found.source == names[-1][0] and asked == names
    assert rows_of(read("train", found.source)) == rows and asked[-1] == names[-1]
    gone |= dict(names).keys()
    assert read("train").source == "shipped"
    printed = capsys.readouterr().out
    assert f"2 {'pictures' if read is data.digits else 'sentence pairs'} from the hub: {names[-1][0]}\n" in printed
    assert f"none of these could be loaded: {names[0][0]}: ConnectionError: gone" in printed


def test_a_hub_that_never_answers_is_asked_once_and_given_up(monkeypatch):
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


def test_a_hub_that_answers_is_reachable_unless_offline_is_asked_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not hub.reachable()
        monkeypatch.delenv("HF_HUB_OFFLINE")

        def answer():
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert hub.reachable(5.0)


# --- the forms of a folder ------------------------------------------------------------------------


def test_sentence_pairs_may_be_parquet_of_dictionaries_and_an_empty_side_is_left_out(tmp_path, capsys):
    rows = [{"translation": row} for row in [*PAIRS, {"de": "Allein.", "en": " "}]]  # as iwslt14-de-en-preprocess
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "validation-00000-of-00001.parquet")
    assert data.translation("validation", tmp_path) == PAIRS
    assert "1 of 3 pairs have an empty side: left out" in capsys.readouterr().out


@pytest.mark.parametrize("label", [int, ["entailment", "not_entailment"].__getitem__])
def test_rte_that_datasets_reads_has_labels_as_numbers_or_words(label, tmp_path):
    rows = [row | {"label": label(row["label"]), "idx": number} for number, row in enumerate(CLAIMS)]
    assert data.rte("validation", write(tmp_path, {"validation.jsonl": text(*map(json.dumps, rows))})) == CLAIMS


def test_columns_of_rte_may_stand_in_any_order_and_lines_are_counted_by_newlines_alone(tmp_path):
    write(tmp_path, {"train.tsv": text("label\tsentence2\tsentence1", "entailment\tYes.\tA dog\u2028ran\x0b.")})
    assert data.rte("train", tmp_path) == [{"sentence1": "A dog\u2028ran\x0b.", "sentence2": "Yes.", "label": 0}]


def test_a_folder_of_picture_files_is_read_and_colour_is_made_grey(tmp_path):
    for split in ("train", "test"):
        for number in range(10):
            path = tmp_path / split / str(number) / "one.png"
            path.parent.mkdir(parents=True)
            picture(number).convert("RGB").save(path)
    found = data.digits("test", tmp_path)
    assert found.images.shape == (10, 1, 28, 28)
    assert {int(label): round(float(image.mean()) * 255) for image, label in found} == {n: 25 * n for n in range(10)}


# --- what cannot be read --------------------------------------------------------------------------

PACKED = gzip.compress(text(*[pair["de"] for pair in PAIRS] * 100))
DE, EN = text("Ein Hund.", "Noch einer."), text("A dog.", "Another.")
tsv = partial(text, HEADER, *LINES)
REFUSALS = [
    (data.rte, {"train.tsv": tsv("2\tA dog.\tno")}, "line 4: 3 fields, expected 4 with tabs between them: index, sent"),
    (data.rte, {"train.tsv": tsv("2\tA\tdog.\tRuns.\tno")}, "line 4: 5 fields, expected 4"),
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
    (data.translation, {"train.de": DE[:10], "train.en": EN}, r"train\.en, line 2: has no partner, since .*de ends a"),
    (data.translation, {"train.de.gz": PACKED[:-10], "train.en": EN}, r"de\.gz, after line \d+: not a whole gzip file"),
    (data.translation, {"train.de.gz": PACKED[:20] + bytes(9) + PACKED[29:], "train.en": EN}, "not a whole gzip file"),
    (data.translation, {"train.de": "", "train.en": ""}, "the train split is empty"),
    (data.translation, {"train.de": DE}, r"train\.de is there without its partner"),
    (data.translation, {"train.jsonl": '{"source": "a"}'}, "columns source; expected 'translation', or 'de' and 'en'"),
    (data.translation, {}, r"no sentence pairs of the train split; expected train\.de"),
    (data.digits, {"train.jsonl": '{"pixels": [0]}'}, "columns pixels; expected 'image' and 'label'"),
    (data.digits, {}, "no pictures of the train split; expected MNIST's train-….parquet"),
]


@pytest.mark.parametrize(("read", "files", "said"), REFUSALS)
def test_what_is_malformed_or_not_there_is_named_with_its_file_and_line(read, files, said, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        read("train", write(tmp_path, files))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sides": (28, 8)}, r"pictures of several sizes: \[\(8, 8\), \(28, 28\)\]; expected one"),
        ({"numbers": (1, 10)}, "has labels from 1 to 10; expected 0 to 9"),
        ({"numbers": (), "sides": ()}, "no pictures of the train split"),
    ],
)
def test_pictures_that_are_no_digits_are_refused(changed, said, tmp_path):
    write_pictures(tmp_path / "mnist", **{"split": "train", **changed})
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        data.digits("train", tmp_path)


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
    if read is data.digits:  # a folder of other data leaves those that ship
        assert read("test").source == "shipped"
        return
    with pytest.raises(FileNotFoundError, match=rf"the folder {tmp_path} has no sentence pairs"):
        read("train")
    monkeypatch.setattr(sources, "SHIPPED", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"installed without its repository.*pip install -e"):
        read("train", "shipped")
