// The Timeline: a canvas with its controls, its keys and its words. All that it says and draws is
// decided in Python.

import { BUSY } from "./kernel.js";
import { layOut, placeOf } from "./layout.js";
import { buildPage, KEYS } from "./page.js";
import { Painter, swatch } from "./painter.js";
import { Playback } from "./playback.js";
import { readScene } from "./scene.js";
import { coloursOf, onThemeChange, themeNow } from "./themes.js";
import { Viewport } from "./viewport.js";

const SLACK = 3; // px beside a bar that still hit it
const ZOOM = 1.4;
const MOST_FRAMES_WITHOUT = 120; // so often a picture without room is tried again
const HINT = "Point at a bar, or press an arrow key in the picture, and read here what it is.";

export class TimelineView {
  // host: where it lives. host.get(name) gives the scene, the line that is said, Python's own keys,
  // and whether it is bare; host.answers answers; host.send(message), if it is there, tells Python.
  constructor(root, host) {
    this.root = root;
    root.timeline = this; // for the browser's console, and for tests: $0.timeline.viewport.range
    this.host = host;
    this.hovered = this.pinned = this.focus = null;
    this.drawn = this.framesWithout = 0;
    this.pressed = 0; // keys that Python has been told of
    this.name = Math.random().toString(36).slice(2); // tells several views of one picture apart
    Object.assign(this, buildPage(root));
    this.actions = this.makeActions();
    this.painter = new Painter(this.canvas);
    this.listen();
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(root);
    const endThemes = onThemeChange(() => this.followTheme());
    this.end = () => {
      this.pause();
      observer.disconnect();
      endThemes();
    };
    this.followTheme();
    this.show(host.get("scene"));
  }

  // --- what is shown ----------------------------------------------------------------------------

  show(sent) {
    const scene = readScene(sent);
    this.scene = scene;
    this.pause();
    this.host.answers.startOver(scene.version);
    this.viewport ??= new Viewport(scene.extent);
    this.viewport.follow(scene.extent);
    const startsAtFirst = !scene.axis && scene.stops.clock.length > 1;
    this.playback = new Playback(scene.stops, this.playback?.mode, startsAtFirst ? 0 : -1);
    this.hovered = this.pinned = null;
    if (!(this.focus?.bar < scene.panels[this.focus?.panel]?.bars.count)) this.focus = null;
    this.stage.setAttribute("aria-label", scene.alt);
    this.note.textContent = scene.note;
    this.note.hidden = !scene.note;
    this.say(this.host.get("said"));
    this.fitControls();
    this.fillLegend();
    this.fillTable();
    this.explain(document.activeElement === this.stage ? this.focus : null); // what was clicked, as it is now
    this.draw();
  }

