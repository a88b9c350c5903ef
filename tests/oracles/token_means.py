"""Who sees whom, and who divides by what: one attention layer in plain floats, its gradient by hand, rank by rank.

It shares no code with placealg. A case is told in words; the gradient of one device is held against the sum of what
ranks and microbatches contribute, each with the attributes, the counts and the divisors that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

Array = np.ndarray
WIDTH, ROWS, LONG = 4, 3, 4
"""Numbers of a token, rows of a rank in a microbatch, of which the last is padding, and tokens of a rank's part."""


@dataclass(frozen=True)
class Case:
    """A training step in words: axes, attributes of tokens, the loss and what divides it, and what is wrong.

    `samples`: a microbatch counts by its samples. `later`: there is a loss of the token after the next, with a count of
    its own over these axes.
    """

    dp: bool = False
    cp: bool = False
    documents: bool = False
    rotary: str = ""
    per: str = "token"
    divisor: str = "count"
    over: tuple[str, ...] = ("dp", "cp", "microbatch")
    reference: str = "token_mean"
    equal: bool = False
    fault: str = ""
    samples: bool = False
    later: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Batch:
    """Rows of one step: what enters, weights, documents, positions, and of each row the data rank and microbatch."""

    x: Array
    weight: Array
    document: Array
    position: Array
    rank: Array
    microbatch: Array
    owner: Array
    samples: Array

    def further(self) -> Batch:
        """The batch with the weight of the next token of its document at each place."""
        ahead = np.zeros_like(self.weight)
        ahead[:, :-1] = np.where(self.document[:, :-1] == self.document[:, 1:], self.weight[:, 1:], 0)
        return replace(self, weight=ahead)


def batch(case: Case, dp: int, cp: int, m: int, draw: np.random.Generator) -> Batch:
    """A batch whose tokens count unequally in ranks and microbatches, unless they are said to count equally."""
    length = LONG * cp
    cells = list(product(range(dp), range(m)))
    rank, microbatch = (np.repeat([c[k] for c in cells], ROWS) for k in (0, 1))
    count = len(rank)
    owner = np.arange(length) // LONG
    if draw.random() < 0.5:
        chunk = np.arange(length) * 2 * cp // length
        owner = np.minimum(chunk, 2 * cp - 1 - chunk)
    weight = draw.integers(0, 3, (count, length))
    for row, part in product(range(count), range(cp)):
        mine = np.flatnonzero(owner == part)
        weight[row, mine[0]] = 1 + (row + part) % 2
    starts = draw.integers(1, length, count)
    document = (np.arange(length) >= starts[:, None]).astype(int)
    weight[np.arange(count), starts] = np.maximum(weight[np.arange(count), starts], 1)
    weight[:, 0] = np.maximum(weight[:, 0], 1)
    if case.equal and case.per == "token":
        for row, part in product(range(count), range(cp)):
            weight[row, owner == part] = draw.permutation([2, 2, 1, 0])
    elif not case.equal and len(cells) > 1:
        weight[:ROWS - 2] = 0
    if case.later is not None and case.per != "token":
        for row in np.flatnonzero(draw.random(count) < 0.5):
            alone = weight[row] * (np.arange(length) == 0)
            alone[starts[row]] = weight[row, starts[row]] * (case.per == "document")
            weight[row] = alone
    weight[ROWS - 1::ROWS] = 0
    position = np.arange(length) - np.where(document, starts[:, None], 0)
    if case.rotary != "data" and case.rotary:
        position = np.broadcast_to(np.arange(length), (count, length))
    x = draw.normal(size=(count, length, WIDTH))
    samples = draw.integers(1, 3, count) * weight.any(1)
    return Batch(x, weight, document, position, rank, microbatch, owner, samples)


def turned(y: Array, angle: Array, sign: int = 1) -> Array:
    """Pairs of numbers turned by an angle each."""
    a, b = y[..., ::2], y[..., 1::2]
    c, s = np.cos(angle)[..., None], sign * np.sin(angle)[..., None]
    return np.stack([a * c - b * s, a * s + b * c], -1).reshape(y.shape)


