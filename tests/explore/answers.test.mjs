// Questions to Python and their answers.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Answers, NO_KERNEL, WrittenAnswers } from "../../labkit/explore/browser/answers.js";

function connected(patienceMs) {
  const sent = [];
  const answers = new Answers((message) => sent.push(message), patienceMs);
  answers.startOver(1);
  const reply = (question, text) => answers.receive({ answer: question.ask, ...question, text });
  return { sent, answers, reply };
}

test("the same question is sent once, and answered to all who asked", async () => {
  const { sent, answers, reply } = connected();
  const first = answers.ask("bar", 0, 7);
  const second = answers.ask("bar", 0, 7);
  assert.deepEqual(sent, [{ ask: "bar", panel: 0, index: 7, version: 1 }]);
  reply(sent[0], "2F0");
  assert.deepEqual(await Promise.all([first, second, answers.ask("bar", 0, 7)]), ["2F0", "2F0", "2F0"]);
  assert.equal(sent.length, 1);
});

test("answers that come in another order reach who asked for them", async () => {
  const { sent, answers, reply } = connected();
  const asked = [answers.ask("bar", 0, 1), answers.ask("bar", 1, 1), answers.ask("clock", 0, 1)];
  reply(sent[2], "c");
  reply(sent[0], "a");
  reply(sent[1], "b");
  assert.deepEqual(await Promise.all(asked), ["a", "b", "c"]);
});

test("another picture: what was known is asked again, and a late answer about the old one is dropped", async () => {
  const { sent, answers, reply } = connected();
  answers.ask("bar", 0, 7);
  answers.startOver(2);
  const now = answers.ask("bar", 0, 7);
  reply(sent[0], "of the old picture");
  reply(sent[1], "of the new one");
  assert.equal(await now, "of the new one");
});

test("a kernel that does not answer is named, and asked again the next time", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const { sent, answers, reply } = connected(4000);
    const asked = answers.ask("bar", 0, 7);
    mock.timers.tick(4000);
    assert.equal(await asked, NO_KERNEL);
    const again = answers.ask("bar", 0, 7);
    assert.equal(sent.length, 2);
    reply(sent[1], "2F0");
    assert.equal(await again, "2F0");
  } finally {
    mock.timers.reset();
  }
});

test("of a question about a picture that has gone nobody says that the kernel is silent", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const { answers } = connected(4000);
    const said = [];
    answers.ask("clock", 0, 0).then((text) => said.push(text));
    answers.startOver(2);
    mock.timers.tick(10_000);
    await Promise.resolve();
    assert.deepEqual(said, []);
  } finally {
    mock.timers.reset();
  }
});

test("in a file the answers are there", async () => {
  const answers = new WrittenAnswers({ bar: [["1F0", "1F1"]] });
  assert.equal(await answers.ask("bar", 0, 1), "1F1");
});

test("in a file what is not there is empty, not an error", async () => {
  const answers = new WrittenAnswers({ bar: [["1F0"]] });
  assert.deepEqual(await Promise.all([answers.ask("bar", 0, 9), answers.ask("bar", 3, 0), answers.ask("table", 0, 0)]), ["", "", ""]);
});
