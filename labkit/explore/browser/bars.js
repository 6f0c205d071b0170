// The bars of a panel, and how to find them: in sight, under the pointer, next to one another. Pure.

export class Bars {
  // columns: typed arrays of one length (left, right, top, height, style, chunk, and perhaps appear,
  // vanish, ghost), labels: a list of strings.
  constructor(columns, labels) {
    Object.assign(this, columns);
    this.labels = labels;
    this.count = this.left.length;
    this.rows = rowsOf(this);
  }

  // Is bar i there at this step? Only the bars of a grid come and go.
  isThere(i, step) {
    return !this.appear || (this.appear[i] <= step && step < this.vanish[i]);
  }

  // Call draw(i) for the bars between x0 and x1, row by row. Of bars narrower than `least` one is
  // drawn for each `least`: the others would only cover it.
  eachInSight(x0, x1, least, draw) {
    for (const row of this.rows) {
      let drawnUntil = -Infinity;
      for (const i of row.order) {
        if (this.right[i] < x0) continue;
        if (this.left[i] > x1) break;
        if (this.right[i] - this.left[i] < least) {
          if (this.right[i] < drawnUntil) continue;
          drawnUntil = this.left[i] + least;
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
  // itself at an edge. Spots that are no bars are passed over if they are narrower than `least`.
  next(i, direction, step, least = 0) {
    const isMet = (k) => k === i || !this.asked || this.asked[k][0] === "bar" || this.right[k] - this.left[k] >= least;
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

  // Return the first bar of the first row that has one at this step, or the last of the last.
  edge(last, step) {
    return this.rows.flatMap((row) => this.seen(row, step)).at(last ? -1 : 0) ?? -1;
  }

  // The bars of a row at this step, from left to right.
  seen(row, step) {
    return row.order.filter((i) => this.isThere(i, step));
  }

  // How far x is from bar i: 0 within it.
  distance(i, x) {
    return Math.max(0, this.left[i] - x, x - this.right[i]);
  }
}

// Rows from the top down; in each its bars by their left end.
function rowsOf(bars) {
  return [...grouped(bars.top)].sort(([a], [b]) => a - b).map(([top, order]) => {
    order.sort((a, b) => bars.left[a] - bars.left[b]);
    const height = order.reduce((most, i) => Math.max(most, bars.height[i]), 0);
    return { top, height, order };
  });
}

// Return all that can be pointed at in a panel, as bars: the bars with their numbers, then gaps between
// them and pieces of memory strips, as far as Python explains them. asked[i] is what it is asked: [kind, index].
export function spotsOf({ bars, strips, explains = "" }) {
  if (!explains) return bars;
  const spots = Array.from(bars.left, (left, i) => ({ left, right: bars.right[i], top: bars.top[i], height: bars.height[i], asked: ["bar", i] }));
  if (explains.includes("idle")) spots.push(...gapsOf(bars));
  if (explains.includes("kept")) spots.push(...piecesOf(strips));
  const columns = ["left", "right", "top", "height", "asked"].map((name) => [name, spots.map((spot) => spot[name])]);
  return new Bars(Object.fromEntries(columns), bars.labels);
}

// A gap has the number of the bar after it; behind the last bar of a row it has that bar's, counted on.
function* gapsOf(bars) {
  const first = bars.left.reduce((a, b) => Math.min(a, b));
  const last = bars.right.reduce((a, b) => Math.max(a, b));
  const least = 2e-9 * (last - first); // what lies side by side may differ by rounding
  for (const { top, height, order } of bars.rows) {
    let free = first;
    for (const i of order) {
      if (bars.left[i] - free > least) yield { left: free, right: bars.left[i], top, height, asked: ["idle", i] };
      free = Math.max(free, bars.right[i]);
    }
    if (last - free > least) yield { left: free, right: last, top, height, asked: ["idle", bars.count + order.at(-1)] };
  }
}

function* piecesOf({ left, right, top, bottom }) {
  for (let i = 0; i < left.length; i++) {
    if (right[i] > left[i]) yield { left: left[i], right: right[i], top: top[i], height: bottom[i] - top[i], asked: ["kept", i] };
  }
}

// Return for each bar those that need it, from `needs`: the bar that each one needs, or -1.
export function waiters(needs) {
  const waiting = grouped(needs);
  waiting.delete(-1);
  return waiting;
}

// Return the positions of each value.
export function grouped(values) {
  const positions = new Map();
  values.forEach((value, i) => {
    if (positions.has(value)) positions.get(value).push(i);
    else positions.set(value, [i]);
  });
  return positions;
}
