"""Two formulas compared for all sizes: proved, refuted at sizes that are replayed exactly, or undecided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from placealg.arith import Monomial
from placealg.cost.comparison import RELATIONS, Answer, Decision, Over
from placealg.cost.formula import Formula
from placealg.cost.plain import Condition, conditions, difference
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS
from placealg.polynomial import Plain, Polynomial
from placealg.prover.inequality.decide import Question, Settled, decide, inhabitant
from placealg.prover.inequality.sizes import Domain
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED

_CONTRARY = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}
IDENTICAL = "the difference is 0, term by term"


def compare(left: Formula, relation: str, right: Formula, where: str = "", iff: str = "",
            over: Over | None = None) -> Answer:
    """Decide whether one formula stands in a relation to another for all sizes, `where` conditions on sizes hold.

    With `iff`, that it does exactly where that condition holds. Both are comparisons of sizes joined by `and`.
    Symbols stay symbols whatever their defaults, unless `over` fixes them.

    >>> larger, smaller = Formula.parse("b*(ep - 1)", "bytes"), Formula.parse("b*topk*(ep - 1)/ep", "bytes")
    >>> compare(smaller, "<=", larger).decisions[0].sizes
    {b: 1, topk: 3, ep: 2}
    >>> compare(smaller, "<", larger, iff="topk < ep").verdict
    'PROVED'
    """
    if relation not in RELATIONS:
        raise InputError(f"unknown relation '{relation}'", name=relation, valid=RELATIONS)
    if left.unit != right.unit:
        raise InputError(f"{left.unit} are not compared with {right.unit}")
    if iff and relation == "==":
        raise InputError("iff takes a relation of", valid=tuple(_CONTRARY))
    over = over or Over()
    for name, sizes in _defined(left, right).items():
        if name in over.fixed and not sizes <= set(over.fixed):
            raise InputError(f"{name} follows from {', '.join(sorted(sizes))}: give those a size instead")
    names = _names(left, right, over)
    given = conditions(where, names, over.fixed) if where.strip() else ()
    if inhabitant(_domain(left, right, over, given)).verdict == PROVED:
        raise InputError(f"no sizes satisfy '{where}'" if where else "no sizes fit the strategies")
    if not iff:
        decision = _decide(left, relation, right, over, given)
        return Answer(decision.verdict, (decision,))
    exactly = conditions(iff, names, over.fixed)
    found = [_decide(left, relation, right, over, (*given, *exactly))]
    found += [_decide(left, _CONTRARY[relation], right, over, (*given, opposite))
              for c in exactly for opposite in c.opposites()]
    verdicts = {d.verdict for d in found}
    worst = next(v for v in (REFUTED, UNDECIDED, PROVED) if v in verdicts)
    return Answer(worst, tuple(found), exactly)


def _names(left: Formula, right: Formula, over: Over) -> tuple[str, ...]:
    """The symbols that a condition may name: not those that follow from others."""
    sizes = [*(m for m in over.whole), *(m for pair in over.ordered for m in pair)]
    every = dict.fromkeys((*left.inputs, *right.inputs, *left.axes, *right.axes, *over.fixed,
                           *(n for m in sizes for n in m.names())))
    return tuple(n for n in every if n in over.fixed or n not in _defined(left, right))


def _defined(left: Formula, right: Formula) -> dict[str, set[str]]:
    """The symbols that follow from others, and from which."""
    every = {**left.defined, **right.defined}
    return {n: {str(s) for s in expr.free_symbols} for n, expr in every.items()}


def _decide(left: Formula, relation: str, right: Formula, over: Over, given: tuple[Condition, ...]) -> Decision:
    domain = _domain(left, right, over, given)
    found = inhabitant(domain)
    if found.verdict != REFUTED:
        there = "no sizes satisfy what is assumed" if found.verdict == PROVED else \
            f"no sizes were found that satisfy what is assumed: {found.method}"
        return Decision(found.verdict, there, left, relation, right, over, given)
    sides = {"<=": [(right, left)], "<": [(right, left)], ">=": [(left, right)], ">": [(left, right)],
             "==": [(left, right), (right, left)]}[relation]
    methods = dict[str, None]()
    for larger, smaller in sides:
        try:
            plain = difference(larger, smaller, over.fixed)
        except InputError as error:
            return Decision(UNDECIDED, str(error), left, relation, right, over, given)
        if not plain.numerator.terms and relation not in ("<", ">"):
            methods[IDENTICAL] = None
            continue
        answer = decide(_question(plain, domain, relation in ("<", ">")))
        if answer.verdict == REFUTED:
            return _replayed(answer, left, relation, right, over, given)
        if answer.verdict == UNDECIDED:
            return Decision(UNDECIDED, answer.method, left, relation, right, over, given)
        methods[answer.method] = None
    return Decision(PROVED, "; ".join(methods), left, relation, right, over, given)


def _replayed(answer: Settled, left: Formula, relation: str, right: Formula, over: Over,
              given: tuple[Condition, ...]) -> Decision:
    """The refutation, once both formulas have been evaluated at its sizes; UNDECIDED should the claim hold there.

    A size that is not in their difference is 1.
    """
    gone = {n for f in (left, right) for n in f.defined}
    names = dict.fromkeys(n for n in (*left.inputs, *right.inputs) if n not in over.fixed and n not in gone)
    sizes = FrozenMap({**dict.fromkeys(names, Fraction(1)), **answer.sizes})
    values = _value(left, over, sizes), _value(right, over, sizes)
    one, other = values
    holds = {"==": one == other, "<=": one <= other, "<": one < other, ">=": one >= other, ">": one > other}[relation]
    if holds:
        return Decision(UNDECIDED, "the sizes found do not violate the formulas", left, relation, right, over, given)
    return Decision(REFUTED, answer.method, left, relation, right, over, given, sizes, values)


def _value(formula: Formula, over: Over, sizes: Mapping[str, Fraction]) -> Fraction:
    value = formula.if_known(**{n: v for n, v in {**over.fixed, **sizes}.items() if n in formula.inputs})
    assert value is not None, "the sizes of a refutation are complete"
    return Fraction(value)


def _domain(left: Formula, right: Formula, over: Over, given: Iterable[Condition]) -> Domain:
    """What is known of the sizes that are free; facts about numbers alone are left out, conditions are not."""
    def known(value: Monomial) -> Monomial:
        powers = {n: Monomial.number(over.fixed[n] ** p) if n in over.fixed else Monomial.of(n) ** p
                  for n, p in value.powers}
        return Monomial.product([Monomial.number(value.coefficient), *powers.values()])
    whole = dict.fromkeys(known(q) for q in over.whole)
    ordered = [Polynomial.of([known(large)]) - Polynomial.of([known(small)]) for small, large in over.ordered]
    premises = [*((p, ">=") for p in ordered if p.names()), *((c.terms, c.relation) for c in given)]
    names = {*left.inputs, *right.inputs, *(n for p, _ in premises for n in p.names())}
    return Domain(tuple(q for q in whole if q.names()), tuple(premises),
                  frozenset(n for n in names if n in SYMBOLS and SYMBOLS[n].assumption == "positive rational"))


def _question(plain: Plain, domain: Domain, strict: bool) -> Question:
    return Question(plain.numerator, plain.denominator, domain, strict, plain.calls)
