// The page asks for /gpu/data every two seconds and draws what changed. Nothing
// here makes HTML out of data: elements are built, and text is set as text.

import { ago, attrs, byId, cell, el, gib, gpus, jobLink, keepingFocus, link, rows, token, vars, when } from "./elements.js";
import { drawIdle } from "./idle.js";
import "./ledger.js";
import { did, drawPast, pastOf } from "./past.js";

const PERIOD = 2000, RETRY = 5000, LATE = 60;

// ---- words and figures

const percent = (part, whole) => (whole > 0 ? Math.round((100 * part) / whole) : 0) + "\u00a0%";
const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;
/** A job's look is a function of its name: the same on every GPU and every day. */
function look(holder) {
  let h = 2166136261;
  for (const c of holder.namespace + "/" + holder.job_id) h = Math.imul(h ^ c.codePointAt(0), 16777619) >>> 0;
  return { hue: [205, 265, 28, 330, 175, 50, 230, 0, 95][h % 9], pattern: "p" + ((h >>> 8) % 6) };
}
const hidden = (h) => h.job_id === "(hidden)";

// ---- GPUs

const isParent = (g) => g.mode === "mig" && g.instances === 0;
function gpuTrouble(g) {
  if (!g.healthy) return ["bad", "✕ unhealthy", g.health || "Nomad calls the GPU unhealthy without a reason; the device plugin's log on the node says more"];
  if (g.cordoned) return ["warn", "‖ cordoned", g.health || "Running tasks go on, new ones go elsewhere"];
  return null;
}
function nodeTrouble(n) {
  if (n.status !== "ready") return ["bad", "✕ " + n.status, "See that the node's Nomad client runs and reaches the servers"];
  if (n.draining) return ["warn", "‖ draining", "Tasks are moved away"];
  if (!n.eligible) return ["warn", "‖ not eligible", "Nomad starts no new work there"];
  return null;
}
function gpuName(g) {
  if (g.profile) return (g.vendor === "nvidia" ? "MIG " : "partition ") + g.profile;
  const parts = g.group.split("/");
  return g.type + (g.mode === "slice" || g.mode === "shared" ? " /" + parts[parts.length - 1] : "");
}
function unit(g, count) {
  if (g.mode === "slice") return gib(count * g.slice_memory_mib);
  if (g.mode === "shared") return plural(count, "turn");
  return g.memory_mib ? gib(g.memory_mib) : plural(count, "GPU");
}

/** Splits what is free into what is reserved and what is not. */
function withReservations(g, holds) {
  const open = holds.filter((h) => !h.claimed_by);
  let kept = open.reduce((sum, h) => sum + (g.mode === "slice" ? Math.ceil(h.memory_mib / h.gpus.length / g.slice_memory_mib) : g.instances), 0);
  return g.runs.flatMap(([holder, count, healthy]) => {
    const part = holder < 0 && healthy ? Math.min(kept, count) : 0;
    kept -= part;
    return [[holder, part, healthy, true], [holder, count - part, healthy, false]].filter((run) => run[1] > 0);
  });
}

function segment(g, [holder, count, healthy, kept], total, few) {
  const seg = vars(el("span.seg"), { n: count });
  const wide = count / total;
  const label = (text) => { if (wide > (few ? 0.12 : 0.2)) seg.append(el("b", text)); };
  if (count > 1 && total <= (few ? 80 : 16)) seg.classList.add("ticks");
  if (holder >= 0) {
    const h = g.holders[holder], { hue, pattern } = look(h);
    vars(seg, { hue });
    seg.classList.add(pattern);
    seg.title = `${h.namespace}/${h.job_id}: ${unit(g, count)}`;
    label(h.job_id);
  } else if (!healthy) {
    seg.classList.add("bad");
    label("✕ out of order");
  } else if (kept) {
    seg.classList.add("kept");
    label("reserved");
  } else {
    seg.classList.add("free");
    label(total === 1 ? "free" : unit(g, count) + " free");
  }
  return seg;
}

