"""Whether a formula is never negative, for all sizes: proved, refuted by sizes, or undecided with the reason.

First by coefficients: with every size expressed as its least value and a rest, a sum without negative coefficients is
never negative. Then sizes are searched that violate the claim; then the coefficients are tried again in two cases for
one size. Then Z3 is asked: over real sizes, which include the integers, and, if that does not settle it, over the
integers. Sizes that are found are evaluated exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

import z3

from placealg.arith import ONE, Monomial
from placealg.polynomial import CALL, REST, Call, Polynomial, completed
from placealg.prover.evidence.kept import is_open, kept
from placealg.prover.evidence.logic import or_
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT, versions
from placealg.prover.inequality.sizes import Domain, Freed, Premise, freed, points, smaller
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED

BY_COEFFICIENTS = "no term of the difference is negative, with every size its least value and a rest"
BY_SIZES = "sizes that violate it, evaluated exactly"
LIMIT = 8_000_000
SECONDS = 10.0
_TRIED = 1500
_MOST_TERMS = 150_000
_MOST_CASES = 600
_BELOW = "bytes#below"
"""The common denominator of all rational sizes when the solver looks for integers."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether numerator/denominator is never negative (`strict`: always positive) over a domain of sizes."""

    numerator: Polynomial
    denominator: Polynomial
    domain: Domain
    strict: bool = False
    calls: tuple[Call, ...] = ()

    def names(self) -> tuple[str, ...]:
        """The sizes that occur in the formula or in a premise."""
        sums = [self.numerator, self.denominator, *(a for c in self.calls for a in c.arguments)]
        return tuple(sorted({n for s in sums for n in s.names() if CALL not in n} | self.domain.names()))

    def fails(self, sizes: Mapping[str, Fraction]) -> bool:
        """Whether the claim is violated at given sizes, evaluated exactly."""
        known = completed(self.calls, sizes)
        below = self.denominator.evaluate(known)
        if not below:
            return False
        value = self.numerator.evaluate(known) / below
        return value <= 0 if self.strict else value < 0


@dataclass(frozen=True, slots=True)
class Settled:
    """The verdict, the method (or why there is no verdict), and the sizes that violate the claim."""

    verdict: str
    method: str
    sizes: Mapping[str, Fraction] = field(default_factory=dict)


@kept(is_open, 256)
def inhabitant(domain: Domain) -> Settled:
    """Whether a domain is empty: PROVED, or REFUTED by sizes that belong to it."""
    return decide(Question(Polynomial.number(-1), Polynomial.number(1), domain))


def decide(question: Question) -> Settled:
    """Decide a question.

    >>> two, tp = Polynomial.number(2), Polynomial.name("tp")
    >>> decide(Question(tp * tp + two - tp, Polynomial.number(1), Domain())).verdict
    'PROVED'
    >>> decide(Question(two - tp, Polynomial.number(1), Domain())).sizes
    {'tp': Fraction(3, 1)}
    """
    free = freed(question.domain)
    signs = [sign for sign in (1, -1)
             if _by_coefficients(question.denominator.times(Monomial.number(sign)), True, free)]
    if not signs:
        return Settled(UNDECIDED, f"the sign of the denominator {question.denominator} is not known")
    sum_ = question.numerator.times(Monomial.number(signs[0]))
    if _Cases(question, free).hold(sum_, question.strict):
        return Settled(PROVED, BY_COEFFICIENTS)
    found = _search(question, free)
    if found is not None:
        return Settled(REFUTED, BY_SIZES, found)
    apart = next((name for name in question.names() if _holds_apart(question, sum_, name)), "")
    if apart:
        return Settled(PROVED, f"{BY_COEFFICIENTS}, where {apart} = 1 and where {apart} >= 2")
    return _asked(question, sum_)


def _holds_apart(question: Question, sum_: Polynomial, name: str) -> bool:
    """Whether the coefficients prove the claim in two cases: a size is 1, or it is at least 2."""
    if name in question.domain.rational:
        return False
    one, two = (Polynomial.name(name) - Polynomial.number(n) for n in (1, 2))
    domains = (replace(question.domain, premises=(premise, *question.domain.premises))
               for premise in ((one, "=="), (two, ">=")))
    return all(_Cases(question, freed(domain)).hold(sum_, question.strict) for domain in domains)


def _by_coefficients(sum_: Polynomial, strict: bool, free: Freed) -> bool:
    """Whether no coefficient is negative if every size is 1 and a rest; `strict`: and some term is never 0."""
    now = free.same_sign(sum_)
    shifted = [n for n in now.names() if not n.endswith(REST) and n not in free.domain.rational]
    if sum(prod(p + 1 for n, p in m.powers if n in shifted) for m in now.terms) > _MOST_TERMS:
        return False
    for name in shifted:
        now = now.put(name, Polynomial.of([ONE, Monomial.of(name + REST)]))
    if any(c < 0 for c in now.terms.values()):
        return False
    return not strict or any(not any(n.endswith(REST) for n in m.names()) for m in now.terms)


