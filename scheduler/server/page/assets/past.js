// What was done to one job, also long ago and by other replicas. It is asked for when the
// reader wants it, with the reader's token.

import { ask, attrs, byId, cell, el, rows, when } from "./elements.js";

/** What an event says of what was done, and whether it was. */
export const did = (e) => [
  el("span.tag" + (e.kind === "error" || e.kind === "evict" ? ".bad" : ""), e.kind),
  ...(e.dry_run ? [" ", el("span.tag", "only said, not done")] : []),
  ...(e.failed ? [" ", el("span.tag.warn", "could not be done")] : []),
];

let shown = "", place = ""; // the job, and where its button was
let latest = [], now = new Date(); // what was done to all jobs of late, and the service's time

/** Takes what the page is drawn from. What a dry run would do is there alone. */
export function drawPast(data, at) { [latest, now] = [data.events || [], at]; }

const same = (a) => (b) => new Date(a.at).getTime() === new Date(b.at).getTime() && ["kind", "namespace", "job_id", "alloc_id", "for", "text"].every((key) => (a[key] || "") === (b[key] || ""));

/** A button that shows what was done to a job. Nothing is known of a hidden one. */
export function pastOf(namespace, job) {
  if (job === "(hidden)") return "";
  const name = namespace + "/" + job;
  const button = attrs(el("button.past", "events"), { type: "button", "aria-label": `events of ${name}`, "aria-haspopup": "dialog", "data-job": name });
  button.addEventListener("click", () => { place = button.closest("[id]").id; show(namespace, job, name); });
  return button;
}

async function show(namespace, job, name) {
  shown = name;
  byId("past-title").textContent = "Events of " + name;
  rows("past-rows", [], 4, "reading …");
  byId("past").showModal();
  let list = latest.filter((e) => (e.namespace === namespace && e.job_id === job) || e.for === name), unknown = "";
  try {
    const stored = (await ask("/api/v1/gpu/events?" + new URLSearchParams({ job, namespace }))).events || [];
    list = [...list.filter((e) => !stored.some(same(e))), ...stored].sort((a, b) => new Date(b.at) - new Date(a.at));
  } catch (error) {
    unknown = "What was done to it earlier is not known: " + error.message;
  }
  if (shown !== name) return;
  rows("past-rows", list, 4, unknown || "Nothing was done to it, or the last of it more than 30 days ago.", (e) => row(e, name));
  byId("past-note").textContent = list.length ? unknown || "The last 50, kept for 30 days, whichever replica did it, and what was done for it of late." : "";
}

function row(e, name) {
  const other = e.namespace + "/" + e.job_id;
  return el("tr",
    cell("When", when(e.at, now), el("span.sub", new Date(e.at).toLocaleString([], { dateStyle: "short", timeStyle: "short" }))), cell("What", ...did(e), e.alloc_id ? el("span.sub", "alloc ", el("code", e.alloc_id.slice(0, 8))) : "", other === name ? "" : el("span.sub", other)),
    cell("For", e.for || "–"), cell("Why", e.text));
}

byId("past-close").addEventListener("click", () => byId("past").close());
byId("past").addEventListener("close", () => {
  if (byId("past").open) return; // it is told late, and another job is shown by now
  // The browser goes back to the button, unless that was drawn anew meanwhile.
  if (!document.activeElement.matches("button.past")) [...byId(place).querySelectorAll("button.past")].find((b) => b.dataset.job === shown)?.focus({ preventScroll: true });
  shown = "";
});