  // Draw once before the next frame, however often this is called until then.
  draw() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      const width = Math.floor(this.stage.clientWidth);
      if (!width && this.framesWithout++ < MOST_FRAMES_WITHOUT) this.draw();
      if (!width) return; // folded away, or for a frame or two while JupyterLab changes its theme
      this.framesWithout = 0;
      const { scene, viewport, playback, step, hovered, pinned, showCritical } = this;
      this.theme ??= coloursOf(this.root);
      this.layout = layOut(scene, width);
      const focus = document.activeElement === this.stage ? this.focus : null;
      const playhead = scene.axis ? playback.position : null;
      const { layout, theme } = this;
      this.painter.paint({ scene, layout, viewport, theme, playhead, step, hovered, pinned, focus, showCritical });
      Object.assign(this.root.dataset, { drawn: ++this.drawn, version: scene.version, step: playback.step });
      this.host.onDrawn?.();
    });
  }

  followTheme() {
    this.root.dataset.theme = themeNow();
    this.theme = null;
    this.draw();
  }

  // The step that a grid shows.
  get step() {
    return this.playback.position ?? this.scene.stops.clock.at(-1) ?? 0;
  }

  fitControls() {
    const { stops, axis, panels } = this.scene;
    const bare = Boolean(this.host.get("bare"));
    this.toolbar.hidden = this.narration.hidden = bare;
    this.stepping.hidden = !(stops.clock.length || stops.moment.length);
    this.mode.hidden = !(stops.clock.length && stops.moment.length);
    this.mode.value = this.playback.mode;
    this.zooming.hidden = !axis;
    this.highlighting.hidden = !panels.some((panel) => panel.critical.size);
    this.saving.hidden = !this.host.send;
    const keys = [...KEYS.filter(([key]) => !this.hasKey(key)), ...this.host.get("own_keys")]; // of two, Python's
    this.keys.replaceChildren(...keys.flatMap(([key, what]) => [element("dt", key), element("dd", what)]));
  }

  fillLegend() {
    const { panels, styles } = this.scene;
    const marks = new Map(panels.flatMap((panel) => panel.marks.map(([, text, dashed]) => [text, dashed])));
    const entries = [
      ...styles.map((style) => [swatch(style), style.words]),
      ...(panels.some((panel) => panel.strips) ? [[element("span", "", "lk-swatch lk-kept"), "activations kept"]] : []),
      ...[...marks].map(([text, dashed]) => [element("span", "", dashed ? "lk-line lk-dashed" : "lk-line"), text]),
    ];
    this.legend.replaceChildren(...entries.map(([sign, text]) => {
      const entry = element("span", text, "lk-entry");
      entry.prepend(sign);
      return entry;
    }));
  }

  async fillTable() {
    // pandas has escaped what cells hold
    this.rows.innerHTML = this.table.open ? await this.host.answers.ask("table", 0, 0) : "";
  }

  // Say under the picture what a bar is and why it is where it is.
  async explain(mark) {
    this.wanted = mark;
    const [first, ...rest] = mark ? (await this.host.answers.ask("bar", mark.panel, mark.bar)).split("\n") : [];
    if (mark !== this.wanted) return; // by now another bar is pointed at
    this.card.classList.toggle("lk-pinned", Boolean(mark) && same(mark, this.pinned));
    const words = mark ? [element("strong", first), element("p", rest.join(" "))] : [element("p", HINT, "lk-hint")];
    this.card.replaceChildren(...words);
  }

  say(text) {
    this.said = this.narration.textContent = text;
  }

  // The kernel is busy: say so, and dim the picture if another is to come.
  wait(isStale) {
    this.narration.textContent = BUSY;
    if (isStale) this.stage.ariaBusy = true;
  }

  // It is free again, and all that came of it is here.
  follow() {
    this.stage.ariaBusy = false;
    if (this.narration.textContent === BUSY) this.narration.textContent = this.said; // once: it is read aloud
  }

  // --- pointer ----------------------------------------------------------------------------------

  listen() {
    let grip = null; // where the pointer went down, and whether it has moved since
    const at = (event) => this.markAt(event.offsetX, event.offsetY);
    const move = (event) => {
      if (!grip) return this.hover(at(event));
      if (!this.scene.axis || Math.abs(event.clientX - grip.x) <= (grip.moved ? 0 : SLACK)) return;
      if (!grip.moved) this.stage.setPointerCapture(event.pointerId);
      this.viewport.pan((grip.x - event.clientX) / this.layout.plot);
      grip = { x: event.clientX, moved: true };
      this.draw();
    };
    const release = (event) => {
      if (grip && !grip.moved) this.choose(at(event));
      grip = null;
    };
    const turnWheel = (event) => {
      const zooms = event.ctrlKey || event.metaKey;
      if (!this.scene.axis || !(zooms || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
      event.preventDefault();
      const { viewport, layout: { gutter, plot } } = this;
      if (zooms) viewport.zoom(ZOOM ** (-event.deltaY / 100), viewport.fromPixel(event.offsetX - gutter, plot));
      else viewport.pan(event.deltaX / plot);
      this.draw();
    };
    const listeners = {
      pointerdown: (event) => { grip = { x: event.clientX, moved: false }; },
      pointermove: move,
      pointerup: release,
      pointercancel: () => { grip = null; },
      pointerleave: () => this.hover(null),
      keydown: (event) => this.press(event),
      focus: () => this.draw(),
      blur: () => this.draw(),
    };
    for (const [name, listener] of Object.entries(listeners)) this.stage.addEventListener(name, listener);
    this.stage.addEventListener("wheel", turnWheel, { passive: false });
    this.toolbar.addEventListener("click", ({ target }) => this.act(target.closest("button")?.dataset.action));
    this.mode.addEventListener("change", () => {
      this.pause();
      this.playback.switchTo(this.mode.value);
      this.draw();
    });
    this.table.addEventListener("toggle", () => this.fillTable());
  }

  markAt(x, y) {
    const place = this.layout && placeOf(this.layout, x, y);
    if (!place) return null;
    const slack = (SLACK / this.layout.plot) * this.viewport.span;
    const value = this.viewport.fromPixel(place.x, this.layout.plot);
    const bar = this.scene.panels[place.panel].bars.at(value, place.row, slack, this.step);
    return bar < 0 ? null : { panel: place.panel, bar };
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
    if (mark) this.host.send?.({ pick: mark.bar, panel: mark.panel, version: this.scene.version });
  }

  pin(mark) {
    this.pinned = mark;
    this.explain(mark);
    this.draw();
  }

  // --- keys and buttons -------------------------------------------------------------------------

  // Is it one of the keys that Python has asked for? It does only what Python says.
  hasKey(key) {
    return this.host.get("own_keys").some(([keys]) => keys.split(" ").includes(key));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.hasKey(event.key)) {
      const { panel, bar } = this.focus ?? { panel: 0, bar: -1 };
      this.host.send({ key: event.key, panel, bar, view: this.name, number: this.pressed++ });
    } else if (!this.act(event.shiftKey && event.key.startsWith("Arrow") ? `Shift${event.key}` : event.key)) return;
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
    const save = (form) => () => this.host.send({ save: form });
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
      ".": () => this.moveStep(1),
      ",": () => this.moveStep(-1),
      "+": () => this.zoom(ZOOM),
      "=": () => this.zoom(ZOOM),
      "-": () => this.zoom(1 / ZOOM),
      0: () => this.viewport.fit(),
      ShiftArrowLeft: () => this.viewport.pan(-0.25),
      ShiftArrowRight: () => this.viewport.pan(0.25),
      SVG: save("svg"),
      PNG: save("png"),
      HTML: save("html"),
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
      mark = { panel, bar: panels[panel].bars.next(bar, direction, this.step) };
      if (mark.bar === bar && panels[beyond]) mark = edge(beyond, direction === "up");
    }
    if (mark.bar < 0) return;
    this.focus = mark;
    const { left, right } = panels[mark.panel].bars;
    this.viewport.reveal(left[mark.bar], right[mark.bar]);
    this.explain(mark);
  }

  // Zoom around the bar that was gone to or pinned, or else the middle.
  zoom(factor) {
    const mark = this.focus ?? this.pinned;
    const { left, right } = this.scene.panels[mark?.panel]?.bars ?? {};
    this.viewport.zoom(factor, mark ? (left[mark.bar] + right[mark.bar]) / 2 : this.viewport.middle);
  }

  // --- playing ----------------------------------------------------------------------------------

  playOrPause() {
    if (this.timer) return this.pause();
    if (this.playback.isAtEnd) this.playback.step = -1;
    this.showTimer(setInterval(() => this.goOn(1), this.playback.intervalMs));
    this.goOn(1);
  }

  pause() {
    clearInterval(this.timer);
    this.showTimer(null);
  }

  // The button says what it would do now.
  showTimer(timer) {
    this.timer = timer;
    const [play] = this.stepping.children;
    play.textContent = timer ? "❚❚" : "▶";
    play.ariaLabel = play.title = timer ? "Pause" : "Play";
  }

  stop() {
    this.pause();
    this.playback.stop();
    this.say("");
  }

  moveStep(direction) {
    this.pause();
    this.goOn(direction);
  }

  // Go a step on or back, and say in one line what happens there, in all panels.
  async goOn(direction) {
    this.playback.move(direction);
    const { isOn, isAtEnd, position, mode, step } = this.playback;
    if (!isOn) return this.stop();
    if (isAtEnd) this.pause();
    if (this.scene.axis) this.viewport.reveal(position, position);
    this.draw();
    const text = await this.host.answers.ask(mode, 0, step);
    if (step === this.playback.step) this.say(text);
  }
}

function same(a, b) {
  return a === b || Boolean(a && b && a.panel === b.panel && a.bar === b.bar);
}

function element(tag, textContent, className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}