class _Cases:
    """The coefficient method for sums with functions: each function is replaced by all of its arguments, or by one."""

    def __init__(self, question: Question, free: Freed):
        self.calls = question.calls
        self.free = free
        self.left = _MOST_CASES

    def hold(self, sum_: Polynomial, strict: bool) -> bool:
        """Whether the sum is never negative, for all values that its functions can take."""
        present = [c for c in self.calls if c.name in sum_.names()]
        if not present:
            self.left -= 1
            return self.left >= 0 and _by_coefficients(sum_, strict, self.free)
        if any(sum_.powers(c.name) != {1} for c in present):
            return False
        ways = [(call, *self._ways(sum_, call)) for call in reversed(present)]
        call, one_suffices, values = min(ways, key=lambda way: way[1])
        enough = any if one_suffices else all
        return bool(values) and enough(self.hold(sum_.put(call.name, v), strict) for v in values)

    def _ways(self, sum_: Polynomial, call: Call) -> tuple[bool, list[Polynomial]]:
        """The substitutes for a function's value, and whether one of them suffices; otherwise all are needed.

        A maximum with a non-negative factor is at least each of its arguments, so that one suffices, as does one of a
        minimum with a non-positive factor; otherwise it is one of them.
        """
        factor = sum_.coefficient(call.name)
        rising, falling = self.hold(factor, False), self.hold(-factor, False)
        if call.function in ("Max", "Min"):
            return rising if call.function == "Max" else falling, list(call.arguments)
        return False, self._rounded(call, rising) if rising or falling else []

    def _rounded(self, call: Call, rising: bool) -> list[Polynomial]:
        """The bound on a rounded value that can only make the sum smaller."""
        (value,) = call.arguments
        if (call.function == "ceiling") == rising:
            return [value]
        parts = value.lowest()
        names = {*parts.names(), *value.names()}
        whole = self.free.domain.whole_names(names) and not any(CALL in n for n in names)
        slack = Polynomial.number(1) - Polynomial.of([ONE / parts] if whole else [])
        return [value + slack if call.function == "ceiling" else value - slack]


def _search(question: Question, free: Freed) -> dict[str, Fraction] | None:
    """Sizes that violate the claim, each made as small as possible; None if none was found."""
    names = question.names()
    open_names = free.free(names)

    def violated(values: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
        sizes = free.sizes(names, values)
        return sizes if question.domain.allows(sizes) and question.fails(sizes) else None

    for values in points(open_names, question.domain.rational, _TRIED):
        if violated(values) is None:
            continue
        for name in open_names:
            if name.rstrip(REST) not in question.domain.rational:
                least = Fraction(0 if name.endswith(REST) else 1)
                values[name] = next((v for v in smaller(values[name], least) if violated({**values, name: v})),
                                    values[name])
        return violated(values)
    return None


def _asked(question: Question, sum_: Polynomial) -> Settled:
    """Z3's answer, over the reals and then over the integers."""
    if any(p < 0 for s in (sum_, *(a for c in question.calls for a in c.arguments)) for m in s.terms
           for n, p in m.powers if CALL in n):
        return Settled(UNDECIDED, "a function divides")
    real = PROCESS.ask(_violation(question, sum_, whole=False), limit=LIMIT, seconds=SECONDS)
    if real.status == UNSAT:
        return Settled(PROVED, f"{versions()}: no real sizes in their bounds violate it")
    answer = PROCESS.ask(_violation(question, sum_, whole=True), limit=LIMIT, seconds=SECONDS)
    if answer.status == UNSAT:
        return Settled(PROVED, f"{versions()}: no sizes violate it")
    if answer.status == SAT:
        below = answer.model.get(_BELOW, 1)
        sizes = {n: Fraction(answer.model.get(n, 1), below if n in question.domain.rational else 1)
                 for n in question.names()}
        if question.domain.allows(sizes) and question.fails(sizes):
            return Settled(REFUTED, BY_SIZES, sizes)
        return Settled(UNDECIDED, f"{versions()} gave sizes that do not violate it")
    return Settled(UNDECIDED, f"{versions()}: {answer.reason or 'no answer'}")


def _violation(question: Question, sum_: Polynomial, whole: bool) -> list[z3.BoolRef]:
    """The claim's negation, as assertions without a division, on real sizes or (`whole`) on integers.

    Rational sizes are integers over one common denominator; a maximum of quotients of integers need not be an integer.
    """
    domain, below = question.domain, Monomial.of(_BELOW)
    real = {c.name for c in question.calls if c.function in ("Max", "Min")}

    def size(name: str) -> z3.ArithRef:
        return z3.Int(name) if whole and name not in real else z3.Real(name)

    def term(value: Polynomial) -> z3.ArithRef:
        for name in sorted(domain.rational & set(value.names()) if whole else ()):
            value = value.put(name, Polynomial.of([Monomial.of(name) / below]))
        products = [z3.Product([z3.IntVal(int(m.coefficient)), *(size(n) for n, p in m.powers for _ in range(p))])
                    for m in value.times(value.lowest()).monomials()]
        return z3.Sum([z3.IntVal(0), *products])

    facts = [size(n) > 0 if n in domain.rational and not whole else size(n) >= 1 for n in question.names()]
    facts += [size(_BELOW) >= 1] if whole else []
    for k, quotient in enumerate(domain.whole):
        times = Polynomial.of([quotient]) - Polynomial.name(f"quotient#{k}")
        facts += [size(f"quotient#{k}") >= 1, term(times) == 0]
    facts += [_stands(term(premise), relation) for premise, relation in domain.premises]
    facts += [_stands(term(value), relation) for call in question.calls for value, relation in _bounds(call)]
    facts += [or_([term(Polynomial.name(c.name) - a) == 0 for a in c.arguments])
              for c in question.calls if c.name in real]
    claim = term(sum_)
    return [*facts, claim <= 0 if question.strict else claim < 0]


def _stands(value: z3.ArithRef, relation: str) -> z3.BoolRef:
    return value == 0 if relation == "==" else value > 0 if relation == ">" else value >= 0


def _bounds(call: Call) -> Iterator[Premise]:
    """The inequalities that define a function's value; Max and Min are also one of their arguments."""
    value = Polynomial.name(call.name)
    for argument in call.arguments:
        over = value - argument if call.function in ("Max", "ceiling") else argument - value
        yield over, ">="
        if call.function in ("ceiling", "floor"):
            yield Polynomial.number(1) - over, ">"