@dataclass(frozen=True)
class View:
    """What the forward believes of every token: at which position, and in which document, its query and its key are."""

    query: Array
    key: Array
    asked: Array
    told: Array
    masked: bool


def believed(case: Case, b: Batch) -> View:
    """The attributes as ranks have them, wrong where the case says so."""
    def own_start(what: Array) -> Array:
        found = what.copy()
        for part in range(b.owner.max() + 1):
            mine = np.flatnonzero(b.owner == part)
            found[:, mine] = what[:, :len(mine)]
        return found

    position = own_start(b.position) if case.fault == "local positions" else b.position
    place = np.broadcast_to(np.arange(b.x.shape[1]), b.position.shape)
    key = place if case.fault == "keys by place" else position
    asked = own_start(b.document) if case.fault == "local documents" else b.document
    return View(position, key, asked, b.document, case.documents and case.fault != "no mask")


def gradient(case: Case, b: Batch, view: View, each: Array, further: Array,
             theta: dict[str, Array]) -> dict[str, Array]:
    """The gradient of the sum of `each` token's loss times its number: attention forward, and by hand backward.

    `further` are the numbers by which the losses of later tokens count.
    """
    length = b.x.shape[1]
    x = b.x if case.rotary else b.x + theta["table"][view.query]
    angles = theta["angles"]
    q, k, v = (x @ theta[name] for name in ("q", "k", "v"))
    if case.rotary:
        q, k = turned(q, angles[view.query]), turned(k, angles[view.key])
    scores = q @ k.transpose(0, 2, 1)
    seen = np.tril(np.ones((length, length), bool))[None]
    if view.masked:
        seen = seen & (view.asked[:, :, None] == view.told[:, None, :])
    seen = seen | np.zeros_like(scores, bool)
    powers = np.where(seen, np.exp(scores - scores.max()), 0.0)
    total = powers.sum(-1, keepdims=True)
    share = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    out = (share @ v) @ theta["o"] + x
    logit = out @ theta["w"]
    dlogit, dlater = each * logit, further * (out @ theta["later"])
    dw, dw_later = (np.einsum("rs,rsh->h", d, out) for d in (dlogit, dlater))
    dout = dlogit[..., None] * theta["w"] + dlater[..., None] * theta["later"]
    do = np.einsum("rsh,rsk->hk", share @ v, dout)
    dmixed = dout @ theta["o"].T
    dshare = dmixed @ v.transpose(0, 2, 1)
    dv = share.transpose(0, 2, 1) @ dmixed
    dscores = share * (dshare - (share * dshare).sum(-1, keepdims=True))
    dq, dk = dscores @ k, dscores.transpose(0, 2, 1) @ q
    if case.rotary:
        dq, dk = turned(dq, angles[view.query], -1), turned(dk, angles[view.key], -1)
    found = {name: np.einsum("rsh,rsk->hk", x, d) for name, d in (("q", dq), ("k", dk), ("v", dv))}
    found |= {"w": dw, "later": dw_later, "o": do}
    if not case.rotary:
        dx = dq @ theta["q"].T + dk @ theta["k"].T + dv @ theta["v"].T + dout
        table = np.zeros_like(theta["table"])
        np.add.at(table, view.query, dx)
        found["table"] = table
    return found


def shares(case: Case, b: Batch, wrong: bool) -> tuple[Array, Array]:
    """How much each token weighs in what the loss sums; and how much each of what it sums counts, row by row.

    Of means of sequences or documents the second has a number for each of them.
    """
    weight = np.ones_like(b.weight) if wrong and case.fault == "no weights" else b.weight
    if case.per == "token":
        return weight.astype(float), b.weight
    kinds = b.document if case.per == "document" else np.zeros_like(b.document)
    lengths = np.stack([np.where(kinds == d, b.weight, 0).sum(1) for d in range(2)], 1)
    own = np.take_along_axis(lengths, kinds, 1).astype(float)
    if wrong and case.fault == "local length":
        for part in range(b.owner.max() + 1):
            mine = b.owner == part
            own[:, mine] = np.where(mine, b.weight, 0).sum(1)[:, None]
    return np.divide(weight, own, out=np.zeros(own.shape), where=own > 0), (lengths > 0).astype(int)


