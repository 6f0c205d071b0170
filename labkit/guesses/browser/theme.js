// Light or dark: what the program says that shows the page, or else the reader's system.

// Return "light" or "dark". JupyterLab and VS Code say it on the body, Colab on the whole page.
export function themeNow() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false" ? "dark" : "light";
  const name = vscodeThemeKind ?? document.documentElement.getAttribute("theme");
  if (name) return /dark|high-contrast$/.test(name) ? "dark" : "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// Call back whenever the theme changes. Returns a function that ends it.
export function onThemeChange(callback) {
  const observer = new MutationObserver(callback);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["theme"] });
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", callback);
  return () => {
    observer.disconnect();
    query.removeEventListener("change", callback);
  };
}
