// Lay out event tables as a panel: ranks from the top down, in each its tables, in each its lanes. Pure.

import { Bars, grouped } from "./bars.js";
import { short } from "./explain.js";
import { KINDS, PipelineAnalysis } from "./analysis.js";

const HEIGHTS = { predicted: 0.6 }; // of rows; others are 1
const BUILT = 1.6; // where ops are placed by hand
const GAP = 0.4; // between two ranks, in rows
const STRIP = 0.5; // rows, for what a rank keeps, under it
const ABOVE_STRIP = 0.06;
const [TOP, HEIGHT] = [0.07, 0.86]; // of a bar in its row
const LANES = ["compute", "comm", "host"];
const MAX_MICRO_BATCHES = 2 ** 14;
const FIRST_BUCKET = 2 ** 30;

// Return the panel of event tables as Python or schedules.js gives them: {title, tables, row, memory, cap}, and of
// a run that can be replayed what_if (what_if.js).
// Of two tables the first is what was predicted. row is what a rank is called, cap how much a rank may
// keep, or each of them. A table that is being built has ops that are only `offered`; then puzzle.js gives
// facts, labels and marks, how many ranks there are, and the op that is chosen.
export function eventPanel(given, styles) {
  const { title, tables, row, memory, cap, facts = "", labels, marks = [], ranks = 0, chosen = null, what_if = null } = given;
  const offsets = [0, tables[0].start_s.length]; // a bar is a row of the tables, one after the other
  const count = tables.reduce((sum, { start_s: start }) => sum + start.length, 0);
  const columns = {
    left: joined(Float64Array, tables, "start_s"),
    right: joined(Float64Array, tables, "end_s"),
    top: new Float32Array(count),
    height: new Float32Array(count),
    style: new Uint8Array(count),
    chunk: new Uint8Array(count),
    same: new Int32Array(count),
    ...(tables[0].offered && { ghost: tables[0].offered }),
  };
  const { names, rowsOfRanks, height } = layOutRows(tables, offsets, columns, row, memory ? STRIP : 0, ranks);
  const analyses = tables.map((table) => (table.waited_for ? new PipelineAnalysis(table) : null));
  tables.forEach((table, k) => describeBars(table, offsets[k], columns, styles));
  const happened = analyses.at(-1);
  return {
    given,
    what_if,
    title,
    facts,
    chosen,
    tables,
    analyses,
    offsets,
    row,
    rowsOfRanks,
    memory,
    cap,
    of_ops: tables.some(({ stage }) => stage.some((each) => each >= 0)),
    height,
    rows: names,
    columns: [],
    peaks: [],
    marks: tables.length > 1 ? tables.map(endMark) : marks,
    bars: new Bars(columns, labels ?? tables.flatMap(labelsOf), offsets.slice(0, tables.length)),
    needs: joinedNeeds(analyses, tables, offsets, count),
    critical: new Set(happened ? happened.critical.map((op) => op + offsets[tables.length - 1]) : []),
    stops: tables[0].offered ? [] : tables.flatMap(stopsOf),
    strips: null,
  };
}

// Say in a panel what each rank keeps, as strips that are full for `maxKept` micro-batches.
export function addStrips(panel, maxKept) {
  const { kept } = panel.analyses.at(-1);
  const bottom = kept.map(({ rank }) => panel.rowsOfRanks.get(rank).bottom + STRIP);
  panel.pieces = kept;
  panel.strips = {
    left: kept.map(({ left }) => left),
    right: kept.map(({ right }) => right),
    top: bottom.map((each) => each - STRIP + ABOVE_STRIP),
    bottom,
    share: kept.map(({ count, rank }) => count / (panel.cap?.[rank] ?? maxKept)),
    over: kept.map(({ count }) => count > (panel.cap ?? Infinity)),
  };
  const peaks = new Map();
  for (const { rank, count } of kept) peaks.set(rank, Math.max(count, peaks.get(rank) ?? 0));
  const may = (rank) => (panel.cap?.[rank] ? ` of ${panel.cap[rank]}` : "");
  panel.peaks = [...peaks].map(([rank, peak]) => [panel.rowsOfRanks.get(rank).bottom + STRIP / 2, short(peak) + may(rank)]);
}

function joined(Kind, tables, name) {
  if (tables.length === 1) return tables[0][name];
  const all = new Kind(tables.reduce((sum, table) => sum + table[name].length, 0));
  tables.forEach((table, k) => all.set(table[name], k ? tables[0][name].length : 0));
  return all;
}

function joinedNeeds(analyses, tables, offsets, count) {
  if (tables.length === 1) return analyses[0] ? tables[0].needs : new Int32Array(0);
  const needs = new Int32Array(count).fill(-1);
  analyses.forEach((found, k) => found && tables[k].needs.forEach((needed, i) => {
    if (needed >= 0) needs[offsets[k] + i] = offsets[k] + needed;
  }));
  return needs;
}

