// Say in words what a picture shows: what a bar is and why it is late, what an idle rank waits for, what
// is kept, and what happens at a time. In a notebook and in a file, whether or not a kernel is there. Pure.

import { KINDS } from "./analysis.js";

const PASSES = { F: "forward pass", B: "backward pass", I: "input gradient", W: "weight gradient" };
// What an op of the second kind takes from one of the first.
const OUTPUTS = { FF: "the activation of", FB: "the loss of", FI: "the loss of", IW: "what is left over from" };
const MAX_NAMED = 6; // ops and ranks in one sentence
const MIB = 2 ** 20;

export const short = (value) => String(Number(value.toPrecision(4)));
export const percent = (share) => `${Math.abs(100 * share).toFixed(1)} %`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const sentence = (text) => `${capital(text)}.`;
const plural = (count, word, ending = "s") => `${count} ${word}${count === 1 ? "" : ending}`;
export const wordsOf = (name) => name.replace(/_grad(?=_|$)/g, "_gradient").replaceAll("_", " ");

const lastOf = (tables) => tables.reduce((last, { end_s: end }) => end.reduce((a, b) => Math.max(a, b), last), 0);

// Return "a", "a and b", "a, b and c", or the first of many and how many more.
export function listed(words) {
  if (words.length > MAX_NAMED) return `${words.slice(0, MAX_NAMED - 1).join(", ")} and ${words.length - MAX_NAMED + 1} more`;
  return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words.join("");
}

// Return how a scene writes a time: on its axis, in its unit.
export function clockOf({ unit, per_second: perSecond }) {
  const write = (seconds) => `${short(seconds * perSecond)} ${unit}`.trim();
  const lasting = (seconds) => (unit ? write(seconds) : plural(Number(write(seconds)), "unit"));
  return { write, lasting };
}

// Return the line that stands beside the title of a run.
export function factsOf({ metrics: { makespan, bubble } }, write) {
  return `makespan ${write(makespan)}, bubble ${percent(bubble)}`;
}

// Return the words on a spot of a panel, as bars.js has it: a heading and the rest, in lines.
export function explain(panel, spot, axis) {
  if (!panel.tables) return panel.sentences[spot.bar] ?? "";
  return new PanelWords(panel, axis).explain(spot);
}

// Return one line on a time, in all panels of event tables.
export function narrate(panels, x, axis) {
  const parts = panels.map((panel) => [panel.title, new PanelWords(panel, axis).narrate(x)]);
  return parts.map(([title, text]) => (parts.length > 1 && title ? `${title}: ${text}` : text)).join(" ");
}

// The words of a panel of event tables.
class PanelWords {
  constructor(panel, axis) {
    this.panel = panel;
    Object.assign(this, clockOf(axis));
    this.row = panel.row;
    this.Row = capital(panel.row);
  }

  explain(spot) {
    if (spot.kind === "kept") return this.kept(this.panel.pieces[spot.piece]);
    return spot.kind === "idle" ? this.gap(spot) : this.bar(spot.bar);
  }

  // Return which table a bar is of, and its row there.
  placeOf(bar) {
    const { offsets, tables, analyses } = this.panel;
    const which = tables.length > 1 && bar >= offsets[1] ? 1 : 0;
    return { which, row: bar - offsets[which], table: tables[which], run: analyses[which] };
  }

  bar(bar) {
    const { which, row, table, run } = this.placeOf(bar);
    if (table.offered?.[row]) return this.offer(run, row);
    const isOp = run?.isOp(row);
    const [head, ...lines] = isOp ? this.op(run, row) : this.span(table, row);
    const ideal = which === 1 && isOp ? this.panel.analyses[0] : null;
    if (ideal) lines.push(this.against(ideal, run, row));
    return [table.title ? `${head}, ${table.title}` : head, ...lines].join("\n");
  }

  offer(run, op) {
    const { rank, start_s: start, end_s: end } = run.table;
    const place = `It may be placed on ${this.row} ${rank[op]}, from ${this.write(start[op])} to ${this.write(end[op])}`;
    return `${this.heading(run, op)}\n${place}.`;
  }

  heading(run, op) {
    const { stage, micro_batch: microBatch } = run.table;
    const inStage = this.row === "rank" ? `, stage ${stage[op]}` : ""; // else its row says it
    return `${run.nameOf(op)}: ${PASSES[run.kinds[op]]} of micro-batch ${microBatch[op]}${inStage}`;
  }

  // Return what an op is, what it needs, what waits for it, and why it is late.
  op(run, op) {
    const { table } = run;
    const { rank, start_s: start, end_s: end } = table;
    const mayGrow = table.offered?.some(Boolean); // what waits may not be there yet
    const consumers = (run.consumers.get(op) ?? []).map((each) => this.named(run, each, rank[op]));
    return [
      this.heading(run, op),
      `${this.Row} ${rank[op]}, ${this.write(start[op])} to ${this.write(end[op])}: takes ${this.lasting(end[op] - start[op])}.`,
      this.input(run, op),
      consumers.length ? `${listed(consumers)} ${consumers.length > 1 ? "wait" : "waits"} for it.` : mayGrow ? "" : "Nothing waits for it.",
      this.lateness(run, op),
    ];
  }

