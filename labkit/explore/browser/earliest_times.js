// When every op of a pipeline runs if it starts as soon as it can: what labkit.simulate works out, in
// the page, where a slider need not wait for Python. Pure.

import { KINDS } from "./analysis.js";

export const NAMES = Object.keys(KINDS);
const LETTERS = Object.values(KINDS); // F, B, I, W
const NEAR = 1e-9; // of the makespan

// Return the columns of an event table that do not depend on times, rank by rank: `ranks` has for each
// its ops {kind, stage, microBatch}, in the order in which it runs them. previous is the op before an op
// on its rank, -1 without one, needs the one whose output it takes, and order has every op once, each
// after these two. Throws if the ranks wait for each other.
export function opColumns(ranks) {
  const all = ranks.flat();
  const column = (of) => Int32Array.from(all, of);
  const rank = Int32Array.from(ranks.flatMap((ops, number) => ops.map(() => number)));
  const previous = rank.map((each, i) => (rank[i - 1] === each ? i - 1 : -1));
  const needs = inputsOf(all);
  return {
    rank,
    stage: column(({ stage }) => stage),
    micro_batch: column(({ microBatch }) => microBatch),
    name: column(({ kind }) => LETTERS.indexOf(kind)),
    previous,
    needs,
    order: runnableOrder(rank, previous, needs),
  };
}

function runnableOrder(rank, previous, needs) {
  const order = [];
  const done = new Uint8Array(rank.length);
  let waiting = []; // of each rank, the op that comes next
  previous.forEach((before, i) => before < 0 && waiting.push(i));
  while (waiting.length) {
    const stopped = waiting.map((first) => {
      let i = first;
      for (; rank[i] === rank[first] && (needs[i] < 0 || done[needs[i]]); i++) {
        done[i] = 1;
        order.push(i);
      }
      return rank[i] === rank[first] ? i : -1;
    });
    if (stopped.every((i, k) => i === waiting[k])) throw new Error("a deadlock: every rank waits for another one");
    waiting = stopped.filter((i) => i >= 0);
  }
  return Int32Array.from(order);
}

// Return when ops begin and end, and which op each waited for: the one before it, or its input. Each can begin
// `overhead` after the op before it, and `transfer` after an input of another rank; then it takes its `duration`:
// arrays of a time for each op.
export function earliestTimes({ rank, previous, needs, order }, { duration, transfer, overhead }) {
  const [start, end] = [new Float64Array(rank.length), new Float64Array(rank.length)];
  const isRemote = (i) => needs[i] >= 0 && rank[needs[i]] !== rank[i];
  const free = (i) => (previous[i] < 0 ? 0 : end[previous[i]]) + overhead[i];
  for (const i of order) {
    start[i] = isRemote(i) ? Math.max(free(i), end[needs[i]] + transfer[i]) : free(i);
    end[i] = start[i] + duration[i];
  }
  const near = NEAR * end.reduce((a, b) => Math.max(a, b), 0);
  const waitedFor = previous.map((before, i) => (isRemote(i) && (before < 0 || start[i] > free(i) + near) ? needs[i] : before));
  return { start_s: start, end_s: end, waited_for: waitedFor };
}

// F takes the activation of the stage before, B and I the gradient of the stage after; on the last
// stage the loss. W takes what its I has left for it.
function inputsOf(ops) {
  const numbers = new Map(ops.map(({ kind, stage, microBatch }, i) => [`${stage}${kind}${microBatch}`, i]));
  const lastStage = ops.reduce((most, { stage }) => Math.max(most, stage), 0);
  return Int32Array.from(ops, ({ kind, stage, microBatch }) => {
    const output = (of, there) => numbers.get(`${there}${of}${microBatch}`);
    if (kind === "F") return output("F", stage - 1) ?? -1;
    if (kind === "W") return output("I", stage);
    return stage === lastStage ? output("F", stage) : output("B", stage + 1) ?? output("I", stage + 1);
  });
}
