// The page of one user: its group, its coefficients, its held-out rows, what more rows would change.

const CHART = { width: 460, name: 124, right: 448, row: 34 };

function startUser() {
  const title = byId("user-title"), body = byId("user-body");
  watchers.push((what) => {
    if (what !== "user") return;
    const i = state.user;
    byId("user").hidden = i < 0;
    if (i < 0) return;
    title.textContent = `One user: ${ids[i]}`;
    body.replaceChildren(...userPage(i));
  });
}

function userPage(i) {
  const rows = held ? [make("h3", {}, "Its held-out rows, predicted against seen"), ...heldOut(i)] : [];
  const left = make("div", {}, make("h3", {}, "In short"), inShort(i), make("h3", {}, "With more rows"), ...moreRows(i), ...rows);
  const image = facts.images && facts.images[i] ? [make("h3", {}, "Its columns as pixels, as for the groups below"), make("img", { class: "pixels", src: facts.images[i], alt: "Columns of this user as pixels" })] : [];
  const right = make("div", {}, ...image, make("h3", {}, `Its coefficients, between its own rows and ${grouped ? "its group" : "everybody's"}`), ...coefficients(i));
  return [make("div", { class: "two" }, left, right)];
}

function inShort(i) {
  const list = make("dl", { class: "facts" });
  const add = (name, ...value) => list.append(make("dt", {}, name), make("dd", {}, ...value));
  const group = users.group[i];
  if (grouped) add("group", swatch(group), ` ${group < 0 ? "none" : group}`);
  if (grouped && Number.isFinite(users.sure[i])) add("how surely", percent(users.sure[i]));
  add("rows", users.rows[i].toLocaleString("en-US"));
  if (gains && Number.isFinite(gainOf(i))) {
    add(`${gains.metric} alone`, format(gains.own[i]));
    add(`${gains.metric} with odcl`, format(gains.ours[i]));
    const gain = gainOf(i);
    add("gain", `${format(gain)} (${gain > 0 ? "better with odcl" : gain < 0 ? "worse with odcl" : "the same"})`);
  }
  if (!facts.anonymous) add("on anonymous pages", `user ${users.number[i]}`);
  return list;
}

/** One row per coefficient, each with its own scale: own rows, group, and the model in between. */
function coefficients(i) {
  const group = users.group[i];
  const rows = facts.names.map((name, j) => ({
    name,
    own: [models.own[i * width + j], models.ownError[i * width + j]],
    theirs: group < 0 ? [NaN, NaN] : [models.group[group * width + j], models.groupError[group * width + j]],
    mine: [models.user[i * width + j], models.userError[i * width + j]],
  }));
  const few = rows.slice(0, 10);
  const height = few.length * CHART.row + 6;
  const svg = draw("svg", { viewBox: `0 0 ${CHART.width} ${height}`, role: "img", "aria-label": "Coefficients of this user; the numbers are in the table below." });
  few.forEach((row, at) => svg.append(strip(row, at * CHART.row + 2)));
  const legend = make("p", { class: "note" }, `${rows.some((row) => Number.isFinite(row.own[0])) ? "Circle: its own rows alone. " : ""}Bar: ${grouped ? "its group" : "everybody"}. Diamond: its model.${rows.some((row) => Number.isFinite(row.mine[1])) ? " Lines are 95 % intervals." : ""}`);
  const head = make("tr", {}, ...["coefficient", "own rows alone", grouped ? "its group" : "everybody", "its model"].map((text) => make("th", { scope: "col" }, text)));
  const lines = rows.map((row) => make("tr", {}, make("td", {}, row.name), ...[row.own, row.theirs, row.mine].map(([value, error]) => make("td", {}, withError(value, error)))));
  const table = make("div", { class: "scroll" }, make("table", { id: "user-coefficients" }, make("thead", {}, head), make("tbody", {}, ...lines)));
  const left = facts.unnamed ? make("p", { class: "note" }, `These differ most; ${facts.unnamed} more are in the run.`) : null;
  return [make("div", { class: "plot" }, svg), legend, table, left].filter(Boolean);
}

function strip(row, top) {
  const part = draw("g"), middle = top + 10;
  const each = [row.theirs, row.mine].filter(([value]) => Number.isFinite(value));
  const reach = ([value, error]) => (Number.isFinite(error) ? Z95 * error : 0);
  let low = Math.min(...each.map((one) => one[0] - reach(one))), high = Math.max(...each.map((one) => one[0] + reach(one)));
  const wide = Math.max(high - low, 1e-9 * Math.abs(high), 1e-12);
  if (Number.isFinite(row.own[0])) { // as far as it does not dwarf the others
    low = Math.max(Math.min(low, row.own[0] - reach(row.own)), low - 3 * wide);
    high = Math.min(Math.max(high, row.own[0] + reach(row.own)), high + 3 * wide);
  }
  const room = 0.05 * Math.max(high - low, 1e-12);
  low -= room; high += room;
  const x = (value) => CHART.name + ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (CHART.right - CHART.name);
  part.append(draw("text", { x: CHART.name - 8, y: middle + 4, class: "label end" }, row.name.length > 18 ? `${row.name.slice(0, 17)}…` : row.name));
  for (const [value, text] of ticks(low, high, 4)) {
    part.append(draw("line", { x1: x(value), x2: x(value), y1: top, y2: top + 18, class: value === 0 ? "zero" : "grid" }));
    part.append(draw("text", { x: x(value), y: top + 27, class: "tick mid" }, text));
  }
  const bar = ([value, error], y, kind) => {
    if (Number.isFinite(value) && Number.isFinite(error)) part.append(draw("line", { x1: x(value - Z95 * error), x2: x(value + Z95 * error), y1: y, y2: y, class: kind }));
  };
  bar(row.own, middle - 5, "own");
  bar(row.mine, middle + 5, "mine");
  if (Number.isFinite(row.theirs[0])) part.append(draw("line", { x1: x(row.theirs[0]), x2: x(row.theirs[0]), y1: top + 1, y2: top + 18, class: "theirs" }));
  if (Number.isFinite(row.own[0])) part.append(draw("circle", { cx: x(row.own[0]), cy: middle - 5, r: 3.4, class: "own" }));
  const at = x(row.mine[0]);
  part.append(draw("path", { d: `M${at},${middle}l4.5,5l-4.5,5l-4.5,-5z`, class: "mine" }));
  return part;
}

