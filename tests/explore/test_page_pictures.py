"""What the page paints, in node: a canvas that writes down each rectangle and each text.

Oracles are the event tables: where a rank has a bar, where none has one any more.
"""

from itertools import pairwise

import pytest
from page_in_node import NODE, in_node

from labkit.explore import Timeline, schedule_explorer
from labkit.schedule import one_f_one_b
from labkit.simulate import makespan, simulate

pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

PAINT = """
import { spotsOf } from "BROWSER/bars.js";
import { layOut } from "BROWSER/layout.js";
import { Painter } from "BROWSER/painter.js";
import { readScene } from "BROWSER/scene.js";
import { readPipeline } from "BROWSER/schedules.js";
import { Viewport } from "BROWSER/viewport.js";
const painted = [];
const state = {};
const does = {
  measureText: (text) => ({ width: 0.56 * text.length * parseFloat(/([\\d.]+)px/.exec(state.font)[1]) }),
  fillRect: (...box) => painted.push({ fill: state.fillStyle, box }),
  fillText: (text, x, y) => painted.push({ text, x, y, font: state.font }),
};
const pen = new Proxy(state, { get: (_, name) => state[name] ?? does[name] ?? (() => {}) });
globalThis.window = { devicePixelRatio: 1 };
const { sent, zoom = 1, playhead = null } = given;
const scene = sent.pipeline ? readPipeline(sent, { ...sent.pipeline, ...given.look }) : readScene(sent);
for (const style of scene.styles) style.hatch = "";
const painter = new Painter({ style: {}, getContext: () => pen });
const layout = layOut(scene, 1000, (text, look) => painter.widthOf(text, look));
const viewport = new Viewport(scene.extent);
viewport.zoom(zoom, scene.extent[1]);
const theme = { name: "light", ink: "ink", muted: "muted", idle: "idle", focus: "focus", kept: "kept" };
const nothing = { hovered: null, pinned: null, focus: null, dragged: null, litStyles: new Set(), step: 0 };
painter.paint({ ...nothing, scene, layout, viewport, theme, playhead });
const timeOf = (x) => viewport.fromPixel(x - layout.gutter, layout.plot);
const span = ({ box: [x, y, width] }) => ({ y, from: timeOf(x), until: timeOf(x + width) });
const of = (colour) => painted.filter(({ fill }) => fill === colour).map(span);
return {
  idle: of("idle"), playhead: of("focus"), texts: painted.filter(({ text }) => text),
  panels: layout.panels.map(({ rowsTop, bottom }) => [rowsTop, bottom]),
  gaps: scene.panels.map((panel) => spotsOf(panel).what.filter(({ kind }) => kind === "idle").map(({ right }) => right)),
};
"""


def painted(timeline, **given):
    look = timeline.form["schedules"]["look"] if timeline.form else {}
    return in_node(PAINT, {"sent": timeline.scene, "look": look, **given})


def test_the_ground_of_a_run_ends_where_the_run_does():
    both = painted(schedule_explorer("1f1b vs zb-h1").timeline)
    for (top, bottom), end in zip(both["panels"], [33, 27], strict=True):
        grey = [each for each in both["idle"] if top <= each["y"] < bottom]
        assert len(grey) == 4
        assert {(round(each["from"], 6), round(each["until"], 6)) for each in grey} == {(0, end)}


def test_a_prediction_is_not_idle_after_its_own_end():
    ideal = simulate(one_f_one_b(4, 8))
    slower = simulate(one_f_one_b(4, 8), forward=2.0, backward=4.0)
    found = painted(Timeline(slower, ideal=ideal))
    ends = {round(each["until"], 6) for each in found["idle"]}
    assert ends == {makespan(ideal), makespan(slower)} == {33, 66}
    assert not [right for right in found["gaps"][0] if 33 < right < 66 and right in set(ideal["end_s"])]
    shown = painted(Timeline(ideal))["gaps"][0]
    measured = painted(Timeline(slower))["gaps"][0]
    assert len(found["gaps"][0]) == len(shown) + len(measured)


def test_the_playhead_stays_within_the_plot():
    timeline = Timeline(simulate(one_f_one_b(4, 8)))
    assert len(painted(timeline, playhead=20.0)["playhead"]) == 1
    assert painted(timeline, playhead=2.0, zoom=4)["playhead"] == []  # out of sight, left of 24.75


def test_words_beside_rows_never_touch_and_of_few_ranks_none_is_left_out():
    for n_ranks in (4, 32, 64):
        events = simulate(one_f_one_b(n_ranks, 8))
        small = [
            each
            for each in painted(Timeline(events, ideal=events))["texts"]
            if each["text"] in ("predicted", "measured")
        ]
        size = [float(each["font"].split()[1].removesuffix("px")) for each in small]
        ys = sorted(each["y"] for each in small)
        assert all(b - a >= max(size) - 0.01 for a, b in pairwise(ys)), n_ranks
        assert len(small) == (2 * n_ranks if n_ranks < 64 else 0)
