"""Files of torchtitan that set ShardingConfig on modules: layouts read as the dims of an axis, each held to its op."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from placealg.errors import InputError
from placealg.importers.document import Document, Key, read_text
from placealg.importers.draft import Draft
from placealg.importers.further_files import module_beside
from placealg.importers.names import shipped_name
from placealg.importers.python_text import Evaluator, Record, Unknown, parse_python
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.titan_layouts import (
    Declared,
    declared,
    is_known,
    names_of,
    other_layouts,
    split_on,
    without_layout,
)
from placealg.importers.torchtitan_degrees import GATHERED
from placealg.models.config import resolve_model
from placealg.step.derive import operations_of
from placealg.step.split import Placed
from placealg.strategy.spec import Strategy
from placealg.strategy.vocabulary import EACH, NONE

SWITCHES = {"enable_sp": True, "enable_ep": False}
"""What such a function is told of a run -> what it is told where nothing says so."""

OTHER_CLASSES = ("RowParallelLinear.Config", "AllGatherFusedFeedForward.Config")
"""Classes of modules that a run has under tp_gemm_backend = "dist_gemm" alone (models/common/dist_gemm.py)."""

SIZES = {"llama3": "8B", "qwen3": "30B-A3B", "deepseek_v3": "671B"}
"""Model of torchtitan -> the flavor on which its layouts are held, where no model is named."""


def sets_layouts(tree: ast.Module) -> list[str]:
    """The functions of a file that set layouts on the modules of a configuration: public, and not called by another."""
    found = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and any(
        isinstance(s, ast.Attribute) and s.attr == "sharding_config" and isinstance(s.ctx, ast.Store)
        for s in ast.walk(n))}
    every = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    called = {c.func.id for n in every.values() for c in ast.walk(n)
              if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
    callers = {name for name, node in every.items() if any(
        isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and (c.func.id in found or "sharding" in c.func.id)
        for c in ast.walk(node))}
    return [name for name in every if name in {*found, *callers} and name not in called and not name.startswith("_")]


def layouts_of(text: str, file: str, options: Options,
               switches: Mapping[str, bool]) -> tuple[str, list[str], tuple[Declared, ...]]:
    """(function, the switches that it takes, layouts) of the function that sets layouts, or that --function names."""
    tree = parse_python(text, file)
    names = sets_layouts(tree)
    if options.function in names:
        names = [options.function]
    if not names:
        raise refusal("no function sets sharding_config on the modules of a configuration", file)
    if len(names) > 1:
        raise refusal(f"{len(names)} functions set layouts: {', '.join(names[:4])}", file,
                      f"--function {names[0]} takes one")
    evaluator = _evaluator(tree, file, options)
    node = evaluator.functions[names[0]]
    first = [*node.args.posonlyargs, *node.args.args]
    asked = [a.arg for a in (*first[1:], *node.args.kwonlyargs)]
    if not first or any(name not in switches for name in asked if name.startswith("enable_")):
        raise refusal(f"{names[0]} takes {', '.join(asked)}, of which not all are told", f"{file}:{node.lineno}")
    root = Record("", (), {}, node.lineno, grows=True)
    evaluator.function(names[0], [root], {name: switches[name] for name in asked if name in switches})
    found = declared(root, file)
    if not found:
        raise refusal(f"{names[0]} sets no layout that can be followed", f"{file}:{node.lineno}",
                      "--with gives the files from which it imports")
    return names[0], [name for name in asked if name in switches], found


def _evaluator(tree: ast.Module, file: str, options: Options) -> Evaluator:
    """The evaluator of a file, which follows every function that it imports from a file that is here."""
    found: dict[str, Evaluator | None] = {}
    known: dict[str, Callable[..., Any]] = {
        "isinstance": _is_instance, "len": lambda value: value if isinstance(value, Record) else len(value)}

    def of(tree: ast.Module, file: str) -> Evaluator:
        return Evaluator(tree, file, lambda module: beside(module, file), lambda _: True, known)

    def beside(module: str, file: str) -> Evaluator | None:
        path = module_beside(module, file, options)
        if path is not None and path not in found:
            found[path] = None
            found[path] = of(parse_python(read_text(path), path), path)
        return found[path] if path is not None else None

    return of(tree, file)


def _is_instance(value: Any, of: Any) -> bool:
    """Whether a value is of a class: a module is of its stock class; S(dim) is a Shard, other kinds are not."""
    name = of.text if isinstance(of, Unknown) else ""
    if name.rpartition(".")[2] == "Shard":
        return isinstance(value, Record) and value.name.rpartition(".")[2] in ("S", "Shard")
    return not name.endswith(OTHER_CLASSES)


def read_layouts(document: Document, options: Options) -> Reading:
    """The reading of a file of layouts: the dims of tp, and every layout held to what is derived of its op."""
    switches = {name: _switch(name, options) for name in SWITCHES}
    function, taken, layouts = layouts_of(document.text, document.file, options, switches)
    if other := [name for name in SWITCHES if name in options.settings and name not in taken]:
        raise InputError(f"{function} takes no {other[0]}", where=f"--key {other[0]}")
    data = {f"{one.module}.{one.tensor}": " ".join(f"{a}:{_word(p)}" for a, p in one.places.items()) for one in layouts}
    lines: dict[Key, int] = {(f"{one.module}.{one.tensor}",): one.line for one in layouts}
    draft = Draft("titan_layouts", Document(document.file, data, lines, document.text), options)
    draft.said.path = lambda key: (key,)  # type: ignore[method-assign]  # names of modules hold dots
    name = next((n for n in SIZES if n in function), "")
    model = options.model or (shipped_name("torchtitan", f"{name} {SIZES[name]}") if name else "")
    if not model:
        draft.unread_model(f"{function} is of no model that is known")
        raise refusal(f"{function} is of no model that is known", document.file, "--model names one of its ops")
    draft.parts.axis("zero3")
    draft.parts.axis("cp")
    draft.parts.axis("tp_sp_keep" if switches["enable_sp"] else "tp")
    experts = "enable_ep" in taken and switches["enable_ep"]
    if experts:
        draft.parts.axis("ep")
    dims = dims_of_layouts(layouts, switches["enable_sp"], experts)
    draft.parts.say("dims", "tp", dims)
    operations = operations_of(draft.parts.strategy(document.file), resolve_model(model))
    if operations and (alone := kept_whole(layouts, operations.placed)):
        draft.parts.say("dims", "tp", [dims[0], *alone, *dims[1:]])
        draft.said.follows("[dims] tp", f"{', '.join(alone)}: these weights are whole")
    for key in taken:
        on = switches[key]
        draft.said.follows(key, f"{'true' if on else 'false'}: --key {key}={'false' if on else 'true'} reads the other")
    draft.said.follows("fully_shard", "zero3 over dp and cp: layouts say nothing of it, and torchtitan shards so")
    _hold(draft, layouts, draft.parts.strategy(document.file), model)
    for key in ("gradient_accumulation_steps", "[types]", "recompute", "loss"):
        draft.said.unsaid(key, "the configuration of a run decides")
    draft.said.unsaid("model", f"held on {model}: any model with these modules", "--model")
    return draft.reading()


def _switch(name: str, options: Options) -> bool:
    value = options.settings.get(name, str(SWITCHES[name])).lower()
    if value not in ("true", "false"):
        raise InputError(f"{name} is true or false", where=f"--key {name}={value}")
    return value == "true"


def _word(place: str | int) -> str:
    return f"S({place})" if isinstance(place, int) else place


def dims_of_layouts(layouts: tuple[Declared, ...], sequence: bool, experts: bool) -> list[str]:
    """The dims of tp by the layouts of weights: what is split along rows and columns, and what is whole."""
    at = {(names_of(one.module), one.tensor): one.places.get("tp") for one in layouts}

    def split(*modules: str) -> bool:
        return any(isinstance(at.get((module, "weight")), int) for module in modules)

    def whole(region: str, *modules: str) -> str:
        """The entry of what is whole: R, of which each rank has a part of the gradient, or I."""
        return f"{region}.{EACH if 'R' in (at.get((module, 'weight')) for module in modules) else NONE}"

    dims = ["loss.none"]
    if not split("tok_embeddings"):
        dims.append(whole("embedding", "tok_embeddings"))
    if not split("lm_head", "output"):
        head = whole("head", "lm_head", "output")
        dims += [head] if head.endswith(NONE) else [f"head.logits.{EACH}", f"head.loss.{EACH}"]
    if split("attention.wo") and at.get(("attention.wkv_a", "weight")) in ("R", "I"):
        dims += ["attn.heads", whole("attn", "attention.wkv_a")]
    if "R" in (place for (module, tensor), place in at.items() if module == "moe" and tensor.startswith("use ")):
        dims += GATHERED
    elif at.get(("moe.router.gate", "use input")) == 0 and not sequence:
        dims.append("router.seq")
    dims += ["heads"] if split("attention.wo") else [whole(region, "attention.wo") for region in ("attn", "core")]
    dims += ["expert.expert"] if experts else []
    dense, grouped = split("feed_forward.w2"), isinstance(at.get(("moe.routed_experts.inner_experts", "w2_EDF")), int)
    dims += ["ffn"] if dense or grouped or experts else [whole("mlp", "feed_forward.w2")]
    return [*dims, "vocab", *(["seq"] if sequence else [])]


def kept_whole(layouts: tuple[Declared, ...], placed: Placed) -> list[str]:
    """Entries for single ops whose weights are declared whole on tp where their layer's dims would split them."""
    return [f"{op}.{EACH if one.places['tp'] == 'R' else NONE}" for one in layouts
            if one.tensor == "weight" and one.places.get("tp") in ("R", "I") for op in split_on("tp", one, placed)]