function moreRows(i) {
  if (!more) return [make("p", { class: "about" }, "This method keeps no account of what more rows would change.")];
  const at = (name, f) => more[name][i * more.times.length + f];
  const now = more.times.indexOf(1), twice = more.times.indexOf(2), four = more.times.indexOf(4);
  const sentences = [];
  const narrower = (f) => Math.round(100 * (1 - at("width", f)));
  if (narrower(four) < 1) sentences.push("Users differ only by noise inside their group: more rows of its own would tell its group more surely, and not move its model otherwise.");
  else sentences.push(`With twice as many rows the intervals of its coefficients would be ${narrower(twice)} % narrower, with four times ${narrower(four)} %.`);
  if (more.weight) sentences.push(`Its own rows count for ${percent(at("weight", now))} of what sets it apart from ${grouped ? "its group" : "the others"}, with twice as many for ${percent(at("weight", twice))}.`);
  if (grouped && users.group[i] >= 0) {
    const chance = (f) => (at("wrong", f) < 0.0005 ? "less than 0.1 %" : percent(at("wrong", f)));
    sentences.push(`The chance that rows like these put it in a wrong group is ${chance(now)}, with twice as many rows ${chance(twice)}.`);
  }
  return sentences.map((text) => make("p", {}, text));
}

function heldOut(i) {
  const from = held.start[i], to = held.start[i + 1];
  if (from === to) return [make("p", { class: "about" }, "None of its rows was held out.")];
  const seen = held.seen.slice(from, to), step = (Math.max(...seen) - Math.min(...seen)) / 100;
  const name = (value) => (held.classes ? held.classes[value] : format(value, step));
  const head = make("tr", {}, ...["seen", "predicted alone", "predicted with odcl"].map((text) => make("th", { scope: "col" }, text)));
  const lines = [];
  for (let k = from; k < to; k += 1) lines.push(make("tr", {}, ...[held.seen[k], held.own[k], held.ours[k]].map((value) => make("td", {}, name(value)))));
  const table = make("div", { class: "scroll" }, make("table", { id: "user-held" }, make("thead", {}, head), make("tbody", {}, ...lines)));
  return [held.classes ? table : make("div", { class: "beside" }, predicted(from, to), table)];
}

/** Predicted against seen: on the dotted line a prediction is exact. */
function predicted(from, to) {
  let low = Infinity, high = -Infinity;
  for (let k = from; k < to; k += 1) for (const value of [held.seen[k], held.ours[k]]) { low = Math.min(low, value); high = Math.max(high, value); }
  const room = 0.08 * Math.max(high - low, 1e-9);
  low -= room; high += room;
  const side = 240, left = 46, bottom = side - 34;
  const x = (value) => left + ((value - low) / (high - low)) * (side - left - 8);
  const y = (value) => bottom - ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (bottom - 8);
  const svg = draw("svg", { viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": "Predicted against seen; the numbers are in the table." });
  for (const [value, text] of ticks(low, high, 4)) {
    svg.append(draw("line", { x1: x(value), x2: x(value), y1: 8, y2: bottom, class: "grid" }), draw("line", { x1: left, x2: side - 8, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(draw("text", { x: x(value), y: bottom + 13, class: "tick mid" }, text), draw("text", { x: left - 5, y: y(value) + 3.5, class: "tick end" }, text));
  }
  svg.append(draw("line", { x1: x(low), y1: y(low), x2: x(high), y2: y(high), class: "zero" }));
  for (let k = from; k < to; k += 1) {
    svg.append(draw("circle", { cx: x(held.seen[k]), cy: y(held.own[k]), r: 3, class: "own" }));
    const cx = x(held.seen[k]), cy = y(held.ours[k]);
    svg.append(draw("path", { d: `M${cx},${cy - 4.5}l4.5,4.5l-4.5,4.5l-4.5,-4.5z`, class: "mine" }));
  }
  svg.append(draw("text", { x: (left + side) / 2, y: side - 4, class: "label mid" }, "seen"));
  svg.append(draw("text", { transform: `translate(10 ${bottom / 2}) rotate(-90)`, class: "label mid" }, "predicted"));
  return make("div", {}, make("div", { class: "plot" }, svg), make("p", { class: "note" }, "Diamond: with odcl. Circle: a model of its own."));
}
