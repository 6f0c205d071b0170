// The two places where a Timeline lives: a notebook, with a kernel, and a file, without one.

import { Form } from "./form.js";
import { Messages, NO_KERNEL } from "./messages.js";
import { controlsOf, isOfTimes, moved, ordersOf, stateOf } from "./schedule_controls.js";
import { TimelineView } from "./timeline.js";

const WRITTEN_IN = 'input:not([type="radio"]), textarea, select, [contenteditable]';

// In a notebook: what anywidget calls.
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  const messages = new Messages(model.send, {
    busy: () => view.wait(true),
    free: () => { view.follow(); showForm(); },
    lost: () => { view.follow(); view.say(NO_KERNEL); },
  });
  let explorer = null; // the whole output that the picture is in, with its buttons
  const onDrawn = () => {
    const output = el.closest(".jp-OutputArea-output") ?? el;
    if (output !== explorer) output.addEventListener("keydown", onKey);
    explorer = output;
  };
  // The picture's own keys also work while a button beside it has the focus; and no key goes on to
  // JupyterLab, which would take x as cutting the cell.
  const onKey = (event) => {
    if (!view.stage.contains(event.target) && !event.target.matches(WRITTEN_IN) && view.hasKey(event.key)) view.press(event);
    if (!event.ctrlKey && !event.metaKey && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  const view = new TimelineView(root, { get: (name) => model.get(name), send: (message) => messages.send(message), onDrawn });
  const ask = (control, text) => messages.ask({ control, text });
  let isAhead = false; // of Python: a time that is dragged is not told yet
  const form = new Form(view.form, (name, value, isFinal) => {
    const key = [name, value].find((each) => view.hasKey(each)); // a button, or a choice, may stand for a key
    if (key) return view.tellKey(key);
    if (schedule) isAhead = schedule.take(name, value) && !isFinal;
    else ask(name, value);
    if (schedule && isOfTimes(name) && isFinal) ask("state", schedule.state);
  });
  const { schedules, controls = [] } = model.get("form");
  const schedule = schedules ? new ScheduleForm(form, view, schedules, { scene: () => model.get("scene"), ask }) : null;
  const showForm = () => {
    if (messages.isWaiting) return; // what was moved last is still to come
    if (schedule) schedule.showForm();
    else form.show(model.get("form").controls ?? controls);
  };
  const show = () => {
    const scene = model.get("scene");
    if (schedule) schedule.follow(scene, isAhead || messages.next);
    else view.show(scene);
    showForm();
  };
  show();
  const listeners = {
    "change:scene": show,
    "change:form": showForm,
    "change:narration": () => view.say(model.get("narration")),
    "msg:custom": (message, buffers) => download(message, buffers[0]),
    comm_live_update: () => messages.lose(),
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  if (el.matches(".jupyter-widgets-disconnected")) messages.lose(); // kept in the notebook, with its state
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    explorer?.removeEventListener("keydown", onKey);
    view.end();
  };
}

// The form of schedules: it follows times by itself, and asks for orders.
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
    this.pipeline = isAhead && times ? { ...scene.pipeline, times, hop, cap } : scene.pipeline;
    const isShown = this.view.scene?.pipeline && JSON.stringify(this.pipeline) === before;
    if (!scene.panels.length && isShown) return; // what is pointed at stays
    if (scene.panels.length) this.view.show(scene); // a run
    else this.view.show(scene, this.pipeline);
  }

  showForm() {
    this.form.show(controlsOf(this.pipeline, this.spec, this.library !== null));
  }

  // Take what a control says. Returns whether the page has followed by itself.
  take(name, value) {
    if (name === "copy") copy(this.view, `schedule_explorer("${this.state}")`);
    else if (name === "state") this.ask("state", value);
    else if (name.startsWith("preset ")) this.ask("state", this.spec.presets[name.slice("preset ".length)]);
    else {
      const isKnown = isOfTimes(name);
      this.pipeline = moved(this.pipeline, name, value);
      if (this.library) this.pipeline = { ...this.pipeline, orders: ordersOf(this.pipeline, this.library) };
      if (this.library || isKnown) this.view.show(this.scene(), this.pipeline);
      else this.ask("state", this.state);
      this.showForm();
      return isKnown;
    }
    return false;
  }
}

// A browser lets a page copy only if its address is a safe one. What is said can be copied by hand.
async function copy(view, text) {
  const isDone = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  view.say(`${isDone ? "Copied" : "To copy"}: ${text}`);
}

function download({ download: name, type }, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// In a file: its form chooses from a library, of the orders of schedules or of scenes.
export function openFile(root, { scenes: [first], panels, texts, library }) {
  const whole = (scene) => ({ ...scene, panels: scene.panels.map((number) => withTexts(panels[number])) });
  const withTexts = (panel) => (panel.sentences ? { ...panel, sentences: panel.sentences.map((number) => texts[number]) } : panel);
  const state = { scene: whole(first), narration: first.narration, own_keys: [] };
  const view = new TimelineView(root, { get: (name) => state[name] });
  const entitle = ({ title, alt }) => { document.title = document.querySelector("h1").textContent = title || alt.replace(/\.$/, ""); };
  const show = (scene) => {
    Object.assign(state, { scene, narration: scene.narration });
    view.show(scene);
    entitle(scene);
  };
  if (library?.orders) {
    const form = new Form(view.form, (name, value) => {
      schedule.take(name, value);
      entitle(view.scene);
    });
    const schedule = new ScheduleForm(form, view, library.schedules, { scene: () => state.scene, library: library.orders });
    schedule.follow(state.scene);
    schedule.showForm();
    entitle(view.scene);
  } else if (library?.controls) {
    const chosen = new Map(library.controls.map(({ name, value }) => [name, value]));
    const form = new Form(view.form, (name, value) => {
      chosen.set(name, value);
      show(whole(library.scenes[[...chosen.values()].join("\n")]));
    });
    form.show(library.controls);
    show(state.scene);
  } else view.show(state.scene);
}

export default { render };
