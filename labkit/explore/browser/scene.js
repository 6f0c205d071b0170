// Read the scene that Python has sent: bytes become typed arrays, event tables are laid out. Pure.

import { Bars, grouped } from "./bars.js";
import { addStrips, eventPanel } from "./events.js";
import { clockOf, factsOf } from "./explain.js";
import { Viewport } from "./viewport.js";

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

export function readScene(sent) {
  const scene = read(sent);
  return sceneOf({ ...scene, panels: scene.panels.map((panel) => (panel.tables ? eventPanel({ memory: scene.memory, cap: scene.cap, ...panel }, scene.styles) : cellPanel(panel))) });
}

// Return a scene of panels that are laid out, with what they have in common.
export function sceneOf(scene) {
  const { panels, axis, cap } = scene;
  const withStrips = panels.filter(({ memory }) => memory);
  const kept = withStrips.flatMap(({ runs }) => runs.at(-1).kept.map(({ count }) => count));
  for (const panel of withStrips) addStrips(panel, Math.max(cap ?? 0, ...kept));
  for (const panel of withStrips) panel.facts ||= factsOf(panel.runs.at(-1), clockOf(axis).write);
  for (const panel of panels) {
    if (panel.axis) panel.viewport = new Viewport(extentOf([panel]));
    panel.waiters = grouped(panel.needs);
    panel.sames = grouped(panel.bars.same ?? []);
  }
  const extent = extentOf(panels.filter((panel) => !panel.axis));
  return { ...scene, extent, stops: new Stops(panels) };
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
  if (Array.isArray(value)) return value.length === 2 && value[0] in KINDS ? readColumn(value) : value.map(read);
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

// Where stepping stops: by clock, and by event wherever a bar begins or ends. These are many, and made only
// when they are asked for: while a time is dragged nobody steps.
class Stops {
  constructor(panels) {
    this.panels = panels;
    this.clock = union(panels.map(({ clocks }) => clocks));
    this.hasMoments = panels.some(({ bars, tables, moments }) => (tables ? bars.count && !bars.ghost : moments.length));
  }

  get moment() {
    const momentsOf = ({ bars, tables, moments }) => (tables ? [bars.left, bars.right] : [moments]);
    return (this.moments ??= this.hasMoments ? union(this.panels.flatMap(momentsOf)) : []);
  }
}

// Return all of some lists of places, each place once, in order.
function union(lists) {
  return [...new Set(lists.flatMap((list) => [...list]))].sort((a, b) => a - b);
}