def counted(case: Case, b: Batch, per: Array, wrong: bool) -> Array:
    """What a token counts in the divisor: its weight, or, of a wrong count, 1."""
    if wrong and case.fault == "count all":
        return np.ones_like(per)
    return (per > 0).astype(int) if wrong and case.fault == "count once" else per


def factors(case: Case, b: Batch, dp: int, cp: int, m: int) -> Array:
    """By what each token's share is multiplied on its rank, in its microbatch: one over the divisor."""
    _, per = shares(case, b, True)
    own = case.fault == "local samples"
    mine = counted(case, b, per, True)
    if case.divisor == "one":
        return np.ones(b.weight.shape)
    cut = case.cp and case.per == "token"
    found = np.zeros(b.weight.shape)
    for r, k, c in product(range(dp), range(m), range(cp if cut else 1)):
        alone = case.divisor == "tokens"
        rows = (np.ones_like(b.rank, bool) if not alone and "dp" in case.over else b.rank == r)
        rows = rows & (np.ones_like(rows) if not alone and "microbatch" in case.over else b.microbatch == k)
        parts = np.ones(b.owner.shape, bool) if not cut or (not alone and "cp" in case.over) else b.owner == c
        count = mine[rows][:, parts].sum() if cut else mine[rows].sum()
        part = b.samples[(b.microbatch == k) & ((b.rank == r) | (not own))].sum() / b.samples.sum()
        means = 1 / part if case.samples and part else 0 if case.samples else m
        for axis, size, split in (("dp", dp, True), ("cp", cp, cut), ("microbatch", means, True)):
            count = count * (size if split and (alone or axis not in case.over) else 1)
        here = ((b.rank == r) & (b.microbatch == k))[:, None] & ((b.owner == c) | (not cut))[None]
        found[here] = 1 / count if count else np.inf
    return found


def wanted(case: Case, b: Batch, m: int) -> Array:
    """By what the single device multiplies each token's share."""
    _, per = shares(case, b, False)
    if case.divisor == "one":
        return np.ones(b.weight.shape)
    if case.reference == "token_mean":
        return np.full(b.weight.shape, 1 / per.sum())
    parts = [b.samples[b.microbatch == k].sum() / b.samples.sum() if case.reference == "sample_mean" else 1 / m
             for k in range(m)]
    each = np.array([parts[k] / max(1, per[b.microbatch == k].sum()) for k in range(m)])
    return np.broadcast_to(each[b.microbatch][:, None], b.weight.shape)


def agrees(case: Case, sizes: tuple[int, int, int], seed: int) -> bool:
    """Whether the step at these sizes (dp, cp, microbatches) has the gradient of one device."""
    dp, cp, m = sizes[0] if case.dp else 1, sizes[1] if case.cp else 1, sizes[2]
    draw = np.random.default_rng(seed)
    b = batch(case, dp, cp, m, draw)
    theta = {name: draw.normal(size=(WIDTH, WIDTH)) / 2 for name in ("q", "k", "v", "o")}
    theta |= {"w": draw.normal(size=WIDTH), "table": draw.normal(size=(b.x.shape[1], WIDTH)),
              "angles": draw.uniform(0, 6, b.x.shape[1]), "later": draw.normal(size=WIDTH)}
    right = replace(case, fault="")
    ahead, aim, made = b.further(), np.zeros(b.weight.shape), np.zeros(b.weight.shape)
    if case.later is not None:
        later, counts = replace(right, divisor="count", over=case.later), b if case.fault == "first count" else ahead
        aim = shares(later, ahead, False)[0] * wanted(later, ahead, m)
        made = shares(later, ahead, False)[0] * factors(later, counts, dp, cp, m)
    one = gradient(right, b, believed(right, b), shares(right, b, False)[0] * wanted(right, b, m), aim, theta)
    all_ranks = gradient(case, b, believed(case, b), shares(case, b, True)[0] * factors(case, b, dp, cp, m), made,
                         theta)
    return all(np.allclose(one[name], all_ranks[name], rtol=1e-7, atol=1e-9) for name in one)
