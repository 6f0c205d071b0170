"""labkit.draw.picture: what is saved with a figure, and what a notebook gets to show."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from drawn_tables import ALT, RESULTS, SWEEPS, two_ranks

from labkit.draw import attach, overlay, save, show, timeline
from labkit.draw.charts import bars, curves
from labkit.draw.picture import drawn_data, figure_of
from labkit.schedule import gpipe, zero_bubble_v
from labkit.simulate import simulate
from labkit.trace import EVENT_COLUMNS, event_table


def every_kind_of_figure():
    yield "timeline", timeline(two_ranks())
    yield "overlay", overlay(two_ranks(), two_ranks(1.2))
    yield "bars", bars(RESULTS, group="setting", series="source", value="time_s", error=("low_s", "high_s"))
    yield "schedules", timeline({"GPipe": simulate(gpipe(2, 2)), "ZB-V": simulate(zero_bubble_v(2, 2))})
    yield "curves", curves(SWEEPS, x="batch", y="time_s")


def test_saving_writes_png_svg_csv_and_alt_text_and_nothing_else(figures):
    picture = save(timeline(two_ranks()), "two_ranks", alt=ALT)
    assert {path.name for path in figures.iterdir()} == {f"two_ranks.{end}" for end in ("png", "svg", "csv", "alt.txt")}
    assert set(picture.files) == set(figures.iterdir())
    assert (figures / "two_ranks.alt.txt").read_text() == ALT + "\n"
    assert matplotlib.image.imread(figures / "two_ranks.png").shape[2] == 4
    assert ElementTree.parse(figures / "two_ranks.svg").getroot().tag.endswith("svg")


def test_the_csv_of_bars_and_of_a_curve_is_their_table_and_that_of_an_overlay_both_tables_from_0_on():
    drawn = {name: drawn_data(figure_of(ax, "")) for name, ax in every_kind_of_figure()}
    pd.testing.assert_frame_equal(drawn["bars"], RESULTS)
    assert drawn["curves"].groupby("series").size().to_dict() == {"measured": 3, "predicted": 3}
    assert list(drawn["overlay"].columns) == ["source", *EVENT_COLUMNS]
    ends = drawn["overlay"].groupby("source")[["start_s", "end_s"]].agg({"start_s": "min", "end_s": "max"})
    assert ends.to_dict("index") == {
        "predicted": {"start_s": 0, "end_s": 10},
        "measured": {"start_s": 0, "end_s": pytest.approx(12)},
    }


def test_the_csv_of_schedules_reads_back_as_the_events_of_each_from_0_on_and_what_each_rank_kept(figures):
    events = simulate(gpipe(2, 3))
    later = events.assign(start_s=events["start_s"] + 7, end_s=events["end_s"] + 7)
    save(timeline({"GPipe": events, "later": later}), "both", alt=ALT)
    table = pd.read_csv(figures / "both.csv")
    assert list(table.columns) == ["schedule", *EVENT_COLUMNS, "kept", "panel"]
    for panel, title in enumerate(("GPipe", "later")):
        rows = table[(table["schedule"] == title) & (table["panel"] == panel)]
        kept = rows[(rows["name"] == "activations") & (rows["rank"] == 1)]
        back = event_table(rows.loc[rows["name"] != "activations", list(EVENT_COLUMNS)].itertuples(index=False))
        pd.testing.assert_frame_equal(back, events.sort_values(["rank", "lane", "start_s"], ignore_index=True))
        # rank 1 of GPipe: forwards start at 1, 2, 3; backwards, 2 long, end at 6, 8, 10
        steps = [(1, 1), (2, 2), (3, 3), (6, 2), (8, 1), (10, 0)]
        assert list(zip(kept["start_s"], kept["kept"], strict=True)) == steps


@pytest.mark.slow
def test_the_same_data_give_the_same_bytes(figures):
    for name, ax in every_kind_of_figure():
        save(ax, name, alt=ALT)
    first = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert len(first) == 20
    for name, ax in every_kind_of_figure():
        save(ax, name, alt=ALT)
    assert [name for name, content in first.items() if (figures / name).read_bytes() != content] == []


def test_a_figure_drawn_by_hand_is_saved_with_the_table_attached_to_its_axes(figures):
    ax = plt.subplots()[1]
    ax.plot([1, 2], [3.0, 4.0])
    table = pd.DataFrame({"ranks": [1, 2], "ms": [3.0, 4.0]})
    attach(ax, table)
    save(ax, "by_hand", alt=ALT)
    pd.testing.assert_frame_equal(pd.read_csv(figures / "by_hand.csv"), table)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda ax: save(plt.figure(), "empty", alt=ALT), ValueError, "no table says what the figure shows"),
        *[
            (lambda ax, name=name: save(ax, name, alt=ALT), ValueError, "expected letters, digits")
            for name in ("", "a/b", "a.png", ".hidden", "two ranks", None)
        ],
        *[(lambda ax, alt=alt: save(ax, "a", alt=alt), ValueError, "expected a sentence") for alt in ("  \n", None)],
        (lambda ax: show(ax, alt=""), ValueError, "expected a sentence that tells what the picture shows"),
        (lambda ax: show(two_ranks(), alt=ALT), TypeError, "got DataFrame, expected a matplotlib figure or axes"),
    ],
)
def test_what_cannot_be_saved_or_shown_is_refused_and_leaves_no_file(figures, make, error, message):
    with pytest.raises(error, match=message):
        make(timeline(two_ranks()))
    assert not figures.exists()


def test_a_stored_notebook_gets_an_opaque_png_with_alt_text_once(figures, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    pictures = save(timeline(two_ranks()), "two_ranks", alt=ALT), show(timeline(two_ranks()), alt=ALT)
    assert plt.get_fignums() == []  # or else the notebook shows it a second time
    for picture, text in zip(pictures, ("Picture two_ranks", "Picture"), strict=True):
        data, metadata = picture._repr_mimebundle_()
        image = matplotlib.image.imread(io.BytesIO(base64.b64decode(data.pop("image/png"))))
        assert metadata["image/png"]["alt"] == ALT and data == {"text/plain": text}
        assert metadata["image/png"]["width"] == pytest.approx(image.shape[1] / 1.5, abs=1)
        assert (image[..., 3] == 1).all() and (image[0, 0] == 1).all()


def test_a_live_cell_gets_the_same_png_also_as_html_which_a_dark_page_turns_dark(figures, monkeypatch):
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    data, metadata = show(timeline(two_ranks()), alt='Two "ranks".')._repr_mimebundle_()
    page = BeautifulSoup(data["text/html"], "html.parser")
    assert page.img["src"] == f"data:image/png;base64,{data['image/png']}"
    assert {name: page.img[name] for name in ("alt", "width", "height")} == {
        name: str(value) for name, value in metadata["image/png"].items()
    }
    assert f".{page.img['class'][0]} {{ filter: invert" in page.style.string
