// Where things stand in the picture, in pixels: panels, rows, the axis. Pure.

const ROW = 26; // a row's height if there is room
const LEAST_ROW = 5;
const MOST_ROWS = 600; // height of all rows together
const GRID_ROW = 34;
const TITLE = 24;
const COLUMN = 20;
const GAP = 10; // between panels
const AXIS = 40;
const LETTER = 6.7; // about the width of a letter

// Return the place of every panel of a scene, and of the axis, in a picture so wide.
export function layOut(scene, width) {
  const widest = (labels, least = 0) => LETTER * Math.max(least, ...labels.map(([, text]) => text.length));
  const labels = scene.panels.flatMap((panel) => panel.rows);
  const gutter = 16 + widest(labels.filter(([, , small]) => !small), 4) + 0.95 * widest(labels.filter(([, , small]) => small));
  const right = 14 + widest(scene.panels.flatMap((panel) => panel.peaks));
  const isGrid = !scene.axis;
  const rows = scene.panels.reduce((sum, panel) => sum + panel.height, 0);
  const row = Math.max(LEAST_ROW, Math.min(isGrid ? GRID_ROW : ROW, MOST_ROWS / Math.max(1, rows)));
  let y = 0;
  const panels = scene.panels.map((panel) => {
    const top = y;
    y += panel.title || panel.facts ? TITLE : 6;
    y += panel.columns.length ? COLUMN : 0;
    const rowsTop = y;
    y += panel.height * row;
    const bottom = y;
    y += GAP;
    return { top, rowsTop, bottom };
  });
  const plot = Math.max(60, width - gutter - right);
  return { width, gutter, plot, row, panels, axisTop: y - GAP + 2, height: y - GAP + (isGrid ? 8 : AXIS) };
}

// Return {panel, x, row} of a point of the picture, x in pixels of the plot; null outside of panels.
export function placeOf(layout, pixelX, pixelY) {
  const panel = layout.panels.findIndex(({ rowsTop, bottom }) => pixelY >= rowsTop && pixelY <= bottom);
  if (panel < 0 || pixelX < layout.gutter - 4 || pixelX > layout.gutter + layout.plot + 4) return null;
  return { panel, x: pixelX - layout.gutter, row: (pixelY - layout.panels[panel].rowsTop) / layout.row };
}
