// The Timeline: a canvas with its controls, its keys and its words.

import { onThemeChange, themeNow } from "../../guesses/browser/theme.js";
import { spotsOf } from "./bars.js";
import { explain, narrate } from "./explain.js";
import { BUSY } from "./messages.js";
import { layOut, placeOf } from "./layout.js";
import { buildPage, download, KEYS, makeOneTabStop } from "./page.js";
import { Legend } from "./legend.js";
import { Painter } from "./painter.js";
import { Player } from "./player.js";
import { Projector } from "./projector.js";
import { listenToPointer, SLACK, ZOOM } from "./pointer.js";
import { readScene } from "./scene.js";
import { Slide } from "./slide.js";
import { Switches } from "./switches.js";
import { fillNumbers, letScroll, tableOf } from "./table.js";
import { coloursOf, lightColoursOf } from "./themes.js";
import { Viewport } from "./viewport.js";

const MAX_FRAMES_WITHOUT = 120; // tries to draw a picture that has no room yet
const KEPT_SCALE = 2; // of a picture that is kept: sharp in print
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

export class TimelineView {
  // host: where it lives. host.get(name) gives the scene and the line of narration; host.send(message),
  // if it is there, tells Python.
  constructor(root, host) {
    this.root = root;
    root.timeline = this; // for the browser's console, and for tests: $0.timeline.viewport.range
    this.host = host;
    this.hovered = this.pinned = this.focus = null;
    this.pictures = this.drawn = this.framesWithout = 0; // pictures that were shown, frames in which one was drawn
    this.name = Math.random().toString(36).slice(2); // tells several views of one picture apart
    Object.assign(this, buildPage(root));
    this.legends = new Legend(this.legend, () => this.draw());
    this.switches = new Switches(this.whatIf, (scene) => this.slideTo(scene));
    const rows = [this.toolbar, this.whatIf, this.legend, this.saving].map(makeOneTabStop);
    this.fitTabStops = () => rows.forEach((fit) => fit());
    this.player = new Player(this.stepping.children[0], () => this.showStep());
    this.projector = new Projector(root, () => this.project(), (why) => this.say(why));
    this.actions = this.makeActions();
    this.painter = new Painter(this.canvas);
    this.listen();
    const observer = new ResizeObserver(() => {
      letScroll(this.numbers);
      this.projector.fit();
      this.draw();
    });
    observer.observe(root);
    const endThemes = onThemeChange(() => this.followTheme());
    this.end = () => {
      this.player.pause();
      observer.disconnect();
      endThemes();
    };
    this.followTheme();
  }

  // --- what is shown ----------------------------------------------------------------------------

  // Show what Python has sent.
  show(sent) {
    this.play(readScene(sent), this.host.get("narration"));
  }

  // Show a picture that the page has made.
  play(scene, narration = "") {
    this.switches.follow(scene);
    this.slide = null;
    this.showScene(scene, narration);
  }

  // Show the same run without some of what it has lost.
  slideTo(scene) {
    this.slide = new Slide(this.scene.panels, scene.panels);
    this.showScene(scene, this.switches.off.size ? scene.narration : this.host.get("narration"));
  }

  showScene(scene, narration) {
    this.scene = scene;
    this.pictures++;
    this.viewport ??= new Viewport(scene.extent);
    this.viewport.follow(scene.extent);
    this.player.follow(scene.stops, scene.opens_at);
    this.hovered = this.pinned = null;
    if (!(this.focus?.bar < scene.panels[this.focus?.panel]?.bars.count)) this.focus = null;
    scene.panels.forEach(({ chosen }, panel) => { if (chosen != null) this.focus = { panel, bar: chosen }; });
    this.stage.setAttribute("aria-label", scene.alt);
    this.stage.setAttribute("aria-roledescription", `picture of ${this.noun}s`);
    this.note.textContent = scene.note;
    this.note.hidden = !scene.note;
    this.say(narration);
    fillNumbers(this.numbers, scene);
    this.fitControls();
    this.fillLegend();
    this.fillTable();
    this.explain(document.activeElement === this.stage ? this.focus : null); // what was clicked, as it is now
    this.draw();
  }

