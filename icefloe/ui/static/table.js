// One table: its life, files, columns, upkeep and details.

import { get } from "./api.js";
import { bars, describe, healthLegend, histogram, life, overlap, stack, statementOf, treemap, density } from "./charts.js";
import { alertBox, bytes, command, count, facts, grid, h, int, lasts, meter, percent, pill, precisely, put, short, since, skeleton, when } from "./dom.js";

const TABS = { life: ["Life", lifeTab], files: ["Files", filesTab], columns: ["Columns", columnsTab], upkeep: ["Upkeep", upkeepTab], details: ["Details", detailsTab] };
let open = null; // the table on the page, so that another tab keeps its head

export async function tableView(main, name, tab, signal) {
  const at = TABS[tab] ? tab : "life";
  if (open?.name !== name || !main.contains(open.panel)) {
    const summary = get("table", { table: name }); // not stopped with a view: all of them need it
    const head = h("div", {}, h("p", { cls: "crumb", text: name.slice(0, Math.max(0, name.lastIndexOf("."))) || " " }),
      h("div", { cls: "title" }, h("h1", { text: name.slice(name.lastIndexOf(".") + 1) }), h("div", { cls: "row" }, h("a", { cls: "button", href: `#/sql/${encodeURIComponent(name)}`, text: "Query" }), h("button", { type: "button", cls: "button", text: "Refresh", onclick: () => { open = null; dispatchEvent(new Event("hashchange")); } }))));
    const metrics = h("dl", { cls: "card metrics" }, ["Rows", "Data files", "Delete files", "Size", "Snapshots", "Last change"].map((title) => h("div", {}, h("dt", { text: title }), h("dd", { text: "…" }))));
    const tabs = h("div", { cls: "tabs", role: "tablist", "aria-label": "Views of the table" }, Object.entries(TABS).map(([key, [title]]) => h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", text: title, onclick: () => { location.hash = `#/table/${encodeURIComponent(name)}/${key}`; } })));
    tabs.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const all = [...tabs.children];
      const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
      next.focus();
      next.click();
    });
    const panel = h("div", { role: "tabpanel", id: "panel", tabindex: -1 });
    open = { name, summary, tabs, panel };
    put(main, head, metrics, tabs, panel);
    drawMetrics(metrics, summary);
  }
  for (const one of open.tabs.children) {
    const chosen = one.id === `tab-${at}`;
    one.setAttribute("aria-selected", chosen);
    one.tabIndex = chosen ? 0 : -1;
  }
  const panel = open.panel;
  panel.setAttribute("aria-labelledby", `tab-${at}`);
  put(panel, skeleton("block"));
  try {
    const content = await TABS[at][1](name, signal, open.summary);
    if (!signal.aborted) put(panel, content);
  } catch (error) {
    if (!signal.aborted) put(panel, alertBox(error.message));
  }
}

async function drawMetrics(metrics, summary) {
  try {
    const facts = await summary;
    const cells = [int(facts.rows), int(facts.data_files), int(facts.delete_files), bytes(facts.bytes), int(facts.snapshots), facts.snapshot ? since(facts.snapshot.made_at) : "never"];
    const notes = [null, null, null, null, null, facts.snapshot ? `${facts.snapshot.statement ?? facts.snapshot.operation}` : null];
    if (facts.inline?.rows) notes[0] = `and ${int(facts.inline.rows)} inline`;
    [...metrics.querySelectorAll("dd")].forEach((cell, i) => put(cell, cells[i], notes[i] ? h("small", { text: notes[i] }) : null));
  } catch { /* the panel shows the error */ }
}

const empty = (text) => h("div", { cls: "card empty" }, h("p", { text }));

// ---------------------------------------------------------------------------------------------
// Life

