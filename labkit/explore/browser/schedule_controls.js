// The controls of the schedule explorer. Pure.
//
// A pipeline (schedules.js) has beside its orders what was chosen: choice and other, {name, chunks}, of
// which other may be null. spec is what Python gives: fields (by key, with label, min, max and step),
// schedules (their titles, by name) and presets (their states, by what their buttons say); to a file also its
// `limit`, in words. A library has orders by choice and size: labkit/explore/schedules/orders.py.

import { choiceText, INTERLEAVED, stateOf } from "./schedule_state.js";

const TIMES = ["F", "I", "W"];
const CAP = 4; // micro-batches: what the memory cap begins with
const REFERENCE = "1f1b"; // takes every size

// Return the controls of a pipeline, for a notebook or, where there is a `limit`, for a page without a kernel. One with
// an `address` opens at a state.
export function controlsOf(pipeline, { fields, schedules, presets, limit, address }) {
  const { choice, other, n, m, times, hop, cap } = pipeline;
  const names = Object.entries(schedules);
  const chunks = { ...fields.v, look: "slider" };
  const range = (key, value, more = {}) => ({ ...fields[key], name: key, look: "slider", value, disabled: fields[key].min === fields[key].max, ...more });
  const isSplit = [choice, other].some((each) => each && each.name !== "forward");
  return [
    ...(limit ? [] : Object.entries(presets).map(([label, state]) => ({ name: `preset ${label}`, label, look: "action", tooltip: state, group: "presets" }))),
    { name: "schedule", label: "schedule", look: "menu", options: names, value: choice.name },
    { ...chunks, name: "v", value: choice.chunks, hidden: choice.name !== INTERLEAVED },
    { name: "other", label: "compare with", look: "menu", options: [["", "—"], ...names], value: other?.name ?? "" },
    { ...chunks, name: "otherV", label: "its chunks", value: other?.chunks ?? 2, hidden: other?.name !== INTERLEAVED },
    range("n", n),
    range("m", m),
    ...TIMES.map((key) => range(key, times[key][0], { readout: times[key].join(", "), hidden: key !== "F" && !isSplit })),
    range("hop", hop),
    { name: "capped", label: "memory cap", look: "check", value: cap !== null },
    range("cap", cap ?? CAP, { hidden: cap === null }),
    { name: "state", label: "state", look: "text", value: stateOf(pipeline), group: "state" },
    { name: "copy", label: "Copy state", look: "action", tooltip: "Copy the call that shows this again", group: "state" },
    ...(address ? [{ name: "link", label: "Copy link", look: "action", tooltip: "Copy the address that opens this again", group: "state" }] : []),
    ...(limit ? [{ name: "limit", look: "words", value: limit, group: "limit" }] : []),
  ];
}

// Is this control one of those that the page follows by itself, with the orders that it has?
export function isOfTimes(name) {
  return [...TIMES, "hop", "capped", "cap"].includes(name);
}

// Return the pipeline with a control moved.
export function moved(pipeline, name, value) {
  const { choice, other, times } = pipeline;
  const to = {
    schedule: () => ({ choice: { name: value, chunks: choice.chunks } }),
    v: () => ({ choice: { ...choice, chunks: value } }),
    other: () => ({ other: value ? { name: value, chunks: other?.chunks ?? 2 } : null }),
    otherV: () => ({ other: { ...other, chunks: value } }),
    n: () => ({ n: value, times: Object.fromEntries(TIMES.map((key) => [key, forRanks(times[key], value)])) }),
    m: () => ({ m: value }),
    hop: () => ({ hop: value }),
    capped: () => ({ cap: value ? CAP : null }),
    cap: () => ({ cap: value }),
  }[name] ?? (() => ({ times: { ...times, [name]: [value] } }));
  return { ...pipeline, ...to() };
}

// Return the times of n ranks: of those given per rank, the first and the last stay.
export function forRanks(times, n) {
  if (times.length === 1) return times;
  const front = times.slice(0, -1);
  return [...Array.from({ length: n - 1 }, (_, rank) => front[Math.min(rank, front.length - 1)]), times.at(-1)];
}

// Return the orders of what is chosen out of a library: of as many micro-batches as are nearest, as interleaved 1F1B
// does not take every number. Null where the library has no schedules of this size.
export function ordersOf({ choice, other, n, m }, library) {
  if (!library?.[REFERENCE].orders[[n, m]]) return null;
  const chosen = [...new Set([choice, ...(other ? [other] : [])].map(choiceText))].map((text) => library[text]);
  const counts = Object.keys(chosen[0].orders).map((size) => size.split(",").map(Number));
  const fits = counts.filter((size) => size[0] === n && chosen.every(({ orders }) => orders[size])).map(([, count]) => count);
  const nearest = fits.reduce((a, b) => (Math.abs(b - m) <= Math.abs(a - m) ? b : a));
  return Object.fromEntries(chosen.map(({ title, orders }) => [title, orders[[n, nearest]]]));
}