  // Draw once before the next frame, however often this is called until then.
  draw() {
    this.waiting ??= requestAnimationFrame((now) => {
      this.waiting = null;
      const { enlargement, isOn: isAlone } = this.projector;
      const width = Math.floor(this.stage.clientWidth / enlargement);
      if (!width && this.framesWithout++ < MAX_FRAMES_WITHOUT) this.draw();
      if (!width) return; // folded away, or for a frame or two while JupyterLab changes its theme
      this.framesWithout = 0;
      const { scene, viewport, player: { playback }, hovered, pinned, showCritical } = this;
      this.theme ??= coloursOf(this.root);
      const room = isAlone ? this.stage.clientHeight / enlargement : null;
      this.layout = layOut(scene, width, (text, look) => this.painter.widthOf(text, look), room);
      const focus = document.activeElement === this.stage ? this.focus : null;
      const place = STILL.matches ? playback.position : playback.placeAt(now);
      const [playhead, step] = scene.axis ? [place, this.step] : [null, place ?? this.step];
      const { layout, theme, legends: { lit: litStyles } } = this;
      const looks = { hovered, pinned, focus, showCritical, litStyles };
      const sliding = STILL.matches ? null : this.slide?.at(now);
      if (!sliding) this.slide = null;
      this.frame = { scene: sliding ? { ...scene, panels: sliding } : scene, layout, viewport, theme, playhead, step, enlargement, ...looks };
      this.painter.paint(this.frame);
      if (this.controlled !== scene) this.fitTabStops(); // now that they are seen
      this.controlled = scene;
      Object.assign(this.root.dataset, { drawn: ++this.drawn, version: this.pictures, step: playback.step });
      if (sliding || place !== playback.position) this.draw();
      this.host.onDrawn?.();
    });
  }

