// The two places where a Timeline lives: a notebook, with a kernel, and a file, without one.

import { KernelMessages, NO_KERNEL } from "./kernel.js";
import { movedTo } from "./schedules.js";
import { pipelineControls } from "./pipeline_controls.js";
import { nameSliders, sliderOf } from "./sliders.js";
import { TimelineView } from "./timeline.js";

const WRITTEN_IN = "input, textarea, select, [contenteditable], [role=slider]";
const CONTROLS = "button, input, select, .noUi-target";

// In a notebook: what anywidget calls.
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  const messages = new KernelMessages(model.send, {
    busy: () => view.wait(true),
    free: () => view.follow(),
    lost: () => {
      view.follow();
      view.say(NO_KERNEL);
    },
  });
  const send = (message) => messages.send(message);
  let explorer = null; // the whole output that the picture is in, with its controls
  const onDrawn = () => {
    const output = el.closest(".jp-OutputArea-output") ?? el;
    if (output !== explorer) for (const [event, listener] of uses) output.addEventListener(event, listener);
    explorer = output;
    nameSliders(explorer);
    for (const table of explorer.querySelectorAll(".widget-html-content")) {
      table.tabIndex = table.scrollWidth > table.clientWidth ? 0 : -1; // so that arrow keys scroll it
    }
  };
  // The picture's own keys also work while a button beside it has the focus; and no key goes on to
  // JupyterLab, which would take x as cutting the cell.
  const onKey = (event) => {
    if (!view.stage.contains(event.target) && !event.target.matches(WRITTEN_IN) && view.hasKey(event.key)) view.press(event);
    if (!event.ctrlKey && !event.metaKey && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  // A control of ipywidgets tells the kernel itself; an empty message after it shows when that is done.
  const onUse = ({ target }) => target.closest(CONTROLS) && !target.closest(".labkit-timeline") && send({});
  // Sliders of times change the picture at once, ahead of Python, which is told when they are let go.
  const models = Object.entries(model.get("sliders") ?? {});
  const sliders = new Map();
  const dragged = new Map();
  const show = () => {
    const scene = model.get("scene");
    const said = Object.fromEntries([...sliders].map(([key, slider]) => [key, dragged.get(key) ?? slider.get("value")]));
    view.show(scene, scene.pipeline && movedTo(scene.pipeline, said));
  };
  for (const [key, id] of models) {
    const found = (slider) => sliders.set(key, slider.on("change:value", show));
    model.widget_manager.get_model(id).then(found, () => {}); // none is there without a kernel
  }
  const followDrag = ({ target }) => {
    const [key] = models.find(([, id]) => target.closest(`.labkit-${id}`)) ?? [];
    const { noUiSlider } = target.closest(".noUi-target") ?? {};
    if (!key || !noUiSlider) return;
    noUiSlider.off(".labkit");
    noUiSlider.on("slide.labkit", (texts, which, [value]) => { dragged.set(key, value); show(); });
    noUiSlider.on("end.labkit", () => { dragged.delete(key); show(); });
  };
  const uses = [["keydown", onKey], ["keydown", onUse], ["pointerdown", followDrag], ["pointerdown", onUse], ["change", onUse]];
  const view = new TimelineView(root, { get: (name) => model.get(name), send, onDrawn });
  const listeners = {
    "change:scene": show,
    "change:said": () => view.say(model.get("said")),
    "msg:custom": (message, buffers) => {
      if ("copy" in message) copy(view, message.copy);
      else download(message, buffers[0]);
    },
    comm_live_update: () => messages.lose(),
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  if (el.matches(".jupyter-widgets-disconnected")) messages.lose(); // kept in the notebook, with its state
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    for (const slider of sliders.values()) slider.off("change:value", show);
    for (const [event, listener] of uses) explorer?.removeEventListener(event, listener);
    view.end();
  };
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

// In a file: of several scenes a slider chooses one; with a library of schedules the page draws what its
// controls say.
export function openFile(root, { scenes, slider, library }) {
  const [name, values, first] = slider ?? ["", [], 0];
  const state = { scene: scenes[first], said: slider ? scenes[first].alt : "", own_keys: [] };
  const view = new TimelineView(root, { get: (name) => state[name] });
  if (slider) root.prepend(sliderOf(name, values, first, (at) => {
    state.said = scenes[at].alt;
    view.show(scenes[at]);
  }));
  if (library) root.prepend(pipelineControls(library.orders, scenes[0].pipeline, (pipeline) => {
    view.show(scenes[0], pipeline);
    document.title = document.querySelector("h1").textContent = view.scene.alt;
  }));
}

export default { render };
