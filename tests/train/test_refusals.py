"""What a command cannot do is refused in a line, before anything starts, with the flag that is
wrong and what was expected of it."""

from __future__ import annotations

import sys

import pytest

from labkit import train
from labkit.base import machine
from labkit.launch import launch
from labkit.todo import TASKS
from labkit.train import command

OF_ALL = [
    ("--epochs 0", "epochs is 0"),
    ("--batch-size 0", "batch_size is 0, expected a whole number, 1 or more"),
    ("--seed -1", "seed is -1, expected a whole number, 0 or more"),
    ("--lr 0", "learning_rate is 0.0, expected a finite number above 0"),
    ("--world-size 0", "world_size is 0, expected a whole number, 1 or more"),
    ("--timeout_s nan", "timeout_s is nan, expected a finite number above 0"),
    ("--no-such-flag", "Some specified arguments are not used by the HfArgumentParser: ['--no-such-flag']"),
    ("--world-size 4 --local-rank 4", "the rank is 4, expected 0 to 3: one for each process"),
    ("--world-size 4 --local-rank -1", "local_rank is -1, expected a whole number, 0 or more"),
    ("--world-size 2 --local-rank 1 --master-ip no.such.host", "this machine knows no address of that name"),
    ("--world-size 2 --local-rank 1 --master-port 65536", "master_port is 65536, expected at most 65,535"),
    ("--backend mpi", "invalid choice: 'mpi'"),
]
OF_ONE = {
    "translate": [
        ("--epochs many", "invalid int value: 'many'"),
        ("--batch-size 1 --world-size 2", "batch_size is 1 and world_size 2"),
        ("--limit 0", "limit is 0, expected a whole number, 1 or more"),
        ("--max-length 3", "max_length is 3, expected a whole number, 4 or more"),
        ("--vocab-size 258", "vocab_size is 258, expected a whole number, 259 or more"),
        ("--size huge", "invalid choice: 'huge' (choose from "),
        ("--source /no/such/folder", "source is '/no/such/folder', which is not a folder"),
        ("--out README.md", "output_dir is 'README.md', where no results can be written: File exists"),
        ("--mode 1f1b", "invalid choice: '1f1b' (choose from "),
        ("--mode pipeline_parallel --batch-size 3", "batch_size is 3 and n_micro 4: a batch is cut into n_micro"),
        (
            "--mode model_parallel --world-size 5 --n-layer 4",
            "the model has 4 blocks and mode model_parallel puts it on 5 devices, expected at least a block for each: take",
        ),
        ("--backend nccl --size nano --limit 20", "backend='nccl' needs a GPU for each of the 2 ranks"),
    ],
    "glue": [
        ("--task-name MRPC", "invalid choice: 'MRPC' (choose from "),
        ("--sync ring", "invalid choice: 'ring' (choose from "),
        ("--sync none --world-size 2", "sync is 'none' and world_size 2: ranks that never agree"),
        ("--precision fp16", "invalid choice: 'fp16' (choose from "),
        ("--max-grad-norm -1", "max_grad_norm is -1.0, expected a finite number above 0"),
        ("--batch-size 64 --world-size 3", "batch_size is 64 and world_size 3"),
        (
            "--batch-size 64 --per_gpu_train_batch_size 64 --world-size 4",
            "per_device_train_batch_size 64: the first counts the rows of all 4 ranks, 256 by the second; leave out one",
        ),
        ("--max_steps 40", "--max-steps 40: write --iterations, which ends after that many; the learning rate falls"),
        ("--warmup-steps=10", "--warmup-steps 10: the lab has none, its learning rate falls from the first step on"),
        ("--gradient_accumulation_steps 2", "the lab takes a step for each batch: give a batch of as many times"),
        ("--fp16", "--fp16: write --precision bf16"),
        ("--tokenizer_name bert", "--tokenizer-name bert: the model's folder has it"),
        ("--do_lower_case", "--do-lower-case: a model's tokenizer knows whether it lower-cases"),
        ("--weight_decay -0.1", "weight_decay is -0.1, expected a finite number, 0 or more"),
        ("--adam_epsilon 0", "adam_epsilon is 0.0, expected a finite number above 0"),
        ("--no_cuda --backend nccl", "--no-cuda and --backend nccl contradict each other: leave out one"),
        ("--threads 0", "threads is 0, expected a whole number, 1 or more"),
        ("--num-train-epochs 1.5", "epochs is 1.5, expected a whole number"),
        ("--max-seq-length 10000000000", "max_length is 10000000000, expected at most 100,000"),
        ("--data-dir /no/such/folder", "/no/such/folder"),
        ("--model-name-or-path /no/such/folder", "/no/such/folder"),
    ],
}
CASES = [("glue", *case) for case in OF_ALL] + [(task, *case) for task, own in OF_ONE.items() for case in own]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch, request):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(request.config.rootpath)
    for name in ("launch", "joined"):
        monkeypatch.setattr(command, name, lambda *_, **__: sys.exit("ranks were started"))


