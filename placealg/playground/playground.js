// The page: what is written is priced as it is typed, and proved when asked, by Python in a worker.
import { editor as makeEditor, isFile } from "./editor.js";

const $ = id => document.getElementById(id);
const make = (tag, props = {}, ...children) => { const made = Object.assign(document.createElement(tag), props); made.append(...children); return made; };
const PARTS = {  // tab -> the parts of the report's page that it shows
  costs: ["sizes", "charts", "closed forms", "what the figures take for granted"],
  placement: ["placements", "what moves"],
  program: ["the step program"],
};
const FIRST = "zero3";
const state = { words: undefined, files: {}, addresses: {}, worker: undefined, ready: false, waiting: new Map(), last: 0,
  events: [], tab: "costs", sizes: {}, proving: false,
  shown: undefined, proved: undefined };  // of what text and model the page shows costs, or an error; and a verdict
const status = text => { $("status").textContent = text; };

// Loading: every file once, into memory, from which each worker starts; a worker that was stopped asks for none again.
async function load() {
  const wanted = { ...JSON.parse($("loaded").textContent), "worker.js": 4000 };
  const whole = Object.values(wanted).reduce((a, b) => a + b, 0);
  let got = 0;
  await Promise.all(Object.keys(wanted).map(async path => {
    const response = await fetch(path), parts = [];
    if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      got += value.length;
      $("progress").value = got / whole;
      status(`loading Python, the solver and placealg: ${(got / 1e6).toFixed(1)} of ${(whole / 1e6).toFixed(1)} MB`);
    }
    const name = path.split("/").at(-1), script = /\.m?js$/.test(name);
    state.files[name] = new Blob(parts, script ? { type: "text/javascript" } : {});
    if (script) state.addresses[name] = URL.createObjectURL(state.files[name]);
  }));
}

function startWorker() {
  state.ready = false;
  $("prove").disabled = true;
  state.worker = new Worker(state.addresses["worker.js"], { type: "module" });
  state.worker.onerror = event => status(`Python could not be started: ${event.message || "the browser refuses it"}`);
  state.worker.onmessage = ({ data }) => {
    if (data.kind === "doing") { if (data.text) status(`${data.text}…`); return; }
    if (data.kind === "ready") {
      state.ready = true;
      $("prove").disabled = false;
      $("progress").hidden = true;
      status("ready; everything runs in this page");
      price();
      return;
    }
    if (data.id === undefined) { status(`Python could not be started: ${data.text}`); return; }
    const told = state.waiting.get(data.id);
    state.waiting.delete(data.id);
    if (!state.waiting.size) status("ready; everything runs in this page");
    told?.(data.kind === "broken" ? { error: `placealg failed: ${data.text}`, line: 0 } : data.said);
  };
  state.worker.postMessage({ files: state.files, addresses: state.addresses });
}

const ask = call => new Promise(told => {
  const id = ++state.last;
  state.waiting.set(id, told);
  state.worker.postMessage({ id, call, text: editor.text(), model: $("model").value });
});

// What is wrong stands in one line below the editor, and at its line in it.
function complain(said) {
  $("error").hidden = !said.error;
  $("error").textContent = said.error ? `${said.line ? `line ${said.line}: ` : ""}${said.error}` : "";
  editor.mark(said.line || 0, said.error || "");
  $("remarks").replaceChildren(...(said.remarks || []).map(one => make("p", { textContent: `${one.line ? `line ${one.line}: ` : ""}${one.error}` })));
  return Boolean(said.error);
}

const written = () => `${$("model").value}\n${editor.text()}`;
let turn = 0;
async function price() {
  if (!state.ready || state.proving) return;
  const mine = ++turn, of = written(), said = await ask("costs");
  if (mine !== turn) return;
  if (complain(said)) { state.shown = of; return; }
  state.events = said.events;
  const kept = Object.keys(state.sizes).length ? state.sizes : sizes();
  state.sizes = {};
  $("page").onload = () => { framed(kept); state.shown = of; };
  $("page").srcdoc = said.page;
}

