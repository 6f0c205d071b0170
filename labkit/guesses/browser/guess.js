// A question and its form. Python decides what a guess is; this file shows the question and sends it.

import { Form } from "./form.js";
import { onThemeChange, themeNow } from "./theme.js";

const STEPS = 1000; // of a slider

// A slider moves by factors where the bounds are far apart.
function along({ low, high, logarithmic, whole }, share) {
  const value = logarithmic ? low * (high / low) ** share : low + share * (high - low);
  return whole ? Math.round(value) : Number(value.toPrecision(3));
}

function shareOf({ low, high, logarithmic }, value) {
  const share = logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.max(0, Math.min(1, share)) || 0;
}

// Return a number as it is typed: 1.5 is also 1,5. Of 1,500, which may mean two numbers, and of what is no
// number, the text: Python says what it expects.
export function guessIn(text) {
  const typed = text.trim();
  const number = /^[+-]?[1-9]\d*,\d{3}$/.test(typed) ? NaN : Number(typed.replace(",", "."));
  return typed && Number.isNaN(number) ? typed : typed ? number : undefined;
}

// Return the controls of a question that is not answered, with what has been typed or chosen.
function asking(question, typed) {
  const guess = guessIn(typed);
  const [low, high] = [question.low, question.high];
  const share = typeof guess === "number" ? shareOf(question, guess) : 0.5;
  const slider = { name: "slider", look: "slider", label: `from ${low} to ${high}`, min: 0, max: STEPS, value: Math.round(STEPS * share) };
  const isBounded = low !== null && high !== null;
  const fields = question.choices.length
    ? [{ name: "guess", look: "buttons", label: "your guess", options: question.choices, value: typed }]
    : [{ name: "guess", look: "text", label: question.expected, value: typed, isLive: true }, ...(isBounded ? [{ ...slider, readout: typeof guess === "number" ? typed : "" }] : [])];
  return [
    ...fields,
    { name: "give", look: "action", label: "That is my guess", isMain: true, disabled: typed.trim() === "", group: "give" },
    { name: "unknown", look: "action", label: "I don't know", group: "give" },
  ];
}

function answered({ guess, final }) {
  const words = { name: "words", look: "words", value: `Your guess: ${guess}${final ? " (final: you have seen the answer)" : ""}`, group: "words" };
  const after = { name: "after", look: "words", value: "Now run the next cells.", group: "after" };
  return final ? [words] : [words, { name: "change", look: "action", label: "change", group: "words" }, after];
}

function render({ model, el }) {
  const question = model.get("question");
  const root = el.appendChild(Object.assign(document.createElement("div"), { className: "labkit-guess" }));
  const form = root.appendChild(Object.assign(document.createElement("form"), { className: "lk-form", ariaLabel: "Your guess" }));
  let [typed, isChanging] = ["", false];
  // No key goes on to JupyterLab, which would take x as cutting the cell; Shift-Enter does.
  root.onkeydown = (event) => {
    if (!(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  const give = (guess) => {
    isChanging = false;
    model.set("sent", [(model.get("sent")[0] ?? 0) + 1, guess]);
    model.save_changes();
  };
  const take = {
    guess: (value) => { typed = value; show(); },
    slider: (value) => { typed = String(along(question, value / STEPS)); show(); },
    give: () => typed.trim() && give(question.choices.length ? typed : guessIn(typed)),
    unknown: () => give(null),
    change: () => { isChanging = true; show(); },
  };
  const fields = new Form(form, (name, value) => take[name](value));
  const show = () => {
    const state = model.get("state");
    const hadFocus = root.contains(document.activeElement);
    const isAsked = isChanging || !state.given;
    const asks = { name: "question", look: "words", value: question.text, isStrong: true };
    fields.show([asks, ...(isAsked ? asking(question, typed) : answered(state))], { name: "guess", text: state.fault });
    if (!hadFocus || root.contains(document.activeElement)) return;
    // What had the focus is gone: a question goes on in its field, an answer in its cell, so Shift-Enter works.
    if (isAsked) form.querySelector("input").focus();
    else el.closest(".jp-Cell")?.focus({ preventScroll: true });
  };
  const followTheme = () => { root.dataset.theme = themeNow(); };
  const endThemes = onThemeChange(followTheme);
  followTheme();
  model.on("change:state", show);
  show();
  return () => {
    endThemes();
    model.off("change:state", show);
  };
}

export default { render };
