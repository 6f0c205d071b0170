"""What no option can be is refused by all three commands, up front and in a line; a loss that is no
number stops all ranks."""

from __future__ import annotations

import pytest
from test_train import without_torchrun
from to_do import task

from labkit import train
from labkit.launch import RankError, launch
from labkit.train import command
from labkit.train.glue_task import GlueConfig, glue
from labkit.train.translation_task import TranslateConfig, translate

WRONG = [
    ("--lr inf", "learning_rate is inf, expected a finite number above 0"),
    ("--lr 1e400", "learning_rate is inf, expected a finite number above 0"),
    ("--seed 99999999999999999999999", "seed is 99999999999999999999999, expected at most 4,294,967,295"),
    ("--epochs 1000000000", "epochs is 1000000000, expected at most 1,000,000"),
    ("--batch-size 99999999999999999999", "batch_size is 99999999999999999999, expected at most 1,000,000"),
    ("--timeout-s -1", "--timeout-s: -1 is no time to wait, expected seconds above 0"),
    ("--timeout-s nan", "--timeout-s: nan is no time to wait"),
    ("--timeout-s 1e300", "--timeout-s: 1e300 is no time to wait, expected seconds above 0, at most 1e+08"),
]
OF_ONE = [
    ("translate --out README.md", "--out is 'README.md', where no results can be written: File exists"),
    ("translate --out README.md/sub", "where no results can be written: Not a directory"),
    ("translate --mode interleaved --stages-per-rank 1000", "cuts it into 2000 stages"),
    ("translate --mode gpipe --world-size 100000000", "cuts it into 100000000 stages"),
    ("translate --mode gpipe --n-micro 100000", "n_micro is 100000, expected at most 1,000"),
    ("translate --vocab-size 10000000000", "vocab_size is 10000000000, expected at most 1,000,000"),
    ("translate --backend nccl --size nano --limit 20", "backend='nccl' needs a GPU for each of the 2 ranks"),
    ("glue --output-dir README.md", "--output-dir is 'README.md', where no results can be written"),
    ("glue --max-seq-length 10000000000", "max_length is 10000000000, expected at most 100,000"),
    ("glue --epochs inf", "'inf' is no whole number"),
]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [(f"{name} {flags}", complaint) for name in ("translate", "glue", "digits") for flags, complaint in WRONG] + OF_ONE,
)
def test_what_cannot_be_is_refused_in_a_line_before_anything_starts(line, complaint, monkeypatch, capsys, request):
    without_torchrun(monkeypatch)
    monkeypatch.chdir(request.config.rootpath)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if "nccl" not in line:
        monkeypatch.setattr(command, "launch", lambda *_, **__: pytest.fail("processes were started"))
    monkeypatch.setattr(command, "joined", lambda *_, **__: pytest.fail("ranks met"))
    with pytest.raises(SystemExit) as stop:
        train.main([*line.split(), "--source", "shipped"])
    said = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and complaint in said[-1]
    assert [line for line in said if "error:" in line] == [said[-1]]


SHIPPED = {"source": "shipped", "epochs": 2, "batch_size": 16, "learning_rate": 1e30}
TRANSLATE = SHIPPED | {"size": "nano", "vocab_size": 300, "limit": 40, "limit_eval": 4, "bleu": False, "n_layer": 2}


@task("dp.1", "dp.4", "pipe.5")
@pytest.mark.parametrize(
    ("fn", "config"),
    [
        (glue, GlueConfig(**SHIPPED, vocab_size=300, limit=48, limit_eval=8)),
        (translate, TranslateConfig(**TRANSLATE)),
        (translate, TranslateConfig(**TRANSLATE, mode="1f1b")),
    ],
)
def test_a_loss_that_is_no_number_stops_all_ranks_with_the_step_it_began_at(fn, config):
    with pytest.raises(RankError, match=r"the loss is (nan|inf) from step 2 on \(and so did rank 1\)") as stop:
        launch(fn, config, backend="gloo", timeout_s=60)
    assert stop.value.error_type == "FloatingPointError"


@task("dp.1")
def test_a_last_step_that_ruins_the_model_is_seen_in_validation():
    config = TranslateConfig(**TRANSLATE | {"epochs": 1, "limit": 16}, mode="model_parallel")
    with pytest.raises(FloatingPointError, match="the validation loss is nan from step 1 on"):
        translate(config)


def test_so_do_digits_and_the_command_ends_with_that_line_alone(monkeypatch, capfd):
    without_torchrun(monkeypatch)
    expected = r"^rank \d raised FloatingPointError: .* the loss is (nan|inf) from step 2 on \(and so did rank \d\)$"
    with pytest.raises(SystemExit, match=expected):
        train.main(["digits", "--source", "shipped", "--lr", "1e30", "--backend", "gloo"])
    assert "Traceback" not in capfd.readouterr().err
