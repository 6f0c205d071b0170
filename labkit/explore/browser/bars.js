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
      for (let k = firstEndingAfter(row.reach, x0); k < row.order.length; k++) {
        const i = row.order[k];
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
    let found = -1;
    for (const row of this.rows) {
      if (y < row.top || y > row.top + row.height) continue;
      for (let k = firstEndingAfter(row.reach, x - slack); k < row.order.length; k++) {
        const i = row.order[k];
        if (this.left[i] > x + slack) break;
        if (this.right[i] < x - slack || !this.isThere(i, step)) continue;
        if (found < 0 || distance(this, i, x) <= distance(this, found, x)) found = i;
      }
    }
    return found;
  }

  // Return the bar that an arrow key goes to from bar i: "left" and "right" in its row, "up" and
  // "down" to the one closest in time in the next row. Bar i itself at an edge.
  next(i, direction, step) {
    const here = this.rows.findIndex((row) => row.top === this.top[i]);
    if (direction === "left" || direction === "right") {
      const bars = this.seen(this.rows[here], step);
      return bars[bars.indexOf(i) + (direction === "right" ? 1 : -1)] ?? i;
    }
    const middle = (this.left[i] + this.right[i]) / 2;
    const beyond = direction === "down" ? this.rows.slice(here + 1) : this.rows.slice(0, here).reverse();
    const [bars = [i]] = beyond.map((row) => this.seen(row, step)).filter((each) => each.length);
    return bars.reduce((a, b) => (distance(this, b, middle) < distance(this, a, middle) ? b : a));
  }

  // Return the first bar of the first row that has one at this step, or the last of the last.
  edge(last, step) {
    return this.rows.flatMap((row) => this.seen(row, step)).at(last ? -1 : 0) ?? -1;
  }

  // The bars of a row at this step, from left to right.
  seen(row, step) {
    return row.order.filter((i) => this.isThere(i, step));
  }
}

function distance(bars, i, x) {
  return Math.max(0, bars.left[i] - x, x - bars.right[i]);
}

// Rows from the top down; in each its bars by their left end, and how far right any so far reaches.
function rowsOf(bars) {
  return [...grouped(bars.top)].sort(([a], [b]) => a - b).map(([top, order]) => {
    order.sort((a, b) => bars.left[a] - bars.left[b]);
    let furthest = -Infinity;
    const reach = order.map((i) => (furthest = Math.max(furthest, bars.right[i])));
    const height = order.reduce((most, i) => Math.max(most, bars.height[i]), 0);
    return { top, height, order, reach };
  });
}

// Return the first position from which on `reach`, which never falls, is at least x.
function firstEndingAfter(reach, x) {
  let low = 0;
  let high = reach.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (reach[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Return for each bar those that need it, from `needs`: the bar that each one needs, or -1.
export function waiters(needs) {
  const waiting = grouped(needs);
  waiting.delete(-1);
  return waiting;
}

// Return the positions of each value.
function grouped(values) {
  const positions = new Map();
  values.forEach((value, i) => {
    if (positions.has(value)) positions.get(value).push(i);
    else positions.set(value, [i]);
  });
  return positions;
}