// Give every bar its row. Returns the names of rows, from where to where each rank lies, and the height of all.
function layOutRows(tables, offsets, { top, height }, row, strip, count) {
  const spans = tables.map(spansByRank);
  const used = new Set(tables.flatMap(({ lanes }) => lanes));
  const lanes = [...LANES.filter((lane) => used.has(lane)), ...[...used].filter((lane) => !LANES.includes(lane)).sort()];
  const ranks = count ? [...Array(count).keys()] : [...new Set(spans.flatMap((byRank) => [...byRank.keys()]))].sort((a, b) => a - b);
  const [names, beside, rowsOfRanks] = [[], [], new Map()];
  let y = 0;
  for (const rank of ranks) {
    const first = y;
    tables.forEach((table, k) => {
      const rowHeight = table.offered ? BUILT : HEIGHTS[table.title] ?? 1;
      for (const lane of lanes) {
        const all = (spans[k].get(rank) ?? []).filter((i) => table.lanes[table.lane[i]] === lane);
        const chosen = table.offered ? all.filter((i) => !table.offered[i]) : all;
        if (!all.length && !table.offered) continue;
        const { rows, count } = stack(chosen, table);
        chosen.forEach((i, which) => {
          top[offsets[k] + i] = y + rowHeight * (rows[which] + TOP);
          height[offsets[k] + i] = HEIGHT * rowHeight;
        });
        if (table.offered) shareRow(all.filter((i) => table.offered[i]), table, y, rowHeight, { top, height });
        const label = [table.title, lanes.length > 1 ? lane : ""].filter(Boolean).join(" ");
        if (label) beside.push([y + (rowHeight * count) / 2, label, true]);
        y += rowHeight * (table.offered ? 1 : count);
      }
    });
    names.push([(first + y) / 2, `${row} ${rank}`]);
    rowsOfRanks.set(rank, { top: first, bottom: y });
    y += strip + GAP;
  }
  return { names: [...names, ...beside], rowsOfRanks, height: y };
}

// Ops that are offered at the same time share the row of their rank.
function shareRow(offered, table, y, rowHeight, { top, height }) {
  const { rows, count } = stack(offered, table);
  offered.forEach((i, which) => {
    height[i] = (HEIGHT * rowHeight) / count;
    top[i] = y + TOP * rowHeight + rows[which] * height[i];
  });
}

function spansByRank({ rank }) {
  return grouped(rank);
}

// Return the row of each of these spans such that no two of a row overlap, and the number of rows.
// Longer spans come first where two start together: an outer one lies above those nested in it.
function stack(chosen, { start_s: start, end_s: end }) {
  const order = chosen.map((_, k) => k);
  order.sort((a, b) => start[chosen[a]] - start[chosen[b]] || end[chosen[b]] - end[chosen[a]]);
  let [first, last] = [Infinity, -Infinity];
  for (const i of chosen) [first, last] = [Math.min(first, start[i]), Math.max(last, end[i])];
  const slack = 1e-9 * Math.max(last - first, 1e-12); // spans that touch share a row in spite of rounding
  const [rows, free] = [new Uint16Array(chosen.length), []];
  for (const k of order) {
    const found = free.findIndex((each) => each <= start[chosen[k]] + slack);
    rows[k] = found < 0 ? free.length : found;
    free[rows[k]] = end[chosen[k]];
  }
  return { rows, count: free.length };
}

// Give the bars of a table their colours, and each the number of its op or bucket, by which bars light
// up together: halves of a backward pass are one op.
function describeBars(table, offset, { style, chunk, same }, styles) {
  const { rank, name, names, stage, micro_batch: microBatch, bucket } = table;
  const looks = names.map((each) => styles.findIndex((style) => style.name === each));
  const kinds = names.map((each) => KINDS[each]);
  const chunks = chunksOfStages(table);
  for (let i = 0; i < name.length; i++) {
    const op = kinds[name[i]] && stage[i] >= 0 && microBatch[i] >= 0;
    style[offset + i] = looks[name[i]];
    chunk[offset + i] = chunks.get(rank[i])?.get(stage[i]) ?? 0;
    same[offset + i] = op ? 2 * (MAX_MICRO_BATCHES * stage[i] + microBatch[i]) + (kinds[name[i]] !== "F")
      : bucket[i] >= 0 ? FIRST_BUCKET + bucket[i] : -1;
  }
}

// Return for each rank the numbers of its stages, 0, 1, …, by stage.
function chunksOfStages({ rank, stage }) {
  const stages = new Map();
  for (let i = 0; i < rank.length; i++) {
    if (stage[i] < 0) continue;
    if (!stages.has(rank[i])) stages.set(rank[i], new Set());
    stages.get(rank[i]).add(stage[i]);
  }
  const numbered = ([each, found]) => [each, new Map([...found].sort((a, b) => a - b).map((one, k) => [one, k]))];
  return new Map([...stages].map(numbered));
}

function labelsOf({ micro_batch: microBatch, bucket }) {
  return Array.from(microBatch, (each, i) => (each >= 0 ? String(each) : bucket[i] >= 0 ? String(bucket[i]) : ""));
}

function endMark({ title, end_s: end }) {
  return [end.reduce((a, b) => Math.max(a, b)), `${title} ends`, title === "predicted"];
}

// Stepping stops where the first event begins, and wherever one ends.
function stopsOf({ start_s: start, end_s: end }) {
  let first = Infinity;
  for (const each of start) if (each < first) first = each;
  return [Float64Array.of(first), end];
}
