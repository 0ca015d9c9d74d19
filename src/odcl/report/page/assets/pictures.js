// The map and the gains: points on a canvas above the static picture, what is selected above that.

const BOX = { width: 400, height: 316, left: 54, right: 392, top: 12, bottom: 268 };
const STRIP = { left: 112, right: 384 }; // of the groups' coefficients
const NEAR = 16; // pixels within which a point answers
const sprites = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { sprites.clear(); changed("theme"); });

const colourOf = (group) =>
  getComputedStyle(root).getPropertyValue(`--g${group < 0 ? COLOURS - 1 : group % COLOURS}`).trim();

/** The sign of a group as a small picture, drawn once. */
function sprite(group, scale) {
  const key = `${group < 0 ? -1 : group % (COLOURS * SHAPES)} ${scale}`;
  if (!sprites.has(key)) {
    const size = Math.ceil(12 * scale);
    const canvas = make("canvas", { width: size, height: size });
    const pen = canvas.getContext("2d");
    pen.translate(size / 2, size / 2);
    pen.scale(scale, scale);
    const path = new Path2D(byId(`s${group < 0 ? 0 : group % SHAPES}`).getAttribute("d"));
    pen.fillStyle = pen.strokeStyle = colourOf(group);
    if (group < 0) pen.stroke(path); else pen.fill(path);
    sprites.set(key, canvas);
  }
  return sprites.get(key);
}

/** A picture whose points are users; `place` gives their places, `extra` what a selection adds. */
class Scatter {
  constructor(name, place, order, describe, extra) {
    this.plot = byId(name);
    this.place = place;
    this.order = order; // users along the horizontal axis: arrow keys follow it
    this.describe = describe;
    this.extra = extra;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.over = draw("svg", { class: "over", viewBox: `0 0 ${BOX.width} ${BOX.height}`, "aria-hidden": "true" });
    this.tip = make("div", { class: "tip", hidden: "" });
    const names = Array.from(this.plot.querySelectorAll(".above")); // what points must not cover
    const above = draw("svg", { class: "over", viewBox: `0 0 ${BOX.width} ${BOX.height}`, "aria-hidden": "true" }, ...names);
    this.plot.append(this.canvas, above, this.over, this.tip);
    this.plot.classList.add("live");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "group");
    this.plot.setAttribute("aria-roledescription", "picture of users");
    this.plot.setAttribute("aria-label", `${byId(`${name}-svg`).getAttribute("aria-label")} Arrow keys go from user to user.`);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => { const i = this.nearest(event); if (i >= 0) select(i); });
    this.plot.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.paint()).observe(this.plot);
    watchers.push((what) => (what === "user" ? this.pick() : this.paint()));
  }

  paint() {
    const scale = this.plot.clientWidth / BOX.width;
    if (!scale) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(BOX.width * scale * ratio);
    this.canvas.height = Math.round(BOX.height * scale * ratio);
    const pen = this.canvas.getContext("2d");
    const { x, y } = this.place();
    this.index(x, y);
    if (this.background) this.background(pen, scale * ratio);
    else this.points(pen, scale * ratio, x, y);
    this.pick();
  }

  points(pen, scale, x, y) {
    const dense = count > 3000 ? 0.6 : 1; // many points are drawn smaller
    const order = this.order(), signs = [];
    for (const shown of [false, true]) { // the hidden first, faint
      pen.globalAlpha = shown ? 0.8 : 0.07;
      for (const i of order) {
        if (isShown(i) !== shown || Number.isNaN(x[i])) continue;
        const group = state.labels[i];
        const sign = signs[group + 1] ||= sprite(group, scale * dense);
        pen.drawImage(sign, x[i] * scale - sign.width / 2, y[i] * scale - sign.height / 2);
      }
    }
    pen.globalAlpha = 1;
  }

  index(x, y) {
    this.x = x; this.y = y;
    this.cells = new Map();
    for (let i = 0; i < count; i += 1) {
      if (Number.isNaN(x[i]) || !isShown(i)) continue;
      const key = 1000 * Math.floor(x[i] / NEAR) + Math.floor(y[i] / NEAR);
      const cell = this.cells.get(key);
      if (cell) cell.push(i); else this.cells.set(key, [i]);
    }
  }

  nearest(event) {
    const scale = BOX.width / this.plot.clientWidth;
    const x = event.offsetX * scale, y = event.offsetY * scale;
    const cx = Math.floor(x / NEAR), cy = Math.floor(y / NEAR);
    let best = -1, least = NEAR ** 2;
    for (let dx = -1; dx <= 1; dx += 1) for (let dy = -1; dy <= 1; dy += 1) {
      for (const i of this.cells.get(1000 * (cx + dx) + cy + dy) || []) {
        const square = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
        if (square < least) { least = square; best = i; }
      }
    }
    return best;
  }

  hover(event) {
    const i = this.nearest(event);
    this.canvas.style.cursor = i < 0 ? "default" : "pointer";
    this.tip.hidden = i < 0;
    if (i < 0) return;
    this.tip.textContent = this.describe(i);
    const scale = this.plot.clientWidth / BOX.width;
    const left = Math.min(this.x[i] * scale + 10, this.plot.clientWidth - this.tip.offsetWidth);
    this.tip.style.left = `${Math.max(left, 0)}px`;
    this.tip.style.top = `${Math.max(this.y[i] * scale - 30, 0)}px`;
  }

  step(event) {
    const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Enter" && state.user >= 0) { byId("user-title").focus(); return; }
    if (!way) return;
    event.preventDefault();
    const order = Array.from(this.order()).filter((i) => isShown(i) && !Number.isNaN(this.x[i]));
    if (!order.length) return;
    const at = order.indexOf(state.user);
    const next = at < 0 ? (way > 0 ? 0 : order.length - 1) : Math.min(Math.max(at + way, 0), order.length - 1);
    select(order[next]);
  }

  /** The selected user: a ring, its name, and what this picture knows of it. */
  pick() {
    this.over.replaceChildren();
    const i = state.user;
    if (i < 0 || !this.x) return;
    const { x, y, beyond } = this.whereabouts(i);
    if (Number.isNaN(x)) return;
    if (this.extra) this.over.append(...this.extra(i));
    this.over.append(draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 7, class: "picked" }));
    const end = x > BOX.width / 2;
    const label = beyond ? `${ids[i]} (beyond the frame)` : ids[i];
    const text = draw("text", { x: (x + (end ? -11 : 11)).toFixed(1), y: Math.max(y - 9, BOX.top + 8).toFixed(1), class: `picked-name${end ? " end" : ""}` }, label.length > 40 ? `${label.slice(0, 39)}…` : label);
    this.over.append(text);
  }

  whereabouts(i) { return { x: this.x[i], y: this.y[i], beyond: false }; }
}

