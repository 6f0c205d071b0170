// Messages to the kernel. It takes them in turn, so one that waits says that the kernel is busy.

const A_MOMENT_MS = 400;
export const BUSY = "The kernel is busy; this follows when it is free.";
export const NO_KERNEL = "The kernel does not answer. If it was restarted, run this cell again.";

export class Messages {
  // transmit(message, callbacks) is anywidget's model.send. busy(), when a message waits; free(), when
  // none does; lost(), when the kernel has gone.
  constructor(transmit, { busy, free, lost }) {
    Object.assign(this, { transmit, busy, free, lost });
    this.sent = this.done = 0; // how many, and the latest that the kernel is done with
    this.next = new Map(); // what is asked once it is, by control
    this.isLost = false;
  }

  get isWaiting() {
    return this.done < this.sent || this.next.size > 0;
  }

  send(message) {
    const number = ++this.sent;
    const status = ({ content }) => content.execution_state === "idle" && this.finish(number);
    try {
      if (!this.isLost) this.transmit(message, { iopub: { status } });
    } catch {
      this.isLost = true;
    }
    if (this.isLost) this.lost();
    else setTimeout(() => this.isLost || number <= this.done || this.busy(), A_MOMENT_MS);
  }

  // Send what only the latest of counts, such as where a slider is: of each control one at a time.
  ask(message) {
    const { control } = message;
    if (this.done === this.sent || this.isLost) return this.send(message);
    this.next.set(control, message);
    setTimeout(() => this.next.get(control) !== message || this.busy(), A_MOMENT_MS);
  }

  finish(number) {
    this.done = Math.max(this.done, number);
    if (this.done < this.sent) return;
    const next = [...this.next.values()];
    this.next.clear();
    for (const message of next) this.send(message);
    if (!next.length) this.free();
  }

  // JupyterLab has restarted or ended the kernel.
  lose() {
    this.isLost = true;
    this.lost();
  }
}
