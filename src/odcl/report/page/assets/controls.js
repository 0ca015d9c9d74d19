// Search, groups, alternatives, and the start of everything.

const MOST_FOUND = 8;

function startSearch() {
  const input = byId("find"), list = byId("found");
  let found = [], at = -1;
  const show = () => {
    list.replaceChildren(...found.map((i, k) => {
      const item = make("li", { role: "option", id: `found-${k}`, "aria-selected": String(k === at) }, ids[i]);
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); choose(k); });
      return item;
    }));
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    if (at >= 0) input.setAttribute("aria-activedescendant", `found-${at}`);
    else input.removeAttribute("aria-activedescendant");
  };
  const close = () => { found = []; at = -1; show(); };
  const choose = (k) => {
    const i = found[k];
    close();
    if (i === undefined) return;
    input.value = ids[i];
    select(i);
  };
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const starts = [], holds = [];
    for (let i = 0; wanted && i < count && starts.length < MOST_FOUND; i += 1) {
      const where = ids[i].toLowerCase().indexOf(wanted);
      if (where === 0) starts.push(i); else if (where > 0 && holds.length < MOST_FOUND) holds.push(i);
    }
    found = [...starts, ...holds].slice(0, MOST_FOUND);
    const exact = found.findIndex((i) => ids[i].toLowerCase() === wanted);
    at = found.length ? Math.max(exact, 0) : -1;
    show();
    if (wanted && !found.length) tell(`No user is called ${input.value}.`);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (found.length) { at = (at + (event.key === "ArrowDown" ? 1 : -1) + found.length) % found.length; show(); }
    } else if (event.key === "Enter") { event.preventDefault(); choose(at); } else if (event.key === "Escape") close();
  });
  input.addEventListener("blur", close);
}

function startFilters() {
  const boxes = Array.from(document.querySelectorAll("input.filter"));
  const read = () => {
    state.hidden = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
    changed("filter");
  };
  for (const box of boxes) box.addEventListener("change", read);
  const all = byId("all-groups");
  if (all) all.addEventListener("click", () => {
    const some = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = some;
    read();
  });
  if (all) watchers.push(() => { all.textContent = state.hidden.size ? "all" : "none"; });
  if (all) all.textContent = "none";
}

function startOptions() {
  const slider = byId("option");
  if (!slider || !options) return;
  const bars = Array.from(document.querySelectorAll("#options-svg .option"));
  const show = () => {
    const at = Number(slider.value), one = options[at], chosen = at === facts.options.chosen;
    slider.setAttribute("aria-valuetext", one.words);
    byId("option-words").textContent = one.words;
    bars.forEach((bar) => bar.classList.toggle("now", Number(bar.dataset.i) === at));
    state.option = chosen ? null : at;
    state.labels = chosen || !one.labels ? users.group : one.labels;
    byId("option-note").textContent = chosen ? "" : one.labels
      ? "The map and the gains are coloured by these groups; everything else is of the chosen ones."
      : "Of this one only the score was kept: the map stays as it is.";
    changed("option");
  };
  slider.addEventListener("input", show);
  bars.forEach((bar) => bar.addEventListener("click", () => { slider.value = bar.dataset.i; show(); }));
  show();
}

function tell(text) { byId("live").textContent = text; }

function startState() {
  const words = byId("state"), clear = byId("clear");
  clear.addEventListener("click", () => { byId("find").value = ""; select(-1); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.user >= 0 && event.target.id !== "find") select(-1); });
  watchers.push((what) => {
    if (what !== "user") return;
    const i = state.user;
    clear.disabled = i < 0;
    const text = i < 0 ? "No user selected." : `Selected: ${ids[i]}${grouped ? `, ${users.group[i] < 0 ? "no group" : `group ${users.group[i]}`}` : ""}`;
    words.textContent = text;
    tell(text);
  });
  window.addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
}

root.classList.add("scripted");
startMap();
startGain();
startCoefficients();
startCurves();
startUser();
startTable();
startSearch();
startFilters();
startOptions();
startState();
