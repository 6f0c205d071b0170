// Light or dark, and the colours around the bars: those of labkit.draw.palette.THEMES, by way of the
// style sheet. The bars bring their own, for either.

const NAMES = ["ground", "ink", "muted", "focus", "idle", "kept", "alarm"];

export function coloursOf(root) {
  const style = getComputedStyle(root);
  const colours = NAMES.map((name) => [name, style.getPropertyValue(`--lk-${name}`).trim()]);
  return { name: root.dataset.theme, ...Object.fromEntries(colours) };
}

// Return "light" or "dark": JupyterLab says which on its body; elsewhere it is the reader's choice.
export function themeNow() {
  const lab = document.body.dataset.jpThemeLight;
  if (lab !== undefined) return lab === "false" ? "dark" : "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// Call back whenever the theme changes. Returns a function that ends it.
export function onThemeChange(callback) {
  const observer = new MutationObserver(callback);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", callback);
  return () => {
    observer.disconnect();
    query.removeEventListener("change", callback);
  };
}
