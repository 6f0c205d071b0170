// What is said of a picture that the page has made: the plain part of what Python says. Pure.

const PASSES = { F: "forward pass", B: "backward pass", I: "input gradient", W: "weight gradient" };
const NEAR = 1e-9;

export const short = (value) => String(Number(value.toPrecision(4)));
const nameOf = ({ kind, stage, microBatch }) => `${stage}${kind}${microBatch}`;
const lasting = (from, until) => `for ${short(until - from)}, from ${short(from)} to ${short(until)}`;
const plural = (count, word, ending) => `${count} ${word}${count === 1 ? "" : ending}`;

export function factsOf({ n, makespan, idle }) {
  return `makespan ${short(makespan)}, bubble ${Math.abs((100 * idle) / (n * makespan)).toFixed(1)} %`;
}

// What is shown, for readers who cannot see it and as a title; and the line above the picture.
export function wordsOf(runs, { n, m }) {
  const shown = 1 + Math.max(...runs[0].ops.map(({ microBatch }) => microBatch));
  const count = plural(shown, "micro-batch", "es");
  const parts = runs.map((run) => `${run.title}: makespan ${short(run.makespan)}`);
  if (shown !== m) parts.unshift(`${count}: interleaved 1F1B on ${n} ranks cannot share out ${m} evenly`);
  const facts = runs.map((run) => `${run.title}, ${factsOf(run)}`).join("; ");
  return { alt: `${plural(n, "rank", "s")} and ${count}: ${facts}`, said: `${parts.join("; ")}.` };
}

const EXPLAIN = { bar: explainBar, idle: explainIdle, kept: explainKept };

// Answers about the picture itself, instead of Python's.
export class PictureAnswers {
  constructor(scene) {
    this.scene = scene;
  }

  async ask(kind, panel, index) {
    const { panels, stops } = this.scene;
    if (kind in EXPLAIN) return EXPLAIN[kind](panels[panel].run, index);
    if (kind === "table") return `<table>${panels.map(({ run }) => rowsOf(run)).join("")}</table>`;
    const x = stops[kind][index];
    return `${short(x)}: ${panels.map(({ run }) => `${run.title}: ${begin(run, x)}`).join("; ")}.`;
  }
}

// Return what op i is, when it runs, what it needs and how long its rank was idle before.
function explainBar({ ops, start, end, input }, i) {
  const { kind, stage, microBatch, rank } = ops[i];
  const needed = ops[input[i]];
  const idle = start[i] - (ops[i - 1]?.rank === rank ? end[i - 1] : 0);
  return [
    `${nameOf(ops[i])}: ${PASSES[kind]} of micro-batch ${microBatch}, stage ${stage}`,
    `Rank ${rank}, ${short(start[i])} to ${short(end[i])}: ${short(end[i] - start[i])}.`,
    needed ? `It needs ${nameOf(needed)} on rank ${needed.rank}, which ended at ${short(end[input[i]])}.` : "It needs nothing but the batch.",
    idle > NEAR * end[i] ? `Rank ${rank} was idle for ${short(idle)} before it.` : `It began as soon as rank ${rank} was free.`,
  ].join("\n");
}

// Return how long a rank is idle before an op, or after its last: that one's number, counted on.
function explainIdle({ ops, start, end, input, makespan }, gap) {
  const i = gap % ops.length;
  const { rank } = ops[i];
  const isDone = gap >= ops.length;
  const free = ops[i - 1]?.rank === rank ? end[i - 1] : 0;
  const head = `Rank ${rank} is idle ${lasting(...(isDone ? [end[i], makespan] : [free, start[i]]))}`;
  if (isDone) return `${head}\nIts ops are done.`;
  const needed = input[i];
  const hop = start[i] > end[needed] ? ` The hop from there takes ${short(start[i] - end[needed])}.` : "";
  return `${head}\nTo begin ${nameOf(ops[i])} it waits for ${nameOf(ops[needed])} on rank ${ops[needed].rank}, which ends at ${short(end[needed])}.${hop}`;
}

// Return how much a rank keeps in a piece of its memory strip.
function explainKept({ kept }, piece) {
  const { rank, left, right, count } = kept[piece];
  const what = count ? `the activations of ${plural(Number(count.toPrecision(6)), "micro-batch", "es")}` : "no activations";
  return `Rank ${rank} keeps ${what} ${lasting(left, right)}`;
}

function begin({ ops, start }, x) {
  const names = ops.filter((_, i) => Math.abs(start[i] - x) <= NEAR * Math.max(1, x)).map(nameOf);
  return names.length ? `${names.join(", ")} begin${names.length > 1 ? "" : "s"}` : "no op begins";
}

function rowsOf({ title, ops, start, end }) {
  const rows = ops.map((op, i) => [op.rank, nameOf(op), short(start[i]), short(end[i])]);
  const cells = (tag, row) => `<tr>${row.map((cell) => `<${tag}>${cell}</${tag}>`).join("")}</tr>`;
  return cells("th", [title, "op", "start", "end"]) + rows.map((row) => cells("td", row)).join("");
}
