// Byte code for the browser's Python, made by that Python under Node: compile.mjs PYODIDE ARCHIVE COMMENT. The archive's
// modules are replaced by their byte code, which loads in half the time, but for those whose comment says "text"; an
// archive whose comment says "library" loses docstrings and asserts.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, archive, comment] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: folder });
python.FS.writeFile("/old.zip", readFileSync(archive));
python.globals.set("comment", comment);
python.runPython(`
import zipfile
from importlib._bootstrap_external import _code_to_timestamp_pyc

with zipfile.ZipFile("/old.zip") as old, zipfile.ZipFile("/new.zip", "w") as new:
    new.comment = comment.encode()
    optimize = 2 if old.comment == b"library" else 0
    for entry in old.infolist():
        name, data = entry.filename, old.read(entry)
        if name.endswith(".py") and entry.comment != b"text":
            name += "c"
            data = bytes(_code_to_timestamp_pyc(compile(data, entry.filename, "exec", dont_inherit=True, optimize=optimize)))
        new.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 9)
`);
writeFileSync(archive, python.FS.readFile("/new.zip"));