  // Return what is drawn as a picture to keep: {png, width, height}, light, without what is only pointed at.
  async photograph() {
    const canvas = document.createElement("canvas");
    const theme = lightColoursOf(this.root);
    const painter = new Painter(canvas, KEPT_SCALE);
    painter.paint({ ...this.frame, enlargement: 1, theme, hovered: null, focus: null, litStyles: this.legends.pressed });
    Object.assign(painter.pen, { globalCompositeOperation: "destination-over", fillStyle: theme.ground });
    painter.pen.fillRect(0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve));
    const { width, height } = this.frame.layout;
    return { png: new Uint8Array(await blob.arrayBuffer()), width: Math.round(width), height: Math.round(height) };
  }

  // The picture has become alone, or no longer.
  project() {
    this.toolbar.querySelector("[data-action=f]").ariaPressed = String(this.projector.isOn);
    if (this.projector.isOn) this.stage.focus({ preventScroll: true }); // for its keys
    this.draw();
  }

  followTheme() {
    this.root.dataset.theme = themeNow();
    this.theme = null;
    if (this.scene) this.fillLegend();
    this.draw();
  }

  // The step that a grid shows.
  get step() {
    return this.player.playback.position ?? this.scene.stops.at(-1) ?? 0;
  }

  get noun() {
    return this.scene.axis ? "bar" : "cell";
  }

  fitControls() {
    const { stops, axis, panels } = this.scene;
    this.stepping.hidden = stops.length === 0;
    this.zooming.hidden = !axis;
    this.highlighting.hidden = !panels.some((panel) => panel.critical.size);
    this.saving.querySelector("[data-action=HTML]").hidden = !this.host.send;
    const keys = KEYS.filter(([, , buttons]) => !this[buttons]?.hidden);
    const inWords = (what) => what.replaceAll("bar", this.noun);
    const listed = JSON.stringify([keys, this.noun]);
    if (listed === this.listed) return;
    this.listed = listed;
    this.keys.replaceChildren(...keys.flatMap(([key, what]) => [element("dt", key), element("dd", inWords(what))]));
  }

  fillLegend() {
    if (this.legends.fill(this.scene, this.root.dataset.theme)) this.controlled = null;
  }

  fillTable() {
    this.rows.replaceChildren(...(this.table.open ? [tableOf(this.scene)] : []));
  }

  // Say under the picture what a bar is and why it is where it is.
  explain(mark) {
    this.explained = mark;
    const panel = mark && this.scene.panels[mark.panel];
    const spot = mark && (this.spots(mark.panel).what?.[mark.bar] ?? { kind: "bar", bar: mark.bar });
    const [first, ...rest] = mark ? explain(panel, spot, this.scene.axis).split("\n") : [];
    if (this.isOffered(mark)) rest.push("Click it, or press Enter, to place it.");
    this.card.classList.toggle("lk-pinned", Boolean(mark) && same(mark, this.pinned));
    const what = this.scene.panels.some((each) => each.tables) ? "bar or an idle gap" : this.noun;
    const hint = this.scene.panels.some((each) => each.bars.ghost?.some(Boolean))
      ? "Click an outlined op to place it, or go to it with arrow keys and press Enter."
      : `Point at a ${what}, or press an arrow key in the picture, and read here what it is.`;
    const words = first ? [element("strong", first), element("p", rest.join(" "))] : [element("p", hint, "lk-hint")];
    this.card.replaceChildren(...words);
  }

  // Say a text, or else what a grid shows.
  say(text) {
    this.lastNarration = this.narration.textContent = text || this.scene.narration || (this.scene.steps[this.player.playback.step] ?? "");
  }

  // The kernel is busy: say so, and dim the picture, as another is to come.
  wait() {
    this.narration.textContent = BUSY;
    this.stage.ariaBusy = true;
  }

  // It is free again, and all that came of it is here.
  follow() {
    this.stage.ariaBusy = false;
    if (this.narration.textContent === BUSY) this.narration.textContent = this.lastNarration; // once: it is read aloud
  }

  // --- what is pointed at -----------------------------------------------------------------------

  listen() {
    listenToPointer(this);
    const listeners = { keydown: (event) => this.press(event), focus: () => this.draw(), blur: () => this.draw() };
    for (const [name, listener] of Object.entries(listeners)) this.stage.addEventListener(name, listener);
    this.root.addEventListener("keydown", (event) => event.key === "f" && !event.target.matches("input, select") && this.press(event));
    this.root.addEventListener("click", ({ target }) => this.act(target.closest("button")?.dataset.action));
    this.table.addEventListener("toggle", () => this.fillTable());
  }

  // Return what is at a point of the picture, {panel, bar}: a bar, or another spot of the panel.
  markAt(x, y) {
    const edge = this.layout && this.layout.gutter + this.layout.plot;
    const place = this.layout && placeOf(this.layout, Math.min(x, edge), y);
    if (!place) return null;
    const { panel, row } = place;
    const value = this.viewport.fromPixel(place.x, this.layout.plot);
    const slack = this.axisLength(SLACK);
    let bar = x > edge + SLACK ? this.peakAt(panel, row) : this.scene.panels[panel].bars.at(value, row, slack, this.step);
    if (bar < 0 && x <= edge) bar = this.spots(panel).at(value, row, 0, this.step);
    return bar < 0 ? null : { panel, bar };
  }

  // Return where most is kept of the memory strip in this row, -1 without one: its number stands beside it.
  peakAt(number, y) {
    const [{ rows, what }, { strips }] = [this.spots(number), this.scene.panels[number]];
    const row = rows.find(({ top, height, order }) => top <= y && y <= top + height && what?.[order[0]].kind === "kept");
    const share = (i) => strips.share[what[i].piece];
    return row ? row.order.reduce((most, i) => (share(i) > share(most) ? i : most)) : -1;
  }

  spots(number) {
    const panel = this.scene.panels[number];
    return (panel.spots ??= spotsOf(panel)); // only once somebody points: sliders make many pictures
  }

  // Return how long these pixels are on the axis.
  axisLength(pixels) {
    return (pixels / this.layout.plot) * this.viewport.span;
  }

  hover(mark) {
    if (same(mark, this.hovered)) return;
    this.hovered = mark;
    this.stage.style.cursor = mark ? "pointer" : "";
    this.explain(mark ?? this.pinned);
    this.draw();
  }

  choose(mark) {
    this.stage.focus({ preventScroll: true });
    if (mark) this.focus = mark;
    this.pin(mark && !same(mark, this.pinned) ? mark : null);
    if (mark) this.host.choose?.(mark.bar);
  }

  // Is it a bar that is only outlined?
  isOffered(mark) {
    return Boolean(this.scene.panels[mark?.panel]?.bars.ghost?.[mark.bar]);
  }

  pin(mark) {
    this.pinned = mark;
    this.explain(mark);
    this.draw();
  }

  // --- keys and buttons -------------------------------------------------------------------------

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.shiftKey && event.key.startsWith("Arrow") ? `Shift${event.key}` : event.key;
    if (!this.host.press?.(key) && !this.act(key)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Do what this key or this button does, and return whether there is such a one.
  act(name) {
    this.actions[name]?.();
    this.draw();
    return name in this.actions;
  }

  makeActions() {
    return {
      ArrowLeft: () => this.go("left"),
      ArrowRight: () => this.go("right"),
      ArrowUp: () => this.go("up"),
      ArrowDown: () => this.go("down"),
      Home: () => this.go("first"),
      End: () => this.go("last"),
      Enter: () => this.focus && this.choose(this.focus),
      Escape: () => { this.pin(null); this.player.stop(); },
      " ": () => this.player.playOrPause(),
      ".": () => this.player.moveStep(1),
      ",": () => this.player.moveStep(-1),
      "+": () => this.zoom(ZOOM),
      "=": () => this.zoom(ZOOM),
      "-": () => this.zoom(1 / ZOOM),
      0: () => this.viewport.fit(),
      ShiftArrowLeft: () => this.viewport.pan(-0.25),
      ShiftArrowRight: () => this.viewport.pan(0.25),
      f: () => this.projector.turn(),
      PNG: async () => download("labkit-timeline.png", "image/png", (await this.photograph()).png),
      HTML: () => this.host.send({ save: "html", view: this.name }),
      critical: () => { this.showCritical = this.turn("critical", "aria-pressed"); },
      keys: () => { this.keys.hidden = !this.turn("keys", "aria-expanded"); },
    };
  }

  // Turn a button on or off, and return which it is now.
  turn(action, attribute) {
    const turned = this.toolbar.querySelector(`[data-action="${action}"]`);
    const isOn = turned.getAttribute(attribute) !== "true";
    turned.setAttribute(attribute, isOn);
    return isOn;
  }

  // Go to the next bar in this direction; up or down from an outermost row, into the next panel.
  go(direction) {
    const { panels } = this.scene;
    const { panel, bar } = this.focus ?? {};
    const edge = (number, last) => ({ panel: number, bar: panels[number].bars.edge(last, this.step) });
    let mark;
    if (direction === "last") mark = edge(panels.length - 1, true);
    else if (direction === "first" || !this.focus) mark = edge(0, false);
    else {
      const beyond = panel + { up: -1, down: 1 }[direction];
      const minWidth = this.axisLength(SLACK); // narrower gaps are not seen
      mark = { panel, bar: this.spots(panel).next(bar, direction, this.step, minWidth) };
      if (mark.bar === bar && panels[beyond]) mark = edge(beyond, direction === "up");
    }
    if (mark.bar < 0) return;
    this.focus = mark;
    const { left, right } = this.spots(mark.panel);
    this.viewport.reveal(left[mark.bar], right[mark.bar]);
    this.explain(mark);
  }

  // Zoom around the bar that was gone to or pinned, or else the middle. All of a grid stays in sight.
  zoom(factor) {
    if (!this.scene.axis) return;
    const mark = this.focus ?? this.pinned;
    const { left, right } = mark ? this.spots(mark.panel) : {};
    this.viewport.zoom(factor, mark ? (left[mark.bar] + right[mark.bar]) / 2 : this.viewport.middle);
  }

  // --- playing ----------------------------------------------------------------------------------

  // Cells of a grid change with the step: what was pointed at is now the cell in its place.
  followStep() {
    const now = (mark) => {
      const bar = mark && this.scene.panels[mark.panel].bars.inPlaceOf(mark.bar, this.step);
      return mark && bar >= 0 ? { ...mark, bar } : null;
    };
    for (const which of ["hovered", "pinned", "focus"]) this[which] = now(this[which]);
    this.explain(now(this.explained));
  }

  // Show the step that the player is at, and say in one line what happens there, in all panels.
  showStep() {
    const { playback: { step, position, isAtRest } } = this.player;
    const { axis, steps, panels } = this.scene;
    if (!axis) this.followStep();
    else if (position !== null) this.viewport.reveal(position, position);
    this.say(isAtRest ? "" : steps[step] ?? narrate(panels, position, axis));
    this.draw();
  }
}

function same(a, b) {
  return a === b || Boolean(a && b && a.panel === b.panel && a.bar === b.bar);
}

function element(tag, textContent, className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}
