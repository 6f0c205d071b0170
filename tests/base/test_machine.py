"""What a container grants, read from control groups as the kernel writes them."""

import math
from types import SimpleNamespace

import pytest

from labkit.base import machine
from labkit.ranks.processes import plan


@pytest.mark.parametrize(("in_sight", "quota", "cores"), [(64, 2.0, 2), (8, 0.5, 1), (4, math.inf, 4)])
def test_cores_are_those_in_sight_or_the_quota_if_that_is_less(monkeypatch, in_sight, quota, cores):
    monkeypatch.setattr(machine, "visible_cores", lambda: in_sight)
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.cores() == cores
    assert plan.decide(2, "gloo").threads == max(1, cores // 2)


@pytest.fixture
def control_groups(tmp_path, monkeypatch):
    """control_groups(name, *texts): the file ``name`` of this process's control group and of those
    above it has these texts."""
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/a/b\n")
    folders = machine.control_groups(tmp_path / "fs", tmp_path / "own")
    assert folders == [tmp_path / "fs" / below for below in ("a/b", "a", ".")]
    monkeypatch.setattr(machine, "control_groups", lambda: folders)

    def write(name: str, *texts: str) -> None:
        for folder, text in zip(folders, texts, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")

    return write


def test_limits_are_the_least_of_the_own_control_group_and_those_above(control_groups, tmp_path):
    assert (machine.cpu_quota(), machine.memory_limit()) == (math.inf, math.inf)  # there are no files
    control_groups("cpu.max", "max 100000", "150000 100000", "400000 100000")
    control_groups("memory.max", "max", "2048", "1024")
    assert (machine.cpu_quota(), machine.memory_limit()) == (1.5, 1024)


def test_of_a_containers_memory_what_is_used_is_not_free_except_for_cache_that_can_be_dropped(
    control_groups, monkeypatch
):
    gib = 2**30
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * gib))
    control_groups("memory.max", str(4 * gib), "max", "max")
    control_groups("memory.current", str(39 * gib // 10), str(20 * gib), str(30 * gib))
    assert machine.free_memory() == 4 * gib - 39 * gib // 10
    control_groups("memory.stat", f"anon {2 * gib}\ninactive_file {gib}", "", "")
    assert machine.free_memory() == 5 * gib - 39 * gib // 10
    control_groups("memory.current", str(6 * gib), "0", "0")  # the limit has been lowered since
    assert machine.free_memory() == 0


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
