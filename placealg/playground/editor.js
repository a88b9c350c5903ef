// The editor: TOML or an expression, completed from placealg's own schema and names, with what is wrong marked in place.
import { EditorState } from "@codemirror/state";
import { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { StreamLanguage, syntaxHighlighting, defaultHighlightStyle, bracketMatching } from "@codemirror/language";
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { setDiagnostics, lintGutter } from "@codemirror/lint";
import { toml } from "@codemirror/legacy-modes/mode/toml";

export const isFile = text => /^\[|[=\n#]/.test(text.trim());

// Every schema that a value may have: what stands behind alternatives and lists.
const variants = schema => schema ? [schema, ...[...(schema.anyOf || []), ...(schema.items ? [schema.items] : [])].flatMap(variants)] : [];
const inside = (schemas, key) => schemas.flatMap(variants).flatMap(schema => [
  ...(schema.properties?.[key] ? [schema.properties[key]] : []),
  ...Object.entries(schema.patternProperties || {}).filter(([pattern]) => new RegExp(pattern).test(key)).map(([, one]) => one)]);
const keysOf = schemas => schemas.flatMap(variants).flatMap(schema => Object.entries(schema.properties || {}));
const valuesOf = schemas => schemas.flatMap(variants).flatMap(schema => schema.enum || (schema.const ? [schema.const] : []));
const isTable = schema => variants(schema).some(one => one.properties || one.patternProperties);

// What may stand at a place of a text: where the word there begins, and the words.
export function completions(text, at, words, events) {
  const begin = text.lastIndexOf("\n", at - 1) + 1, before = text.slice(begin, at);
  const named = [...words.strategies.map(one => ({ label: one.name, detail: one.title, type: one.kind === "modifier" ? "keyword" : "class" }))];
  const found = (length, options) => ({ from: at - length, options });
  if (!isFile(text)) return found(/[\w.]*$/.exec(before)[0].length, named);
  const header = /^\s*\[+\s*([\w.-]*)$/.exec(before);
  const top = [words.schema];
  if (header) {
    const [, path] = header, parts = path.split(".");
    const schemas = parts.slice(0, -1).reduce(inside, top);
    return found(parts.at(-1).length, keysOf(schemas).filter(([, schema]) => isTable(schema))
      .map(([label, schema]) => ({ label, detail: schema.description, type: "namespace" })));
  }
  const table = [...text.slice(0, begin).matchAll(/^\s*\[+\s*([\w.-]+)\s*\]+/gm)].at(-1)?.[1];
  const schemas = (table ? table.split(".") : []).reduce(inside, top);
  const value = /(?:^|[{,])\s*([\w-]+)\s*=\s*(?:\[\s*)?(?:"[^"]*"\s*,\s*)*(["']?)([^"']*)$/.exec(before);
  if (value) {
    const [, key, quote, typed] = value;
    const quoted = label => quote ? label : `"${label}"`;
    const own = table === "edit" && (words.edits.includes(key) || key === "path") && !valuesOf(inside(schemas, key)).length ? events
      : key === "base" ? words.strategies.map(one => one.name) : key === "model" ? words.models
      : valuesOf(inside(schemas, key));
    const word = key === "base" ? /[\w.]*$/.exec(typed)[0] : typed;
    return found(word.length, [...new Set(own.map(String))].map(label => ({ label: key === "base" && typed !== word ? label : quoted(label), type: "enum" })));
  }
  const key = /^\s*([\w-]*)$/.exec(before);
  if (key && table === "edit") return found(key[1].length, words.edits.map(label => ({ label, apply: `${label} = `, type: "property" })));
  return key && found(key[1].length, keysOf(schemas).filter(([, schema]) => table || !isTable(schema) || variants(schema).some(one => one.enum))
    .map(([label, schema]) => ({ label, detail: schema.description, apply: `${label} = `, type: "property" })));
}

// An editor in `parent`. `changed` is told of every change, `submit` of Ctrl+Enter; `events()` are the program's.
export function editor(parent, { words, events, changed, submit }) {
  const complete = context => {
    const found = completions(context.state.doc.toString(), context.pos, words, events());
    return found && found.options.length && (context.explicit || found.from < context.pos) ? { ...found, validFor: /^[\w.\[\]*-]*$/ } : null;
  };
  const extensions = [lineNumbers(), lintGutter(), history(), drawSelection(), highlightActiveLine(), bracketMatching(), closeBrackets(),
    StreamLanguage.define(toml), syntaxHighlighting(defaultHighlightStyle), EditorView.lineWrapping,
    autocompletion({ override: [complete], maxRenderedOptions: 60 }),
    keymap.of([{ key: "Mod-Enter", run: () => { submit(); return true; } }, ...closeBracketsKeymap, ...completionKeymap, ...historyKeymap, ...defaultKeymap, indentWithTab]),
    EditorView.contentAttributes.of({ "aria-label": "the strategy: an expression or a TOML file", spellcheck: "false", autocapitalize: "off", autocorrect: "off" }),
    EditorView.updateListener.of(update => update.docChanged && changed())];
  const view = new EditorView({ parent, state: EditorState.create({ doc: "", extensions }) });
  return {
    view,
    text: () => view.state.doc.toString(),
    put: text => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, scrollIntoView: true }),
    mark: (line, message) => {  // line 0 is the whole text; "" as a message marks nothing
      const { doc } = view.state, on = line ? doc.line(Math.min(line, doc.lines)) : { from: 0, to: doc.length };
      view.dispatch(setDiagnostics(view.state, message ? [{ from: on.from, to: on.to, severity: "error", message }] : []));
    },
  };
}
