// The puzzle: a schedule that is built by hand, op by op. What may be placed, when it runs, what a reader does and the
// sentence that answers it, the picture and its controls. Pure.
//
// Python gives levels (labkit/explore/puzzle/levels.py): what each asks and teaches, the times of its ops by kind and
// stage, the rank of each stage, the hop between ranks, caps (the most activations of each rank, or null), the goal with
// its par, and the ops of a solution in the order in which they run. An op is a text, 0F0; moves are ops in the order in
// which they were placed.

import { KINDS } from "./analysis.js";
import { earliestTimes, NAMES, opColumns } from "./earliest_times.js";
import { eventPanel } from "./events.js";
import { short, wordsOf } from "./explain.js";
import { sceneOf } from "./scene.js";
import { readOp } from "./schedules.js";

const GOALS = {
  makespan: "End as early as you can; no order ends earlier than par",
  span: "Let each rank be done as soon as you can after its own first op; no order does better than par",
};
const BUTTONS = {
  undo: ["Undo", "Take the last move back"],
  clear: ["Clear", "Empty the board"],
  hint: ["Hint", "What to do next; again: do it"],
  next: ["Next level", "Go to the next level"],
};

class Level {
  constructor(given, number) {
    Object.assign(this, given, { number, solution: given.solution.split(" "), n: 1 + Math.max(...given.rank_of_stage) });
    this.kinds = Object.keys(given.times); // in the order in which a micro-batch meets them: the last one frees its activation
  }

  rankOf(op) {
    return this.rank_of_stage[readOp(op).stage];
  }
}

// What is placed. A rank runs its ops in the order of the moves, each as early as that lets it.
export class Board {
  constructor(level, moves) {
    Object.assign(this, { level, moves, placed: new Set(moves) });
    this.ranks = [...Array(level.n).keys()];
    const ofRank = (ops, rank) => ops.filter((op) => level.rankOf(op) === rank);
    const rest = level.solution.filter((op) => !this.placed.has(op));
    this.orders = this.ranks.map((rank) => ofRank(moves, rank));
    const whole = this.orders.map((order, rank) => [...order, ...ofRank(rest, rank)]);
    this.ops = whole.flat();
    this.number = new Map(this.ops.map((op, i) => [op, i]));
    this.columns = { ...opColumns(whole.map((ops) => ops.map(readOp))), previous: this.previousOps(whole) };
    const all = this.ops.map(readOp);
    const duration = Float64Array.from(all, ({ kind, stage }) => level.times[kind][stage]);
    const transfer = new Float64Array(all.length).fill(level.hop);
    Object.assign(this.columns, earliestTimes(this.columns, { duration, transfer, overhead: new Float64Array(all.length) }), { duration });
  }

  // An op that is not placed would come next on its rank, so that is when one that may be placed would run.
  previousOps(whole) {
    let first = 0;
    return Int32Array.from(whole.flatMap((ops, rank) => {
      const [at, placed] = [first, this.orders[rank].length];
      first += ops.length;
      return ops.map((_, k) => (k && placed ? at + Math.min(k, placed) - 1 : -1));
    }));
  }

  get isFinished() {
    return this.moves.length === this.level.solution.length;
  }

  start(op) {
    return this.columns.start_s[this.number.get(op)];
  }

  end(op) {
    return this.columns.end_s[this.number.get(op)];
  }

  // Return the op whose output this one takes, undefined for a forward of the first stage.
  input(op) {
    return this.ops[this.columns.needs[this.number.get(op)]];
  }

  // --- what may be ------------------------------------------------------------------------------

  mayPlace(op) {
    const input = this.input(op);
    if (this.placed.has(op) || (input && !this.placed.has(input))) return false;
    const rank = this.level.rankOf(op);
    return readOp(op).kind !== "F" || this.kept(rank) < (this.level.caps?.[rank] ?? Infinity);
  }

  // Return how many activations a rank keeps after its last op.
  kept(rank) {
    return this.orders[rank].map((op) => this.change(op)).reduce((sum, change) => sum + change, 0);
  }

  change(op) {
    const { kind } = readOp(op);
    return Number(kind === "F") - Number(kind === this.level.kinds.at(-1));
  }

