// Charts. Each is drawn from a summary; a table beside it says the same in words.

import { bytes, count, h, hideTip, int, percent, s, short, showTip, when } from "./dom.js";

export const statementOf = (snapshot) => snapshot.statement ?? snapshot.operation ?? "unknown";

// ---------------------------------------------------------------------------------------------
// The life of a table: one bar per snapshot, or per several of a long history.

const MOST_BARS = 140;

export function bars(snapshots) {
  const step = Math.max(1, Math.ceil(snapshots.length / MOST_BARS));
  const groups = [];
  for (let at = 0; at < snapshots.length; at += step) {
    const members = snapshots.slice(at, at + step);
    const sum = (name) => members.reduce((total, one) => total + (one[name] ?? 0), 0);
    groups.push({
      members, first: members[0], last: members[members.length - 1],
      inserted: sum("inserted"), updated: sum("updated"), deleted: sum("deleted"),
    });
  }
  return groups;
}

export function describe(group) {
  const one = group.members.length === 1;
  const title = one ? `${statementOf(group.first)}, ${when(group.first.at)}` : `${count(group.members.length, "snapshot")}, ${when(group.first.at)} to ${when(group.last.at)}`;
  const rows = [["inserted", group.inserted], ["updated", group.updated], ["deleted", group.deleted]].filter(([, n]) => n).map(([name, n]) => `${int(n)} ${name}`);
  return `${title}: ${rows.length ? `rows ${rows.join(", ")}` : "no row changed"}`;
}

export function life(groups, select) {
  const box = h("div", { cls: "life", tabindex: 0, role: "slider", "aria-label": "Snapshots, oldest first", "aria-orientation": "horizontal", "aria-valuemin": 1, "aria-valuemax": groups.length });
  let chosen = groups.length - 1;
  let mark, hover, width = 0;

  function draw() {
    width = box.clientWidth || 900;
    const H = 250, top = 14, base = 128, low = 176, areaTop = 192, areaLow = 228;
    const w = width / groups.length, pad = Math.min(3, w * 0.18), bar = Math.min(46, w - 2 * pad);
    const most = Math.max(1, ...groups.map((g) => Math.max(g.inserted + g.updated, 0)));
    const least = Math.max(1, ...groups.map((g) => g.deleted));
    const up = (n) => (n ? Math.max(2, Math.sqrt(n / most) * (base - top)) : 0);
    const down = (n) => (n ? Math.max(2, Math.sqrt(n / Math.max(least, most / 12)) * (low - base)) : 0);
    const sizes = groups.map((g) => g.last.total_bytes ?? 0), largest = Math.max(1, ...sizes);
    const node = s("svg", { viewBox: `0 0 ${width} ${H}`, "aria-hidden": "true", preserveAspectRatio: "none" });
    hover = s("rect", { cls: "hover", y: 0, width: w, height: 232, rx: 4, visibility: "hidden" });
    mark = s("rect", { cls: "mark", y: 0, width: Math.max(w, 3), height: 232, rx: 4 });
    node.append(hover, mark, s("line", { cls: "base", x1: 0, x2: width, y1: base, y2: base }));
    groups.forEach((g, i) => {
      const x = i * w + (w - bar) / 2;
      const all = up(g.inserted + g.updated), part = g.inserted + g.updated ? all * g.updated / (g.inserted + g.updated) : 0;
      if (g.inserted) node.append(s("rect", { cls: "bar-in", x, y: base - all, width: bar, height: all - part, rx: Math.min(2, bar / 3) }));
      if (g.updated) node.append(s("rect", { cls: "bar-up", x, y: base - part, width: bar, height: part, rx: Math.min(2, bar / 3) }));
      if (g.deleted) node.append(s("rect", { cls: "bar-del", x, y: base, width: bar, height: down(g.deleted), rx: Math.min(2, bar / 3) }));
      if (!all && !g.deleted) node.append(s("circle", { cls: "bar-quiet", cx: x + bar / 2, cy: base, r: Math.min(4, w / 3) }));
    });
    const y = (n) => areaLow - (n / largest) * (areaLow - areaTop);
    const points = sizes.map((n, i) => `${i * w},${y(n)} ${(i + 1) * w},${y(n)}`).join(" ");
    node.append(s("polygon", { cls: "area", points: `0,${areaLow} ${points} ${width},${areaLow}` }));
    node.append(s("text", { x: 2, y: 246, text: when(groups[0].first.at) }));
    if (groups.length > 1) node.append(s("text", { x: width - 2, y: 246, "text-anchor": "end", text: when(groups[groups.length - 1].last.at) }));
    node.append(s("text", { x: width - 2, y: 188, "text-anchor": "end", text: `${bytes(sizes[sizes.length - 1])} in files` }));
    box.replaceChildren(node);
    place();
  }
  function place() {
    mark.setAttribute("x", chosen * width / groups.length);
    box.setAttribute("aria-valuenow", chosen + 1);
    box.setAttribute("aria-valuetext", describe(groups[chosen]));
  }
  function choose(at) {
    chosen = Math.max(0, Math.min(groups.length - 1, at));
    place();
    select(groups[chosen]);
  }
  const under = (event) => Math.max(0, Math.min(groups.length - 1, Math.floor((event.clientX - box.getBoundingClientRect().left) / width * groups.length)));
  box.addEventListener("pointermove", (event) => {
    const at = under(event);
    hover.setAttribute("x", at * width / groups.length);
    hover.setAttribute("visibility", "visible");
    showTip(describe(groups[at]), event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => { hover.setAttribute("visibility", "hidden"); hideTip(); });
  box.addEventListener("click", (event) => choose(under(event)));
  box.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: chosen - 1, ArrowDown: chosen - 1, ArrowRight: chosen + 1, ArrowUp: chosen + 1, PageUp: chosen - 10, PageDown: chosen + 10, Home: 0, End: groups.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - width) > 1) draw(); }).observe(box);
  queueMicrotask(draw);
  return { box, choose };
}

