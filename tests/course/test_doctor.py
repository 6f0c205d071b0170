"""The doctor says of each thing whether it is ok, and hides what differs between machines."""

import math
import os
import re
import shutil
from collections import namedtuple

import psutil
import pytest
import torch

from labkit import cli
from labkit.base import machine
from labkit.base.units import GIB
from labkit.course import doctor as doctor_module
from labkit.course.doctor import FAULT, OK, WARNING, Diagnosis, Fact, doctor
from labkit.launch import LaunchTimeout

NAMES = ["Python", "torch", "GPUs", "NCCL", "CPU cores", "memory", "shared memory", "Jupyter", "Chromium", "hub"]


def hidden(text: str) -> str:
    """A text as the notebook test compares it."""
    return re.sub(r"\[~ [^\]]*\]|<span class=\"labkit-measured\"[^<>]*>[^<>]*</span>", "[~]", text)


@pytest.mark.usefixtures("static")
def test_everything_is_looked_at_and_what_is_not_ok_comes_with_what_to_do():
    diagnosis = doctor()
    assert [fact.name for fact in diagnosis.facts] == NAMES
    assert diagnosis.healthy, diagnosis
    assert all(fact.advice for fact in diagnosis.facts if fact.status != OK)
    elsewhere = Diagnosis(tuple(Fact(name, "a [strange] <machine>", "x" * 99) for name in NAMES))
    assert hidden(diagnosis._repr_html_()) == hidden(elsewhere._repr_html_())  # on every machine the same is left
    assert hidden(repr(diagnosis)) == hidden(repr(elsewhere))
    assert hidden(repr(diagnosis)) == "\n".join(f"{name:<14}[~]" for name in [*NAMES, "this machine"])


READY = {
    OK: " ready, 0 faults, 1 warning\n",
    WARNING: " ready, 0 faults, 2 warnings\n",
    FAULT: " not ready, 1 fault, 1 warning\n",
}


@pytest.mark.parametrize("status", READY)
def test_a_fault_makes_the_machine_not_ready_and_ends_the_command_with_1(status, monkeypatch, capsys):
    here = Fact("torch", "here", "" if status == OK else "do this", is_fault=status == FAULT)
    facts = here, Fact("GPUs", "there", "do that")
    monkeypatch.setattr(doctor_module, "doctor", lambda: Diagnosis(facts))
    assert cli.main(["doctor"]) == (status == FAULT)
    printed = capsys.readouterr().out
    assert f"torch         {status:<8} here" in printed and "To do: do that" in printed and READY[status] in printed
    assert "[~" not in printed  # a terminal is no cell that is compared


Memory = namedtuple("Memory", "total available")
Disk = namedtuple("Disk", "total used free")
LOOKS = [  # what is looked at, what the machine has, and what is said of it
    (doctor_module._memory, {"free": 0.5}, FAULT, "16.0 GiB, 0.5 GiB of it free"),
    (doctor_module._memory, {"free": 2}, WARNING, "16.0 GiB, 2.0 GiB of it free"),
    (doctor_module._memory, {"free": 8}, OK, "16.0 GiB, 8.0 GiB of it free"),
    (doctor_module._memory, {"free": 8, "limit": 2.0}, WARNING, "2.0 GiB, 2.0 GiB of it free"),
    (lambda: doctor_module._shared_memory("/"), {"free": 1 / 16}, WARNING, "0.06 GiB, 0.06 GiB of it free"),
    (lambda: doctor_module._shared_memory("/"), {"free": 1}, OK, "1.00 GiB, 1.00 GiB of it free"),
    (lambda: doctor_module._shared_memory("/none"), {}, OK, "no /dev/shm on this system, and none needed"),
    (doctor_module._cores, {"quota": 1.5}, WARNING, "4, of which this container may use 1.5"),
    (doctor_module._cores, {}, OK, "4"),
    (doctor_module._hub, {"hub": True}, OK, "the Hugging Face hub answers"),
    (doctor_module._hub, {"hub": False}, WARNING, "not reachable"),
    (doctor_module._torch, {"torch": "2.4.1+cpu"}, FAULT, "2.4.1+cpu, CUDA not built in"),
]


@pytest.mark.parametrize(("look", "there", "status", "found"), LOOKS)
def test_too_little_of_something_is_a_warning_or_a_fault(look, there, status, found, monkeypatch):
    has = {"free": 8, "limit": math.inf, "quota": math.inf, "hub": True, "torch": torch.__version__} | there
    free = int(has["free"] * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(16 * GIB, free))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(free, 0, free))
    monkeypatch.setattr(machine, "memory_limit", lambda: has["limit"] * GIB)
    monkeypatch.setattr(machine, "visible_cores", lambda: 4)
    monkeypatch.setattr(machine, "cpu_quota", lambda: has["quota"])
    monkeypatch.setattr(doctor_module.hub, "reachable", lambda: has["hub"])
    monkeypatch.setattr(torch, "__version__", has["torch"])
    monkeypatch.setattr(torch.version, "cuda", None)
    assert (look().status, look().found) == (status, found)


def answers(monkeypatch, tmp_path, *gpus, in_use="4 MiB"):
    """Have nvidia-smi answer with these, one for each GPU that torch can use."""
    lines = "".join(f"{index}, {in_use}, {gpu}\n" for index, gpu in enumerate(gpus))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat << 'END'\n{lines}END\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(machine, "usable_gpus", lambda: len(gpus))
    monkeypatch.setattr(machine, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))


H100 = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54.15, {}"


@pytest.mark.parametrize(("mode", "status"), [("Default", OK), ("Exclusive_Process", WARNING), ("Prohibited", WARNING)])
def test_gpus_have_their_memory_in_use_and_a_mode_that_keeps_processes_off_is_a_warning(
    monkeypatch, tmp_path, mode, status
):
    answers(monkeypatch, tmp_path, *[H100.format(mode)] * 2, in_use="71203 MiB")
    fact = doctor_module._gpus()
    now = "memory in use now: GPU 0 71203 MiB, GPU 1 71203 MiB"
    assert (fact.status, fact.found) == (status, f"2: {H100.format(mode)}; {now}")
    assert ("nvidia-smi -c 0" in fact.advice) == (status == WARNING)


@pytest.mark.parametrize(("hangs", "told"), [(False, "works"), (True, "fails (no answer in 20 s)")])
def test_two_gpus_try_an_all_reduce(monkeypatch, tmp_path, hangs, told):
    def play(fn, world_size, backend, timeout_s):
        assert (world_size, backend) == (2, "nccl")
        if hangs:
            raise LaunchTimeout(timeout_s, {})

    answers(monkeypatch, tmp_path, *[H100.format("Default")] * 2)
    monkeypatch.setattr("labkit.launch.launch", play)
    fact = doctor().facts[3]
    assert (fact.status, fact.found) == (FAULT if hangs else OK, f"2.28.9, an all_reduce of two ranks {told}")
    assert ("NCCL_P2P_DISABLE=1" in fact.advice) == hangs