function describeStrip(g, runs) {
  const rest = runs.filter((r) => r[0] < 0).map(([, count, healthy, kept]) => unit(g, count) + (kept ? " reserved" : healthy ? " free" : " out of order"));
  return [...g.holders.map((h) => `${h.job_id} holds ${unit(g, h.instances)}`), ...rest].join(", ") || "nothing to take";
}

function figures(g, few) {
  const m = g.measured, out = el("span.figures");
  const add = (name, value) => out.append(el("span", few ? name + " " : el("span.unseen", name + " "), el("b", value)));
  if (m.milli >= 0) add("compute", percent(m.milli, 1000));
  else if (!isParent(g)) add("compute held", percent(g.held_milli, 1000));
  if (m.memory_mib >= 0) add("memory", percent(m.memory_mib, g.memory_mib));
  else if (!isParent(g)) add("memory held", percent(g.held_memory_mib, g.memory_mib));
  if (!few) return out;
  if (m.temperature_c >= 0) add("", m.temperature_c + "\u00a0°C");
  if (m.power_w >= 0) add("", m.power_w + "\u00a0W");
  return out;
}

/** Where a task is that steps aside for others: since when, why, and when its turn is at the latest. */
function seat(use, now) {
  const name = use.seat === "idle" ? "suspended" : use.seat;
  const out = el("span.sub", el("span.tag" + (name === "resident" ? "" : ".warn"), name));
  if (use.seat_since) out.append(" ", when(use.seat_since, now));
  if (use.seat_reason) out.append(" · " + use.seat_reason);
  if (use.seat_first) out.append(" · comes first ", when(use.seat_first, now));
  return out;
}

function holderTable(g, now) {
  const table = el("table");
  const caption = el("caption.unseen", "Who holds " + gpuName(g));
  const head = el("thead", el("tr", ...["Job and task", "Share", "Priority", "Since"].map((t) => attrs(el("th", t), { scope: "col" }))));
  const body = el("tbody");
  for (const h of g.holders) {
    const { hue, pattern } = look(h);
    const share = [h.instances && g.mode !== "whole" ? unit(g, h.instances) : g.mode === "whole" ? "the whole of it" : ""];
    if (h.guarantee_milli && h.guarantee_milli < 1000) share.push(`compute ${percent(h.guarantee_milli, 1000)}` + (h.limit_milli > h.guarantee_milli ? ` up to ${percent(h.limit_milli, 1000)}` : ""));
    body.append(el("tr",
      attrs(el("th", vars(el("i.swatch.job." + pattern), { hue }), hidden(h) ? "(another team's)" : jobLink(h.namespace, h.job_id),
        hidden(h) ? "" : el("span.sub", h.namespace + " · ", link("/ui/allocations/" + encodeURIComponent(h.alloc_id), h.task)),
        h.direct ? el("span.sub", "submitted around the service") : ""), { scope: "row" }),
      cell("Share", share.filter(Boolean).join(", "), h.use && h.use.seat ? seat(h.use, now) : ""),
      cell("Priority", h.priority),
      cell("Since", h.since.startsWith("0001") ? "" : when(h.since, now))));
  }
  table.append(caption, head, body);
  return table;
}

function gpuInside(g, now, holds) {
  const inside = el("div.inside");
  const trouble = gpuTrouble(g);
  if (trouble) inside.append(el("p.trouble." + trouble[0], trouble[2]));
  for (const h of holds.filter((one) => !one.claimed_by)) inside.append(el("p", `${gib(h.memory_mib / h.gpus.length)} reserved for ${h.owner || h.namespace} until `, attrs(el("time", new Date(h.expires_at).toLocaleTimeString()), { datetime: h.expires_at })));
  if (g.holders.length) inside.append(holderTable(g, now));
  else if (!trouble && !isParent(g)) inside.append(el("p.note", "Nobody holds any of it."));
  const facts = el("p.facts-list", el("span", g.model), el("span", gib(g.memory_mib)));
  if (g.group) facts.append(el("span", el("code", g.group)));
  if (g.grade) facts.append(el("span", "isolation " + g.grade));
  facts.append(el("span", el("code", g.uuid)));
  inside.append(facts);
  return inside;
}

const opened = new Map(); // key of a details element → whether the reader opened it

