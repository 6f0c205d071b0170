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
const NARROW_CELL = 60; // px
const SENT = 0.3; // of the width of a cell, what is on its way to another
const MIN_LETTERS_PX = 7;
const LETTER = 0.62; // of the size of the letters
// How strongly a bar is painted: as it is, and while stepping or beside the critical path.
const FULL = { colour: 1, hatch: 0.75 };
const DIM = { colour: 0.22, hatch: 0.15 };
const TO_COME = { colour: 0.22, hatch: 0 };

// A frame is what is drawn at once: {scene, layout, viewport, theme, playhead, step, hovered, pinned, focus,
// showCritical, litStyles, enlargement}. The playhead is a place on the axis, the step that of a grid, or a number
// between two of them. All is enlargement times as large as the layout says.
export class Painter {
  // scale: pixels of the canvas for one of the page, if it is not the screen's own number.
  constructor(canvas, scale = null) {
    this.canvas = canvas;
    this.scale = scale;
    this.pen = canvas.getContext("2d");
  }

  paint(frame) {
    this.resize(frame.layout, frame.enlargement);
    this.painted = paintFrame(this.pen, { ...frame, patternOf: this.patternOf }); // for tests
  }

  // Return how wide a text would be.
  widthOf(text, look) {
    return widthOf(this.pen, text, look);
  }

  resize({ width, height }, enlargement) {
    const ratio = enlargement * (this.scale ?? (window.devicePixelRatio || 1));
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high || this.ratio !== ratio) {
      Object.assign(this.canvas, { width: wide, height: high });
      Object.assign(this.canvas.style, { width: `${enlargement * width}px`, height: `${enlargement * height}px` });
      this.ratio = ratio;
      this.patternOf = hatchings(this.pen, ratio);
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
  }
}

// Paint all panels, and return the frame with what lights up in it.
function paintFrame(pen, given) {
  const { scene, layout, hovered, pinned, focus, viewport } = given;
  const marks = [hovered, pinned, focus].filter(Boolean);
  const sameOf = ({ panel, bar }) => scene.panels[panel].bars.same?.[bar] ?? -1;
  // Ops get an outline, as those around them matter; of others the rest is dimmed.
  const sames = new Set(marks.filter(({ panel }) => scene.panels[panel].of_ops).map(sameOf));
  const lit = marks.length && !scene.panels[marks[0].panel].of_ops ? sameOf(marks[0]) : -1;
  const frame = { ...given, sames, lit, scale: viewport };
  scene.panels.forEach((panel, number) => {
    const chosen = marks.filter((mark) => mark.panel === number);
    paintPanel(pen, frame, { ...panel, ...layout.panels[number], chosen });
  });
  if (scene.axis) paintAxis(pen, frame, scene.axis, layout.axisTop);
  if (frame.playhead !== null) paintPlayhead(pen, frame);
  return frame;
}

// panel: one of the scene, with its place in the layout and the bars that are pointed at.
function paintPanel(pen, frame, panel) {
  const { layout } = frame;
  paintWords(pen, frame, panel);
  pen.save();
  pen.beginPath();
  pen.rect(layout.gutter - 1, panel.top, layout.plot + 2, panel.bottom - panel.top + 2);
  pen.clip();
  if (frame.scene.axis) paintBackground(pen, frame, panel);
  if (panel.strips) paintStrips(pen, frame, panel.strips, panel.rowsTop);
  paintBars(pen, frame, panel);
  for (const [x, , dashed] of panel.marks) paintMark(pen, frame, x, dashed, panel);
  paintLinks(pen, frame, panel);
  pen.restore();
}

function pixelOf(frame, value) {
  return frame.layout.gutter + frame.scale.toPixel(value, frame.layout.plot);
}

// Return how wide `write` would write a text.
function widthOf(pen, text, { size = 12, weight = "normal" } = {}) {
  pen.font = `${weight} ${size}px ${FONT}`;
  return pen.measureText(text).width;
}

function write(pen, frame, text, x, y, { size = 12, colour = frame.theme.ink, align = "left", weight = "normal", halo = "" } = {}) {
  pen.font = `${weight} ${size}px ${FONT}`;
  pen.textAlign = align;
  pen.textBaseline = "middle";
  if (halo) {
    pen.strokeStyle = halo;
    pen.lineWidth = 4;
    pen.strokeText(text, x, y);
  }
  pen.fillStyle = colour;
  pen.fillText(text, x, y);
}

