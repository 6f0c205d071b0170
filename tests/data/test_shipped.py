"""The generated sentences are those whose labels, numbers and translations were proved right, and
their scripts make them again: a hash each."""

import hashlib
import runpy
from pathlib import Path

import pytest

from labkit.data.sources import GENERATED

PROJECT = Path(__file__).resolve().parents[2]
FROZEN = {
    "translation/train.de": "ae9d595a2463ae898f78f1ba61a3ba61b0842b8447ddff10c0e8aa0d14fb2643",
    "translation/train.en": "4dd77ad39cdd9079aa9f4ec1610acc123e55ff8cb5084cf60126da543a16236b",
    "translation/val.de": "fb8cc3045fb4f714baaea2de7e878bddc335d2e98a43d10fc49076440a811a29",
    "translation/val.en": "d244a25a0c368cf39a785efc767df6888307acd2153922697f0190f6d167095a",
    "translation/test.de": "d80df991dfffe4519266e688509745ccf1b774f524f6f2357da61b422e4783a3",
    "translation/test.en": "ae6b4f1d9dfba2653e45d58c8e273238a4bd2d96664841654773b1b0f777b0d7",
    "entailment/train.tsv": "25105f37840f44c8e8e4a5a52d2ebba6b30ad14c40240adfb187f57d37e8d5c4",
    "entailment/dev.tsv": "857fe97b3e5ff2857a28ca5e83d14daf6224feab058a1aff07f3fe9101e2dc11",
}


@pytest.mark.parametrize("name", ["translation", "entailment"])
def test_the_script_makes_the_committed_files_whose_content_was_proved(name, tmp_path):
    runpy.run_path(str(PROJECT / "data" / f"make_{name}.py"))["write"](tmp_path)
    for folder in (GENERATED / name, tmp_path):
        found = {f"{name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        assert found == {file: hash_ for file, hash_ in FROZEN.items() if file.startswith(name)}
