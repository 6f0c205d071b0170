// Messages to the kernel. It takes them in turn, so one that waits says that the kernel is busy.

const A_MOMENT_MS = 400;
export const BUSY = "The kernel is busy; this follows when it is free.";
export const NO_KERNEL = "The kernel does not answer. If it was restarted, run this cell again.";

export class KernelMessages {
  // transmit(message, callbacks) is anywidget's model.send. hears.busy(message), of one that waits;
  // hears.free(), when none does; hears.lost(), when the kernel has gone.
  constructor(transmit, hears) {
    this.transmit = transmit;
    this.hears = hears;
    this.sent = this.done = 0; // how many, and the latest that the kernel is done with
    this.isLost = false;
  }

  send(message) {
    const number = ++this.sent;
    const status = ({ content }) => content.execution_state === "idle" && this.finish(number);
    try {
      if (!this.isLost) this.transmit(message, { iopub: { status } });
    } catch {
      this.isLost = true;
    }
    if (this.isLost) this.hears.lost();
    else setTimeout(() => this.isLost || number <= this.done || this.hears.busy(message), A_MOMENT_MS);
  }

  finish(number) {
    this.done = Math.max(this.done, number);
    if (this.done === this.sent) this.hears.free();
  }

  // JupyterLab has restarted or ended the kernel.
  lose() {
    this.isLost = true;
    this.hears.lost();
  }
}
