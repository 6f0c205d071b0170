// When every op of a pipeline runs if it starts as soon as it can: what labkit.simulate works out, in
// the page, where a slider need not wait for Python. Pure.

// ops: for each rank its ops {kind, stage, microBatch}, in the order in which it runs them.
// durations: by kind (F, B, I, W) a time for each stage. hop: the delay of what comes from another rank.
// Return the start and the end of every op, rank by rank, and its input: the number of the op whose
// output it takes, -1 without one. Throws if the ranks wait for each other.
export function earliestTimes(ops, durations, hop) {
  const all = ops.flat();
  const rank = ops.flatMap((ofRank, number) => ofRank.map(() => number));
  const input = inputsOf(all);
  const start = new Float64Array(all.length);
  const end = new Float64Array(all.length).fill(NaN); // until it is known
  const arrival = (i) => (input[i] < 0 ? 0 : end[input[i]] + (rank[input[i]] === rank[i] ? 0 : hop));
  let waiting = ops.map((_, number) => rank.indexOf(number)); // of each rank, the op that comes next
  while (waiting.length) {
    const stopped = waiting.map((first) => {
      let i = first;
      for (; rank[i] === rank[first] && arrival(i) >= 0; i++) {
        start[i] = Math.max(rank[i - 1] === rank[i] ? end[i - 1] : 0, arrival(i));
        end[i] = start[i] + durations[all[i].kind][all[i].stage];
      }
      return rank[i] === rank[first] ? i : -1;
    });
    if (stopped.every((i, k) => i === waiting[k])) throw new Error("a deadlock: every rank waits for another one");
    waiting = stopped.filter((i) => i >= 0);
  }
  return { start, end, input };
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