function details(key, byDefault, build) {
  const d = el("details");
  let built = false;
  const fill = () => { if (d.open && !built) { built = true; d.append(build()); } };
  d.open = opened.has(key) ? opened.get(key) : byDefault;
  fill();
  d.addEventListener("toggle", () => { fill(); if (d.open !== (opened.has(key) ? opened.get(key) : byDefault)) opened.set(key, d.open); });
  return d;
}

function gpuItem(g, now, few, holds, listed) {
  const runs = withReservations(g, holds);
  const item = el("li.gpu" + (g.parent_uuid ? ".part" : ""));
  const kind = isParent(g) ? "divided into MIG instances" : [g.mode, g.sharing].filter(Boolean).join(" · ");
  const name = el("span.gname", gpuName(g), few ? el("span", " " + kind) : "");
  if (g.parent_uuid && !listed) name.append(el("span", ` of ${g.parent_uuid.slice(0, 12)}`));
  const trouble = gpuTrouble(g);
  if (trouble) name.append(" ", few ? el("span.tag." + trouble[0], trouble[1]) : el("b.sign." + trouble[0], trouble[1][0], el("span.unseen", trouble[1].slice(1))));
  const summary = el("summary", name, figures(g, few));
  if (!isParent(g)) {
    const strip = attrs(el("span.strip"), { role: "img", "aria-label": describeStrip(g, runs) });
    for (const run of runs) strip.append(segment(g, run, g.instances, few));
    summary.append(strip);
  }
  const d = details("gpu " + g.uuid, few && (g.holders.length > 0 || trouble !== null), () => gpuInside(g, now, holds));
  d.prepend(summary);
  item.append(d);
  return item;
}

// ---- nodes

function inOrder(list) { // each MIG instance after its parent
  const children = new Map();
  for (const g of list) if (g.parent_uuid) children.set(g.parent_uuid, [...(children.get(g.parent_uuid) || []), g]);
  const known = new Set(list.map((g) => g.uuid));
  return list.filter((g) => !g.parent_uuid || !known.has(g.parent_uuid)).flatMap((g) => [g, ...(children.get(g.uuid) || [])]);
}

function layoutNote(m, now) { // a GPU whose layout follows demand
  const cuts = m.cuts || [];
  const p = el("p.inside.note", `Layout of ${m.name}: ${m.instances.join(", ") || "none"}`);
  if (m.cutting) p.append("; being cut again");
  if (cuts.length) p.append(`; cut ${plural(cuts.length, "time")} within a day, last `, when(cuts[cuts.length - 1], now));
  if (m.refused) p.append("; last order refused: " + m.refused);
  return p;
}

function nodeCard(n, now, few, holds) {
  const trouble = nodeTrouble(n);
  const card = attrs(el("article.node" + (n.status === "ready" ? "" : ".down")), { "aria-labelledby": "node-" + n.id });
  const title = attrs(el("h3", link("/ui/clients/" + encodeURIComponent(n.id), n.name)), { id: "node-" + n.id });
  const head = el("div.node-head", title, trouble ? el("span.tag." + trouble[0], trouble[1]) : el("span.tag.good", "✓ ready"));
  const facts = [`CPU ${percent(n.cpu_used_mhz, n.cpu_mhz)}`, `RAM ${percent(n.memory_used_mib, n.memory_mib)}`];
  if (few) facts.unshift(n.datacenter, n.pool === "default" ? "" : "pool " + n.pool);
  head.append(el("span.facts", facts.filter(Boolean).join(" · ")));
  const list = el("ul.gpus");
  const uuids = new Set(n.gpus.map((g) => g.uuid));
  for (const g of inOrder(n.gpus)) list.append(gpuItem(g, now, few, holds.get(g.uuid) || [], uuids.has(g.parent_uuid)));
  for (const m of few ? n.mig_layouts || [] : []) list.append(el("li.gpu", layoutNote(m, now)));
  if (!n.gpus.length) list.append(el("li.gpu", el("p.inside.note", "No GPUs.")));
  card.append(head);
  if (!few && n.gpus.length) card.append(attrs(el("p.columns", el("span", "compute"), el("span", "memory")), { "aria-hidden": "true" }));
  card.append(list);
  return card;
}

