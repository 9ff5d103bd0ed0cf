// The frame: sign-in, the list of tables, and which view is shown.

import { get, setToken, takeToken } from "./api.js";
import { alertBox, bytes, count, grid, h, hideTip, int, meter, put, s, short, skeleton } from "./dom.js";
import { sqlView } from "./sql.js";
import { tableView } from "./table.js";

const main = document.getElementById("main");
const side = document.getElementById("tables");
const lake = { tables: [], counts: new Map() };
let showing = new AbortController();
let shown = null; // which view, without its tab

// ---------------------------------------------------------------------------------------------
// Theme: as the system, light or dark

const THEMES = {
  auto: ["Theme: as the system", "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18"],
  light: ["Theme: light", "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2"],
  dark: ["Theme: dark", "M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10z"],
};
const theme = document.getElementById("theme");
function setTheme(name) {
  localStorage.setItem("icefloe-theme", name);
  if (name === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  theme.setAttribute("aria-label", THEMES[name][0]);
  theme.title = THEMES[name][0];
  theme.dataset.name = name;
  put(theme, s("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, s("path", { d: THEMES[name][1], fill: name === "light" ? "none" : "currentColor", "fill-opacity": name === "auto" ? 0.35 : 1 })));
}
theme.addEventListener("click", () => { const names = Object.keys(THEMES); setTheme(names[(names.indexOf(theme.dataset.name) + 1) % names.length]); });
setTheme(THEMES[localStorage.getItem("icefloe-theme")] ? localStorage.getItem("icefloe-theme") : "auto");

// ---------------------------------------------------------------------------------------------
// Routes: #/, #/sql, #/table/NAME/TAB

export const linkTo = (name, tab = "life") => `#/table/${encodeURIComponent(name)}/${tab}`;

const parts = () => location.hash.replace(/^#\/?/, "").split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });

function mark() {
  const [kind, name] = parts();
  for (const link of side.querySelectorAll("a")) {
    if (kind === "table" && link.dataset.name === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
}

function route() {
  const [kind, name, tab] = parts();
  shown = `${kind}/${name}`;
  showing.abort();
  showing = new AbortController();
  hideTip();
  const sql = document.getElementById("sql-link");
  if (kind === "sql") sql.setAttribute("aria-current", "page"); else sql.removeAttribute("aria-current");
  mark();
  const signal = showing.signal;
  if (kind === "table" && name) { document.title = `${name} · icefloe`; return tableView(main, name, tab, signal); }
  if (kind === "sql") { shown = "sql"; document.title = "SQL · icefloe"; return sqlView(main, lake.tables, name); }
  document.title = "icefloe";
  return overview(signal);
}
addEventListener("hashchange", () => {
  const before = shown;
  route();
  if (shown !== before) { main.focus({ preventScroll: true }); scrollTo(0, 0); } // but not between tabs
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// ---------------------------------------------------------------------------------------------
// The list of tables, and the overview

function drawTables() {
  const words = document.getElementById("filter").value.trim().toLowerCase();
  const found = lake.tables.filter((name) => name.toLowerCase().includes(words));
  const spaces = Map.groupBy ? Map.groupBy(found, spaceOf) : found.reduce((all, name) => all.set(spaceOf(name), [...(all.get(spaceOf(name)) ?? []), name]), new Map());
  put(side, [...spaces].map(([space, names]) => [
    h("h2", { text: space }),
    h("ul", {}, names.map((name) => {
      const counts = lake.counts.get(name);
      return h("li", {}, h("a", { href: linkTo(name), "data-name": name, title: name },
        h("span", { text: name.slice(space.length + 1) }),
        h("span", { cls: "size", text: counts && !counts.error ? (counts.rows === null ? "" : short(counts.rows)) : "", "aria-label": counts?.rows ? `${int(counts.rows)} rows` : null })));
    })),
  ]).flat());
  mark();
  if (!found.length) put(side, h("p", { cls: "empty", text: lake.tables.length ? "No table has this in its name." : "The lake has no table." }));
}
const spaceOf = (name) => name.slice(0, Math.max(0, name.lastIndexOf(".")));
document.getElementById("filter").addEventListener("input", drawTables);
document.getElementById("filter").addEventListener("keydown", (event) => {
  if (event.key === "Enter") side.querySelector("a")?.click();
  if (event.key === "ArrowDown") { event.preventDefault(); side.querySelector("a")?.focus(); }
});
side.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const links = [...side.querySelectorAll("a")];
  links[links.indexOf(document.activeElement) + step]?.focus();
});

async function loadCounts() {
  if (lake.counts.size) return;
  for (const one of (await get("tables")).tables) lake.counts.set(one.table, one);
  drawTables();
}

async function overview(signal) {
  put(main, h("div", { cls: "title" }, h("div", {}, h("h1", { text: "Tables" }), h("p", { cls: "note", text: `${count(lake.tables.length, "table")} in ${lake.place}` }))), skeleton());
  try {
    await loadCounts();
    if (signal.aborted) return;
    const rows = lake.tables.map((name) => lake.counts.get(name)).filter(Boolean).sort((a, b) => (b.bytes ?? 0) - (a.bytes ?? 0));
    const most = Math.max(1, ...rows.map((one) => one.bytes ?? 0));
    const sum = (key) => rows.reduce((total, one) => total + (one[key] ?? 0), 0);
    main.lastChild.replaceWith(rows.length ? h("div", {},
      h("dl", { cls: "card metrics" }, [["Tables", int(rows.length)], ["Rows", short(sum("rows"))], ["Data files", int(sum("data_files"))], ["Delete files", int(sum("delete_files"))], ["Size", bytes(sum("bytes"))]].map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value })))),
      h("div", { cls: "card overview" }, grid([
        { title: "Table", head: true, cell: (one) => h("a", { href: linkTo(one.table), text: one.table }) },
        { title: "Rows", num: true, cell: (one) => (one.error ? "" : int(one.rows)) },
        { title: "Data files", num: true, cell: (one) => (one.error ? "" : int(one.data_files)) },
        { title: "Delete files", num: true, cell: (one) => (one.error ? "" : int(one.delete_files)) },
        { title: "Size", cell: (one) => (one.error ? one.error : h("span", { cls: "with-meter" }, h("span", { text: bytes(one.bytes) }), meter((one.bytes ?? 0) / most))) },
        { title: "Partitioned by", cls: "mono", cell: (one) => one.partition_by ?? "" },
      ], rows, { caption: "Tables of the lake, the largest first" }))) : h("div", { cls: "card empty" }, h("p", { text: "The lake has no table yet." }), h("p", { cls: "note", text: "Create one with lake.create_table() or `icefloe sql 'CREATE TABLE …'`." })));
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) main.lastChild.replaceWith(alertBox(error.message));
  }
}

// ---------------------------------------------------------------------------------------------
// Start, or ask for the token

function signIn(message) {
  document.body.classList.add("signed-out");
  const input = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  put(main, h("form", { cls: "card signin", onsubmit: (event) => {
    event.preventDefault();
    const text = input.value.trim();
    setToken(text.includes("token=") ? new URLSearchParams(text.slice(text.indexOf("token="))).get("token") : text);
    document.body.classList.remove("signed-out");
    start();
  } },
  h("div", { cls: "wordmark" }, h("img", { src: "/static/icon.svg", alt: "", width: 30, height: 30 }), h("span", { text: "icefloe" })),
  h("h1", { text: "This page needs its token" }),
  h("p", { cls: "note", text: "Open the address that `icefloe ui` printed, or paste it, or its token, here." }),
  message ? alertBox(message) : null,
  h("label", { for: "token", text: "Address or token" }), input,
  h("button", { cls: "button primary", type: "submit", text: "Open the page" })));
  input.focus();
}

async function start() {
  const early = location.hash.startsWith("#/table/"); // a table needs no list of tables
  try {
    const facts = get("lake");
    if (early) route();
    Object.assign(lake, await facts, { counts: new Map() });
  } catch (error) {
    if (error.status === 401) return signIn(document.body.dataset.asked ? error.message : null);
    return put(main, alertBox(error.message));
  } finally {
    document.body.dataset.asked = "yes";
  }
  document.getElementById("place").textContent = lake.place;
  document.getElementById("version").textContent = `icefloe ${lake.version}`;
  drawTables();
  if (!early) route(); else mark();
  loadCounts().catch(() => {});
}

takeToken();
start();
