// The legend of a picture. Each style of bars is a button: with it pressed, or pointed at, the other bars are dimmed.

import { swatch } from "./painter.js";

export class Legend {
  // onChange(): other styles are lit.
  constructor(root, onChange) {
    Object.assign(this, { root, onChange });
    this.pointedAt = null; // the name of a style
    this.pressed = new Set(); // names
  }

  // The names of the styles that are not dimmed; none where all are as they are.
  get lit() {
    return this.pointedAt ? new Set([this.pointedAt]) : this.pressed;
  }

  // Show the legend of a scene. Returns whether it is another one: while a time is dragged it stays, with the focus.
  fill({ panels, styles }, theme) {
    this.pressed = new Set(styles.map(({ name }) => name).filter((name) => this.pressed.has(name)));
    const marks = new Map(panels.flatMap((panel) => panel.marks.map(([, text, dashed]) => [text, dashed])));
    const hasStrips = panels.some((panel) => panel.strips);
    const filled = JSON.stringify([theme, styles.map(({ name, hatch }) => [name, hatch]), [...marks], hasStrips]);
    if (filled === this.filled) return false;
    this.filled = filled;
    const signs = [
      ...(hasStrips ? [[element("span", "lk-swatch lk-kept"), "activations kept"]] : []),
      ...[...marks].map(([text, dashed]) => [element("span", dashed ? "lk-line lk-dashed" : "lk-line"), text]),
    ];
    const buttons = styles.map((style) => this.button(style, theme));
    this.root.replaceChildren(...buttons, ...signs.map(([sign, text]) => entry("span", sign, text)));
    return true;
  }

  button(style, theme) {
    const button = entry("button", swatch(style, theme), style.words);
    button.title = button.ariaLabel = `Show ${style.words} alone`;
    Object.assign(button, { type: "button", ariaPressed: this.pressed.has(style.name) });
    const light = (name) => { this.pointedAt = name; this.onChange(); };
    button.onmouseenter = button.onfocus = () => light(style.name);
    button.onmouseleave = button.onblur = () => light(null);
    button.onclick = () => {
      if (!this.pressed.delete(style.name)) this.pressed.add(style.name);
      button.ariaPressed = this.pressed.has(style.name);
      this.onChange();
    };
    return button;
  }
}

function entry(tag, sign, text) {
  const made = element(tag, "lk-entry");
  made.append(sign, text);
  return made;
}

function element(tag, className) {
  return Object.assign(document.createElement(tag), { className });
}
