"""labkit.draw.picture: what is saved with a figure, and what a notebook gets to show."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from drawn_tables import ALT, RESULTS, SWEEP, two_ranks

from labkit.draw import overlay, save, schedule_table, schedules, show, timeline
from labkit.draw.charts import bars, curve
from labkit.schedule import gpipe, zero_bubble_v
from labkit.simulate import simulate
from labkit.trace import EVENT_COLUMNS, event_table


@pytest.fixture(autouse=True)
def figures(tmp_path, monkeypatch):
    folder = tmp_path / "figures"
    monkeypatch.setenv("LABKIT_FIGURES", str(folder))
    yield folder
    plt.close("all")


def every_kind_of_figure():
    yield "timeline", timeline(two_ranks())
    yield "overlay", overlay(two_ranks(), two_ranks(1.2))
    yield "bars", bars(RESULTS, group="setting", series="source", value="time_s", error="spread_s")
    yield "schedules", schedules({"GPipe": simulate(gpipe(2, 2)), "ZB-V": simulate(zero_bubble_v(2, 2))})
    yield "schedule_table", schedule_table(zero_bubble_v(2, 2))
    yield "curve", curve(SWEEP, x="batch", y="time_s", predicted="model_s")


def test_saving_writes_png_svg_csv_and_alt_text_and_nothing_else(figures):
    picture = save(timeline(two_ranks()), "two_ranks", alt=ALT)
    assert {path.name for path in figures.iterdir()} == {f"two_ranks.{end}" for end in ("png", "svg", "csv", "alt.txt")}
    assert set(picture.files) == set(figures.iterdir())
    assert (figures / "two_ranks.alt.txt").read_text() == ALT + "\n"
    assert matplotlib.image.imread(figures / "two_ranks.png").shape[2] == 4
    assert ElementTree.parse(figures / "two_ranks.svg").getroot().tag.endswith("svg")


def test_the_same_data_give_the_same_bytes_whatever_the_readers_style(figures):
    for name, ax in every_kind_of_figure():
        save(ax, name, alt=ALT)
    first = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert len(first) == 24
    with plt.style.context("dark_background"):
        for name, ax in every_kind_of_figure():
            save(ax, name, alt=ALT)
    assert [name for name, content in first.items() if (figures / name).read_bytes() != content] == []


def test_other_data_give_other_bytes(figures):
    save(timeline(two_ranks()), "one", alt=ALT)
    save(timeline(two_ranks().assign(end_s=lambda t: t["end_s"] + 0.05)), "other", alt=ALT)
    for ending in ("png", "svg", "csv"):
        assert (figures / f"one.{ending}").read_bytes() != (figures / f"other.{ending}").read_bytes()


def test_the_csv_of_a_timeline_reads_back_as_its_events(figures):
    events = two_ranks()
    save(timeline(events), "events", alt=ALT)
    back = event_table(pd.read_csv(figures / "events.csv").itertuples(index=False))
    order = ["rank", "lane", "start_s"]
    expected = events.sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(back, expected)


def test_the_csv_of_an_overlay_has_both_tables_as_drawn(figures):
    save(
        overlay(two_ranks(), two_ranks(2.0).assign(start_s=lambda t: t["start_s"] + 5, end_s=lambda t: t["end_s"] + 5)),
        "both",
        alt=ALT,
    )
    table = pd.read_csv(figures / "both.csv")
    assert list(table.columns) == ["source", *EVENT_COLUMNS]
    assert table.groupby("source")[["start_s", "end_s"]].agg({"start_s": "min", "end_s": "max"}).to_dict("index") == {
        "predicted": {"start_s": 0, "end_s": 10},
        "measured": {"start_s": 0, "end_s": 20},
    }


def test_the_csv_of_schedules_has_the_events_of_every_panel_and_what_each_rank_kept(figures):
    tables = {"GPipe": simulate(gpipe(2, 3)), "later": simulate(gpipe(2, 3)).assign(start_s=lambda t: t["start_s"] + 7)}
    tables["later"]["end_s"] += 7
    save(schedules(tables), "both", alt=ALT)
    table = pd.read_csv(figures / "both.csv")
    assert list(table.columns) == ["schedule", *EVENT_COLUMNS, "kept", "panel"]
    order = ["rank", "lane", "start_s"]
    for title, rows in table.groupby("schedule"):
        events = rows[rows["name"] != "activations"]
        back = event_table(events[list(EVENT_COLUMNS)].itertuples(index=False))
        pd.testing.assert_frame_equal(back, tables["GPipe"].sort_values(order, ignore_index=True))  # both from 0 on
        assert set(rows["panel"]) == {list(tables).index(title)}
        kept = rows[(rows["name"] == "activations") & (rows["rank"] == 1)]
        # rank 1 of GPipe: forwards start at 1, 2, 3; backwards, 2 long, end at 6, 8, 10
        assert list(zip(kept["start_s"], kept["kept"], strict=True)) == [
            (1, 1),
            (2, 2),
            (3, 3),
            (6, 2),
            (8, 1),
            (10, 0),
        ]


def test_the_csv_of_bars_and_of_a_curve_is_their_table(figures):
    for name, ax in every_kind_of_figure():
        if name in ("bars", "curve"):
            save(ax, name, alt=ALT)
    pd.testing.assert_frame_equal(pd.read_csv(figures / "bars.csv"), RESULTS)
    assert pd.read_csv(figures / "curve.csv").to_dict("list") == SWEEP[["batch", "time_s", "model_s"]].to_dict("list")


def test_a_figure_drawn_by_hand_exports_its_lines_bars_and_points(figures):
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [3.0, 4.0], label="line")
    left.errorbar([1, 2], [5.0, 6.0], yerr=[0.5, 0.25], label="with errors")
    left.axhline(1.0)  # a guide, no data
    right.bar(["gloo", "nccl"], [7.0, 8.0], label="bars")
    right.scatter([0.5], [9.0], label="point")
    save(figure, "by_hand", alt=ALT)
    rows = pd.read_csv(figures / "by_hand.csv")[["panel", "series", "x", "y", "y_error"]].astype({"x": str})
    found = {tuple(row) for row in rows.fillna(-1).itertuples(index=False)}
    assert found == {
        (0, "line", "1", 3.0, -1),
        (0, "line", "2", 4.0, -1),
        (0, "with errors", "1", 5.0, 0.5),
        (0, "with errors", "2", 6.0, 0.25),
        (1, "bars", "gloo", 7.0, -1),
        (1, "bars", "nccl", 8.0, -1),
        (1, "point", "0.5", 9.0, -1),
    }


def test_a_figure_without_data_is_refused_and_leaves_no_file(figures):
    with pytest.raises(ValueError, match="shows no data"):
        save(plt.figure(), "empty", alt=ALT)
    assert not figures.exists()


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a.png", ".hidden", "two ranks", "C:\\a", None])
def test_a_name_that_is_no_plain_file_name_is_refused(figures, name):
    with pytest.raises(ValueError, match="expected letters, digits"):
        save(timeline(two_ranks()), name, alt=ALT)
    assert not figures.exists()


@pytest.mark.parametrize("alt", ["", "  \n", None])
def test_a_picture_without_alt_text_is_refused(figures, alt):
    for make in (lambda ax: save(ax, "name", alt=alt), lambda ax: show(ax, alt=alt)):
        with pytest.raises(ValueError, match="expected a sentence that tells what the picture shows"):
            make(timeline(two_ranks()))
    assert not figures.exists()


def test_something_else_than_a_figure_is_refused():
    with pytest.raises(TypeError, match="got DataFrame, expected a matplotlib figure or axes"):
        show(two_ranks(), alt=ALT)


def test_a_notebook_gets_png_with_alt_text_and_a_text_that_never_changes():
    for picture in (save(timeline(two_ranks()), "two_ranks", alt=ALT), show(timeline(two_ranks()), alt=ALT)):
        data, metadata = picture._repr_mimebundle_()
        assert metadata["image/png"]["alt"] == ALT
        image = matplotlib.image.imread(io.BytesIO(base64.b64decode(data["image/png"])))
        assert metadata["image/png"]["width"] == pytest.approx(image.shape[1] / 1.5, abs=1)
        assert data["text/plain"] in ("Picture two_ranks", "Picture")
        assert set(data) == {"image/png", "text/plain"}


def test_the_background_is_opaque_white_so_that_it_reads_on_a_dark_page():
    with plt.style.context("dark_background"):
        image = matplotlib.image.imread(io.BytesIO(show(timeline(two_ranks()), alt=ALT).png))
    assert (image[..., 3] == 1).all()
    assert (image[0, 0] == 1).all()


def test_a_shown_figure_is_closed_so_that_the_notebook_does_not_show_it_twice():
    save(timeline(two_ranks()), "two_ranks", alt=ALT)
    show(timeline(two_ranks()), alt=ALT)
    assert plt.get_fignums() == []


def test_a_write_that_fails_leaves_the_old_file_and_no_other(figures, monkeypatch):
    save(timeline(two_ranks()), "kept", alt=ALT)
    before = {path: path.read_bytes() for path in figures.iterdir()}

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        save(timeline(two_ranks(2.0)), "kept", alt="other")
    assert {path: path.read_bytes() for path in figures.iterdir()} == before


@pytest.mark.parametrize("marker", ["notebooks", "pyproject.toml"])
def test_without_a_named_folder_figures_go_to_the_lab_around_the_working_directory(tmp_path, monkeypatch, marker):
    monkeypatch.delenv("LABKIT_FIGURES")
    inside = tmp_path / "lab" / "notebooks" / "deeper"
    inside.mkdir(parents=True)
    if marker == "pyproject.toml":
        (tmp_path / "lab" / "notebooks").rename(tmp_path / "lab" / "chapters")
        inside = tmp_path / "lab" / "chapters" / "deeper"
        (tmp_path / "lab" / marker).write_text('[project]\nname = "labkit"\n')
    monkeypatch.chdir(inside)
    picture = save(timeline(two_ranks()), "here", alt=ALT)
    assert {path.parent for path in picture.files} == {tmp_path / "lab" / "figures"}


def test_outside_any_lab_figures_go_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_FIGURES")
    monkeypatch.chdir(tmp_path)
    assert save(timeline(two_ranks()), "here", alt=ALT).files[0].parent == tmp_path / "figures"


def test_every_cell_of_a_notebook_shows_the_figure_it_draws():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    from labkit.course.notebooks import over_ipc

    draws = "from labkit import draw, schedule, simulate\ndraw.timeline(simulate.simulate(schedule.gpipe(2, 2)))"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(draws) for _ in range(2)])
    client = nbclient.NotebookClient(notebook, kernel_name="python3")
    over_ipc(client.create_kernel_manager())
    client.execute()
    for cell in notebook.cells:
        assert ["image/png" in output.get("data", {}) for output in cell.outputs].count(True) == 1
