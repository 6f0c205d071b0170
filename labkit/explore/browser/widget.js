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
  const onDrawn = () => nameSliders(el.closest(".jp-OutputArea-output") ?? el);
  const view = new TimelineView(root, { scene: model.get("scene"), keys: model.get("own_keys"), bare: model.get("bare"), said: () => model.get("said"), send, onDrawn });
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
    view.end();
  };
}

// In a file: the scene and all answers are in it.
export function openFile(root, scene, written) {
  return new TimelineView(root, { scene, keys: [], said: () => "", send() {}, written });
}

export default { render };
