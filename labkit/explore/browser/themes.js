// Colours around the bars, light and dark. Those of the bars come from labkit.draw.palette.

export const THEMES = {
  light: { ink: "#1f2328", muted: "#57606a", idle: "#ececec", kept: "#9aa5b1", alarm: "#b42318", ground: "#ffffff", focus: "#0a58ca" },
  dark: { ink: "#f0f3f6", muted: "#b3bcc6", idle: "#2b3036", kept: "#6e7781", alarm: "#ff8a7a", ground: "#111111", focus: "#79b8ff" },
};

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
