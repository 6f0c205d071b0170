// The Timeline: a canvas with its controls, its keys and its words.

import { spotsOf } from "./bars.js";
import { explain, narrate } from "./explain.js";
import { BUSY } from "./messages.js";
import { layOut, placeOf } from "./layout.js";
import { buildPage, KEYS, makeOneTabStop } from "./page.js";
import { Painter, swatch } from "./painter.js";
import { Playback } from "./playback.js";
import { readScene } from "./scene.js";
import { readPipeline } from "./schedules.js";
import { fillNumbers, letScroll, tableOf } from "./table.js";
import { coloursOf, onThemeChange, themeNow } from "./themes.js";
import { Viewport } from "./viewport.js";

const SLACK = 3; // px beside a bar that still hit it
const ZOOM = 1.4;
const MAX_FRAMES_WITHOUT = 120; // so often a picture without room is tried again
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

export class TimelineView {
  // host: where it lives. host.get(name) gives the scene, the line of narration and Python's own
  // keys; host.send(message), if it is there, tells Python.
  constructor(root, host) {
    this.root = root;
    root.timeline = this; // for the browser's console, and for tests: $0.timeline.viewport.range
    this.host = host;
    this.hovered = this.pinned = this.focus = this.dragged = null;
    this.lit = null; // the style that the legend is pointed at
    this.shown = new Set(); // those that were chosen there, by name
    this.drawn = this.framesWithout = 0;
    this.pressed = 0; // keys that Python has been told of
    this.name = Math.random().toString(36).slice(2); // tells several views of one picture apart
    Object.assign(this, buildPage(root));
    const rows = [this.toolbar, this.legend, this.saving].map(makeOneTabStop);
    this.fitTabStops = () => rows.forEach((fit) => fit());
    this.actions = this.makeActions();
    this.painter = new Painter(this.canvas);
    this.listen();
    const observer = new ResizeObserver(() => {
      letScroll(this.numbers);
      this.draw();
    });
    observer.observe(root);
    const endThemes = onThemeChange(() => this.followTheme());
    this.end = () => {
      this.pause();
      observer.disconnect();
      endThemes();
    };
    this.followTheme();
  }

  // --- what is shown ----------------------------------------------------------------------------

