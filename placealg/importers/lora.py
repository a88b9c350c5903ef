"""Low-rank adapters as trainers set them up by PEFT: which products have one, of which rank, and what else trains.

A module is named by the end of its name in a checkpoint; all linear modules but the head are named together. Which
products these are, the model's family says; without a model, the names are those of Llama.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placealg.errors import InputError, shown
from placealg.importers.draft import Draft
from placealg.importers.model import model_of_fields
from placealg.models.adapters import linear_ops
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.names import NUMBER
from placealg.strategy.spec import matches

ALL = "all-linear"
"""All linear modules but the head."""

FEWER = {4: "1/2", 8: 1}
"""Bits in which a base rests -> bytes of an element."""

FP32 = 8
"""The bytes of an element's two moments in fp32."""


@dataclass(frozen=True, slots=True)
class AdapterKeys:
    """The keys of a format that say what adapters are, each with what it says: rank, modules, modules that train whole.

    `bits` is the width of a quantised base, 0 where it is not; `whole_types` are the bytes of modules that train whole,
    where they are others than [types] says.
    """

    rank_key: str
    rank: int
    targets_key: str
    targets: Any
    whole_key: str = ""
    whole: Any = None
    bits_key: str = ""
    bits: int = 0
    dropout_key: str = ""
    whole_types: Mapping[str, Any] = field(default_factory=dict)


def read_adapters(draft: Draft, keys: AdapterKeys) -> None:
    """[adapters] of the strategy: called when the model is known."""
    said = draft.said
    model = model_beside(draft)
    modules = dict(_modules(model)) if model else {}
    for key, value in ((keys.targets_key, keys.targets), (keys.whole_key, keys.whole or ())):
        if not isinstance(value, (str, Sequence)):
            raise said.refuse(key, f"{key} is {shown(value)}: expected a list of modules")
    if model is None:
        _as_said(draft, keys)
        return
    chosen, unknown = _chosen(keys.targets, modules)
    if not chosen:
        raise said.refuse(keys.targets_key, f"{keys.targets_key} names no linear module of {model.name}")
    draft.parts.say("adapters", "match", _patterns(chosen, modules))
    draft.parts.say("adapters", "rank", keys.rank)
    said.read(keys.rank_key, f"[adapters] rank = {keys.rank}")
    said.read(keys.targets_key, "[adapters] match: adapters beside "
              + ", ".join(dict.fromkeys(op.rpartition("layer.")[2] for op in chosen)))
    if unknown:
        said.approximated(f"{keys.targets_key} of the model", f"{', '.join(unknown)}: no linear module of {model.name} "
                                                              "is called so, and none has an adapter for it")
    joint = sorted({name for op, name in modules.items() if op in chosen
                    and sum(n == name for n in modules.values()) > 1})
    if joint:
        said.approximated("adapters of joint products", f"{', '.join(joint)}: one product with one adapter there, "
                          "several here, each with an adapter of its own, whose first factors count once each")
    if keys.targets == ALL and any("expert." in op and "shared" not in op for op in linear_ops(model.graph)):
        said.follows("experts", "no adapters: in transformers 5 experts are no linear modules")
    _whole(draft, keys, model)
    if keys.dropout_key and said.raw(keys.dropout_key):
        said.approximated(keys.dropout_key, "dropout of what enters an adapter is left out, with its masks")
    if keys.bits:
        _quantised(draft, keys, modules)


def _as_said(draft: Draft, keys: AdapterKeys) -> None:
    """[adapters] by the names that the file has, which --model makes those of its products."""
    words = [keys.targets] if isinstance(keys.targets, str) else [str(word) for word in keys.targets]
    draft.parts.say("adapters", "match", words)
    draft.parts.say("adapters", "rank", keys.rank)
    draft.said.read(keys.rank_key, f"[adapters] rank = {keys.rank}")
    draft.said.read(keys.targets_key, "[adapters] match, by the file's names: --model says which products these are")
    for key in (keys.whole_key, keys.bits_key, keys.dropout_key):
        if key and draft.said.raw(key):
            draft.said.unsaid(key, "of which parts of the model, the model says", "--model")


def model_beside(draft: Draft) -> Model | None:
    """The model that the file or the command line names, or one of the same ops; None where it is not read."""
    known: str | Mapping[str, Any] | None = draft.options.model or draft.model or draft.alike
    if not known:
        return None
    if isinstance(known, Mapping):
        return model_of_fields(known, draft.said.document.file)
    try:
        return resolve_model(known)
    except InputError as error:
        raise draft.said.refuse("model", error.what) from None


