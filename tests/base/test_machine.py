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
    assert plan.decide(2, "gloo", 1.0, None, None, False, True).threads == max(1, cores // 2)


def test_limits_are_read_from_the_own_control_group_and_those_above(tmp_path, monkeypatch):
    limits = ["max 100000", "150000 100000", "400000 100000"]
    for folder, text in zip(("a/b", "a", "."), limits, strict=True):
        (tmp_path / "fs" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / folder / "cpu.max").write_text(text + "\n")
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/x\n0::/a/b\n")
    assert list(machine._control_files("cpu.max", tmp_path / "fs", own)) == limits
    assert list(machine._control_files("cpu.max", tmp_path / "fs", tmp_path / "not there")) == []
    monkeypatch.setattr(machine, "_control_files", lambda _: limits)
    assert machine.cpu_quota() == 1.5
    monkeypatch.setattr(machine, "_control_files", lambda _: ["max", "1024"])
    assert machine.memory_limit() == 1024


# --- GPUs that torch can use ----------------------------------------------------------------------

FAKE_TORCH = """
import os
class cuda:
    is_available = staticmethod(lambda: os.environ.get("CUDA_DRIVER") != "too old")
class accelerator:
    device_count = staticmethod(lambda: len([name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]))
open(os.environ["COUNTS"], "a").write("x")
"""


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """Processes that count GPUs find a torch that has those of CUDA_VISIBLE_DEVICES.

    Each leaves an x in the file.
    """
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "counts").touch()
    for name, value in {"PYTHONPATH": tmp_path, "COUNTS": tmp_path / "counts", "CUDA_VISIBLE_DEVICES": "0,1,2"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(machine, "has_gpu_driver", lambda: True)
    machine._count_gpus.cache_clear()
    yield tmp_path / "counts"
    machine._count_gpus.cache_clear()


def test_gpus_are_counted_in_another_process_once_for_each_choice_of_visible_ones(counts, monkeypatch):
    found = []
    for visible in ("0,1,2", "", "", "1", "0,1,2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found.append(machine.usable_gpus())
    assert found == [3, 0, 0, 1, 3] and counts.read_text() == "xxx"
    machine._count_gpus.cache_clear()
    monkeypatch.setattr(machine, "has_gpu_driver", lambda: False)
    assert machine.usable_gpus() == 0 and counts.read_text() == "xxx"  # without a driver nobody counts


def test_gpus_that_this_torch_cannot_use_do_not_count(counts, monkeypatch):
    monkeypatch.setenv("CUDA_DRIVER", "too old")
    assert machine.usable_gpus() == 0
    monkeypatch.setenv("PYTHONPATH", "")  # and where counting them fails
    monkeypatch.setattr(machine, "_COUNT", "import os; os.abort()")
    machine._count_gpus.cache_clear()
    assert machine.usable_gpus() == 0
