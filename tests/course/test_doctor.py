"""The doctor says of each thing whether it is ok, and hides what differs between machines."""

from __future__ import annotations

import math
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

NAMES = ["Python", "torch", "GPUs", "NCCL", "CPU cores", "memory", "shared memory", "Jupyter", "Chromium", "hub"]


def hidden(text: str) -> str:
    """A text as the notebook test compares it."""
    return re.sub(r"\[~ [^\]]*\]|<span class=\"labkit-measured\"[^<>]*>[^<>]*</span>", "[~]", text)


def test_everything_is_looked_at():
    diagnosis = doctor()
    assert [fact.name for fact in diagnosis.facts] == NAMES
    assert diagnosis.healthy, diagnosis


def test_what_is_not_ok_comes_with_what_to_do():
    assert all(fact.advice for fact in doctor().facts if fact.status != OK)
    assert {fact.status for fact in doctor().facts} <= {OK, WARNING, FAULT}


def test_on_every_machine_the_same_is_left_once_facts_are_hidden():
    here = doctor()
    elsewhere = Diagnosis(tuple(Fact(name, FAULT, "a [strange] <machine>", "x" * 99) for name in NAMES))
    assert hidden(here._repr_html_()) == hidden(elsewhere._repr_html_())
    assert hidden(repr(here)) == hidden(repr(elsewhere))
    assert hidden(repr(here)) == "\n".join(f"{name:<14}[~]" for name in [*NAMES, "this machine"])


def test_a_fault_makes_the_machine_not_ready_and_a_warning_does_not():
    fine, doubtful, broken = Fact("a", OK, ""), Fact("b", WARNING, "", "do"), Fact("c", FAULT, "", "do")
    assert Diagnosis((fine, doubtful)).healthy
    assert "ready, 0 faults, 1 warning " in repr(Diagnosis((fine, doubtful)))
    assert not Diagnosis((fine, doubtful, broken)).healthy
    assert "not ready, 1 fault, 1 warning " in repr(Diagnosis((fine, doubtful, broken)))


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (WARNING, 0), (FAULT, 1)])
def test_the_command_ends_with_1_on_a_fault(status, code, monkeypatch, capsys):
    monkeypatch.setattr(doctor_module, "doctor", lambda: Diagnosis((Fact("torch", status, "here", "do this"),)))
    assert cli.main(["doctor"]) == code
    assert "To do: do this" in capsys.readouterr().out


Memory = namedtuple("Memory", "total available")
Disk = namedtuple("Disk", "total used free")


@pytest.mark.parametrize(("free", "status"), [(0.5, FAULT), (2, WARNING), (8, OK)])
def test_memory_is_judged_by_what_is_free(free, status, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(16 * GIB, int(free * GIB)))
    monkeypatch.setattr(machine, "memory_limit", lambda: math.inf)
    assert doctor_module._memory().status == status


def test_a_containers_limit_counts_as_its_memory(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(64 * GIB, 60 * GIB))
    monkeypatch.setattr(machine, "memory_limit", lambda: 2.0 * GIB)
    fact = doctor_module._memory()
    assert (fact.status, fact.found) == (WARNING, "2.0 GiB, 2.0 GiB of it free")


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
def test_a_hub_that_does_not_answer_is_a_warning(monkeypatch, answers, status):
    monkeypatch.setattr(doctor_module.hub, "reachable", lambda: answers)
    assert doctor().facts[-1].status == status


def test_a_hub_that_is_switched_off_is_a_warning_that_says_so(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fact = doctor().facts[-1]
    assert (fact.status, fact.found) == (WARNING, "switched off by the environment")
