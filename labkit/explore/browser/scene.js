// Read the scene that Python has sent: bytes become typed arrays. Pure.

import { Bars, waiters } from "./bars.js";

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

// A column is [kind, bytes]: a DataView from the kernel, text in base64 from a file.
export function readColumn([kind, data]) {
  if (typeof data === "string") {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    return new KINDS[kind](bytes.buffer);
  }
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice(); // aligned
  return new KINDS[kind](bytes.buffer);
}

export function readScene(sent) {
  const panels = sent.panels.map((panel) => {
    const columns = Object.fromEntries(Object.entries(panel.bars).map(([name, column]) => [name, readColumn(column)]));
    const needs = readColumn(panel.needs);
    const links = panel.links && {
      ...Object.fromEntries(Object.entries(panel.links.columns).map(([name, column]) => [name, readColumn(column)])),
      labels: splitLabels(panel.links.labels),
    };
    const strips = panel.strips && Object.fromEntries(
      Object.entries(panel.strips).map(([name, column]) => [name, readColumn(column)]),
    );
    return {
      ...panel,
      bars: new Bars(columns, splitLabels(panel.labels)),
      needs,
      waiters: waiters(needs),
      critical: new Set(readColumn(panel.critical)),
      clocks: readColumn(panel.clocks),
      moments: readColumn(panel.moments),
      strips,
      links,
    };
  });
  return { ...sent, panels, stops: { clock: union(panels, "clocks"), moment: union(panels, "moments") } };
}

function splitLabels(text) {
  return text.split("\n");
}

// Where any of the panels stops, each place once.
function union(panels, name) {
  const all = [...new Set(panels.flatMap((panel) => [...panel[name]]))];
  return all.sort((a, b) => a - b);
}
