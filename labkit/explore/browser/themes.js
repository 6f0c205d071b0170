// The colours around the bars: those of labkit.draw.palette.THEMES, by way of the
// style sheet. The bars bring their own, for either.

const NAMES = ["ground", "ink", "muted", "focus", "idle", "kept", "alarm"];

export function coloursOf(root) {
  const style = getComputedStyle(root);
  const colours = NAMES.map((name) => [name, style.getPropertyValue(`--lk-${name}`).trim()]);
  return { name: root.dataset.theme, ...Object.fromEntries(colours) };
}

// Return the colours of the light theme, whatever the page's is: what is printed or kept is light.
export function lightColoursOf(root) {
  const { theme } = root.dataset;
  root.dataset.theme = "light";
  const colours = coloursOf(root);
  root.dataset.theme = theme;
  return colours;
}
