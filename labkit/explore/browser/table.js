// The tables below a picture: the numbers of its runs, and all of it, row by row.

import { clockOf, percent, short } from "./explain.js";

const MAX_ROWS = 1000;

// Fill in the numbers: those of the runs whose memory is shown, side by side, and what Python adds to them.
export function fillNumbers(root, { panels, axis, numbers = "", memory, cap }) {
  const runs = memory ? panels.flatMap(({ title, tables, analyses }) => analyses.map((run, k) => [titleOf({ title }, tables[k]), run.metrics])) : [];
  const built = JSON.stringify([numbers, runs.map(([title]) => title)]);
  const isSame = built === root.dataset.built; // while a time is dragged only numbers change
  if (!isSame) {
    root.innerHTML = numbers; // pandas has escaped what cells hold
    root.dataset.built = built;
    if (runs.length) root.prepend(...metricsTables(runs));
  }
  const { write } = axis ? clockOf(axis) : {};
  const against = (peak) => (cap ? `, ${peak > cap ? "over" : "within"} the cap of ${short(cap)}` : "");
  const rows = Object.values({ ...METRICS, ...OTHER_BUBBLES });
  const cells = rows.flatMap((say) => runs.map(([, metrics]) => say(metrics, write, against)));
  root.querySelectorAll("[data-metric]").forEach((cell, k) => { if (cell.textContent !== cells[k]) cell.textContent = cells[k]; });
  if (!isSame) letScroll(root);
}

// Let arrow keys scroll what is wider than its place.
export function letScroll(root) {
  root.tabIndex = root.scrollWidth > root.clientWidth ? 0 : -1;
}

const METRICS = {
  makespan: ({ makespan }, write) => write(makespan),
  "bubble: idle ÷ (ranks × makespan)": ({ bubble }) => percent(bubble),
  "peak activations, in micro-batches": ({ peak, peakRank }, write, against) => `${short(peak)} on rank ${peakRank}${against(peak)}`,
  "critical path": ({ criticalOps, criticalShare }) => `${criticalOps} ops, computing ${percent(criticalShare)} of the time`,
};
const OTHER_BUBBLES = {
  "idle ÷ ideal (Megatron)": ({ bubbleOfIdeal }) => percent(bubbleOfIdeal),
  "idle time of a rank (Megatron)": ({ idle }, write) => write(idle),
  "idle between first and last op (zero bubble)": ({ bubbleInside }) => percent(bubbleInside),
};

// Return the tables of metrics of runs, without their numbers.
function metricsTables(runs) {
  const others = document.createElement("details");
  others.append(Object.assign(document.createElement("summary"), { textContent: "other definitions of the bubble" }), metricsTable(runs, OTHER_BUBBLES));
  return [metricsTable(runs, METRICS), others];
}

function metricsTable(runs, rows) {
  const table = Object.assign(document.createElement("table"), { className: "labkit-metrics" });
  table.createTHead().append(rowOf("th", ["", ...runs.map(([title]) => title)]));
  table.createTBody().append(...Object.keys(rows).map((name) => {
    const row = rowOf("td", runs.map(() => "…"));
    for (const cell of row.children) cell.dataset.metric = "";
    row.prepend(Object.assign(document.createElement("th"), { scope: "row", textContent: name }));
    return row;
  }));
  return table;
}

export function tableOf({ panels, axis }) {
  const tables = panels.flatMap((panel) => (panel.tables ?? []).map((table) => ({ ...table, title: titleOf(panel, table) })));
  const [head, rows] = tables.length ? eventRows(tables, clockOf(axis).write) : sentenceRows(panels);
  const table = document.createElement("table");
  table.createTHead().append(rowOf("th", head));
  table.createTBody().append(...rows.slice(0, MAX_ROWS).map((row) => rowOf("td", row)));
  const left = rows.length - MAX_ROWS;
  if (left > 0) table.createCaption().textContent = `The first ${MAX_ROWS} rows of ${rows.length}`;
  return table;
}

function titleOf(panel, table) {
  return [panel.title, table.title].filter(Boolean).join(", ");
}

function eventRows(tables, write) {
  const numbers = ["stage", "micro_batch", "bucket", "bytes"].filter((name) => tables.some((each) => each[name]?.some((value) => value >= 0)));
  const title = tables.length > 1 ? [""] : [];
  const head = [...title, "rank", "lane", "name", ...numbers, "start", "end"];
  const rows = tables.flatMap((table) => Array.from(table.rank, (rank, i) => (table.offered?.[i] ? [] : [[
    ...title.map(() => table.title),
    rank,
    table.lanes[table.lane[i]],
    table.names[table.name[i]],
    ...numbers.map((name) => (table[name][i] >= 0 ? table[name][i] : "")),
    write(table.start_s[i]),
    write(table.end_s[i]),
  ]])).flat());
  return [head, rows];
}

function sentenceRows(panels) {
  const rows = panels.flatMap(({ title, sentences }) => sentences.map((sentence) => {
    const [first, ...rest] = sentence.split("\n");
    return [title, first, rest.join(" ")];
  }));
  return [["panel", "what", "and"], rows];
}

function rowOf(tag, cells) {
  const row = document.createElement("tr");
  row.append(...cells.map((textContent) => Object.assign(document.createElement(textContent === "" ? "td" : tag), { textContent })));
  return row;
}
