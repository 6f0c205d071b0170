// The scene that Python has sent, read back.
import assert from "node:assert/strict";
import { test } from "node:test";
import { readColumn, readScene } from "../../labkit/explore/browser/scene.js";

const f8 = (...numbers) => ({ column: "f8", data: Buffer.from(Float64Array.from(numbers).buffer).toString("base64") });
const i4 = (...numbers) => ({ column: "i4", data: Buffer.from(Int32Array.from(numbers).buffer).toString("base64") });

function panel({ left = [0, 1], ...others } = {}) {
  const bars = { left: f8(...left), right: f8(...left.map((x) => x + 1)), top: f8(...left.map(() => 0)), height: f8(...left.map(() => 1)) };
  return { bars, labels: left.map(String), marks: [], needs: i4(), critical: i4(), ...others };
}

test("a column from a file, in base64, is the numbers that were written", () => {
  assert.deepEqual(readColumn(f8(0.1, -2, 1e300)), Float64Array.of(0.1, -2, 1e300));
  assert.deepEqual(readColumn(i4(-1, 65536)), Int32Array.of(-1, 65536));
});

test("a column from the kernel may start at any byte of its message", () => {
  const message = new Uint8Array(3 + 16);
  message.set(new Uint8Array(Float64Array.of(1.5, 2.5).buffer), 3);
  assert.deepEqual(readColumn({ column: "f8", data: new DataView(message.buffer, 3, 16) }), Float64Array.of(1.5, 2.5));
});

test("a column without rows is empty", () => {
  assert.equal(readColumn({ column: "f8", data: "" }).length, 0);
});

test("a picture of cells stops where Python says", () => {
  assert.deepEqual(readScene({ panels: [panel(), panel()], stops: f8(0, 1, 2) }).stops, Float64Array.of(0, 1, 2));
});

test("event tables stop where the first event begins and where any ends, once where that differs by rounding", () => {
  const table = (...spans) => ({
    title: "", names: ["forward"], lanes: ["compute"], start_s: f8(...spans.map(([start]) => start)), end_s: f8(...spans.map(([, end]) => end)),
    ...Object.fromEntries(["rank", "name", "lane", "stage", "micro_batch", "bucket", "bytes"].map((name) => [name, i4(...spans.map(() => 0))])),
  });
  const panels = [[[0.1, 0.1 + 0.2], [0.3, 0.7]], [[0.2, 0.3], [0.3, 0.9]]].map((spans) => ({ title: "", row: "rank", tables: [table(...spans)] }));
  assert.deepEqual(Array.from(readScene({ panels, styles: [] }).stops, (x) => x.toFixed(3)), ["0.100", "0.200", "0.300", "0.700", "0.900"]);
});

test("what waits for a bar is read from what each one needs", () => {
  const { panels } = readScene({ panels: [panel({ needs: i4(-1, 0) })] });
  assert.deepEqual(panels[0].waiters.get(0), [1]);
  assert.equal(panels[0].critical.has(0), false);
});