// What stands around the bars: title, facts, names of columns and rows, peaks.
function paintWords(pen, frame, { titleLines, facts, names, rows, peaks, top, rowsTop }) {
  const { width, gutter, plot, row } = frame.layout;
  const muted = { colour: frame.theme.muted, size: 11 };
  const left = Math.min(gutter, ...titleLines.map((line) => Math.max(4, width - widthOf(pen, line, TITLE_LOOK))));
  titleLines.forEach((line, k) => write(pen, frame, line, left, top + 12 + LINE * k, TITLE_LOOK));
  facts.lines.forEach((line, k) => write(pen, frame, line, gutter + facts.left, top + 12 + LINE * k, { ...muted, size: 12 }));
  for (const [at, lines] of names.texts) {
    const first = rowsTop - 10 - LINE * (lines.length - 1);
    lines.forEach((line, k) => write(pen, frame, line, pixelOf(frame, at), first + LINE * k, { ...muted, size: names.size, align: "center" }));
  }
  for (const [at, text] of peaks) write(pen, frame, text, gutter + plot + 6, rowsTop + at * row, muted);
  const beside = smallLetters(rows, row);
  let last = -Infinity;
  for (const [at, text, small] of rows) {
    const y = rowsTop + at * row;
    if (small) {
      if (beside >= MIN_LETTERS_PX) write(pen, frame, text, gutter - 6, y, { ...muted, size: beside, align: "right" });
    } else if (y - last >= 13) { // of many ranks, as many as there is room for
      write(pen, frame, text, 4, y);
      last = y;
    }
  }
}

// Return how large the small words beside rows may be so that none touches another. Where that is too small, none
// is written: some alone would say nothing of the rows between them.
function smallLetters(rows, row) {
  const places = rows.filter(([, , small]) => small).map(([at]) => at * row).sort((a, b) => a - b);
  return Math.min(10.5, ...places.slice(1).map((y, k) => y - places[k]));
}

// Grey where nothing is computed, in every row: from the first bar of its table to the last. Where ops are placed by
// hand a rank may have none so far, and may get some anywhere.
function paintBackground(pen, frame, { bars, rows, rowsTop }) {
  const { row } = frame.layout;
  const isEmpty = ([at]) => !bars.rows.some(({ top, height }) => top <= at && at <= top + height);
  const empty = bars.ghost ? rows.filter(isEmpty).map(([at]) => ({ top: at - 0.43, height: 0.86 })) : [];
  pen.fillStyle = frame.theme.idle;
  for (const { top, height, extent } of [...bars.rows, ...empty]) {
    const [from, until] = (bars.ghost ? frame.scale.range : extent).map((x) => pixelOf(frame, x));
    pen.fillRect(from, rowsTop + top * row, until - from, height * row);
  }
}

function paintStrips(pen, frame, { left, right, top, bottom, share, over }, rowsTop) {
  const { row } = frame.layout;
  for (let i = 0; i < left.length; i++) {
    const height = (bottom[i] - top[i]) * row * share[i];
    const [from, until] = [pixelOf(frame, left[i]), pixelOf(frame, right[i])];
    pen.fillStyle = over?.[i] ? frame.theme.alarm : frame.theme.kept;
    pen.fillRect(from, rowsTop + bottom[i] * row - height, until - from, height);
  }
}

function paintBars(pen, frame, panel) {
  const { scale, layout, theme } = frame;
  const [from, until] = scale.range;
  panel.bars.forEachVisible(from, until, scale.span / layout.plot, (i) => {
    if (panel.bars.isVisible(i, frame.step)) paintBar(pen, frame, panel, i);
  });
  for (const same of frame.sames) {
    if (same !== -1) for (const i of panel.sames.get(same) ?? []) outline(pen, frame, panel, i, theme.ink);
  }
  for (const mark of panel.chosen) outline(pen, frame, panel, mark.bar, mark === frame.focus ? theme.focus : theme.ink);
}

function outline(pen, frame, panel, i, colour) {
  const [left, top, width, height] = boxOf(frame, { ...panel, bars: panel.spots ?? panel.bars }, i);
  pen.lineWidth = 2.4;
  pen.strokeStyle = colour;
  pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
}

// Return left, top, width and height of a bar, in pixels.
function boxOf(frame, { bars, rowsTop }, i) {
  const left = pixelOf(frame, bars.left[i]);
  const width = Math.max(0.7, pixelOf(frame, bars.right[i]) - left);
  return [left, rowsTop + bars.top[i] * frame.layout.row, width, bars.height[i] * frame.layout.row];
}

