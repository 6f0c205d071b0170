// The hatchings of labkit.draw.palette, as matplotlib names them, as patterns of a canvas.

const CELL = 7; // px between two lines of a hatching

// Lines of each hatching in a cell of size 1: [x0, y0, x1, y1]. What runs out of the cell comes in
// again on the other side.
const LINES = {
  "/": [[0, 1, 1, 0], [-0.5, 0.5, 0.5, -0.5], [0.5, 1.5, 1.5, 0.5]],
  "\\": [[0, 0, 1, 1], [-0.5, 0.5, 0.5, 1.5], [0.5, -0.5, 1.5, 0.5]],
  "-": [[0, 0.5, 1, 0.5]],
  "|": [[0.5, 0, 0.5, 1]],
  "x": [[0, 0, 1, 1], [0, 1, 1, 0]],
  "+": [[0, 0.5, 1, 0.5], [0.5, 0, 0.5, 1]],
};
const DOTS = { ".": 0.13, "o": 0.26 }; // radius, in cells

// Return a function (hatch, colour) -> pattern for this context, null where there is no hatching.
export function hatchings(context, ratio) {
  const made = new Map();
  return (hatch, colour) => {
    if (!hatch) return null;
    const key = `${hatch} ${colour}`;
    if (!made.has(key)) made.set(key, makePattern(context, hatch[0], colour, ratio));
    return made.get(key);
  };
}

function makePattern(context, sign, colour, ratio) {
  const size = Math.round(CELL * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = Math.max(1, ratio * 0.9);
  for (const [x0, y0, x1, y1] of LINES[sign] ?? []) {
    pen.beginPath();
    pen.moveTo(x0 * size, y0 * size);
    pen.lineTo(x1 * size, y1 * size);
    pen.stroke();
  }
  if (sign in DOTS) {
    pen.beginPath();
    pen.arc(size / 2, size / 2, DOTS[sign] * size, 0, 2 * Math.PI);
    if (sign === "o") pen.stroke();
    else pen.fill();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
