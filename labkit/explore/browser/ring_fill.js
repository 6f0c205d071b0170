// A ring that a reader fills in: of each cell, whose parts are added up in it. Pure.
//
// Python gives of each bar of the grid (labkit/explore/grids/ring_answer.py) its step, its `place` in words, what is `filled`
// in as digits of ranks, "" while it is open, how it looks once it is `right`, and what is `wrong` with other answers. `whole`
// are the digits of all ranks, and `done` is said in the end.

import { readScene } from "./scene.js";

const OPEN = { name: "open", chunk: 0, label: "?", sentence: "Still to be filled in." };
const HOW = "Choose a cell: with a click, or with arrow keys. Then say whose parts are added up in it: tick them, or press their numbers.";

export class RingFill {
  constructor(sent, { bars, styles, whole, done }) {
    Object.assign(this, { sent, bars, styles, whole, done, chosen: null });
    this.answers = bars.map(({ filled }) => filled);
  }

  reason(bar) {
    return this.bars[bar].wrong[this.answers[bar]] ?? "";
  }

  look(bar) {
    const [answer, sentence] = [this.answers[bar], this.reason(bar)];
    if (!answer) return OPEN;
    return sentence ? { name: "wrong", chunk: 0, label: answer === this.whole ? "Σ" : answer, sentence } : this.bars[bar].right;
  }

  // Put the part of a rank into the chosen cell, or take it out.
  turn(rank) {
    const has = (each) => this.answers[this.chosen].includes(each) !== (each === rank);
    this.answers[this.chosen] = [...this.whole].filter(has).join("");
  }

  // Count the cells, and say what is wrong in the first step in which anything is: what follows from it is wrong as well.
  get narration() {
    const all = [...this.bars.keys()];
    const wrong = all.filter((bar) => this.reason(bar));
    const open = all.filter((bar) => !this.answers[bar]);
    const after = (bars) => bars.filter((bar) => this.bars[bar].step > 0).length;
    const count = `Of ${after(all)} cells ${after(all) - after(wrong) - after(open)} are right, ${after(wrong)} wrong, ${after(open)} open.`;
    const first = (bars) => Math.min(...bars.map((bar) => this.bars[bar].step));
    if (!wrong.length) return `${count} ${open.length ? `Go on with step ${first(open)}.` : this.done}`;
    const now = wrong.filter((bar) => this.bars[bar].step === first(wrong));
    const head = first(wrong) ? count : "Your first line, before, is wrong already, and every step begins from it.";
    const later = wrong.length - now.length;
    return [head, ...now.map((bar) => this.reason(bar)), ...(later ? [`Fix that first. Wrong in later steps: ${later}.`] : [])].join(" ");
  }

  get scene() {
    const looks = this.bars.map((_, bar) => this.look(bar));
    const [panel] = this.sent.panels;
    const style = looks.map(({ name }) => this.styles.findIndex((each) => each.name === name));
    const bars = { ...panel.bars, style, chunk: looks.map(({ chunk }) => chunk) };
    const texts = { labels: looks.map(({ label }) => label), sentences: looks.map(({ sentence }) => sentence) };
    return readScene({ ...this.sent, styles: this.styles, narration: this.narration, panels: [{ ...panel, ...texts, bars }] });
  }

  get controls() {
    const { chosen } = this;
    const value = chosen === null ? HOW : `${this.bars[chosen].place}: the parts of`;
    const ranks = [...this.whole].map((rank) => {
      return { name: rank, label: `rank ${rank}`, look: "check", value: Boolean(this.answers[chosen]?.includes(rank)), hidden: chosen === null };
    });
    return [{ name: "place", look: "words", value, group: "place" }, ...ranks.map((each) => ({ ...each, group: "ranks" }))];
  }
}
