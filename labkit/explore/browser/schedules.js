// The picture of schedules, from their orders and the times of their ops. Pure.
//
// A pipeline is {orders, n, m, times: {F, I, W}, hop, cap}: ranks, micro-batches as they were asked for,
// times of a rank's part of the model (a list of one for all ranks, or of one for each). orders has the
// schedules that are shown, by title, each as torch's CSV: a row for each rank, 0F0,0F1,0B0. axis is that of its units; shades
// are the styles of bars, by the most stages of a rank.

import { KINDS } from "./analysis.js";
import { earliestTimes, NAMES, opColumns } from "./earliest_times.js";
import { eventPanel } from "./events.js";
import { short } from "./explain.js";
import { sceneOf } from "./scene.js";

const MAX_KNOWN = 16; // orders that have been read already
const known = new Map();

// Return the scene that shows a pipeline.
export function readPipeline({ version, title }, pipeline) {
  const { axis, shades } = pipeline;
  const tables = Object.entries(pipeline.orders).map(([name, csv]) => [name, tableOf(csv, pipeline)]);
  const chunks = Math.max(...tables.map(([, table]) => table.chunks));
  const used = new Set(tables.flatMap(([, table]) => [...table.used]));
  const styles = shades[chunks - 1].filter(({ name }) => used.has(name));
  const { cap } = pipeline;
  const panels = tables.map(([name, table]) => eventPanel({ title: name, tables: [table], row: "rank", memory: true, cap }, styles));
  const scene = sceneOf({ version, title, axis, styles, panels, cap, note: "", steps: [], opens_at: -1, memory: true, pipeline });
  return { ...scene, ...wordsOf(panels, pipeline) };
}

// What is shown, for readers who cannot see it and as a title; and the line above the picture.
function wordsOf(panels, { n, m, cap }) {
  const shown = 1 + Math.max(...panels[0].tables[0].micro_batch);
  const [ranks, count] = [`${n} rank${n > 1 ? "s" : ""}`, `${shown} micro-batch${shown > 1 ? "es" : ""}`];
  const runs = panels.map(({ title, analyses: [run], facts }) => ({ title, facts, metrics: run.metrics }));
  const parts = runs.map(({ title, metrics }) => `${title}: makespan ${short(metrics.makespan)}`);
  if (shown !== m) parts.unshift(`${count}: interleaved 1F1B on ${ranks} cannot share out ${m} evenly`);
  for (const { title, metrics: { peak } } of runs) if (cap && peak > cap) parts.push(`${title} keeps ${short(peak)}, over the cap of ${short(cap)}`);
  return { alt: `${ranks} and ${count}: ${runs.map(({ title, facts }) => `${title}, ${facts}`).join("; ")}`, narration: `${parts.join("; ")}.` };
}

function tableOf(csv, { n, times, hop }) {
  const { columns, ...order } = orderOf(csv, n);
  const [F, I, W] = [times.F, times.I, times.W].map((each) => ofStages(each, n, order.chunks));
  const ofKinds = { F, I, W, B: I.map((time, stage) => time + W[stage]) };
  const ofNames = NAMES.map((name) => ofKinds[KINDS[name]]);
  const { name, stage, rank } = columns;
  const duration = Float64Array.from(name, (kind, i) => ofNames[kind][stage[i]]);
  const found = earliestTimes(columns, { duration, transfer: new Float64Array(rank.length).fill(hop), overhead: new Float64Array(rank.length) });
  return { title: "", ...columns, ...order, ...found };
}

// Return the table of an order without its times.
function orderOf(csv, n) {
  if (!known.has(csv)) {
    if (known.size >= MAX_KNOWN) known.clear();
    const columns = opColumns(csv.trim().split(/\s+/).map((row) => row.split(",").map(readOp)));
    const none = new Int32Array(columns.rank.length).fill(-1);
    known.set(csv, {
      columns,
      names: NAMES,
      lanes: ["compute"],
      lane: new Uint8Array(columns.rank.length),
      bucket: none,
      used: new Set(Array.from(columns.name, (name) => NAMES[name])),
      chunks: (1 + columns.stage.reduce((a, b) => Math.max(a, b))) / n,
    });
  }
  return known.get(csv);
}

export function readOp(text) {
  const [, stage, kind, microBatch] = /(\d+)(.)(\d+)/.exec(text);
  return { kind, stage: Number(stage), microBatch: Number(microBatch) };
}

// Share out the times of ranks to stages. Where ranks are more or fewer, the first and the last stay.
function ofStages(times, n, chunks) {
  const ofRank = (rank) => (rank === n - 1 ? times.at(-1) : times[Math.max(0, Math.min(rank, times.length - 2))]);
  return Array.from({ length: n * chunks }, (_, stage) => ofRank(Math.floor(stage / chunks)) / chunks);
}