// ---------------------------------------------------------------------------------------------
// Treemap: squarified, so that tiles are near squares.

function worst(row, side, scale) {
  const area = row.reduce((sum, one) => sum + one.bytes, 0) * scale;
  const sizes = row.map((one) => one.bytes * scale);
  const max = Math.max(...sizes), min = Math.min(...sizes);
  return Math.max(side * side * max / (area * area), area * area / (side * side * Math.max(min, 1e-12)));
}

export function squarify(items, width, height) {
  const total = items.reduce((sum, one) => sum + one.bytes, 0);
  const scale = total ? width * height / total : 0;
  const left = items.filter((one) => one.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const tiles = [];
  let x = 0, y = 0, w = width, hgt = height;
  while (left.length) {
    const side = Math.min(w, hgt);
    let taken = 1;
    while (taken < left.length && worst(left.slice(0, taken + 1), side, scale) <= worst(left.slice(0, taken), side, scale)) taken += 1;
    const row = left.splice(0, taken);
    const thick = row.reduce((sum, one) => sum + one.bytes, 0) * scale / side;
    let at = 0;
    for (const item of row) {
      const long = item.bytes * scale / thick;
      tiles.push(w >= hgt ? { item, x, y: y + at, w: thick, h: long } : { item, x: x + at, y, w: long, h: thick });
      at += long;
    }
    if (w >= hgt) { x += thick; w -= thick; } else { y += thick; hgt -= thick; }
  }
  return tiles;
}

export const density = (one) => (one.rows ? one.deleted / one.rows : 0);
const shade = (one) => Math.min(1, Math.sqrt(density(one)) * 1.1 + (one.equality ? 0.2 : 0));
const OFF = "var(--off)";
const HEALTH = [["var(--ice)", "near the target size"], ["var(--gold-wash)", "some small or large"], [OFF, "all small or large"]];

function colourOf(one, by) {
  if (one.rest) return "var(--line)";
  if (by === "size") {
    const off = (one.small + one.large) / Math.max(1, one.files);
    return HEALTH[off === 0 ? 0 : off < 1 ? 1 : 2][0];
  }
  return one.deleted || one.equality ? `color-mix(in oklab, var(--hot) ${Math.round(shade(one) * 100)}%, var(--sand))` : "var(--ice)";
}
export const healthLegend = () => HEALTH.map(([colour, text]) => h("span", {}, h("i", { vars: { c: colour } }), text));

export function describeTile(one) {
  const deleted = one.deleted ? `${percent(density(one))} of its rows deleted` : "no row deleted";
  const sizes = [one.small && `${int(one.small)} small`, one.large && `${int(one.large)} large`].filter(Boolean).join(", ");
  const parts = [one.files === 1 && one.path ? null : count(one.files, "file"), count(one.rows, "row"), deleted, sizes && `${sizes} for the target size`, one.equality && "equality deletes apply"];
  return `${one.label || "all rows"}: ${bytes(one.bytes)}\n${parts.filter(Boolean).join(", ")}`;
}

export function treemap(items, by, open) {
  const box = h("div", { cls: "treemap", role: "group", "aria-label": "Tiles by bytes: arrow keys move, Enter opens" });
  let current = 0;
  function draw() {
    const width = box.clientWidth || 900, height = box.clientHeight || 390;
    const tiles = squarify(items, width, height);
    box.replaceChildren(...tiles.map(({ item, x, y, w, h: tall }, i) => {
      const tiny = w < 46 || tall < 30;
      const tile = h("button", {
        type: "button", tabindex: i === current ? 0 : -1, "data-tiny": tiny, "data-leaf": open ? null : "", "aria-label": describeTile(item).replace("\n", ", "),
        vars: { x: x / width, y: y / height, w: w / width, h: tall / height, c: colourOf(item, by) },
        onpointermove: (event) => showTip(describeTile(item), event.clientX, event.clientY), onpointerleave: hideTip, onblur: hideTip,
        onfocus: (event) => { const r = event.target.getBoundingClientRect(); if (event.target.matches(":focus-visible")) showTip(describeTile(item), r.left, r.bottom - 14); },
        onclick: () => { hideTip(); open?.(item); },
      });
      if (!tiny) tile.append(h("b", { text: item.short || item.label || "all rows" }), tall > 46 ? h("span", { text: `${bytes(item.bytes)} · ${count(item.files, "file")}` }) : "", tall > 64 && item.deleted ? h("span", { text: `${percent(density(item))} deleted` }) : "");
      return tile;
    }));
  }
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !box.children.length) return;
    event.preventDefault();
    box.children[current].tabIndex = -1;
    current = (current + step + box.children.length) % box.children.length;
    box.children[current].tabIndex = 0;
    box.children[current].focus();
  });
  let seen = 0;
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - seen) > 1) { seen = box.clientWidth; draw(); } }).observe(box);
  return box;
}

