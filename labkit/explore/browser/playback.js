// Where stepping stops: by clock or by event, forwards, back, and playing. Pure.

const LONGEST_MS = 700; // between two steps while playing
const SHORTEST_MS = 40;
const WHOLE_MS = 30000; // a long schedule plays within about this

export class Playback {
  // stops: {clock: positions, moment: positions}, in ascending order; mode: which of them it goes by.
  // At `rest` there is no position, -1, where all of the picture is shown; or it is the first step.
  constructor(stops, mode = "clock", rest = -1) {
    this.stops = stops;
    this.mode = stops[mode].length ? mode : stops.clock.length ? "clock" : "moment";
    this.step = this.rest = rest;
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

  get intervalMs() {
    return Math.max(SHORTEST_MS, Math.min(LONGEST_MS, WHOLE_MS / Math.max(1, this.positions.length)));
  }

  // One step on, 1, or back, -1: from the first to where it is off, and from there to the last.
  move(direction) {
    const last = this.positions.length - 1;
    this.step = direction < 0 && !this.isOn ? last : Math.min(this.step + direction, last);
  }

  stop() {
    this.step = this.rest;
  }

  // Step by the other kind of stop, from the same place.
  switchTo(mode) {
    const at = this.position;
    this.mode = mode;
    if (at !== null) this.step = Math.max(0, this.positions.findLastIndex((position) => position <= at));
  }
}
