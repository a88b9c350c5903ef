"""What of a model a strategy trains: [adapters], frozen groups, attributes of tokens, terms of the loss of routers."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.loss_terms import TERMS
from placealg.models.adapters import ADAPTER, adapted, frozen, is_adapter, linear_ops
from placealg.models.backward import terms
from placealg.models.blocks import ALONG, with_blocks
from placealg.models.fp8_scales import with_fp8_scales
from placealg.models.model import Model
from placealg.models.router_bias import with_router_bias
from placealg.models.router_losses import routers, with_router_losses
from placealg.models.split_layers import AGAIN, AWAY, layers_apart, layers_problem
from placealg.models.stage_parts import alone_problem, standing_alone, with_own_data
from placealg.models.tokens import Attributes, attributes_problem, with_attributes
from placealg.step.split import entry_dims
from placealg.strategy.spec import DEFAULTS, Strategy, matches
from placealg.strategy.validation import Problem


def trained(strategy: Strategy, model: Model) -> Model:
    """The model as `strategy` trains it; what does not fit is left to `trained_problems`.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.strategy.spec import strategy_on
    >>> mine = strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}, adapters={"match": "attn.q", "rank": 16})
    >>> [p.name for p in trained(mine, gpt()).parameters if not trained(mine, gpt()).graph.tensors[p.name].frozen]
    ['layer.attn.q.low.weight', 'layer.attn.q.high.weight']
    """
    if any(trained_problems(strategy, model)):
        return model
    model = with_blocks(taught(strategy, model), blocks_of(strategy, model))
    key, unit = layers_chosen(strategy)
    model = layers_apart(model, unit, **strategy.option("schedule", key)) if unit else model
    model = layers_apart(model, AWAY, share=strategy.share_away) if strategy.share_away else model
    model = standing_alone(model, strategy.stages_alone) if strategy.stages_alone else model
    return with_own_data(model) if strategy.pipeline_axis else model


def blocks_of(strategy: Strategy, model: Model) -> Mapping[str, tuple[str, ...]]:
    """Scan or convolution -> the axes that cut the sequence along which it goes: it is the first dim that they name.

    >>> from placealg.models.config import from_config
    >>> from placealg.strategy.spec import strategy_on
    >>> blocks_of(strategy_on("mine", {"cp": 2}, dims={"cp": ["seq"]}), from_config("gpt2"))
    {}
    """
    found = {}
    for op in model.graph.ops:
        if op.kind in ALONG:
            dims = model.graph.iteration_dims(op)
            said = {a: next((d for entry in strategy.dims.get(a, ()) for d in entry_dims(entry, op, dims)), "")
                    for a in strategy.mesh.names}
            if axes := tuple(a for a, dim in said.items() if dim == op.over[0]):
                found[op.output] = axes
    return found


def taught(strategy: Strategy, model: Model) -> Model:
    """The model with what a strategy adds to what is computed, and says is frozen; its layers and stages as they were.

    It fits: `trained_problems` has none.
    """
    weighted = strategy.option("loss", "term_tokens") == "weighted"
    model = with_attributes(model, attributes_of(strategy))
    model = with_router_losses(model, strategy.option("loss", "terms"), weighted)
    if strategy.option("optimizer", "router_bias"):
        model = with_router_bias(model)
    patterns = strategy.option("adapters", "match")
    if patterns:
        also = strategy.option("adapters", "train")
        made = adapted(model, lambda name: any(matches(p, name) for p in patterns),
                       Monomial.parse(str(strategy.option("adapters", "rank"))))
        model = frozen(made, lambda name: not is_adapter(name) and not any(matches(p, name) for p in also))
    scaled = strategy.option("optimizer", "fp8_scales")
    if scaled:
        model = with_fp8_scales(model, lambda name: any(matches(p, name) for p in scaled))
    rules = [rule for rule in strategy.groups if rule.frozen]
    return frozen(model, lambda name: any(rule.matches(name) for rule in rules))


def attributes_of(strategy: Strategy) -> Attributes:
    """The attributes of tokens that a strategy says are data."""
    said = strategy.attributes
    return Attributes(said.get("weights", False), said.get("documents", False), "positions" in said,
                      said.get("per", "token"), "predictions" in said, said.get("predictions") == "counted",
                      "microbatch_mean" in said)


def _attribute_problems(strategy: Strategy, model: Model) -> list[Problem]:
    """Attributes of tokens that a model cannot have."""
    said = attributes_of(strategy)
    if not said or not (problem := attributes_problem(model, said)):
        return []
    key = list(strategy.attributes)[-1]
    table = next(table for table in ("tokens", "loss", "schedule") if key in DEFAULTS[table])
    return [((table, key), InputError(f"[{table}] {key}: {problem}"))]


def layers_chosen(strategy: Strategy) -> tuple[str, str]:
    """(the key of [schedule] that chooses layers, the unit of those chosen); ("", "") if none does.

    Where the same layers are computed again and have activations on another tier, they are one unit.
    """
    keys = {"recompute_layers": AGAIN, "offload_layers": AWAY}
    return next(((key, unit) for key, unit in keys.items() if strategy.option("schedule", key)), ("", ""))


def _term_problems(strategy: Strategy, model: Model) -> list[Problem]:
    """What [loss] says of terms that the model's routers cannot have, or says twice."""
    said, wanted = strategy.tables.get("loss", FrozenMap()), strategy.option("loss", "terms")
    own = () if model.opaque else terms(model.graph)
    if wanted and not routers(model.graph):
        return [(("loss", "terms"), InputError(f"[loss] terms: {model.name} has no router, which alone has such terms: "
                                               "say --model mixtral-8x7b"))]
    if wanted and own:
        return [(("loss", "terms"), InputError(f"[loss] terms: {model.name} has terms of its own, "
                                               f"'{own[0].output}'; leave them out"))]
    if strategy.option("optimizer", "router_bias") and not routers(model.graph):
        return [(("optimizer", "router_bias"), InputError(f"[optimizer] router_bias: {model.name} has no router, which "
                                                          "alone has such a bias: say --model mixtral-8x7b"))]
    for key in ("term_divisor", "term_axes"):
        if key in said and not wanted and not own and not attributes_of(strategy).apart:
            return [(("loss", key), InputError(f"[loss] {key}: nothing says which terms; say terms", valid=TERMS))]
    said_of = attributes_of(strategy)
    if strategy.option("loss", "term_tokens") == "weighted" and not (
            wanted and (said_of.weights or said_of.per != "token")):
        return [(("loss", "term_tokens"), InputError("[loss] term_tokens: " + (
            "no weights of tokens are told: say weights = true in [tokens]" if wanted else
            "nothing says which terms; say terms"), valid=() if wanted else TERMS))]
    divisor, axes = strategy.loss_of_terms()
    loss = strategy.loss()
    if "term_axes" in said and divisor == "tokens":
        return [(("loss", "term_axes"), InputError("[loss] term_axes: terms are divided by 'tokens', the rank's own, "
                                                   "which are counted along no axis; say term_divisor = \"count\""))]
    if (wanted or own or said_of.apart) and "term_divisor" in said and loss["reference"] == "sum" and divisor != "one":
        return [(("loss", "term_divisor"), InputError(
            f"[loss] term_divisor is '{divisor}', and the loss is held against the sum over all tokens, its terms with "
            "it: leave it out"))]
    if said_of.counted and divisor != "count":
        return [(("loss", "predictions"), InputError(
            f"[loss] predictions is 'counted', and terms are divided by '{divisor}': say term_divisor = \"count\""))]
    shared = wanted or own or not said_of.counted
    if shared and divisor == loss["divisor"] == "count" and set(axes) != set(loss["count_axes"] or ()):
        return [(("loss", "term_axes"), InputError(
            "[loss] term_axes: the loss is divided by a count over other axes, and a program has one count; say "
            "count_axes likewise, or divide one of them by \"tokens\""))]
    return []


