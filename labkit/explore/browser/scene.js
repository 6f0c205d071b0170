// Read the scene that Python has sent: bytes become typed arrays, event tables are laid out. Pure.

import { Bars, grouped } from "./bars.js";
import { addStrips, eventPanel } from "./events.js";
import { clockOf, factsOf } from "./explain.js";

const NEAR = 1e-9; // of the axis
const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

export function readScene(sent) {
  const scene = read(sent);
  return sceneOf({ ...scene, panels: scene.panels.map((panel) => (panel.tables ? eventPanel({ memory: scene.memory, cap: scene.cap, ...panel }, scene.styles) : cellPanel(panel))) });
}

// Return a scene of panels that are laid out, with what they have in common.
export function sceneOf(scene) {
  const { panels, axis, cap } = scene;
  const withStrips = panels.filter(({ memory }) => memory);
  const kept = withStrips.flatMap(({ analyses }) => analyses.at(-1).kept.map(({ count }) => count));
  for (const panel of withStrips) addStrips(panel, Math.max(cap ?? 0, ...kept));
  for (const panel of withStrips) panel.facts ||= factsOf(panel.analyses.at(-1), clockOf(axis).write);
  for (const panel of panels) {
    panel.waiters = grouped(panel.needs);
    panel.sames = grouped(panel.bars.same ?? []);
  }
  const extent = extentOf(panels);
  const ofTables = panels.flatMap(({ stops = [] }) => stops);
  return { ...scene, extent, stops: ofTables.length ? merged(ofTables, NEAR * (extent[1] - extent[0])) : scene.stops ?? [] };
}

function cellPanel({ bars, labels, critical, links, ...panel }) {
  return {
    ...panel,
    bars: new Bars(bars, labels),
    critical: new Set(critical),
    links: links && { ...links.columns, labels: links.labels },
    peaks: [],
  };
}

// Return a copy of what was sent, with the numbers of its columns.
function read(value) {
  if (Array.isArray(value)) return value.map(read);
  if (value === null || typeof value !== "object") return value;
  if (value.column) return readColumn(value);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, read(each)]));
}

// A column is {column: kind, data}, bytes as a DataView from the kernel, text in base64 from a file.
export function readColumn({ column: kind, data }) {
  const bytes = typeof data === "string"
    ? Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))
    : new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice(); // aligned
  return new KINDS[kind](bytes.buffer);
}

// From where to where bars and marks of panels lie, and 0.
function extentOf(panels) {
  let [low, high] = [0, -Infinity];
  for (const { bars, marks } of panels) {
    for (const x of bars.left) low = Math.min(low, x);
    for (const x of bars.right) high = Math.max(high, x);
    for (const [x] of marks) [low, high] = [Math.min(low, x), Math.max(high, x)];
  }
  if (high === -Infinity) high = 1;
  return [low, high > low ? high : low + 1];
}

// Return the places of several lists in order, without those that are as near to the one before as rounding is.
function merged(lists, near) {
  const all = new Float64Array(lists.reduce((sum, { length }) => sum + length, 0));
  lists.reduce((at, list) => (all.set(list, at), at + list.length), 0);
  let count = 0;
  for (const place of all.sort()) if (!count || place - all[count - 1] > near) all[count++] = place;
  return all.subarray(0, count);
}
