"""RTE's rows are read from GLUE's files as they are, quotes and all; what is malformed is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from labkit import data
from labkit.base import hub

HEADER = "index\tsentence1\tsentence2\tlabel"
LINES = ['0\tA dog "runs.\tA dog moves.\tentailment', "1\tTwo cats.\tThree cats.\tnot_entailment"]
ROWS = [
    {"sentence1": 'A dog "runs.', "sentence2": "A dog moves.", "label": 0},
    {"sentence1": "Two cats.", "sentence2": "Three cats.", "label": 1},
]


@pytest.fixture(autouse=True)
def no_source_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without a network and without LABKIT_DATA, unless a test says otherwise."""
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets-cache")


def write(folder: Path, *lines: str, header: str = HEADER, name: str = "train.tsv") -> Path:
    """Write a file of GLUE's, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(line + "\n" for line in (header, *lines)))
    return folder


# --- where the rows come from ---------------------------------------------------------------------


def test_real_rte_has_its_published_sizes_and_labels(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(shared_data))
    train, dev = data.rte("train"), data.rte("dev")
    assert (len(train), len(dev)) == (2_490, 277)
    for rows, split in ((train, "train"), (dev, "dev")):  # counted in the file as bytes, without the reader
        raw = (shared_data / "glue" / "RTE" / f"{split}.tsv").read_bytes()
        counts = Counter(row["label"] for row in rows)
        assert counts == {0: raw.count(b"\tentailment\n"), 1: raw.count(b"\tnot_entailment\n")}
    assert dev[0]["sentence2"] == "Christopher Reeve had an accident."
    assert dev[0]["label"] == 1


@pytest.mark.parametrize("below", ["", "RTE", "glue/RTE"])
def test_labkit_data_is_taken_first(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / below, *LINES, name="dev.tsv")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("the hub was asked although LABKIT_DATA is set"))
    for name in ("validation", "val", "dev"):
        rows = data.rte(name)
        assert (rows, rows.source) == (ROWS, str(tmp_path))
        printed = capsys.readouterr().out
        assert printed == f"entailment, validation: 2 sentence pairs from LABKIT_DATA: {tmp_path}\n"


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, "entailment\tYes.\tA dog runs.", header="label\tsentence2\tsentence1")
    assert data.rte("train", tmp_path) == [{"sentence1": "A dog runs.", "sentence2": "Yes.", "label": 0}]


@pytest.mark.parametrize(
    "label", [lambda row: row["label"], lambda row: ["entailment", "not_entailment"][row["label"]]]
)
def test_a_folder_that_datasets_reads_has_labels_as_numbers_or_words(label, tmp_path: Path) -> None:
    import datasets

    rows = [row | {"label": label(row), "idx": number} for number, row in enumerate(ROWS)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rte" / "validation-00000-of-00001.parquet")
    assert data.rte("validation", tmp_path / "rte") == ROWS


def test_the_hub_is_asked_for_glues_rte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    real, asked = datasets.load_dataset, []
    datasets.Dataset.from_list(ROWS).to_json(tmp_path / "hub" / "train.jsonl")

    def load_dataset(path: str, **options: str) -> object:
        asked.append((path, options))
        return real(str(tmp_path / "hub"), split=options["split"])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    rows = data.rte("train")
    assert (rows, rows.source) == (ROWS, "nyu-mll/glue")
    assert data.rte("train", rows.source) == ROWS
    assert asked == [("nyu-mll/glue", {"name": "rte", "split": "train"})] * 2
    assert "2 sentence pairs from the hub: nyu-mll/glue" in capsys.readouterr().out


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("2\tA dog.\tentailment", "3 fields, expected 4 with tabs between them: index, sentence1, sentence2, label"),
        ("2\tA\tdog.\tRuns.\tentailment", "5 fields, expected 4"),
        ("", "1 fields, expected 4"),
        ("2\tA dog.\tRuns.\tneutral", "the label is 'neutral', expected 'entailment' or 'not_entailment'"),
        ("2\tA dog.\tRuns.\t0", "the label is '0', expected 'entailment'"),
        ("2\t \tRuns.\tentailment", "sentence1 is empty, expected a sentence"),
    ],
)
def test_a_malformed_line_is_named_with_its_file_and_number(line: str, error: str, tmp_path: Path) -> None:
    write(tmp_path, *LINES, line)
    with pytest.raises(ValueError, match=rf"train\.tsv, line 4: {error}"):
        data.rte("train", tmp_path)


def test_a_file_without_the_header_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *LINES[1:], header=LINES[0])
    with pytest.raises(ValueError, match=r"train\.tsv, line 1: the header is .*expected index, sentence1"):
        data.rte("train", tmp_path)
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(ValueError, match=r"train\.tsv, line 1: the header is ''"):
        data.rte("train", tmp_path)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "train.tsv").open("ab") as file:
        file.write("0\tEin Bär.\tA bear.\tentailment\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: not UTF-8"):
        data.rte("train", tmp_path)


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ValueError, match="the train split is empty, expected at least one sentence pair"):
        data.rte("train", tmp_path)


def test_a_folder_without_the_files_says_what_was_looked_for_where_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = r"expected train\.tsv, there, in RTE/ or in glue/RTE/ below it\. To get it: https://dl\.fbaipublicfiles"
    with pytest.raises(FileNotFoundError, match=rf"the folder {tmp_path} has no .*{wanted}"):
        data.rte("train", tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"nowhere', which is not a folder.*{wanted}"):
        data.rte("train", tmp_path / "nowhere")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=rf"the folder {tmp_path} has no .*{wanted}"):
        data.rte("train")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"LABKIT_DATA is .*typo.*not a folder; correct it or unset it"):
        data.rte("train")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split is 'test', expected 'train' or 'validation'"):
        data.rte("test", "shipped")


def test_a_data_set_with_other_columns_or_labels_is_refused(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_list([{"premise": "a", "label": 0}]).to_json(tmp_path / "columns" / "train.jsonl")
    with pytest.raises(ValueError, match="has the columns premise, label; expected 'sentence1', 'sentence2' and 'label'"):
        data.rte("train", tmp_path / "columns")
    datasets.Dataset.from_list([*ROWS, ROWS[0] | {"label": -1}]).to_json(tmp_path / "labels" / "train.jsonl")
    with pytest.raises(ValueError, match="train, row 2: the label is -1, expected 'entailment' or 'not_entailment'"):
        data.rte("train", tmp_path / "labels")
