// Questions to Python and their answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Answers, WrittenAnswers } from "../../labkit/explore/browser/answers.js";

function connected() {
  const sent = [];
  const answers = new Answers((message) => sent.push(message));
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

test("when no answer will come any more, whoever waits is told, and what was answered stays known", async () => {
  const { sent, answers, reply } = connected();
  const asked = [answers.ask("bar", 0, 7), answers.ask("bar", 0, 8)];
  reply(sent[0], "2F0");
  answers.giveUp("gone");
  assert.deepEqual(await Promise.all([...asked, answers.ask("bar", 0, 7)]), ["2F0", "gone", "2F0"]);
});

test("in a file the answers are there", async () => {
  const answers = new WrittenAnswers({ bar: [[["1F0", "of another picture"], ["1F1", "2F1"]]] });
  assert.equal(await answers.ask("bar", 0, 1), "1F1");
  answers.startOver(1);
  assert.equal(await answers.ask("bar", 0, 1), "2F1");
});

test("in a file what is not there is empty, not an error", async () => {
  const answers = new WrittenAnswers({ bar: [[["1F0"]]] });
  assert.deepEqual(await Promise.all([answers.ask("bar", 0, 9), answers.ask("bar", 3, 0), answers.ask("table", 0, 0)]), ["", "", ""]);
});
