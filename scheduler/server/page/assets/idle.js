// The section of what is held and not used, which is there only while something is.

import { attrs, byId, cell, el, gib, gpus, jobLink, rows, when } from "./elements.js";
import { pastOf } from "./past.js";

const then = { report: "nothing: it is only told", suspend: "its seat counts as one that makes room", evict: "it goes when something waits that would get its place" };

export function drawIdle(data, now) {
  const list = data.idle || [];
  byId("idle").hidden = list.length === 0;
  byId("idle-count").textContent = list.length || "";
  rows("idle-rows", list, 6, "", (i) => el("tr",
    attrs(el("th", i.job_id === "(hidden)" ? i.job_id : jobLink(i.namespace, i.job_id), pastOf(i.namespace, i.job_id), el("span.sub", [i.namespace, i.group, i.task].filter(Boolean).join(" · "))), { scope: "row" }),
    cell("Where", i.node_name, el("span.sub", el("code", i.device))), cell("Since", when(i.since, now)),
    cell("Frees", `${gpus(i.milli)} ${i.milli === 1000 ? "GPU" : "GPUs"}, ${gib(i.memory_mib)}`, i.used_memory_mib > 0 ? el("span.sub", `has ${gib(i.used_memory_mib)} of GPU memory`) : ""),
    cell("Queue", i.queue || "–"), cell("Then", then[i.action] || "")));
}
