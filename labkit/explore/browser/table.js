// The picture as a table: of event tables their columns, of other panels what their bars say.

import { clockOf } from "./explain.js";

const MAX_ROWS = 1000;

export function tableOf({ panels, axis }) {
  const tables = panels.flatMap((panel) => (panel.tables ?? []).map((table) => ({ ...table, title: titleOf(panel, table) })));
  const [head, rows] = tables.length ? eventRows(tables, clockOf(axis).write) : sentenceRows(panels);
  const table = document.createElement("table");
  table.append(rowOf("th", head), ...rows.slice(0, MAX_ROWS).map((row) => rowOf("td", row)));
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
  const rows = tables.flatMap((table) => Array.from(table.rank, (rank, i) => [
    ...title.map(() => table.title),
    rank,
    table.lanes[table.lane[i]],
    table.names[table.name[i]],
    ...numbers.map((name) => (table[name][i] >= 0 ? table[name][i] : "")),
    write(table.start_s[i]),
    write(table.end_s[i]),
  ]));
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
  row.append(...cells.map((text) => Object.assign(document.createElement(tag), { textContent: text })));
  return row;
}
