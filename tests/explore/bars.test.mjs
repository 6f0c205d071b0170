// Bars in rows: which are in sight, which is under the pointer, which is next. The oracle of the
// searches looks at every bar.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bars, grouped, spotsOf } from "../../labkit/explore/browser/bars.js";
import { Slide } from "../../labkit/explore/browser/slide.js";

// rows: for each row from the top a list of [left, right], or [left, right, appear, vanish].
function barsOf(rows) {
  const all = rows.flatMap((row, top) => row.map(([left, right, appear = 0, vanish = 1e9]) => ({ left, right, top, appear, vanish })));
  const column = (name) => Float64Array.from(all, (bar) => bar[name]);
  const columns = { left: column("left"), right: column("right"), top: column("top"), appear: column("appear"), vanish: column("vanish") };
  columns.height = new Float64Array(all.length).fill(0.8);
  return new Bars(columns, all.map((_, i) => String(i)));
}

// Bars that overlap and are of all lengths: numbers that look drawn by lot and are the same each time.
function tangled(count) {
  let state = 12345;
  const next = () => (state = (state * 1103515245 + 12345) % 2 ** 31) / 2 ** 31;
  return barsOf([0, 1, 2].map(() => Array.from({ length: count }, () => {
    const left = next() * 100;
    return [left, left + next() ** 3 * 30];
  })));
}

function inSight(bars, x0, x1, least = 0) {
  const found = [];
  bars.forEachVisible(x0, x1, least, (i) => found.push(i));
  return found;
}

test("every bar that reaches into the window is drawn, and none that begins after it", () => {
  const bars = tangled(200);
  for (const [x0, x1] of [[0, 200], [10, 12], [55.5, 55.6], [99, 140], [-5, 0.5], [150, 160]]) {
    const drawn = new Set(inSight(bars, x0, x1));
    for (let i = 0; i < bars.count; i++) {
      if (bars.right[i] >= x0 && bars.left[i] <= x1) assert.ok(drawn.has(i), `bar ${i} is missing between ${x0} and ${x1}`);
      if (bars.left[i] > x1) assert.ok(!drawn.has(i), `bar ${i} begins after ${x1}`);
    }
  }
});

test("of bars too narrow to be told apart few are drawn, and they cover where any is", () => {
  const bars = barsOf([Array.from({ length: 1000 }, (_, k) => [k / 10, (k + 1) / 10])]);
  const drawn = inSight(bars, 0, 100, 1);
  assert.ok(drawn.length <= 125, `${drawn.length} drawn for 100 places`);
  for (let x = 0; x < 99; x++) assert.ok(drawn.some((i) => bars.left[i] >= x - 1 && bars.left[i] <= x + 1), `a hole at ${x}`);
});

test("a wide bar among narrow ones is always drawn", () => {
  const bars = barsOf([[[0, 0.1], [0.1, 0.2], [0.2, 5], [5, 5.1]]]);
  assert.ok(inSight(bars, 0, 10, 1).includes(2));
});

test("under the pointer is the bar there, the later one where two overlap, none beside them", () => {
  const bars = barsOf([[[0, 2], [3, 4]], [[1, 9], [5, 6]]]);
  assert.equal(bars.at(1, 0.4, 0, 0), 0);
  assert.equal(bars.at(2.5, 0.4, 0, 0), -1);
  assert.equal(bars.at(3.5, 0.4, 0, 0), 1);
  assert.equal(bars.at(5.5, 1.4, 0, 0), 3);
  assert.equal(bars.at(8, 1.4, 0, 0), 2);
  assert.equal(bars.at(1, 0.9, 0, 0), -1); // between the rows
});

test("slack lets the nearest of narrow bars be hit", () => {
  const bars = barsOf([[[0, 0.01], [1, 1.01]]]);
  assert.equal(bars.at(0.3, 0.4, 0.35, 0), 0);
  assert.equal(bars.at(0.8, 0.4, 0.35, 0), 1);
  assert.equal(bars.at(0.5, 0.4, 0.35, 0), -1);
});

test("a bar of a grid is there from the step it appears to before the step it vanishes", () => {
  const bars = barsOf([[[0, 1, 2, 4], [0, 1, 4, 9]]]);
  assert.deepEqual([1, 2, 3, 4].map((step) => bars.isVisible(0, step)), [false, true, true, false]);
  assert.deepEqual([1, 3, 4].map((step) => bars.at(0.5, 0.4, 0, step)), [-1, 0, 1]);
});

test("left and right go along the row and stop at its ends", () => {
  const bars = barsOf([[[3, 4], [0, 1], [6, 7]]]); // in the table they are not in order
  assert.deepEqual([1, 0, 2].map((i) => bars.next(i, "right", 0)), [0, 2, 2]);
  assert.deepEqual([1, 0, 2].map((i) => bars.next(i, "left", 0)), [1, 1, 0]);
});

