"""Pictures follow the reader's rcParams, axes and colours, as matplotlib's own do."""

import matplotlib.image
import matplotlib.pyplot as plt
import pytest
from drawn_artists import drawn_bars
from drawn_tables import ALT, RESULTS, two_ranks
from matplotlib.colors import same_color
from matplotlib.text import Text

from labkit.draw import save, timeline
from labkit.draw.charts import bars, curves
from labkit.explore import Timeline
from labkit.schedule import gpipe, one_f_one_b
from labkit.simulate import simulate

SLIDE = ["dark_background", {"figure.figsize": (8, 4.5), "font.size": 18, "savefig.dpi": 50}]


def steps() -> dict:
    return {"GPipe": simulate(gpipe(2, 2)), "1F1B": simulate(one_f_one_b(2, 2))}


DRAWN = {
    "timeline": lambda: timeline(two_ranks()),
    "schedules": lambda: timeline(steps()),
    "bars": lambda: bars(RESULTS, group="setting", series="source", value="time_s", error=("low_s", "high_s")),
    "curves": lambda: curves({"ring": {2: (1.1, 1.0, 1.3), 4: 2}, "predicted": {2: 1, 4: 2}}, x="ranks", y="ms"),
}


def letters(ax) -> list[Text]:
    figure = ax.figure
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


@pytest.mark.parametrize("name", DRAWN)
def test_a_slide_has_its_size_its_ground_and_letters_that_stand_out_from_it(name, figures):
    words = {text.get_text() for text in letters(DRAWN[name]()) if text.get_fontsize() >= 7.5}
    with plt.style.context(SLIDE):
        ax = DRAWN[name]()
        for text in letters(ax):
            ground = text.get_bbox_patch()
            dark = ground is None or same_color(ground.get_facecolor(), "black")
            in_a_bar = text.axes is not None and text in text.axes.texts and text.get_color() == "black"
            assert in_a_bar or not dark or sum(plt.matplotlib.colors.to_rgb(text.get_color())) > 1.5, text
            assert text.get_text() not in words or text.get_fontsize() >= 10, text
        save(ax, name, alt=ALT)
    image = matplotlib.image.imread(figures / f"{name}.png")
    assert image.shape[:2] == (225, 400) and (image[0, 0] == [0, 0, 0, 1]).all()
    assert (image[..., :3].min(axis=2) > 0.97).mean() < 0.05  # white is letters alone


def test_steps_are_drawn_on_given_axes_with_idle_time_memory_and_the_readers_colours():
    figure, axes = plt.subplots(2)
    assert timeline(steps(), ax=axes, colors={"forward": "tab:pink"}) is axes[1]
    assert plt.get_fignums() == [figure.number] and not figure.legends
    for ax, title in zip(axes, steps(), strict=True):
        assert ax.get_title("left") == title and len(drawn_bars(ax)) == 8
        assert any(same_color(each.get_facecolor()[0], "tab:pink") for each in ax.collections)
    legend = axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["forward", "backward", "idle", "activations kept"]
    assert same_color(legend.get_patches()[0].get_facecolor(), "tab:pink")


WRONG = {
    "one of two axes": (lambda: timeline(steps(), ax=plt.subplots()[1]), "ax has 1 axes, expected 2"),
    "no event": (lambda: timeline(two_ranks(), colors={"forwards": "red"}), "forwards is not drawn, expected some of"),
    "no colour": (lambda: timeline(two_ranks(), colors={"forward": "greenish"}), "greenish"),
    "no series": (
        lambda: bars(RESULTS, group="setting", series="source", value="time_s", colors={"guessed": "red"}),
        "guessed is not drawn, expected some of measured, published",
    ),
    "no line": (lambda: curves({"a": {1: 1}}, x="x", y="y", colors={"b": "red"}), "b is not drawn"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_other_axes_and_colours_of_what_is_not_drawn_are_refused_before_anything_is_drawn(fault):
    draw, says = WRONG[fault]
    with pytest.raises(ValueError, match=says):
        draw()
    assert not any(drawn_bars(ax) for number in plt.get_fignums() for ax in plt.figure(number).axes)


def test_a_line_and_a_saved_widget_take_the_readers_colours(figures):
    ax = curves({"ring": {2: 1, 4: 2}, "tree": {2: 1, 4: 1}}, x="ranks", y="ms", colors={"tree": "red"})
    assert [line.get_color() for line in ax.lines][1] == "#ff0000"
    Timeline(simulate(gpipe(2, 2))).save("own", colors={"forward": "#123456"})
    assert "#123456" in (figures / "own.svg").read_text()


def test_times_in_units_are_not_called_seconds():
    units, seconds = simulate(gpipe(2, 2)), simulate(gpipe(2, 2), forward=0.5)
    assert timeline(units).get_xlabel() == "time (units)" and timeline(seconds).get_xlabel() == "time (s)"
    assert timeline(steps()).figure.axes[0].get_title("right").startswith("makespan 9   bubble")
    assert repr(Timeline(units)).endswith("It takes 9.") and repr(Timeline(seconds)).endswith("It takes 7.5 s.")