  // Return the ops that are offered, rank by rank. As micro-batches are alike, of each stage and kind it is the one whose
  // input arrives first.
  get offers() {
    const first = new Map();
    const arrival = (op) => (this.input(op) ? this.end(this.input(op)) : 0);
    const order = (...keys) => (a, b) => keys.map((key) => key(a) - key(b)).find(Boolean) ?? 0;
    const numbered = (op) => readOp(op).microBatch;
    for (const op of this.ops.filter((each) => this.mayPlace(each)).sort(order(arrival, numbered))) {
      const { kind, stage } = readOp(op);
      if (!first.has(kind + stage)) first.set(kind + stage, op);
    }
    return [...first.values()].sort(order((op) => this.level.rankOf(op), (op) => this.start(op), (op) => readOp(op).stage));
  }

  // --- how it came out --------------------------------------------------------------------------

  rankEnd(rank) {
    return this.orders[rank].length ? this.end(this.orders[rank].at(-1)) : 0;
  }

  // Return how long a rank takes from the start of its first op to the end of its last.
  span(rank) {
    return this.orders[rank].length ? this.rankEnd(rank) - this.start(this.orders[rank][0]) : 0;
  }

  get makespan() {
    return Math.max(...this.ranks.map((rank) => this.rankEnd(rank)));
  }

  // Return what the goal measures: less is better.
  get result() {
    return this.level.goal === "span" ? Math.max(...this.ranks.map((rank) => this.span(rank))) : this.makespan;
  }

  get isAtPar() {
    return this.isFinished && this.result <= this.level.par;
  }

  // Return how long a rank is idle as the goal counts it: to the end of the board, or between its own ops.
  idle(rank) {
    return (this.level.goal === "span" ? this.span(rank) : this.makespan) - this.busy(rank);
  }

  busy(rank) {
    return this.orders[rank].reduce((sum, op) => sum + this.columns.duration[this.number.get(op)], 0);
  }

  // Return the idle fraction of the ranks' time, in percent.
  get bubble() {
    const busy = this.ranks.reduce((sum, rank) => sum + this.busy(rank), 0);
    return `${(100 * (1 - busy / (this.ranks.length * this.makespan))).toFixed(0)} %`;
  }

  // Return the most activations that a rank keeps.
  peak(rank) {
    let kept = 0;
    return Math.max(0, ...this.orders[rank].map((op) => (kept += this.change(op))));
  }
}

// A level, and what has been done in it: every move is answered with a sentence.
class Game {
  constructor(level) {
    this.level = level;
    this.before = []; // moves that undo goes back to, the nearest ones last
    this.show([]);
  }

  show(moves, chosen = null) {
    this.board = new Board(this.level, moves);
    this.chosen = chosen;
    this.hinted = null;
  }

  change(moves, chosen) {
    this.before.push(this.board.moves);
    this.show(moves, chosen);
  }

  // Take moves that were made elsewhere, and say what the last one was.
  follow(moves) {
    if (moves.join() === this.board.moves.join()) return "";
    if (!moves.length) return this.clear();
    this.show(moves.slice(0, -1));
    this.before = moves.slice(1).map((_, k) => moves.slice(0, k));
    return this.place(moves.at(-1));
  }

  place(op) {
    this.change([...this.board.moves, op], op);
    const { board, level } = this;
    return this.withVerdict(`${op} on rank ${level.rankOf(op)} from ${short(board.start(op))} to ${short(board.end(op))}.`);
  }

  clear() {
    this.change([]);
    return "The board is empty.";
  }

  undo() {
    if (!this.before.length) return "No: there is nothing to undo.";
    this.show(this.before.pop());
    return this.withVerdict(`Undone: ${this.board.moves.length} of ${this.level.solution.length} ops are placed.`);
  }

  // Say what the solution runs next; asked again, place it.
  hint() {
    const { board, level, hinted } = this;
    if (hinted) return this.place(hinted);
    for (const rank of board.ranks) {
      const its = level.solution.filter((op) => level.rankOf(op) === rank);
      const k = board.orders[rank].findIndex((op, i) => op !== its[i]);
      if (k < 0) continue;
      const where = `rank ${rank} runs ${board.orders[rank][k]} where the schedule that sets par runs ${its[k]}`;
      return `Your order is another one: ${where}. Undo to come back to that schedule.`;
    }
    this.hinted = level.solution.find((op) => !board.placed.has(op)) ?? null;
    if (!this.hinted) return "All is placed, and at par.";
    const where = `on rank ${level.rankOf(this.hinted)} at ${short(board.start(this.hinted))}`;
    return `Place ${this.hinted} next, ${where}, as the schedule that sets par does. Ask again, and it is done.`;
  }