const inX = (value, low, high) => BOX.left + ((value - low) / (high - low)) * (BOX.right - BOX.left);
const inY = (value, low, high) => BOX.bottom - ((value - low) / (high - low)) * (BOX.bottom - BOX.top);

function startMap() {
  const [x0, x1, y0, y1] = facts.map.frame;
  const xy = numbers(facts.map.xy), cov = numbers(facts.map.cov);
  const x = new Float32Array(count), y = new Float32Array(count);
  for (let i = 0; i < count; i += 1) {
    const inside = xy[2 * i] >= x0 && xy[2 * i] <= x1 && xy[2 * i + 1] >= y0 && xy[2 * i + 1] <= y1;
    x[i] = inside ? inX(xy[2 * i], x0, x1) : NaN;
    y[i] = inside ? inY(xy[2 * i + 1], y0, y1) : NaN;
  }
  const order = Array.from(ids.keys()).sort((a, b) => xy[2 * a] - xy[2 * b]);
  const describe = (i) => {
    const sure = Number.isFinite(users.sure[i]) ? `, ${percent(users.sure[i])} sure` : "";
    if (!grouped && state.option === null) return ids[i];
    return `${ids[i]}: ${groupName(state.labels[i])}${state.option === null ? sure : ""}`;
  };
  // 95 % of where the user's model may be: the axes of its covariance, 2.45 standard deviations.
  const ellipse = (i) => {
    if (!cov || !Number.isFinite(cov[3 * i])) return [];
    const sx = (BOX.right - BOX.left) / (x1 - x0), sy = (BOX.bottom - BOX.top) / (y1 - y0);
    const a = cov[3 * i] * sx * sx, b = cov[3 * i + 1] * sy * sy, c = -cov[3 * i + 2] * sx * sy;
    const middle = (a + b) / 2, apart = Math.hypot((a - b) / 2, c);
    const turn = (Math.atan2(2 * c, a - b) / 2) * (180 / Math.PI);
    const rx = 2.4477 * Math.sqrt(middle + apart), ry = 2.4477 * Math.sqrt(Math.max(middle - apart, 0));
    const { x: cx, y: cy } = map.whereabouts(i);
    const frame = { x: BOX.left, y: BOX.top, width: BOX.right - BOX.left, height: BOX.bottom - BOX.top };
    const inside = `${frame.x} ${frame.y} ${frame.width} ${frame.height}`;
    return [draw("svg", { ...frame, viewBox: inside, class: "clip" }, draw("ellipse", { rx: rx.toFixed(1), ry: ry.toFixed(1), class: "ellipse", transform: `translate(${cx.toFixed(1)} ${cy.toFixed(1)}) rotate(${turn.toFixed(2)})` }))];
  };
  const map = new Scatter("map", () => ({ x, y }), () => order, describe, ellipse);
  map.whereabouts = (i) => {
    const px = inX(Math.min(Math.max(xy[2 * i], x0), x1), x0, x1);
    const py = inY(Math.min(Math.max(xy[2 * i + 1], y0), y1), y0, y1);
    return { x: px, y: py, beyond: Number.isNaN(x[i]) };
  };
  if (facts.map.density) map.background = density(x, y);
  map.paint();
}

