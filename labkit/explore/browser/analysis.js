// The analysis of one run of a pipeline, op by op: why its ranks are idle, what they keep, which ops decide its end. Pure.
//
// A table has the columns of an event table, a typed array each, with -1 where there is nothing. name
// and lane are numbers of `names` and `lanes`. Where the table is a run, `needs` has for each op the row
// whose output it takes, and `waited_for` the row that it waited for: the op before it on its rank, or
// one on another rank. What is only `offered` has not run.
// A duration is in the table's own unit, seconds.

import { grouped } from "./bars.js";

export const KINDS = { forward: "F", backward: "B", input_grad: "I", weight_grad: "W" };
const NEAR = 1e-9; // of the run: times closer than this are the same

export class PipelineAnalysis {
  constructor(table) {
    this.table = table;
    this.kinds = kindsOf(table);
    this.ranks = opsOfRanks(table, this.kinds);
    this.previous = new Int32Array(table.start_s.length).fill(-1); // op of the same rank
    this.first = Infinity;
    this.last = -Infinity;
    for (const ops of this.ranks.values()) {
      for (let k = 1; k < ops.length; k++) this.previous[ops[k]] = ops[k - 1];
      this.first = Math.min(this.first, table.start_s[ops[0]]);
      for (const op of ops) this.last = Math.max(this.last, table.end_s[op]);
    }
  }

  get makespan() {
    return this.last - this.first;
  }

  get near() {
    return NEAR * this.makespan;
  }

  isOp(row) {
    return this.kinds[row] !== "";
  }

  // Return how an op is written: 1F0.
  nameOf(op) {
    return `${this.table.stage[op]}${this.kinds[op]}${this.table.micro_batch[op]}`;
  }

  // Return the op on another rank whose output this one takes, -1 without one.
  remoteInput(op) {
    const { needs, rank } = this.table;
    return needs[op] >= 0 && rank[needs[op]] !== rank[op] ? needs[op] : -1;
  }

  // Return the ops that take the output of each.
  get consumers() {
    return (this.taken ??= grouped(this.table.needs));
  }

  // Return what a rank does at a time, as labkit.simulate.explain_idle does: a code, the op that runs
  // or comes next, and the op on another rank that it waits for.
  stateAt(rank, time) {
    const { start_s: start, end_s: end, waited_for: waitedFor } = this.table;
    const ops = this.ranks.get(rank);
    const now = time + this.near;
    const next = firstAfter(ops, start, now);
    const [running, op] = [ops[next - 1], ops[next]];
    if (next > 0 && end[running] > now) return { code: "busy", op: running };
    if (next === ops.length) return { code: "done", op: running };
    const waitsFor = this.remoteInput(op);
    if (waitsFor < 0) return { code: "overhead", op };
    if (end[waitsFor] > now) return { code: this.kinds[op] === "F" ? "activation" : "gradient", op, waitsFor };
    return waitedFor[op] === waitsFor ? { code: "hop", op, waitsFor } : { code: "overhead", op };
  }

  // Return how long an op's rank was idle before it, and from when on.
  idleBefore(op) {
    const { start_s: start, end_s: end } = this.table;
    const free = this.previous[op] < 0 ? this.first : end[this.previous[op]];
    return { free, idle: start[op] - free };
  }

  // Return the ops that end after a time and before this op can begin, each needing the one before it,
  // and how much of it hops and overhead took.
  chainBefore(op, since) {
    const { start_s: start, end_s: end, rank, waited_for: waitedFor } = this.table;
    const found = { chain: [], hops: 0, overhead: 0 };
    for (let later = op; start[later] > since + this.near;) {
      const needed = waitedFor[later];
      if (needed < 0) {
        found.overhead += start[later] - since;
        break;
      }
      const lost = start[later] - Math.max(since, end[needed]);
      if (rank[needed] === rank[later]) found.overhead += lost;
      else found.hops += lost;
      if (end[needed] > since + this.near) found.chain.unshift(needed);
      later = needed;
    }
    return found;
  }