def _hold(draft: Draft, layouts: tuple[Declared, ...], strategy: Strategy, model: str) -> None:
    """Account for every layout: derived so, of a module that the model lacks, or refused by module, tensor and axis."""
    said, file = draft.said, draft.said.document.file
    same = _same(layouts, strategy, model, file)
    for one in layouts:
        key = f"{one.module}.{one.tensor}"
        if one in same:
            said.read(key, "as derived")
        elif names_of(one.module) in ("moe", "moe.routed_experts"):
            said.approximated(key, "how tokens reach experts: dispatch and combination here send and sum pairs of a "
                                   "token and an expert")
        else:
            said.inactive(key, f"{model} has no such module, or it is no parameter")


def _same(layouts: tuple[Declared, ...], strategy: Strategy, model: str, file: str) -> list[Declared]:
    """The layouts that are derived so; a refusal where one is derived otherwise, or is of no module that is known."""
    for one in layouts:
        if not is_known(one):
            raise refusal(f"{one.said}: no op here is known for it", f"{one.file}:{one.line}")
    operations = operations_of(strategy, resolve_model(model))
    if operations is None:
        raise refusal(f"layouts are held on a model of ops, which {model} is not", file, "--model names another")
    same, others = other_layouts(layouts, operations.placed)
    if others:
        first, more = others[0], len(others) - 1
        rest = f", and {more} more" if more else ""
        raise refusal(f"{first.declared.said} is {first.theirs} on {first.axis}; {strategy_word(strategy)} has it "
                      f"{first.ours}{rest}", f"{first.declared.file}:{first.declared.line}")
    if lacking := without_layout(layouts, operations.placed):
        raise refusal(f"{lacking}: no layout is set for its weight, and {model} has one", file)
    return same


def strategy_word(strategy: Strategy) -> str:
    """A strategy by its axes, as a refusal names it."""
    return "a strategy over " + ", ".join(strategy.mesh.names)


def held_beside(reading: Reading, options: Options, sequence: bool, experts: bool) -> Reading:
    """A reading, with the layouts of a file of --with held to it; the reading alone where none is one of layouts."""
    for path in options.files:
        text = read_text(path) if path.endswith(".py") else ""
        if "sharding_config" not in text or not sets_layouts(parse_python(text, path)):
            continue
        if not isinstance(reading.model, str):
            raise refusal("layouts are held on a model, and none is named", path, "--model names it")
        function, _, layouts = layouts_of(text, path, replace(options, function=""),
                                          {"enable_sp": sequence, "enable_ep": experts})
        same = _same(layouts, reading.strategy, reading.model, path)
        told = ReadingItem(path, 0, function, "", f"{len(same)} layouts of modules are as derived")
        reading = replace(reading, read=(*reading.read, told), texts={**reading.texts, path: text})
    return reading
