// The Timeline: a canvas with its controls, its keys and its words. All that it says and draws is
// decided in Python.

import { Answers } from "./answers.js";
import { layOut, placeOf } from "./layout.js";
import { Painter } from "./painter.js";
import { Playback } from "./playback.js";
import { readScene } from "./scene.js";
import { coloursOf, onThemeChange, themeNow } from "./themes.js";
import { Viewport } from "./viewport.js";

const SLACK = 3; // px beside a bar that still hit it
const ZOOM = 1.4;
const MOST_FRAMES_WITHOUT = 120; // so often a picture without room is tried again
const KEYS = [
  ["arrows", "go from bar to bar"],
  ["Enter", "pin the bar, or let it go; Esc lets go"],
  ["space", "play and pause"],
  [". and ,", "a step on, a step back"],
  ["+ −", "zoom in, zoom out; also the wheel with Ctrl"],
  ["0", "see all"],
  ["Shift ← →", "move along the axis; also drag"],
  ["Home End", "the first bar, the last bar"],
];

export class TimelineView {
  // connection: {scene, keys, send(message), written}. `written` has the answers where no kernel is.
  constructor(root, connection) {
    this.root = root;
    root.timeline = this; // for the browser's console, and for tests: $0.timeline.viewport.range
    this.connection = connection;
    this.answers = new Answers((message) => connection.send(message), connection.written);
    this.hovered = this.pinned = this.focus = null;
    this.drawn = this.framesWithout = 0;
    this.pressed = 0; // keys that Python has been told of
    this.name = Math.random().toString(36).slice(2); // tells several views of one picture apart
    this.build();
    this.painter = new Painter(this.canvas);
    this.endings = [onThemeChange(() => this.draw())];
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(root);
    this.endings.push(() => observer.disconnect());
    this.show(connection.scene);
  }

  end() {
    this.pause();
    this.endings.forEach((ending) => ending());
  }

  // --- what is shown ----------------------------------------------------------------------------

  show(sent) {
    const scene = readScene(sent);
    const before = this.scene;
    this.scene = scene;
    this.answers.startOver(scene.version);
    if (this.viewport) this.viewport.follow(scene.extent);
    else this.viewport = new Viewport(scene.extent);
    const mode = before && this.playback.mode;
    this.playback = new Playback(scene.stops);
    if (mode && scene.stops[mode].length) this.playback.mode = mode;
    this.pause();
    if (!scene.axis && scene.stops.clock.length > 1) this.playback.step = 0;
    this.hovered = this.pinned = null;
    if (this.focus && this.focus.bar >= (scene.panels[this.focus.panel]?.bars.count ?? 0)) this.focus = null;
    this.stage.setAttribute("aria-label", scene.alt);
    this.note.textContent = scene.note;
    this.note.hidden = !scene.note;
    this.narration.textContent = this.connection.said();
    this.legendOf = null;
    this.fitControls();
    this.fillHelp();
    if (this.table.open) this.fillTable();
    else this.tableBody.replaceChildren();
    if (this.focus && document.activeElement === this.stage) this.explain(this.focus); // what was clicked, as it is now
    else this.showHint();
    this.draw();
  }

