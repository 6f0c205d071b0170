// Draw a scene on a canvas: what is in sight of it, and nothing else.

import { hatchings } from "./hatching.js";
import { ticks } from "./viewport.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const PATTERN_FROM = 7; // px: in a narrower bar no hatching can be seen
const EDGE_FROM = 3; // px: a narrower bar has no edge
const TICK = 90; // px between two ticks, at least
const ARROW = { ink: "#1f2328", ground: "#ffffff" }; // it lies on bars and cells, which are light in either theme
const BESIDE = 0.78; // where in a cell of a grid its arrows begin and end: beside its label
const LETTER = 0.62; // of the size of the letters

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  // state: {scene, layout, viewport, theme, playhead, focus, pinned, hovered, showCritical}
  paint(state) {
    this.state = state;
    this.resize(state.layout);
    const { scene, layout } = state;
    scene.panels.forEach((panel, number) => this.paintPanel(panel, layout.panels[number], number));
    if (scene.axis) this.paintAxis();
    if (scene.axis && state.playhead !== null) this.paintPlayhead();
  }

  resize({ width, height }) {
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio) || this.ratio !== ratio) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.ratio = ratio;
      this.patternOf = hatchings(this.pen, ratio);
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
  }

  paintPanel(panel, place, number) {
    const { layout } = this.state;
    this.paintTitle(panel, place);
    this.paintRows(panel, place);
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(layout.gutter - 1, place.top, layout.plot + 2, place.bottom - place.top + 2);
    this.pen.clip();
    if (this.state.scene.axis) this.paintBackground(panel, place);
    if (panel.strips) this.paintStrips(panel.strips, place);
    this.paintBars(panel, place, number);
    for (const [x, text, dashed] of panel.marks) this.paintMark(x, text, dashed, place);
    this.paintLinks(panel, place, number);
    this.pen.restore();
    for (const [at, text] of panel.peaks ?? []) {
      this.write(text, layout.gutter + layout.plot + 6, place.rowsTop + at * layout.row, { size: 11, colour: this.state.theme.muted });
    }
  }

  x(value) {
    const { layout, viewport } = this.state;
    return layout.gutter + viewport.toPixel(value, layout.plot);
  }

  write(text, x, y, { size = 12, colour = this.state.theme.ink, align = "left", weight = "normal", halo = "" } = {}) {
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

  paintTitle(panel, place) {
    const { layout, theme } = this.state;
    if (panel.title) this.write(panel.title, layout.gutter, place.top + 12, { size: 13, weight: "600" });
    if (panel.facts) this.write(panel.facts, layout.gutter + layout.plot, place.top + 12, { align: "right", colour: theme.muted });
    for (const [at, text] of panel.columns) {
      this.write(text, this.x(at), place.rowsTop - 10, { align: "center", size: 11, colour: theme.muted });
    }
  }

  paintRows(panel, place) {
    const { layout, theme } = this.state;
    let last = -Infinity;
    for (const [at, text, small] of panel.rows) {
      const y = place.rowsTop + at * layout.row;
      if (small) {
        this.write(text, layout.gutter - 6, y, { align: "right", size: 10.5, colour: theme.muted });
      } else if (y - last >= 13) { // of many ranks, as many as there is room for
        this.write(text, 4, y);
        last = y;
      }
    }
  }

  // Under the bars of every row: grey where nothing is computed.
  paintBackground(panel, place) {
    const { layout, theme } = this.state;
    this.pen.fillStyle = theme.idle;
    const { rows } = panel.bars;
    const isEmpty = ([at, , small]) => !small && !rows.some(({ top, height }) => top <= at && at <= top + height);
    const empty = panel.rows.filter(isEmpty).map(([at]) => ({ top: at - 0.43, height: 0.86 })); // rows without a bar so far
    for (const row of [...rows, ...(panel.rows.some(([, , small]) => small) ? [] : empty)]) {
      this.pen.fillRect(layout.gutter, place.rowsTop + row.top * layout.row, layout.plot, row.height * layout.row);
    }
  }

  paintStrips(strips, place) {
    const { layout, theme, viewport } = this.state;
    for (let i = 0; i < strips.left.length; i++) {
      if (strips.right[i] < viewport.range[0] || strips.left[i] > viewport.range[1]) continue;
      const bottom = place.rowsTop + strips.bottom[i] * layout.row;
      const height = (strips.bottom[i] - strips.top[i]) * layout.row * strips.share[i];
      const [left, right] = [this.x(strips.left[i]), this.x(strips.right[i])];
      this.pen.fillStyle = strips.over?.[i] ? theme.alarm : theme.kept;
      this.pen.fillRect(left, bottom - height, right - left, height);
    }
  }

  paintBars(panel, place, number) {
    const { layout, viewport, playhead, theme } = this.state;
    const { bars } = panel;
    const perPixel = viewport.span / layout.plot;
    const step = playhead ?? Infinity;
    const comesAndGoes = Boolean(bars.appear);
    bars.eachInSight(viewport.range[0], viewport.range[1], 0, panel.height, perPixel, (i) => {
      if (comesAndGoes && !bars.isThere(i, playhead ?? panel.clocks[panel.clocks.length - 1] ?? 0)) return;
      this.paintBar(panel, i, place, comesAndGoes ? Infinity : step);
    });
    for (const mark of [this.state.hovered, this.state.pinned, this.state.focus]) {
      if (mark && mark.panel === number && mark.bar < bars.count) this.outline(bars, mark.bar, place, mark === this.state.focus ? theme.focus : theme.ink);
    }
  }

  box(bars, i, place) {
    const { layout } = this.state;
    const left = this.x(bars.left[i]);
    const width = Math.max(0.7, this.x(bars.right[i]) - left);
    return [left, place.rowsTop + bars.top[i] * layout.row, width, bars.height[i] * layout.row];
  }

  paintBar(panel, i, place, playhead) {
    const { scene, theme, showCritical } = this.state;
    const { bars } = panel;
    const [left, top, width, height] = this.box(bars, i, place);
    const style = scene.styles[bars.style[i]];
    const fill = style.fills[Math.min(bars.chunk[i], style.fills.length - 1)];
    const pen = this.pen;
    if (bars.isGhost(i)) return this.paintGhost(bars, i, [left, top, width, height], style);
    const dim = bars.left[i] > playhead || (showCritical && panel.critical.size > 0 && !panel.critical.has(i));
    const done = Math.max(0, Math.min(1, (playhead - bars.left[i]) / (bars.right[i] - bars.left[i] || 1)));
    pen.globalAlpha = dim ? 0.22 : 1;
    pen.fillStyle = fill.colour;
    if (!dim && done < 1) {
      pen.globalAlpha = 0.22;
      pen.fillRect(left, top, width, height);
      pen.globalAlpha = 1;
      pen.fillRect(left, top, width * done, height);
    } else {
      pen.fillRect(left, top, width, height);
    }
    if (width >= PATTERN_FROM && style.hatch) {
      pen.fillStyle = this.patternOf(style.hatch, fill.edge);
      pen.globalAlpha = dim ? 0.15 : 0.75;
      pen.fillRect(left, top, width * (dim ? 1 : done), height);
    }
    pen.globalAlpha = dim ? 0.35 : 1;
    if (width >= EDGE_FROM && height >= 6) {
      pen.strokeStyle = fill.edge;
      pen.lineWidth = 0.8;
      pen.strokeRect(left + 0.4, top + 0.4, width - 0.8, height - 0.8);
    }
    this.label(bars.labels[i], [left, top, width, height], fill);
    pen.globalAlpha = 1;
  }

  paintGhost(bars, i, [left, top, width, height], style) {
    const { theme } = this.state;
    const pen = this.pen;
    pen.save();
    pen.setLineDash([4, 3]);
    pen.lineWidth = 1.6;
    pen.strokeStyle = theme.ink;
    pen.fillStyle = style.fills[0].colour;
    pen.globalAlpha = 0.3;
    pen.fillRect(left + 1, top + 1, width - 2, height - 2);
    pen.globalAlpha = 1;
    pen.strokeRect(left + 1.5, top + 1.5, width - 3, height - 3);
    pen.restore();
    this.label(bars.labels[i], [left, top, width, height], { ink: theme.ink, colour: null });
  }

  // Write into a bar, on a plate of its colour so that no hatching runs through the letters.
  label(text, [left, top, width, height], fill) {
    if (!text || height < 9) return;
    const size = Math.min(12.5, height * 0.62, (width - 3) / (LETTER * text.length));
    if (size < 7) return;
    const middle = left + width / 2;
    if (fill.colour) {
      const plate = LETTER * size * text.length + 3;
      this.pen.fillStyle = fill.colour;
      this.pen.fillRect(middle - plate / 2, top + height / 2 - size * 0.6, plate, size * 1.15);
    }
    this.write(text, middle, top + height / 2 + 0.5, { size, align: "center", colour: fill.ink });
  }

  outline(bars, i, place, colour) {
    const [left, top, width, height] = this.box(bars, i, place);
    this.pen.lineWidth = 2.4;
    this.pen.strokeStyle = colour;
    this.pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  }

  paintMark(x, text, dashed, place) {
    const pen = this.pen;
    const { theme } = this.state;
    pen.save();
    pen.setLineDash(dashed ? [5, 3] : []);
    pen.strokeStyle = theme.ink;
    pen.lineWidth = 1.3;
    pen.beginPath();
    pen.moveTo(this.x(x), place.rowsTop - 4);
    pen.lineTo(this.x(x), place.bottom);
    pen.stroke();
    pen.restore();
  }

  // Arrows: of the bar that is pointed at, from what it needs and to what waits for it; in a grid,
  // those of the step.
  paintLinks(panel, place, number) {
    const { pinned, hovered, focus, playhead } = this.state;
    const chosen = [hovered, pinned, focus].find((mark) => mark && mark.panel === number);
    if (chosen && panel.needs.length) {
      const i = chosen.bar;
      if (panel.needs[i] >= 0) this.arrow(panel.bars, panel.needs[i], i, place);
      for (const waiter of panel.waiters.get(i) ?? []) this.arrow(panel.bars, i, waiter, place);
    }
    const { links } = panel;
    if (!links) return;
    const step = playhead ?? panel.clocks[panel.clocks.length - 1] ?? 0;
    for (let k = 0; k < links.source.length; k++) {
      if (links.appear[k] <= step && step < links.vanish[k]) {
        this.arrow(panel.bars, links.source[k], links.target[k], place, links.labels[k]);
      }
    }
  }

  arrow(bars, from, to, place, text = "") {
    const pen = this.pen;
    const { scene } = this.state;
    const [x0, y0, w0, h0] = this.box(bars, from, place);
    const [x1, y1, w1, h1] = this.box(bars, to, place);
    const start = [scene.axis ? x0 + w0 : x0 + BESIDE * w0, y0 + h0 / 2];
    const end = [scene.axis ? x1 : x1 + BESIDE * w1, y1 + h1 / 2];
    const across = start[1] !== end[1];
    const bend = scene.axis || !across ? 0 : Math.min(0.18 * Math.abs(end[1] - start[1]), 0.3 * w0);
    const rise = across ? 0 : 0.9 * this.state.layout.row; // within a row, over what lies between
    const middle = [(start[0] + end[0]) / 2 + bend, (start[1] + end[1]) / 2 - rise];
    pen.lineCap = "round";
    for (const [colour, width] of [[ARROW.ground, 5], [ARROW.ink, 2]]) {
      pen.strokeStyle = pen.fillStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(...start);
      pen.quadraticCurveTo(...middle, ...end);
      pen.stroke();
      this.head(middle, end, width);
    }
    if (text) this.write(text, (start[0] + 2 * middle[0] + end[0]) / 4 + 6, (start[1] + 2 * middle[1] + end[1]) / 4, { size: 11, colour: ARROW.ink, halo: ARROW.ground });
  }

  head([x0, y0], [x1, y1], width) {
    const angle = Math.atan2(y1 - y0, x1 - x0);
    const size = 8 + width;
    this.pen.beginPath();
    this.pen.moveTo(x1, y1);
    for (const turn of [-0.45, 0.45]) this.pen.lineTo(x1 - size * Math.cos(angle + turn), y1 - size * Math.sin(angle + turn));
    this.pen.closePath();
    this.pen.fill();
  }

  paintAxis() {
    const { layout, scene, viewport, theme } = this.state;
    const pen = this.pen;
    const { per_second: perSecond, label } = scene.axis;
    const [low, high] = viewport.range.map((x) => x * perSecond);
    const bottom = layout.axisTop;
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(layout.gutter, bottom + 0.5);
    pen.lineTo(layout.gutter + layout.plot, bottom + 0.5);
    for (const tick of ticks(low, high, Math.max(2, Math.floor(layout.plot / TICK)))) {
      const x = this.x(tick / perSecond);
      pen.moveTo(x, bottom);
      pen.lineTo(x, bottom + 5);
      this.write(String(tick), x, bottom + 13, { align: "center", size: 11, colour: theme.muted });
    }
    pen.stroke();
    this.write(label, layout.gutter + layout.plot / 2, bottom + 29, { align: "center", size: 11.5, colour: theme.muted });
  }

  paintPlayhead() {
    const { layout, theme, playhead } = this.state;
    const x = this.x(playhead);
    this.pen.fillStyle = theme.focus;
    this.pen.fillRect(x - 1, layout.panels[0].rowsTop - 4, 2, layout.axisTop - layout.panels[0].rowsTop + 6);
  }
}
