// The switches of a measured run: each takes one cause away, and the bars slide to where they would have run.

import { withoutCauses } from "./what_if.js";

export class Switches {
  // onChange(scene): the picture without the causes that are off.
  constructor(root, onChange) {
    Object.assign(this, { root, onChange, off: new Set() });
  }

  // Take another scene: all of its switches are on.
  follow(scene) {
    this.scene = scene;
    this.off = new Set();
    const found = scene.panels.map(({ what_if: whatIf }) => whatIf).filter(Boolean);
    const switches = found.find((each) => each.switches.length)?.switches ?? [];
    const notes = [...new Set(found.map(({ note }) => note).filter(Boolean))];
    this.root.hidden = !found.length;
    this.root.replaceChildren(...(switches.length ? [element("span", "what if without"), ...switches.map((each) => this.button(each))] : []));
    this.root.append(...notes.map((note) => element("span", note, "lk-note")));
  }

  button({ label, title }) {
    const button = Object.assign(element("button", label), { type: "button", title, ariaPressed: "false" });
    button.onclick = () => {
      if (!this.off.delete(label)) this.off.add(label);
      button.ariaPressed = String(this.off.has(label));
      this.onChange(withoutCauses(this.scene, this.off));
    };
    return button;
  }
}

function element(tag, textContent, className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}
