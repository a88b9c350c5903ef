// Python and placealg, in a thread of their own. The page hands over every file; nothing here asks a network for more.
let answer;

const say = (kind, more = {}) => self.postMessage({ kind, ...more });

async function start({ files, addresses }) {
  const name = url => `${url}`.split("/").at(-1);
  self.fetch = async url => {
    const file = files[name(url)];
    if (!file) throw new TypeError(`the page has no ${name(url)}`);
    return new Response(file, { headers: { "Content-Type": name(url).endsWith(".wasm") ? "application/wasm" : "" } });
  };
  say("doing", { text: "starting Python" });
  const { loadPyodide } = await import(addresses["pyodide.mjs"]);
  const { default: createPyodideModule } = await import(addresses["pyodide.asm.mjs"]);
  const lockFileContents = JSON.parse(await files["pyodide-lock.json"].text());
  const python = await loadPyodide({ indexURL: "https://held.invalid/", lockFileContents, createPyodideModule });
  const folder = python.runPython("import site; site.getsitepackages()[0]");
  for (const [file, data] of Object.entries(files).filter(([file]) => /^(?!python_stdlib).*\.(zip|whl)$/.test(file))) {
    say("doing", { text: `unpacking ${file.split("-")[0]}` });
    python.unpackArchive(new Uint8Array(await data.arrayBuffer()), "zip", { extractDir: folder });
  }
  say("doing", { text: "starting placealg" });
  python.runPython(`
try:
    import numpy
except ImportError:
    from placealg.playground.plain_arrays import install
    install()
from pathlib import Path
from placealg.playground.page import answer, settle
settle(Path.home() / "playground" / "mine")
`);
  answer = python.globals.get("answer");
  say("ready");
}

self.onmessage = async ({ data }) => {
  try {
    if (data.files) return await start(data);
    const said = answer(data.call, data.text, data.model, text => say("doing", { text }));
    say("said", { id: data.id, said: JSON.parse(said) });
  } catch (error) {
    say("broken", { id: data.id, text: `${error.message || error}`.trim().split("\n").at(-1) });
  }
};