// ---------------------------------------------------------------------------------------------
// File sizes, and the bounds of a column

export function histogram(steps, target) {
  const most = Math.max(1, ...steps.map((one) => one.files));
  const colour = (one) => (one.to <= target * 0.75 ? OFF : one.from > target * 1.8 ? "var(--rust)" : "var(--ice-deep)");
  return h("div", { cls: "histogram", role: "img", "aria-label": `File sizes: ${steps.filter((one) => one.files).map((one) => `${int(one.files)} from ${bytes(one.from)}`).join(", ")}` },
    steps.map((one) => h("div", {}, h("span", { text: one.files ? short(one.files) : "" }), h("i", { vars: { v: one.files ? Math.max(0.02, one.files / most) : 0, c: colour(one) } }), h("span", { cls: "at", text: bytes(one.from) }))));
}

export function overlap(data) {
  const H = Math.min(300, 124 + 12 * data.lines.length); // few files need no tall chart
  const box = h("div", { cls: "overlap", vars: { tall: `${H}px` }, role: "img", "aria-label": `Bounds of ${data.column} in ${int(data.with_bounds)} files, from ${data.least} to ${data.greatest}` });
  function draw() {
    const width = box.clientWidth || 900, low = 66, left = 4, right = width - 4;
    const at = (v) => left + v * (right - left);
    const most = Math.max(1, ...data.depth);
    const node = s("svg", { viewBox: `0 0 ${width} ${H}`, "aria-hidden": "true" });
    const w = (right - left) / data.depth.length;
    data.depth.forEach((n, i) => n && node.append(s("rect", { cls: "depth", x: left + i * w, y: low - n / most * 50, width: Math.max(1, w - 1), height: n / most * 50 })));
    node.append(s("text", { x: left, y: 12, text: `at most ${count(most, "file")} over each other` }), s("line", { cls: "base", x1: left, x2: right, y1: low, y2: low }));
    const gap = Math.min(12, (H - low - 34) / Math.max(1, data.lines.length));
    data.lines.forEach((line, i) => {
      const y = low + 10 + i * gap;
      const node2 = s("line", { cls: "span", x1: at(line.from), x2: Math.max(at(line.from) + 1.5, at(line.to)), y1: y, y2: y, "stroke-width": Math.max(1, Math.min(4, gap * 0.6)) });
      node.append(node2);
    });
    node.append(s("text", { x: left, y: H - 4, text: cut(data.least) }), s("text", { x: right, y: H - 4, "text-anchor": "end", text: cut(data.greatest) }));
    box.replaceChildren(node);
    box.onpointermove = (event) => {
      const r = box.getBoundingClientRect();
      const line = data.lines[Math.floor((event.clientY - r.top - low - 10) / gap + 0.5)];
      if (line) showTip(`${line.file}\n${line.lower} … ${line.upper}`, event.clientX, event.clientY); else hideTip();
    };
    box.onpointerleave = hideTip;
  }
  let seen = 0;
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - seen) > 1) { seen = box.clientWidth; draw(); } }).observe(box);
  return box;
}
const cut = (text) => (text && text.length > 40 ? `${text.slice(0, 40)}…` : text ?? "");

export function stack(parts) {
  return h("div", { cls: "stack", "aria-hidden": "true" }, parts.filter((one) => one.n).map((one) => h("i", { vars: { v: one.n, c: one.colour } })));
}