// The report's page in the frame: as high as what it shows, of which a tab chooses the parts.
const within = () => $("page").contentDocument;
const rows = () => [...(within()?.querySelectorAll("[data-size]") || [])];
const sizes = () => Object.fromEntries(rows().map(row => [row.dataset.size, row.querySelector("[type=text]").value]));
let grown;
function framed(kept) {
  const frame = $("page"), inside = within();
  inside.head.append(make("style", { textContent: "body { background: transparent; } main { padding: 0 0 8px; } header { display: none; } section { margin: 0 0 14px; }" }));
  $("waiting").hidden = true;
  frame.hidden = false;
  for (const row of rows()) {
    const field = row.querySelector("[type=text]"), size = kept[row.dataset.size];
    if (size && size !== field.value) { field.value = size; field.dispatchEvent(new Event("input")); }
  }
  grown?.disconnect();
  grown = new ResizeObserver(() => { frame.style.height = `${inside.body.scrollHeight + 4}px`; });
  grown.observe(inside.body);
  show(state.tab);
}
function show(tab) {
  state.tab = tab;
  for (const button of $("tabs").children) button.setAttribute("aria-selected", button.dataset.tab === tab);
  for (const part of within()?.querySelectorAll("[data-part]") || []) {
    part.hidden = !PARTS[tab].includes(part.dataset.part);
    if (tab === "program" && !part.hidden) for (const one of part.querySelectorAll("details")) one.open = true;
  }
}

// A verdict on something else than what is written stays, and says so.
const date = () => $("verdict").classList.toggle("old", state.proved !== undefined && state.proved !== written());

// Where a verdict stands: what is said in place of one.
const remarkOf = text => { state.proved = undefined; $("verdict").classList.remove("old"); $("verdict").replaceChildren(make("p", { className: "soft", textContent: text })); };

async function prove() {
  if (!state.ready || state.proving) return;
  state.proving = true;
  turn++;
  $("prove").disabled = true;
  $("stop").hidden = false;
  remarkOf("proving; the page stays yours meanwhile…");
  const began = performance.now(), text = editor.text(), of = written(), said = await ask("proof");
  state.proving = false;
  $("prove").disabled = false;
  $("stop").hidden = true;
  state.proved = of;
  if (!complain(said)) tell(said, text, (performance.now() - began) / 1000);
  else remarkOf("There is no verdict.");
  if (state.shown !== written()) price();
}

function tell(said, text, seconds) {
  const html = (source, className) => { const made = make("div", { className }); made.innerHTML = source; return made; };
  const children = [
    make("div", { className: `big ${said.verdict}`, textContent: said.verdict + (said.class ? `, ${said.class}` : "") }),
    make("p", {}, make("b", { textContent: `${said.strategy} on ${said.model}` }), said.says ? `: ${said.says}` : "")];
  const given = state.words.bugs.find(one => text.startsWith(one.text.trimEnd()));
  if (given && said.verdict === "PROVED") children.push(make("p", { className: "note", textContent: `Repaired: every line of ${given.name} stands, and the step is proved.` }));
  if (said.counterexample) children.push(html(said.counterexample, "counterexample"));
  if (said.repair) children.push(mend(said.repair, text));
  if (said.resembles.length) {
    const open = make("button", { textContent: `Open ${said.resembles[0]}` });
    open.onclick = () => choose(`bug:${said.resembles[0]}`);
    children.push(make("div", { className: "note" }, make("p", { textContent: `It resembles a known bug: ${said.resembles[1]}` }), open));
  }
  children.push(make("p", { id: "kernel" }, make("b", { textContent: "verified checker: " }), said.kernel),
    make("details", { open: said.verdict !== "REFUTED" && innerWidth > 860 }, make("summary", { textContent: "obligations, assumptions, and who has checked it" }), html(said.page, "obligations")),
    make("details", {}, make("summary", { textContent: "as JSON, as `placealg prove --format json --no-timing` prints it" }), make("pre", { id: "document", textContent: said.document })),
    make("p", { className: "soft", textContent: `${seconds.toFixed(1)} s` }));
  $("verdict").replaceChildren(...children);
  date();
  $("verdict").scrollIntoView({ block: "nearest" });
}

function mend(repair, text) {
  const shown = make("button", { textContent: "Show a repair" });
  shown.onclick = () => {
    const use = make("button", { textContent: "Put it in, and prove" });
    use.onclick = () => { editor.put(`${isFile(text) ? text.trimEnd() : `base = "${text.trim()}"`}\n${repair.edit}\n`); prove(); };
    shown.replaceWith(make("div", {}, make("pre", { textContent: repair.edit }), make("p", { className: "soft", textContent: `its cost: ${repair.cost}` }),
      repair.file.startsWith("as it stands") ? use : make("p", { className: "soft", textContent: repair.file })));
  };
  return make("div", { className: "note" }, make("p", { textContent: "One change is proved to mend it. Look for it first: edits go below what is there, each as [[edit]]." }), shown);
}

