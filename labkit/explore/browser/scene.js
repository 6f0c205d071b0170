// Read the scene that Python has sent: bytes become typed arrays. Pure.

import { Bars, grouped, waiters } from "./bars.js";
import { pictureOf } from "./pipeline.js";
import { Viewport } from "./viewport.js";

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

const lastRead = { sent: null, scene: null }; // while a slider is dragged it is the same one

// With a pipeline, its picture: Python has not sent that.
export function readScene(sent, pipeline = null) {
  if (pipeline && lastRead.sent !== sent) Object.assign(lastRead, { sent, scene: read(sent) });
  const scene = pipeline ? pictureOf(lastRead.scene, pipeline) : read(sent);
  for (const panel of scene.panels) {
    panel.bars = new Bars(panel.bars, panel.labels.split("\n"));
    if (panel.axis) panel.viewport = new Viewport(panel.extent);
    panel.waiters = waiters(panel.needs);
    panel.sames = grouped(panel.bars.same ?? []);
    panel.critical = new Set(panel.critical);
    if (panel.links) panel.links = { ...panel.links.columns, labels: panel.links.labels.split("\n") };
  }
  const steps = scene.steps ? scene.steps.split("\n") : [];
  return { ...scene, steps, stops: { clock: union(scene.panels, "clocks"), moment: union(scene.panels, "moments") } };
}

// Return a copy of what was sent, with the numbers of its columns. A list that begins with a word is one.
function read(value) {
  if (Array.isArray(value)) return typeof value[0] === "string" ? readColumn(value) : value.map(read);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, read(each)]));
}

// A column is [kind, bytes]: a DataView from the kernel, text in base64 from a file.
export function readColumn([kind, data]) {
  const bytes = typeof data === "string"
    ? Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))
    : new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice(); // aligned
  return new KINDS[kind](bytes.buffer);
}

// Where any of the panels stops, each place once.
function union(panels, name) {
  return [...new Set(panels.flatMap((panel) => [...panel[name]]))].sort((a, b) => a - b);
}