  // With a pipeline, its picture in place of the one that was sent.
  show(sent, pipeline = null) {
    const scene = pipeline ? readPipeline(sent, pipeline) : readScene(sent);
    this.scene = scene;
    this.pause();
    this.viewport ??= new Viewport(scene.extent);
    this.viewport.follow(scene.extent);
    this.playback = new Playback(scene.stops, this.playback?.mode, scene.opens_at);
    this.hovered = this.pinned = this.dragged = null;
    if (!(this.focus?.bar < scene.panels[this.focus?.panel]?.bars.count)) this.focus = null;
    scene.panels.forEach(({ chosen }, panel) => { if (chosen != null) this.focus = { panel, bar: chosen }; });
    this.stage.setAttribute("aria-label", scene.alt);
    this.stage.setAttribute("aria-roledescription", `picture of ${this.noun}s`);
    this.note.textContent = scene.note;
    this.note.hidden = !scene.note;
    this.say(pipeline ? "" : this.host.get("narration"));
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
      const width = Math.floor(this.stage.clientWidth);
      if (!width && this.framesWithout++ < MAX_FRAMES_WITHOUT) this.draw();
      if (!width) return; // folded away, or for a frame or two while JupyterLab changes its theme
      this.framesWithout = 0;
      const { scene, viewport, playback, hovered, pinned, showCritical } = this;
      this.theme ??= coloursOf(this.root);
      this.layout = layOut(scene, width, (text, look) => this.painter.widthOf(text, look));
      const focus = document.activeElement === this.stage ? this.focus : null;
      const place = STILL.matches ? playback.position : playback.placeAt(now);
      const [playhead, step] = scene.axis ? [place, this.step] : [null, place ?? this.step];
      const { layout, theme, litStyles, dragged } = this;
      const looks = { hovered, pinned, focus, showCritical, litStyles, dragged };
      this.painter.paint({ scene, layout, viewport, theme, playhead, step, ...looks });
      if (this.controlled !== scene) this.fitTabStops(); // now that they are seen
      this.controlled = scene;
      Object.assign(this.root.dataset, { drawn: ++this.drawn, version: scene.version, step: playback.step });
      if (place !== playback.position) this.draw();
      this.host.onDrawn?.();
    });
  }

  followTheme() {
    this.root.dataset.theme = themeNow();
    this.theme = null;
    if (this.scene) this.fillLegend();
    this.draw();
  }

  // The step that a grid shows.
  get step() {
    return this.playback.position ?? this.scene.stops.clock.at(-1) ?? 0;
  }

  get noun() {
    return this.scene.axis ? "bar" : "cell";
  }

  fitControls() {
    const { stops, axis, panels, clock } = this.scene;
    this.stepping.hidden = !(stops.clock.length || stops.hasMoments);
    this.mode.hidden = !(stops.clock.length && stops.hasMoments);
    this.mode.options[0].textContent = `by ${clock}`;
    this.mode.value = this.playback.mode;
    this.zooming.hidden = !axis;
    this.highlighting.hidden = !panels.some((panel) => panel.critical.size);
    this.saving.hidden = !this.host.send;
    const lives = ([key, , buttons]) => !this.hasKey(key) && !this[buttons]?.hidden;
    const keys = [...KEYS.filter(lives), ...this.host.get("own_keys")]; // of two, Python's
    const inWords = (what) => what.replaceAll("bar", this.noun);
    const listed = JSON.stringify([keys, this.noun]);
    if (listed === this.listed) return;
    this.listed = listed;
    this.keys.replaceChildren(...keys.flatMap(([key, what]) => [element("dt", key), element("dd", inWords(what))]));
  }

  // Each style of bars is a button: with it pressed, or pointed at, the other bars are dimmed.
  fillLegend() {
    const { panels, styles } = this.scene;
    this.controlled = null;
    this.shown = new Set(styles.map(({ name }) => name).filter((name) => this.shown.has(name)));
    const marks = new Map(panels.flatMap((panel) => panel.marks.map(([, text, dashed]) => [text, dashed])));
    const hasStrips = panels.some((panel) => panel.strips);
    const filled = JSON.stringify([this.root.dataset.theme, styles.map(({ name, hatch }) => [name, hatch]), [...marks], hasStrips]);
    if (filled === this.filled) return; // while a time is dragged it stays, with the focus if it has it
    this.filled = filled;
    const signs = [
      ...(hasStrips ? [[element("span", "", "lk-swatch lk-kept"), "activations kept"]] : []),
      ...[...marks].map(([text, dashed]) => [element("span", "", dashed ? "lk-line lk-dashed" : "lk-line"), text]),
    ];
    const entry = (tag, sign, text) => {
      const made = element(tag, text, "lk-entry");
      made.prepend(sign);
      return made;
    };
    this.legend.replaceChildren(...styles.map((style) => {
      const button = entry("button", swatch(style, this.root.dataset.theme), style.words);
      button.title = button.ariaLabel = `Show ${style.words} alone`; // the puzzle has a button "forward" of its own
      Object.assign(button, { type: "button", ariaPressed: this.shown.has(style.name) });
      const light = (name) => { this.lit = name; this.draw(); };
      button.onmouseenter = button.onfocus = () => light(style.name);
      button.onmouseleave = button.onblur = () => light(null);
      button.onclick = () => {
        if (!this.shown.delete(style.name)) this.shown.add(style.name);
        button.ariaPressed = this.shown.has(style.name);
        this.draw();
      };
      return button;
    }), ...signs.map(([sign, text]) => entry("span", sign, text)));
  }

  // The names of the styles that are not dimmed; none where all are as they are.
  get litStyles() {
    return this.lit ? new Set([this.lit]) : this.shown;
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
    this.card.classList.toggle("lk-pinned", Boolean(mark) && same(mark, this.pinned));
    const what = this.scene.panels.some((each) => each.tables) ? "bar or an idle gap" : this.noun;
    const hint = `Point at a ${what}, or press an arrow key in the picture, and read here what it is.`;
    const words = first ? [element("strong", first), element("p", rest.join(" "))] : [element("p", hint, "lk-hint")];
    this.card.replaceChildren(...words);
  }

  // Say a text, or else what a grid shows.
  say(text) {
    this.told = this.narration.textContent = text || this.scene.narration || (this.scene.steps.clock?.[this.playback.step] ?? "");
  }

  // The kernel is busy: say so, and dim the picture if another is to come.
  wait(isStale) {
    this.narration.textContent = BUSY;
    if (isStale) this.stage.ariaBusy = true;
  }

  // It is free again, and all that came of it is here.
  follow() {
    this.stage.ariaBusy = false;
    if (this.narration.textContent === BUSY) this.narration.textContent = this.told; // once: it is read aloud
  }

  // --- pointer ----------------------------------------------------------------------------------

  listen() {
    let grip = null; // where the pointer went down, whether it has moved since, and what that does
    const at = (event) => this.markAt(event.offsetX, event.offsetY);
    const viewportAt = ({ offsetY }) => {
      const { panels, axisTop } = this.layout;
      return this.viewportOf(offsetY < axisTop ? panels.findLastIndex(({ top }) => top <= offsetY) : -1);
    };
    const timeAt = ({ offsetX }, viewport = this.viewport) => viewport.fromPixel(offsetX - this.layout.gutter, this.layout.plot);
    const drags = {
      pan: (event) => grip.viewport.pan((grip.x - event.clientX) / this.layout.plot),
      scrub: (event) => this.goTo(timeAt(event)),
      bar: (event) => {
        const isSame = grip.version === this.scene.version;
        if (isSame) this.dragged = { ...grip.mark, by: timeAt(event) - grip.from };
      },
    };
    const take = (event) => {
      const isOnAxis = this.scene.axis && event.offsetY > this.layout.axisTop && this.playback.positions.length > 0;
      const mark = this.isPlaced(at(event)) ? at(event) : null;
      const drag = isOnAxis ? "scrub" : mark ? "bar" : "pan";
      const [viewport, from, { version }] = [viewportAt(event), timeAt(event), this.scene];
      grip = { x: event.clientX, moved: false, from, drag, mark, viewport, version };
      if (drag === "scrub") {
        this.hover(null);
        this.goTo(grip.from);
      }
      this.draw();
    };
    const move = (event) => {
      if (!grip) return this.hover(at(event));
      if (!this.scene.axis || Math.abs(event.clientX - grip.x) <= (grip.moved ? 0 : SLACK)) return;
      if (!grip.moved) this.stage.setPointerCapture(event.pointerId);
      drags[grip.drag](event);
      grip = { ...grip, x: event.clientX, moved: true };
      this.draw();
    };
    const release = (event) => {
      if (grip && !grip.moved && grip.drag !== "scrub") this.choose(at(event));
      if (this.dragged) this.drop(this.dragged);
      grip = null;
    };
    const turnWheel = (event) => {
      const zooms = event.ctrlKey || event.metaKey;
      if (!this.scene.axis || !(zooms || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
      event.preventDefault();
      const viewport = viewportAt(event);
      if (zooms) viewport.zoom(ZOOM ** (-event.deltaY / 100), timeAt(event, viewport));
      else viewport.pan(event.deltaX / this.layout.plot);
      this.draw();
    };
    const listeners = {
      pointerdown: take,
      pointermove: move,
      pointerup: release,
      pointercancel: () => { grip = this.dragged = null; },
      pointerleave: () => this.hover(null),
      keydown: (event) => this.press(event),
      focus: () => this.draw(),
      blur: () => this.draw(),
    };
    for (const [name, listener] of Object.entries(listeners)) this.stage.addEventListener(name, listener);
    this.stage.addEventListener("wheel", turnWheel, { passive: false });
    this.root.addEventListener("click", ({ target }) => this.act(target.closest("button")?.dataset.action));
    this.mode.addEventListener("change", () => {
      this.pause();
      this.playback.switchTo(this.mode.value);
      this.draw();
    });
    this.table.addEventListener("toggle", () => this.fillTable());
  }

  // Return what is at a point of the picture, {panel, bar}: a bar, or another spot of the panel.
  markAt(x, y) {
    const edge = this.layout && this.layout.gutter + this.layout.plot;
    const place = this.layout && placeOf(this.layout, Math.min(x, edge), y);
    if (!place) return null;
    const { panel, row } = place;
    const value = this.viewportOf(panel).fromPixel(place.x, this.layout.plot);
    const slack = this.axisLength(SLACK, panel);
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

  // How long so many pixels are on the axis.
  axisLength(pixels, panel) {
    return (pixels / this.layout.plot) * this.viewportOf(panel).span;
  }

  // A panel with an axis of its own moves by itself.
  viewportOf(panel) {
    return this.scene.panels[panel]?.viewport ?? this.viewport;
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
    if (this.isPlaced(mark)) this.host.send({ pick: mark.bar, version: this.scene.version });
  }

  // Tell Python where the middle of a bar is that was dragged; the next picture shows what it did.
  drop({ panel, bar, by }) {
    this.dragged = null;
    this.focus = { panel, bar };
    this.stage.focus({ preventScroll: true });
    const { left, right } = this.scene.panels[panel].bars;
    this.host.send({ drop: bar, x: (left[bar] + right[bar]) / 2 + by, version: this.scene.version });
    this.draw();
  }

  // Is it a bar that is placed by hand?
  isPlaced(mark) {
    const { bars } = this.scene.panels[mark?.panel] ?? {};
    return Boolean(this.host.send && bars?.ghost && mark.bar < bars.count);
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
    if (this.hasKey(event.key)) this.tellKey(event.key);
    else if (!this.act(event.shiftKey && event.key.startsWith("Arrow") ? `Shift${event.key}` : event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  tellKey(key) {
    this.host.send({ key, view: this.name, number: this.pressed++ });
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
      0: () => [this.viewport, ...this.scene.panels.map((_, k) => this.viewportOf(k))].forEach((each) => each.fit()),
      ShiftArrowLeft: () => this.viewportOf(this.focus?.panel).pan(-0.25),
      ShiftArrowRight: () => this.viewportOf(this.focus?.panel).pan(0.25),
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
      const least = this.axisLength(SLACK); // narrower gaps are not seen
      mark = { panel, bar: this.spots(panel).next(bar, direction, this.step, least) };
      if (mark.bar === bar && panels[beyond]) mark = edge(beyond, direction === "up");
    }
    if (mark.bar < 0) return;
    this.focus = mark;
    const { left, right } = this.spots(mark.panel);
    this.viewportOf(mark.panel).reveal(left[mark.bar], right[mark.bar]);
    this.explain(mark);
  }

  // Zoom around the bar that was gone to or pinned, or else the middle. All of a grid stays in sight.
  zoom(factor) {
    if (!this.scene.axis) return;
    const mark = this.focus ?? this.pinned;
    const { left, right } = mark ? this.spots(mark.panel) : {};
    const viewport = this.viewportOf(mark?.panel);
    viewport.zoom(factor, mark ? (left[mark.bar] + right[mark.bar]) / 2 : viewport.middle);
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

  // Go a step on or back.
  goOn(direction) {
    this.playback.move(direction);
    const { isOn, isAtEnd, position } = this.playback;
    if (!isOn) return this.stop();
    if (isAtEnd) this.pause();
    if (this.scene.axis) this.viewport.reveal(position, position);
    this.narrate();
  }

  // Go to the last step before a place on the axis.
  goTo(x) {
    this.pause();
    this.playback.goTo(x);
    this.narrate();
  }

  // Cells of a grid change with the step: what was pointed at is now the cell in its place.
  followStep() {
    const now = (mark) => {
      const bar = mark && this.scene.panels[mark.panel].bars.inPlaceOf(mark.bar, this.step);
      return mark && bar >= 0 ? { ...mark, bar } : null;
    };
    for (const which of ["hovered", "pinned", "focus"]) this[which] = now(this[which]);
    this.explain(now(this.explained));
  }

  // Show a step, and say in one line what happens there, in all panels.
  narrate() {
    const { mode, step, position } = this.playback;
    if (!this.scene.axis) this.followStep();
    this.draw();
    this.say(this.scene.steps[mode]?.[step] ?? narrate(this.scene.panels, position, this.scene.axis));
  }
}

function same(a, b) {
  return a === b || Boolean(a && b && a.panel === b.panel && a.bar === b.bar);
}

function element(tag, textContent, className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}