function paintBar(pen, frame, panel, i, box = boxOf(frame, panel, i), text = panel.bars.labels[i]) {
  const { bars, critical, is_still: isStill } = panel;
  const { lit } = frame;
  const [left, top, width, height] = box;
  const { fills: ofThemes, hatch, name } = frame.scene.styles[bars.style[i]];
  const fills = ofThemes[frame.theme.name];
  const fill = fills[Math.min(bars.chunk[i], fills.length - 1)];
  if (bars.ghost?.[i]) return paintGhost(pen, frame, bars.labels[i], box, fills[0]);
  const until = (isStill ? null : frame.playhead) ?? Infinity;
  const isLeftOut = (these, one) => these.size > 0 && !these.has(one);
  const isOther = (frame.showCritical && isLeftOut(critical, i)) || (lit >= 0 && bars.same?.[i] !== lit);
  const isDim = isOther || isLeftOut(frame.litStyles, name) || bars.left[i] > until;
  const done = Math.min(1, (until - bars.left[i]) / (bars.right[i] - bars.left[i] || 1));
  const seen = width >= PATTERN_FROM ? hatch : "";
  if (isDim) fillBox(pen, frame, box, fill, seen, DIM);
  else {
    if (done < 1) fillBox(pen, frame, box, fill, "", TO_COME);
    fillBox(pen, frame, [left, top, width * done, height], fill, seen, FULL);
  }
  pen.globalAlpha = isDim ? 0.35 : 1;
  if (width >= EDGE_FROM && height >= 6) {
    pen.strokeStyle = fill.edge;
    pen.lineWidth = 0.8;
    pen.strokeRect(left + 0.4, top + 0.4, width - 0.8, height - 0.8);
  }
  pen.globalAlpha = 1;
  const share = panel.links && width < NARROW_CELL && !text.includes(" ") ? BESIDE : 1; // or else an arrow covers it
  label(pen, frame, text, [left, top, share * width, height], isDim ? { ink: frame.theme.ink } : fill);
}

// Fill a box with a colour and a hatching, each as strongly as `strength` says.
function fillBox(pen, frame, [left, top, width, height], { colour, edge }, hatch, strength) {
  const layers = [[colour, strength.colour], [frame.patternOf(hatch, edge), strength.hatch]];
  for (const [look, alpha] of layers.filter(([look]) => look)) {
    pen.globalAlpha = alpha;
    pen.fillStyle = look;
    pen.fillRect(left, top, width, height);
  }
}

function paintGhost(pen, frame, text, [left, top, width, height], { colour }) {
  pen.save();
  pen.setLineDash([4, 3]);
  pen.lineWidth = 1.6;
  pen.strokeStyle = frame.theme.ink;
  pen.fillStyle = colour;
  pen.globalAlpha = 0.3;
  pen.fillRect(left + 1, top + 1, width - 2, height - 2);
  pen.globalAlpha = 1;
  pen.strokeRect(left + 1.5, top + 1.5, width - 3, height - 3);
  pen.restore();
  label(pen, frame, text, [left, top, width, height], { ink: frame.theme.ink });
}

// Write into a bar, on a plate so that no hatching runs through the letters.
function label(pen, frame, text, [left, top, width, height], { plate, ink }) {
  if (!text || height < 9) return;
  const size = Math.min(12.5, height * 0.62, (width - 3) / (LETTER * text.length));
  if (size < MIN_LETTERS_PX) return;
  const middle = left + width / 2;
  if (plate) {
    const across = LETTER * size * text.length + 3;
    pen.fillStyle = plate;
    pen.fillRect(middle - across / 2, top + height / 2 - size * 0.6, across, size * 1.15);
  }
  write(pen, frame, text, middle, top + height / 2 + 0.5, { size, align: "center", colour: ink });
}

function paintMark(pen, frame, x, dashed, { rowsTop, bottom }) {
  pen.save();
  pen.setLineDash(dashed ? [5, 3] : []);
  pen.strokeStyle = frame.theme.ink;
  pen.lineWidth = 1.3;
  pen.beginPath();
  pen.moveTo(pixelOf(frame, x), rowsTop - 4);
  pen.lineTo(pixelOf(frame, x), bottom);
  pen.stroke();
  pen.restore();
}