function stop() {
  state.worker.terminate();
  for (const told of state.waiting.values()) told({ error: "stopped; Python starts anew", line: 0 });
  state.waiting.clear();
  startWorker();
}

// A link carries the text, the model and the sizes behind its #, which no browser sends.
const pack = async text => btoa(String.fromCharCode(...new Uint8Array(await new Response(
  new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"))).arrayBuffer()))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const unpack = packed => new Response(new Blob([Uint8Array.from(atob(packed.replace(/-/g, "+").replace(/_/g, "/")), c => c.charCodeAt(0))])
  .stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
async function link() {
  const said = new URLSearchParams(), text = editor.text().trim();
  said.set(isFile(text) ? "text" : "strategy", isFile(text) ? await pack(editor.text()) : text);
  if ($("model").value) said.set("model", $("model").value);
  const moved = rows().map(row => [row.dataset.size, row.querySelector("[type=text]")]).filter(([, field]) => field.value !== field.defaultValue);
  const set = moved.map(([name, field]) => `${name}:${field.value}`).join(",");
  if (set) said.set("set", set);
  history.replaceState(null, "", `#${said}`);
  try { await navigator.clipboard.writeText(location.href); status("the link is copied"); } catch { status("the link stands in the address bar: copy it there"); }
}
async function opened() {
  const said = new URLSearchParams(location.hash.slice(1)), bug = state.words.bugs.find(one => one.name === said.get("bug"));
  state.sizes = Object.fromEntries((said.get("set") || "").split(",").filter(Boolean).map(pair => pair.split(":")));
  $("model").value = state.words.models.includes(said.get("model")) ? said.get("model") : "";
  let text = said.get("strategy") || bug?.text || FIRST;
  if (said.has("text")) {
    try { text = await unpack(said.get("text")); } catch { remarkOf("The link is not whole: its text cannot be read."); }
  }
  editor.put(text);
}

function choose(what) {
  const [kind, name] = what.split(/:(.*)/s), bug = state.words.bugs.find(one => one.name === name);
  if (!name) return;
  state.sizes = {};
  $("model").value = "";
  remarkOf(kind === "bug"
    ? `${bug.title}${bug.source ? `, from ${bug.source}` : ""}. Prove it, read why it is refuted, and mend it by an [[edit]] of your own below its last line.`
    : "No verdict yet.");
  editor.put(kind === "bug" ? bug.text : name);
}

function menus() {
  const group = (label, entries) => make("optgroup", { label }, ...entries.map(([value, text]) => make("option", { value, textContent: text })));
  const { strategies, bugs, models } = state.words;
  $("example").append(
    group("strategies", [...strategies.filter(one => one.kind !== "modifier").map(one => one.name), "zero3*tp_sp", "zero1*ep", "hsdp*tp_sp*pp_1f1b"].map(name => [`strategy:${name}`, name])),
    group("mistakes, to repair", bugs.filter(one => !one.source).map(one => [`bug:${one.name}`, one.title])),
    group("the museum: bugs of real systems, to repair", bugs.filter(one => one.source).map(one => [`bug:${one.name}`, `${one.name}: ${one.title}`])));
  $("model").append(...models.map(name => make("option", { value: name, textContent: name })));
}

let editor, typed;
async function main() {
  const loaded = load();
  state.words = await (await fetch("words.json")).json();
  menus();
  editor = makeEditor($("editor"), { words: state.words, events: () => state.events, submit: prove,
    changed: () => { date(); clearTimeout(typed); typed = setTimeout(price, 400); } });
  await opened();
  $("example").onchange = () => { choose($("example").value); $("example").value = ""; };
  $("model").onchange = () => { date(); price(); };
  $("prove").onclick = prove;
  $("stop").onclick = stop;
  $("link").onclick = link;
  $("tabs").onclick = event => event.target.dataset.tab && show(event.target.dataset.tab);
  addEventListener("hashchange", opened);
  await loaded;
  startWorker();
}
window.playground = { state, text: () => editor.text(), put: text => editor.put(text), settled: () => state.ready && state.shown === written() };
main().catch(error => status(`the page could not be loaded: ${error.message}`));
