// The SQL box: queries and EXPLAIN. What writes is refused by the server, whatever this page sends.

import { post } from "./api.js";
import { alertBox, bytes, count, facts, grid, h, int, pill, put, s } from "./dom.js";
import { funnel } from "./table.js";

let text = "";
let shown = null; // the last answer, so that it is there when one comes back

const quoted = (name) => name.split(".").map((part) => (/^[A-Za-z_]\w*$/.test(part) ? part : `\`${part.replaceAll("`", "``")}\``)).join(".");

export function sqlView(main, tables, table) {
  if (table) text = `SELECT * FROM ${quoted(table)} LIMIT 50`;
  const box = h("textarea", { id: "sql", spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-describedby": "sql-help", placeholder: tables.length ? `SELECT * FROM ${quoted(tables[0])} LIMIT 50` : "SELECT 1" });
  box.value = text;
  box.addEventListener("input", () => { text = box.value; });
  const run = h("button", { type: "submit", cls: "button primary", text: "Run" });
  const explain = h("button", { type: "button", cls: "button", text: "Explain" });
  const result = h("div", { "aria-live": "polite", id: "result" });

  async function send(statement) {
    if (!statement.trim()) { box.focus(); return; }
    run.disabled = explain.disabled = true;
    const began = performance.now();
    const clock = h("span", { text: "Running" });
    const stop = h("button", { type: "button", cls: "button", text: "Cancel", onclick: () => post("sql/cancel", {}).catch(() => {}) });
    put(result, h("div", { cls: "card" }, h("div", { cls: "row" }, h("div", { cls: "busy", "aria-hidden": "true" }, clock), stop)));
    const ticking = setInterval(() => { const spent = (performance.now() - began) / 1000; clock.textContent = `Running for ${spent.toFixed(0)} s${spent > 2 ? ". The first statement starts Spark." : ""}`; }, 500);
    try {
      shown = answerView(await post("sql", { text: statement }));
    } catch (error) {
      shown = alertBox(error.message);
    }
    clearInterval(ticking);
    run.disabled = explain.disabled = false;
    put(result, shown);
  }
  const explained = () => (/^\s*explain\b/i.test(box.value) ? box.value : `EXPLAIN ${box.value.trimStart()}`);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(event.shiftKey ? explained() : box.value); }
  });
  explain.addEventListener("click", () => send(explained()));
  const chips = tables.slice(0, 6).map((name) => h("button", { type: "button", text: name, title: `Query ${name}`, onclick: () => { text = box.value = `SELECT * FROM ${quoted(name)} LIMIT 50`; box.focus(); } }));
  put(main,
    h("div", { cls: "title" }, h("div", {}, h("h1", { text: "SQL" }), h("p", { cls: "note", id: "sql-help" }, "Queries, EXPLAIN, DESCRIBE and SHOW. EXPLAIN of UPDATE, DELETE, MERGE and INSERT shows what they would do; nothing is changed here."))),
    h("form", { cls: "card", onsubmit: (event) => { event.preventDefault(); send(box.value); } },
      h("label", { cls: "hidden", for: "sql", text: "Statement" }), box,
      h("div", { cls: "row" }, run, explain, h("span", { cls: "note" }, h("kbd", { text: "Ctrl" }), " ", h("kbd", { text: "Enter" }), " runs, with ", h("kbd", { text: "Shift" }), " explains")),
      h("div", { cls: "chips", role: "group", "aria-label": "Tables to query" }, chips)),
    result);
  if (shown) put(result, shown);
}

function answerView(answer) {
  if (answer.kind === "rows") return rowsView(answer);
  if (answer.kind === "plan") return planView(answer);
  return h("div", { cls: "card" }, h("h2", { text: "Plan" }), h("pre", { tabindex: 0, text: answer.text }));
}

function rowsView(answer) {
  const n = answer.rows.length;
  return h("div", { cls: "card" },
    h("div", { cls: "card-head" }, h("h2", { text: answer.more ? `The first ${int(n)} rows` : count(n, "row") }), h("span", { cls: "note", text: `${answer.seconds.toFixed(1)} s` })),
    grid(answer.columns.map((column, at) => ({ title: column.name, num: column.numeric, cell: (row) => (row[at] === null ? h("span", { cls: "null", text: "NULL" }) : row[at]) })), answer.rows, { caption: "Result", tall: true }),
    answer.more ? h("p", { cls: "note", text: `There are more rows: the page shows ${int(n)}. Add a condition, or use lake.sql().` }) : null);
}

// ---------------------------------------------------------------------------------------------
// A plan as a drawing: the statement, the files it needs and those it skips, what happens, the commit

const arrow = () => h("div", { cls: "to", "aria-hidden": "true" }, s("svg", { viewBox: "0 0 20 20", fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round" }, s("path", { d: "M3 10h13M11 5l5 5-5 5" })));
const step = (title, ...content) => h("div", { cls: "step" }, h("h3", { text: title }), content);
const ACTIONS = { drop: ["drop whole, by metadata", "good"], rewrite: ["rewrite", "bad"], "write deletes": ["write deletes for", "accent"] };

function planView(plan) {
  const total = plan.candidates + plan.skipped;
  const actions = Object.entries(plan.actions);
  return h("div", { id: "plan" },
    h("div", { cls: "card" },
      h("div", { cls: "card-head" }, h("h2", { text: `What ${plan.operation.toUpperCase()} would do` }), h("div", { cls: "row" }, pill(plan.mode), pill(plan.isolation), h("span", { cls: "note", text: `${plan.seconds.toFixed(1)} s` }))),
      h("div", { cls: "flow" },
        step("Statement", h("p", {}, h("b", { text: plan.operation.toUpperCase() }), ` ${plan.table}`), plan.assignments.map((one) => h("code", { text: `SET ${one}` })), plan.where ? h("code", { text: `${plan.join === null ? "WHERE" : "ON"} ${plan.where}` }) : null, plan.clauses.map((one) => h("code", { text: one })), plan.join ? h("p", { cls: "note", text: `${plan.join} join` }) : null),
        arrow(),
        step(`${count(total, "data file")}`, funnel(total, plan.candidates, plan.skipped_by), h("p", { cls: "note", text: `${count(plan.manifests_read, "manifest")} read, ${int(plan.manifests_cached)} of them from the cache, ${int(plan.manifests_skipped)} skipped` })),
        arrow(),
        step("What happens", actions.length ? h("ul", {}, actions.map(([name, n]) => h("li", {}, h("span", { text: ACTIONS[name]?.[0] ?? name }), h("b", { text: count(n, "file") })))) : h("p", { text: "No file has to change." }), plan.inline ? h("p", { cls: "note", text: `Inline: ${plan.inline}` }) : null, facts([["Reads", `about ${bytes(plan.bytes_read)}`], ["Writes", `at most ${bytes(plan.bytes_written)}`]])),
        arrow(),
        step("Commit", h("p", { text: "one snapshot" }), h("p", { cls: "note", text: plan.snapshot ? `on top of ${plan.snapshot}` : "the first of the table" }))),
      h("details", {}, h("summary", { text: "Why" }), h("ul", {}, plan.reasons.map((one) => h("li", { cls: "note", text: one })))),
      h("details", {}, h("summary", { text: "As text" }), h("pre", { tabindex: 0, text: plan.text }))),
    plan.files.length ? h("div", { cls: "card" }, h("h2", { text: `Opened: ${count(plan.candidates, "file")}` }), grid([
      { title: "File", head: true, cls: "wrap", cell: (one) => one.path },
      { title: "Rows", num: true, cell: (one) => int(one.rows) },
      { title: "Size", num: true, cell: (one) => bytes(one.bytes) },
      { title: "What happens", cell: (one) => pill(one.action, ACTIONS[one.action]?.[1] ?? "warn") },
      { title: "Why", cls: "wrap", cell: (one) => one.reason },
    ], plan.files, { caption: "Files that the statement opens", tall: true })) : null,
    plan.skipped_files.length ? h("div", { cls: "card" }, h("h2", { text: `Skipped: ${count(plan.skipped, "file")}` }), grid([
      { title: "File", head: true, cls: "wrap", cell: (one) => one.path },
      { title: "Ruled out by", cell: (one) => pill(one.reason) },
    ], plan.skipped_files, { caption: "Files that the statement skips", tall: true })) : null);
}
