// The facts of the page, and what is selected. Names come from outside: they only become text.

const facts = JSON.parse(document.getElementById("facts").textContent);
const root = document.documentElement;
const SVG = "http://www.w3.org/2000/svg";
const Z95 = 1.959964;
const COLOURS = 7, SHAPES = 8;

/** An array that was packed as Base64 of little-endian numbers. */
function numbers(text, Kind = Float32Array) {
  if (text === null) return null;
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const ids = facts.ids;
const count = ids.length;
const width = facts.names.length; // coefficients that each user has here
const users = {
  group: numbers(facts.group, Int32Array),
  rows: numbers(facts.rows, Int32Array),
  sure: numbers(facts.sure),
  number: numbers(facts.number, Int32Array),
};
const models = {
  user: numbers(facts.user), userError: numbers(facts.user_se),
  own: numbers(facts.own), ownError: numbers(facts.own_se),
  group: numbers(facts.centers), groupError: numbers(facts.centers_se),
};
const gains = facts.gains && {
  metric: facts.gains.metric, larger: facts.gains.larger,
  own: numbers(facts.gains.own), ours: numbers(facts.gains.ours),
};
const gainOf = (i) => {
  if (!gains) return NaN;
  return gains.larger ? gains.ours[i] - gains.own[i] : gains.own[i] - gains.ours[i];
};
const held = facts.held && {
  start: numbers(facts.held.start, Int32Array), seen: numbers(facts.held.seen),
  own: numbers(facts.held.own), ours: numbers(facts.held.ours), classes: facts.held.classes,
};
const more = facts.more && {
  times: facts.more.times, width: numbers(facts.more.width),
  wrong: numbers(facts.more.wrong), weight: numbers(facts.more.weight),
};
const options = facts.options && facts.options.list.map((one) => ({
  groups: one.groups, words: one.words, labels: numbers(one.labels, Int16Array),
}));

// What is looked at. Whoever shows any of it is told when it changes.
const state = { user: -1, hidden: new Set(), labels: users.group, option: null };
const watchers = [];
function changed(what) { for (const tell of watchers) tell(what); }

function select(user) {
  if (user === state.user) return;
  state.user = user;
  changed("user");
}

const isShown = (i) => !state.hidden.has(users.group[i]);
const grouped = facts.groups.length > 1;
const groupName = (group) => (group < 0 ? "no group" : grouped || state.option !== null ? `group ${group}` : "no groups");

/** A number for people: plain, three digits, or as many as `step`, what is known, allows. */
function format(value, step = Infinity, digits = 3) {
  if (!Number.isFinite(value)) return "unknown";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-6) return value.toExponential(digits - 1);
  let place = Math.floor(Math.log10(size)) + 1 - digits;
  const last = step > 0 && step < Infinity ? Math.floor(Math.log10(step) + 1e-9) : null;
  if (last !== null) place = Math.max(Math.min(place, last), last - 1);
  const rounded = place > 0 ? Math.round(value / 10 ** place) * 10 ** place : value;
  const text = rounded.toLocaleString("en-US", { maximumFractionDigits: Math.max(-place, 0) });
  return text === "-0" ? "0" : text;
}

function percent(share) {
  if (!Number.isFinite(share)) return "";
  return share >= 0.9995 ? "100 %" : `${(100 * share).toFixed(1)} %`;
}

const withError = (value, error) =>
  Number.isFinite(value) ? format(value, Z95 * error) + (Number.isFinite(error) ? ` ± ${format(Z95 * error, Infinity, 2)}` : "") : "not known";

/** An element; what stands inside is text or elements, never markup. */
function make(name, attributes = {}, ...inside) {
  return fill(document.createElement(name), attributes, inside);
}
function draw(name, attributes = {}, ...inside) {
  return fill(document.createElementNS(SVG, name), attributes, inside);
}
function fill(element, attributes, inside) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...inside.filter((one) => one !== null));
  return element;
}
const byId = (id) => document.getElementById(id);

function mark(group, x, y) {
  const style = group < 0 ? { href: "#s0", class: "none" } : { href: `#s${group % SHAPES}`, class: `c${group % COLOURS}` };
  return draw("use", { ...style, x: x.toFixed(1), y: y.toFixed(1) });
}
function swatch(group) {
  return draw("svg", { viewBox: "-6 -6 12 12", class: "swatch", "aria-hidden": "true" }, mark(group, 0, 0));
}

/** Round numbers inside an interval, each with its text: no two have the same. */
function ticks(low, high, most = 4) {
  if (!(high > low)) return [[low, format(low)]];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => power * k >= rough * (1 - 1e-9));
  const text = low >= 1500 && high <= 2100 && step >= 1 ? (v) => v.toFixed(0) : (v) => format(v, step); // 1980 is not 1,980
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push([k * step || 0, text(k * step || 0)]);
  return found;
}
