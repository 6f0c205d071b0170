// The text of a state of the schedule explorer, written and read as labkit/explore/schedules/state.py does. Pure.
//
// fields are by key what a number may be: {kind, low, high, expected}. schedules are by name.

export const INTERLEAVED = "interleaved";
const DEFAULT = { choice: { name: "1f1b", chunks: 2 }, n: 4, m: 8, times: [1], hop: 0, cap: null };
const COUNT = /^[0-9]{1,9}$/;
const NUMBER = /^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

export const choiceText = ({ name, chunks }) => (name === INTERLEAVED ? `${name} v=${chunks}` : name);

// Return the text of a state: 1f1b n=4 m=8 F=1 B=2.
export function stateOf({ choice, other, n, m, times: { F, I, W }, hop, cap }) {
  const isWhole = I.join() === W.join();
  const words = [choiceText(choice), `n=${n}`, `m=${m}`, `F=${F}`];
  words.push(...(isWhole ? [`B=${I.map((time) => 2 * time)}`] : [`I=${I}`, `W=${W}`]));
  if (hop) words.push(`hop=${hop}`);
  if (other) words.push(`vs ${choiceText(other)}`);
  if (cap !== null) words.push(`cap=${cap}`);
  return words.join(" ");
}

// Return the state that a text says: {choice, other, n, m, times, hop, cap}. Throws an error that names the word
// that is wrong and what was expected.
export function readState(text, { fields, schedules }) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  const readChoice = (word = "") => {
    const name = word.toLowerCase();
    check(Object.hasOwn(schedules, name), word, `a schedule: ${Object.keys(schedules).join(", ")}`);
    return { ...DEFAULT.choice, name };
  };
  const choices = [words[0] && !words[0].includes("=") ? readChoice(words.shift()) : DEFAULT.choice];
  const given = new Map(); // by key: the word, and its value
  while (words.length) {
    const word = words.shift();
    if (word.toLowerCase() === "vs") {
      check(choices.length === 1, word, "two schedules at most");
      choices.push(readChoice(words.shift()));
      continue;
    }
    const [key, value] = readNumber(word, fields);
    if (key === "v") {
      check(choices.at(-1).name === INTERLEAVED, word, "v= only after interleaved, whose chunks it counts");
      choices[choices.length - 1] = { name: INTERLEAVED, chunks: value };
    } else {
      check(!given.has(key), word, `${key} only once`);
      given.set(key, { word, value });
    }
  }
  const [choice, other = null] = choices;
  return { choice, other, ...readTimes(given) };
}

function check(isRight, word, expected) {
  if (!isRight) throw new Error(`${word ? `'${word}'` : "the end"}: expected ${expected}`);
}

function readNumber(word, fields) {
  const [name, text] = word.includes("=") ? [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)] : [];
  const key = Object.keys(fields).find((each) => each.toLowerCase() === name?.toLowerCase());
  check(key, word, `one of ${Object.keys(fields).map((each) => `${each}=`).join(", ")}, or vs and a second schedule`);
  const { kind, low, high, expected } = fields[key];
  const parts = kind === "times" ? text.split(",") : [text];
  const isRight = (part) => (kind === "count" ? COUNT : NUMBER).test(part) && low <= Number(part) && Number(part) <= high;
  check(parts.every(isRight), word, expected);
  return [key, kind === "times" ? parts.map(Number) : Number(text)];
}

// Return the numbers of a state. Throws where what was read does not fit together.
function readTimes(given) {
  const valueOf = (key, otherwise) => given.get(key)?.value ?? otherwise;
  const half = ["I", "W"].find((key) => given.has(key));
  if (half) check(!given.has("B"), given.get(half).word, "B, or I and W, not both: B is I + W");
  const n = valueOf("n", DEFAULT.n);
  for (const key of ["F", "B", "I", "W"]) {
    const { length } = valueOf(key, DEFAULT.times);
    check([1, n].includes(length), given.get(key)?.word, `one time, or one for each of the n=${n} ranks, not ${length}`);
  }
  const F = valueOf("F", DEFAULT.times);
  const halves = valueOf("B")?.map((time) => time / 2) ?? F;
  const times = { F, I: valueOf("I", halves), W: valueOf("W", halves) };
  return { n, m: valueOf("m", DEFAULT.m), times, hop: valueOf("hop", DEFAULT.hop), cap: valueOf("cap", DEFAULT.cap) };
}
