"""`placealg explain NAME`: up to three sentences about a name, read from the tables that the code itself reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from placealg.cli.bugs import names
from placealg.cli.inputs import default_model
from placealg.cli.published import names as published
from placealg.cost.document import BALANCED
from placealg.errors import InputError, shown
from placealg.mesh import SYMBOLS
from placealg.model.config import resolve_model
from placealg.placement import DUAL, KINDS, MODES, REDISTRIBUTIONS, STATES
from placealg.prove.verdict import OBLIGATIONS
from placealg.render.cost import QUANTITIES
from placealg.step.derive import derive
from placealg.step.verbs import VERBS
from placealg.strategy.catalogue import catalogue
from placealg.strategy.expression import parse_strategy
from placealg.strategy.options import DEFAULTS, LOSSES, OPTIMIZERS, TABLES, keys_of

HYPOTHESES = {
    "equal_counts": (
        "Every rank of the data axes holds equally many tokens in every microbatch.",
        "Under it the mean of local means is the token mean.",
        "The loss preset mean_of_means assumes it; assume = [] in [loss] withdraws it, and token_mean does without.",
    ),
    "units_independent": (
        "The model outside its parameters is computed alike on every device.",
        "What a rank computes from its tokens then equals the single device's, given the same parameters.",
        "A verdict assumes it, because its program runs a unit as one computation.",
    ),
    "nonzero_divisors": (
        "A token count by which something is divided is not zero there.",
        "Without it an empty cell of the batch divides by zero on its device.",
        "A verdict assumes it where a count of part of the batch divides and equal counts are not assumed.",
    ),
    "never_resumed": (
        "The program has no resume phase, so a resumed run is not covered.",
        "Nothing is then said about what a checkpoint restores.",
        "A verdict assumes it of a program without events in resume.",
    ),
}
"""Named hypothesis -> what it says, what follows from it, who assumes it."""


SAYS = {name: sentences[0][0].lower() + sentences[0][1:].rstrip(".") for name, sentences in HYPOTHESES.items()}
"""Named hypothesis -> what it says, as part of a sentence."""


class Explained(NamedTuple):
    """A name, the kind of thing that it is, and its sentences."""

    name: str
    kind: str
    sentences: tuple[str, ...]


def explanations() -> Iterator[Explained]:
    """Everything that can be explained, kind by kind."""
    for row in MODES:
        yield Explained(row.mode, "mode", (
            f"{row.mode} means {row.name}, along one mesh axis of n devices.",
            f"At rest a device holds {row.at_rest}; while in use, {row.in_use}; the tier is the {row.tier}.",
            f"It is used by {row.used_by}."))
    for verb in VERBS.values():
        kind = "a collective: every rank of its group takes part" if verb.collective else "local to each rank"
        axes = ", and it names its mesh axes" if verb.needs_axes else ""
        yield Explained(verb.name, "verb", (
            f"{verb.name} is {kind}{axes}.", f"It applies to {_joined(verb.values)}.",
            f"Its meaning: {verb.meaning}."))
    for identifier, statement in OBLIGATIONS.items():
        yield Explained(identifier, "obligation", (
            f"The obligation {identifier} holds iff {statement}.",
            "It is generated from the single-device reference step, so that no edit of the program can remove it.",
            f"It stands {_ordinal(list(OBLIGATIONS).index(identifier))} of {len(OBLIGATIONS)}: a report leads with the "
            "first one refuted."))
    yield from _strategies()
    yield from _rules()
    yield from _kinds()
    yield from _numbers()
    yield from _tables()
    yield from _lemmas()
    for name, sentences in HYPOTHESES.items():
        yield Explained(name, "hypothesis", sentences)
    name, _, says = BALANCED.partition(": ")
    yield Explained(name, "hypothesis", (
        f"{says[0].upper()}{says[1:]}.", "Costs assume it of a program that splits experts; runs and proofs do not."))


def explain(name: str) -> list[Explained]:
    """Every explanation of `name`; an InputError when there is none."""
    every = list(explanations())
    spelled = name.replace("Ψ", "Psi")
    found = [e for e in every if e.name in (spelled, f"[{spelled}]")] or [
        e for e in every if e.name.lower() == spelled.lower()]
    if not found:
        valid = [*dict.fromkeys(e.name for e in every), *published(), *names()]
        raise InputError(f"nothing is called '{name}'", name=name, valid=valid)
    return found


def _strategies() -> Iterator[Explained]:
    for entry in catalogue().values():
        strategy = parse_strategy(entry.name)
        placed = "; ".join(
            f"along {axis} " + ", ".join(f"{state} {strategy.mode_text(state, axis)}" for state in STATES)
            for axis in strategy.mesh.names)
        first = f"{entry.name} is {entry.title}."
        second = f"It places {placed}." if entry.axes else "It brings no axis and applies to what stands to its left."
        if strategy.regions:
            modes = _joined([f"mode {mode} for the activations of {name}" for name, mode in strategy.regions.items()])
            second = f"{second[:-1]}, with {modes}."
        for name in (entry.name, *entry.aliases):
            yield Explained(name, "strategy", (first, second, f"Source: {entry.source}."))


def _rules() -> Iterator[Explained]:
    """The rules of every catalogue strategy, with the reasons they give; and those that only other models need."""
    reasons: dict[str, dict[str, None]] = {}
    verbs: dict[str, dict[str, None]] = {}
    used: dict[str, dict[str, None]] = {}

    def read(text: str, model: str, told: str, known: Iterable[str] = ()) -> None:
        for event in derive(parse_strategy(text), resolve_model(model)).events:
            if event.rule.name not in known:
                reasons.setdefault(event.rule.name, {})[event.rule.why] = None
                verbs.setdefault(event.rule.name, {})[event.verb] = None
                used.setdefault(event.rule.name, {})[told] = None

    for entry in catalogue().values():
        read(entry.name, default_model(parse_strategy(entry.name)), entry.name)
    read("dp", "statistics", "every strategy on the model statistics", tuple(reasons))
    for name, whys in reasons.items():
        told = "Its reasons: " + "; ".join(whys) + "." if len(whys) > 1 else f"Its reason: {next(iter(whys))}."
        yield Explained(name, "rule", (
            f"The rule {name} puts {_joined(verbs[name])} into a program.", told,
            f"It is used by {_joined(used[name])}."))


def _kinds() -> Iterator[Explained]:
    """The value types."""
    for kind, meaning in KINDS.items():
        ways = [f"{row.event} to {row.target}" for row in REDISTRIBUTIONS if row.source is kind and row.sent != "0"]
        moves = f"It moves by {_joined(ways)}." if ways else "No event that communicates starts from it."
        yield Explained(str(kind), "value type", (
            f"{kind} says of a value along one axis: {meaning}.", f"Its gradient is {DUAL[kind]}.", moves))


def _numbers() -> Iterator[Explained]:
    """The symbols of formulas, and the quantities that have one."""
    for symbol in SYMBOLS.values():
        default = "" if symbol.default is None else f"Where nothing is said it is {symbol.default}."
        yield Explained(symbol.name, "symbol", tuple(s for s in (
            f"{symbol.name} is a symbol: {symbol.meaning}.", f"It is a {symbol.assumption}.", default) if s))
    for name, meaning in QUANTITIES.items():
        yield Explained(name, "quantity", (f"{name}: {meaning}.",))


def _tables() -> Iterator[Explained]:
    """The tables of a strategy file, and what their choices mean."""
    for table, meaning in TABLES.items():
        keys = ". ".join(f"{', '.join(names)} = {values}" for values, names in keys_of(table).items())
        yield Explained(table, "table", (f"[{table}] says {meaning}.", f"Keys: {keys}.", _defaults(table)))
    for name, (locality, reads) in OPTIMIZERS.items():
        whole = f", and reads the whole matrix of {_joined(reads)}" if reads else ""
        yield Explained(name, "optimizer", (
            f"{name} updates one {'element' if locality == 'elementwise' else 'matrix'} at a time{whole}.",
            f"It is named by [optimizer] name = \"{name}\"."))
    for name, said in LOSSES.items():
        assumed = f"assumes {_joined(said['assume'])}" if said["assume"] else "assumes nothing"
        over = "summed over the data axes and microbatches" if said["count_axes"] else "of the rank itself"
        yield Explained(name, "loss preset", (
            f"{name} divides the sum over a rank's tokens by a number of tokens {over}, and {assumed}.",
            f"It is named by [loss] preset = \"{name}\"."))


def _defaults(table: str) -> str:
    said = ", ".join(f"{key} = {shown(value)}" for key, value in DEFAULTS.get(table, {}).items())
    return f"Where nothing is said: {said}." if said else "It has no defaults."


def _lemmas() -> Iterator[Explained]:
    """The lemmas on which proofs stand."""
    from placealg.prove.lemmas import LEMMAS

    for lemma in LEMMAS:
        yield Explained(lemma.name, "lemma", (
            f"{lemma.name}: {lemma.statement}.",
            "Every run of the prover proves it by induction before anything is proved with it."))


def _joined(words: object) -> str:
    """Words as a list in prose."""
    every = [str(w) for w in words] if isinstance(words, list | tuple | dict) else [str(words)]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def _ordinal(k: int) -> str:
    return ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
            "eleventh", "twelfth")[k]