test("up and down go to the bar closest in time", () => {
  const bars = barsOf([[[0, 1], [4, 5], [8, 9]], [[0, 3], [4.5, 6], [7.5, 20]]]);
  assert.deepEqual([0, 1, 2].map((i) => bars.next(i, "down", 0)), [3, 4, 5]);
  assert.equal(bars.next(4, "up", 0), 1);
  assert.equal(bars.next(1, "up", 0), 1); // no row above
});

test("down goes to the next row that has a bar that is the same, if one has", () => {
  const bars = barsOf([[[0, 1], [4, 5]], [[4, 5]], [[1, 2], [6, 7]]]);
  bars.same = Int32Array.of(0, 1, 1, 0, 1);
  assert.deepEqual([0, 1, 2].map((i) => bars.next(i, "down", 0)), [3, 2, 4]);
  bars.same[0] = 7;
  assert.equal(bars.next(0, "down", 0), 2);
});

test("arrows pass over bars that are not there at this step, and over rows that are empty then", () => {
  const bars = barsOf([[[0, 1], [2, 3, 5, 9], [4, 5]], [[0, 1, 5, 9]], [[0, 1]]]);
  assert.equal(bars.next(0, "right", 0), 2);
  assert.equal(bars.next(0, "right", 5), 1);
  assert.equal(bars.next(0, "down", 0), 4);
  assert.equal(bars.next(0, "down", 5), 3);
});

test("a cell that has changed is followed to the one in its place, and to none where there is none", () => {
  const bars = barsOf([[[0, 1], [0, 1, 2, 9], [4, 5]]]);
  bars.vanish[0] = 2;
  assert.deepEqual([bars.inPlaceOf(0, 1), bars.inPlaceOf(0, 2), bars.inPlaceOf(1, 0)], [0, 1, 0]);
  assert.equal(bars.inPlaceOf(0, 9), -1);
});

test("Home and End are the first bar of the first row and the last of the last", () => {
  const bars = barsOf([[[3, 4], [0, 1]], [[5, 6], [9, 10], [7, 8]]]);
  assert.deepEqual([bars.edge(false, 0), bars.edge(true, 0)], [1, 3]);
  assert.equal(barsOf([]).edge(false, 0), -1);
});

test("between bars are gaps, each with the bar after it, and after the last bar of a row one with that", () => {
  const bars = barsOf([[[4, 5], [1, 2], [1.2, 1.5]], [[0, 4 - 1e-10], [4, 9]]]);
  const gaps = spotsOf({ bars, tables: [] }).what.slice(bars.count);
  assert.deepEqual(gaps.map(({ kind, bar, after }) => [kind, bar, after]), [["idle", 1, false], ["idle", 0, false], ["idle", 0, true]]);
  assert.deepEqual(gaps.map(({ left, right }) => [left, right]), [[0, 1], [2, 4], [5, 9]]);
});

test("arrows go from bar to gap to bar, and down to the memory strip below", () => {
  const bars = barsOf([[[0, 1], [3, 4]], [], [[0, 4]]]);
  const pieces = [{ left: 0, right: 3 }, { left: 3, right: 4 }];
  const strips = { top: [0.9, 0.9], bottom: [1.4, 1.4] };
  const spots = spotsOf({ bars, pieces, strips, tables: [] });
  assert.deepEqual([spots.next(0, "right", 0), spots.next(3, "right", 0)], [3, 1]);
  assert.equal(spots.next(0, "right", 0, 2.5), 1); // over a gap that is too narrow
  assert.deepEqual(spots.what[spots.next(3, "down", 0)], { kind: "kept", piece: 0 });
  assert.equal(spots.count, 6);
  assert.equal(spotsOf({ bars, strips }), bars); // of a panel without tables
});

test("what waits for a bar is the inverse of what each bar needs", () => {
  const waiting = grouped(Int32Array.of(-1, 0, 0, 2, -1));
  assert.deepEqual([...waiting], [[0, [1, 2]], [2, [3]]]);
});

test("bars slide from where they were to where they are, and other panels stay as they are", () => {
  const [before, after] = [[barsOf([[[0, 1], [4, 6]]]), barsOf([[[0, 1]]])], [barsOf([[[0, 1], [2, 3]]]), barsOf([[[0, 1], [2, 3]]])]];
  const panels = after.map((bars) => ({ bars }));
  const slide = new Slide(before.map((bars) => ({ bars })), panels);
  const at = (now) => slide.at(now)[0].bars;
  assert.deepEqual([...at(1000).left], [0, 4]);
  const [between] = [at(1300)];
  assert.deepEqual([[...between.left], [...between.right]], [[0, 3], [1, 4.5]]);
  assert.equal(between.count, 2);
  assert.equal(slide.at(1300)[1], panels[1]); // another number of bars
  assert.equal(slide.at(1600), null);
  assert.deepEqual([...panels[0].bars.left], [0, 2]);
});
