// What a bar is, and what happens at a step: Python is asked, or a file knows it.

export class Answers {
  // send(message) asks the kernel.
  constructor(send) {
    this.send = send;
    this.version = 0;
    this.asked = new Map();
  }

  // Another picture: what is known of the one before no longer holds, and what was asked about it
  // stays without an answer.
  startOver(version) {
    this.version = version;
    this.asked.clear();
  }

  // Return a promise of a text. Asked again, the same question is not sent again.
  ask(kind, panel, index) {
    const key = `${kind} ${panel} ${index}`;
    if (!this.asked.has(key)) {
      const question = {};
      question.answer = new Promise((resolve) => { question.resolve = resolve; });
      this.asked.set(key, question);
      this.send({ ask: kind, panel, index, version: this.version });
    }
    return this.asked.get(key).answer;
  }

  // An answer has arrived; one to a question about an earlier picture is dropped.
  receive({ answer, panel, index, version, text }) {
    if (version !== this.version) return;
    this.asked.get(`${answer} ${panel} ${index}`)?.resolve(text);
  }

  // No answer will come any more: whoever waits for one gets this text.
  giveUp(text) {
    for (const { resolve } of this.asked.values()) resolve(text);
  }
}

// In a file: the answers are there, by kind, panel and index, and then by picture.
export class WrittenAnswers {
  constructor(written) {
    this.written = written;
    this.version = 0;
  }

  startOver(version) {
    this.version = version;
  }

  async ask(kind, panel, index) {
    return this.written[kind]?.[panel]?.[index]?.[this.version] ?? "";
  }
}
