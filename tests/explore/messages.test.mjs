// Messages to a kernel that is free, busy or gone.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Messages } from "../../labkit/explore/browser/messages.js";

const LONG_MS = 60_000;

// A kernel that finishes what it is told to; events has the calls of the handlers, in order.
function connected(t) {
  mock.timers.enable({ apis: ["setTimeout"] });
  t.after(() => mock.timers.reset());
  const events = [];
  const [statuses, sent] = [[], []];
  const transmit = (message, { iopub }) => {
    if (message === "to a dead kernel") throw new Error("Kernel is dead");
    sent.push(message);
    statuses.push((execution_state) => iopub.status({ content: { execution_state } }));
  };
  const handlers = Object.fromEntries(["busy", "free", "lost"].map((what) => [what, () => events.push([what])]));
  return { messages: new Messages(transmit, handlers), events, statuses, sent };
}

test("a kernel that answers in a moment is not called busy", (t) => {
  const { messages, events, statuses } = connected(t);
  messages.send("a");
  statuses[0]("busy"); // at work on it
  assert.deepEqual(events, []);
  statuses[0]("idle");
  mock.timers.tick(LONG_MS);
  assert.deepEqual(events, [["free"]]);
});

test("while messages wait the kernel is busy, and free only after the last of them", (t) => {
  const { messages, events, statuses } = connected(t);
  messages.send("a");
  messages.send("b");
  mock.timers.tick(LONG_MS);
  statuses[0]("idle");
  assert.deepEqual(events, [["busy"], ["busy"]]);
  statuses[1]("idle");
  assert.deepEqual(events.at(-1), ["free"]);
});

test("a kernel that answers out of order is not busy for ever", (t) => {
  const { messages, events, statuses } = connected(t);
  messages.send("a");
  messages.send("b");
  statuses[1]("idle");
  statuses[0]("idle");
  mock.timers.tick(LONG_MS);
  assert.ok(events.every(([what]) => what === "free"));
});

test("a kernel that has gone is lost, not busy, and says so of each message", (t) => {
  const { messages, events } = connected(t);
  messages.send("a");
  messages.lose();
  messages.send("b");
  mock.timers.tick(LONG_MS);
  assert.deepEqual(events, [["lost"], ["lost"]]);
});

test("a message that cannot be sent says that the kernel is lost", (t) => {
  const { messages, events } = connected(t);
  messages.send("to a dead kernel");
  mock.timers.tick(LONG_MS);
  assert.deepEqual(events, [["lost"]]);
});

test("of what is asked while the kernel is busy only the latest is sent, and then", (t) => {
  const { messages, events, statuses, sent } = connected(t);
  for (const message of ["a", "b", "c"]) messages.ask(message);
  assert.deepEqual(sent, ["a"]);
  statuses[0]("idle");
  assert.deepEqual([sent, events, messages.isWaiting], [["a", "c"], [], true]);
  statuses[1]("idle");
  assert.deepEqual([events, messages.isWaiting], [[["free"]], false]);
});

test("of each control the latest is sent, however many were moved while the kernel was busy", (t) => {
  const { messages, statuses, sent } = connected(t);
  for (const message of [["cap", "1"], ["latency", "2"], ["latency", "3"], ["ranks", "4"]]) {
    messages.ask({ control: message[0], text: message[1] });
  }
  statuses[0]("idle");
  assert.deepEqual(sent.map(({ text }) => text), ["1", "3", "4"]);
  assert.ok(messages.isWaiting);
  statuses[1]("idle");
  statuses[2]("idle");
  assert.ok(!messages.isWaiting);
});

test("a message that waits for its turn says that the kernel is busy, one that a later one replaced does not", (t) => {
  const { messages, events } = connected(t);
  messages.ask({ control: "m", text: "a" });
  mock.timers.tick(LONG_MS);
  for (const text of ["b", "c"]) messages.ask({ control: "m", text });
  mock.timers.tick(LONG_MS);
  assert.deepEqual(events, [["busy"], ["busy"]]);
});
