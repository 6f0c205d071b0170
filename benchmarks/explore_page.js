// What bench_explore.py runs in the page: move a slider, wait for the picture, watch the frames.

const frame = () => new Promise(requestAnimationFrame);
const task = () => new Promise((resolve) => setTimeout(resolve));

// What changes with every new picture; undefined until there is one.
const pictures = {
  ours: () => document.querySelector(".labkit-timeline")?.dataset.version,
  interact: () => document.querySelector(".widget-output img")?.src,
};

// When a new picture is on the screen. Ours is drawn, and says so, in the frame that shows it; an
// image is decoded first, and is in the frame after that.
const shown = {
  ours: task,
  interact: async () => {
    await document.querySelector(".widget-output img").decode();
    await frame();
    await task();
  },
};

const changed = (picture) => new Promise((resolve) => {
  const before = pictures[picture]();
  const observer = new MutationObserver(() => {
    if ([before, undefined].includes(pictures[picture]())) return;
    observer.disconnect();
    resolve();
  });
  observer.observe(document, { subtree: true, childList: true, attributeFilter: ["data-version", "src"] });
});

window.bench = {
  // The slider beside this word: ours is native, the other one of ipywidgets.
  slider: (word) => [...document.querySelectorAll(".widget-slider, .lk-field")].find((slider) => slider.innerText.includes(word)),

  handle: (word) => bench.slider(word).querySelector(".noUi-handle, input"),

  track: (word) => bench.slider(word).querySelector(".noUi-target, input").getBoundingClientRect().toJSON(),

  // From where to drag: the middle of the handle.
  grip(word) {
    const handle = bench.handle(word);
    const { x, y, width, height } = handle.getBoundingClientRect();
    const share = handle.matches("input") ? (handle.value - handle.min) / (handle.max - handle.min) : 0.5;
    const inset = handle.matches("input") ? 8 : 0;
    return [x + inset + share * (width - 2 * inset), y + height / 2];
  },

  press(word, key) {
    const handle = bench.handle(word);
    if (!handle.matches("input")) return handle.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    handle[key === "ArrowLeft" ? "stepDown" : "stepUp"]();
    for (const name of ["input", "change"]) handle.dispatchEvent(new Event(name, { bubbles: true }));
  },

  isDrawn: (picture) => pictures[picture]() !== undefined,

  // Milliseconds from a key on the slider to the frame that shows the new picture. What the move
  // before it has left to do, in the kernel and in the page, is waited for.
  async move(word, key, picture) {
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    await new Promise((resolve) => setTimeout(resolve, 100));
    while (kernel.status !== "idle") await frame();
    const isNew = changed(picture);
    const began = performance.now();
    bench.press(word, key);
    await isNew;
    await shown[picture]();
    return performance.now() - began;
  },

  // Count the values that the slider's readout goes through, and the pictures, until dropped().
  drag(word, picture) {
    const readout = bench.slider(word).querySelector(".widget-readout, output");
    const drag = (bench.dragging = { values: 0, pictures: 0, behind: 0, valueAt: 0, pictureAt: 0, going: true });
    let [value, seen] = [readout.textContent, pictures[picture]()];
    const watch = () => {
      const [newValue, newPicture] = [readout.textContent, pictures[picture]()];
      if (newValue !== value) {
        [value, drag.values, drag.valueAt, drag.behind] = [newValue, drag.values + 1, performance.now(), 0];
      }
      if (newPicture !== undefined && newPicture !== seen) {
        [seen, drag.pictures, drag.pictureAt] = [newPicture, drag.pictures + 1, performance.now()];
        drag.behind += 1;
      }
      if (drag.going) requestAnimationFrame(watch);
    };
    watch();
  },

  // The counts, when no new picture has come for two seconds.
  async dropped() {
    const drag = bench.dragging;
    const end = performance.now();
    while (performance.now() - Math.max(end, drag.pictureAt) < 2000) await frame();
    drag.going = false;
    const { values, pictures, behind } = drag;
    return { values, pictures, behind, behind_ms: drag.pictureAt - drag.valueAt };
  },

  pixels: () => document.querySelector(".labkit-timeline canvas").toDataURL(),

  watchFrames() {
    bench.gaps = [];
    let last = performance.now();
    const next = () => {
      const now = performance.now();
      bench.gaps.push(now - last);
      last = now;
      bench.watching = requestAnimationFrame(next);
    };
    bench.watching = requestAnimationFrame(next);
  },

  framesSeen() {
    cancelAnimationFrame(bench.watching);
    return bench.gaps.slice(1);
  },

  // When the cell began to run, and when its picture was first there.
  firsts: {},
};

new MutationObserver(() => {
  for (const [name, selector] of [["began", "#began"], ["drawn", ".labkit-timeline[data-drawn]"]]) {
    if (!(name in bench.firsts) && document.querySelector(selector)) bench.firsts[name] = performance.now();
  }
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-drawn"] });