@pytest.mark.parametrize(("name", "flags", "complaint"), CASES)
def test_what_cannot_be_is_refused_in_a_line(name, flags, complaint, monkeypatch, capsys):
    if "nccl" in flags:
        monkeypatch.setattr(command, "launch", launch)
    with pytest.raises(SystemExit) as stop:
        train.main([name, "--source", "shipped", *flags.split()])
    printed = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and complaint in printed[-1]
    assert [line for line in printed if "error:" in line] == [printed[-1]]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("translate --world-size 4", "--world-size is 4, but torchrun started 2 ranks; leave it out"),
        ("glue --local-rank 1", "torchrun tells each process its rank: leave out the flag for it"),
        ("translate --mode model_parallel", "in which one process drives all devices, and there are 2 processes"),
    ],
)
def test_what_torchrun_has_decided_is_not_decided_again(flags, complaint, monkeypatch, capsys):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        train.main(flags.split())
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ("translate --world-size 1", 4),
        ("translate --world-size 2", 4),
        ("translate --world-size 4", 2),
        ("translate --world-size 16", 1),
        ("translate --mode model_parallel", 8),  # for two devices, in one process
        ("translate --mode pipeline_parallel --world-size 1", 4),
        ("translate --world-size 1 --threads 3", 3),
        ("translate --mode model_parallel --threads 3", 6),
        ("glue --sync none", 4),
        ("glue --sync ddp", 4),
    ],
)
def test_one_device_alone_has_as_many_threads_as_each_of_two(flags, threads, monkeypatch):
    tasks = {name: task._replace(load=lambda _: None) for name, task in command.TASKS.items()}
    monkeypatch.setattr(command, "TASKS", tasks)
    monkeypatch.setattr(command, "missing", lambda _: None)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(command, "launch", lambda *_, **how: sys.exit(f"threads: {how['threads']}"))
    with pytest.raises(SystemExit, match=rf"threads: {threads}$"):
        train.main(flags.split())


def test_an_empty_data_set_is_refused(tmp_path, monkeypatch, capsys):
    for name in ("train.de", "train.en"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        train.main(["translate"])
    assert "the train split is empty, expected at least one sentence pair" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ("translate --mode data_parallel", {"dp.1", "dp.4"}),
        ("translate --mode model_parallel", {"dp.1"}),
        ("translate --mode pipeline_parallel", {"dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4"}),
        ("glue --sync gather_scatter", {"dp.3"}),
        ("glue --sync bucketed", {"dp.6", "dp.7"}),
        ("glue --sync bucketed --world-size 1", set()),
    ],
)
def test_each_unfilled_task_that_is_needed_is_named_and_no_other(flags, needed, monkeypatch):
    tasks = {name: task._replace(load=lambda _: None) for name, task in command.TASKS.items()}
    monkeypatch.setattr(command, "TASKS", tasks)
    for unfilled in TASKS:
        monkeypatch.setattr(command, "missing", lambda task, u=unfilled: f"TODO {u}: line 7" * (task == u) or None)
        says = f"TODO {unfilled}: line 7: this training needs it" if unfilled in needed else "ranks were started"
        with pytest.raises(SystemExit, match=says):
            train.main(flags.split())


def test_a_course_says_which_languages_are_translated_unless_a_flag_does(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    own = tmp_path / "course.toml"
    own.write_text('title = "T"\nlanguages = ["sv", "en"]\n[[parts]]\nname = "A"\ntasks = ["dp.1"]\n')
    monkeypatch.chdir(tmp_path)
    assert command.parse(["translate"])[0].languages == ["sv", "en"]
    assert command.parse(["translate", "--languages", "de", "en"])[0].languages == ["de", "en"]
    own.write_text("title = ")
    with pytest.raises(SystemExit, match="2"):
        command.parse(["translate"])
    assert f"error: {own} is not TOML" in capsys.readouterr().err