async function lifeTab(name, signal) {
  const { snapshots, older } = await get("timeline", { table: name }, signal);
  if (!snapshots.length) return empty("The table has no snapshot yet: nothing was written.");
  const detail = h("div", { cls: "card", "aria-live": "polite", "aria-label": "The chosen snapshots" });
  const groups = bars(snapshots);
  const chart = life(groups, (group) => put(detail, snapshotDetail(group, snapshots)));
  put(detail, snapshotDetail(groups[groups.length - 1], snapshots));
  const grouped = groups.length < snapshots.length ? `Each bar is ${Math.ceil(snapshots.length / groups.length)} snapshots. ` : "";
  return [
    h("div", { cls: "card" },
      h("div", { cls: "card-head" }, h("h2", { text: "What each snapshot did" }), h("div", { cls: "legend" },
        [["var(--teal)", "rows inserted"], ["var(--blue)", "updated"], ["var(--rust)", "deleted"], ["var(--ice-deep)", "bytes in the table"]].map(([c, text]) => h("span", {}, h("i", { vars: { c } }), text)))),
      chart.box,
      h("p", { cls: "note", text: `${grouped}${older ? `${int(older)} older snapshots are not shown. ` : ""}Heights grow with the square root of the rows. Click a bar, or move with the arrow keys.` })),
    detail,
    historyList(snapshots, chart, groups),
  ];
}

const signed = (n, sign, cls) => (n ? h("span", { cls, text: `${sign}${int(n)}` }) : h("span", { cls: "faint", text: "0" }));

const both = (added, removed) => (added && removed ? h("span", {}, signed(added, "+", "plus"), " ", signed(removed, "−", "minus")) : removed ? signed(removed, "−", "minus") : signed(added, "+", "plus"));

function snapshotDetail(group, all) {
  if (group.members.length > 1) {
    return [h("div", { cls: "card-head" }, h("h2", { text: `${count(group.members.length, "snapshot")}` }), h("span", { cls: "note", text: `${when(group.first.at)} to ${when(group.last.at)}` })),
      h("p", { text: describe(group) }),
      snapshotTable(group.members.slice().reverse(), "The snapshots of the chosen bar")];
  }
  const one = group.first;
  const parent = all.find((other) => other.id === one.parent);
  const grew = parent && one.total_bytes !== undefined ? one.total_bytes - (parent.total_bytes ?? 0) : null;
  const scanned = one.scanned ?? 0, skipped = one.skipped ?? 0;
  return [
    h("div", { cls: "card-head" }, h("div", { cls: "row" }, h("h2", { text: statementOf(one) }), one.mode ? pill(one.mode) : null, (one.refs ?? []).map((ref) => pill(ref, "accent")), one.current ? null : pill("not in main", "warn")), h("span", { cls: "note", text: `${precisely(one.at)} · ${since(one.at)}` })),
    h("div", { cls: "grid3" },
      facts([["Rows inserted", signed(one.inserted, "+", "plus")], ["Rows updated", signed(one.updated, "", "changed")], ["Rows deleted", signed(one.deleted, "−", "minus")], one.copied ? ["Rows copied", int(one.copied)] : null]),
      facts([["Data files", both(one.files_added, one.files_removed)], ["Delete files", both(one.deletes_added, one.deletes_removed)], ["Bytes written", bytes(one.bytes_added ?? 0)], one.bytes_copied ? ["Copied as bytes", bytes(one.bytes_copied)] : null, grew === null ? null : ["The table", `${grew >= 0 ? "+" : "−"}${bytes(Math.abs(grew))}, now ${bytes(one.total_bytes)}`]]),
      facts([["Snapshot", h("code", { text: one.id })], scanned + skipped ? ["Files read", `${int(scanned)} of ${int(scanned + skipped)}`] : null, one.partitions ? ["Partitions changed", int(one.partitions)] : null, one.predicate ? ["Predicate", h("code", { text: one.predicate })] : null, one.schema ? ["Schema", `version ${one.schema}`] : null])),
  ];
}

function snapshotTable(rows, caption, options = {}) {
  return grid([
    { title: "When", cls: "at", cell: (one) => precisely(one.at) },
    { title: "Statement", head: false, cell: (one) => h("span", { cls: "row" }, pill(statementOf(one), statementOf(one)), (one.refs ?? []).map((ref) => pill(ref, "accent")), one.current ? null : pill("not in main", "warn")) },
    { title: "Inserted", num: true, cell: (one) => signed(one.inserted, "+", "plus") },
    { title: "Updated", num: true, cell: (one) => signed(one.updated, "", "changed") },
    { title: "Deleted", num: true, cell: (one) => signed(one.deleted, "−", "minus") },
    { title: "Files", num: true, cell: (one) => both(one.files_added, one.files_removed) },
    { title: "Delete files", num: true, cell: (one) => both(one.deletes_added, one.deletes_removed) },
    { title: "Written", num: true, cell: (one) => bytes(one.bytes_added ?? 0) },
    { title: "Snapshot", cls: "mono at", cell: (one) => one.id },
  ], rows, { caption, tall: true, ...options });
}