const cards = new Map(); // node ID → {text, card}

function drawNodes(data, now) {
  const list = byId("node-list"), few = data.nodes.length <= 8;
  list.className = few ? "" : "many";
  const holds = new Map();
  for (const h of data.holds || []) for (const uuid of h.gpus || []) holds.set(uuid, [...(holds.get(uuid) || []), h]);
  const seen = new Set();
  let before = null;
  for (const n of data.nodes) {
    seen.add(n.id);
    const text = JSON.stringify([n, n.gpus.map((g) => holds.get(g.uuid)), few]);
    const old = cards.get(n.id);
    let card = old && old.card;
    if (!old || old.text !== text) {
      card = nodeCard(n, now, few, holds);
      if (old) keepingFocus(list, () => old.card.replaceWith(card));
      cards.set(n.id, { text, card });
    }
    const place = before ? before.nextSibling : list.firstChild;
    if (place !== card) list.insertBefore(card, place);
    before = card;
  }
  for (const [id, { card }] of cards) if (!seen.has(id)) { card.remove(); cards.delete(id); }
  filterNodes(data);
}

function filterNodes(data) {
  const find = byId("find").value.trim().toLowerCase(), show = byId("show").value;
  const has = {
    all: () => true,
    problems: (n) => nodeTrouble(n) || n.gpus.some(gpuTrouble),
    free: (n) => !nodeTrouble(n) && n.gpus.some((g) => g.healthy && !g.cordoned && g.runs.some((r) => r[0] < 0 && r[2])),
    busy: (n) => n.gpus.some((g) => g.holders.length),
  }[show];
  const words = (n) => [n.name, n.id, n.pool, ...n.gpus.flatMap((g) => [g.type, g.model, g.uuid, g.group, ...g.holders.flatMap((h) => [h.job_id, h.namespace, h.alloc_id, h.task])])].join("\n").toLowerCase();
  let shown = 0;
  for (const n of data.nodes) {
    const match = has(n) && (!find || words(n).includes(find));
    cards.get(n.id).card.hidden = !match;
    shown += match ? 1 : 0;
  }
  byId("nodes-count").textContent = shown === data.nodes.length ? shown : `${shown} of ${data.nodes.length}`;
  byId("nodes-none").hidden = shown > 0;
}

// ---- overview

function totals(data) {
  const t = { gpus: 0, bad: 0, free: 0, tasks: new Set(), held: 0, heldMemory: 0, memory: 0, use: 0, useMemory: 0, measured: 0, measuredMemory: 0 };
  const kept = new Set((data.holds || []).filter((h) => !h.claimed_by).flatMap((h) => h.gpus || []));
  for (const n of data.nodes) {
    const parents = new Set(n.gpus.map((g) => g.parent_uuid).filter(Boolean));
    t.gpus += new Set(n.gpus.map((g) => g.parent_uuid || g.uuid)).size; // a divided GPU may show its instances alone
    const siblings = (g) => n.gpus.filter((o) => o.parent_uuid === g.parent_uuid).length;
    for (const g of n.gpus) {
      const divided = parents.has(g.uuid), weight = divided ? 0 : g.parent_uuid ? 1 / siblings(g) : 1;
      if (!g.healthy) t.bad++;
      if (!divided && !g.parent_uuid && g.healthy && !g.cordoned && !nodeTrouble(n) && !g.holders.length && !kept.has(g.uuid)) t.free++;
      for (const h of g.holders) t.tasks.add(h.alloc_id + h.task);
      t.held += (weight * g.held_milli) / 1000;
      if (!divided) { t.heldMemory += g.held_memory_mib; t.memory += g.memory_mib; }
      if (g.measured.milli >= 0 && !g.parent_uuid) { t.use += g.measured.milli / 1000; t.measured++; }
      if (g.measured.memory_mib >= 0 && !g.parent_uuid) { t.useMemory += g.measured.memory_mib; t.measuredMemory += g.memory_mib; }
    }
  }
  return t;
}

