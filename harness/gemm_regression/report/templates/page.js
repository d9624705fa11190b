const at = (id) => document.getElementById(id);
const page = JSON.parse(at("data").textContent);
const packed = Uint8Array.from(atob(at("records").textContent), (letter) => letter.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
Object.assign(page, await new Response(unpacked).json()); // datasets and rounds
const all = page.datasets.cases;
const COLUMNS = [
  ["stage", "stage"], ["dtype", "dtype"], ["config", "config"], ["problem", "problem"],
  ["gflops", "GFLOPS", 0], ["share", "% cuBLAS", 1], ["change", "change %", 2], ["noise", "noise %", 2], ["verdict", "verdict"],
  ["bound", "bound"], ["of_bound", "of it, %", 0], ["us", "µs", 2], ["speedup", "× naive", 2], ["mhz", "MHz", 0], ["board", "board"], ["commit", "commit"],
];
const number = (value, digits) =>
  value === undefined || value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

// What is shown lies behind the # of the address: filters, order and the open case. Links can be shared.
const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const chosen = () => at("source")?.value ?? "";

function remember(changes) {
  for (const [name, value] of Object.entries(changes)) value ? state.set(name, value) : state.delete(name);
  history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
}

const views = new Map(); // what is drawn, by the id of its element

async function draw(id, name, datasets, values = {}) {
  const element = at(id);
  if (!element) return;
  const spec = structuredClone(page.specs[name]);
  for (const parameter of spec.params ?? []) {
    if (parameter.bind?.element) delete parameter.bind;
    if (parameter.name in values) parameter.value = values[parameter.name];
  }
  spec.datasets = datasets;
  spec.config.axis.labelLimit = Math.max(90, Math.min(330, element.clientWidth * 0.38));
  spec.config.legend.columns = Math.max(1, Math.floor(element.clientWidth / 150));
  views.get(id)?.finalize();
  views.delete(id);
  if (there[name] && !there[name](values)) { element.textContent = "Not measured."; return; }
  const made = await vegaEmbed(element, spec, { renderer: "svg", actions: false, logLevel: 1 });
  views.set(id, made);
  made.view.addEventListener("click", (event, item) => { if (item?.datum?.case) openCase(item.datum.case, item.datum.source); });
}

// Whether a chart has anything to draw.
const measured = (values) => all.filter((record) => Object.entries(values).every(([name, value]) => record[name] === value));
const there = {
  ladder: ({ source, problem, dtype, metric }) => measured({ source, problem, best: true, ...(dtype === "all" ? {} : { dtype }) }).some((record) => record[metric] != null),
  sizes: ({ source, dtype, metric }) => measured({ source, dtype, everywhere: true }).some((record) => record[metric] != null),
  roofline: ({ source, problem, dtype }) => measured({ source, problem, dtype, best: true }).some((record) => record.compulsory),
};

// The controls of a chart: parameter and id of the element. A chart is drawn again where one of them changes.
const controls = (name) => (page.specs[name].params ?? [])
  .filter((parameter) => parameter.bind?.element)
  .map((parameter) => [parameter.name, parameter.bind.element.slice(1)]);
const waiting = new Set();
let drawing = Promise.resolve();

function redraw(name) {
  if (waiting.has(name)) return drawing;
  waiting.add(name);
  drawing = drawing.then(() => {
    waiting.delete(name);
    const values = Object.fromEntries(controls(name).map(([parameter, id]) => [parameter, at(id)?.value ?? ""]));
    return draw(`chart-${name}`, name, page.datasets, values);
  });
  return drawing;
}

// Of a list "change": a driver of browsers sends no "input" for it.
const onInput = (control, done) => control?.addEventListener(control.tagName === "SELECT" ? "change" : "input", done);

const distinct = (records, name) => [...new Set(records.map((record) => record[name]))];

// Leaves those options of a control, and chooses one of them.
function narrow(id, kept) {
  const control = at(id);
  if (!control) return;
  for (const option of control.options) option.hidden = option.disabled = !kept.includes(option.value);
  if (!kept.includes(control.value) && kept.length) control.value = kept[0];
}

// What can be chosen of the source that is chosen: its problems, that with most stages first, and their dtypes.
function follow() {
  const own = all.filter((record) => record.source === chosen());
  const many = (problem) => own.filter((record) => record.best && record.problem === problem).length;
  const problems = distinct(own, "problem").sort((a, b) => many(b) - many(a));
  for (const name of ["ladder", "roofline"]) {
    narrow(`${name}-problem`, problems);
    const dtypes = distinct(own.filter((record) => record.problem === at(`${name}-problem`)?.value), "dtype");
    narrow(`${name}-dtype`, name === "ladder" ? [...dtypes, "all"] : dtypes);
  }
  narrow("sizes-dtype", distinct(own, "dtype"));
}

function row(record) {
  const line = document.createElement("tr");
  if (page.verdicts[record.source]?.[record.case]?.red) line.className = "red";
  for (const [field, , digits] of COLUMNS) {
    const cell = line.insertCell();
    if (digits !== undefined) { cell.className = "n"; cell.textContent = number(record[field], digits); }
    else if (field === "stage") cell.append(link(record));
    else cell.textContent = record[field] ?? "";
    if (field === "config") cell.className = "wrapped";
  }
  return line;
}

function link(record) {
  const made = document.createElement("a");
  made.href = `#case=${encodeURIComponent(record.case)}`;
  made.textContent = record.stage;
  made.dataset.case = record.case;
  return made;
}

// Cases without samples, such as crashed ones, are in the verdicts only.
function rowsOf(source) {
  const timed = all.filter((record) => record.source === source);
  const known = new Set(timed.map((record) => record.case));
  const others = Object.values(page.verdicts[source] ?? {}).filter((one) => !known.has(one.case));
  for (const record of timed) record.verdict = page.verdicts[source]?.[record.case]?.verdict ?? record.verdict;
  return [...others.map((one) => ({ source, case: one.case, stage: one.case, verdict: one.verdict })), ...timed];
}

function table() {
  if (!at("cases-table")) return;
  const text = at("filter-text").value.toLowerCase().split(/\s+/);
  const wanted = ["stage", "dtype", "problem", "verdict"].map((name) => [name, at(`filter-${name}`)?.value]);
  const rows = rowsOf(chosen());
  const shown = rows.filter((record) =>
    text.every((word) => record.case.toLowerCase().includes(word)) &&
    wanted.every(([name, value]) => !value || record[name] === value));
  const [field, direction] = (state.get("sort") ?? "").split("-");
  if (field) {
    const sign = direction === "down" ? -1 : 1;
    const missing = (value) => value === undefined || value === null;
    shown.sort((a, b) => missing(a[field]) - missing(b[field])
      || sign * (a[field] > b[field] ? 1 : a[field] < b[field] ? -1 : 0));
  }
  at("cases-table").tBodies[0].replaceChildren(...shown.map(row));
  at("filter-count").textContent = `${shown.length} of ${rows.length}`;
  for (const head of at("cases-table").querySelectorAll("th")) {
    const own = head.dataset.field === field;
    head.ariaSort = own ? (direction === "down" ? "descending" : "ascending") : "none";
    head.querySelector("span").textContent = own ? (direction === "down" ? " ↓" : " ↑") : "";
  }
}

function heads() {
  const line = at("cases-table").tHead.insertRow();
  for (const [field, title, digits] of COLUMNS) {
    const head = document.createElement("th");
    head.dataset.field = field;
    head.className = digits === undefined ? "" : "n";
    const button = document.createElement("button");
    button.type = "button";
    button.append(title, document.createElement("span"));
    button.onclick = () => {
      const before = state.get("sort");
      remember({ sort: before === `${field}-down` ? `${field}-up` : before === `${field}-up` ? "" : `${field}-down` });
      table();
    };
    head.append(button);
    line.append(head);
  }
}

function facts(record, said) {
  const found = [];
  if (record) {
    if (!said) found.push(["GFLOPS", number(record.gflops, 1)]);
    found.push(["time", `${number(record.us, 3)} µs (quartiles ${number(record.low, 3)} … ${number(record.high, 3)})`],
      ["% of cuBLAS", number(record.share, 1)], ["× naive", number(record.speedup, 2)]);
    if (record.mhz && !said) found.push(["SM clock", `${number(record.mhz, 0)} MHz, ${number(record.watts, 0)} W, ${number(record.celsius, 0)} °C`]);
    found.push(["measured", `board ${record.board ?? "unknown"}, commit ${record.commit}`]);
    if (record.registers) found.push(["registers", `${record.registers} per thread, ${number(record.shared_bytes, 0)} bytes of shared memory per block`]);
    if (record.bound) found.push(["bound", `${record.bound}: ${Object.entries(record.levels).map(([level, share]) => `${level} ${number(share, 1)} %`).join(", ")} of its roof (${record.counted === "ncu" ? "counted by ncu" : "estimated from a smaller problem"})`]);
    if (record.compulsory) found.push(["FLOP per byte", `${number(record.requested, 2)} of the bytes requested, ${record.dram ? `${number(record.dram, 2)} of those that DRAM moved, ` : ""}${number(record.compulsory, 2)} of the compulsory ones`]);
  }
  return [...found, ...(said?.evidence ?? [])];
}

async function openCase(name, from) {
  const source = [from, chosen(), ...new Set(all.map((record) => record.source))].find((one) =>
    one && (page.verdicts[one]?.[name] || all.some((record) => record.source === one && record.case === name)));
  if (!source || !at("case")) return;
  remember({ case: name, source });
  const record = all.find((one) => one.source === source && one.case === name);
  const said = page.verdicts[source]?.[name];
  at("case").hidden = false;
  at("case-name").textContent = name;
  at("case-verdict").textContent = said ? `${said.verdict} ${said.reason}: ${said.message}` : source;
  at("case-verdict").className = said?.red ? "bad" : "";
  at("case-command").textContent = said?.command ?? `{{ typed('gpu', '-k "[${name}]"') | safe }}`;
  at("case-facts").replaceChildren(...facts(record, said).flatMap(([title, text]) => {
    const term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = title;
    value.textContent = text;
    return [term, value];
  }));
  at("case").scrollIntoView();
  const past = page.datasets.history.filter((one) => one.case === name);
  at("chart-case-history").replaceChildren();
  if (past.length) await draw("chart-case-history", "history", { history: past }, { gpu: past[0].history, wanted: "" });
  const samples = page.rounds[source]?.[name];
  for (const [field, title] of [["us", "Microseconds of each round"], ["mhz", "SM clock of each round in MHz"], ["celsius", "Temperature over the measurement in °C"]]) {
    const rounds = (samples?.[field] ?? []).map((value, round) => ({ round, value }));
    at(`chart-case-${field}`).replaceChildren();
    if (rounds.length) await draw(`chart-case-${field}`, "rounds", { rounds }, { what: title });
  }
  at("case-rounds").textContent = samples ? "" : "No samples are stored of this case.";
  document.documentElement.dataset.opened = name;
}

function closeCase() {
  at("case").hidden = true;
  remember({ case: "" });
}

// The axes of a heat map follow its space.
function axes() {
  const space = page.spaces[at("configs-space")?.value];
  if (!space) return;
  at("configs-note").textContent = space.note;
  for (const [name, place] of [["down", 0], ["across", Math.min(1, space.axes.length - 1)]]) {
    const control = at(`configs-${name}`);
    control.replaceChildren(...space.axes.map((axis) => new Option(axis, axis)));
    control.selectedIndex = place;
    control.dispatchEvent(new Event("change"));
  }
}

function restore() {
  for (const name of ["text", "stage", "dtype", "problem", "verdict"]) {
    const control = at(`filter-${name}`);
    if (control) control.value = state.get(name) ?? "";
  }
  if (state.get("source") && [...at("source").options].some((one) => one.value === state.get("source"))) {
    at("source").value = state.get("source");
  }
}

async function start() {
  if (at("source")) {
    restore();
    heads();
    table();
    for (const kind of ["input", "change"]) at("filters").addEventListener(kind, (event) => {
      remember({ [event.target.id.slice("filter-".length)]: event.target.value });
      table();
    });
    follow();
    for (const id of ["source", "ladder-problem", "roofline-problem"]) onInput(at(id), follow);
    onInput(at("source"), () => { remember({ source: chosen() }); table(); });
    at("case-close").onclick = closeCase;
    axes();
    onInput(at("configs-space"), axes);
    document.addEventListener("click", (event) => {
      const to = event.target.closest("a[data-case]");
      if (to) { event.preventDefault(); openCase(to.dataset.case, to.dataset.source); }
    });
    addEventListener("hashchange", () => {
      const given = new URLSearchParams(location.hash.slice(1));
      if (given.get("case")) openCase(given.get("case"), given.get("source"));
    });
  }
  at("theme").onclick = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const root = document.documentElement.style;
    root.colorScheme = (root.colorScheme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  };
  addEventListener("beforeprint", () => document.querySelectorAll("details.verdict").forEach((one) => { one.open = true; }));
  for (const name of Object.keys(page.specs)) {
    if (page.datasets[name]?.length === 0 || !at(`chart-${name}`)) continue;
    for (const [, id] of controls(name)) onInput(at(id), () => redraw(name));
    await redraw(name);
  }
  if (state.get("case")) await openCase(state.get("case"), state.get("source"));
  document.documentElement.dataset.drawn = "yes";
}

await start();