const PAGE = 50;
function historyList(snapshots, chart, groups) {
  const newest = snapshots.slice().reverse();
  let shown = PAGE;
  const box = h("div", { cls: "card" });
  const draw = () => put(box, h("div", { cls: "card-head" }, h("h2", { text: "Snapshots" }), h("span", { cls: "note", text: `the newest ${int(Math.min(shown, newest.length))} of ${int(newest.length)}` })),
    snapshotTable(newest.slice(0, shown), "Snapshots, the newest first"),
    shown < newest.length ? h("button", { type: "button", cls: "button", text: `Show ${Math.min(PAGE * 4, newest.length - shown)} more`, onclick: () => { shown += PAGE * 4; draw(); } }) : null);
  draw();
  return box;
}

// ---------------------------------------------------------------------------------------------
// Files

async function filesTab(name, signal) {
  const map = await get("files", { table: name }, signal);
  if (!map.total.files) return empty("The current snapshot has no data file.");
  const card = h("div", { cls: "card" });
  let by = "deletes", partition = map.partitioned ? null : "", inside = null;

  async function load() {
    inside = partition === null ? null : await get("files", { table: name, partition }, signal);
    draw();
  }
  function draw() {
    const items = partition === null ? map.partitions : inside.files;
    const rest = partition === null ? map.others : inside.others;
    const tiles = rest ? [...items, { ...rest, label: partition === null ? `${int(rest.partitions)} smaller partitions` : `${int(rest.files)} smaller files`, rest: true }] : items;
    const go = partition === null ? (one) => { if (!one.rest) { partition = one.label; load(); } } : null;
    const kind = partition === null ? "Partitions" : "Files";
    put(card,
      h("div", { cls: "card-head" },
        h("div", { cls: "row" }, h("h2", { text: partition === null ? "Partitions by bytes" : map.partitioned ? `Files of ${partition || "no partition"}` : "Files by bytes" }),
          partition !== null && map.partitioned ? h("button", { type: "button", cls: "button", text: "All partitions", onclick: () => { partition = null; draw(); card.querySelector(".treemap button")?.focus(); } }) : null),
        h("div", { cls: "switch", role: "group", "aria-label": "Colour of the tiles" }, [["deletes", "Deletes"], ["size", "File sizes"]].map(([key, text]) => h("button", { type: "button", text, "aria-pressed": by === key, onclick: (event) => { by = key; draw(); [...card.querySelectorAll(".switch button")].find((b) => b.textContent === event.target.textContent)?.focus(); } })))),
      treemap(tiles, by, go),
      h("div", { cls: "legend" }, by === "size" ? healthLegend() : [h("span", {}, h("i", {}), "no row deleted"), h("span", { cls: "scaled" }, "few rows deleted ", h("i", { cls: "scale" }), "all")]),
      h("details", {}, h("summary", { text: `${kind} as a list` }), fileTable(items, kind, go)));
  }
  await load();
  const total = map.total;
  return [card, h("div", { cls: "grid2" },
    h("div", { cls: "card" }, h("div", { cls: "card-head" }, h("h2", { text: "File sizes" }), h("span", { cls: "note", text: `target ${bytes(map.target)}` })), histogram(map.histogram, map.target),
      h("p", { cls: "note", text: `${int(total.small)} of ${count(total.files, "file")} are small for the target, ${int(total.large)} are large. ${total.files ? `On average a file has ${bytes(total.bytes / total.files)}.` : ""}` })),
    h("div", { cls: "card" }, h("h2", { text: "Deletes" }), h("p", { cls: "big" }, percent(density(total)), " ", h("small", { text: "of the rows in files are deleted" })), meter(density(total), "var(--rust)"),
      facts([["Rows in files", int(total.rows)], ["Deleted by position", int(total.deleted)], ["Delete files", `${int(map.delete_files)}, ${bytes(map.delete_bytes)}`], total.equality ? ["Equality deletes", "apply to some files; their rows are not counted"] : null])))];
}

