"""labkit.draw.small_svg: the same picture in a fifth of the bytes."""

import io
import re

import matplotlib.pyplot as plt
import pytest
from drawn_tables import ALT

from labkit.draw import save, timeline
from labkit.draw.small_svg import small_svg
from labkit.schedule import one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import simulate

MAX_BYTES = 100_000


def drawn(**bars):
    figure, ax = plt.subplots()
    ax.bar(range(3), 1, **bars)
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    return file.getvalue().decode(), small_svg(file.getvalue()).decode()


@pytest.mark.slow
def test_the_largest_figures_of_the_course_are_small():
    figure = timeline({"ZB-H1": simulate(zero_bubble_h1(4, 8)), "ZB-V": simulate(zero_bubble_v(4, 8))})
    for each in (figure, timeline({"1F1B": simulate(one_f_one_b(8, 16))})):
        (svg,) = [path for path in save(each, "large", alt=ALT).files if path.suffix == ".svg"]
        assert svg.stat().st_size < MAX_BYTES


def test_coordinates_stay_where_they_were_by_a_tenth_of_a_point():
    before, after = (re.findall(r'd="(M[^"]*z)[^"]*" clip-path', svg, re.DOTALL) for svg in drawn(color="#abcdef"))
    assert len(before) == 3 and len(after) == 3
    for old, new in zip(before, after, strict=True):
        x0, y0, x1, _, _, y1 = [round(float(number), 1) for number in re.findall(r"[\d.]+", old)[:6]]
        assert new == f"M{x0:g} {y0:g}H{x1:g}V{y1:g}H{x0:g}z"
