// Where things stand in the picture, in pixels: panels, rows, the axis. Pure.

const ROW = 26; // a row's height if there is room
const MIN_ROW = 5;
const MAX_ROWS = 600; // height of all rows together
const MAX_GROWTH = 1.8; // of a row where the picture has a screen for itself
const GRID_ROW = 34;
const TITLE = 24;
export const TITLE_LOOK = { size: 13, weight: "600" };
const COLUMN = 20;
const GAP = 10; // between panels
const AXIS = 40;
export const LINE = 15; // from a line of text to the next
const BESIDE = 16; // between a title and the facts beside it
const NAME = { size: 11 }; // how a column's name is written, if there is room
const MIN_SIZE = 7;
const NO_BREAK = "\u00a0"; // a space at which a line ends only if it has to

// Return the place of every panel of a scene, and of the axis, in a picture so wide, whose rows fill the `room`
// from top to bottom, if that is given. widthOf(text, look) is that of a text, as Painter has it.
export function layOut(scene, width, widthOf, room = null) {
  const widest = (labels, size = 12) => Math.max(0, ...labels.map(([, text]) => widthOf(text, { size })));
  const labels = scene.panels.flatMap((panel) => panel.rows);
  const gutter = 16 + widest(labels.filter(([, , small]) => !small)) + widest(labels.filter(([, , small]) => small));
  const right = 14 + widest(scene.panels.flatMap((panel) => panel.peaks));
  const isGrid = !scene.axis;
  const rows = scene.panels.reduce((sum, panel) => sum + panel.height, 0);
  const plot = Math.max(60, width - gutter - right);
  const usual = Math.max(MIN_ROW, Math.min(isGrid ? GRID_ROW : ROW, MAX_ROWS / Math.max(1, rows)));
  const place = (row) => placePanels(scene, { width, gutter, plot, row }, widthOf);
  const layout = place(usual);
  const filling = usual + ((room ?? layout.height) - layout.height) / Math.max(1, rows);
  return room === null ? layout : place(Math.max(MIN_ROW, Math.min(MAX_GROWTH * usual, filling)));
}

function placePanels(scene, { width, gutter, plot, row }, widthOf) {
  let y = 0;
  const panels = scene.panels.map((panel) => {
    const top = y;
    y += panel.title || panel.facts ? TITLE : 6;
    const titleLines = wrap(panel.title, width - 8, (line) => widthOf(line, TITLE_LOOK));
    const facts = placeFacts(panel, titleLines, plot, widthOf);
    y += LINE * (facts.lines.length - 1);
    const names = nameColumns(panel.columns, plot / (scene.extent[1] - scene.extent[0]), widthOf);
    y += panel.columns.length ? COLUMN + LINE * (names.most - 1) : 0;
    const rowsTop = y;
    y += panel.height * row;
    const bottom = y;
    y += GAP;
    return { top, rowsTop, bottom, titleLines, facts, names };
  });
  return { width, gutter, plot, row, panels, axisTop: y - GAP + 2, height: y - GAP + (scene.axis ? AXIS : 8) };
}

// Return the facts in lines, and where they begin: at the right of the title, or below its lines.
function placeFacts({ title, facts }, titleLines, plot, widthOf) {
  const left = plot - widthOf(facts);
  if (facts && widthOf(title, TITLE_LOOK) + BESIDE <= left) return { lines: [facts], left };
  return { lines: [...titleLines.map(() => ""), ...(facts ? wrap(facts, plot, widthOf) : [])], left: 0 };
}

// Return the names of columns in lines, in letters so small that neighbours stay apart.
function nameColumns(columns, unit, widthOf) {
  const apart = Math.min(...columns.slice(1).map(([at], k) => at - columns[k][0])) * unit - 4;
  const linesOf = (text) => wrap(text, apart, (line) => widthOf(line, NAME));
  const widestOf = (all) => Math.max(...all.flatMap(([, lines]) => lines.map((line) => widthOf(line, NAME))));
  let texts = columns.map(([at, text]) => [at, linesOf(text)]);
  if (widestOf(texts) > apart) texts = columns.map(([at, text]) => [at, linesOf(text.replaceAll(NO_BREAK, " "))]);
  const widest = widestOf(texts);
  const size = Math.max(MIN_SIZE, NAME.size * Math.min(1, apart / widest));
  return { texts, size, most: Math.max(...texts.map(([, lines]) => lines.length)) };
}

// Return a text in lines at most so wide, if no word is wider.
function wrap(text, width, widthOf) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && widthOf(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

// Return {panel, x, row} of a point of the picture, x in pixels of the plot; null outside of panels.
export function placeOf(layout, pixelX, pixelY) {
  const panel = layout.panels.findIndex(({ rowsTop, bottom }) => pixelY >= rowsTop && pixelY <= bottom);
  if (panel < 0 || pixelX < layout.gutter - 4 || pixelX > layout.gutter + layout.plot + 4) return null;
  return { panel, x: pixelX - layout.gutter, row: (pixelY - layout.panels[panel].rowsTop) / layout.row };
}
