// A form, of an explorer or of a question: native controls with their names, in a notebook and in a file.
//
// A control is {name, label, look, value, hidden, disabled}. By its look it is a "menu" or
// "buttons", with `options`, which are texts or pairs [value, text]; a "slider" over options, or from `min`
// to `max` in steps of `step`, which may say a `readout` of its own; a "check"; a "text", which is live or
// taken with Enter; "words" to read; or an "action", a button, of which one may be what Enter does. Those of
// a `group` stand in one row.

export class Form {
  // onInput(name, value, isFinal): a control has another value; one that is dragged has its last.
  constructor(root, onInput) {
    this.root = root;
    this.onInput = onInput;
    this.built = "";
    this.fields = new Map(); // by name: the element of a control, and set(control)
    this.alert = make("p", { className: "lk-fault", role: "alert" });
    root.noValidate = true;
    root.addEventListener("submit", (event) => event.preventDefault());
  }

  // Show these controls. Those that are there already take their values, and keep the focus. A fault is
  // {name, text}: which control has been refused, and why.
  show(controls, fault = {}) {
    const shapes = controls.map(({ name, label, look, options, group }) => JSON.stringify([name, label, look, options, group]));
    if (shapes.join() !== this.built) {
      this.built = shapes.join();
      const { activeElement } = document;
      const kept = ({ name }, shape) => (this.fields.get(name)?.shape === shape ? this.fields.get(name) : null);
      const fieldOf = (control, shape) => kept(control, shape) ?? { shape, ...FIELDS[control.look](control, this.onInput) };
      this.fields = new Map(controls.map((control, k) => [control.name, fieldOf(control, shapes[k])]));
      this.root.replaceChildren(...this.inGroups(controls), this.alert);
      if (activeElement.isConnected && activeElement !== document.body) activeElement.focus({ preventScroll: true });
    }
    this.root.hidden = controls.length === 0;
    for (const control of controls) {
      const { element, set } = this.fields.get(control.name);
      change(element, { hidden: Boolean(control.hidden) });
      const isRefused = Boolean(fault.text) && fault.name === control.name;
      for (const input of element.querySelectorAll("input")) input.ariaInvalid = isRefused ? "true" : null;
      set({ ...control, isRefused });
    }
    change(this.alert, { textContent: fault.text ?? "", hidden: !fault.text });
  }

  inGroups(controls) {
    const rows = new Map();
    for (const { name, group = "" } of controls) {
      if (!rows.has(group)) rows.set(group, Object.assign(document.createElement("div"), { className: `lk-fields ${group && "lk-row"}` }));
      rows.get(group).append(this.fields.get(name).element);
    }
    return rows.values();
  }
}

const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

// Change what is another one: a page lays out again what is set, even to the same.
function change(element, properties) {
  for (const [name, value] of Object.entries(properties)) if (String(element[name]) !== String(value)) element[name] = value;
}

// Return a control with its name before it and what it says behind it.
function labelled(label, input, ...behind) {
  const element = make("label", { className: `lk-field ${behind.length ? "lk-slides" : ""}` });
  element.append(make("span", { textContent: label }), input, ...behind);
  return element;
}

function pairsOf(options) {
  return options.map((option) => (Array.isArray(option) ? option : [option, option]));
}

function menu({ name, label, options }, onInput) {
  const select = make("select", { name });
  select.append(...pairsOf(options).map(([value, textContent]) => make("option", { value, textContent })));
  select.addEventListener("input", () => onInput(name, select.value, true));
  const set = ({ value, disabled }) => change(select, { value, disabled: Boolean(disabled) });
  return { element: labelled(label, select), set };
}

// A slider moves from `min` to `max`, or over options: then it says their text, "25 MiB", and not a number.
function slider({ name, label, options }, onInput) {
  const input = make("input", { type: "range", name });
  const readout = make("output");
  let isMoving = false;
  const tell = (isFinal) => {
    if (isFinal && !isMoving) return;
    isMoving = !isFinal;
    const value = options?.[input.valueAsNumber] ?? input.valueAsNumber;
    input.ariaValueText = readout.textContent = value;
    onInput(name, value, isFinal);
  };
  input.addEventListener("input", () => tell(false));
  // A slider that is dragged away and back in one go has not changed for Firefox: its release counts too.
  for (const event of ["change", "pointerup", "blur"]) input.addEventListener(event, () => tell(true));
  // A value beyond the ends, or between two steps, is kept as it is.
  const set = ({ value, min = 0, max = options?.length - 1, step = 1, disabled, readout: text = String(value) }) => {
    const at = options ? options.indexOf(value) : value;
    const low = Math.min(min, at);
    const isOnStep = Math.abs(Math.round((at - low) / step) * step - (at - low)) < 1e-9;
    change(input, { min: low, max: Math.max(max, at), step: isOnStep ? step : "any", disabled: Boolean(disabled), value: at, ariaValueText: text });
    change(readout, { textContent: text });
  };
  return { element: labelled(label, input, readout), set };
}

function check({ name, label }, onInput) {
  const input = make("input", { type: "checkbox", name });
  input.addEventListener("input", () => onInput(name, input.checked, true));
  return { element: labelled(label, input), set: ({ value }) => { input.checked = value; } };
}

// A text is taken with Enter, or when the focus leaves it. While it has the focus, or was refused, it stays
// as it is typed.
function text({ name, label, isLive }, onInput) {
  const input = make("input", { type: "text", name, spellcheck: false, autocomplete: "off" });
  let shown = "";
  input.addEventListener(isLive ? "input" : "change", () => onInput(name, input.value, true));
  const set = ({ value, isRefused }) => {
    const isKept = isRefused || document.activeElement === input;
    if (input.value === shown || !isKept || value !== shown) change(input, { value });
    shown = value;
  };
  const element = labelled(label, input);
  element.classList.add("lk-wide");
  return { element, set };
}

function buttons({ name, label, options }, onInput) {
  const element = make("fieldset", { className: "lk-choices" });
  element.append(make("legend", { textContent: label }));
  const group = `${name} ${Math.random()}`; // radio buttons of two views are not one group
  const inputs = pairsOf(options).map(([value, words]) => {
    const input = make("input", { type: "radio", name: group, value });
    input.addEventListener("input", () => onInput(name, value, true));
    const one = make("label");
    one.append(input, ...prose(words));
    element.append(one);
    return input;
  });
  const set = ({ value }) => { for (const input of inputs) input.checked = input.value === value; };
  return { element, set };
}

function action({ name, label, isMain }, onInput) {
  const element = make("button", { type: isMain ? "submit" : "button", textContent: label, className: isMain ? "lk-main" : "" });
  element.addEventListener("click", () => onInput(name, null, true)); // also by Enter, where it is the main one
  return { element, set: ({ tooltip = "", disabled }) => change(element, { title: tooltip, disabled: Boolean(disabled) }) };
}

function words({ isStrong }) {
  const element = make("p", { className: isStrong ? "lk-strong" : "" });
  let shown = "";
  const set = ({ value }) => {
    if (value !== shown) element.replaceChildren(...prose(value));
    shown = value;
  };
  return { element, set };
}

// What stands in backticks is code.
function prose(value) {
  return value.split("`").map((part, i) => (i % 2 ? make("code", { textContent: part }) : part));
}

const FIELDS = { menu, slider, check, text, buttons, action, words };
