// Which part of the time axis is in sight: zoom, pan, ticks. Pure: no page, no canvas.

const MAX_ZOOM = 1e5; // how many times the whole axis may be magnified

export class Viewport {
  // extent: [first, last] of the axis, in its own unit; all of it is in sight at first.
  constructor(extent) {
    this.extent = extent;
    this.fit();
  }

  get span() {
    return this.range[1] - this.range[0];
  }

  get middle() {
    return (this.range[0] + this.range[1]) / 2;
  }

  fit() {
    this.range = [...this.extent];
  }

  // Magnify by factor around x, which stays where it is.
  zoom(factor, x) {
    const whole = this.extent[1] - this.extent[0];
    const span = Math.min(whole, Math.max(whole / MAX_ZOOM, this.span / factor));
    const share = this.span > 0 ? (x - this.range[0]) / this.span : 0.5;
    this.moveTo(x - share * span, span);
  }

  // Move by a share of what is in sight.
  pan(share) {
    this.moveTo(this.range[0] + share * this.span, this.span);
  }

  // Show from left to right, with room around it, unless both are in sight already.
  reveal(left, right) {
    if (left >= this.range[0] && right <= this.range[1]) return;
    const span = Math.max(this.span, right - left);
    this.moveTo((left + right - span) / 2, span);
  }

  moveTo(left, span) {
    const [first, last] = this.extent;
    const from = Math.max(first, Math.min(left, last - span));
    this.range = [from, Math.min(last, from + span)];
  }

  // Keep the range where another picture has the same axis; otherwise show all of it.
  follow(extent) {
    const same = extent[0] === this.extent[0] && extent[1] === this.extent[1];
    this.extent = extent;
    if (!same) this.fit();
  }

  toPixel(x, width) {
    return this.span > 0 ? ((x - this.range[0]) / this.span) * width : 0;
  }

  fromPixel(pixel, width) {
    return this.range[0] + (pixel / width) * this.span;
  }
}

// Return round numbers from low to high, at most `maxTicks` of them: steps of 1, 2 or 5 times 10^k.
export function ticks(low, high, maxTicks) {
  if (!(high > low) || maxTicks < 1) return [low];
  const minStep = (high - low) / maxTicks;
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= minStep * (1 - 1e-9));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + 1e-12 * step; k++) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
}