/** Too many users for points: cells, the fuller the darker, in the colour of most users there. */
function density(x, y) {
  const counts = numbers(facts.map.density.counts, Int32Array), nx = facts.map.density.nx;
  const ny = counts.length / nx, most = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 1));
  const wide = (BOX.right - BOX.left) / nx, high = (BOX.bottom - BOX.top) / ny;
  return (pen, scale) => {
    const votes = new Map();
    for (let i = 0; i < count; i += 1) {
      if (Number.isNaN(x[i]) || state.labels[i] < 0) continue;
      const cell = Math.min(Math.floor((BOX.bottom - y[i]) / high), ny - 1) * nx + Math.min(Math.floor((x[i] - BOX.left) / wide), nx - 1);
      if (!votes.has(cell)) votes.set(cell, new Map());
      const here = votes.get(cell);
      here.set(state.labels[i], (here.get(state.labels[i]) || 0) + 1);
    }
    for (let cell = 0; cell < counts.length; cell += 1) {
      if (!counts[cell]) continue;
      let group = -1, best = 0;
      for (const [label, n] of votes.get(cell) || []) if (n > best) { best = n; group = label; }
      const faint = state.hidden.has(group) ? 0.12 : 1;
      pen.globalAlpha = faint * (0.15 + 0.85 * Math.log1p(counts[cell]) / most);
      pen.fillStyle = colourOf(group);
      const row = Math.floor(cell / nx), column = cell % nx;
      pen.fillRect((BOX.left + column * wide) * scale, (BOX.bottom - (row + 1) * high) * scale, wide * scale + 0.5, high * scale + 0.5);
    }
    pen.globalAlpha = 1;
  };
}

function startGain() {
  if (!gains) return;
  const data = byId("gain-svg").dataset, low = Number(data.y0), high = Number(data.y1);
  const order = Array.from(ids.keys()).filter((i) => Number.isFinite(gainOf(i))).sort((a, b) => gainOf(a) - gainOf(b) || a - b);
  const x = new Float32Array(count).fill(NaN), y = new Float32Array(count).fill(NaN);
  order.forEach((i, rank) => {
    x[i] = inX(rank, -0.5, order.length - 0.5);
    y[i] = inY(Math.min(Math.max(gainOf(i), low), high), low, high);
  });
  const describe = (i) =>
    `${ids[i]}: ${format(gains.own[i])} alone, ${format(gains.ours[i])} with odcl`;
  new Scatter("gain", () => ({ x, y }), () => order, describe, null).paint();
}

/** What a selected user adds to a picture that is there without a script. */
function overlay(name, shapes) {
  const svg = byId(`${name}-svg`);
  const over = draw("svg", { class: "over", viewBox: svg.getAttribute("viewBox"), "aria-hidden": "true" });
  byId(name).append(over);
  watchers.push((what) => {
    if (what === "user") over.replaceChildren(...(state.user < 0 ? [] : shapes(state.user, svg)));
  });
}

/** The selected user among the groups' coefficients: its model, and its own rows alone. */
function startCoefficients() {
  overlay("coef", (i, svg) => Array.from(svg.querySelectorAll(".strip"), (strip) => {
    const { j, low, high, top, base } = Object.fromEntries(Object.entries(strip.dataset).map(([k, v]) => [k, Number(v)]));
    const value = Math.min(Math.max(models.user[i * width + j], low), high);
    const x = (STRIP.left + ((value - low) / (high - low)) * (STRIP.right - STRIP.left)).toFixed(1);
    return draw("line", { x1: x, x2: x, y1: top - 1, y2: base + 1, class: "rule" });
  }));
}

/** The selected user's own curve of each column that acts in one. */
function startCurves() {
  facts.curves.forEach((curve, at) => {
    const x = numbers(curve.x), rows = numbers(curve.rows), own = numbers(curve.own), size = rows.length / x.length;
    overlay(`curve${at}`, (i, svg) => {
      const low = Number(svg.dataset.y0), high = Number(svg.dataset.y1);
      const places = Array.from(x, (value, p) => {
        let sum = 0;
        for (let b = 0; b < size; b += 1) sum += rows[p * size + b] * own[i * size + b];
        return `${inX(value, x[0], x[x.length - 1]).toFixed(1)},${inY(Math.min(Math.max(sum, low), high), low, high).toFixed(1)}`;
      });
      return [draw("path", { d: `M${places.join("L")}`, class: "picked" })];
    });
  });
}
