"""The doctor says of each thing whether it is ok, and hides what differs between machines."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections import namedtuple

import psutil
import pytest
import torch

from labkit import cli
from labkit.base import machine
from labkit.course import doctor as doctor_module
from labkit.course.doctor import FAULT, GIB, OK, WARNING, Diagnosis, Fact, doctor
from labkit.launch import LaunchTimeout

NAMES = ["Python", "torch", "GPUs", "NCCL", "CPU cores", "memory", "shared memory", "Jupyter", "Chromium", "hub"]


def hidden(text: str) -> str:
    """A text as the notebook test compares it."""
    return re.sub(r"\[~ [^\]]*\]|<span class=\"labkit-measured\"[^<>]*>[^<>]*</span>", "[~]", text)


def test_everything_is_looked_at_and_what_is_not_ok_comes_with_what_to_do():
    diagnosis = doctor()
    assert [fact.name for fact in diagnosis.facts] == NAMES
    assert diagnosis.healthy, diagnosis
    assert all(fact.advice for fact in diagnosis.facts if fact.status != OK)
    elsewhere = Diagnosis(tuple(Fact(name, FAULT, "a [strange] <machine>", "x" * 99) for name in NAMES))
    assert hidden(diagnosis._repr_html_()) == hidden(elsewhere._repr_html_())  # on every machine the same is left
    assert hidden(repr(diagnosis)) == hidden(repr(elsewhere))
    assert hidden(repr(diagnosis)) == "\n".join(f"{name:<14}[~]" for name in [*NAMES, "this machine"])


@pytest.mark.parametrize(
    ("status", "code", "said"), [(OK, 0, "ready, 0"), (WARNING, 0, "ready, 0"), (FAULT, 1, "not ready, 1")]
)
def test_a_fault_makes_the_machine_not_ready_and_ends_the_command_with_1(status, code, said, monkeypatch, capsys):
    facts = Fact("torch", status, "here", "do this"), Fact("GPUs", WARNING, "there", "do that")
    monkeypatch.setattr(doctor_module, "doctor", lambda: Diagnosis(facts))
    assert cli.main(["doctor"]) == code
    printed = capsys.readouterr().out
    warnings = "2 warnings" if status == WARNING else "1 warning"
    assert "To do: do this" in printed and f"{said} fault{'s' * (not code)}, {warnings} " in printed


Memory = namedtuple("Memory", "total available")
Disk = namedtuple("Disk", "total used free")


@pytest.mark.parametrize(
    ("free", "limit", "status", "found"),
    [
        (0.5, math.inf, FAULT, "16.0 GiB, 0.5 GiB of it free"),
        (2, math.inf, WARNING, "16.0 GiB, 2.0 GiB of it free"),
        (8, math.inf, OK, "16.0 GiB, 8.0 GiB of it free"),
        (8, 2.0 * GIB, WARNING, "2.0 GiB, 2.0 GiB of it free"),
    ],
)
def test_memory_is_judged_by_what_is_free_within_the_containers_limit(free, limit, status, found, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(16 * GIB, int(free * GIB)))
    monkeypatch.setattr(machine, "memory_limit", lambda: limit)
    assert (doctor_module._memory().status, doctor_module._memory().found) == (status, found)


@pytest.mark.parametrize(("free", "status"), [(GIB // 16, WARNING), (GIB, OK)])
def test_small_shared_memory_is_a_warning(free, status, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(free, 0, free))
    assert doctor_module._shared_memory(str(tmp_path)).status == status
    assert doctor_module._shared_memory(str(tmp_path / "none")).status == OK


@pytest.mark.parametrize(("quota", "status"), [(1.5, WARNING), (math.inf, OK)])
def test_less_than_two_cores_is_a_warning(quota, status, monkeypatch):
    monkeypatch.setattr(machine, "visible_cores", lambda: 4)
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert doctor_module._cores().status == status


def test_an_old_python_or_torch_is_a_fault(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 7))
    assert doctor_module._python().status == FAULT
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    assert (doctor_module._torch().status, doctor_module._torch().found) == (FAULT, "2.4.1+cpu")


def test_a_torch_that_cannot_be_imported_is_a_fault_and_the_rest_is_still_looked_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    facts = doctor().facts
    assert [fact.name for fact in facts] == NAMES
    assert facts[1].status == FAULT


@pytest.mark.parametrize(("answers", "status"), [(True, OK), (False, WARNING)])
def test_a_hub_that_does_not_answer_or_is_switched_off_is_a_warning(monkeypatch, answers, status):
    monkeypatch.setattr(doctor_module.hub, "reachable", lambda: answers)
    assert doctor_module._hub().status == status
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert answers or doctor_module._hub().found == "switched off by the environment"


# --- GPUs, with a driver that the tests play ------------------------------------------------------


def answers(monkeypatch, *gpus):
    """Have the driver answer with these lines, one for each GPU that torch can use."""
    monkeypatch.setattr(machine, "usable_gpus", lambda: len(gpus))
    monkeypatch.setattr(doctor_module, "_ask_driver", lambda *_: [line.split(", ") for line in gpus])
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))


H100 = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54.15, {}, Enabled"
RTX = "NVIDIA GeForce RTX 4090, 24564 MiB, {}, Default, Disabled"


@pytest.mark.parametrize(
    ("gpu", "status", "advice"),
    [
        (H100.format("Default"), OK, ""),
        (H100.format("Exclusive_Process"), WARNING, "no share_gpu=True"),
        (H100.format("Prohibited"), WARNING, "compute mode Default"),
        (RTX.format("550.40.07"), OK, ""),
        (RTX.format("535.183.01"), WARNING, "NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1"),
    ],
)
def test_modes_and_drivers_that_stop_a_run_are_warnings_and_all_are_named(monkeypatch, gpu, status, advice):
    answers(monkeypatch, gpu, gpu)
    fact = doctor_module._gpus()
    assert fact.status == status and advice in fact.advice and bool(advice) == bool(fact.advice)
    assert all(part in fact.found for part in ("2: ", *gpu.split(", "))), fact.found


def test_a_driver_that_torch_cannot_use_is_a_warning_and_its_answer_is_read(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Tesla K80, 11441 MiB, 470.82.01, Default, Disabled'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "usable_gpus", lambda: 0)
    monkeypatch.setattr(machine, "has_gpu_driver", lambda: True)
    fact = doctor_module._gpus()
    assert fact.status == WARNING and "torch can use no GPU: Tesla K80" in fact.found and "470.82.01" in fact.found
    smi.unlink()
    assert "nvidia-smi shows none" in doctor_module._gpus().found


@pytest.mark.parametrize(
    ("works_with", "status", "told"),
    [
        ({None, "1"}, OK, "an all_reduce of two ranks works"),
        ({"1"}, WARNING, "works with NCCL_P2P_DISABLE=1"),
        (set(), FAULT, "also with NCCL_P2P_DISABLE=1"),
    ],
    ids=["peer-to-peer works", "it hangs", "all hangs"],
)
def test_two_gpus_try_an_all_reduce_and_again_without_peer_to_peer(monkeypatch, works_with, status, told):
    def play(fn, world_size, backend, timeout_s):
        assert (world_size, backend) == (2, "nccl")
        if os.environ.get("NCCL_P2P_DISABLE") not in works_with:
            raise LaunchTimeout(timeout_s, {})

    answers(monkeypatch, *[H100.format("Default")] * 2)
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.setattr("labkit.launch.launch", play)
    fact = doctor().facts[3]
    assert (fact.status, fact.found.startswith("2.28.9, an all_reduce")) == (status, True) and told in fact.found
    assert "NCCL_P2P_DISABLE" not in os.environ


def test_what_a_report_says_of_the_machine_starts_no_rank(monkeypatch):
    answers(monkeypatch, *[H100.format("Default")] * 2)
    monkeypatch.setattr("labkit.launch.launch", lambda *_, **__: pytest.fail("it started ranks"))
    nccl = doctor_module.machine_facts()[3]
    assert (nccl.name, nccl.status, nccl.found) == ("NCCL", OK, "2.28.9")
