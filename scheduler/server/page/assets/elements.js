// What the parts of the page are built with. Text is set as text, never made into HTML.

export const byId = (id) => document.getElementById(id);

/** Builds an element: el("p.note.warn", "text", child, …). */
export function el(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return node;
}
export const link = (href, ...text) => { const a = el("a", ...text); a.href = href; return a; };
export const vars = (node, values) => { for (const k in values) node.style.setProperty("--" + k, values[k]); return node; };
export const attrs = (node, values) => { for (const k in values) node.setAttribute(k, values[k]); return node; };
export const cell = (label, ...children) => attrs(el("td", ...children.map((c) => (typeof c === "number" ? String(c) : c))), { "data-label": label });

export function rows(id, list, columns, none, draw) {
  const body = byId(id);
  keepingFocus(body, () => body.replaceChildren(...(list && list.length ? list.map(draw) : [el("tr", attrs(el("td.none", none), { colspan: columns }))])));
}

/** A reader on a link, button or summary stays there when it is drawn anew. */
export function keepingFocus(within, draw) {
  const all = () => [...within.querySelectorAll("summary, a, button")], was = document.activeElement, at = all().indexOf(was);
  draw();
  if (at >= 0) (all().find((e) => e.isEqualNode(was)) || all()[at])?.focus({ preventScroll: true });
}

/** The token given to the page, or that of Nomad's own UI at this address. */
export function token() {
  try { return sessionStorage.getItem("nomad-gpu-token") || localStorage.getItem("nomadTokenSecret") || ""; } catch { return ""; }
}

/** Asks the service's API with the reader's token. An error says what the service answers. */
export async function ask(path) {
  const headers = token() ? { "X-Nomad-Token": token() } : {};
  const response = await fetch(path, { headers, cache: "no-store", credentials: "same-origin" });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || `the service answers ${response.status}`);
  return body;
}

// ---- words and figures

const short = (v) => v.toLocaleString("en", { maximumFractionDigits: v >= 100 ? 0 : 1 });
export const gib = (mib) => (mib >= 10 * 1048576 ? short(mib / 1048576) + "\u00a0TiB" : short(mib / 1024) + "\u00a0GiB");
export const gpus = (milli) => (milli / 1000).toLocaleString("en", { maximumFractionDigits: 2 });
export function ago(time, now) {
  const s = Math.round((now - new Date(time)) / 1000);
  const span = (v) => v < 60 ? v + "\u00a0s" : v < 3600 ? Math.floor(v / 60) + "\u00a0min" : v < 172800 ? Math.floor(v / 3600) + "\u00a0h" : Math.floor(v / 86400) + "\u00a0d";
  return s >= 0 ? span(s) + "\u00a0ago" : "in\u00a0" + span(-s);
}
export function when(time, now) {
  return attrs(el("time", ago(time, now)), { datetime: time, title: new Date(time).toLocaleString() });
}
export const jobLink = (namespace, job) => link("/ui/jobs/" + encodeURIComponent(job) + "@" + encodeURIComponent(namespace), job);
