// The hatchings of labkit.draw.palette, as matplotlib names them, as patterns of a canvas.

const CELL = 7; // px between two lines of a hatching

// Each hatching in a cell of size 1. What runs out of the cell comes in again on the other side.
const PATHS = {
  "/": "M0 1 1 0M-.5 .5 .5 -.5M.5 1.5 1.5 .5",
  "\\": "M0 0 1 1M-.5 .5 .5 1.5M.5 -.5 1.5 .5",
  "-": "M0 .5H1",
  "|": "M.5 0V1",
  "x": "M0 0 1 1M0 1 1 0",
  "+": "M0 .5H1M.5 0V1",
  ".": "M.63 .5a.13 .13 0 1 1 -.26 0a.13 .13 0 1 1 .26 0",
  "o": "M.76 .5a.26 .26 0 1 1 -.52 0a.26 .26 0 1 1 .52 0",
};

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
  const tile = new OffscreenCanvas(size, size);
  const pen = tile.getContext("2d");
  pen.strokeStyle = pen.fillStyle = colour;
  pen.scale(size, size);
  pen.lineWidth = Math.max(1, ratio * 0.9) / size;
  pen[sign === "." ? "fill" : "stroke"](new Path2D(PATHS[sign]));
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