function tile(kind, name, big, small, more, level) {
  const node = el("div.tile" + (kind ? "." + kind : ""), el("span.name", name), el("span.big", big, small ? el("small", " " + small) : ""));
  if (level) {
    const bar = attrs(el("span.level", vars(el("i"), { part: level[0] })), { role: "img", "aria-label": `${name}: ${big} ${small || ""}, ${more}` });
    if (level[1] >= 0) bar.append(vars(el("i.use"), { part: level[1] }));
    node.append(bar);
  }
  node.append(el("span.more", more));
  return node;
}

function drawOverview(data, now) {
  const t = totals(data), problems = troubles(data);
  const ready = data.nodes.filter((n) => !nodeTrouble(n)).length;
  const waiting = data.pending || [];
  const oldest = waiting.length ? waiting.reduce((a, b) => (a.since < b.since ? a : b)).since : null;
  const part = (a, b) => (b > 0 ? Math.min(1, a / b) : 0);
  const wasted = t.measured > 0 && t.held >= 0.5 * t.gpus && t.use / t.measured < 0.2 * (t.held / t.gpus);
  byId("overview").replaceChildren(
    tile("", "GPUs", t.gpus.toLocaleString("en"), `in ${plural(data.nodes.length, "node")}`, data.nodes.length ? `${t.free} free as a whole · ${ready} of ${plural(data.nodes.length, "node")} ready` : "no node is known"),
    tile("", "Compute held", percent(t.held, t.gpus), "", t.measured ? `${percent(t.use, t.measured)} in use` : "use is not measured", [part(t.held, t.gpus), t.measured ? part(t.use, t.measured) : -1]),
    tile("", "GPU memory held", percent(t.heldMemory, t.memory), "", (t.memory ? `${gib(t.heldMemory)} of ${gib(t.memory)}` : "no GPU is known") + (t.measuredMemory ? ` · ${percent(t.useMemory, t.measuredMemory)} in use` : ""), [part(t.heldMemory, t.memory), t.measuredMemory ? part(t.useMemory, t.measuredMemory) : -1]),
    tile("", "Tasks on GPUs", t.tasks.size.toLocaleString("en"), "", plural((data.holds || []).filter((h) => !h.claimed_by).length, "open reservation")),
    tile(waiting.length ? "warn" : "", "Waiting", waiting.length.toLocaleString("en"), waiting.length === 1 ? "group" : "groups", oldest ? `oldest since ${ago(oldest, now).replace("\u00a0ago", "")}` : "nothing waits"),
    tile(problems.length ? "bad" : wasted ? "warn" : "", "Needs attention", problems.length.toLocaleString("en"), "", problems.length ? "see below" : wasted ? "nothing is broken, but most of what is held is not used" : "all is well"));
  const list = byId("attention-list");
  byId("attention").hidden = problems.length === 0;
  byId("attention-count").textContent = problems.length || "";
  const item = ({ kind, who, what, why }) => el("li." + kind,
    attrs(el("span.sign", kind === "bad" ? "✕" : "‖"), { "aria-hidden": "true" }), el("div", el("p.who", who, " — ", what.slice(2)), el("p", why)));
  const first = problems.length > 6 ? 5 : 6, more = byId("attention-more");
  list.replaceChildren(...problems.slice(0, first).map(item));
  byId("attention-rest").replaceChildren(...problems.slice(first, 300).map(item));
  more.hidden = problems.length <= first;
  more.querySelector("summary").textContent = `${problems.length - first} more`;
}

function troubles(data) {
  const list = (data.configuration_problems || []).map((why) => ({ kind: "bad", who: "Configuration", what: "✕ not used", why }));
  for (const q of data.batch_queues || []) list.push({ kind: "bad", who: `Node pool ${q.node_pool}`, what: "✕ batch queue of Nomad's", why: `${plural(q.jobs, "job")} in it. GPU batch jobs are refused there: one that waits stops those behind it` });
  for (const n of data.nodes) {
    const trouble = n.gpus.length ? nodeTrouble(n) : null;
    if (trouble) list.push({ kind: trouble[0], who: n.name, what: trouble[1], why: trouble[2] });
    for (const g of n.gpus) {
      const t = gpuTrouble(g);
      if (t) list.push({ kind: t[0], who: `${n.name} · ${gpuName(g)}`, what: t[1], why: t[2] });
    }
  }
  return list.sort((a, b) => (a.kind === b.kind ? 0 : a.kind === "bad" ? -1 : 1));
}