function fileTable(items, kind, go) {
  return grid([
    { title: kind.slice(0, -1), head: true, cls: "wrap", cell: (one) => (go ? h("a", { href: location.hash, text: one.label || "all rows", onclick: (event) => { event.preventDefault(); go(one); } }) : one.label) },
    { title: "Files", num: true, cell: (one) => int(one.files) },
    { title: "Size", num: true, cell: (one) => bytes(one.bytes) },
    { title: "Rows", num: true, cell: (one) => int(one.rows) },
    { title: "Deleted", cell: (one) => h("span", { cls: "with-meter" }, h("span", { text: one.deleted ? percent(density(one)) : "0 %" }), meter(density(one), "var(--rust)")) },
    { title: "For the target", cell: (one) => [one.small ? pill(`${int(one.small)} small`, "warn") : null, one.large ? pill(`${int(one.large)} large`, "bad") : null, one.small + one.large === 0 ? pill("good", "good") : null] },
  ], items, { caption: `${kind} by bytes`, tall: true });
}

// ---------------------------------------------------------------------------------------------
// Columns

async function columnsTab(name, signal) {
  const data = await get("columns", { table: name }, signal);
  const chart = h("div", { cls: "card" });
  const pruned = h("div", { cls: "gaps", "aria-live": "polite" });
  const bounded = data.columns.filter((one) => one.opened !== undefined && one.opened !== null);
  const best = bounded.slice().sort((a, b) => a.opened - b.opened)[0];

  async function show(column) {
    try {
      const found = await get("overlap", { table: name, column }, signal);
      put(chart, h("div", { cls: "card-head" }, h("div", { cls: "row" }, h("h2", { text: "Bounds of files in" }), picker(column)),
        h("span", { cls: "note", text: found.opened === null ? "" : `an equality opens ${percent(found.opened)} of ${count(found.files, "file")} on average` })),
      overlap(found),
      h("p", { cls: "note", text: `Each line is a file, from its least to its greatest value${found.every > 1 ? ` (one of every ${found.every} files)` : ""}; above, how many files lie over each other. ${found.scale === "rank" ? "Values are placed by rank. " : ""}The less they overlap, the fewer files a condition opens.` }));
    } catch (error) { if (!signal.aborted) put(chart, alertBox(error.message)); }
  }
  const picker = (chosen) => {
    const select = h("select", { "aria-label": "Column", onchange: (event) => show(event.target.value).then(() => chart.querySelector("select")?.focus()) }, bounded.map((one) => h("option", { value: one.name, text: one.name, selected: one.name === chosen })));
    return select;
  };
  if (best) await show(best.name); else put(chart, h("p", { cls: "note", text: "No file has bounds of a column." }));

  const input = h("input", { id: "where", cls: "mono", placeholder: bounded.length ? example(best) : "id = 7", spellcheck: "false", autocomplete: "off" });
  const form = h("form", { cls: "row", onsubmit: async (event) => {
    event.preventDefault();
    try { put(pruned, openedFiles(await get("opened", { table: name, where: input.value }, signal))); } catch (error) { if (!signal.aborted) put(pruned, alertBox(error.message)); }
  } }, h("label", { for: "where", text: "WHERE" }), h("span", { cls: "grow" }, input), h("button", { cls: "button primary", type: "submit", text: "Which files?" }));
  return [
    h("div", { cls: "card" }, h("h2", { text: "Which files would a condition open?" }), form, pruned),
    chart,
    h("div", { cls: "card" }, h("h2", { text: "Columns" }), grid([
      { title: "Column", head: true, cell: (one) => one.name },
      { title: "Type", cls: "mono", cell: (one) => one.type },
      ...(data.columns.some((one) => one.required) ? [{ title: "", cell: (one) => (one.required ? pill("required") : "") }] : []),
      { title: "Bytes", cell: (one) => h("span", { cls: "with-meter" }, h("span", { text: bytes(one.bytes) }), meter(one.share)) },
      { title: "NULLs", num: true, cell: (one) => (one.nulls === null ? h("span", { cls: "faint", text: "unknown" }) : percent(one.nulls)) },
      { title: "An equality opens", cell: (one) => (one.opened === undefined || one.opened === null ? h("span", { cls: "faint", text: "no bounds" }) : h("span", { cls: "with-meter" }, h("span", { text: percent(one.opened) }), meter(one.opened, one.opened > 0.5 ? "var(--rust)" : "var(--teal)"))) },
      ...(data.columns.some((one) => one.doc) ? [{ title: "Comment", cls: "wrap", cell: (one) => one.doc ?? "" }] : []),
    ], data.columns, { caption: "Columns" })),
    h("div", { cls: "card" }, h("h2", { text: "How the schema changed" }), grid([
      { title: "Version", cell: (one) => h("span", { cls: "row" }, `${one.id}`, one.current ? pill("current", "good") : null) },
      { title: "Changes", cls: "wrap", cell: (one) => (one.changes.length ? h("ul", {}, one.changes.map((change) => h("li", {}, pill(change.what, change.what), " ", changeText(change)))) : h("span", { cls: "faint", text: one.id === data.versions[0].id ? "the first version" : "no column changed" })) },
      { title: "Columns", num: true, cell: (one) => int(one.columns) },
      { title: "First used", cell: (one) => (one.at ? when(one.at) : h("span", { cls: "faint", text: "by no snapshot" })) },
    ], data.versions.slice().reverse(), { caption: "Versions of the schema, the newest first" })),
  ];
}
const example = (column) => (/int|decimal|double|float/.test(column.type) ? `${column.name} = 7` : column.type === "date" ? `${column.name} >= DATE'2026-01-01'` : column.type.startsWith("timestamp") ? `${column.name} >= TIMESTAMP'2026-01-01 00:00:00'` : `${column.name} = 'a'`);

