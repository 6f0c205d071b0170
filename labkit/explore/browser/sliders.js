// Say the sliders of ipywidgets to a screen reader: their names, which only stand beside them, and
// their values as they are read, "25 MiB", where they would give an index, 9.

export function nameSliders(page) {
  for (const slider of page.querySelectorAll(".widget-slider:not([data-lk-named])")) {
    slider.dataset.lkNamed = "";
    const changes = { subtree: true, childList: true, characterData: true, attributeFilter: ["aria-valuetext"] };
    new MutationObserver(() => name(slider)).observe(slider, changes);
    name(slider);
  }
}

function name(slider) {
  const [label, readout] = ["label", "readout"].map((part) => slider.querySelector(`.widget-${part}`));
  const words = { "aria-label": label?.textContent ?? "", "aria-valuetext": readout?.textContent ?? "" };
  for (const handle of slider.querySelectorAll(".noUi-handle")) describe(handle, words);
  if (readout?.isContentEditable) describe(readout, { role: "textbox", "aria-label": `${words["aria-label"]}, to type` });
}

function describe(element, words) {
  for (const [attribute, text] of Object.entries(words)) {
    if (element.getAttribute(attribute) !== text) element.setAttribute(attribute, text);
  }
}

// Return a slider for a page without ipywidgets, with what it says beside it, which calls show(place) wherever it is moved to.
export function sliderOf(name, values, at, show) {
  const label = Object.assign(document.createElement("label"), { className: "lk-slider", textContent: name });
  const input = Object.assign(document.createElement("input"), { type: "range", max: values.length - 1, value: at });
  const readout = document.createElement("output");
  const say = () => { input.ariaValueText = readout.textContent = values[input.valueAsNumber]; };
  input.addEventListener("input", () => {
    say();
    show(input.valueAsNumber);
  });
  say();
  label.append(input, readout);
  return label;
}