// Arrows: of the bar that is pointed at, from what it needs and to what waits for it; in a grid,
// those of the step, or between two steps what is on its way.
function paintLinks(pen, frame, panel) {
  const { needs, waiters, links, chosen } = panel;
  if (chosen.length && needs.length) {
    const { kind, bar, after } = panel.spots?.what?.[chosen[0].bar] ?? { kind: "bar", bar: chosen[0].bar };
    if (kind !== "kept" && !after && needs[bar] >= 0) arrow(pen, frame, panel, needs[bar], bar);
    for (const waiter of (kind === "bar" && waiters.get(bar)) || []) arrow(pen, frame, panel, bar, waiter);
  }
  links?.labels.forEach((text, k) => {
    const isVisible = links.appear[k] <= frame.step && frame.step < links.vanish[k];
    const isUnderWay = links.vanish[k] - 1 < frame.step && frame.step < links.vanish[k];
    if (isUnderWay) paintOnItsWay(pen, frame, panel, links.source[k], links.target[k]);
    else if (isVisible) arrow(pen, frame, panel, links.source[k], links.target[k], text);
  });
}

// Between two cells what one sends to the other, without a label: of a sum perhaps only a part is sent.
function paintOnItsWay(pen, frame, panel, from, to) {
  const [start, end] = [from, to].map((i) => boxOf(frame, panel, i));
  const [left, top, width, height] = start.map((each, k) => each + (frame.step % 1) * (end[k] - each));
  const box = [left + (BESIDE - SENT / 2) * width, top + 0.15 * height, SENT * width, 0.7 * height];
  paintBar(pen, frame, panel, from, box, "");
  pen.strokeStyle = ARROW[frame.theme.name].ink;
  pen.lineWidth = 1.5;
  pen.strokeRect(...box);
}

// From bar to bar on a time axis, from the right end to the left; in a grid, from cell to cell.
function arrow(pen, frame, panel, from, to, text = "") {
  const isGrid = !frame.scene.axis;
  const [x0, y0, w0, h0] = boxOf(frame, panel, from);
  const [x1, y1, w1, h1] = boxOf(frame, panel, to);
  const start = [x0 + (isGrid ? BESIDE : 1) * w0, y0 + h0 / 2];
  const end = [x1 + (isGrid ? BESIDE : 0) * w1, y1 + h1 / 2];
  const across = Math.abs(end[1] - start[1]);
  const bend = isGrid ? Math.min(0.18 * across, 0.3 * w0) : 0;
  const rise = across ? 0 : 0.9 * frame.layout.row; // within a row, over what lies between
  const middle = [(start[0] + end[0]) / 2 + bend, (start[1] + end[1]) / 2 - rise];
  pen.lineCap = "round";
  const { ink, ground } = ARROW[frame.theme.name];
  for (const [colour, width] of [[ground, 5], [ink, 2]]) {
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(...start);
    pen.quadraticCurveTo(...middle, ...end);
    pen.stroke();
    paintHead(pen, middle, end, 8 + width);
  }
  const [x, y] = [0, 1].map((k) => (start[k] + 2 * middle[k] + end[k]) / 4); // halfway along the curve
  write(pen, frame, text, x + 6, y, { size: 11, colour: ink, halo: ground });
}

function paintHead(pen, [x0, y0], [x1, y1], size) {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  pen.beginPath();
  pen.moveTo(x1, y1);
  for (const side of [angle - 0.45, angle + 0.45]) pen.lineTo(x1 - size * Math.cos(side), y1 - size * Math.sin(side));
  pen.fill();
}

function paintAxis(pen, frame, { per_second: perSecond, label }, axisTop) {
  const { theme } = frame;
  const { width, gutter, plot } = frame.layout;
  const [low, high] = frame.scale.range.map((x) => x * perSecond);
  const muted = { align: "center", size: 11, colour: theme.muted };
  pen.strokeStyle = theme.muted;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(gutter, axisTop + 0.5);
  pen.lineTo(gutter + plot, axisTop + 0.5);
  for (const tick of ticks(low, high, Math.max(3, Math.floor(plot / TICK)))) {
    const x = pixelOf(frame, tick / perSecond);
    pen.moveTo(x, axisTop);
    pen.lineTo(x, axisTop + 5);
    write(pen, frame, String(tick), x, axisTop + 13, muted);
  }
  pen.stroke();
  const look = { ...muted, size: 11.5 };
  const middle = Math.min(gutter + plot / 2, width - widthOf(pen, label, look) / 2);
  write(pen, frame, label, middle, axisTop + 29, look);
}

function paintPlayhead(pen, frame) {
  const [first, last] = frame.scale.range;
  if (frame.playhead < first || frame.playhead > last) return; // out of sight, it would run over the words
  const top = frame.layout.panels.find((_, k) => !frame.scene.panels[k].is_still).rowsTop;
  pen.fillStyle = frame.theme.focus;
  pen.fillRect(pixelOf(frame, frame.playhead) - 1, top - 4, 2, frame.layout.axisTop - top + 6);
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