  withVerdict(answer) {
    const { board } = this;
    if (!board.isFinished) return answer;
    return board.isAtPar ? this.verdict() : `${answer} ${this.verdict()}`;
  }

  // Say how a board that is finished came out.
  verdict() {
    const { board, level: { goal, par } } = this;
    const took = goal === "makespan" ? short(board.result) : `at most ${short(board.result)} on a rank`;
    const finished = board.isAtPar
      ? `✓ Finished in ${took}: that is par.`
      : `Finished in ${took}: par is ${short(par)}. Undo, and try another order.`;
    const idle = board.ranks.reduce((sum, rank) => sum + board.idle(rank), 0);
    const within = idle ? `Ranks are idle for ${short(idle)} in all` : "No rank is idle";
    const bubble = goal === "makespan"
      ? `Bubble (idle fraction of the ranks' time): ${board.bubble}.`
      : `${within} between its first op and its last; with the time before and after, the bubble is ${board.bubble}.`;
    const peaks = board.ranks.map((rank) => board.peak(rank)).join(", ");
    return `${finished} ${bubble} Activations (what forwards leave for their backwards) kept at most, rank by rank: ${peaks}.`;
  }
}

// All levels, and which one is shown.
export class Puzzle {
  constructor({ levels, look }) {
    this.look = look;
    this.games = levels.map((level, k) => new Game(new Level(level, k + 1)));
  }

  get game() {
    return this.games[this.number - 1];
  }

  // What Python is told: the level, and its moves.
  get state() {
    return [this.number, this.game.board.moves];
  }

  // Take what Python says: which level is shown, and the moves of those that were begun. Returns whether that is new.
  follow({ level, placed }) {
    const texts = Object.entries(placed).map(([number, ops]) => [Number(number), this.games[number - 1].follow(ops.split(" ").filter(Boolean))]);
    const said = texts.find(([number, text]) => number === level && text)?.[1];
    if (level === this.number && !said) return false;
    this.number = level;
    this.narration = said ?? this.welcome;
    return true;
  }

  get welcome() {
    return `Level ${this.number}: ${this.game.level.title}.`;
  }

  // Place the op of a bar, if it is one that is offered. Returns whether it was.
  place(bar) {
    const op = this.shown[bar];
    const isOffered = this.game.board.offers.includes(op);
    if (isOffered) this.narration = this.game.place(op);
    return isOffered;
  }

  // Take what a control says.
  take(name, value) {
    if (name === "level" || name === "next") {
      this.number = name === "next" ? this.number + 1 : Number(value);
      this.narration = this.welcome;
    } else this.narration = this.game[name]();
  }

  // The ops of the picture's bars: what is placed, then what is offered.
  get shown() {
    const { board } = this.game;
    return [...board.orders.flat(), ...board.offers];
  }

  get scene() {
    const { game: { board, level, chosen }, look: { axis, shades }, shown, narration } = this;
    const chunks = Math.max(...board.ranks.map((rank) => level.rank_of_stage.filter((each) => each === rank).length));
    const styles = shades[chunks - 1].filter(({ name }) => level.kinds.includes(KINDS[name]));
    const title = `Level ${level.number}: ${level.title}`;
    const panel = eventPanel({
      title,
      tables: [tableOf(board, shown)],
      row: "rank",
      memory: true,
      cap: level.caps,
      facts: factsOf(board),
      labels: shown,
      marks: level.goal === "makespan" ? [[level.par, "par", true]] : [],
      ranks: level.n,
      chosen: chosen && shown.indexOf(chosen),
    }, styles);
    return sceneOf({ title, axis, styles, panels: [panel], note: "", steps: [], opens_at: -1, narration, numbers: numbersOf(board), alt: inWords(board) });
  }