// ---- tables

function drawQueues(data) {
  byId("queues-count").textContent = (data.queues || []).length || "";
  rows("queue-rows", data.queues, 6, "No queues are configured: everybody may use everything.", (q) => {
    const scale = Math.max(q.quota_milli, q.used_milli, q.max_milli, 1);
    const own = Math.min(q.used_milli, q.quota_milli);
    const bar = attrs(el("div.quota", vars(el("i"), { from: 0, part: own / scale })), { role: "img", "aria-label": `${gpus(q.used_milli)} GPUs used of a quota of ${gpus(q.quota_milli)}, ${gpus(q.borrowed_milli)} borrowed` });
    if (q.borrowed_milli > 0) bar.append(vars(el("i.borrowed"), { from: q.quota_milli / scale, part: q.borrowed_milli / scale }));
    bar.append(vars(el("u"), { from: q.quota_milli / scale }));
    return el("tr",
      attrs(el("th", el("strong", q.name), q.parent ? el("span.sub", "in " + q.parent) : ""), { scope: "row" }),
      cell("Namespaces", (q.namespaces || []).join(", ")),
      cell("Use of the quota", bar, q.borrowed_milli > 0 ? el("span.sub", `▨ ${gpus(q.borrowed_milli)} borrowed`) : ""),
      cell("GPUs", `${gpus(q.used_milli)} of ${gpus(q.quota_milli)}`, q.max_milli ? el("span.sub", `at most ${gpus(q.max_milli)}`) : "", q.promised_milli ? el("span.sub", `${gpus(q.promised_milli)} more promised or reserved`) : "", q.owed_milli ? el("span.sub", `${gpus(q.owed_milli)} more for what may start at any time`) : "", q.above ? el("span.sub.bad", "✕ " + q.above) : ""),
      cell("Memory", gib(q.used_memory_mib) + (q.quota_memory_mib ? ` of ${gib(q.quota_memory_mib)}` : "")),
      cell("Waiting", q.pending || 0));
  });
}

// starts is when something that waits is likely to start. An estimate that time has overtaken says so.
function starts(s, now) {
  const at = (time) => new Date(time).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  const past = (time) => new Date(time) <= now;
  const turn = s.of ? `number ${s.turn} of ${s.of} that wait` : "its place in the order is not known yet";
  if (!s.known) return `${turn} · when it starts is not known`;
  if (past(s.latest)) return `${turn} · it was to start by ${at(s.latest)}, and is late`;
  if (past(s.likely)) return `${turn} · likely to start at any time until ${at(s.latest)}`;
  return `${turn} · likely to start ${at(s.likely)}, between ${past(s.soonest) ? "now" : at(s.soonest)} and ${at(s.latest)}`;
}

// fits is what would start now in place of something that waits.
function fits(f) {
  if (!f.ask) return "nothing smaller would start now";
  return f.allocs > 1 ? `${f.allocs} allocs of ${f.ask} each would start now, on ${plural(f.nodes, "node")}` : `${f.ask} would start now on ${plural(f.nodes, "node")}`;
}

function drawPending(data, now) {
  byId("pending-count").textContent = (data.pending || []).length || "";
  rows("pending-rows", [...(data.pending || []), ...(data.started_again || []), ...(data.on_cpu || [])], 6, "Nothing waits.", (p) => (p.kind ? pendingRow : p.allocs ? againRow : onCPURow)(p, now));
}

function onCPURow(f, now) {
  return el("tr",
    attrs(el("th", jobLink(f.namespace, f.job_id), pastOf(f.namespace, f.job_id), el("span.sub", `${f.namespace} · group ${f.group}`)), { scope: "row" }),
    cell("Asks for", el("code", f.ask)), cell("Priority", "–"), cell("Queue", "–"), cell("Since", when(f.since, now)),
    cell("Waits for", el("span.tag", "on the CPU"), " ", f.text));
}

