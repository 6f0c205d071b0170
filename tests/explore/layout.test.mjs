// Where things stand in the picture.
import assert from "node:assert/strict";
import { test } from "node:test";
import { layOut as layOutOf, placeOf } from "../../labkit/explore/browser/layout.js";

const widthOf = (text, { size = 12 } = {}) => 0.56 * size * text.length;
const layOut = (scene, width) => layOutOf(scene, width, widthOf);

function sceneOf(heights, { axis = "time (s)", word = "rank 0", columns = [], facts = "" } = {}) {
  const panels = heights.map((height) => ({
    height, columns, title: "1F1B", facts, peaks: [],
    rows: Array.from({ length: height }, (_, k) => [k + 0.5, word, false]),
  }));
  return { axis, panels, extent: [0, 4] };
}

test("panels stand under one another and the axis below all of them", () => {
  const layout = layOut(sceneOf([4, 2, 8]), 1000);
  layout.panels.forEach((panel, k) => {
    assert.ok(panel.top < panel.rowsTop && panel.rowsTop < panel.bottom);
    if (k) assert.ok(panel.top >= layout.panels[k - 1].bottom);
    assert.ok(Math.abs(panel.bottom - panel.rowsTop - [4, 2, 8][k] * layout.row) < 1e-9);
  });
  assert.ok(layout.axisTop >= layout.panels.at(-1).bottom && layout.height > layout.axisTop);
});

test("many ranks get lower rows, so that the picture fits a screen, and never none", () => {
  const few = layOut(sceneOf([4]), 1000);
  const many = layOut(sceneOf([64, 64]), 1000);
  assert.ok(many.row < few.row && many.row >= 3);
  assert.ok(many.height < 900, `${many.height} px for 128 rows`);
});

test("all within the width: labels, plot, what stands to the right", () => {
  for (const width of [320, 700, 1280]) {
    const { gutter, plot } = layOut(sceneOf([4]), width);
    assert.ok(gutter > 0 && plot >= 60 && gutter + plot <= width, `${gutter} + ${plot} in ${width}`);
  }
});

test("in a room of its own a picture fills it as far as its rows may grow or shrink", () => {
  const heightIn = (rows, room) => layOutOf(sceneOf([rows]), 1000, widthOf, room).height;
  for (const room of [150, 200]) assert.ok(Math.abs(heightIn(4, room) - room) < 1e-9, `${heightIn(4, room)} of ${room}`);
  assert.ok(heightIn(4, 2000) < 300 && heightIn(64, 100) > 100); // never gross, never none
});

test("longer words beside the rows take more room", () => {
  assert.ok(layOut(sceneOf([4], { word: "parameter server" }), 1000).gutter > layOut(sceneOf([4]), 1000).gutter);
});

test("facts that have no room beside the title stand below it, in lines no longer than the picture", () => {
  const scene = sceneOf([4], { facts: "6 steps, the busiest rank sends 1.5 tensors" });
  const [wide, narrow] = [layOut(scene, 1000), layOut(scene, 300)];
  assert.equal(wide.panels[0].facts.lines.length, 1);
  const [besideTitle, ...lines] = narrow.panels[0].facts.lines;
  assert.equal(besideTitle, "");
  assert.equal(lines.join(" "), scene.panels[0].facts);
  for (const line of lines) assert.ok(narrow.gutter + widthOf(line) <= 300, line);
  assert.ok(narrow.panels[0].rowsTop >= wide.panels[0].rowsTop + 12 * lines.length);
});

test("a title breaks into lines no longer than the picture, above the facts", () => {
  const scene = sceneOf([4], { facts: "6 steps" });
  scene.panels[0].title = "GPT-2 small: bytes, in the order of sending";
  const [wide, narrow] = [layOut(scene, 1000), layOut(scene, 220)].map(({ panels }) => panels[0]);
  assert.deepEqual([wide.titleLines, wide.facts.lines], [[scene.panels[0].title], ["6 steps"]]);
  assert.equal(narrow.titleLines.join(" "), scene.panels[0].title);
  for (const line of narrow.titleLines) assert.ok(widthOf(line) <= 220, line);
  assert.deepEqual(narrow.facts.lines, [...narrow.titleLines.map(() => ""), "6 steps"]);
  assert.ok(narrow.rowsTop >= wide.rowsTop + 12 * narrow.titleLines.length);
});

test("names of columns break into lines and shrink until neighbours stay apart", () => {
  const columns = [0, 1, 2, 3].map((k) => [k + 0.5, `stage ${k} gradients`]);
  const { plot, panels: [{ names }] } = layOut(sceneOf([4], { axis: null, columns }), 260);
  for (const [, lines] of names.texts) {
    assert.ok(lines.length > 1);
    for (const line of lines) assert.ok(widthOf(line, names) <= plot / 4, `${line} in ${plot / 4}`);
  }
});

test("a point in a row is in that row and at that pixel of the plot", () => {
  const layout = layOut(sceneOf([4, 2]), 1000);
  const y = layout.panels[1].rowsTop + 1.5 * layout.row;
  const place = placeOf(layout, layout.gutter + 123, y);
  assert.equal(place.panel, 1);
  assert.ok(Math.abs(place.x - 123) < 1e-9 && Math.abs(place.row - 1.5) < 1e-9);
});

test("a point on a label, on the axis or between panels is in none", () => {
  const layout = layOut(sceneOf([4, 2]), 1000);
  const inside = layout.panels[0].rowsTop + 5;
  assert.equal(placeOf(layout, 5, inside), null);
  assert.equal(placeOf(layout, layout.gutter + layout.plot + 30, inside), null);
  assert.equal(placeOf(layout, layout.gutter + 50, layout.axisTop + 10), null);
  assert.equal(placeOf(layout, layout.gutter + 50, layout.panels[0].bottom + 3), null);
});
