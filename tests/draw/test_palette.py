"""labkit.draw.palette: guessed, predicted, measured and published look the same in every picture,
and differ for every eye."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from eyes import COLOUR_VISION, lab

from labkit.draw.charts import curve
from labkit.draw.palette import (
    GUESS,
    MEASURED,
    PREDICTED,
    PUBLISHED,
    SOURCES,
    STYLES,
    in_theme,
    shade,
    source_of,
    text_colour,
)

NAMES = {
    GUESS: "your guess|guess|guessed|added, your guess",
    PREDICTED: "predicted|predicted, emulated link|formula: (m + 1) / 2m|ideal|fitted: α and β|ring, simulated",
    MEASURED: "measured|measured, 1 Gbit/s|counted, rank 0|this machine|ring, measured",
    PUBLISHED: "published: 4 GPUs, NCCL|13 student reports, 2 GPUs|13 reports: median|BERT, gloo (reported)",
    None: "|forward|ring by hand|2 stages|unmeasured|idealist|GPipe|short sentences",
}


@pytest.mark.parametrize("source", NAMES)
def test_a_name_that_begins_or_ends_with_a_word_of_a_source_says_it_and_no_other_does(source):
    assert {source_of(name) for name in NAMES[source].split("|")} == {source}


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_the_sources_differ_for_every_eye_and_without_colour_by_hatch_or_edge(vision):
    for (one, a), (other, b) in combinations(SOURCES.items(), 2):
        assert np.linalg.norm(lab(a.colour, vision) - lab(b.colour, vision)) > 10, (one, other)
        assert abs(lab(a.colour, vision)[0] - lab(b.colour, vision)[0]) > 15 or (a.hatch, a.line) != (b.hatch, b.line)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_letters_on_a_bar_are_read_and_in_a_dark_page_nothing_glares(theme):
    for style, chunk in product(STYLES.values(), range(4)):
        ground = shade(in_theme(style.colour, theme), chunk, 4)
        of_white = 1.05 / (luminance(ground) + 0.05)
        assert (of_white if text_colour(ground) == "white" else 21 / of_white) >= 4.5, ground
    pale = in_theme(STYLES["own part"].colour, theme)
    assert (luminance(pale) < 0.25) == (theme == "dark")
    assert in_theme(STYLES["forward"].colour, theme) == STYLES["forward"].colour


def luminance(colour):
    """Return the luminance of a colour, 0 to 1: Y of CIE."""
    return ((lab(colour, "normal")[0] + 16) / 116) ** 3


RUNS = ("measured", "formula: m", "ring, simulated", "ring", "published: a")
LINES = pd.DataFrame([(name, x, x + i) for i, name in enumerate(RUNS) for x in (1, 2)], columns=["run", "m", "time"])


def test_only_what_was_measured_or_published_has_markers_and_what_was_predicted_is_dashed():
    drawn = {
        container.get_label(): container[0] for container in curve(LINES, x="m", y="time", series="run").containers
    }
    dashed = {name for name, line in drawn.items() if line.get_linestyle() == "--"}
    bare = {name for name, line in drawn.items() if line.get_marker() in ("", "None", None)}
    assert dashed == bare == {"formula: m", "ring, simulated"}
    of_ring = drawn["ring"].get_color()
    assert of_ring == drawn["ring, simulated"].get_color() != drawn["formula: m"].get_color() == SOURCES[PREDICTED].edge


def test_a_line_in_steps_holds_each_value_until_the_next_and_has_no_markers():
    table = pd.DataFrame({"moment": [0, 1], "MiB": [1.0, 3.0]})
    (line,) = curve(table, x="moment", y="MiB", steps=True).get_lines()
    assert line.get_drawstyle() == "steps-post" and line.get_marker() in ("", "None")
