"""What two models differ in, told by the first parameter, number of layers or op that is not the same."""

from __future__ import annotations

from itertools import zip_longest

from placealg.arith import Monomial
from placealg.models.graph import Op
from placealg.models.model import Model, Parameter


def first_difference(old: Model, new: Model) -> str:
    """The first difference, as part of a sentence on the old one and the new one; "" if they are one model.

    Parameters come first, with their sizes, as numbers where they are known: those of the new model in its order, then
    those that only the old one has. Models whose parameters are alike may still differ in an op. What models are called
    is no difference.

    >>> from placealg.models.config import from_config
    >>> first_difference(from_config("llama-3-8b"), from_config("llama-3-70b"))
    'embedding.weight is vocab 128256 × embed 4096 in the old one, vocab 128256 × embed 8192 in the new one'
    >>> first_difference(from_config("gpt2"), from_config("gpt2"))
    ''
    """
    before, after = ({p.name: p for p in model.parameters} for model in (old, new))
    for name, parameter in after.items():
        if name not in before:
            return f"the new one has {name} of {_dims(parameter, new)}, which the old one lacks"
        shapes = _dims(before[name], old), _dims(parameter, new)
        if shapes[0] != shapes[1]:
            return f"{name} is {shapes[0]} in the old one, {shapes[1]} in the new one"
        counts = _count(before[name], old), _count(parameter, new)
        if counts[0] != counts[1]:
            return f"{name} is there {counts[0]} times in the old one, {counts[1]} times in the new one"
    for name, parameter in before.items():
        if name not in after:
            return f"the old one has {name} of {_dims(parameter, old)}, which the new one lacks"
    for one, two in zip_longest(old.graph.ops, new.graph.ops):
        if one != two:
            return f"{_told(one)} in the old one, {_told(two)} in the new one"
    return ""


def _size(size: Monomial, model: Model) -> str:
    """A size as a number, if the model's sizes say it."""
    known = all(name in model.sizes for name in size.names())
    return str(size.evaluate(model.sizes) if known else size)


def _dims(parameter: Parameter, model: Model) -> str:
    return " × ".join(f"{dim} {_size(n, model)}" for dim, n in parameter.dims.items()) or "one number"


def _count(parameter: Parameter, model: Model) -> str:
    """How many instances of a parameter there are."""
    return next((_size(unit.count, model) for unit in model.units if unit.name == parameter.unit), "1")


def _told(op: Op | None) -> str:
    """An op with its kind."""
    if op is None:
        return "nothing more is computed"
    return f"{op.output} is {'an' if op.kind[0] in 'aeiou' else 'a'} {op.kind} of {', '.join(op.inputs)}"
