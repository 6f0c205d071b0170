// The two places where a Timeline lives: a notebook, with a kernel, and a file, without one.

import { Form } from "../../guesses/browser/form.js";
import { KeptPicture } from "./kept_picture.js";
import { Messages, NO_KERNEL } from "./messages.js";
import { download } from "./page.js";
import { Puzzle } from "./puzzle.js";
import { controlsOf, isOfTimes, moved, ordersOf } from "./schedule_controls.js";
import { RingFill } from "./ring_fill.js";
import { readState, stateOf } from "./schedule_state.js";
import { readPipeline } from "./schedules.js";
import { TimelineView } from "./timeline.js";

// In a notebook: what anywidget calls.
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  const messages = new Messages(model.send, {
    busy: () => isAtOne || view.wait(),
    free: () => { view.follow(); showForm(); },
    lost: () => { view.follow(); view.say(NO_KERNEL); },
  });
  let explorer = null; // the whole output that the picture is in, with its buttons
  const onDrawn = () => {
    const output = el.closest(".jp-OutputArea-output") ?? el;
    if (output !== explorer) output.addEventListener("keydown", onKey);
    explorer = output;
    kept.follow();
  };
  // No key goes on to JupyterLab, which would take x as cutting the cell.
  const onKey = (event) => {
    if (!event.ctrlKey && !event.metaKey && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  const send = (message) => { isAtOne = false; messages.send(message); };
  const view = new TimelineView(root, { get: (name) => model.get(name), choose: (bar) => puzzle?.choose(bar), send, onDrawn });
  const kept = new KeptPicture(() => view.photograph(), (...message) => model.send(...message));
  const ask = (control, text) => messages.ask({ control, text });
  let isAhead = false; // of Python: it does not know yet what is dragged
  let isAtOne = false; // with what was sent last: nothing is left to send
  const form = new Form(view.form, (name, value, isFinal) => {
    if (puzzle) return puzzle.take(name, value);
    if (!schedule) return ask(name, value);
    isAtOne = schedule.take(name, value);
    isAhead = isAtOne && !isFinal;
    if (isAtOne && isFinal) ask("state", schedule.state);
  });
  const { schedules } = model.get("form");
  const schedule = schedules ? new ScheduleForm(form, view, schedules, { scene: () => model.get("scene"), ask }) : null;
  if (schedule) unpacked(schedules.library).then((library) => { schedule.library = library; });
  const tell = (moves) => { // Python, if it is still there: the page goes on without
    isAtOne = true;
    if (!messages.isLost) ask("moves", moves);
  };
  const puzzle = model.get("scene").puzzle ? new PuzzleForm(form, view, model.get("scene"), tell) : null;
  const showForm = () => {
    if (messages.isWaiting) return; // what was moved last is still to come
    const { controls = [], fault } = model.get("form");
    if (puzzle) return;
    if (schedule) schedule.showForm(fault);
    else form.show(controls, fault);
  };
  const show = () => {
    const scene = model.get("scene");
    if (puzzle) messages.next.size || puzzle.follow(scene);
    else if (schedule) schedule.follow(scene, isAhead || messages.next.size);
    else view.show(scene);
    showForm();
  };
  show();
  const listeners = {
    "change:scene": show,
    "change:form": showForm,
    "change:narration": () => view.say(model.get("narration")),
    "msg:custom": (message, buffers) => message.view === view.name && download(message.name, message.type, buffers[0]),
    comm_live_update: () => messages.lose(),
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  if (el.matches(".jupyter-widgets-disconnected")) messages.lose(); // kept in the notebook, with its state
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    explorer?.removeEventListener("keydown", onKey);
    kept.end();
    view.end();
  };
}

// The puzzle: the page has its rules, and tells what was done.
class PuzzleForm {
  constructor(form, view, { puzzle }, tell = () => {}) {
    Object.assign(this, { form, view, tell, puzzle: new Puzzle(puzzle) });
  }

  // Take what Python says. What stands here already stays, with what is pointed at.
  follow({ puzzle }) {
    if (this.puzzle.follow(puzzle)) this.draw();
  }

  choose(bar) {
    if (this.puzzle.place(bar)) this.change();
  }

  take(name, value) {
    this.puzzle.take(name, value);
    this.change();
  }

  change() {
    this.draw();
    this.tell(this.puzzle.state);
  }

  draw() {
    this.view.play(this.puzzle.scene);
    this.form.show(this.puzzle.controls);
  }
}

// A ring to be filled in, in a file.
class RingForm {
  constructor(view, scene, fill) {
    Object.assign(this, { view, ring: new RingFill(scene, fill) });
    this.form = new Form(view.form, (rank) => this.turn(rank));
    this.draw();
  }

  choose(bar) {
    this.ring.chosen = bar;
    this.form.show(this.ring.controls);
  }

  turn(rank) {
    this.ring.turn(rank);
    this.draw();
  }

  // Take a key in the cell that was gone to. Returns whether it is one.
  press(key) {
    const { focus } = this.view;
    const isRank = Boolean(focus) && this.ring.whole.includes(key);
    if (isRank) {
      this.choose(focus.bar);
      this.turn(key);
    }
    return isRank;
  }

  draw() {
    this.view.play(this.ring.scene);
    if (this.ring.chosen !== null) this.view.pin({ panel: 0, bar: this.ring.chosen });
    this.form.show(this.ring.controls);
  }
}

// The form of schedules: it follows by itself as far as its library goes, and beyond that asks for orders.
class ScheduleForm {
  constructor(form, view, spec, { scene, ask, library = null }) {
    Object.assign(this, { form, view, spec, scene, ask, library });
  }

  get state() {
    return stateOf(this.pipeline);
  }

  // Show a scene that has come. Where the reader is ahead of it, with the times of the page.
  follow(scene, isAhead = false) {
    const { times, hop, cap } = this.pipeline ?? {};
    const before = JSON.stringify(this.pipeline);
    if (!isAhead || !times) this.pipeline = scene.pipeline;
    else if (!ordersOf(this.pipeline, this.library)) this.pipeline = { ...scene.pipeline, times, hop, cap };
    const isShown = this.view.scene?.pipeline && JSON.stringify(this.pipeline) === before;
    if (!scene.panels.length && isShown) return; // what is pointed at stays
    if (scene.panels.length) this.view.show(scene); // a run
    else this.draw();
  }

  draw() {
    this.view.play(readPipeline(this.scene(), { ...this.pipeline, ...this.spec.look }));
  }

  showForm(fault) {
    this.form.show(controlsOf(this.pipeline, this.spec), fault);
  }

  // Take what a control says. Returns whether the page has followed by itself.
  take(name, value) {
    if (name === "copy") copy(this.view, `schedule_explorer("${this.state}")`);
    else if (name === "link") copy(this.view, `${location.href.split("#")[0]}#${encodeURI(this.state)}`);
    else if (name === "state") this.ask("state", value);
    else if (name.startsWith("preset ")) this.ask("state", this.spec.presets[name.slice("preset ".length)]);
    else {
      this.pipeline = moved(this.pipeline, name, value);
      const orders = isOfTimes(name) ? this.pipeline.orders : ordersOf(this.pipeline, this.library);
      if (orders) {
        this.pipeline = { ...this.pipeline, orders };
        this.draw();
      } else this.ask("state", this.state);
      this.showForm();
      return Boolean(orders);
    }
    return false;
  }
}

// The same in a file, which reads a text by itself, and that of its address first of all.
class ScheduleFile extends ScheduleForm {
  constructor(form, view, { schedules, orders }, options) {
    super(form, view, schedules, { ...options, library: orders, ask: (_, text) => this.read(text) });
  }

  // Show the state that a text says. One that is refused changes nothing, and its field says why.
  read(text) {
    try {
      const state = readState(text, this.spec);
      const orders = ordersOf(state, this.library);
      if (!orders) throw new Error(this.spec.limit);
      this.pipeline = { ...state, orders };
    } catch ({ message }) {
      this.view.say(message); // also above the picture: the field may be out of sight
      return this.showForm({ name: "state", text: message });
    }
    this.draw();
    this.showForm();
  }

  readAddress() {
    const text = location.hash.slice(1);
    if (text) this.read(decoded(text));
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a % that stands for itself
  }
}

// Return the orders that Python has packed.
async function unpacked(library) {
  return new Response(new Blob([library]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// A browser lets a page copy only if its address is a safe one. What it says can be copied by hand.
async function copy(view, text) {
  const isDone = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  view.say(`${isDone ? "Copied" : "To copy"}: ${text}`);
}

// In a file: its form chooses from a library, of the orders of schedules or of scenes. A heading beside the root, and with
// it the page, has the title of what is shown; then a state in the address is this picture's, too.
export function openFile(root, { scenes, panels, texts, library }) {
  const [first] = scenes;
  const whole = (scene) => ({ ...scene, panels: scene.panels.map((number) => withTexts(panels[number])) });
  const withTexts = (panel) => (panel.sentences ? { ...panel, sentences: panel.sentences.map((number) => texts[number]) } : panel);
  const state = { scene: whole(first), narration: first.narration };
  let game = null; // what answers a reader who chooses a bar
  const view = new TimelineView(root, { get: (name) => state[name], choose: (bar) => game?.choose(bar), press: (key) => game?.press?.(key) });
  const heading = root.parentElement.querySelector(":scope > h1");
  const entitle = ({ title, alt }) => { if (heading) document.title = heading.textContent = title || alt.replace(/\.$/, ""); };
  const show = (scene) => {
    Object.assign(state, { scene, narration: scene.narration });
    view.show(scene);
    entitle(scene);
  };
  if (first.puzzle) {
    game = new PuzzleForm(new Form(view.form, (...input) => game.take(...input)), view, first, () => entitle(view.scene));
    game.follow(first);
    entitle(view.scene);
  } else if (library?.fill) game = new RingForm(view, state.scene, library.fill);
  else if (library?.orders) {
    const form = new Form(view.form, (name, value) => {
      schedule.take(name, value);
      entitle(view.scene);
    });
    const schedules = { ...library.schedules, address: Boolean(heading) };
    const schedule = new ScheduleFile(form, view, { ...library, schedules }, { scene: () => state.scene });
    schedule.follow(state.scene);
    schedule.showForm();
    const goToAddress = () => {
      schedule.readAddress();
      entitle(view.scene);
    };
    if (heading) {
      goToAddress();
      addEventListener("hashchange", goToAddress);
    }
  } else if (library?.controls) {
    const chosen = new Map(library.controls.map(({ name, value }) => [name, value]));
    const form = new Form(view.form, (name, value) => {
      chosen.set(name, value);
      show(whole(scenes[library.scenes[[...chosen.values()].join("\n")]]));
      showForm();
    });
    const showForm = () => form.show(library.controls.map((each) => {
      return { ...each, value: chosen.get(each.name), disabled: Boolean(state.scene.disabled?.includes(each.name)) };
    }));
    showForm();
    show(state.scene);
  } else view.show(state.scene);
}

export default { render };