  get controls() {
    const { game: { board, level }, games } = this;
    const levels = games.map(({ level: { title } }, k) => [String(k + 1), `${k + 1} of ${games.length}: ${title}`]);
    const buttons = Object.entries(BUTTONS).filter(([name]) => name !== "next" || level.number < games.length);
    const goal = `${rulesInWords(level)} ${GOALS[level.goal]}, ${short(level.par)}.`;
    return [
      { name: "level", label: "level", look: "menu", options: levels, value: String(level.number) },
      { name: "asks", look: "words", value: level.asks, group: "asks" },
      { name: "goal", look: "words", value: goal, group: "goal" },
      { name: "teaches", look: "words", isStrong: true, group: "teaches", hidden: !board.isAtPar, value: board.isAtPar ? `✓ Par reached. What this level teaches: ${level.teaches}` : "" },
      ...buttons.map(([name, [label, tooltip]]) => ({ name, label, look: "action", tooltip, group: "moves" })),
    ];
  }
}

// Return the table of what is shown, as events.js lays it out.
function tableOf({ columns, ops, number, placed }, shown) {
  const rows = shown.map((op) => number.get(op));
  const column = (name) => columns[name].constructor.from(rows, (i) => columns[name][i]);
  const row = (i) => shown.indexOf(ops[i]); // -1 of what is not shown
  const all = ["rank", "stage", "micro_batch", "name", "start_s", "end_s"].map((name) => [name, column(name)]);
  return {
    title: "", names: NAMES, lanes: ["compute"], lane: new Uint8Array(rows.length), bucket: new Int32Array(rows.length).fill(-1),
    ...Object.fromEntries(all), needs: column("needs").map(row), waited_for: column("waited_for").map(row),
    offered: shown.map((op) => !placed.has(op)),
  };
}

// --- in words -------------------------------------------------------------------------------------

function factsOf(board) {
  const { level: { par, solution } } = board;
  if (!board.isFinished) return `${board.moves.length} of ${solution.length} ops · par ${short(par)}`;
  return `${board.isAtPar ? "✓ par" : `${short(board.result)} · par ${short(par)}`} · bubble ${board.bubble}`;
}

// Return the board for readers who cannot see it.
function inWords(board) {
  const { level, moves, orders, offers } = board;
  const until = moves.length ? `, up to ${short(board.makespan)}` : "";
  const words = [`Level ${level.number}, ${level.title}: ${moves.length} of ${level.solution.length} ops are placed${until}.`];
  orders.forEach((order, rank) => {
    const times = order.map((op) => `${op} from ${short(board.start(op))} to ${short(board.end(op))}`);
    if (order.length) words.push(`Rank ${rank}: ${times.join(", ")}.`);
  });
  if (offers.length) words.push(`To be placed: ${offers.map((op) => `${op} at ${short(board.start(op))}`).join(", ")}.`);
  return words.join(" ");
}

// Return a row per rank, in HTML: its ops in order, when it ends, how long it is idle, what it keeps.
function numbersOf(board) {
  const { goal, caps } = board.level;
  const head = ["rank", "ops", "ends", goal === "span" ? "idle between its ops" : "idle", "keeps at most", ...(caps ? ["may keep"] : [])];
  const rows = board.ranks.map((rank) => [
    rank, board.orders[rank].join(" "), short(board.rankEnd(rank)), short(board.idle(rank)), board.peak(rank), ...(caps ? [caps[rank]] : []),
  ]);
  const look = (k) => (k === 1 ? ' class="lk-text"' : "");
  const line = (cells, tag, more = "") => `<tr>${cells.map((cell, k) => `<${tag}${more}${look(k)}>${cell}</${tag}>`).join("")}</tr>`;
  const body = rows.map((cells) => line(cells, "td")).join("");
  return `<table class="labkit-metrics"><thead>${line(head, "th", ' scope="col"')}</thead><tbody>${body}</tbody></table>`;
}

function rulesInWords({ times, hop, caps }) {
  const isAlike = (values) => new Set(values).size === 1;
  const each = (values) => (isAlike(values) ? short(values[0]) : `${values.map(short).join(", ")} (by stage)`);
  const name = (kind) => wordsOf(NAMES.find((found) => KINDS[found] === kind));
  const takes = Object.entries(times).map(([kind, values]) => `${kind} (${name(kind)}) takes ${each(values)}`).join(", ");
  const sent = hop ? `, and what is sent to another rank is there ${short(hop)} later` : "";
  if (!caps) return `${takes}${sent}.`;
  const room = isAlike(caps) ? `${caps[0]} on each rank` : caps.map((cap, rank) => `${cap} on rank ${rank}`).join(", ");
  return `${takes}${sent}. Room for activations: ${room}.`;
}