function changeText(change) {
  if (change.what === "renamed") return h("span", {}, h("code", { text: change.from }), " to ", h("code", { text: change.column }));
  if (change.what === "widened") return h("span", {}, h("code", { text: change.column }), ` from ${change.from} to ${change.type}`);
  return h("span", {}, h("code", { text: change.column }), change.type ? ` ${change.type}` : "");
}

const REASONS = { partition: "var(--ice-deep)", "column bounds": "var(--ice)" };
export function funnel(total, opened, skipped) {
  const reasons = Object.entries(skipped);
  const parts = [{ n: opened, colour: "var(--accent)", text: `${count(opened, "file")} opened` }, ...reasons.map(([reason, n]) => ({ n, colour: REASONS[reason] ?? "var(--grey)", text: `${int(n)} skipped by ${reason}` }))];
  return [stack(parts), h("div", { cls: "legend" }, parts.map((one) => h("span", {}, h("i", { vars: { c: one.colour } }), one.text)))];
}

function openedFiles(found) {
  return [
    h("p", { cls: "big" }, int(found.opened), " ", h("small", { text: `of ${count(found.files, "file")} would be opened: ${bytes(found.opened_bytes)} of ${bytes(found.bytes)}` })),
    ...funnel(found.files, found.opened, found.skipped),
    found.understood ? null : h("p", { cls: "note", text: "The condition rules out no file: metadata says nothing about it, or it is not a condition on columns of the table." }),
    found.covered ? h("p", { cls: "note", text: `It is true for every row of ${count(found.covered, "file")}: a DELETE drops these whole.` }) : null,
    found.notes.map((note) => h("p", { cls: "note", text: note })),
    found.shown.length ? grid([
      { title: "File", head: true, cls: "wrap", cell: (one) => one.file },
      { title: "Partition", cls: "wrap", cell: (one) => one.partition },
      { title: "Rows", num: true, cell: (one) => int(one.rows) },
      { title: "Size", num: true, cell: (one) => bytes(one.bytes) },
      { title: "", cell: (one) => (one.covered ? pill("every row", "accent") : "") },
    ], found.shown, { caption: `Files that would be opened${found.opened > found.shown.length ? `, the first ${found.shown.length}` : ""}`, tall: true }) : null,
  ];
}