function againRow(g, now) {
  return el("tr",
    attrs(el("th", jobLink(g.namespace, g.job_id), pastOf(g.namespace, g.job_id), el("span.sub", `${g.namespace} · group ${g.group}`)), { scope: "row" }),
    cell("Asks for", el("code", g.ask), g.allocs > 1 ? el("span.sub", `${g.allocs} times`) : ""), cell("Priority", "–"), cell("Queue", g.queue || "–"), cell("Since", when(g.since, now)),
    cell("Waits for", el("span.tag", "started again"), " ", g.text));
}

function pendingRow(p, now) {
  return el("tr",
    attrs(el("th", jobLink(p.namespace, p.job_id), pastOf(p.namespace, p.job_id), el("span.sub", `${p.namespace} · group ${p.group}` + (p.direct ? " · submitted around the service" : ""))), { scope: "row" }),
    cell("Asks for", el("code", p.ask), p.missing > 1 ? el("span.sub", `${p.missing} times`) : ""),
    cell("Priority", p.priority), cell("Queue", p.queue || "–"), cell("Since", when(p.since, now)),
    cell("Waits for", el("span.tag.warn", p.kind), " ", p.reason, p.start ? el("span.sub", starts(p.start, now)) : "", p.would_fit ? el("span.sub", fits(p.would_fit)) : ""));
}

function drawReservations(data, now) {
  rows("reservation-rows", data.holds, 5, "Nothing is reserved.", (h) => el("tr",
    attrs(el("th", el("code", h.id)), { scope: "row" }),
    cell("Whose", h.owner || h.namespace, el("span.sub", [h.owner ? h.namespace : "", h.queue ? "queue " + h.queue : ""].filter(Boolean).join(" · "))),
    cell("Where", h.node_name), cell("Size", `${gpus(h.milli)} ${h.milli === 1000 ? "GPU" : "GPUs"}, ${gib(h.memory_mib)}`),
    cell("State", h.claimed_by ? el("span", el("span.tag.good", "✓ claimed"), " by ", h.claimed_by) : el("span", el("span.tag", "open"), " expires ", when(h.expires_at, now)))));
}

function drawEvents(data, now) {
  rows("event-rows", data.events, 3, "Nothing was evicted, moved or taken back.", (e) => el("tr",
    cell("When", when(e.at, now)),
    cell("What", ...did(e), el("span.sub", `${e.namespace}/${e.job_id}`, pastOf(e.namespace, e.job_id))),
    cell("Why", e.text)));
}

// ---- decisions

function choiceRow(c, best) {
  return el("tr",
    attrs(el("th", c.node_name, best ? " " : "", best ? el("span.tag.good", "✓ chosen") : ""), { scope: "row" }),
    cell("GPUs", el("code", (c.groups || []).join(", "))), cell("Why", c.why || ""));
}

function decisionInside(d) {
  const inside = el("div.inside", el("p", d.summary, pastOf(d.namespace, d.job_id)));
  const all = [...(d.choices || []).map((c) => choiceRow(c, true)), ...(d.runners_up || []).map((c) => choiceRow(c, false))];
  if (all.length) inside.append(el("table", el("caption.unseen", "Nodes that were weighed"), el("thead", el("tr", ...["Node", "GPU", "Why"].map((t) => attrs(el("th", t), { scope: "col" })))), el("tbody", ...all)));
  if ((d.reasons || []).length) inside.append(el("p.note", d.fits ? `${plural(d.fits, "node")} could take it. The others could not:` : "No node could take it:"), el("ul", ...d.reasons.map((r) => el("li", `${plural(r.nodes, "node")}: ${r.why}` + (r.never ? " (never, even when empty)" : "") + (r.after_preempting ? `; ${r.after_preempting} of them could after evictions` : "")))));
  return inside;
}

