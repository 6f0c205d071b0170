"""What a container grants, read from control groups as the kernel writes them."""

import math

import pytest

from labkit.base import machine
from labkit.ranks import plan


@pytest.mark.parametrize(("in_sight", "quota", "cores"), [(64, 2.0, 2), (4, 1.5, 1), (8, 0.5, 1), (4, math.inf, 4)])
def test_cores_are_those_in_sight_or_the_quota_if_that_is_less(monkeypatch, in_sight, quota, cores):
    monkeypatch.setattr(machine, "visible_cores", lambda: in_sight)
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.cores() == cores


def test_ranks_share_out_what_a_container_grants_not_what_the_machine_has(monkeypatch):
    monkeypatch.setattr(machine, "visible_cores", lambda: 64)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 8.0)
    assert plan.decide(2, "gloo", 1.0, None, None, False, True).threads == 4


def test_limits_are_read_from_the_own_control_group_and_those_above(tmp_path, monkeypatch):
    for folder, text in (("a/b", "max 100000"), ("a", "150000 100000"), (".", "400000 100000")):
        (tmp_path / "fs" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / folder / "cpu.max").write_text(text + "\n")
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/x\n0::/a/b\n")
    assert list(machine._control_files("cpu.max", tmp_path / "fs", own)) == [
        "max 100000",
        "150000 100000",
        "400000 100000",
    ]
    assert list(machine._control_files("cpu.max", tmp_path / "fs", tmp_path / "not there")) == []
    monkeypatch.setattr(machine, "_control_files", lambda _: ["max 100000", "150000 100000", "400000 100000"])
    assert machine.cpu_quota() == 1.5
    monkeypatch.setattr(machine, "_control_files", lambda _: ["max", "1024"])
    assert machine.memory_limit() == 1024
