// Between two pictures of the same bars: each slides from where it was to where it is. Pure.

const SLIDE_MS = 600;

export class Slide {
  // panels before and after, of which those with as many bars slide.
  constructor(before, after) {
    this.left = before.map(({ bars: { left, right } }) => ({ left, right }));
    this.panels = after;
  }

  // Return the panels in the frame at this time in ms, null once the bars have arrived.
  at(now) {
    this.began ??= now;
    const share = (now - this.began) / SLIDE_MS;
    if (share >= 1) return null;
    const eased = share * share * (3 - 2 * share);
    const between = (from, to) => to.map((x, i) => from[i] + eased * (x - from[i]));
    return this.panels.map((panel, k) => {
      const from = this.left[k];
      if (from?.left.length !== panel.bars.count) return panel;
      const { left, right } = panel.bars;
      const moving = { left: between(from.left, left), right: between(from.right, right) };
      return { ...panel, bars: Object.assign(Object.create(panel.bars), moving) };
    });
  }
}
