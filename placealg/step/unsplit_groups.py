"""Parameters that a group declares whole although an axis's list of dims would split them."""

from __future__ import annotations

from dataclasses import replace

from placealg.models.model import Model
from placealg.placement import Mode
from placealg.step.split import split_of
from placealg.strategy.spec import Strategy
from placealg.strategy.vocabulary import NONE


def with_whole(strategy: Strategy, model: Model) -> Strategy:
    """The strategy with an entry for each op that uses a parameter declared R along an axis that would split it.

    Such an op is split along the first entry that leaves its parameter whole, or computed whole if there is none.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.strategy.spec import strategy_on
    >>> mine = strategy_on("mine", {"tp": 8}, dims={"tp": ["heads", "ffn"]},
    ...                    groups={"q": {"match": "attn.q.weight", "parameters": {"tp": "R"}}})
    >>> with_whole(mine, gpt()).dims["tp"]
    ('layer.attn.q.none', 'heads', 'ffn')
    """
    graph, said = model.graph, dict(strategy.dims)
    for parameter in graph.parameters if strategy.groups else ():
        rule = next((r for r in strategy.groups if r.matches(parameter.name)), None)
        placement = rule.states.get("parameters") if rule else None
        for axis in (a for a, mode in placement.modes.items() if mode is Mode.R) if placement else ():
            entries = strategy.dims.get(axis, ())
            for op in graph.consumers(parameter.name):
                if split_of(entries, op, graph) not in parameter.dims:
                    continue
                others = tuple(e for e in entries if split_of((e,), op, graph) not in parameter.dims)
                said[axis] = (f"{op.output}.{split_of(others, op, graph) or NONE}", *said[axis])
    return replace(strategy, dims=strategy.dims.plus(said)) if said != dict(strategy.dims) else strategy
