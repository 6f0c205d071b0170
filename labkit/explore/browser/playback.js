// Where stepping stops: by clock or by event, forwards, back, and playing. Pure.

const LONGEST_MS = 700; // between two steps while playing
const SHORTEST_MS = 40;
const WHOLE_MS = 30000; // a long schedule plays within about this

export class Playback {
  // stops: {clock: positions, moment: positions}, in ascending order. No position at first: all of
  // the picture is shown.
  constructor(stops) {
    this.stops = stops;
    this.mode = stops.clock.length ? "clock" : "moment";
    this.step = -1;
  }

  get positions() {
    return this.stops[this.mode];
  }

  get isOn() {
    return this.step >= 0;
  }

  get position() {
    return this.isOn ? this.positions[this.step] : null;
  }

  get isAtEnd() {
    return this.step >= this.positions.length - 1;
  }

  forward() {
    this.step = Math.min(this.step + 1, this.positions.length - 1);
  }

  // From the first step, back to the whole picture.
  back() {
    this.step = this.isOn ? this.step - 1 : this.positions.length - 1;
  }

  stop() {
    this.step = -1;
  }

  // Step by the other kind of stop, from the same place.
  switchTo(mode) {
    const at = this.position;
    this.mode = mode;
    if (at === null) return;
    const after = this.positions.findIndex((position) => position > at);
    this.step = (after < 0 ? this.positions.length : after) - 1;
    if (this.step < 0 && this.positions.length) this.step = 0;
  }

  get intervalMs() {
    return Math.max(SHORTEST_MS, Math.min(LONGEST_MS, WHOLE_MS / Math.max(1, this.positions.length)));
  }
}
