// The two places where a Timeline lives: a notebook, with a kernel, and a file, without one.

import { NO_KERNEL } from "./answers.js";
import { nameSliders } from "./sliders.js";
import { TimelineView } from "./timeline.js";

function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const WRITTEN_IN = "input, textarea, select, [contenteditable], [role=slider]";

// In a notebook: what anywidget calls.
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const send = (message) => {
    try {
      model.send(message);
    } catch {
      onLost();
    }
  };
  const onLost = () => view.say(NO_KERNEL); // told by JupyterLab when it restarts or ends the kernel
  let explorer = null; // the whole output that the picture is in, with its controls
  const onDrawn = () => {
    const output = el.closest(".jp-OutputArea-output") ?? el;
    if (output !== explorer) output.addEventListener("keydown", onKey);
    explorer = output;
    nameSliders(explorer);
  };
  // The picture's own keys also work while a button beside it has the focus; and no key goes on to
  // JupyterLab, which would take x as cutting the cell.
  const onKey = (event) => {
    if (!view.stage.contains(event.target) && !event.target.matches(WRITTEN_IN) && view.hasKey(event.key)) view.press(event);
    if (!event.ctrlKey && !event.metaKey && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  const view = new TimelineView(root, { scene: model.get("scene"), get keys() { return model.get("own_keys"); }, bare: model.get("bare"), said: () => model.get("said"), send, onDrawn });
  const onScene = () => view.show(model.get("scene"));
  const onSaid = () => view.say(model.get("said"));
  const onMessage = (message, buffers) => {
    if ("answer" in message) view.answers.receive(message);
    else if ("download" in message) download(message.download, message.type, buffers[0]);
  };
  model.on("change:scene", onScene);
  model.on("change:said", onSaid);
  model.on("msg:custom", onMessage);
  model.on("comm_live_update", onLost);
  return () => {
    model.off("change:scene", onScene);
    model.off("change:said", onSaid);
    model.off("msg:custom", onMessage);
    model.off("comm_live_update", onLost);
    explorer?.removeEventListener("keydown", onKey);
    view.end();
  };
}

// In a file: the scene and all answers are in it.
export function openFile(root, scene, written) {
  return new TimelineView(root, { scene, keys: [], said: () => "", send() {}, written });
}

export default { render };
