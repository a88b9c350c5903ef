"""DTensor plans: dict literals of module names and parallel styles become the dims of an axis."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from placealg.importers.composed_strategy import GATHERED_LOGITS
from placealg.importers.document import Document, Key
from placealg.importers.draft import Draft
from placealg.importers.dtensor_calls import (
    Calls,
    calls_of,
    read_mesh,
    read_recompute,
    read_sharding,
    read_types,
    said_in,
)
from placealg.importers.python_text import parse_python
from placealg.importers.reading import Options, Reading, refusal


class Entry(NamedTuple):
    """An entry of a plan: the style, its line, and the text of the layout in which the result is left."""

    style: str
    line: int
    output: str


STYLES = ("colwise", "rowwise", "sequence", "prepare")


def read_dtensor(document: Document, options: Options) -> Reading:
    """The reading of a file's one plan, or of the function that --function names."""
    tree = parse_python(document.text, document.file)
    plans = {node.name: found for node in tree.body if isinstance(node, ast.FunctionDef) and (found := _plan(node))}
    if not plans and (alone := _plan(tree)):
        plans = {"the script": alone}
    if options.function:
        if options.function not in plans:
            from placealg.errors import InputError

            raise InputError(f"no plan in a function '{options.function}'", where="--function", name=options.function,
                             valid=plans)
        plans = {options.function: plans[options.function]}
    if not plans:
        raise refusal("no plan that is a dict literal of names and styles", document.file)
    if len(plans) > 1:
        raise refusal(f"{len(plans)} plans, in {', '.join(list(plans)[:4])}", document.file,
                      f"--function {next(iter(plans))} takes one")
    (function, plan), = plans.items()
    calls = calls_of(tree)
    beside = said_in(calls)
    styles = {k: e.style for k, e in plan.items()}
    flat = Document(document.file, {**{k: text for k, (_, text) in beside.items()}, **styles},
                    {**{(k,): line for k, (line, _) in beside.items()}, **{(k,): e.line for k, e in plan.items()}},
                    document.text)
    draft = Draft("dtensor", flat, options)
    draft.said.path = lambda key: (key,)  # type: ignore[method-assign]  # names of modules hold dots
    _place(draft, function, calls, {key: entry.output for key, entry in plan.items()})
    return draft.reading()


def _plan(function: ast.AST) -> dict[str, Entry]:
    """The entries of the dict literals in a function, or in a script, whose values are calls of styles, by name."""
    found: dict[str, Entry] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Dict):
            continue
        if None in node.keys and any(isinstance(v, ast.Call) for v in node.values):
            return {}
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Call):
                name = ast.unparse(value.func).rpartition(".")[2].lower()
                style = next((s for s in STYLES if s in name), "")
                if style:
                    output = next((ast.unparse(k.value) for k in value.keywords if k.arg == "output_layouts"), "")
                    found[key.value] = Entry(style, key.lineno, output)
    return found


def _place(draft: Draft, function: str, calls: Calls, left: Mapping[str, str]) -> None:
    """The axes; results are `left` in layouts that the plan gives in words."""
    said = draft.said
    plan = {key: draft.said.document.data[key] for key in left}
    last = {key: key.rpartition(".")[2] for key in plan}

    def of(names: tuple[str, ...], style: str) -> list[str]:
        return [k for k in plan if last[k] in names and plan[k] == style]

    pairs = (("heads", ("wq", "wk", "wv", "q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value"),
              ("wo", "o_proj", "out_proj", "dense")),
             ("ffn", ("w1", "w3", "gate_proj", "up_proj", "gate_up_proj", "fc1"), ("w2", "down_proj", "fc2")))
    sequence = [k for k, v in plan.items() if v == "sequence"]
    embedding = of(("tok_embeddings", "embed_tokens", "embed", "wte"), "rowwise")
    dims = ["loss.none", *([] if embedding else ["embedding.none"])]
    for dim, up, down in pairs:
        first, second = of(up, "colwise"), of(down, "rowwise")
        if first and second:
            dims.append(dim)
            for key in (*first, *second):
                said.read(key, dim)
        elif first or second:
            key = (first or second)[0]
            raise said.refuse(key, f"{key} is {plan[key]}, and the other half of the pair is in no entry: a product "
                                   "of "
                                   "split and whole weights, which no dims say")
    output = of(("output", "lm_head"), "colwise")
    dims += ["vocab"] if output or embedding else []
    dims += ["seq"] if sequence else []
    for key in (*embedding, *output):
        gathered = key in output and "Replicate" in left[key]
        if gathered and "Shard" in left[key]:
            said.unsaid(key, f"{left[key]}: the job decides whether logits are gathered before the loss; they are not")
            gathered = False
        said.read(key, "vocab, gathered before the loss" if gathered else "vocab")
        dims = [GATHERED_LOGITS, *dims] if gathered else dims
    for key in sequence:
        said.read(key, "split along seq between the products")
    sizes = read_mesh(draft, calls)
    read_sharding(draft, calls, sizes)
    draft.parts.axis("tp_sp_keep" if sequence else "tp", sizes.get("tp"))
    usual = ["loss.none", "heads", "ffn", "vocab", "seq"]
    if dims != usual or not sequence:
        draft.parts.say("dims", "tp", dims)
    for key in plan:
        if not said.accounted(_path(key)):
            said.inactive(key, "how inputs are laid out for what follows")
    read_types(draft, calls)
    read_recompute(draft, calls)
    for key in ("gradient_accumulation_steps", "loss"):
        said.unsaid(key, "the job that calls it decides")
    said.unsaid("model", f"{function} takes any model with these names", "--model")


def _path(key: str) -> Key:
    return (key,)
