// The form of a question. Python decides what a guess is; this file shows the question and sends it.

const STEPS = 1000; // of a slider

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function button(text, onclick, ...rest) {
  return element("button", { type: "button", textContent: text, onclick }, ...rest);
}

// What stands in backticks is code.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", { textContent: part }) : part));
}

// A slider moves by factors where the bounds are far apart.
function along({ low, high, logarithmic, whole }, share) {
  const value = logarithmic ? low * (high / low) ** share : low + share * (high - low);
  return whole ? Math.round(value) : Number(value.toPrecision(3));
}

function shareOf({ low, high, logarithmic }, value) {
  return logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

// A number as it is typed: 1.5 is also 1,5, but 1,500 may mean two numbers and is none.
export function numberIn(text) {
  const typed = text.trim();
  return typed === "" ? undefined : /,\d{3}$/.test(typed) ? NaN : Number(typed.replace(",", "."));
}

function numberField(question, onReady) {
  const label = `${question.text.replaceAll("`", "")} Your guess, ${question.expected}`;
  const box = element("input", { type: "text", inputMode: "decimal", placeholder: "your guess" });
  box.setAttribute("aria-label", label);
  const field = element("span", { className: "labkit-guess-field" });
  const guess = () => numberIn(box.value);
  const changed = () => onReady(guess());
  if (question.low !== null && question.high !== null) {
    const slider = element("input", { type: "range", min: 0, max: STEPS, step: 1, value: STEPS / 2, className: "labkit-untouched" });
    slider.setAttribute("aria-label", label);
    slider.oninput = () => {
      slider.className = "";
      box.value = along(question, slider.value / STEPS);
      changed();
    };
    box.addEventListener("input", () => {
      const number = guess();
      if (number === undefined || Number.isNaN(number)) return;
      slider.className = "";
      slider.value = STEPS * shareOf(question, number);
    });
    field.append(String(question.low), slider, String(question.high));
  }
  box.addEventListener("input", changed);
  field.append(element("span", { className: "labkit-guess-number" }, box, question.unit));
  return { field, guess };
}

function choiceField(question, onReady) {
  const field = element("span", { className: "labkit-guess-choices" });
  let chosen;
  for (const choice of question.choices) {
    const radio = element("input", { type: "radio", name: `labkit-${question.name}`, value: choice });
    radio.onchange = () => onReady((chosen = choice));
    field.append(element("label", {}, radio, " ", ...prose(choice)));
  }
  return { field, guess: () => chosen };
}

function render({ model, el }) {
  const question = model.get("question");
  let changing = false;
  const root = element("div", { className: "labkit-guess" });
  // No key goes on to JupyterLab, which would take x as cutting the cell; Shift-Enter does.
  root.onkeydown = (event) => {
    if (!(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  const send = (guess) => {
    changing = false;
    model.set("sent", [(model.get("sent")[0] ?? 0) + 1, guess]);
    model.save_changes();
  };
  const show = () => {
    const { given, said, final, fault } = model.get("state");
    const parts = [element("div", { className: "labkit-guess-question" }, ...prose(question.text))];
    if (given && !changing) {
      const line = element("div", {}, "Your guess: ", element("b", {}, ...prose(said)));
      if (final) line.append(" (final: you have seen the answer)");
      else line.append(" ", button("change", () => ((changing = true), show())), element("div", { textContent: "Now run the next cells." }));
      parts.push(line);
    } else {
      const give = element("button", { textContent: "That is my guess", disabled: true, className: "labkit-give" });
      const make = question.choices.length ? choiceField : numberField;
      const { field, guess } = make(question, (value) => (give.disabled = value === undefined || Number.isNaN(value)));
      const row = element("form", { className: "labkit-guess-row", noValidate: true }, field, give, button("I don't know", () => send(null)));
      row.onsubmit = (event) => { // also by Enter, in any field
        event.preventDefault();
        send(guess());
      };
      parts.push(row);
    }
    if (fault) parts.push(element("div", { className: "labkit-guess-fault", role: "alert" }, ...prose(fault)));
    root.replaceChildren(...parts);
  };
  model.on("change:state", show);
  show();
  el.append(root);
  return () => model.off("change:state", show);
}

export default { render };
