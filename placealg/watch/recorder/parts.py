"""The single device's gradient of every parameter, part by part: what each set of tokens gives to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from placealg.errors import InputError
from placealg.watch.recorder.parameters import plain_name


@dataclass
class Parts:
    """Gradients by sequence and place in it.

    `by_loss[name]` has the shape (sequences, places, *parameter): what the losses of these tokens give. `by_site[name]`
    has one dimension more in front, the uses of the parameter (`sites`): what passes through it at these tokens,
    whichever token's loss it serves. `norm` is that of the whole gradient.
    """

    by_loss: dict[str, Tensor]
    by_site: dict[str, Tensor]
    sites: dict[str, list[str]] = field(default_factory=dict)
    norm: float = 0.0


@dataclass
class _Call:
    """One run of a module that has parameters of its own."""

    name: str
    module: nn.Module
    args: Any
    kwargs: Any
    made: Tensor


def parts_of(model: nn.Module, losses: Callable[[nn.Module, Any], Tensor], batch: Any, ranks: int) -> Parts:
    """The parts of every gradient of a single device; sequences are divided for a run of so many ranks."""
    calls: list[_Call] = []
    handles = [m.register_forward_hook(_keep(n, calls), with_kwargs=True) for n, m in model.named_modules()
               if any(p.requires_grad for p in m.parameters(recurse=False))]
    try:
        told = losses(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(told, Tensor) or told.dim() < 1 or not told.requires_grad:
        raise InputError("the reference gives the losses of each token, as a tensor of (sequences, tokens) whose sum "
                         "is the loss")
    table = told.reshape(told.shape[0], -1)
    rows = table.shape[0]
    calls = [c for c in calls if c.made.requires_grad]
    lengths = Counter(c.made.shape[1] for c in calls if c.made.dim() > 2 and c.made.shape[0] == rows)
    length = lengths.most_common(1)[0][0] if lengths else table.shape[1]
    places = gcd(length, 2 * ranks)
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names[id(parameter)] = plain_name(name)
    wanted = [p for p in model.parameters() if p.requires_grad]
    by_loss = {names[id(p)]: p.new_zeros((rows, places, *p.shape)) for p in wanted}
    sites: dict[str, list[str]] = {}
    for call in calls:
        for parameter in call.module.parameters(recurse=False):
            if id(parameter) in names and call.name not in sites.setdefault(names[id(parameter)], []):
                sites[names[id(parameter)]].append(call.name)
    where = torch.arange(table.shape[1]) * places // max(table.shape[1], 1)
    masks = (where == torch.arange(places)[:, None]).to(table.dtype)
    each = torch.einsum("ab,pt->apbt", torch.eye(rows, dtype=table.dtype), masks).flatten(0, 1)
    grads = _each(table, wanted, each)
    by_loss = {names[id(p)]: p.new_zeros((rows, places, *p.shape)) if g is None else g.unflatten(0, (rows, places))
               for p, g in zip(wanted, grads, strict=True)}
    upstream = _each(table, [c.made for c in calls], torch.eye(rows, dtype=table.dtype)[:, :, None].expand(
        rows, rows, table.shape[1]))
    by_site: dict[str, Tensor] = {}
    for call, grad in zip(calls, upstream, strict=True):
        if grad is not None:
            _through(call, grad, rows, length, places, names, sites, by_site)
    whole = {n: t.sum((0, 1)) for n, t in by_loss.items()}
    for name in list(by_site):
        rest = by_site[name].sum((0, 2)) - by_loss[name].sum(1)
        if float(rest.abs().max()) > 1e-9 * max(float(by_loss[name].abs().max()), 1e-300):
            del by_site[name]  # it is used outside the forward of its module, or not token by token
    norm = float(torch.stack([t.norm() for t in whole.values()]).norm())
    return Parts(by_loss, by_site, sites, norm)


def _keep(name: str, calls: list[_Call]) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        if isinstance(made, Tensor):
            calls.append(_Call(plain_name(name), module, args, kwargs, made))
    return hook


def _each(made: Tensor, wanted: list[Any], chosen: Tensor) -> list[Tensor | None]:
    """The gradients of several sums of what was made: `chosen` has one more dimension in front, one entry a sum."""
    try:
        return list(torch.autograd.grad(made, wanted, chosen, retain_graph=True, allow_unused=True,
                                        is_grads_batched=True))
    except RuntimeError:  # an op that takes one at a time
        every = [torch.autograd.grad(made, wanted, one, retain_graph=True, allow_unused=True) for one in chosen]
        return [None if of[0] is None else torch.stack(of) for of in zip(*every, strict=True)]


def _through(call: _Call, upstream: Tensor, rows: int, length: int, places: int, names: dict[int, str],
             sites: dict[str, list[str]], by_site: dict[str, Tensor]) -> None:
    """Add what passes through one run of a module, of each sequence at each place of it."""
    own = [p for p in call.module.parameters(recurse=False) if id(p) in names]
    at = _places(upstream[0], rows, length, places)
    if at is None or not own:
        return
    with torch.enable_grad():
        made = call.module(*_cut(call.args), **_cut(call.kwargs))
    chosen = torch.stack([upstream * (at == place) for place in range(places)], 1).flatten(0, 1)
    for parameter, found in zip(own, _each(made, own, chosen), strict=True):
        name = names[id(parameter)]
        if found is not None:
            into = by_site.setdefault(name, parameter.new_zeros((len(sites[name]), rows, places, *parameter.shape)))
            into[sites[name].index(call.name)] += found.unflatten(0, (rows, places))


def _places(grad: Tensor, rows: int, length: int, places: int) -> Tensor | None:
    """The place in its sequence of every element of what a module made; None where it is not made token by token."""
    shape = grad.shape
    if grad.dim() > 2 and shape[:2] == (rows, length):
        dim, count = 1, torch.arange(length)
    elif grad.dim() > 1 and shape[0] == length:
        dim, count = 0, torch.arange(length)
    elif grad.dim() > 1 and shape[0] == rows * length:
        dim, count = 0, torch.arange(rows * length) % length
    else:
        return None
    view = [1] * grad.dim()
    view[dim] = -1
    return (count * places // length).view(view)


def _cut(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {k: _cut(v) for k, v in value.items()}
    return type(value)(_cut(v) for v in value) if isinstance(value, list | tuple) else value
