// The section of what was held and used. It is asked for when the reader wants it: a month
// is read from the ledger each time.

import { ask, attrs, byId, cell, el, rows } from "./elements.js";

const amount = (v) => v.toLocaleString("en", { maximumFractionDigits: v >= 100 ? 0 : 2 });
const name = (row) => row.node || row.type || row.job || row.namespace || row.queue || "none";

/** The months are UTC's, as the ledger's days are, by the service's clock. */
function time(choice) {
  if (choice === "days") return {};
  const now = new Date(document.documentElement.dataset.now || Date.now()), first = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - Number(choice), 1));
  return { month: first.toISOString().slice(0, 7) };
}

function head(...titles) {
  byId("ledger-head").replaceChildren(el("tr", ...titles.map((t) => attrs(el("th", t), { scope: "col" }))));
}

function used(what, asked, unit) {
  if (!what) return "not measured";
  return `${amount(what.p95)}${unit}` + (asked ? ` of ${amount(asked)}${unit}` : "");
}

function drawReport(report) {
  const priced = report.rows.some((r) => r.cost > 0), currency = report.currency || "";
  const all = report.rows.length > 1 ? [...report.rows, { ...report.total, all: true }] : report.rows;
  head("What", "GPU hours", "GiB hours", "Compute used, p95", "Memory used, p95", ...(priced ? ["Cost"] : []));
  rows("ledger-rows", all, 6, "Nothing was held.", (r) => el("tr",
    attrs(el("th", r.all ? "In all" : name(r), r.job ? el("span.sub", [r.namespace, r.group, r.task].filter(Boolean).join(" · ")) : ""), { scope: "row" }),
    cell("GPU hours", amount(r.gpu_hours)), cell("GiB hours", amount(r.gib_hours)),
    cell("Compute used, p95", used(r.used_gpus, r.asked_gpus, "\u00a0GPU")), cell("Memory used, p95", used(r.used_gib, r.asked_gib, "\u00a0GiB")),
    priced ? cell("Cost", `${r.cost.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${currency}`) : null));
}

function drawAdvice(list) {
  head("Job", "Asks for", "Would do", "Would have left to others");
  rows("ledger-rows", list, 4, "No task that was measured long enough asks for much more than it uses.", (a) => el("tr",
    attrs(el("th", a.job, el("span.sub", [a.namespace, a.group, a.task].join(" · "))), { scope: "row" }),
    cell("Asks for", el("code", a.asked)), cell("Would do", el("code", a.enough), el("span.sub", a.text)),
    cell("Would have left to others", `${amount(a.freed_gpu_hours)} GPU hours, ${amount(a.freed_gib_hours)} GiB hours`)));
}

async function show() {
  const by = byId("ledger-by").value, query = new URLSearchParams(time(byId("ledger-time").value));
  if (by !== "advice") query.set("by", by);
  rows("ledger-rows", [], 1, "reading …");
  try {
    const body = await ask(`/api/v1/gpu/ledger${by === "advice" ? "/advice" : ""}?${query}`);
    if (by === "advice") drawAdvice(body.advice); else drawReport(body);
  } catch (error) {
    head();
    rows("ledger-rows", [], 1, error.message);
  }
}

byId("ledger-show").addEventListener("click", show);
for (const id of ["ledger-by", "ledger-time"]) byId(id).addEventListener("change", show);