  input(run, op) {
    const needed = run.table.needs[op];
    if (needed < 0) return "It needs nothing but the batch.";
    const named = this.named(run, needed, run.table.rank[op]);
    return `It needs ${this.outputOf(run, needed, op)} ${named}, which ended at ${this.write(run.table.end_s[needed])}.`;
  }

  outputOf(run, needed, consumer) {
    return OUTPUTS[run.kinds[needed] + run.kinds[consumer]] ?? "the gradient of";
  }

  lateness(run, op) {
    const { free, idle } = run.idleBefore(op);
    const rank = run.table.rank[op];
    if (idle <= run.near) return `It began as soon as ${this.row} ${rank} was free.`;
    return `${this.Row} ${rank} was idle for ${this.lasting(idle)} before it. ${this.why(run, rank, free, run.table.start_s[op])}`;
  }

  // Return what a rank waits for between two times, and what runs meanwhile.
  why(run, rank, left, right) {
    const { code, op } = run.stateAt(rank, (left + right) / 2);
    const { end_s: end, start_s: start, waited_for: waitedFor } = run.table;
    if (code === "busy") return sentence(`${this.row} ${rank} is not idle: it runs ${run.nameOf(op)} until ${this.write(end[op])}`);
    if (code === "done") {
      const last = run.critical[0];
      const own = `its last op, ${run.nameOf(op)}, ended at ${this.write(end[op])}`;
      return `${this.Row} ${rank} has nothing left to do: ${own}. The step ends at ${this.write(end[last])}, with ${this.named(run, last, rank)}.`;
    }
    const needed = waitedFor[op];
    const { chain, hops, overhead } = run.chainBefore(op, left);
    if (needed < 0 || !(chain.length || hops)) {
      return sentence(`${this.row} ${rank} has all that ${run.nameOf(op)} needs, and begins it only at ${this.write(start[op])}`);
    }
    const runs = chain.map((each) => `${this.named(run, each, rank)} until ${this.write(end[each])}`);
    if (runs.length > MAX_NAMED) runs.splice(2, runs.length - 5, `${runs.length - 5} more ops`);
    const waits = `To begin ${run.nameOf(op)} it waits for ${this.outputOf(run, needed, op)} ${run.nameOf(needed)}`;
    if (!runs.length) return `${waits}, which is under way until ${this.write(start[op])}.`;
    const lost = [["Hops take", hops], ["Overhead takes", overhead]].filter(([, time]) => time > run.near);
    const ofThat = lost.map(([what, time]) => ` ${what} ${this.write(time)} of that.`).join("");
    return `${waits}: ${runs.join(", then ")}.${ofThat}`;
  }

  // Return how far an op is from what was predicted.
  against(ideal, run, op) {
    const name = run.nameOf(op);
    const predicted = ideal.kinds.findIndex((kind, row) => kind && ideal.nameOf(row) === name);
    if (predicted < 0) return "";
    const [now, then] = [run, ideal].map(({ table, first }, k) => {
      const i = k ? predicted : op;
      return { began: table.start_s[i] - first, took: table.end_s[i] - table.start_s[i] };
    });
    const [began, took] = [now.began - then.began, now.took - then.took];
    const by = (time, more, less, same) => (Math.abs(time) <= run.near ? same : `${this.write(Math.abs(time))} ${time > 0 ? more : less}`);
    return `It began ${by(began, "later than", "earlier than", "as")} predicted and took ${by(took, "longer", "less", "as long")}.`;
  }

  // Return what a span is that is not an op of a pipeline: a collective, the optimizer.
  span(table, i) {
    const { rank, lane, lanes, name, names, bytes, start_s: start, end_s: end } = table;
    const columns = [...(this.row === "rank" ? ["stage"] : []), "micro_batch", "bucket"].filter((each) => table[each][i] >= 0);
    const labels = columns.map((each) => `${each.replace("_", "-")} ${table[each][i]}`);
    const size = bytes?.[i] >= 0 ? [`${Number((bytes[i] / MIB).toPrecision(3))} MiB`] : [];
    const times = `${this.write(start[i])} to ${this.write(end[i])}: takes ${this.lasting(end[i] - start[i])}`;
    return [[wordsOf(names[name[i]]), ...labels, ...size].join(", "), `${this.Row} ${rank[i]}, lane ${lanes[lane[i]]}, ${times}.`];
  }