  // Draw once before the next frame, however often this is called until then.
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      if (this.root.dataset.theme !== themeNow()) this.colours = null;
      this.root.dataset.theme = themeNow();
      const width = Math.floor(this.stage.clientWidth);
      if (!width) { // folded away, or for a frame or two while JupyterLab changes its theme
        if (this.framesWithout++ < MOST_FRAMES_WITHOUT) this.draw();
        return;
      }
      this.framesWithout = 0;
      this.colours ??= coloursOf(this.root);
      this.layout = layOut(this.scene, width);
      const { scene, layout, viewport, hovered, pinned, focus } = this;
      const focused = document.activeElement === this.stage ? focus : null;
      const showCritical = this.critical.getAttribute("aria-pressed") === "true";
      const playhead = this.playback.position;
      this.painter.paint({ scene, layout, viewport, theme: this.colours, playhead, hovered, pinned, focus: focused, showCritical });
      if (this.legendOf !== scene) this.fillLegend();
      this.root.dataset.drawn = String(++this.drawn);
      this.root.dataset.version = String(scene.version);
      this.root.dataset.step = String(this.playback.step);
      this.connection.onDrawn?.();
    });
  }

  // The keys with what they do; a key that Python has asked for does only that.
  fillHelp() {
    const keys = [...KEYS.filter(([key]) => !this.hasKey(key)), ...(this.connection.keys ?? [])];
    this.help.replaceChildren(...keys.flatMap(([key, what]) => [element("dt", { textContent: key }), element("dd", { textContent: what })]));
  }

  fillLegend() {
    this.legendOf = this.scene;
    const entries = this.scene.styles.map((style) => {
      const swatch = element("canvas", { className: "lk-swatch", width: 44, height: 28, ariaHidden: "true" });
      const pen = swatch.getContext("2d");
      pen.scale(2, 2);
      pen.fillStyle = style.fills[0].colour;
      pen.fillRect(0, 0, 22, 14);
      const pattern = this.painter.patternOf(style.hatch, style.fills[0].edge);
      if (pattern) {
        pen.fillStyle = pattern;
        pen.fillRect(0, 0, 22, 14);
      }
      pen.strokeStyle = style.fills[0].edge;
      pen.strokeRect(0.5, 0.5, 21, 13);
      return element("span", { className: "lk-entry" }, swatch, style.words);
    });
    const marked = new Map(this.scene.panels.flatMap((panel) => panel.marks.map(([, text, dashed]) => [text, dashed])));
    const marks = [...marked].map(([text, dashed]) =>
      element("span", { className: "lk-entry" }, element("span", { className: dashed ? "lk-line lk-dashed" : "lk-line" }), text));
    const kept = element("span", { className: "lk-entry" }, element("span", { className: "lk-swatch lk-kept" }), "activations kept");
    this.legend.replaceChildren(...entries, ...(this.scene.panels.some((panel) => panel.strips) ? [kept] : []), ...marks);
  }

  // --- the page ---------------------------------------------------------------------------------

  build() {
    const button = (text, label, action) => element("button", { type: "button", textContent: text, title: label, ariaLabel: label, onclick: action });
    this.playButton = button("▶", "Play", () => this.playOrPause());
    this.backButton = button("‹ step", "A step back", () => this.step(-1));
    this.forwardButton = button("step ›", "A step on", () => this.step(1));
    this.mode = element("select", { ariaLabel: "Step by", onchange: () => this.changeMode() },
      element("option", { value: "clock", textContent: "by clock" }), element("option", { value: "moment", textContent: "by event" }));
    this.zoomers = [
      button("−", "Zoom out", () => this.zoom(1 / ZOOM)),
      button("+", "Zoom in", () => this.zoom(ZOOM)),
      button("all", "See all of the time axis", () => this.fit()),
    ];
    this.critical = button("critical path", "Show the ops that set the makespan", () => {
      this.critical.setAttribute("aria-pressed", String(this.critical.getAttribute("aria-pressed") !== "true"));
      this.draw();
    });
    this.critical.setAttribute("aria-pressed", "false");
    this.savers = ["SVG", "PNG", "HTML"].map((form) => button(form, `Save the picture as ${form}`, () => this.connection.send({ save: form.toLowerCase() })));
    this.savers.forEach((saver) => { saver.hidden = Boolean(this.connection.written); });
    this.help = element("dl", { className: "lk-keys", hidden: true });
    const helpButton = button("keys", "Show the keys", () => {
      this.help.hidden = !this.help.hidden;
      this.fillHelp();
      helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
    });
    helpButton.setAttribute("aria-expanded", "false");
    const group = (...children) => element("span", { className: "lk-group" }, ...children);
    this.stepping = group(this.playButton, this.backButton, this.forwardButton, this.mode);
    this.zooming = group(...this.zoomers);
    this.toolbar = element("div", { className: "lk-toolbar", role: "toolbar", ariaLabel: "Play, zoom and save" },
      this.stepping, this.zooming, group(this.critical), group(...this.savers), group(helpButton));
    this.canvas = element("canvas", { ariaHidden: "true" });
    this.stage = element("div", { className: "lk-stage", tabIndex: 0, role: "application", ariaRoleDescription: "picture of bars" }, this.canvas);
    this.card = element("div", { className: "lk-card", role: "status" });
    this.narration = element("p", { className: "lk-narration", role: "status" });
    this.legend = element("div", { className: "lk-legend" });
    this.note = element("p", { className: "lk-note" });
    this.tableBody = element("div", { className: "lk-rows", tabIndex: 0, role: "region", ariaLabel: "Table of the picture" });
    this.table = element("details", { className: "lk-table", ontoggle: () => this.table.open && this.fillTable() },
      element("summary", { textContent: "The same as a table" }), this.tableBody);
    this.root.classList.add("labkit-timeline");
    this.root.replaceChildren(this.toolbar, this.help, this.narration, this.stage, this.card, this.legend, this.note, this.table);
    this.listen();
  }

  fitControls() {
    const { scene, playback } = this;
    const canStep = scene.stops.clock.length + scene.stops.moment.length > 0;
    this.toolbar.hidden = Boolean(this.connection.bare);
    this.narration.hidden = Boolean(this.connection.bare);
    this.stepping.hidden = !canStep;
    this.mode.hidden = !(scene.stops.clock.length && scene.stops.moment.length);
    this.mode.value = playback.mode;
    this.zooming.hidden = !scene.axis;
    this.critical.parentElement.hidden = !scene.panels.some((panel) => panel.critical.size);
  }

  async fillTable() {
    const html = await this.answers.ask("table", 0, 0);
    const body = new DOMParser().parseFromString(html, "text/html").body; // pandas escapes what cells hold
    this.tableBody.replaceChildren(...body.childNodes);
  }

  // --- pointer ----------------------------------------------------------------------------------

  listen() {
    const { stage } = this;
    let grip = null;
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return this.markAt(event.clientX - box.left, event.clientY - box.top);
    };
    stage.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, moved: false };
    });
    stage.addEventListener("pointermove", (event) => {
      if (grip && this.scene.axis && Math.abs(event.clientX - grip.x) > (grip.moved ? 0 : SLACK)) {
        if (!grip.moved) stage.setPointerCapture(event.pointerId);
        this.viewport.pan(((grip.x - event.clientX) / this.layout.plot) * this.viewport.span);
        grip = { x: event.clientX, moved: true };
        this.draw();
      } else if (!grip) {
        this.hover(place(event));
      }
    });
    stage.addEventListener("pointerup", (event) => {
      if (grip && !grip.moved) this.choose(place(event));
      grip = null;
    });
    stage.addEventListener("pointercancel", () => { grip = null; });
    stage.addEventListener("pointerleave", () => { this.hover(null); });
    stage.addEventListener("wheel", (event) => {
      if (!this.scene.axis || !(event.ctrlKey || event.metaKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      const x = this.viewport.fromPixel(event.clientX - box.left - this.layout.gutter, this.layout.plot);
      if (event.ctrlKey || event.metaKey) this.viewport.zoom(ZOOM ** (-event.deltaY / 100), x);
      else this.viewport.pan((event.deltaX / this.layout.plot) * this.viewport.span);
      this.draw();
    }, { passive: false });
    stage.addEventListener("keydown", (event) => this.press(event));
    stage.addEventListener("focus", () => this.draw());
    stage.addEventListener("blur", () => this.draw());
  }

  markAt(pixelX, pixelY) {
    const place = this.layout && placeOf(this.layout, pixelX, pixelY);
    if (!place) return null;
    const { bars } = this.scene.panels[place.panel];
    const slack = (SLACK / this.layout.plot) * this.viewport.span;
    const bar = bars.at(this.viewport.fromPixel(place.x, this.layout.plot), place.row, slack, this.now);
    return bar < 0 ? null : { panel: place.panel, bar };
  }

  // The step that a grid shows.
  get now() {
    return this.playback.position ?? this.scene.stops.clock.at(-1) ?? 0;
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
    if (mark) this.connection.send({ pick: mark.bar, panel: mark.panel, version: this.scene.version });
  }

  pin(mark) {
    this.pinned = mark;
    this.explain(mark);
    this.draw();
  }

  // Say under the picture what a bar is and why it is where it is.
  async explain(mark) {
    this.wanted = mark;
    if (!mark) return this.showHint();
    const text = await this.answers.ask("bar", mark.panel, mark.bar);
    if (!same(mark, this.wanted)) return; // by now another bar is pointed at
    const [first, ...rest] = text.split("\n");
    this.card.replaceChildren(element("strong", { textContent: first }), element("p", { textContent: rest.join(" ") }));
    this.card.classList.toggle("lk-pinned", same(mark, this.pinned));
  }

  showHint() {
    this.wanted = null;
    this.card.classList.remove("lk-pinned");
    this.card.replaceChildren(element("p", { className: "lk-hint", textContent: "Point at a bar, or press an arrow key in the picture, and read here what it is." }));
  }

  // --- keys -------------------------------------------------------------------------------------

  // Is it one of the keys that Python has asked for?
  hasKey(key) {
    return (this.connection.keys ?? []).some(([keys]) => keys.split(" ").includes(key));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.hasKey(event.key)) {
      const { panel, bar } = this.focus ?? { panel: 0, bar: -1 };
      this.connection.send({ key: event.key, panel, bar, view: this.name, number: this.pressed++ });
    } else {
      const action = this.actions[event.shiftKey && event.key.startsWith("Arrow") ? `Shift${event.key}` : event.key];
      if (!action) return;
      action();
    }
    event.preventDefault();
    event.stopPropagation();
  }

  get actions() {
    return {
      ArrowLeft: () => this.go("left"),
      ArrowRight: () => this.go("right"),
      ArrowUp: () => this.go("up"),
      ArrowDown: () => this.go("down"),
      Home: () => this.go("first"),
      End: () => this.go("last"),
      Enter: () => this.focus && this.choose(this.focus),
      Escape: () => { this.pin(null); this.stop(); },
      " ": () => this.playOrPause(),
      ".": () => this.step(1),
      ",": () => this.step(-1),
      "+": () => this.zoom(ZOOM),
      "=": () => this.zoom(ZOOM),
      "-": () => this.zoom(1 / ZOOM),
      0: () => this.fit(),
      ShiftArrowLeft: () => this.pan(-0.25),
      ShiftArrowRight: () => this.pan(0.25),
    };
  }

  go(direction) {
    const panels = this.scene.panels;
    let { panel, bar } = this.focus ?? { panel: 0, bar: -1 };
    if (direction === "last") [panel, bar] = [panels.length - 1, panels.at(-1).bars.edge(true, this.now)];
    else if (direction === "first" || bar < 0) [panel, bar] = [0, panels[0].bars.edge(false, this.now)];
    else {
      const next = panels[panel].bars.next(bar, direction, this.now);
      const across = panel + (direction === "down" ? 1 : direction === "up" ? -1 : 0);
      if (next === bar && across !== panel && panels[across]) [panel, bar] = [across, panels[across].bars.edge(direction === "up", this.now)];
      else bar = next;
    }
    if (bar < 0) return;
    this.focus = { panel, bar };
    const { left, right } = panels[panel].bars;
    this.viewport.reveal(left[bar], right[bar]);
    this.explain(this.focus);
    this.draw();
  }

  zoom(factor) {
    const mark = this.focus ?? this.pinned;
    const bars = mark && this.scene.panels[mark.panel].bars;
    const middle = mark ? (bars.left[mark.bar] + bars.right[mark.bar]) / 2 : (this.viewport.range[0] + this.viewport.range[1]) / 2;
    this.viewport.zoom(factor, middle);
    this.draw();
  }

  pan(share) {
    this.viewport.pan(share * this.viewport.span);
    this.draw();
  }

  fit() {
    this.viewport.fit();
    this.draw();
  }

  // --- playing ----------------------------------------------------------------------------------

  playOrPause() {
    if (this.timer) return this.pause();
    if (this.playback.isAtEnd) this.playback.stop();
    this.playButton.textContent = "❚❚";
    this.playButton.ariaLabel = this.playButton.title = "Pause";
    const next = () => {
      this.step(1, true);
      this.timer = this.playback.isAtEnd ? this.pause() : setTimeout(next, this.playback.intervalMs);
    };
    next();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!this.playButton) return null;
    this.playButton.textContent = "▶";
    this.playButton.ariaLabel = this.playButton.title = "Play";
    return null;
  }

  stop() {
    this.pause();
    this.playback.stop();
    if (!this.scene.axis && this.scene.stops.clock.length > 1) this.playback.step = 0;
    this.narration.textContent = "";
    this.draw();
  }

  step(direction, playing = false) {
    if (!playing) this.pause();
    if (direction > 0) this.playback.forward();
    else this.playback.back();
    if (!this.playback.isOn) return this.stop();
    const { position } = this.playback;
    if (this.scene.axis) this.viewport.reveal(position, position);
    this.narrate();
    this.draw();
  }

  changeMode() {
    this.pause();
    this.playback.switchTo(this.mode.value);
    this.draw();
  }

  // One line on what happens at this step, of all panels.
  async narrate() {
    const { step, mode } = this.playback;
    const text = await this.answers.ask(mode, 0, step);
    if (step === this.playback.step) this.narration.textContent = text;
  }

  say(text) {
    this.narration.textContent = text;
  }
}

function same(a, b) {
  return a === b || Boolean(a && b && a.panel === b.panel && a.bar === b.bar);
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role") made.setAttribute("role", value);
    else if (name === "ariaRoleDescription") made.setAttribute("aria-roledescription", value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}
