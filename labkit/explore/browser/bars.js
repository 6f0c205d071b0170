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

  isGhost(i) {
    return Boolean(this.ghost && this.ghost[i]);
  }

  // Is bar i there at this step? Only the bars of a grid come and go.
  isThere(i, step) {
    return !this.appear || (this.appear[i] <= step && step < this.vanish[i]);
  }

  // Call draw(i) for the bars between x0 and x1 and the rows between y0 and y1, row by row. Of bars
  // narrower than `least` one is drawn for each `least`: the others would only cover it.
  eachInSight(x0, x1, y0, y1, least, draw) {
    for (const row of this.rows) {
      if (row.top + row.height < y0 || row.top > y1) continue;
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
      const order = this.rows[here].order.filter((j) => this.isThere(j, step));
      return order[order.indexOf(i) + (direction === "right" ? 1 : -1)] ?? i;
    }
    const down = direction === "down" ? 1 : -1;
    const middle = (this.left[i] + this.right[i]) / 2;
    for (let k = here + down; k >= 0 && k < this.rows.length; k += down) {
      const order = this.rows[k].order.filter((j) => this.isThere(j, step));
      if (order.length) return order.reduce((a, b) => (distance(this, b, middle) < distance(this, a, middle) ? b : a));
    }
    return i;
  }

  // Return the first bar of the first row that has one at this step, or the last of the last.
  edge(last, step) {
    const rows = last ? [...this.rows].reverse() : this.rows;
    for (const row of rows) {
      const order = row.order.filter((j) => this.isThere(j, step));
      if (order.length) return order[last ? order.length - 1 : 0];
    }
    return -1;
  }
}

function distance(bars, i, x) {
  return Math.max(0, bars.left[i] - x, x - bars.right[i]);
}

// Rows from the top down; in each its bars by their left end, and how far right any so far reaches.
function rowsOf(bars) {
  const byTop = new Map();
  for (let i = 0; i < bars.count; i++) {
    if (!byTop.has(bars.top[i])) byTop.set(bars.top[i], []);
    byTop.get(bars.top[i]).push(i);
  }
  return [...byTop.entries()]
    .sort((a, b) => a[0] - b[0])
    .map(([top, order]) => {
      order.sort((a, b) => bars.left[a] - bars.left[b]);
      const reach = new Float64Array(order.length);
      let height = 0;
      order.forEach((i, k) => {
        reach[k] = Math.max(k ? reach[k - 1] : -Infinity, bars.right[i]);
        height = Math.max(height, bars.height[i]);
      });
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
  const waiting = new Map();
  needs.forEach((needed, i) => {
    if (needed < 0) return;
    if (!waiting.has(needed)) waiting.set(needed, []);
    waiting.get(needed).push(i);
  });
  return waiting;
}
