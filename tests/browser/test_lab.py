"""JupyterLab in a real browser: a cell that launches ranks shows its table, its bar and its picture
to the reader."""

import io
import re

import matplotlib.image
import pytest
from lab import change_theme

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
    assert width > 500 and alt == "Twenty rounds of two ranks."
    assert "rank 0 raised ZeroDivisionError: division by zero" in error
    assert "launch(lambda: 1 / 0, world_size=1)" in error and "pool.py" not in error


ON_A_PAGE = [
    'from labkit import draw\nax = draw.new_axes(3.0, 1.0)\nax.bar([0], [1], color="#0072B2")\ndraw.show(ax, alt="A bar.")',
    "from labkit.lab.listings import listing\n"
    "def wide(tensor):\n    return tensor.contiguous()" + ".contiguous()" * 30 + "\n"
    "listing(wide)",
]


def test_a_picture_has_the_ground_of_the_theme_and_a_bar_its_hue_and_no_line_of_code_is_cut(lab):
    shots = {}
    with lab.notebook(ON_A_PAGE) as page:
        for theme in ("light", "dark"):
            change_theme(page, theme)
            shots[theme] = page.locator(".labkit-picture").screenshot()
        code = page.locator(".jp-OutputArea pre").filter(has_text="contiguous")
        line_px = code.evaluate("e => parseFloat(getComputedStyle(e).lineHeight)")
        tall_px, wide_px, seen_px = code.evaluate("e => [e.clientHeight, e.scrollWidth, e.clientWidth]")
    for theme, ground in (("light", 255), ("dark", 18)):
        picture = (255 * matplotlib.image.imread(io.BytesIO(shots[theme]))[..., :3]).round()
        middle = picture[picture.shape[0] // 2, picture.shape[1] // 2]
        assert picture[2, 2].tolist() == pytest.approx([ground] * 3, abs=2)
        assert middle.argmax() == 2 and middle[2] > 1.2 * middle[0]  # blue stays blue
    assert wide_px > 2 * seen_px and tall_px < 3 * line_px