function drawDecisions(data, now) {
  const list = (data.decisions || []).slice(0, 100);
  const box = byId("decision-list");
  keepingFocus(box, () => box.replaceChildren(...(list.length ? list.map((d, i) => {
    const kind = { placed: ["good", "✓ placed"], waits: ["warn", "… waits"], held: ["warn", "‖ held"], refused: ["bad", "✕ refused"], on_cpu: ["", "on the CPU"] }[d.outcome] || ["", d.outcome];
    const where = (d.choices || []).map((c) => c.node_name).join(", ");
    const node = details(`decision ${d.at} ${d.job_id} ${d.group}`, false, () => decisionInside(d));
    node.className = "decision";
    node.prepend(el("summary", el("span.when", when(d.at, now)), el("span.tag." + kind[0], kind[1]), el("span.job", `${d.namespace}/${d.job_id}`), el("code", d.ask), el("span.where", where ? "→ " + where : d.summary)));
    return node;
  }) : [el("p.inside.note", "No decision yet.")])));
}

// ---- the clock and the wire

let last = null, tag = "", drawn = "";

function status(kind, text) {
  byId("live").className = kind;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}
function banner(text, kind) {
  byId("banner").hidden = !text;
  byId("banner").className = "banner" + (kind ? " " + kind : "");
  if (byId("banner").textContent !== text) byId("banner").textContent = text;
}
function draw(data, now) {
  byId("mode").hidden = !data.dry_run;
  byId("mode").textContent = data.dry_run ? "dry run: nothing is evicted" : "";
  drawOverview(data, now);
  drawNodes(data, now);
  drawQueues(data);
  drawIdle(data, now);
  drawPending(data, now);
  drawDecisions(data, now);
  drawReservations(data, now);
  drawEvents(data, now);
  drawPast(data, now);
  document.documentElement.dataset.now = now.toISOString();
  document.documentElement.dataset.drawn = "yes";
}

async function refresh() {
  const headers = {};
  if (token()) headers["X-Nomad-Token"] = token();
  if (tag) headers["If-None-Match"] = tag;
  const response = await fetch("data", { headers, cache: "no-store", credentials: "same-origin" });
  if (response.status !== 304 && !response.ok) {
    const body = await response.json().catch(() => ({}));
    throw Object.assign(new Error(body.error || `the service answers ${response.status}`), { status: response.status });
  }
  const now = new Date(response.headers.get("X-View-Now") || Date.now());
  if (response.status === 200) {
    last = await response.json();
    tag = response.headers.get("ETag") || "";
  }
  const minute = tag + Math.floor(now / 30000); // times are told anew twice a minute
  if (minute !== drawn) { draw(last, now); drawn = minute; }
  return Number(response.headers.get("X-View-Age"));
}

function failed(error) {
  const denied = error.status === 401 || error.status === 403;
  status("off", denied ? "no access" : "not connected");
  byId("token-form").hidden = !denied;
  banner(denied ? error.message : (error.status ? "" : "The service does not answer: ") + error.message + (last ? ". What is shown may be old." : ""), last ? "late" : "");
}

// What to say while the ledger cannot be written: decisions go on.
function ledgerOutage(outage) {
  if (!outage) return "";
  const dropped = outage.dropped_records ? ` and ${outage.dropped_records} were dropped` : "";
  return `The ledger has not been written since ${new Date(outage.since).toLocaleString()}. Decisions go on; ${outage.waiting_records} records wait in memory${dropped}.`;
}

async function loop() {
  let wait = PERIOD;
  if (!document.hidden) {
    try {
      const age = await refresh();
      byId("token-form").hidden = true;
      if (age > LATE) {
        status("late", "Nomad is silent");
        banner(`The service last heard from Nomad ${Math.round(age)} seconds ago. What is shown may be old.`, "late");
      } else {
        status("on", last.leading ? "live" : last.leader ? "live, second replica" : "live, nobody leads");
        banner(ledgerOutage(last.ledger_outage), "late");
      }
    } catch (error) {
      failed(error);
      wait = RETRY;
    }
    document.documentElement.dataset.ready = "yes";
  }
  timer = setTimeout(loop, wait);
}
let timer;

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("nomad-gpu-token", byId("token").value.trim());
  byId("token").value = "";
  tag = "";
  clearTimeout(timer);
  loop();
});
for (const id of ["find", "show"]) byId(id).addEventListener("input", () => { if (last) filterNodes(last); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); loop(); } });
loop();
