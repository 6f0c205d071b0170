"""What the page works out without Python, in node: times as simulate has them, and the picture as
the schedule explorer has it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import eighths, random_schedules, schedules, stage_times

from labkit.explore import schedule_explorer, standalone_html
from labkit.explore.schedules.state import SCHEDULES
from labkit.schedule import EVENT_NAMES, find_dependencies
from labkit.simulate import simulate

BROWSER = Path(standalone_html.__file__).parent / "browser"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

TIMES = """
import { earliestTimes } from "BROWSER/earliest_times.js";
const list = (columns) => Object.fromEntries(Object.entries(columns).map(([name, each]) => [name, [...each]]));
return given.map(({ ops, durations, hop }) => list(earliestTimes(ops, durations, hop)));
"""
PICTURES = """
import { readScene } from "BROWSER/scene.js";
import { movedTo } from "BROWSER/pipeline.js";
const list = (value) => (ArrayBuffer.isView(value) || value instanceof Set ? [...value].map(Number) : value);
const plain = ({ title, facts, height, rows, peaks, bars, needs, critical, clocks, moments, strips }) => {
  const wide = strips.left.map((left, i) => (strips.right[i] > left ? i : -1)).filter((i) => i >= 0);
  const { left, right, top, style, chunk, labels } = bars;
  const words = [title, facts, ...[...rows, ...peaks].map(([at, text]) => [at, text]), labels];
  return { words, height, needs, critical: [...critical].sort(), clocks, moments: new Set([...moments].sort()),
    left, right, top, style, chunk,
    strips: Object.values(strips).map((column) => wide.map((i) => Number(column[i]))) };
};
const text = (scene) => JSON.parse(JSON.stringify(scene.panels.map(plain), (_, value) => list(value)));
return given.map(({ before, after, said }) => ({
  made: text(readScene(before, movedTo(before.pipeline, said))), sent: text(readScene(after)),
}));
"""

ANSWERS = """
import { spotsOf } from "BROWSER/bars.js";
import { readScene } from "BROWSER/scene.js";
import { movedTo } from "BROWSER/pipeline.js";
import { PictureAnswers } from "BROWSER/pipeline_words.js";
const scene = readScene(given.before, movedTo(given.before.pipeline, given.said));
const answers = new PictureAnswers(scene);
return Promise.all(scene.panels.map((panel, number) => Promise.all(spotsOf(panel).asked
  .filter(([kind]) => kind !== "bar").map(async ([kind, i]) => [kind, i, await answers.ask(kind, number, i)]))));
"""


def in_node(source: str, given: object, browser: Path = BROWSER) -> list:
    """Return what a function of JavaScript makes of what is ``given``."""
    imports, body = (
        "\n".join(line for line in source.splitlines() if line.startswith("import") == wanted)
        for wanted in (True, False)
    )
    module = (
        f'import {{ readFileSync }} from "node:fs";\n{imports.replace("BROWSER", str(browser))}\n'
        f"const answer = async (given) => {{{body}}};\n"
        'process.stdout.write(JSON.stringify(await answer(JSON.parse(readFileSync(0, "utf8")))));'
    )
    text = json.dumps(given, default=lambda content: base64.b64encode(content).decode())
    command = [str(NODE), "--input-type=module", "-e", module]
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# --- times ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases():
    """Five hundred schedules with the times of their ops, and what simulate makes of them."""
    found = []

    @settings(max_examples=500, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def collect(data):
        schedule = data.draw(st.one_of(schedules(most_ranks=6, most_micro_batches=9), random_schedules()))
        found.append((schedule, data.draw(stage_times(schedule)), data.draw(st.one_of(st.just(0.0), eighths))))

    collect()
    return found


def asked(schedule, times, hop):
    ops = [[{"kind": kind, "stage": stage, "microBatch": i} for kind, stage, i in ops] for ops in schedule.ops]
    durations = {kind: np.broadcast_to(times[name], schedule.n_stages).tolist() for kind, name in EVENT_NAMES.items()}
    return {"ops": ops, "durations": durations, "hop": hop}


def expected(schedule, times, hop):
    events = simulate(schedule, **times, hop=hop)
    needed = [-1 if op is None else op for op in find_dependencies(schedule).input_op]
    return {"start": events["start_s"].tolist(), "end": events["end_s"].tolist(), "input": needed}


def test_earliest_times_in_the_page_are_those_of_simulate(cases):
    assert len(cases) >= 500
    assert in_node(TIMES, [asked(*case) for case in cases]) == [expected(*case) for case in cases]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("rank[input[i]] === rank[i] ? 0 : hop", "hop"),
        ("Math.max(rank[i - 1]", "Math.min(rank[i - 1]"),
        ('output("I", stage);', 'output("F", stage);'),
        ('?? output("I", stage + 1)', ""),
        ("durations[all[i].kind][all[i].stage]", "durations[all[i].kind][0]"),
    ],
)
def test_a_mistake_in_the_times_is_noticed(cases, right, wrong, tmp_path):
    text = (BROWSER / "earliest_times.js").read_text()
    assert text.count(right) == 1
    (tmp_path / "earliest_times.js").write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError):
        found = in_node(TIMES, [asked(*case) for case in cases[:100]], tmp_path)
        assert found == [expected(*case) for case in cases[:100]]


def flat(value):
    return {str(i): each for i, each in enumerate(flattened(value))}


def flattened(value):
    return [part for each in value for part in flattened(each)] if isinstance(value, list) else [value]


# --- pictures -------------------------------------------------------------------------------------


def moved(text, **values):
    """Return an explorer whose sliders were moved, and what the page knew: the picture before."""
    explorer = schedule_explorer(text)
    before, sliders = explorer.timeline.scene, explorer.controls.sliders
    for key, value in values.items():
        sliders[key].value = value
    return explorer, {"before": before, "said": {key: sliders[key].value for key in ("F", "I", "W", "hop")}}


def test_what_a_slider_draws_without_python_is_what_python_draws():
    given = []
    for name in SCHEDULES:
        explorer, state = moved(f"{name} n=4 m=8 F=1,2,2,3 I=1 W=1 vs gpipe cap=2", W=1.7, hop=0.3)
        given.append(state | {"after": explorer.timeline.scene})
    for state, found in zip(given, in_node(PICTURES, given), strict=True):
        for made, sent in zip(found["made"], found["sent"], strict=True):
            for part in sent:
                assert flat(made[part]) == pytest.approx(flat(sent[part]), abs=1e-6), (part, state["before"]["alt"])


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zb-v"])
def test_idle_gaps_and_strips_of_a_page_without_python_say_what_python_says(name):
    explorer, given = moved(f"{name} n=4 m=8 F=1 B=2 vs 1f1b", W=1.5, hop=0.25)
    for number, answers in enumerate(in_node(ANSWERS, given)):
        panel, ops = (
            explorer.timeline._panels[number],
            find_dependencies([*explorer.predicted.values()][number].schedule).ops,
        )
        texts = {kind: [text.splitlines() for of, _, text in answers if of == kind] for kind in ("idle", "kept")}
        gaps = [index for kind, index, _ in answers if kind == "idle"]
        pieces = np.flatnonzero(panel.strips["right"] > panel.strips["left"])
        for kind, indices in (("idle", gaps), ("kept", pieces)):
            expected = [panel.explain_more[kind](index).splitlines() for index in indices]
            assert [head for head, *_ in texts[kind]] == [head for head, *_ in expected]
        for index, (_, why) in zip(gaps, texts["idle"], strict=True):
            assert why.startswith(f"To begin {ops[index]} " if index < len(ops) else "Its ops are done.")
