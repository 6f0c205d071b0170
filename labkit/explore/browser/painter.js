// Draw a scene on a canvas: what is in sight of it, and nothing else.

import { hatchings } from "./hatching.js";
import { LINE, TITLE_LOOK } from "./layout.js";
import { ticks } from "./viewport.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const PATTERN_FROM = 7; // px: in a narrower bar no hatching can be seen
const EDGE_FROM = 3; // px: a narrower bar has no edge
const TICK = 90; // px between two ticks, at least
const ARROW = { light: { ink: "#1f2328", ground: "#ffffff" }, dark: { ink: "#ffffff", ground: "#1f2328" } };
const BESIDE = 0.78; // where in a cell of a grid its arrows begin and end: beside its label
const SENT = 0.3; // of the width of a cell, what is on its way to another
const LETTER = 0.62; // of the size of the letters
// How strongly a bar is painted: as it is, and while stepping or beside the critical path.
const FULL = { colour: 1, hatch: 0.75 };
const DIM = { colour: 0.22, hatch: 0.15 };
const TO_COME = { colour: 0.22, hatch: 0 };

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  // picture: {scene, layout, viewport, theme, playhead, step, hovered, pinned, focus, showCritical,
  // litStyles, dragged}. The playhead is a place on the axis, the step that of a grid, or a number between
  // two of them. The bar that is dragged is `by` so much beside its place on the axis.
  paint(picture) {
    Object.assign(this, picture);
    this.resize(this.layout);
    const marks = [this.hovered, this.pinned, this.focus].filter(Boolean);
    const sameOf = ({ panel, bar }) => this.scene.panels[panel].bars.same?.[bar] ?? -1;
    // Ops get an outline, as those around them matter; of others the rest is dimmed.
    this.sames = new Set(marks.filter(({ panel }) => this.scene.panels[panel].of_ops).map(sameOf));
    this.lit = marks.length && !this.scene.panels[marks[0].panel].of_ops ? sameOf(marks[0]) : -1;
    this.scene.panels.forEach((panel, number) => {
      const chosen = marks.filter((mark) => mark.panel === number);
      const dragged = this.dragged?.panel === number ? this.dragged : null;
      this.paintPanel({ ...panel, ...this.layout.panels[number], chosen, dragged });
    });
    this.scale = this.viewport;
    if (this.scene.axis) this.paintAxis(this.scene.axis, this.layout.axisTop);
    if (this.playhead !== null) this.paintPlayhead();
  }

  resize({ width, height }) {
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high || this.ratio !== ratio) {
      Object.assign(this.canvas, { width: wide, height: high });
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
      this.ratio = ratio;
      this.patternOf = hatchings(this.pen, ratio);
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
  }

  // panel: one of the scene, with its place in the layout and the bars that are pointed at.
  paintPanel(panel) {
    const { layout, pen } = this;
    this.scale = panel.viewport ?? this.viewport;
    this.paintWords(panel);
    pen.save();
    pen.beginPath();
    pen.rect(layout.gutter - 1, panel.top, layout.plot + 2, panel.bottom - panel.top + 2);
    pen.clip();
    if (this.scene.axis) this.paintBackground(panel);
    if (panel.strips) this.paintStrips(panel.strips, panel.rowsTop);
    this.paintBars(panel);
    for (const [x, , dashed] of panel.marks) this.paintMark(x, dashed, panel);
    this.paintLinks(panel);
    pen.restore();
    if (panel.axis) this.paintAxis(panel.axis, panel.bottom + 2);
  }

  x(value) {
    return this.layout.gutter + this.scale.toPixel(value, this.layout.plot);
  }

  // Return how wide `write` would write a text.
  widthOf(text, { size = 12, weight = "normal" } = {}) {
    this.pen.font = `${weight} ${size}px ${FONT}`;
    return this.pen.measureText(text).width;
  }

  write(text, x, y, { size = 12, colour = this.theme.ink, align = "left", weight = "normal", halo = "" } = {}) {
    this.pen.font = `${weight} ${size}px ${FONT}`;
    this.pen.textAlign = align;
    this.pen.textBaseline = "middle";
    if (halo) {
      this.pen.strokeStyle = halo;
      this.pen.lineWidth = 4;
      this.pen.strokeText(text, x, y);
    }
    this.pen.fillStyle = colour;
    this.pen.fillText(text, x, y);
  }

  // What stands around the bars: title, facts, names of columns and rows, peaks.
  paintWords({ title, facts, names, rows, peaks, top, rowsTop }) {
    const { gutter, plot, row } = this.layout;
    const muted = { colour: this.theme.muted, size: 11 };
    this.write(title, gutter, top + 12, TITLE_LOOK);
    facts.lines.forEach((line, k) => this.write(line, gutter + facts.left, top + 12 + LINE * k, { ...muted, size: 12 }));
    for (const [at, lines] of names.texts) {
      const first = rowsTop - 10 - LINE * (lines.length - 1);
      lines.forEach((line, k) => this.write(line, this.x(at), first + LINE * k, { ...muted, size: names.size, align: "center" }));
    }
    for (const [at, text] of peaks) this.write(text, gutter + plot + 6, rowsTop + at * row, muted);
    let last = -Infinity;
    for (const [at, text, small] of rows) {
      const y = rowsTop + at * row;
      if (small) {
        this.write(text, gutter - 6, y, { ...muted, size: 10.5, align: "right" });
      } else if (y - last >= 13) { // of many ranks, as many as there is room for
        this.write(text, 4, y);
        last = y;
      }
    }
  }

  // Under the bars of every row, and where a rank has none so far: grey where nothing is computed.
  paintBackground({ bars, rows, rowsTop }) {
    const { gutter, plot, row } = this.layout;
    const isEmpty = ([at]) => !bars.rows.some(({ top, height }) => top <= at && at <= top + height);
    const empty = rows.some(([, , small]) => small) ? [] : rows.filter(isEmpty);
    this.pen.fillStyle = this.theme.idle;
    for (const { top, height } of [...bars.rows, ...empty.map(([at]) => ({ top: at - 0.43, height: 0.86 }))]) {
      this.pen.fillRect(gutter, rowsTop + top * row, plot, height * row);
    }
  }

  paintStrips({ left, right, top, bottom, share, over }, rowsTop) {
    const { row } = this.layout;
    for (let i = 0; i < left.length; i++) {
      const height = (bottom[i] - top[i]) * row * share[i];
      const [from, until] = [this.x(left[i]), this.x(right[i])];
      this.pen.fillStyle = over?.[i] ? this.theme.alarm : this.theme.kept;
      this.pen.fillRect(from, rowsTop + bottom[i] * row - height, until - from, height);
    }
  }

  paintBars(panel) {
    const { scale, layout, theme, pen } = this;
    const [from, until] = scale.range;
    panel.bars.eachInSight(from, until, scale.span / layout.plot, (i) => {
      if (panel.bars.isThere(i, this.step)) this.paintBar(panel, i);
    });
    if (panel.dragged) this.paintBar(panel, panel.dragged.bar); // over the others
    for (const same of this.sames) {
      if (same !== -1) for (const i of panel.sames.get(same) ?? []) this.outline(panel, i, theme.ink);
    }
    for (const mark of panel.chosen) this.outline(panel, mark.bar, mark === this.focus ? theme.focus : theme.ink);
  }

  outline(panel, i, colour) {
    const [left, top, width, height] = this.box({ ...panel, bars: panel.spots ?? panel.bars }, i);
    this.pen.lineWidth = 2.4;
    this.pen.strokeStyle = colour;
    this.pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  }

  // Return left, top, width and height of a bar, in pixels.
  box({ bars, rowsTop, dragged }, i) {
    const by = dragged?.bar === i ? dragged.by : 0;
    const left = this.x(bars.left[i] + by);
    const width = Math.max(0.7, this.x(bars.right[i] + by) - left);
    return [left, rowsTop + bars.top[i] * this.layout.row, width, bars.height[i] * this.layout.row];
  }

  paintBar(panel, i, box = this.box(panel, i), text = panel.bars.labels[i]) {
    const { bars, critical, axis } = panel;
    const { pen, lit } = this;
    const [left, top, width, height] = box;
    const { fills: ofThemes, hatch, name } = this.scene.styles[bars.style[i]];
    const fills = ofThemes[this.theme.name];
    const fill = fills[Math.min(bars.chunk[i], fills.length - 1)];
    if (bars.ghost?.[i]) return this.paintGhost(bars.labels[i], box, fills[0]);
    const until = (axis ? null : this.playhead) ?? Infinity;
    const isLeftOut = (these, one) => these.size > 0 && !these.has(one);
    const isOther = (this.showCritical && isLeftOut(critical, i)) || (lit >= 0 && bars.same?.[i] !== lit);
    const isDim = isOther || isLeftOut(this.litStyles, name) || bars.left[i] > until;
    const done = Math.min(1, (until - bars.left[i]) / (bars.right[i] - bars.left[i] || 1));
    const seen = width >= PATTERN_FROM ? hatch : "";
    if (isDim) this.fillBox(box, fill, seen, DIM);
    else {
      if (done < 1) this.fillBox(box, fill, "", TO_COME);
      this.fillBox([left, top, width * done, height], fill, seen, FULL);
    }
    pen.globalAlpha = isDim ? 0.35 : 1;
    if (width >= EDGE_FROM && height >= 6) {
      pen.strokeStyle = fill.edge;
      pen.lineWidth = 0.8;
      pen.strokeRect(left + 0.4, top + 0.4, width - 0.8, height - 0.8);
    }
    pen.globalAlpha = 1;
    this.label(text, box, isDim ? { ink: this.theme.ink } : fill);
  }

  // Fill a box with a colour and a hatching, each as strongly as `strength` says.
  fillBox([left, top, width, height], { colour, edge }, hatch, strength) {
    const { pen } = this;
    const layers = [[colour, strength.colour], [this.patternOf(hatch, edge), strength.hatch]];
    for (const [look, alpha] of layers.filter(([look]) => look)) {
      pen.globalAlpha = alpha;
      pen.fillStyle = look;
      pen.fillRect(left, top, width, height);
    }
  }

  paintGhost(text, [left, top, width, height], { colour }) {
    const { pen } = this;
    pen.save();
    pen.setLineDash([4, 3]);
    pen.lineWidth = 1.6;
    pen.strokeStyle = this.theme.ink;
    pen.fillStyle = colour;
    pen.globalAlpha = 0.3;
    pen.fillRect(left + 1, top + 1, width - 2, height - 2);
    pen.globalAlpha = 1;
    pen.strokeRect(left + 1.5, top + 1.5, width - 3, height - 3);
    pen.restore();
    this.label(text, [left, top, width, height], { ink: this.theme.ink });
  }

  // Write into a bar, on a plate of its colour so that no hatching runs through the letters.
  label(text, [left, top, width, height], { colour, ink }) {
    if (!text || height < 9) return;
    const size = Math.min(12.5, height * 0.62, (width - 3) / (LETTER * text.length));
    if (size < 7) return;
    const middle = left + width / 2;
    if (colour) {
      const plate = LETTER * size * text.length + 3;
      this.pen.fillStyle = colour;
      this.pen.fillRect(middle - plate / 2, top + height / 2 - size * 0.6, plate, size * 1.15);
    }
    this.write(text, middle, top + height / 2 + 0.5, { size, align: "center", colour: ink });
  }

  paintMark(x, dashed, { rowsTop, bottom }) {
    const { pen } = this;
    pen.save();
    pen.setLineDash(dashed ? [5, 3] : []);
    pen.strokeStyle = this.theme.ink;
    pen.lineWidth = 1.3;
    pen.beginPath();
    pen.moveTo(this.x(x), rowsTop - 4);
    pen.lineTo(this.x(x), bottom);
    pen.stroke();
    pen.restore();
  }

  // Arrows: of the bar that is pointed at, from what it needs and to what waits for it; in a grid,
  // those of the step, or between two steps what is on its way.
  paintLinks(panel) {
    const { needs, waiters, links, chosen } = panel;
    if (chosen.length && needs.length) {
      const { kind, bar, after } = panel.spots?.what?.[chosen[0].bar] ?? { kind: "bar", bar: chosen[0].bar };
      if (kind !== "kept" && !after && needs[bar] >= 0) this.arrow(panel, needs[bar], bar);
      for (const waiter of (kind === "bar" && waiters.get(bar)) || []) this.arrow(panel, bar, waiter);
    }
    links?.labels.forEach((text, k) => {
      const isThere = links.appear[k] <= this.step && this.step < links.vanish[k];
      const isUnderWay = links.vanish[k] - 1 < this.step && this.step < links.vanish[k];
      if (isUnderWay) this.paintOnItsWay(panel, links.source[k], links.target[k]);
      else if (isThere) this.arrow(panel, links.source[k], links.target[k], text);
    });
  }

  // Between two cells what one sends to the other, without a label: of a sum perhaps only a part is sent.
  paintOnItsWay(panel, from, to) {
    const { pen } = this;
    const [start, end] = [from, to].map((i) => this.box(panel, i));
    const [left, top, width, height] = start.map((each, k) => each + (this.step % 1) * (end[k] - each));
    const box = [left + (BESIDE - SENT / 2) * width, top + 0.15 * height, SENT * width, 0.7 * height];
    this.paintBar(panel, from, box, "");
    pen.strokeStyle = ARROW[this.theme.name].ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(...box);
  }

  // From bar to bar on a time axis, from the right end to the left; in a grid, from cell to cell.
  arrow(panel, from, to, text = "") {
    const { pen } = this;
    const isGrid = !this.scene.axis;
    const [x0, y0, w0, h0] = this.box(panel, from);
    const [x1, y1, w1, h1] = this.box(panel, to);
    const start = [x0 + (isGrid ? BESIDE : 1) * w0, y0 + h0 / 2];
    const end = [x1 + (isGrid ? BESIDE : 0) * w1, y1 + h1 / 2];
    const across = Math.abs(end[1] - start[1]);
    const bend = isGrid ? Math.min(0.18 * across, 0.3 * w0) : 0;
    const rise = across ? 0 : 0.9 * this.layout.row; // within a row, over what lies between
    const middle = [(start[0] + end[0]) / 2 + bend, (start[1] + end[1]) / 2 - rise];
    pen.lineCap = "round";
    const { ink, ground } = ARROW[this.theme.name];
    for (const [colour, width] of [[ground, 5], [ink, 2]]) {
      pen.strokeStyle = pen.fillStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(...start);
      pen.quadraticCurveTo(...middle, ...end);
      pen.stroke();
      this.head(middle, end, 8 + width);
    }
    const [x, y] = [0, 1].map((k) => (start[k] + 2 * middle[k] + end[k]) / 4); // halfway along the curve
    this.write(text, x + 6, y, { size: 11, colour: ink, halo: ground });
  }

  head([x0, y0], [x1, y1], size) {
    const angle = Math.atan2(y1 - y0, x1 - x0);
    this.pen.beginPath();
    this.pen.moveTo(x1, y1);
    for (const side of [angle - 0.45, angle + 0.45]) this.pen.lineTo(x1 - size * Math.cos(side), y1 - size * Math.sin(side));
    this.pen.fill();
  }

  paintAxis({ per_second: perSecond, label }, axisTop) {
    const { pen, theme } = this;
    const { width, gutter, plot } = this.layout;
    const [low, high] = this.scale.range.map((x) => x * perSecond);
    const muted = { align: "center", size: 11, colour: theme.muted };
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(gutter, axisTop + 0.5);
    pen.lineTo(gutter + plot, axisTop + 0.5);
    for (const tick of ticks(low, high, Math.max(2, Math.floor(plot / TICK)))) {
      const x = this.x(tick / perSecond);
      pen.moveTo(x, axisTop);
      pen.lineTo(x, axisTop + 5);
      this.write(String(tick), x, axisTop + 13, muted);
    }
    pen.stroke();
    const look = { ...muted, size: 11.5 };
    const middle = Math.min(gutter + plot / 2, width - this.widthOf(label, look) / 2);
    this.write(label, middle, axisTop + 29, look);
  }

  paintPlayhead() {
    const top = this.layout.panels.find((_, k) => !this.scene.panels[k].axis).rowsTop;
    this.pen.fillStyle = this.theme.focus;
    this.pen.fillRect(this.x(this.playhead) - 1, top - 4, 2, this.layout.axisTop - top + 6);
  }
}

// Return a small canvas that looks as bars of a style do, for a legend.
export function swatch({ fills, hatch }, theme) {
  const [fill] = fills[theme];
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { className: "lk-swatch", width: 44, height: 28, ariaHidden: "true" });
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  for (const look of [fill.colour, hatchings(pen, 2)(hatch, fill.edge)].filter(Boolean)) {
    pen.fillStyle = look;
    pen.fillRect(0, 0, 22, 14);
  }
  pen.strokeStyle = fill.edge;
  pen.strokeRect(0.5, 0.5, 21, 13);
  return canvas;
}
