"""`placealg explain NAME`: up to three sentences about a name, read from the tables that the code itself reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from importlib.resources import files

from placealg.cli.bug_files import names
from placealg.cli.common_words import COMMON, common
from placealg.cli.examples import bug_refuted_by, event_where, program, theorems
from placealg.cli.examples import names as examples
from placealg.cli.glosses import (
    ASSUMED,
    CUTOFF_SAYS,
    DTENSOR,
    HELD_LESS,
    HYPOTHESES,
    KIND_FORMULAS,
    MODE_FORMULAS,
    MODE_SOURCES,
    NCCL,
    REPORT,
    THEOREM,
    Explained,
)
from placealg.cli.key_explanations import fields, keys
from placealg.cli.published import names as published
from placealg.cli.time_words import times_and_machines
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.cost.memory_hypotheses import LEAST
from placealg.errors import InputError, shown
from placealg.mesh import SYMBOLS
from placealg.placement import DUAL, KINDS, MODES, REDISTRIBUTIONS, STATES, Redistribution
from placealg.prover.verdict import ASKED_FOR, OBLIGATIONS
from placealg.render.cost import QUANTITIES
from placealg.render.values import readable
from placealg.step.event import GLOBAL_SAYS, GROUP_SAYS, SAMPLES_HERE, SAMPLES_IN_ALL
from placealg.step.order import ORDERING
from placealg.step.program import STEP_PHASES, Event
from placealg.step.verbs import VERBS
from placealg.strategy.catalogue import catalogue
from placealg.strategy.expression import parse_strategy
from placealg.strategy.options import DEFAULTS, TABLES, keys_of
from placealg.strategy.precision import precisions
from placealg.strategy.sharing import GROUPS
from placealg.strategy.vocabulary import LOSSES, OPTIMIZERS

NO_PROGRAM = "no program of the catalogue has it"

UNREFUTED = {
    "view": "a read of a stale copy within a step; what is stale at its end is refuted as `invariant`",
    "schedule": "a collective that some ranks of its group leave out",
    "vacuity": "a `where` that no rank satisfies: nothing would be proved of it",
}
"""Obligation that no file of a bug expects -> what would break it."""


OF_ASKED: Mapping[str, tuple[tuple[str, ...], str]] = {"precision": ((
    "It is asked where [types] names a type, or by [schedule] sums or --sums TYPE: bytes alone name none.",
    "placealg tolerance lists every sum with its type, and says how far their rounding can move a gradient."),
    "placealg/prover/sums.py")}
"""Obligation that is asked only where somebody says what it is about -> sentences, and where it stands."""

OF_ORDER = (("It is asked where a program says on which streams its events run: by [overlap], or an edit of `stream`.",
             "It holds for all sizes of loops and rings, and every step; a counterexample is replayed on the program "
             "written out, with real slots."), "placealg/prover/races.py")
"""The same of the obligations on order."""

Asked = Callable[[str], bool]
"""Whether a name is asked for: what takes long to say is said of such names alone."""


def explanations(asked: Asked = lambda _: True) -> Iterator[Explained]:
    """Everything that can be explained, kind by kind; what is not asked for may be without sentences."""
    yield from cheap(asked)
    yield from _lemmas()


def cheap(asked: Asked) -> Iterator[Explained]:
    """What can be explained without the prover."""
    for row in MODES:
        yield Explained(row.mode, "mode", (
            f"{row.mode} means {row.name}, along one mesh axis of n devices.",
            f"At rest a device holds {row.at_rest}; while in use, {row.in_use}; the tier is the {row.tier}.",
            f"It is used by {row.used_by}."), MODE_FORMULAS[row.mode], _placed(row.mode) if asked(row.mode) else "",
            MODE_SOURCES[row.mode])
    for verb in VERBS.values():
        kind = "a collective: every rank of its group takes part" if verb.collective else "local to each rank"
        axes = ", and it names its mesh axes" if verb.needs_axes else ""
        yield Explained(verb.name, "verb", (
            f"{verb.name} is {kind}{axes}.", f"It applies to {_joined(verb.values)}.",
            f"Its meaning: {verb.meaning}."), " → ".join(map(str, verb.kinds or ())),
            _where(verb.name, asked, _has_verb(verb.name)) or NO_PROGRAM, "placealg/step/verbs.py, VERBS")
    for identifier, statement in OBLIGATIONS.items():
        yield Explained(identifier, "obligation", (
            f"The obligation {identifier} holds iff {statement}.",
            "It is generated from the single-device reference step, so that no edit of the program can remove it.",
            f"It stands {_ordinal(list(OBLIGATIONS).index(identifier))} of {len(OBLIGATIONS)}: a report leads with the "
            "first one refuted."), statement,
            (bug_refuted_by(identifier) or UNREFUTED[identifier]) if asked(identifier) else "",
            "placealg/prover/correct.py; the theorem: placealg explain \"gradient and state\", "
            "\"forward and backward\"")
    for identifier, statement in ASKED_FOR.items():
        sentences, source = OF_ASKED.get(identifier, OF_ORDER)
        yield Explained(identifier, "obligation", (f"The obligation {identifier} holds iff {statement}.", *sentences),
                        statement, bug_refuted_by(identifier) if asked(identifier) else "", source)
    for order_verb, meaning in ORDERING.items():
        yield Explained(order_verb, "verb", (
            f"{order_verb} changes no value: it says in which order, or where, values are made.",
            "No reader of values knows it; race and alias are about it.", f"Its meaning: {meaning}."),
            "", "a strategy that says [overlap] waits = \"fsdp2\"", "placealg/step/order.py, ORDERING")
    yield from _strategies(asked)
    yield from _rules(asked)
    yield from _kinds(asked)
    yield from _numbers(asked)
    yield from _tables()
    yield from fields()
    yield from keys()
    yield from _redistributions(asked)
    yield from _theorems()
    for name, sentences in HYPOTHESES.items():
        yield Explained(name, "hypothesis", sentences, *ASSUMED[name], "placealg/prover/examine.py, hypotheses")
    for name, says in LEAST.items():
        yield Explained(name, "hypothesis", (f"{says[0].upper()}{says[1:]}.", *HELD_LESS[name]), *ASSUMED[name],
                        "placealg/cost/memory_hypotheses.py, LEAST")
    for name, (sentences, example) in REPORT.items():
        yield Explained(name, "word of a report", sentences, "", example, "docs/proofs.md")
    yield from times_and_machines()
    yield from _groups()
    yield Explained("flash", "option of a model", (
        "--flash runs attention as one op, which keeps its operands, its result and a statistic of each row.",
        "--no-flash writes the scores out and keeps them, a·s² elements of each sequence and layer.",
        "Where nothing is said, a model has what its family runs."))


def explain(name: str) -> list[Explained]:
    """Every explanation of `name`; an InputError when there is none."""
    spelled = name.replace("Ψ", "Psi").replace("->", "→")
    exact = (spelled, f"[{spelled}]", _bracketed(spelled))

    def asked(other: str) -> bool:
        return other in exact or other.lower() == spelled.lower()

    every: list[Explained] = []
    found: list[Explained] = []
    for room in (partial(cheap, asked), _lemmas):
        every += room()
        found = [e for e in every if e.name in exact] or [
            e for e in every if e.name.lower() == spelled.lower() and name not in COMMON]
        if found:
            return found
    if meant := common(name):
        return [e for one in meant for e in explain(one)]
    valid = [*dict.fromkeys(e.name for e in every), *published(), *names()]
    raise InputError(f"nothing is called '{name}'", name=name, valid=valid)


def _where(name: str, asked: Asked, holds: Callable[[Event], bool]) -> str:
    """Where the programs of the catalogue have such an event, if the name is asked for."""
    return event_where(holds) if asked(name) else ""


def _bracketed(name: str) -> str:
    """P→S as [P]→[S]; other names as they are."""
    return re.sub(r"\A([IRSP])→([IRSP])\Z", r"[\1]→[\2]", name)


def _placed(mode: str) -> str:
    """A strategy of the catalogue that places a state so."""
    for entry in catalogue().values():
        strategy = parse_strategy(entry.name)
        for state in STATES:
            if state == "activations" and mode in strategy.region_modes.values():
                region = next(r for r, m in strategy.region_modes.items() if m == mode)
                return f"{entry.name}: activations of {region}"
            for axis in strategy.mesh.names:
                text = strategy.mode_text(state, axis)
                if mode == text.partition("(")[0] or (mode == "O" and text.endswith("O")):
                    return f"{entry.name}: {state} along {axis}"
        if mode == "O" and not entry.axes:
            return f"zero3*{entry.name}"
    return ""


def _redistributions(asked: Asked) -> Iterator[Explained]:
    """The rows of the redistribution table."""
    for row in REDISTRIBUTIONS:
        event = row.event if row.event != "none" else "nothing, since the numbers are there"
        back = row.backward if row.backward != "none" else "nothing"
        yield Explained(f"{row.source}→{row.target}", "redistribution", (
            f"Along one axis of n devices a value of type {row.source} becomes one of type {row.target} by {event}.",
            f"Its gradient goes from {DUAL[row.target]} to {DUAL[row.source]}, by {back}.",
            f"{row.source} says: {KINDS[row.source]}; {row.target} says: {KINDS[row.target]}."),
            f"a device sends {readable(row.sent)} of the tensor's bytes",
            _where(f"{row.source}→{row.target}", asked, _is_row(row)) or NO_PROGRAM,
            f"placealg/placement.py, REDISTRIBUTIONS; proved by move_sound and move_adjoint in Coq; volumes: {NCCL}")


def _has_verb(verb: str) -> Callable[[Event], bool]:
    return lambda event: event.verb == verb


def _has_kind(kind: str) -> Callable[[Event], bool]:
    return lambda event: kind in (event.source[:1], event.to[:1])


def _is_row(row: Redistribution) -> Callable[[Event], bool]:
    ends, verb = (row.source.value, row.target.value), row.event.partition(" ")[0]
    return lambda event: (event.source[:1], event.to[:1]) == ends and event.verb == verb


def _theorems() -> Iterator[Explained]:
    """The theorem in its two parts, and those that Coq checks."""
    for name, (sentences, statement, example, source) in THEOREM.items():
        yield Explained(name, "theorem", sentences, statement, example, source)
    for found in theorems():
        yield Explained(found.name, "theorem", (
            f"{found.name} says: {found.says}.",
            "It is proved in Coq for any finite axes, devices, elements and units, over any commutative ring with "
            "decidable equality, without an axiom.",
            f"What it backs here: {found.counterpart.replace('`', '')}."),
            found.statement, "make coq checks it", found.file)


def _strategies(asked: Asked) -> Iterator[Explained]:
    for entry in catalogue().values():
        if not any(map(asked, (entry.name, *entry.aliases))):
            yield from (Explained(name, "strategy", ()) for name in (entry.name, *entry.aliases))
            continue
        strategy = parse_strategy(entry.name)
        placed = "; ".join(
            f"along {axis} " + ", ".join(f"{state} {strategy.mode_text(state, axis)}" for state in STATES)
            for axis in strategy.mesh.names)
        first = f"{entry.name} is {entry.title}."
        second = f"It places {placed}." if entry.axes else "It brings no axis and applies to what stands to its left."
        if strategy.regions:
            modes = _joined([f"mode {mode} for the activations of {name}"
                             for name, mode in strategy.region_modes.items()])
            second = f"{second[:-1]}, with {modes}."
        for name in (entry.name, *entry.aliases):
            example = f"placealg prove {entry.name if entry.axes else f'zero3*{entry.name}'}"
            yield Explained(name, "strategy", (first, second, _moves(entry.name)),
                            _figures(entry.name, bool(entry.axes)), example, entry.source)


def _groups() -> Iterator[Explained]:
    """What frameworks call the groups of ranks over which states are sharded."""
    found: dict[str, list[str]] = {}
    for group in GROUPS:
        for name in group.names:
            framework, _, own = name.partition(": ")
            found.setdefault(own, []).append(f"{framework}, parameters: {group.kind}, over "
                                             f"{' x '.join(group.axes)}")
    for own, told in found.items():
        yield Explained(own.partition(",")[0], "group of ranks", (
            f"{own} is a group over which states are sharded and gradients are reduced.",
            f"{'; '.join(told)}."), "", "placealg show 'zero3*cp'", "placealg/strategy/sharing.py, GROUPS")


def _moves(name: str) -> str:
    """What its program sends, and how often."""
    step = program(name)
    found = dict.fromkeys(f"{e.verb} over {', '.join(e.axes)}" for e in step.events
                          if e.axes and VERBS[e.verb].collective and e.phase in STEP_PHASES)
    return f"What crosses between devices in a step: {_joined(list(found)) if found else 'nothing'}."


def _figures(name: str, brings_axes: bool) -> str:
    """What its states take and what it sends, in closed form; of a modifier what it leaves to keep for backward."""
    step = program(name)
    held = memory(step)
    if not brings_axes:
        return f"activations {held.activations.text() or 'as before'}; states {held.states.text()} bytes"
    return f"states {held.states.text()} bytes; sent {communication(step).total.text()} bytes"


_WRITTEN = re.compile(r'\bRule\(\s*"([a-z_]+)"')


@lru_cache(maxsize=1)
def rule_names() -> tuple[str, ...]:
    """The names of the rules, as the modules of `step/` write them."""
    folder = files("placealg.step")
    every = (found for file in folder.iterdir() if file.name.endswith(".py")
             for found in _WRITTEN.findall(file.read_text(encoding="utf-8")))
    return tuple(dict.fromkeys(sorted(name for name in every if name != "written")))


def _rules(asked: Asked) -> Iterator[Explained]:
    """The rules of programs, each with what it says in the first program among the examples that has it."""
    for name in rule_names():
        if not asked(name):
            yield Explained(name, "rule", ())
            continue
        for example in examples():
            events = [event for event in program(example).events if event.rule.name == name]
            if events:
                whys = list(dict.fromkeys(e.rule.why for e in events))
                told = "Its reasons there: " + "; ".join(whys) + "." if len(whys) > 1 else f"Its reason: {whys[0]}."
                yield Explained(name, "rule", (
                    f"The rule {name} puts {_joined(list(dict.fromkeys(e.verb for e in events)))} into the program of "
                    f"{example}, the first of the examples that has it.", told,
                    "`placealg show STRATEGY --why` names the rule of every event."), whys[0],
                    f"{events[0].path} of {example}", "placealg/step/" + (
                        "operations.py" if all(e.on_tensor for e in events) else "rules.py and derive.py"))
                break
    yield Explained("written", "rule", (
        "The rule written stands behind every event of a program file that names no other.",
        "Its reason: written in the program file.", "A reader, the prover and the simulator treat it like any event."),
        "written in the program file", "a file of [[event]] tables, as placealg show STRATEGY --write-program writes",
        "placealg/step/text.py")


def _kinds(asked: Asked) -> Iterator[Explained]:
    """The value types."""
    for kind, meaning in KINDS.items():
        ways = [f"{row.event} to {row.target}" for row in REDISTRIBUTIONS if row.source is kind and row.sent != "0"]
        moves = f"It moves by {_joined(ways)}." if ways else "No event that communicates starts from it."
        yield Explained(str(kind), "value type", (
            f"{kind} says of a value along one axis: {meaning}.", f"Its gradient is {DUAL[kind]}.", moves),
            KIND_FORMULAS[kind.value], _where(str(kind), asked, _has_kind(kind.value)),
            f"placealg/placement.py, KINDS; as the placements of DTensor, {DTENSOR}, with [I] told apart from [R]")


def _numbers(asked: Asked) -> Iterator[Explained]:
    """The symbols of formulas, and the quantities that have one."""
    for symbol in SYMBOLS.values():
        default = "" if symbol.default is None else f"Where nothing is said it is {symbol.default}."
        yield Explained(symbol.name, "symbol", tuple(s for s in (
            f"{symbol.name} is a symbol: {symbol.meaning}.", f"It is a {symbol.assumption}.", default) if s))
    for name, meaning in QUANTITIES.items():
        yield Explained(name, "quantity", (f"{name}: {meaning}.",))
    for name, meaning in {**GROUP_SAYS, **GLOBAL_SAYS}.items():
        yield Explained(name, "value of a program", (f"{name}, in a program, is {meaning}.",), "",
                        _where(name, asked, partial(_of_value, name)))
    for name, meaning in DIVISORS.items():
        yield Explained(name, "divisor", (f"{name}, as a divisor in a program, is {meaning}.",), "",
                        _where(name, asked, partial(_divides, name)))


DIVISORS: Mapping[str, str] = {
    "tokens": "the number of the rank's own tokens in a microbatch",
    SAMPLES_HERE: "the number of samples in a microbatch, as `samples.count.compute` counts a rank's and a sum adds up",
    SAMPLES_IN_ALL: "the number of samples of all microbatches, counted before the first of them",
}
"""Divisor of a program that is no value of it -> what it is."""


def _divides(name: str, event: Event) -> bool:
    return name in event.divisor.names()


def _of_value(name: str, event: Event) -> bool:
    return event.value == name


def _tables() -> Iterator[Explained]:
    """The tables of a strategy file, and what their choices mean."""
    for table, meaning in ((name, row.says) for name, row in TABLES.items()):
        keys = ". ".join(f"{', '.join(names)} = {values}" for values, names in keys_of(table).items())
        yield Explained(table, "table", (f"[{table}] says {meaning}.", f"Keys: {keys}.", _defaults(table)))
    for name, (locality, reads) in OPTIMIZERS.items():
        whole = f", and reads the whole matrix of {_joined(reads)}" if reads else ""
        yield Explained(name, "optimizer", (
            f"{name} updates one {'element' if locality == 'elementwise' else 'matrix'} at a time{whole}.",
            f"It is named by [optimizer] name = \"{name}\"."))
    for row in precisions().values():
        sizes = ", ".join(f"{symbol} = {value}" for symbol, value in row.types.items())
        yield Explained(row.name, "precision", (f"{row.name} is a precision preset: {row.title}.",
                                                f"Bytes per element: {sizes}.", f"It is named by [types] preset = "
                                                f"\"{row.name}\", or by --precision {row.name}."), "",
                        f"placealg cost zero3 --precision {row.name}", row.source)
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
    """The lemmas on which proofs stand; no name of these is one of something else."""
    from placealg.prover.evidence.cutoff import LEMMA as CUTOFF
    from placealg.prover.evidence.lemmas import LEMMAS

    for lemma in LEMMAS:
        yield Explained(lemma.name, "lemma", (
            f"{lemma.name}: {lemma.statement}.",
            "Every run of the prover proves it by induction before anything is proved with it.",
            f"The rules for {_joined(lemma.verbs)} use it." if lemma.verbs else "Every transfer rule may use it."),
            lemma.statement, f"any proof with {_joined(lemma.verbs)}, such as that of cp_ring" if lemma.verbs else
            "the proof of dp: placealg prove dp",
            "placealg/prover/evidence/lemmas.py; in Coq proofs/coq/Sums.v and Rings.v")
    yield Explained("cutoff", "lemma", CUTOFF_SAYS, CUTOFF.partition(": ")[2], "placealg prove zero3 --engine cutoff",
                    "placealg/prover/evidence/cutoff.py; proofs/theorems/cutoff.py, which runs")


def _joined(words: object) -> str:
    """Words as a list in prose."""
    every = [str(w) for w in words] if isinstance(words, list | tuple | dict) else [str(words)]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def _ordinal(k: int) -> str:
    return ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
            "eleventh", "twelfth")[k]
