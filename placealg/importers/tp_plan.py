"""HuggingFace tensor-parallel plans: the dict literal of a configuration class becomes the dims of one axis."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from placealg.errors import InputError
from placealg.importers.composed_strategy import GATHERED_LOGITS
from placealg.importers.document import Document, Key
from placealg.importers.draft import Draft
from placealg.importers.lora import model_beside
from placealg.importers.model import model_of_fields
from placealg.importers.names import kind_without_graph
from placealg.importers.python_text import Evaluator, class_attributes, class_defaults, parse_python
from placealg.importers.reading import Options, Reading, refusal
from placealg.models.config import SHIPPED, shipped
from placealg.models.family import families, family
from placealg.models.graph import Graph

PLAN = "base_model_tp_plan"
Q = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "q_b_proj", "kv_b_proj", "Wqkv")
OUT = ("o_proj", "out_proj", "dense", "c_proj")
UP = ("gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "c_fc", "w1", "w3", "dense_h_to_4h")
DOWN = ("down_proj", "fc2", "fc_out", "w2", "c_proj", "dense_4h_to_h")
SPLIT = ("colwise", "packed_colwise", "local_colwise", "local_packed_colwise")
GATHERED = ("colwise_gather_output", "colwise_rep")
WHOLE = ("rowwise_split_input", "rowwise_rep")
"""Styles of a row split of which the input is whole: their names of 2025 end with _rep."""
ROWS = ("rowwise", "local_rowwise", *WHOLE)
QUIET = ("replicated_with_grad_allreduce", "mla_kv_a_proj", "local", "local_params", "gather", "replicate",
         "moe_tp_experts", "sequence_parallel", "moe_identity_expert", "auto", "embedding_rowwise")


def read_tp_plan(document: Document, options: Options) -> Reading:
    """The reading of the plan of a configuration class, or of the class that --function names."""
    tree = parse_python(document.text, document.file)
    plans = list(class_attributes(tree, PLAN))
    if options.function:
        plans = [p for p in plans if p[0] == options.function]
    if not plans:
        raise refusal(f"no class {options.function or ''} with {PLAN}".replace("  ", " "), document.file)
    filled = [p for p in plans if not (isinstance(p[1], ast.Dict) and not p[1].keys)]
    if len(filled) > 1:
        raise refusal(f"{len(filled)} plans, of {', '.join(p[0] for p in filled)}", f"{document.file}:{filled[0][2]}",
                      f"--function {filled[0][0]} takes one")
    if not filled:
        raise refusal("its plan is empty", f"{document.file}:{plans[0][2]}")
    owner, node, line = filled[0]
    types = {c: v.value for c, v, _ in class_attributes(tree, "model_type") if isinstance(v, ast.Constant)}
    family = str(types.get(owner, ""))
    if kind := kind_without_graph(family):
        raise refusal(f"model_type {family} is {kind}, of which there is no op graph", f"{document.file}:{line}")
    plan = Evaluator(tree, document.file).value(node, {})
    words = isinstance(plan, dict) and all(isinstance(v, str) for v in plan.values())
    if not words or not isinstance(node, ast.Dict) or None in node.keys:
        raise refusal(f"{PLAN} of {owner} is no dict of words", f"{document.file}:{line}")
    lines: dict[Key, int] = {(k,): n.lineno for k, n in zip(plan, node.keys, strict=True) if n is not None}
    draft = Draft("tp_plan", Document(document.file, plan, lines, document.text), options)
    _Plan(draft, plan, family, class_defaults(tree, owner)).read()
    return draft.reading()


class _Plan:
    """One plan, part by part."""

    def __init__(self, draft: Draft, plan: Mapping[str, str], family: str, defaults: Mapping[str, Any]):
        self.draft, self.said, self.plan, self.family = draft, draft.said, plan, family
        self.defaults = defaults
        self.dims = [GATHERED_LOGITS, "loss.none"]
        draft.said.path = lambda key: (key,)  # type: ignore[method-assign]  # names of modules hold dots

    def read(self) -> None:
        """Put the axis in, with its dims."""
        parts = {where: self.part(where) for where in ("attention", "experts", "shared", "mlp")}
        unknown = [k for k, v in self.plan.items() if v not in (*SPLIT, *GATHERED, *ROWS, *QUIET, "embedding_colwise",
                                                                "ep_router", "grouped_gemm", "ep_dispatch_experts")]
        if unknown:
            raise self.said.refuse(unknown[0], f"{unknown[0]} is {self.plan[unknown[0]]}, a style that is not read")
        self.embedding()
        self.attention(parts["attention"])
        self.network(parts)
        self.dims.append("vocab")
        self.norms()
        self.draft.parts.axis("tp", self.draft.options.world_size)
        self.draft.parts.say("dims", "tp", self.dims)
        self.said.follows("lm_head", "vocab, and head.loss.none: its plan stands in the model's own file, "
                                     "colwise_gather_output in every one that was looked at: the cross entropy reads "
                                     "gathered logits")
        for key in ("gradient_accumulation_steps", "clip", "recompute", "[types]"):
            self.said.unsaid(key, "the trainer decides")
        self.model()
        self.shared(parts)

    def part(self, where: str) -> dict[str, str]:
        """The entries of one part of a layer."""
        found = {}
        for key, style in self.plan.items():
            words = key.split(".")
            experts = "experts" in words
            shared = any(w in ("shared_expert", "shared_experts", "shared_mlp") for w in words)
            attention = any("attn" in w or w == "attention" for w in words)
            mlp = any(w in ("mlp", "mlps", "feed_forward", "ffn", "block_sparse_moe", "moe") for w in words)
            mine = {"attention": attention, "experts": experts and not shared, "shared": shared,
                    "mlp": mlp and not experts and not shared and not attention}[where]
            if mine:
                found[key] = style
        return found

    def pick(self, part: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
        """The entries of these modules."""
        return {k: v for k, v in part.items() if k.split(".")[-1] in names or k.split(".")[-2:-1] == list(names[:1])}

    def embedding(self) -> None:
        """The embedding, whole unless the plan says otherwise."""
        names = ("embed_tokens", "wte", "embed_in", "word_embeddings")
        key = next((k for k in self.plan if k.split(".")[-1] in names), "")
        if not key:
            self.dims.append("embedding.none")
            self.said.follows("embed_tokens", "in no entry: whole on every rank")
        elif self.plan[key] == "embedding_rowwise":
            self.said.read(key, "split along vocab")
        elif self.plan[key] in ("replicate", "gather"):
            self.dims.append("embedding.none")
            self.said.read(key, "whole on every rank")
        else:
            raise self.said.refuse(key, f"{key} is {self.plan[key]}: an embedding split along its width")

    def attention(self, part: Mapping[str, str]) -> None:
        """Heads, or attention whole."""
        q, out = self.pick(part, Q), self.pick(part, OUT)
        for key in (k for k, v in part.items() if not q and not out and v in (*SPLIT, *GATHERED, *ROWS)):
            raise self.said.refuse(key, f"{key} is {part[key]}, and is neither query, key, value nor output")
        if not q and not out:
            self.dims += ["attn.none", "core.none"]
            self.said.follows("attention", "in no entry: whole on every rank")
            return
        ways = set(q.values())
        if not q or not out:
            key = next(iter({**q, **out}))
            raise self.said.refuse(key, f"{key} is {self.plan[key]}, and the other half of the pair is in no entry: "
                                        "a product "
                                        "of split and whole weights, which no dims say")
        if ways <= set(SPLIT) and set(out.values()) <= set(ROWS) - set(WHOLE):
            self.dims.append("heads")
        elif ways <= set(GATHERED) and set(out.values()) <= set(WHOLE):
            self.dims += ["core.none", "heads"]
        else:
            key = next(iter(q))
            raise self.said.refuse(key, f"{', '.join(sorted(ways))} beside {', '.join(sorted(set(out.values())))}: "
                                        "styles "
                                        "of attention that are not read together")
        for key in part:
            self.said.read(key, "heads" if key in q or key in out else "beside the heads of its rank")

    def network(self, parts: Mapping[str, Mapping[str, str]]) -> None:
        """MLPs and experts."""
        found = False
        for where in ("experts", "shared", "mlp"):
            part = parts[where]
            if not part:
                continue
            up, down = self.pick(part, UP), self.pick(part, DOWN)
            name = "dense_ffn" if where == "mlp" and parts["experts"] else "ffn"
            for key in (k for k, v in part.items() if k not in {**up, **down} and v in (*SPLIT, *GATHERED, *ROWS)):
                raise self.said.refuse(key, f"{key} is {part[key]}, and is neither gate, up nor down of {where}")
            if not up and not down:
                continue
            if where == "experts" and "grouped_gemm" in up.values():
                self.dims.insert(2, "expert.expert")
                for key in part:
                    self.said.read(key, "experts are split over the axis")
                found = True
                continue
            if not up or not down:
                key = next(iter({**up, **down}))
                raise self.said.refuse(key, f"{key} is {self.plan[key]}, and the other half of the pair is in no "
                                            "entry: a "
                                            "product of split and whole weights, which no dims say")
            whole = set(up.values()) <= set(GATHERED)
            fits = WHOLE if whole else set(ROWS) - set(WHOLE)
            for key, style in (*up.items(), *down.items()):
                if style not in ((GATHERED if whole else SPLIT) if key in up else fits):
                    ways = ", ".join(sorted(set(up.values()))), ", ".join(sorted(set(down.values())))
                    raise self.said.refuse(key, f"{key} is {style}, of {ways[0]} beside {ways[1]}: {name} is gate and "
                                                "up split along columns, and down along rows")
            if name not in self.dims:
                self.dims.append(name)
            found = True
            gathered = list(up) if whole else []
            for key in part:
                if key not in gathered:
                    self.said.read(key, f"{name} of {where}")
            for key in gathered:
                self.said.approximated(key, f"{name}: its output is gathered for the activation, and split again; "
                                            "here it "
                                            "stays split")
            if where == "experts" and any(v == "moe_tp_experts" for v in part.values()):
                self.said.approximated("experts", "one all_reduce behind the combination; here each pair of a token "
                                                  "and an "
                                                  "expert is reduced: topk times the traffic")
        if not found:
            self.said.follows("mlp", "in no entry: whole on every rank")
            self.dims.append("mlp.none")

    def shared(self, parts: Mapping[str, Mapping[str, str]]) -> None:
        """Shared experts, whole where no entry splits them, and of a width of their own in some families."""
        try:
            model = model_beside(self.draft) if parts["experts"] else None
        except InputError:
            return
        has = set(model.graph.dims) if model else set()
        if "shared_ffn" in has and self.pick(parts["shared"], UP):
            self.dims.append("shared_ffn")
        elif "shared" in has and "ffn" in self.dims and not self.pick(parts["shared"], UP):
            self.dims.append("shared_expert.none")
            self.said.follows("shared experts", "in no entry: whole on every rank")
        self.draft.parts.say("dims", "tp", self.dims)

    def norms(self) -> None:
        """Norms that are split along the sequence."""
        split = [k for k, v in self.plan.items() if v == "sequence_parallel"]
        if split:
            self.dims.append("seq")
        for key in split:
            self.said.read(key, "split along seq")
        for key, style in self.plan.items():
            if not self.said.accounted((key,)):
                if style in (*SPLIT, *GATHERED, *ROWS):
                    raise self.said.refuse(key, f"{key} is {style}, and is of no part of a layer that is read")
                self.said.read(key, f"{style}: as the rest of its layer")

    def model(self) -> None:
        """The configuration of the class's own defaults, where its family is read; or a shipped one of that family."""
        if self.draft.options.model:
            return
        if self.family in families():
            fields = {k: v for k, v in self.defaults.items() if k in family(self.family).read}
            made = {"model_type": self.family, **fields}
            try:
                graph = model_of_fields(made, self.family).graph
            except InputError:
                graph = Graph()
            dims = set(graph.dims)
            if "embedding.none" in self.dims and "head" in graph.sites("embedding.weight"):
                made["tie_word_embeddings"] = False
                self.said.approximated("tie_word_embeddings", "the head is the embedding, which the plan splits in one "
                                                              "place and leaves whole in the other; here each has its "
                                                              "own weight")
            if dims and ("dense_ffn" in dims or "dense_ffn" not in self.dims):
                self.draft.model = made
                self.said.follows("model", f"{self.family} of the class's own defaults: " + ", ".join(
                    f"{k} = {v}" for k, v in fields.items() if isinstance(v, int) and not isinstance(v, bool)))
                return
        for name in shipped():
            data: dict[str, Any] = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
            fits = data.get("first_k_dense_replace") or "dense_ffn" not in self.dims
            if data["model_type"] == self.family and fits:
                self.draft.model = name
                self.said.follows("model", f"{name}, of model_type {self.family}")
                return
        self.draft.unread_model(f"no family that is read is called {self.family or '?'}")
