// The controls of the schedule explorer in a file: of schedules, whose orders are in it, and of times.

import { movedTo } from "./schedules.js";

// orders: by name and "n,m". pipeline: what the file begins with. Calls show(pipeline) when a control
// has moved. Returns the controls.
export function pipelineControls(orders, pipeline, show) {
  const { n, m, times: { F: [F], I: [I], W: [W] }, hop } = pipeline;
  const names = Object.keys(orders);
  const [first, second = ""] = Object.keys(pipeline.orders);
  const sizes = Object.keys(Object.assign({}, ...Object.values(orders))).map((size) => size.split(",").map(Number));
  const [ranks, microBatches] = [0, 1].map((which) => sizes.map((size) => size[which]));
  const said = { first, second, n, m, F, B: I + W, hop };
  const form = document.createElement("form");
  form.className = "lk-toolbar";
  form.innerHTML = [
    menu("schedule", "first", names),
    menu("compare with", "second", ["", ...names]),
    slider("ranks", "n", ranks, 1),
    slider("micro-batches", "m", microBatches, 1),
    slider("F", "F", [0.1, 4]),
    slider("B", "B", [0.1, 8]),
    slider("hop", "hop", [0, 4]),
  ].join("");
  form.addEventListener("input", ({ target }) => {
    if (target.nextSibling) target.nextSibling.value = target.value;
    said[target.name] = target.type === "range" ? Number(target.value) : target.value;
    const chosen = [said.first, said.second].filter(Boolean);
    const fits = sizes.filter((size) => size[0] === said.n && chosen.every((name) => orders[name][size]));
    const nearest = fits.reduce((a, b) => (Math.abs(b[1] - said.m) <= Math.abs(a[1] - said.m) ? b : a));
    const share = said.B / (I + W); // of I and W each
    const times = { F: said.F, I: share * I, W: share * W, hop: said.hop };
    const shown = Object.fromEntries(chosen.map((name) => [name, orders[name][nearest]]));
    show({ ...(movedTo(pipeline, times) ?? pipeline), n: said.n, m: said.m, orders: shown });
  });
  return form;

  function menu(text, name, values) {
    const options = values.map((value) => `<option ${value === said[name] ? "selected" : ""} value="${value}">${value || "—"}</option>`);
    return labelled(text, `<select name="${name}" aria-label="${text}">${options.join("")}</select>`);
  }

  function slider(text, name, values, step = 0.1) {
    const [value, all] = [said[name], [...values, said[name]]];
    const bounds = `min="${Math.min(...all)}" max="${Math.max(...all)}" step="${step}" value="${value}"`;
    return labelled(text, `<input type="range" name="${name}" aria-label="${text}" ${bounds}><output>${value}</output>`);
  }

  function labelled(text, control) {
    return `<label class="lk-group">${text} ${control}</label>`;
  }
}
