// What part of the axis is in sight: zooming, panning, ticks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Viewport, ticks } from "../../labkit/explore/browser/viewport.js";

const near = (found, wanted) => assert.ok(Math.abs(found - wanted) < 1e-9, `${found} is not ${wanted}`);

test("what is under the pointer stays there while zooming", () => {
  for (const x of [1, 7.5, 19]) {
    const view = new Viewport([0, 20]);
    const before = view.toPixel(x, 1000);
    for (let k = 0; k < 5; k++) view.zoom(1.4, x);
    near(view.toPixel(x, 1000), before);
    near(view.span, 20 / 1.4 ** 5);
  }
});

test("nothing beyond the ends of the axis is ever in sight", () => {
  const view = new Viewport([0, 20]);
  view.zoom(4, 10);
  view.pan(1000);
  assert.deepEqual(view.range, [15, 20]);
  view.pan(-1000);
  assert.deepEqual(view.range, [0, 5]);
  view.zoom(1 / 100, 2);
  assert.deepEqual(view.range, [0, 20]);
});

test("zooming in ends before numbers do", () => {
  const view = new Viewport([0, 20]);
  for (let k = 0; k < 500; k++) view.zoom(1.4, 10);
  assert.ok(view.span > 0 && view.range[0] < view.range[1]);
});

test("what is out of sight is brought into the middle, what is in sight moves nothing", () => {
  const view = new Viewport([0, 100]);
  view.zoom(10, 5);
  const before = [...view.range];
  view.reveal(before[0] + 1, before[0] + 2);
  assert.deepEqual(view.range, before);
  view.reveal(60, 62);
  near((view.range[0] + view.range[1]) / 2, 61);
  near(view.span, 10);
});

test("a bar longer than what is in sight is shown whole", () => {
  const view = new Viewport([0, 100]);
  view.zoom(50, 5);
  view.reveal(30, 70);
  assert.ok(view.range[0] <= 30 && view.range[1] >= 70);
});

test("another picture on the same axis keeps the zoom, one on another axis is shown whole", () => {
  const view = new Viewport([0, 20]);
  view.zoom(4, 10);
  const before = [...view.range];
  view.follow([0, 20]);
  assert.deepEqual(view.range, before);
  view.follow([0, 22]);
  assert.deepEqual(view.range, [0, 22]);
});

test("pixels and times are each other's inverse", () => {
  const view = new Viewport([3, 11]);
  view.zoom(2, 5);
  for (const x of [3.5, 5, 6.25]) near(view.fromPixel(view.toPixel(x, 733), 733), x);
});

test("an axis without length gives numbers all the same", () => {
  const view = new Viewport([2, 2]);
  view.zoom(2, 2);
  view.pan(1);
  assert.deepEqual(view.range, [2, 2]);
  assert.ok(Number.isFinite(view.toPixel(2, 100)), `pixel ${view.toPixel(2, 100)}`);
});

test("ticks are round, within the range, and no more than asked for", () => {
  assert.deepEqual(ticks(0, 22, 12), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]);
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  for (const [low, high, most] of [[0, 33, 7], [0.0012, 0.0031, 6], [1e6, 1e6 + 3, 4], [-5, 5, 10]]) {
    const found = ticks(low, high, most);
    assert.ok(found.length >= 1 && found.length <= most + 1, `${found.length} ticks for at most ${most}`);
    assert.ok(found.every((x) => x >= low - 1e-9 && x <= high + 1e-9), `${found} leaves ${low} to ${high}`);
    assert.equal(new Set(found).size, found.length);
  }
});

test("a range without length, or no room, has one tick", () => {
  assert.deepEqual(ticks(4, 4, 10), [4]);
  assert.deepEqual(ticks(0, 10, 0), [0]);
});