  // Return why a rank does nothing between two bars, or after its last.
  gap({ bar, left, right }) {
    const { row, table, run } = this.placeOf(bar);
    const { rank, lane, lanes, start_s: start, end_s: end } = table;
    const where = `${this.Row} ${rank[row]}${lanes.length > 1 ? `, lane ${lanes[lane[row]]},` : ""}`;
    const lines = [`${where} is idle ${this.fromTo(left, right)}${table.title ? `, ${table.title}` : ""}`];
    if (run && lanes[lane[row]] === "compute") lines.push(this.why(run, rank[row], left, right));
    const near = 2e-9 * lastOf([table]);
    const meanwhile = [];
    for (let i = 0; i < start.length; i++) {
      if (rank[i] !== rank[row] || start[i] >= right - near || end[i] <= left + near) continue;
      if (lane[i] === lane[row]) return ""; // an outer span runs
      meanwhile.push(`${this.spanName(table, i)} in lane ${lanes[lane[i]]}`);
    }
    if (meanwhile.length) lines.push(`Meanwhile it has ${listed(meanwhile)}.`);
    else if (lines.length === 1) lines.push("The table does not say why: nothing else is recorded there meanwhile.");
    return lines.join("\n");
  }

  // Return whose activations a rank keeps in a piece of its strip.
  kept(piece) {
    const { rank, left, right, count } = piece;
    const run = this.panel.analyses.at(-1);
    const { stage, micro_batch: microBatch, start_s: start, end_s: end } = run.table;
    const counts = new Map();
    const until = left + run.near;
    for (const op of run.ranks.get(rank)) {
      const change = run.kinds[op] === "F" ? start[op] <= until : -(run.kinds[op] !== "I" && end[op] <= until);
      const name = `${stage[op]}F${microBatch[op]}`;
      counts.set(name, (counts.get(name) ?? 0) + Number(change));
    }
    const names = [...counts].filter(([, kept]) => kept > 0).map(([name]) => name);
    const what = names.length ? `the activations of ${plural(Number(short(count)), "micro-batch", "es")}` : "no activations";
    const lines = [`${this.Row} ${rank} keeps ${what} ${this.fromTo(left, right)}`];
    if (names.length) {
      const frees = run.kinds.some((kind) => kind === "B" || kind === "W");
      const late = names.length > 1 ? "their backward passes have not ended" : "its backward pass has not ended";
      lines.push(`Kept for ${listed(names)}: ${frees ? late : `the schedule has no backward pass that would free ${names.length > 1 ? "them" : "it"}`}.`);
    }
    const stages = new Set(run.ranks.get(rank).map((op) => stage[op])).size;
    if (names.length && stages > 1) lines.push(`That of one of its ${stages} stages counts as 1/${stages}.`);
    const most = Math.max(...run.kept.filter((each) => each.rank === rank).map((each) => each.count));
    if (count === most) lines.push("This is the most that it keeps.");
    if (this.panel.cap && count > this.panel.cap) lines.push(`The cap is ${this.panel.cap}.`);
    return lines.join("\n");
  }

  // Return what begins and what goes on at a time, and why ranks are idle.
  narrate(x) {
    const near = 1e-9 * lastOf(this.panel.tables);
    const parts = this.panel.tables.flatMap((table) => {
      const { rank, start_s: start, end_s: end } = table;
      const [begin, goOn] = [[], []];
      for (let i = 0; i < start.length; i++) {
        const now = Math.abs(start[i] - x) <= near ? begin : start[i] < x - near && end[i] > x + near ? goOn : null;
        now?.push(`${this.spanName(table, i)} on ${this.row} ${rank[i]}`);
      }
      const changes = [[begin, "begins", "begin"], [goOn, "goes on", "go on"]].filter(([names]) => names.length);
      const title = table.title ? `${table.title}: ` : "";
      return changes.map(([names, one, several]) => `${title}${listed(names)} ${names.length > 1 ? several : one}`);
    });
    const run = this.panel.analyses.at(-1);
    return `${this.write(x)}: ${[...parts, ...(run ? this.idleRanks(run, x) : [])].join("; ") || "all has ended"}.`;
  }

  idleRanks(run, x) {
    if (x < run.first - run.near || x > run.last + run.near) return [];
    const idle = new Map();
    for (const rank of run.ranks.keys()) {
      const { code, op, waitsFor } = run.stateAt(rank, x);
      if (code === "busy") continue;
      const why = code === "done" ? "idle: done" : code === "overhead" ? `idle, could begin ${run.nameOf(op)}` : `idle, waiting for ${run.nameOf(waitsFor)}`;
      idle.set(why, [...(idle.get(why) ?? []), rank]);
    }
    return [...idle].map(([why, ranks]) => `${this.row}${ranks.length > 1 ? "s" : ""} ${listed(ranks)} ${why}`);
  }

  fromTo(left, right) {
    return `for ${this.write(right - left)}, from ${this.write(left)} to ${this.write(right)}`;
  }

  named(run, op, rank) {
    const there = run.table.rank[op];
    return there === rank ? run.nameOf(op) : `${run.nameOf(op)} on ${this.row} ${there}`;
  }

  // Return how a span is named in a line: its op, or its name and number.
  spanName(table, i) {
    const { name, names, stage, micro_batch: microBatch, bucket } = table;
    const kind = KINDS[names[name[i]]];
    if (kind && stage[i] >= 0 && microBatch[i] >= 0) return `${stage[i]}${kind}${microBatch[i]}`;
    const number = [bucket[i], microBatch[i]].find((each) => each >= 0);
    return number === undefined ? wordsOf(names[name[i]]) : `${wordsOf(names[name[i]])} ${number}`;
  }
}
