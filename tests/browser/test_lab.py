"""JupyterLab in a real browser: a cell that launches ranks shows its table, its bar and its picture
to the reader."""

import re

import pytest

CELLS = [
    """
import time, torch, torch.distributed as dist
from ipykernel.connect import get_connection_info
from labkit import draw
from labkit.launch import launch, progress
from labkit.trace import span
def fn():
    for _ in progress(range(20), "rounds"):
        time.sleep(0.05)
        with span("all_reduce", lane="comm"):
            dist.all_reduce(torch.ones(10))
print(get_connection_info(unpack=True)["transport"])
run = launch(fn, world_size=2)
run
""",
    'draw.show(draw.timeline(run.events), alt="Twenty rounds of two ranks.")',
    "launch(lambda: 1 / 0, world_size=1)",
]


@pytest.mark.smoke
def test_a_reader_sees_the_table_the_picture_and_the_error_and_no_bar_of_a_run_that_is_over(lab):
    with lab.notebook(CELLS) as page:
        outputs = page.locator(".jp-CodeCell .jp-OutputArea")
        first = outputs.nth(0).inner_text()
        picture = page.locator(".jp-OutputArea img").first
        error = outputs.nth(2).inner_text()
        alt = picture.get_attribute("alt")
        width = picture.evaluate("e => e.naturalWidth")
    assert first.startswith("ipc")
    assert re.search(r"2 ranks · (gloo|nccl)", first) and "[~" not in first  # a measurement is a number in a style
    assert first.count("all_reduce") == 2 and "20/20" not in first
    assert width > 500 and alt in (None, "", "Twenty rounds of two ranks.")
    assert "rank 0 raised ZeroDivisionError: division by zero" in error
    assert "launch(lambda: 1 / 0, world_size=1)" in error and "pool.py" not in error
