// Stepping from stop to stop: forwards, back, and playing. Pure.

const MOVE_MS = 250; // from a step to the next
const MAX_MS = 700; // between two steps while playing
const MIN_MS = 40;
const WHOLE_MS = 30000; // a long schedule plays within about this

export class Playback {
  // positions are those of the stops, in ascending order.
  // At `rest` there is no position, -1, where all of the picture is shown; or it is a step of a grid.
  constructor(positions, rest = -1) {
    this.positions = positions;
    this.step = this.rest = rest;
    this.left = null; // the position that the picture is still moving away from
  }

  get isOn() {
    return this.step >= 0;
  }

  get position() {
    return this.isOn ? this.positions[this.step] : null;
  }

  get isAtRest() {
    return this.step === this.rest;
  }

  get isAtEnd() {
    return this.step >= this.positions.length - 1;
  }

  get intervalMs() {
    return Math.max(MIN_MS, Math.min(MAX_MS, WHOLE_MS / Math.max(1, this.positions.length)));
  }

  // One step on, 1, or back, -1: from the first to where it is off, if there is such a place, and
  // from there to the last.
  move(direction) {
    const last = this.positions.length - 1;
    const next = Math.min(this.step + direction, last);
    [this.left, this.began] = [this.position, null];
    this.step = direction < 0 && !this.isOn ? last : Math.max(next, Math.min(this.rest, 0));
  }

  // Return where the picture is in the frame at this time in ms: for a moment on its way to the position.
  placeAt(now) {
    this.began ??= now;
    const { left, position } = this;
    const share = (now - this.began) / Math.min(MOVE_MS, this.intervalMs);
    if (left === null || position === null || share >= 1) this.left = null;
    return this.left === null ? position : left + share * (position - left);
  }

  stop() {
    this.step = this.rest;
    this.left = null;
  }

  // Go to the last step up to this place, or the first of all.
  goTo(place) {
    this.left = null;
    this.step = Math.max(0, this.positions.findLastIndex((position) => position <= place));
  }
}
