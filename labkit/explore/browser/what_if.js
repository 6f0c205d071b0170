// What if a run had lost nothing to some causes: its ops, replayed without these. Pure.
//
// what_if of a panel is what labkit/explore/what_if.py writes, by row of the measured table: order and previous
// (earliest_times.js), the times of the ideal (duration, transfer, overhead), and of each switch what its cause
// adds to which of them: {label, title, what, lost}.

import { earliestTimes } from "./earliest_times.js";
import { eventPanel } from "./events.js";
import { clockOf, listed } from "./explain.js";
import { sceneOf } from "./scene.js";

// Return a scene without what it has lost to the causes of switches that are off: a Set of their labels.
export function withoutCauses(scene, off) {
  if (!off.size) return scene;
  const panels = scene.panels.map((panel) => (panel.what_if?.order ? withoutThem(panel, off, scene.styles) : panel));
  const now = sceneOf({ ...scene, panels });
  const extent = [Math.min(scene.extent[0], now.extent[0]), Math.max(scene.extent[1], now.extent[1])]; // the axis stays
  const narration = saved(scene, panels, off);
  return { ...now, extent, narration, alt: `${scene.alt} ${narration}` };
}

function withoutThem({ given, what_if: whatIf, tables, analyses }, off, styles) {
  const measured = tables.at(-1);
  return eventPanel({ ...given, facts: "", tables: [...tables.slice(0, -1), replayed(measured, whatIf, off, analyses.at(-1).first)] }, styles);
}

// Return the table of ops as they would have run. What is not an op has no place in it.
function replayed(table, { order, previous, switches, ...times }, off, first) {
  const left = Object.fromEntries(["duration", "transfer", "overhead"].map((what) => [what, times[what].slice()]));
  for (const { label, what, lost } of switches) if (!off.has(label)) lost.forEach((seconds, i) => { left[what][i] += seconds; });
  left.duration = left.duration.map((seconds) => Math.max(0, seconds));
  const { start_s: start, end_s: end, waited_for: waitedFor } = earliestTimes({ ...table, previous, order }, left);
  const rows = order.toSorted();
  const place = new Int32Array(table.rank.length).fill(-1);
  rows.forEach((row, k) => { place[row] = k; });
  const ofRows = (column) => column.constructor.from(rows, (row) => column[row]);
  const placed = (column) => Int32Array.from(rows, (row) => (column[row] < 0 ? -1 : place[column[row]]));
  const columns = ["rank", "stage", "micro_batch", "bucket", "bytes", "name", "lane"].map((name) => [name, ofRows(table[name])]);
  const { names, lanes } = table;
  return {
    title: "what if", names, lanes, ...Object.fromEntries(columns), needs: placed(table.needs), waited_for: placed(waitedFor),
    start_s: ofRows(start).map((time) => time + first), end_s: ofRows(end).map((time) => time + first),
  };
}

// Say what is saved.
function saved(scene, panels, off) {
  const { write } = clockOf(scene.axis);
  const parts = panels.map((panel, k) => {
    const [was, now] = [scene.panels[k], panel].map(({ analyses }) => analyses.at(-1));
    const title = panels.length > 1 ? `${panel.title}: ` : "";
    if (panel === scene.panels[k]) return `${title}as it was`;
    const less = was.makespan - now.makespan;
    const ideal = panel.analyses.length > 1 && Math.abs(now.makespan - panel.analyses[0].makespan) <= was.near ? ", as predicted" : "";
    const against = Math.abs(less) <= was.near ? "as measured" : `${write(Math.abs(less))} ${less > 0 ? "less" : "more"} than measured`;
    return `${title}makespan ${write(now.makespan)}, ${against}${ideal}`;
  });
  const labels = panels.flatMap(({ what_if: whatIf }) => whatIf?.switches.map(({ label }) => label) ?? []);
  return `Without ${listed([...new Set(labels)].filter((label) => off.has(label)))}: ${parts.join("; ")}.`;
}
