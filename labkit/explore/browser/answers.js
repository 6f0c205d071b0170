// Ask Python what a bar is or what happens at a step. In a file without a kernel the answers are
// in the file.

const PATIENCE_MS = 4000;
export const NO_KERNEL = "The kernel does not answer. If it was restarted, run this cell again.";

export class Answers {
  // send(message) asks the kernel; `written` has answers by kind, panel and index, or is null.
  constructor(send, written = null, patienceMs = PATIENCE_MS) {
    this.send = send;
    this.written = written;
    this.patienceMs = patienceMs;
    this.version = 0;
    this.known = new Map();
    this.asked = new Map();
  }

  // Another picture: what is known of the one before no longer holds, and what was asked about it
  // stays without an answer.
  startOver(version) {
    this.version = version;
    this.known.clear();
    for (const { timer } of this.asked.values()) clearTimeout(timer);
    this.asked.clear();
  }

  // Return a promise of a text. Asked again, the same question is not sent again.
  ask(kind, panel, index) {
    if (this.written) return Promise.resolve(this.written[kind]?.[panel]?.[index] ?? "");
    const key = `${kind} ${panel} ${index}`;
    if (!this.known.has(key)) {
      const promise = new Promise((resolve) => {
        const timer = setTimeout(() => {
          this.known.delete(key);
          resolve(NO_KERNEL);
        }, this.patienceMs);
        this.asked.set(key, { timer, resolve });
      });
      this.known.set(key, promise);
      this.send({ ask: kind, panel, index, version: this.version });
    }
    return this.known.get(key);
  }

  // An answer has arrived; one to a question about an earlier picture is dropped.
  receive({ answer, panel, index, version, text }) {
    if (version !== this.version) return;
    const { timer, resolve } = this.asked.get(`${answer} ${panel} ${index}`) ?? {};
    clearTimeout(timer);
    resolve?.(text);
  }
}