def _modules(model: Model) -> Iterator[tuple[str, str]]:
    """Linear op of a layer -> the name of its module in a checkpoint; experts and routers are no linear modules."""
    for op in linear_ops(model.graph):
        name = model.names.get(f"{op}.weight", "")
        if name.endswith(".weight") and NUMBER in name and ".router." not in f".{op}." and ".expert." not in f".{op}.":
            yield op, name.removesuffix(".weight").replace(NUMBER, "0")


def _chosen(targets: Any, modules: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The linear ops that targets name, and the targets that name none."""
    if targets == ALL:
        return tuple(modules), ()
    if isinstance(targets, str) and not re.fullmatch(r"[\w., *]+", targets):
        return tuple(op for op, name in modules.items() if _matches(targets, name)), ()
    words = [w.strip() for w in targets.split(",")] if isinstance(targets, str) else [str(w) for w in targets]
    found = {w: [op for op, name in modules.items() if matches(w, name)] for w in words if w}
    chosen = {op for ops in found.values() for op in ops}
    return tuple(op for op in modules if op in chosen), tuple(w for w, ops in found.items() if not ops)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def _patterns(chosen: tuple[str, ...], modules: Mapping[str, str]) -> list[str]:
    """Patterns of the chosen ops that match no other, without the unit where all units agree."""
    found = []
    for op in chosen:
        short = op.rpartition("layer.")[2]
        alike = [o for o in modules if o == short or o.endswith(f".{short}")]
        found.append(short if all(o in chosen for o in alike) else op)
    return list(dict.fromkeys(found))


def _whole(draft: Draft, keys: AdapterKeys, model: Model) -> None:
    """The modules that train whole beside the adapters."""
    said = keys.whole or ()
    words = said.replace(" ", "").split(",") if isinstance(said, str) else [str(w) for w in said]
    names = {p.name: model.names.get(p.name, "").rpartition(".")[0].replace(NUMBER, "0") for p in model.parameters}
    train, unknown = [], []
    for word in (w for w in words if w):
        ours = [p for p, name in names.items() if name == word or name.endswith(f".{word}")]
        train += ours
        unknown += [] if ours else [word]
    if unknown:
        tied = "lm_head" in unknown and not any("lm_head" in name for name in names.values())
        raise draft.said.refuse(keys.whole_key, f"{keys.whole_key} {', '.join(unknown)}: " + (
            f"the head of {model.name} is its embedding, and PEFT trains a copy of it apart" if tied else
            f"no module of {model.name}"))
    if train:
        draft.parts.say("adapters", "train", list(dict.fromkeys(train)))
        _whole_types(draft, keys.whole_types, train)
        draft.said.approximated(keys.whole_key, f"{', '.join(words)} train whole; the frozen copy that PEFT keeps of "
                                                "each is left out")


def _whole_types(draft: Draft, types: Mapping[str, Any], train: list[str]) -> None:
    """The bytes of modules that train whole; moments have those of [types] where these are quantised."""
    known = draft.parts.tables.get("types", {})
    types = {name: n for name, n in types.items() if known.get(name) != n and (name != "o" or known.get("o") == FP32)}
    for name in dict.fromkeys(train) if types else ():
        draft.parts.say("groups", f"whole_{name.replace('.', '_')}", {"match": name, "types": types})


def _quantised(draft: Draft, keys: AdapterKeys, modules: Mapping[str, str]) -> None:
    """The base's linear weights rest in fewer bits."""
    if keys.bits not in FEWER:
        raise draft.said.refuse(keys.bits_key, f"{keys.bits_key} {keys.bits}: 4 and 8 bits are read")
    gathered = [name for name in ("wire_w", "use") if name in draft.parts.tables.get("types", {})]
    for op in dict.fromkeys(op.rpartition("layer.")[2] for op in modules):
        draft.parts.say("groups", f"base_{op.replace('.', '_')}", {
            "match": f"{op}.weight", "types": dict.fromkeys(("w", *gathered), FEWER[keys.bits])})
    draft.said.approximated(keys.bits_key, f"the weights of linear modules but the head rest in {keys.bits} bits"
                            f"{', and are gathered in them' if gathered else ''}; the "
                            "constants of quantisation and the copy that an op makes while it runs are left out")