// ---------------------------------------------------------------------------------------------
// Upkeep

async function upkeepTab(name, signal) {
  const data = await get("upkeep", { table: name }, signal);
  return [
    h("p", { cls: "note", text: "Estimates from metadata. Nothing is run from this page." }),
    h("div", { cls: "grid3" }, compactCard(data.compact, data.commands.compact), expireCard(data.expire, name, signal, data.commands.expire), flushCard(data.flush, data.commands.flush)),
    indexesCard(data.indexes),
  ];
}
const upkeepCard = (title, badge, content, text) => h("section", { cls: "card upkeep", "aria-label": title }, h("div", { cls: "card-head" }, h("h2", { text: title }), badge), content, command(text));

function compactCard(found, text) {
  if (found.refused) return upkeepCard("Compact", pill("refused", "bad"), h("p", { cls: "note", text: found.refused }), text);
  if (!found.files_in) return upkeepCard("Compact", pill("nothing to do", "good"), h("p", { cls: "note", text: `No file would gain: the target is ${bytes(found.target)}, there are no deletes, and nothing to combine or split.` }), text);
  const saved = found.bytes_in - found.bytes_out;
  return upkeepCard("Compact", pill(found.files_after < found.files ? "worth it" : "optional", found.files_after < found.files ? "warn" : ""), [
    h("p", { cls: "big" }, int(found.files), h("span", { cls: "arrow", "aria-label": "to", text: "→" }), int(found.files_after), " ", h("small", { text: "data files" })),
    facts([["Rewrites", `${count(found.files_in, "file")} of ${bytes(found.bytes_in)}`], ["Writes", `about ${count(found.files_out, "file")} of ${bytes(found.bytes_out)}`], saved > 0 ? ["Frees", `${bytes(saved)}, once old snapshots expire`] : null, found.rows_dropped ? ["Drops", `${int(found.rows_dropped)} deleted rows`] : null, found.with_deletes ? ["With deletes", count(found.with_deletes, "file")] : null, found.repartitioned ? ["Repartitions", `${count(found.repartitioned, "file")} of an earlier partitioning`] : null])], text);
}

function expireCard(found, name, signal, text) {
  const files = h("div", { "aria-live": "polite" });
  const kept = `${found.min_snapshots > 1 ? `at least ${found.min_snapshots} and ` : ""}those younger than ${lasts(found.max_age_ms)}`;
  const ages = facts([["Keeps", kept], found.oldest ? ["Oldest snapshot", since(found.oldest)] : null, found.refs.length ? ["Refs", found.refs.join(", ")] : null]);
  if (found.refused) return upkeepCard("Expire", pill("refused", "bad"), [h("p", { cls: "note", text: found.refused })], text);
  if (!found.expired) return upkeepCard("Expire", pill("nothing to do", "good"), [h("p", { cls: "big" }, "0 ", h("small", { text: `of ${count(found.snapshots, "snapshot")} would expire` })), ages], text);
  const button = h("button", { type: "button", cls: "button", text: "Count the files", onclick: async () => {
    button.disabled = true;
    put(files, h("p", { cls: "busy", text: "Reading the manifests of every snapshot…" }));
    try {
      const counted = await get("expired", { table: name }, signal);
      put(files, facts([["Deletes", `up to ${count(counted.files, "file")}`], ["Frees", `up to ${bytes(counted.bytes)}`], ...Object.entries(counted.by_kind).map(([kind, n]) => [kind, int(n)])]));
      button.remove();
    } catch (error) { if (!signal.aborted) { put(files, alertBox(error.message)); button.disabled = false; } }
  } });
  return upkeepCard("Expire", pill("worth it", "warn"), [h("p", { cls: "big" }, int(found.expired), " ", h("small", { text: `of ${count(found.snapshots, "snapshot")} would expire` })), ages, button, files], text);
}

