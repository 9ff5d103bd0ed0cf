// Elements are made here, never from markup: what a table says is text, whatever it looks like.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name === "text") node.textContent = value;
    else if (name === "vars") for (const [key, val] of Object.entries(value)) { if (val !== undefined) node.style.setProperty(`--${key}`, val); }
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name === "cls" ? "class" : name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
export const put = (node, ...children) => { node.replaceChildren(...children.flat(Infinity).filter(Boolean)); return node; };

// Numbers, bytes and times for people.
const integers = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moments = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const seconds = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const ago = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

export const int = (value) => (value === null || value === undefined ? "unknown" : integers.format(value));
export const short = (value) => (value === null || value === undefined ? "?" : compact.format(value));
export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
export const percent = (value) => (value > 0 && value < 0.001 ? "< 0.1 %" : `${+(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`);
export const when = (ms) => moments.format(new Date(ms));
export const precisely = (ms) => seconds.format(new Date(ms));
export function since(ms) {
  const past = (ms - Date.now()) / 1000;
  for (const [unit, size] of [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(past) >= size) return ago.format(Math.round(past / size), unit);
  }
  return "just now";
}
export function lasts(ms) {
  for (const [unit, size] of [["day", 86400000], ["hour", 3600000], ["minute", 60000]]) {
    if (ms >= size) { const n = +(ms / size).toFixed(1); return `${n} ${unit}${n === 1 ? "" : "s"}`; }
  }
  return `${Math.round(ms / 1000)} seconds`;
}
export const count = (n, one, many = `${one}s`) => `${int(n)} ${n === 1 ? one : many}`;

// Pieces that several views have.
export const pill = (text, kind = "") => h("span", { cls: `pill ${kind}`, text });
export const alertBox = (text) => h("div", { cls: "alert", role: "alert", text });
export const skeleton = (kind = "block") => h("div", { cls: `skeleton ${kind}`, "aria-hidden": "true" });
export const meter = (share, colour) => h("span", { cls: "meter", "aria-hidden": "true" }, h("i", { vars: { v: Math.min(1, share), c: colour } }));
export const facts = (pairs) => h("dl", { cls: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", { text: name }), h("dd", {}, value)]));

export function grid(columns, rows, options = {}) {
  const head = h("tr", {}, columns.map((c) => h("th", { scope: "col", cls: c.num ? "num" : "", text: c.title })));
  const body = rows.map((row, i) => h("tr", options.row?.(row, i) ?? {}, columns.map((c, at) => {
    const value = c.cell(row, i);
    const cls = `${c.num ? "num" : ""} ${c.cls ?? ""}`.trim();
    return h(at === 0 && c.head ? "th" : "td", { cls, scope: at === 0 && c.head ? "row" : null }, value ?? "");
  })));
  const table = h("table", {}, h("caption", { cls: "hidden", text: options.caption ?? "" }), h("thead", {}, head), h("tbody", {}, body));
  return h("div", { cls: `scroll ${options.tall ? "tall" : ""}`, tabindex: 0, role: "region", "aria-label": options.caption ?? "Table" }, table);
}

export function command(text) {
  const button = h("button", { type: "button", cls: "button", text: "Copy", "aria-label": `Copy ${text}` });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return h("div", { cls: "command" }, h("code", { text }), button);
}

// One tooltip for all charts; what it says is also in the table below each chart.
const tip = document.getElementById("tip");
export function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8));
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}
export const hideTip = () => { tip.hidden = true; };