  // Return the ops of the critical path, from the one that ends last back to the first.
  get critical() {
    const { end_s: end, waited_for: waitedFor } = this.table;
    const path = [];
    let op = -1;
    for (const ops of this.ranks.values()) for (const each of ops) if (op < 0 || end[each] > end[op]) op = each;
    for (; op >= 0; op = waitedFor[op]) path.push(op);
    return path;
  }

  // Return what each rank keeps, and until when: pieces {rank, left, right, count}, in micro-batches.
  // Of a rank with v stages the activation of one counts as a v-th.
  get kept() {
    return (this.pieces ??= this.countKept());
  }

  countKept() {
    const { start_s: start, end_s: end, stage } = this.table;
    const pieces = [];
    for (const [rank, ops] of this.ranks) {
      const stages = new Set(ops.map((op) => stage[op])).size;
      let [kept, before] = [0, null];
      for (const op of ops) {
        const kind = this.kinds[op];
        if (kind === "I") continue;
        kept += kind === "F" ? 1 : -1;
        const left = kind === "F" ? start[op] : end[op];
        if (before) before.right = left;
        pieces.push((before = { rank, left, right: this.last, count: kept / stages }));
      }
    }
    return pieces.filter(({ left, right }) => right - left > this.near);
  }

  // Return the metrics of a run. A bubble is called four things: bubble, as in this lab and in GPipe (Huang
  // et al. 2019), bubbleOfIdeal and idle, the bubble time of Megatron (Narayanan et al. 2021), and
  // bubbleInside, between the first and the last op of the rank that takes longest, as in zero bubble (Qi et
  // al. 2024), whose ranks begin and end one after the other. peak is counted in micro-batches of a rank's
  // whole part of the model. The rest of the critical path is hops, and delays in what was measured.
  get metrics() {
    const { start_s: start, end_s: end } = this.table;
    const ranks = [...this.ranks.values()].map((ops) => ({
      busy: ops.reduce((sum, op) => sum + end[op] - start[op], 0),
      taken: Math.max(...ops.map((op) => end[op])) - start[ops[0]],
    }));
    const busy = ranks.reduce((sum, rank) => sum + rank.busy, 0) / ranks.length;
    const longest = ranks.reduce((a, b) => (b.taken > a.taken ? b : a));
    const { critical, makespan } = this;
    const most = this.kept.reduce((a, b) => (b.count > a.count ? b : a), { count: 0, rank: 0 });
    return {
      makespan,
      bubble: 1 - busy / makespan,
      bubbleOfIdeal: makespan / busy - 1,
      idle: makespan - busy,
      bubbleInside: 1 - longest.busy / longest.taken,
      peak: most.count,
      peakRank: most.rank,
      criticalOps: critical.length,
      criticalShare: critical.reduce((sum, op) => sum + end[op] - start[op], 0) / makespan,
    };
  }
}

// Return for each row the kind of op that it is, F, B, I or W; "" for another span.
function kindsOf({ name, names, lane, lanes, stage, micro_batch: microBatch }) {
  const kinds = names.map((each) => KINDS[each] ?? "");
  const compute = lanes.indexOf("compute");
  return Array.from(name, (each, i) => (lane[i] === compute && stage[i] >= 0 && microBatch[i] >= 0 ? kinds[each] : ""));
}

// Return the ops of each rank, in the order in which it ran them.
function opsOfRanks({ rank, start_s: start, offered }, kinds) {
  const ranks = new Map();
  for (let i = 0; i < rank.length; i++) {
    if (!kinds[i] || offered?.[i]) continue;
    const ops = ranks.get(rank[i]);
    if (ops) ops.push(i);
    else ranks.set(rank[i], [i]);
  }
  for (const ops of ranks.values()) ops.sort((a, b) => start[a] - start[b]);
  return new Map([...ranks].sort(([a], [b]) => a - b));
}

// Return the place of the first of `ops`, in order of their starts, that begins after a time.
function firstAfter(ops, start, time) {
  let [low, high] = [0, ops.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[ops[middle]] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}