def _matrix_problems(strategy: Strategy, model: Model) -> list[Problem]:
    """The dims that a group declares to make one matrix, and that a parameter of it lacks."""
    found: list[Problem] = []
    for k, rule in enumerate(strategy.groups):
        for p in model.parameters:
            first = rule.matches(p.name) and not any(r.matches(p.name) for r in strategy.groups[:k])
            lacking = [d for d in rule.matrix or () if d not in p.dims] if first else []
            if lacking:
                found.append((("groups", rule.name, "matrix"), InputError(
                    f"[groups.{rule.name}] matrix names '{lacking[0]}', which '{p.name}' lacks", name=lacking[0],
                    valid=tuple(p.dims))))
    return found[:1]


def trained_problems(strategy: Strategy, model: Model) -> list[Problem]:
    """Everything in [adapters] and in frozen groups that does not fit a model, each with the path of its key."""
    rules = [rule for rule in strategy.groups if rule.frozen]
    patterns, also = strategy.option("adapters", "match"), strategy.option("adapters", "train")
    found = _attribute_problems(strategy, model) + _term_problems(strategy, model)
    scaled = strategy.option("optimizer", "fp8_scales")
    if not scaled and "fp8_history" in strategy.tables.get("optimizer", {}):
        found.append((("optimizer", "fp8_history"), InputError("[optimizer] fp8_history: fp8_scales names no linear op "
                                                               "whose input is scaled")))
    if model.opaque:
        why = f"{model.name} says nothing about the ops inside its units: say --model gpt"
        found += [(("groups", r.name, "frozen"), InputError(f"[groups.{r.name}] frozen: {why}")) for r in rules]
        found += [(("adapters", "match"), InputError(f"[adapters] match: {why}"))] if patterns else []
        found += [(("optimizer", "fp8_scales"), InputError(f"[optimizer] fp8_scales: {why}"))] if scaled else []
        found += [(("optimizer", "offload_share"), InputError(f"[optimizer] offload_share: {why}"))] if (
            strategy.share_away) else []
        found += [(("groups", r.name, "matrix"), InputError(f"[groups.{r.name}] matrix: {why}"))
                  for r in strategy.groups if r.matrix is not None]
        return found
    found += _matrix_problems(strategy, model)
    ops, names = linear_ops(model.graph), [p.name for p in model.parameters]
    found += [(("adapters", "match"), InputError(f"[adapters] match = '{p}' matches no linear op of {model.name}",
                                                 name=p, valid=ops))
              for p in patterns if not any(matches(p, name) for name in ops)]
    found += [(("optimizer", "fp8_scales"), InputError(
        f"[optimizer] fp8_scales = '{p}' matches no linear op of {model.name}", name=p, valid=ops))
              for p in scaled if not any(matches(p, name) for name in ops)]
    found += [(("adapters", "train"), InputError(f"[adapters] train = '{p}' matches no parameter of {model.name}",
                                                 name=p, valid=names))
              for p in also if not any(matches(p, name) for name in names)]
    key, unit = layers_chosen(strategy)
    if unit and (problem := layers_problem(model, **strategy.option("schedule", key))):
        found.append((("schedule", key), InputError(f"[schedule] {key}: {problem}")))
    if not unit and strategy.share_away and (problem := layers_problem(model, share=strategy.share_away)):
        found.append((("optimizer", "offload_share"), InputError(f"[optimizer] offload_share: {problem}")))
    if strategy.stages_alone and (problem := alone_problem(model, strategy.stages_alone)):
        said = "alone" if strategy.option("schedule", "alone") else "stages"
        found.append((("schedule", said), InputError(f"[schedule] {said}: {problem}")))
    for key in ("rank", "train"):
        if not patterns and key in strategy.tables.get("adapters", {}):
            found.append((("adapters", key), InputError(f"[adapters] {key}: match names no linear op", valid=ops)))
    if patterns and not found and ADAPTER in model.graph.dims and any(
            not name.endswith((".low", ".high")) for name in ops if any(matches(p, name) for p in patterns)):
        found.append((("adapters", "match"), InputError(f"[adapters] match: {model.name} has adapters of its own")))
    if rules and not patterns and all(any(r.matches(name) for r in rules) for name in names):
        found.append((("groups", rules[0].name, "frozen"), InputError(
            f"[groups.{rules[0].name}] frozen: every parameter of {model.name} is, and nothing trains")))
    return found
