// Where stepping stops.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Playback } from "../../labkit/explore/browser/playback.js";

const stops = [0, 2, 4];
const walk = (playback, steps) => Array.from({ length: steps }, () => (playback.move(1), playback.position));

test("a step goes from stop to stop and stays at the last", () => {
  assert.deepEqual(walk(new Playback(stops), 5), [0, 2, 4, 4, 4]);
});

test("back from the first step is the whole picture, back from that is the last step", () => {
  const playback = new Playback(stops);
  playback.move(1);
  playback.move(-1);
  assert.equal(playback.isOn, false);
  playback.move(-1);
  assert.equal(playback.position, 4);
});

test("a grid rests at one of its steps: back from its first it stays there", () => {
  const grid = new Playback([0, 1, 2], 2);
  assert.deepEqual([-1, -1, -1, 1].map((direction) => (grid.move(direction), grid.position)), [1, 0, 0, 1]);
  grid.stop();
  assert.equal(grid.position, 2);
});

test("a step takes a quarter of a second, from when it is first drawn, and does so once", () => {
  const playback = new Playback(stops);
  walk(playback, 1);
  assert.equal(playback.placeAt(0), 0, "from nowhere there is no way");
  walk(playback, 1);
  assert.deepEqual([900, 1025, 1150, 1025].map((now) => playback.placeAt(now)), [0, 1, 2, 2]);
  playback.move(-1);
  assert.deepEqual([2000, 2125].map((now) => playback.placeAt(now)), [2, 1]);
  playback.stop();
  assert.equal(playback.placeAt(2130), null);
});

test("a step is over before the next one that plays begins", () => {
  const many = new Playback(Array.from({ length: 600 }, (_, k) => k));
  walk(many, 2);
  assert.deepEqual([0, many.intervalMs].map((now) => many.placeAt(now)), [0, 1]);
});

test("at a place on the axis is the last step up to it", () => {
  const playback = new Playback(stops);
  assert.deepEqual([3.9, 4, 99, -1].map((place) => (playback.goTo(place), playback.position)), [2, 4, 4, 0]);
});

test("a picture without stops is never on, however often a step is asked for", () => {
  const playback = new Playback([]);
  playback.move(1);
  playback.move(-1);
  playback.move(1);
  assert.equal(playback.isOn, false);
  assert.equal(playback.position, null);
  assert.ok(playback.isAtEnd);
});

test("a long schedule plays within half a minute, a short one slowly enough to follow", () => {
  const many = new Playback(Array.from({ length: 700 }, (_, k) => k));
  assert.ok(many.intervalMs * 700 <= 30001);
  assert.ok(new Playback(stops).intervalMs >= 500);
});
