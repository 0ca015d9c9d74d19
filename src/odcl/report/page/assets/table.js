// The table of users: sorted, filtered, page by page, and saved as CSV.

const PAGE = 25;
const columns = [
  { name: facts.word, text: (i) => ids[i], key: (i) => ids[i] },
  grouped && { name: "group", text: (i) => (users.group[i] < 0 ? "none" : String(users.group[i])), key: (i) => users.group[i], csv: (i) => users.group[i] },
  { name: "rows", text: (i) => users.rows[i].toLocaleString("en-US"), key: (i) => users.rows[i], csv: (i) => users.rows[i] },
].filter(Boolean);
if (grouped && users.sure.some(Number.isFinite)) columns.push({ name: "how surely", text: (i) => percent(users.sure[i]), key: (i) => users.sure[i], csv: (i) => users.sure[i] });
if (gains) {
  const shown = (value) => (Number.isFinite(value) ? format(value) : "");
  columns.push({ name: `${gains.metric} alone`, text: (i) => shown(gains.own[i]), key: (i) => gains.own[i], csv: (i) => gains.own[i] });
  columns.push({ name: `${gains.metric} with odcl`, text: (i) => shown(gains.ours[i]), key: (i) => gains.ours[i], csv: (i) => gains.ours[i] });
  columns.push({ name: "gain", text: (i) => shown(gainOf(i)), key: gainOf, csv: gainOf });
}
const words = new Intl.Collator("en", { numeric: true });
const listing = { column: 0, down: false, page: 0, sorted: [], order: [] };

function compare(a, b) {
  const key = columns[listing.column].key, left = key(a), right = key(b);
  if (typeof left === "string") return (listing.down ? -1 : 1) * words.compare(left, right) || a - b;
  const known = Number.isFinite(left) - Number.isFinite(right);
  if (known) return -known; // what is not known comes last
  return (listing.down ? -1 : 1) * (left - right) || a - b;
}

function startTable() {
  const head = make("tr");
  columns.forEach((column, c) => {
    const button = make("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      listing.down = listing.column === c ? !listing.down : false;
      listing.column = c;
      sortTable();
    });
    head.append(make("th", { scope: "col" }, button));
  });
  byId("table").append(make("table", { id: "assignment" }, make("thead", {}, head), make("tbody")));
  byId("previous").addEventListener("click", () => { listing.page -= 1; showTable(); });
  byId("next").addEventListener("click", () => { listing.page += 1; showTable(); });
  byId("save").addEventListener("click", saveTable);
  watchers.push((what) => {
    if (what === "filter") filterTable();
    if (what === "user") {
      const at = listing.order.indexOf(state.user);
      if (at >= 0) listing.page = Math.floor(at / PAGE); // where it stands
      showTable();
    }
  });
  sortTable();
}

function sortTable() {
  listing.sorted = Array.from(ids.keys()).sort(compare);
  document.querySelectorAll("#assignment th").forEach((th, c) => {
    if (c === listing.column) th.setAttribute("aria-sort", listing.down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  filterTable();
}

function filterTable() {
  listing.order = listing.sorted.filter(isShown);
  listing.page = 0;
  showTable();
}

function showTable() {
  const pages = Math.max(1, Math.ceil(listing.order.length / PAGE));
  listing.page = Math.min(Math.max(listing.page, 0), pages - 1);
  const rows = listing.order.slice(listing.page * PAGE, (listing.page + 1) * PAGE).map((i) => {
    const name = make("button", { type: "button", "aria-pressed": String(i === state.user) }, ids[i]);
    name.addEventListener("click", () => select(i));
    const cells = columns.slice(1).map((column) => make("td", {}, column.text(i)));
    if (grouped) cells[0].prepend(swatch(users.group[i]), " ");
    return make("tr", i === state.user ? { class: "picked-row" } : {}, make("td", {}, name), ...cells);
  });
  document.querySelector("#assignment tbody").replaceChildren(...rows);
  byId("page").textContent = `Page ${listing.page + 1} of ${pages}, ${listing.order.length.toLocaleString("en-US")} users`;
  byId("previous").disabled = listing.page === 0;
  byId("next").disabled = listing.page === pages - 1;
}

/** One field of CSV; a quote stands before text that a spreadsheet would run as a formula. */
function field(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const number = /^'*[+-]([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/.test(value);
  const safe = /^'*[=+@\t\r-]./s.test(value) && !number ? `'${value}` : value;
  return /["\r\n,]|^$/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvText() {
  const lines = [columns.map((column) => field(column.name)).join(",")];
  for (const i of listing.order) lines.push(columns.map((column) => field(column.csv ? column.csv(i) : ids[i])).join(","));
  return `${lines.join("\n")}\n`;
}

function saveTable() {
  const address = URL.createObjectURL(new Blob([csvText()], { type: "text/csv" }));
  const link = make("a", { href: address, download: "assignment.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
