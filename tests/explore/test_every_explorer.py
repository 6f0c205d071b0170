"""What holds for every explorer: its form in print, its words, its keys, its refusals."""

import io
from html import escape

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from labkit.draw import STYLES
from labkit.explore import (
    Timeline,
    bucket_explorer,
    collectives_explorer,
    ring_explorer,
    schedule_explorer,
    schedule_puzzle,
    static_fallback,
)
from labkit.schedule import one_f_one_b
from labkit.simulate import simulate


def puzzle_under_way():
    puzzle = schedule_puzzle(3)
    puzzle.place("0F0")
    puzzle.place("0F1")
    return puzzle


EXPLORERS = {
    "Timeline": lambda: Timeline(simulate(one_f_one_b(2, 4))),
    "schedule_explorer": schedule_explorer,
    "schedule_puzzle": lambda: puzzle_under_way(),
    "bucket_explorer": lambda: bucket_explorer("mlp"),
    "ring_explorer": ring_explorer,
    "collectives_explorer": lambda: collectives_explorer(2),
}


@pytest.fixture(scope="module", params=EXPLORERS)
def explorer(request):
    return EXPLORERS[request.param]()


@pytest.fixture
def displayed(explorer, monkeypatch):
    """Show the explorer as the last line of a cell does; return what is displayed."""

    def show(static):
        shown = []
        monkeypatch.setenv("LABKIT_STATIC", static)
        monkeypatch.setattr(static_fallback, "display", lambda *objects, **options: shown.append((objects, options)))
        explorer._ipython_display_()
        return shown

    return show


def timeline_of(explorer):
    return getattr(explorer, "timeline", explorer)


def test_kept_outputs_are_a_picture_with_its_alt_text_and_a_table_and_no_widget(explorer, displayed):
    (((picture,), _), ((table,), _)) = displayed("1")
    assert len(picture.alt) > 20 and isinstance(table, pd.DataFrame) and len(table)
    data, metadata = picture._repr_mimebundle_()
    if explorer.static_form().draw:
        assert set(data) == {"image/png", "text/plain"} and metadata["image/png"]["alt"] == picture.alt
    else:
        assert data == {"text/plain": picture.alt}, "without a browser its words"


def test_a_browser_takes_the_picture_of_what_the_page_draws_without_what_is_to_press(with_chromium):
    with_browser = ring_explorer(3).static_form().picture()
    data, metadata = with_browser._repr_mimebundle_()
    assert data["text/plain"] == metadata["image/png"]["alt"] == with_browser.alt
    assert 850 < metadata["image/png"]["width"] <= 944 and 300 < metadata["image/png"]["height"] < 500
    with Image.open(io.BytesIO(with_browser.png)) as picture:
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
    assert to_rgb(STYLES["whole sum"].colour) in {tuple(part / 255 for part in colour) for colour in colours}


def test_without_a_browser_one_sentence_says_so(capsys):
    static_fallback._say_once.cache_clear()
    for _ in range(2):
        schedule_puzzle(1).static_form().picture()
    printed = capsys.readouterr().err
    assert printed.startswith("labkit: words and a table stand for a picture: there is no Chromium here; python -m")
    assert printed.count("\n") == 1


def test_after_the_widget_come_alt_text_and_table_for_where_there_is_no_kernel_and_nothing_is_drawn(
    explorer, displayed
):
    (((kept,), _), ((table,), _)) = displayed("1")
    drawn = plt.get_fignums()
    (((widget,), _), ((data,), _)) = displayed("0")
    assert set(widget) == {"application/vnd.jupyter.widget-view+json"}
    assert widget["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert set(data) == {"text/html", "text/plain"} and data["text/plain"].startswith(kept.alt)
    assert escape(kept.alt) in data["text/html"] and data["text/html"].count("<tr") > len(table)
    assert plt.get_fignums() == drawn


def test_every_bar_that_is_not_an_event_and_every_step_there_has_its_sentence(explorer):
    scene = timeline_of(explorer).scene
    for panel in scene["panels"]:
        if "tables" not in panel:
            assert len(panel["sentences"]) == len(panel["labels"])
            assert all(len(sentence) > 10 for sentence in panel["sentences"])
    assert all(len(text) > 3 for text in scene["steps"])


@pytest.mark.parametrize(
    ("make", "arguments", "error", "words"),
    [
        (Timeline, [simulate(one_f_one_b(2, 4)), one_f_one_b(2, 3)], ValueError, "not in the schedule"),
        (schedule_explorer, ["n=0"], ValueError, "1 to"),
        (schedule_puzzle, [13], ValueError, "1 to 12"),
        (schedule_puzzle, [None], TypeError, "1 to 12"),
        (bucket_explorer, ["gpt5"], ValueError, "gpt2"),
        (ring_explorer, [17], ValueError, "2 to 16"),
        (collectives_explorer, [1], ValueError, "2 to 8"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make, arguments, error, words):
    with pytest.raises(error, match=words):
        make(*arguments)
