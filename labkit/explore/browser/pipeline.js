// The picture of schedules, made in the page: ahead of Python while a slider is dragged, and in a file.
// It is the one that labkit.explore.schedules makes from the same numbers. Pure.
//
// A pipeline is what Python sends beside its scene: {orders, n, m, times: {F, I, W}, hop, cap}. orders
// has the schedules by name. A time is that of a rank's part of the model: a list of one for all ranks,
// or of one for each.

import { earliestTimes } from "./earliest_times.js";
import { factsOf, short, wordsOf } from "./pipeline_words.js";

const STYLES = { F: "forward", B: "backward", I: "input_grad", W: "weight_grad" };
const NEAR = 1e-9; // numbers closer than this are the same
const MAX_MICRO_BATCHES = 2 ** 14;

// Return the pipeline with the times that sliders say, by key; null if it has them already. Times of
// each rank stay until their slider, which shows rank 0's, moves.
export function movedTo({ times, hop, ...others }, said) {
  const has = { F: times.F[0], I: times.I[0], W: times.W[0], hop };
  const moved = Object.keys(said).filter((key) => Math.abs(said[key] - has[key]) > NEAR);
  if (!moved.length) return null;
  const each = Object.keys(times).map((key) => [key, moved.includes(key) ? [said[key]] : times[key]]);
  return { ...others, times: Object.fromEntries(each), hop: moved.includes("hop") ? said.hop : hop };
}

// Return the scene as it is with this pipeline. Its rows stay as high and as far apart as they are.
export function pictureOf(scene, pipeline) {
  const runs = Object.entries(pipeline.orders).map(([title, order]) => runOf(title, order, pipeline));
  const most = Math.max(pipeline.cap ?? 0, ...runs.flatMap(({ peaks }) => peaks));
  const used = new Set(runs.flatMap(({ ops }) => ops.map(({ kind }) => STYLES[kind])));
  const all = scene.shades?.[Math.max(...runs.map(({ chunks }) => chunks)) - 1] ?? scene.styles;
  const styles = all.filter(({ name }) => used.has(name));
  const panels = runs.map((run) => panelOf(run, pipeline, most, styles, scene.panels[0]));
  return { ...scene, ...wordsOf(runs, pipeline), styles, panels, extent: [0, Math.max(...runs.map(({ makespan }) => makespan))] };
}

// Return of each rank its ops. order is torch's CSV, a row for each rank: 0F0,0F1,0B0.
export function readOrder(order, n) {
  return order.trim().split(/\s+/).map((row, rank) => row.split(",").map((op) => {
    const [, stage, kind, microBatch] = /(\d+)(.)(\d+)/.exec(op);
    return { kind, stage: Number(stage), microBatch: Number(microBatch), rank, chunk: Math.floor(stage / n) };
  }));
}

function runOf(title, order, { n, times, hop }) {
  const ranks = readOrder(order, n);
  const ops = ranks.flat();
  const chunks = 1 + Math.max(...ops.map(({ chunk }) => chunk));
  const [F, I, W] = [times.F, times.I, times.W].map((each) => ofStages(each, n, chunks));
  const { start, end, input } = earliestTimes(ranks, { F, I, W, B: I.map((time, stage) => time + W[stage]) }, hop);
  const makespan = Math.max(...end);
  const idle = ops.reduce((left, _, i) => left - (end[i] - start[i]), n * makespan);
  const kept = keptActivations({ ops, start, end, makespan, chunks });
  const peaks = ranks.map((_, rank) => Math.max(...kept.map((piece) => (piece.rank === rank ? piece.count : 0))));
  return { title, n, chunks, ops, start, end, input, makespan, idle, kept, peaks };
}

// Share out the times of ranks to stages. Where ranks are more or fewer, the first and the last stay.
function ofStages(times, n, chunks) {
  const ofRank = (rank) => (rank === n - 1 ? times.at(-1) : times[Math.max(0, Math.min(rank, times.length - 2))]);
  return Array.from({ length: n * chunks }, (_, stage) => ofRank(Math.floor(stage / chunks)) / chunks);
}

// How many micro-batches' activations each rank keeps, and until when. Its changes are in order of its ops.
function keptActivations({ ops, start, end, makespan, chunks }) {
  const pieces = [];
  for (const [i, { kind, rank }] of ops.entries()) {
    if (kind === "I") continue;
    const left = kind === "F" ? start[i] : end[i];
    const before = pieces.at(-1)?.rank === rank ? pieces.at(-1) : { kept: 0 };
    before.right = left;
    const kept = before.kept + (kind === "F" ? 1 : -1); // of its stages
    pieces.push({ rank, left, right: makespan, kept, count: kept / chunks });
  }
  return pieces.filter(({ left, right }) => right > left);
}

function panelOf(run, { n, cap }, most, styles, sent) {
  const { title, ops, start, end, input, kept, peaks } = run;
  const { bars, rows, strips } = sent;
  const pitch = sent.height / rows.length;
  const down = (first, rank) => first + rank * pitch;
  return {
    run,
    title,
    facts: factsOf(run),
    height: n * pitch,
    rows: peaks.map((_, rank) => [down(rows[0][0], rank), `rank ${rank}`]),
    columns: [],
    peaks: peaks.map((peak, rank) => [down(sent.peaks[0][0], rank), short(peak)]),
    marks: [],
    bars: {
      left: start,
      right: end,
      top: ops.map(({ rank }) => down(bars.top[0], rank)),
      height: ops.map(() => bars.height[0]),
      style: ops.map(({ kind }) => styles.findIndex(({ name }) => name === STYLES[kind])),
      chunk: ops.map(({ chunk }) => chunk),
      same: ops.map(({ kind, stage, microBatch }) => 2 * (MAX_MICRO_BATCHES * stage + microBatch) + (kind !== "F")),
    },
    of_ops: true,
    explains: sent.explains,
    labels: ops.map(({ microBatch }) => microBatch).join("\n"),
    needs: input,
    critical: criticalOps(run),
    clocks: clocksOf(run),
    moments: [...start, ...end],
    strips: {
      left: kept.map(({ left }) => left),
      right: kept.map(({ right }) => right),
      top: kept.map(({ rank }) => down(strips.top[0], rank)),
      bottom: kept.map(({ rank }) => down(strips.bottom[0], rank)),
      share: kept.map(({ count }) => count / most),
      over: kept.map(({ count }) => count > (cap ?? Infinity)),
    },
  };
}

// From the op that ends last back to what each one waited for: the op before it on its rank, or its input.
function criticalOps({ ops, start, end, input, makespan }) {
  const path = [];
  for (let i = end.indexOf(makespan); i >= 0;) {
    path.push(i);
    const isNext = ops[i - 1]?.rank === ops[i].rank && end[i - 1] >= start[i] - NEAR * makespan;
    i = isNext ? i - 1 : input[i];
  }
  return path;
}

// A clock is as long as the shortest kind of op, by its median.
function clocksOf({ ops, start, end, makespan }) {
  const medians = [...new Set(ops.map(({ kind }) => kind))].map((kind) => {
    const lengths = ops.flatMap((op, i) => (op.kind === kind ? end[i] - start[i] : [])).sort((a, b) => a - b);
    return (lengths[(lengths.length - 1) >> 1] + lengths[lengths.length >> 1]) / 2;
  });
  const clock = Math.min(...medians);
  return Array.from({ length: 1 + Math.round(makespan / clock) }, (_, k) => k * clock);
}