function flushCard(found, text) {
  if (found === null) return upkeepCard("Flush", pill("no inline tier"), h("p", { cls: "note", text: "Rows of this table are in files alone. The property icefloe.inline.enabled stores small writes in the catalog's database first." }), text);
  if (found.problem) return upkeepCard("Flush", pill("unknown", "bad"), h("p", { cls: "note", text: found.problem }), text);
  const waiting = found.rows + found.deletes;
  return upkeepCard("Flush", found.is_due ? pill("due", "warn") : pill(waiting ? "not due yet" : "nothing to do", "good"), [
    h("p", { cls: "big" }, int(found.rows), " ", h("small", { text: `inline ${found.rows === 1 ? "row" : "rows"}, about ${bytes(found.bytes)}` })),
    meter(waiting / Math.max(1, found.row_limit), found.is_due ? "var(--rust)" : "var(--ice-deep)"),
    facts([["Limit", `${int(found.row_limit)} rows${found.max_age_ms ? `, ${lasts(found.max_age_ms)}` : ""}`], found.oldest ? ["Oldest", since(found.oldest)] : null, ["Inline deletes", `${int(found.deletes)} rows of files`], ["Writes", waiting ? "data files, one snapshot" : "nothing"]]), waiting ? h("p", { cls: "note", text: "Other engines see these rows after the flush." }) : null], text);
}

function indexesCard(indexes) {
  const content = indexes.length ? grid([
    { title: "Index", head: true, cell: (one) => one.name },
    { title: "Kind", cell: (one) => pill(one.kind) },
    { title: "Columns", cls: "mono wrap", cell: (one) => one.columns.join(", ") },
    { title: "Files covered", cell: (one) => h("span", { cls: "with-meter" }, h("span", { text: one.files ? percent(one.files_covered / one.files) : "–" }), meter(one.files ? one.files_covered / one.files : 0, "var(--teal)")) },
    { title: "Rows covered", num: true, cell: (one) => `${int(one.rows_covered)} of ${int(one.rows)}` },
    { title: "", cls: "wrap", cell: (one) => (one.problem ? alertText(one.problem) : "") },
  ], indexes, { caption: "Indexes" }) : h("p", { cls: "note", text: "The table has no index." });
  return h("div", { cls: "card" }, h("h2", { text: "Indexes" }), content);
}
const alertText = (text) => h("span", {}, pill("not used", "bad"), ` ${text}`);

// ---------------------------------------------------------------------------------------------
// Details

async function detailsTab(name, signal, loading) {
  const summary = await loading;
  const specs = summary.specs;
  return [
    summary.problem ? alertBox(summary.problem) : null,
    h("div", { cls: "card" }, h("h2", { text: "Table" }), facts([["Name", h("code", { text: name })], ["Location", h("code", { text: summary.location })], ["Format version", String(summary.format_version)], ["Partitioned by", summary.partition_by.length ? h("code", { text: summary.partition_by.join(", ") }) : "nothing"], ["Sorted by", summary.sort_by.length ? h("code", { text: summary.sort_by.join(", ") }) : "nothing"], summary.snapshot ? ["Current snapshot", h("code", { text: summary.snapshot.id })] : null])),
    specs.length > 1 ? h("div", { cls: "card" }, h("h2", { text: "How the partitioning changed" }), grid([{ title: "Spec", cell: (one) => h("span", { cls: "row" }, String(one.id), one.current ? pill("current", "good") : null) }, { title: "Fields", cls: "mono wrap", cell: (one) => one.fields.join(", ") || "unpartitioned" }], specs, { caption: "Partition specs" })) : null,
    summary.refs.length ? h("div", { cls: "card" }, h("h2", { text: "Branches and tags" }), grid([{ title: "Name", head: true, cell: (one) => one.name }, { title: "Kind", cell: (one) => pill(one.kind) }, { title: "Snapshot", cls: "mono", cell: (one) => one.snapshot }], summary.refs, { caption: "Branches and tags" })) : null,
    h("div", { cls: "card" }, h("h2", { text: "Properties" }), Object.keys(summary.properties).length ? grid([{ title: "Property", head: true, cls: "mono", cell: ([key]) => key }, { title: "Value", cls: "mono wrap", cell: ([, value]) => value }], Object.entries(summary.properties), { caption: "Properties of the table" }) : h("p", { cls: "note", text: "None is set." })),
  ];
}
