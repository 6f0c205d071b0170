// Give the sliders of ipywidgets the name that stands beside them. Their handles, which take the
// keyboard's focus, have none: a screen reader would say "slider, 8".

export function nameSliders(page) {
  for (const slider of page.querySelectorAll(".widget-slider")) {
    const name = slider.querySelector(".widget-label")?.textContent ?? "";
    for (const handle of slider.querySelectorAll(".noUi-handle")) {
      if (handle.getAttribute("aria-label") !== name) handle.setAttribute("aria-label", name);
    }
  }
}
