// The picture that stays in a notebook: handed to Python once it is still, for where there is no kernel.

const STILL_MS = 1000;

export class KeptPicture {
  // photograph() gives {png, width, height}; transmit(message, callbacks, buffers) is anywidget's model.send.
  constructor(photograph, transmit) {
    Object.assign(this, { photograph, transmit, kept: new Uint8Array(), isUnderWay: false });
  }

  // The picture has been drawn: keep it once it has been still for a while.
  follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), STILL_MS);
  }

  async keep() {
    if (this.isUnderWay) return this.follow(); // a busy kernel gets one at a time
    const { png, width, height } = await this.photograph();
    if (png.length === this.kept.length && png.every((byte, i) => byte === this.kept[i])) return;
    const status = ({ content }) => { this.isUnderWay &&= content.execution_state !== "idle"; };
    try {
      this.transmit({ picture: [width, height] }, { iopub: { status } }, [png.buffer]);
      Object.assign(this, { kept: png, isUnderWay: true });
    } catch {
      this.end(); // the kernel has gone
    }
  }

  end() {
    clearTimeout(this.timer);
    this.follow = () => {};
  }
}
