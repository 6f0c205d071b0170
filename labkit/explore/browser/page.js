// The page around the canvas: its controls, its keys and its words.

// A key, what it does, and the buttons without which it does nothing.
export const KEYS = [
  ["arrows", "go from bar to bar, and to what lies between"],
  ["Enter", "pin the bar, or let it go; Esc lets go"],
  ["space", "play and pause", "stepping"],
  [". and ,", "a step on, a step back", "stepping"],
  ["+ −", "zoom in, zoom out; also the wheel with Ctrl", "zooming"],
  ["0", "see all", "zooming"],
  ["Shift ← →", "move along the axis; also drag the picture", "zooming"],
  ["drag the axis", "go to that time", "zooming"],
  ["Home End", "the first bar, the last bar"],
  ["f", "the picture alone, full screen, and back"],
];

// A button does what a key does, or what has no key.
const button = (action, text, label, state = "") =>
  `<button type="button" data-action="${action}" title="${label}" aria-label="${label}" ${state}>${text}</button>`;
const saver = (form) => button(form, form, `Save the picture as ${form}`);
const PAGE = `
  <div data-part="toolbar" class="lk-toolbar" role="toolbar" aria-label="Play and zoom">
    <span data-part="stepping" class="lk-group">
      ${button(" ", "▶", "Play")} ${button(",", "‹ step", "A step back")} ${button(".", "step ›", "A step on")}
    </span>
    <span data-part="zooming" class="lk-group">
      ${button("-", "−", "Zoom out")} ${button("+", "+", "Zoom in")} ${button("0", "all", "See all of the time axis")}
    </span>
    <span data-part="highlighting" class="lk-group">
      ${button("critical", "critical path", "Show the bars that decide when it ends", 'aria-pressed="false"')}
    </span>
    <span class="lk-group">${button("f", "full screen", "Show the picture alone, full screen", 'aria-pressed="false"')}</span>
    <span class="lk-group">${button("keys", "keys", "Show the keys", 'aria-expanded="false"')}</span>
  </div>
  <div data-part="whatIf" class="lk-toolbar" role="toolbar" aria-label="What if" hidden></div>
  <dl data-part="keys" class="lk-keys" hidden></dl>
  <p data-part="narration" class="lk-narration" role="status"></p>
  <div data-part="stage" class="lk-stage" tabindex="0" role="application">
    <canvas data-part="canvas" aria-hidden="true"></canvas>
  </div>
  <div data-part="card" class="lk-card" role="status"></div>
  <div data-part="legend" class="lk-legend" role="toolbar" aria-label="Show one kind alone"></div>
  <form data-part="form" class="lk-form" hidden></form>
  <p data-part="note" class="lk-note"></p>
  <div data-part="numbers" class="lk-numbers" role="group" aria-label="Numbers"></div>
  <div class="lk-below">
    <details data-part="table" class="lk-table">
      <summary>The same as a table</summary>
      <div data-part="rows" class="lk-rows" tabindex="0" role="group" aria-label="Table of the picture"></div>
    </details>
    <span data-part="saving" class="lk-group" role="toolbar" aria-label="Save the picture">${saver("PNG")} ${saver("HTML")}</span>
  </div>`;

// Fill the root with the page. Returns its parts by name.
export function buildPage(root) {
  root.classList.add("labkit-timeline");
  root.innerHTML = PAGE;
  return Object.fromEntries([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
}

export function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Make a row of controls one tab stop, from which arrow keys go on. Returns a function to call
// when other controls of the row are seen.
export function makeOneTabStop(row) {
  const all = () => [...row.querySelectorAll("button")];
  const seen = () => all().filter((control) => control.offsetParent);
  const choose = (chosen) => { for (const control of all()) control.tabIndex = control === chosen ? 0 : -1; };
  row.addEventListener("focusin", ({ target }) => choose(target));
  row.addEventListener("keydown", (event) => {
    const controls = seen();
    const [at, last] = [controls.indexOf(event.target), controls.length - 1];
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    controls.at(to > last ? 0 : to).focus();
  });
  return () => {
    const controls = seen();
    choose(controls.find((control) => control.tabIndex === 0 && control.hasAttribute("tabindex")) ?? controls[0]);
  };
}
