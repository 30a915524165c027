// What was done to one job, also long ago and by other replicas. It is asked for when the
// reader wants it, with the reader's token.

import { ask, attrs, byId, cell, el, rows, when } from "./elements.js";

/** What an event says of what was done, and whether it was. */
export const did = (e) => [
  el("span.tag" + (e.kind === "error" || e.kind === "evict" ? ".bad" : ""), e.kind),
  ...(e.dry_run ? [" ", el("span.tag", "only said, not done")] : []),
  ...(e.failed ? [" ", el("span.tag.warn", "could not be done")] : []),
];

let shown = "", place = "", now = new Date(); // the job, and where its button was

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
  now = new Date(document.documentElement.dataset.now || Date.now());
  byId("past-title").textContent = "Events of " + name;
  rows("past-rows", [], 4, "reading …");
  byId("past").showModal();
  let list = [], none = "Nothing was done to it, or the last of it more than 30 days ago.";
  try {
    list = (await ask("/api/v1/gpu/events?" + new URLSearchParams({ job, namespace }))).events;
  } catch (error) {
    none = error.message;
  }
  if (shown === name) rows("past-rows", list, 4, none, row);
}

function row(e) {
  return el("tr",
    cell("When", when(e.at, now), el("span.sub", new Date(e.at).toLocaleString([], { dateStyle: "short", timeStyle: "short" }))), cell("What", ...did(e), e.alloc_id ? el("span.sub", "alloc ", el("code", e.alloc_id.slice(0, 8))) : ""),
    cell("For", e.for || "–"), cell("Why", e.text));
}

byId("past-close").addEventListener("click", () => byId("past").close());
byId("past").addEventListener("close", () => {
  // The browser goes back to the button, unless that was drawn anew meanwhile.
  if (!document.activeElement.matches("button.past")) [...byId(place).querySelectorAll("button.past")].find((b) => b.dataset.job === shown)?.focus({ preventScroll: true });
  shown = "";
});
