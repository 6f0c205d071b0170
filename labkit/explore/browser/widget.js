// The two places where a Timeline lives: a notebook, with a kernel, and a file, without one.

import { Answers, WrittenAnswers } from "./answers.js";
import { KernelMessages, NO_KERNEL } from "./kernel.js";
import { nameSliders } from "./sliders.js";
import { TimelineView } from "./timeline.js";

const WRITTEN_IN = "input, textarea, select, [contenteditable], [role=slider]";
const CONTROLS = "button, input, select, .noUi-target";

// In a notebook: what anywidget calls.
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  const messages = new KernelMessages(model.send, {
    busy: (message) => view.wait(!("ask" in message)),
    free: () => view.follow(),
    lost: () => {
      view.follow();
      view.say(NO_KERNEL);
      answers.giveUp(NO_KERNEL);
    },
  });
  const send = (message) => messages.send(message);
  let explorer = null; // the whole output that the picture is in, with its controls
  const onDrawn = () => {
    const output = el.closest(".jp-OutputArea-output") ?? el;
    if (output !== explorer) for (const [event, listener] of uses) output.addEventListener(event, listener);
    explorer = output;
    nameSliders(explorer);
  };
  // The picture's own keys also work while a button beside it has the focus; and no key goes on to
  // JupyterLab, which would take x as cutting the cell.
  const onKey = (event) => {
    if (!view.stage.contains(event.target) && !event.target.matches(WRITTEN_IN) && view.hasKey(event.key)) view.press(event);
    if (!event.ctrlKey && !event.metaKey && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  // A control of ipywidgets tells the kernel itself; an empty message after it shows when that is done.
  const onUse = ({ target }) => target.closest(CONTROLS) && !target.closest(".labkit-timeline") && send({});
  const uses = [["keydown", onKey], ["keydown", onUse], ["pointerdown", onUse], ["change", onUse]];
  const answers = new Answers(send);
  const view = new TimelineView(root, { get: (name) => model.get(name), answers, send, onDrawn });
  const listeners = {
    "change:scene": () => view.show(model.get("scene")),
    "change:said": () => view.say(model.get("said")),
    "msg:custom": (message, buffers) => ("answer" in message ? answers.receive(message) : download(message, buffers[0])),
    comm_live_update: () => messages.lose(),
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  if (el.matches(".jupyter-widgets-disconnected")) messages.lose(); // kept in the notebook, with its state
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    for (const [event, listener] of uses) explorer?.removeEventListener(event, listener);
    view.end();
  };
}

function download({ download: name, type }, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// In a file: the scene and all answers are in it.
export function openFile(root, scene, written) {
  const state = { scene, said: "", own_keys: [] };
  return new TimelineView(root, { get: (name) => state[name], answers: new WrittenAnswers(written) });
}

export default { render };
