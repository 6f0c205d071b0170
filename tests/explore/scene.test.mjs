// The scene that Python has sent, read back.
import assert from "node:assert/strict";
import { test } from "node:test";
import { readColumn, readScene } from "../../labkit/explore/browser/scene.js";

const f8 = (...numbers) => ["f8", Buffer.from(Float64Array.from(numbers).buffer).toString("base64")];
const i4 = (...numbers) => ["i4", Buffer.from(Int32Array.from(numbers).buffer).toString("base64")];

function panel({ left = [0, 1], clocks = [], moments = [], ...others } = {}) {
  const bars = { left: f8(...left), right: f8(...left.map((x) => x + 1)), top: f8(...left.map(() => 0)), height: f8(...left.map(() => 1)) };
  return { bars, labels: left.map(String), marks: [], needs: i4(), critical: i4(), clocks: f8(...clocks), moments: f8(...moments), ...others };
}

test("a column from a file, in base64, is the numbers that were written", () => {
  assert.deepEqual(readColumn(f8(0.1, -2, 1e300)), Float64Array.of(0.1, -2, 1e300));
  assert.deepEqual(readColumn(i4(-1, 65536)), Int32Array.of(-1, 65536));
});

test("a column from the kernel may start at any byte of its message", () => {
  const message = new Uint8Array(3 + 16);
  message.set(new Uint8Array(Float64Array.of(1.5, 2.5).buffer), 3);
  assert.deepEqual(readColumn(["f8", new DataView(message.buffer, 3, 16)]), Float64Array.of(1.5, 2.5));
});

test("a column without rows is empty", () => {
  assert.equal(readColumn(["f8", ""]).length, 0);
});

test("panels on one axis stop where any of them does, each place once, in order", () => {
  const { stops } = readScene({ panels: [panel({ clocks: [0, 2, 10], moments: [1] }), panel({ clocks: [1, 2] })] });
  assert.deepEqual(stops.clock, [0, 1, 2, 10]);
  assert.deepEqual(stops.moment, [1]);
});

test("what waits for a bar is read from what each one needs", () => {
  const { panels } = readScene({ panels: [panel({ needs: i4(-1, 0) })] });
  assert.deepEqual(panels[0].waiters.get(0), [1]);
  assert.equal(panels[0].critical.has(0), false);
});
