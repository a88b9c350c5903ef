"""What `compute` does on a machine, but for ops: a unit's forward and backward, the loss, the token count."""

from __future__ import annotations

from fractions import Fraction

from placealg.errors import InputError
from placealg.simulate import network, operate
from placealg.simulate.divisors import divided
from placealg.simulate.machine import Machine, fraction
from placealg.simulate.network import Activations, Matrix, Token, Vector
from placealg.simulate.reference import Place, Slot
from placealg.step.program import Event


def compute(m: Machine, e: Event) -> None:
    """Run a compute event on every rank that `where` selects; a flag is made on every rank."""
    if e.value in ("skip", "grad"):
        (_look if e.value == "skip" else _take)(m, e)
        return
    for rank in m.acting(e):
        if m.chosen(e, rank):
            if e.value == "count":
                m.target(e)[rank][0] = Fraction(m.token_count(rank, e.unit))
            elif e.value == "loss":
                _loss(m, e, rank) if m.space is None else operate.read_loss(m, e, rank)
            else:
                _unit(m, e, rank)


def _look(m: Machine, e: Event) -> None:
    """The flag of a group's instance: whether an element that the rank holds and `where` selects overflows."""
    gradients, flags = m.table(e.tiers[0], "grad_sum", *m.slot(e)), m.target(e)
    for rank in m.acting(e):
        seen = (n for element, n in gradients[rank].items() if m.chosen(e, rank, element))
        flags[rank][0] = Fraction(any(m.overflows(e.group, n) for n in seen))


def _take(m: Machine, e: Event) -> None:
    """The statistic of the unit's instance, of what entered it on each rank."""
    place = m.positions[m.reference.group(e.group).unit, m.instance]
    for rank in m.acting(e):
        kept, weight = m.activations[rank].kept.get(place), fraction(divided(m, e, rank, Fraction(1)))
        found = None if kept is None or weight is None else network.second_moments(kept, weight)
        for element in range(4):
            if m.chosen(e, rank, element):
                m.target(e)[rank][element] = m.garbage() if found is None else found[element]


def start_backward(m: Machine, e: Event) -> None:
    """Divide the value from which backward starts, where the loss has been computed."""
    for rank in m.acting(e):
        unit, store = m.activations[rank], m.stores[rank]
        if m.chosen(e, rank):
            seed = unit.seeds.get(e.unit)
            unit.seeds[e.unit] = seed and fraction(divided(m, e, rank, seed))
            store.seed = store.seed and divided(m, e, rank, store.seed)


def _tokens(m: Machine, rank: int) -> list[Token]:
    return [t for loss in m.reference.losses for t in _tokens_of(m, rank, loss)]


def _tokens_of(m: Machine, rank: int, loss: str) -> list[Token]:
    if m.microbatch is None:
        return []
    return [network.token(m.setting.seed, m.number, i) for i in m.token_ids(rank, m.microbatch, loss)]


def _loss(m: Machine, e: Event, rank: int) -> None:
    at = m.activations[rank]
    at.final[e.unit] = at.outputs.get(len(m.chain) - 1)
    at.seeds[e.unit] = fraction(divided(m, e, rank, Fraction(1)))


def _unit(m: Machine, e: Event, rank: int) -> None:
    position = m.positions.get((e.unit, m.instance))
    if position is None:
        raise InputError(f"{e.path}: no unit '{e.unit}' computes", name=e.unit,
                         valid=[u.name for u in m.reference.units])
    place = m.chain[position]
    matrices = [_matrix(m, e, rank, slot) for slot in place.slots]
    run = _backward if e.phase == "backward" else _forward
    run(m, e, rank, position, place, matrices)


def _matrix(m: Machine, e: Event, rank: int, slot: Slot) -> Matrix:
    table = m.table(e.tiers[0], "weight", *slot)[rank]
    numbers = [fraction(table.get(element)) for element in range(4)]
    m.watch.weight(m, e, rank, slot, numbers)
    a, b, c, d = (m.garbage() if n is None else n for n in numbers)
    return a, b, c, d


def _forward(m: Machine, e: Event, rank: int, position: int, place: Place, matrices: list[Matrix]) -> None:
    held = m.scalar("rng", rank)
    m.watch.stream(m, e, rank, held)
    if m.reads_only:
        return
    stream, tokens, at = m.garbage() if held is None else held, _tokens(m, rank), m.activations[rank]
    factors = [_factor(m, e, rank, place, stream, token, i) for i, token in enumerate(tokens)]
    entering = at.outputs.get(position - 1) if position else tuple(t.x for t in tokens)
    if entering is None:
        at.outputs.pop(position, None)
        at.kept.pop(position, None)
    else:
        at.outputs[position], at.kept[position] = network.forward(matrices, entering, factors)


def _factor(m: Machine, e: Event, rank: int, place: Place, stream: Fraction, token: Token, index: int) -> Fraction:
    key, deviation = token.id, []
    for text in m.reference.random_keys:
        name, _, inside = text.rstrip(")").partition("(")
        if name == "rank" and inside in m.axes:
            coordinate = m.coordinates[rank][m.axes[inside]]
            deviation += [f"{inside}={coordinate}"] if coordinate else []
        elif text == "local(batch)":
            key = index
        else:
            raise InputError(f"random key '{text}' is not a deviation", name=text,
                             valid=["local(batch)", *(f"rank({a})" for a in m.axes)])
    number = network.random_factor(m.setting.seed, stream, key, place.unit, place.instance, *deviation)
    m.watch.factor(m, e, rank, token.id, number)
    return number


def _backward(m: Machine, e: Event, rank: int, position: int, place: Place, matrices: list[Matrix]) -> None:
    if m.reads_only:
        return
    at = m.activations[rank]
    kept, flowing = at.kept.get(position), _incoming(m, at, rank, position)
    if kept is None or flowing is None:
        at.gradients.pop(position - 1, None)
        for slot in place.slots:
            _deposit(m, e, rank, position, slot, None)
        return
    at.gradients[position - 1], found = network.backward(matrices, kept, flowing)
    for slot, matrix in zip(place.slots, found, strict=True):
        _deposit(m, e, rank, position, slot, matrix)


def _incoming(m: Machine, at: Activations, rank: int, position: int) -> tuple[Vector, ...] | None:
    """The gradient of the outputs at `position`: those of the losses at the end of the chain, each of its tokens."""
    if position < len(m.chain) - 1:
        return at.gradients.get(position)
    found: list[Vector] = []
    for loss in m.reference.losses:
        final, seed, tokens = at.final.get(loss), at.seeds.get(loss), _tokens_of(m, rank, loss)
        if final is None or seed is None:
            return None
        found += network.loss_gradient(final[len(found):len(found) + len(tokens)], (t.target for t in tokens), seed)
    return tuple(found)


def _deposit(m: Machine, e: Event, rank: int, position: int, slot: Slot, found: Matrix | None) -> None:
    """Set grad at the first use of a parameter in backward order, add to it at later uses; of no statistic."""
    if m.reference.group(slot[0]).statistic:
        return
    table = m.table(e.tiers[1], "grad", *slot)[rank]
    first = not any(slot in place.slots for place in m.chain[position + 1:])
    for element in range(4):
        before = Fraction(0) if first else table.get(element)
        table[element] = m.garbage() if found is None or before is None else before + found[element]
