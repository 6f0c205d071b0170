// The bars of a panel, and how to find them: in sight, under the pointer, next to one another. Pure.

export class Bars {
  // columns: typed arrays of one length (left, right, top, height, style, chunk, and perhaps appear,
  // vanish, ghost), labels: a list of strings. Where they are of several tables, `offsets` has the first bar of each.
  constructor(columns, labels, offsets = [0]) {
    Object.assign(this, columns);
    this.labels = labels;
    this.count = this.left.length;
    this.rows = rowsOf(this, offsets);
  }

  // Is bar i there at this step? Only the bars of a grid come and go.
  isVisible(i, step) {
    return !this.appear || (this.appear[i] <= step && step < this.vanish[i]);
  }

  // Call draw(i) for the bars between x0 and x1, row by row. Of bars narrower than `minWidth` one is
  // drawn for each `minWidth`: the others would only cover it.
  forEachVisible(x0, x1, minWidth, draw) {
    for (const row of this.rows) {
      let drawnUntil = -Infinity;
      for (const i of row.order) {
        if (this.right[i] < x0) continue;
        if (this.left[i] > x1) break;
        if (this.right[i] - this.left[i] < minWidth) {
          if (this.right[i] < drawnUntil) continue;
          drawnUntil = this.left[i] + minWidth;
        }
        draw(i);
      }
    }
  }

  // Return the bar at (x, y), -1 where there is none; `slack` widens bars that are hard to hit.
  at(x, y, slack, step) {
    const rows = this.rows.filter(({ top, height }) => top <= y && y <= top + height);
    const near = rows.flatMap((row) => this.seen(row, step)).filter((i) => this.distance(i, x) <= slack);
    return near.length ? near.reduce((a, b) => (this.distance(b, x) <= this.distance(a, x) ? b : a)) : -1;
  }

  // Return the bar that an arrow key goes to from bar i: "left" and "right" in its row, "up" and
  // "down" to the one closest in time in the next row, or in the next with one that is the same. Bar i
  // itself at an edge. Spots that are not bars are passed over if they are narrower than `minWidth`.
  next(i, direction, step, minWidth = 0) {
    const isMet = (k) => k === i || !this.what || this.what[k].kind === "bar" || this.right[k] - this.left[k] >= minWidth;
    const met = (row) => this.seen(row, step).filter(isMet);
    const here = this.rows.findIndex((row) => row.top === this.top[i]);
    if (direction === "left" || direction === "right") {
      const bars = met(this.rows[here]);
      return bars[bars.indexOf(i) + (direction === "right" ? 1 : -1)] ?? i;
    }
    const middle = (this.left[i] + this.right[i]) / 2;
    const beyond = direction === "down" ? this.rows.slice(here + 1) : this.rows.slice(0, here).reverse();
    const rows = beyond.map(met).filter((each) => each.length);
    const alike = rows.map((row) => row.filter((j) => this.same && this.same[j] === this.same[i]));
    const [bars = [i]] = [...alike.filter((each) => each.length), ...rows];
    return bars.reduce((a, b) => (this.distance(b, middle) <= this.distance(a, middle) ? b : a));
  }

  // Return the bar that is in the place of bar i at this step, -1 without one.
  inPlaceOf(i, step) {
    if (this.isVisible(i, step)) return i;
    const isHere = (j) => this.left[j] === this.left[i] && this.top[j] === this.top[i] && this.isVisible(j, step);
    return this.rows.flatMap(({ order }) => order).find(isHere) ?? -1;
  }

  // Return the first bar of the first row that has one at this step, or the last of the last.
  edge(last, step) {
    return this.rows.flatMap((row) => this.seen(row, step)).at(last ? -1 : 0) ?? -1;
  }

  // The bars of a row at this step, from left to right.
  seen(row, step) {
    return row.order.filter((i) => this.isVisible(i, step));
  }

  // How far x is from bar i: 0 within it.
  distance(i, x) {
    return Math.max(0, this.left[i] - x, x - this.right[i]);
  }
}

// Rows from the top down; in each its bars by their left end, and from where to where the bars of its table are.
function rowsOf(bars, offsets) {
  const tableOf = (bar) => offsets.findLastIndex((offset) => offset <= bar);
  const extents = offsets.map((first, k) => extentOf(bars, first, offsets[k + 1] ?? bars.count));
  return [...grouped(bars.top)].sort(([a], [b]) => a - b).map(([top, order]) => {
    order.sort((a, b) => bars.left[a] - bars.left[b]);
    const height = order.reduce((most, i) => Math.max(most, bars.height[i]), 0);
    return { top, height, order, extent: extents[tableOf(order[0])] };
  });
}

function extentOf({ left, right }, from, until) {
  let [first, last] = [Infinity, -Infinity];
  for (let i = from; i < until; i++) {
    if (left[i] < first) first = left[i];
    if (right[i] > last) last = right[i];
  }
  return [first, last];
}

// Return all that can be pointed at in a panel, as bars: its bars, with their numbers, and where it
// shows event tables also the gaps between them and the pieces of its memory strips. what[i] says which:
// {kind: "bar", bar}, {kind: "idle", bar, after, left, right}, with the bar after the gap, or else the last
// one before it, or {kind: "kept", piece}.
export function spotsOf({ bars, pieces = [], strips, tables }) {
  if (!tables) return bars;
  const spots = Array.from(bars.left, (left, bar) => spotOf(bars, bar, left, bars.right[bar], { kind: "bar", bar }));
  spots.push(...gapsOf(bars));
  pieces.forEach(({ left, right }, piece) => {
    const [top, height] = [strips.top[piece], strips.bottom[piece] - strips.top[piece]];
    spots.push({ left, right, top, height, what: { kind: "kept", piece } });
  });
  const column = (name) => Float64Array.from(spots, (spot) => spot[name]);
  const what = spots.map((spot) => spot.what);
  return new Bars({ left: column("left"), right: column("right"), top: column("top"), height: column("height"), what }, bars.labels);
}

function spotOf({ top, height }, bar, left, right, what) {
  return { left, right, top: top[bar], height: height[bar], what };
}

function* gapsOf(bars) {
  for (const { order, extent: [first, last] } of bars.rows) {
    const minWidth = 2e-9 * (last - first); // what lies side by side may differ by rounding
    let free = first;
    for (const bar of order) {
      if (bars.ghost?.[bar]) continue;
      if (bars.left[bar] - free > minWidth) yield gap(bar, free, bars.left[bar], false);
      free = Math.max(free, bars.right[bar]);
    }
    if (last - free > minWidth && !bars.ghost) yield gap(order.at(-1), free, last, true);
  }

  function gap(bar, left, right, after) {
    return spotOf(bars, bar, left, right, { kind: "idle", bar, after, left, right });
  }
}

// Return the positions of each value that is not negative.
export function grouped(values) {
  const positions = new Map();
  values.forEach((value, i) => {
    if (value < 0) return;
    if (positions.has(value)) positions.get(value).push(i);
    else positions.set(value, [i]);
  });
  return positions;
}
