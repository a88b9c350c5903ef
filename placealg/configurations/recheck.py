"""A certificate of a search rechecked: its seal, its outcome by `replay`, its winner by formulas and by the prover.

Whether the sums are those of the strategies' programs is known of the winner; of the others only where all of them are
derived again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from placealg.check.prove import prove
from placealg.configurations.certificate import (
    CLAIM,
    CLAIM_OF_THE_BEST,
    FIGURES,
    FORMAT,
    KEY,
    digest,
    proof,
    stage,
    text_of,
)
from placealg.configurations.layouts import Devices
from placealg.configurations.left_out import decided
from placealg.configurations.programs import compiled
from placealg.configurations.pruning import MEANING, WORK, Work, recomputed
from placealg.configurations.question import Question
from placealg.configurations.replay import Asked, Replayed, replayed, worked
from placealg.configurations.run import strategies
from placealg.configurations.space import LeftOut, Space
from placealg.configurations.stages import Kind
from placealg.cost.formula import Formula
from placealg.cost.machines import Machine
from placealg.cost.memory import memory
from placealg.cost.sizing import Margin
from placealg.cost.stage import on_stage
from placealg.cost.times import HYPOTHESES, Written
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.progress import say
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.version import VERSION

UNKNOWABLE = "whether the sums of the others are those of their programs, --regenerate alone tells"
REGENERATED = "every strategy was derived again, and has these very sums"

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class RecheckedSearch:
    """What a certificate says, and where it is contradicted: place -> what is wrong; `seal` is the file's SHA-256."""

    said: Mapping[str, Any]
    wrong: FrozenMap[str, str]
    seal: str
    regenerated: bool
    layouts: int = 0
    places: int = 0

    def to_json(self) -> dict[str, Any]:
        """The outcome as data."""
        return {"version": 1, "agrees": not self.wrong, "regenerated": self.regenerated, "sha256": self.seal,
                "winner": self.said.get("winner"), "configurations": self.layouts, "places": self.places,
                "wrong": dict(self.wrong), "unknown": REGENERATED if self.regenerated else UNKNOWABLE}


def is_certificate(path: str) -> bool:
    """Whether a file is a certificate of a search, by the key that it begins with."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(KEY) + 3).startswith(f'{{"{KEY}'.encode())
    except OSError:
        return False


def recheck_search(path: str, seal: str | None = None, regenerate: bool = False) -> RecheckedSearch:
    """Recheck a certificate; `seal` is what its SHA-256 has to be, `regenerate` derives every strategy again.

    What is no certificate, or of another format or version, is an InputError.
    """
    if seal is not None and not _SHA256.fullmatch(seal):
        raise InputError(f"'{seal}' is not 64 hexadecimal digits", where="--sha256")
    try:
        content = Path(path).read_bytes()
        said = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as a certificate: {error}", where=path) from None
    if not isinstance(said, dict) or KEY not in said:
        raise InputError("is no certificate of a search", where=path)
    if said[KEY] != FORMAT:
        raise InputError(f"is of format {said[KEY]}; this version reads format {FORMAT}", where=path)
    if said.get("placealg") != VERSION:
        raise InputError(f"was made by placealg {said.get('placealg')}, and this is placealg {VERSION}", where=path)
    found = sha256(content).hexdigest()
    if seal is not None and found != seal.lower():
        return RecheckedSearch(said, FrozenMap({"file": f"was edited: its SHA-256 is {found}"}), found, False)
    if content.decode(errors="replace").strip() != text_of(said) or digest(said) != said.get("digest"):
        return RecheckedSearch(said, FrozenMap({"file": "was edited: it is not what its digest is of"}), found, False)
    counted, wrong = [0, 0], dict[str, str]()
    try:
        with TemporaryDirectory() as folder:
            for place, what in _wrong(said, _model(said["model"], Path(folder)), regenerate, counted):
                wrong[place] = what
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        wrong["file"] = f"does not say what a certificate says: {type(error).__name__} {error}"
    except InputError as error:
        wrong["file"] = str(error)
    return RecheckedSearch(said, FrozenMap(wrong), found, regenerate and not wrong, *counted)


def _model(said: Mapping[str, Any], folder: Path) -> Model:
    """The model that a certificate names, from the configuration that it holds."""
    name = said["name"]
    if said["config"] is not None:
        file, _, part = Path(name).name.partition("#")
        (folder / file).write_text(said["config"], encoding="utf-8")
        name = str(folder / file) + (f"#{part}" if part else "")
    return resolve_model(name, **said["options"])


def _wrong(said: Mapping[str, Any], model: Model, regenerate: bool, counted: list[int]) -> Iterator[tuple[str, str]]:
    keys = (KEY, "placealg", "claim", "hypotheses", "model", "question", "left_out", "refused", "strategies", "pruned",
            "work", "counts", "winner", "least_bound", "digest")
    if tuple(said) != keys:
        yield "file", f"has not the keys {', '.join(keys)}"
        return
    yield from _differs("claim", said["claim"], CLAIM_OF_THE_BEST if said["pruned"] else CLAIM)
    yield from _differs("hypotheses", said["hypotheses"], dict(HYPOTHESES))
    question = question_of(said["question"], model)
    yield from _differs("question.model", said["question"]["model"], model.name)
    expected = strategies(question)
    listed = list(said["strategies"])
    places = [said[key] for key in ("strategies", "refused", "pruned")]
    yield from ((e, "is missing: the space has it") for e in expected if not any(e in place for place in places))
    yield from ((e, "is no strategy of the space, or stands twice") for place in places for e in place
                if e not in expected or sum(e in other for other in places) > 1)
    for expression, reason in said["refused"].items():
        yield from _differs(f"refused {expression}", reason, compiled(expression, model).refused)
    asked, every = Asked.read(said["question"]), dict[str, Replayed]()
    for k, expression in enumerate(listed, 1):
        say(f"{k} of {len(listed)} strategies")
        one, told = said["strategies"][expression], f"strategies {expression}"
        try:
            every[expression] = found = replayed(expression, one["stages"], model, asked)
        except InputError as error:
            yield told, str(error)
            continue
        for name in ("layouts", "fit", "places"):
            yield from _differs(f"{told} {name}", one[name], getattr(found, name))
        yield from _differs(f"{told} least", one["least"], None if found.least is None else str(found.least))
        if set(one) != {"stages", "layouts", "fit", "places", "least"}:
            yield told, "has other keys"
        if regenerate:
            yield from _rederived(told, expression, one["stages"], question)
    counted[:] = sum(one.layouts for one in every.values()), sum(one.places for one in every.values())
    yield from _differs("counts", said["counts"], {
        "strategies": len(every), "layouts": counted[0], "fit": sum(one.fit for one in every.values()),
        "places": counted[1]})
    yield from _outcome(said, every, question)
    yield from _pruned(said, question, regenerate)
    if regenerate:
        yield from _left_out(said["left_out"], question)


def _outcome(said: Mapping[str, Any], every: Mapping[str, Replayed], question: Question) -> Iterator[tuple[str, str]]:
    """What is wrong with the winner and the bound."""
    bounds = [one.bound for one in every.values() if one.bound is not None]
    yield from _differs("least_bound", said["least_bound"], str(min(bounds)) if bounds and not said["pruned"] else None)
    best = min((one for one in every.values() if one.best is not None), key=lambda one: one.best or (), default=None)
    if best is None or said["winner"] is None:
        yield from _differs("winner", said["winner"], None if best is None else "a configuration that fits")
        return
    expression = next(e for e, one in every.items() if one is best)
    winner = {"strategy": expression, "sizes": best.sizes, **{n: str(best.values[n]) for n in
                                                              ("need", "bound", "estimate", "card")}}
    for name, value in winner.items():
        yield from _differs(f"winner {name}", said["winner"].get(name), value)
    for name, value in proof(prove(derive(parse_strategy(expression), question.model))).items():
        yield from _differs(f"winner {name}", said["winner"].get(name), value)
    if set(said["winner"]) != {*winner, "verdict", "class", "assuming"}:
        yield "winner", "has other keys"
    for name, exact in by_formula(expression, best.sizes, question).items():
        yield from _differs(f"winner {name} by formula", str(best.values[name]), str(exact))


def _pruned(said: Mapping[str, Any], question: Question, regenerate: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with the strategies that a bound left out: none of their layouts may be as good as the winner."""
    asked, model, winner = Asked.read(said["question"]), question.model, said["winner"]
    if said["pruned"] and winner is None:
        yield "pruned", "has strategies, and there is no winner"
        return
    best = Fraction(0) if winner is None else question.by_sequence(
        Fraction(winner["need" if asked.objective == "memory" else asked.objective]),
        winner["sizes"] if asked.objective != "memory" else {})
    for k, (expression, one) in enumerate(said["pruned"].items(), 1):
        say(f"{k} of {len(said['pruned'])} strategies that were left out")
        told = f"pruned {expression}"
        if set(one) != {"by", "stages", "layouts"} or one["by"] not in MEANING or (one["by"] == WORK) == bool(
                one["stages"]):
            yield told, "does not say by what"
            continue
        if one["by"] == WORK:
            layouts, least = worked(expression, Fraction(said["work"][recomputed(expression)]),
                                    question.parameters["efficiency"], model, asked)
            if least is None:
                yield told, "has no work that tells"
        else:
            found = replayed(expression, one["stages"], model, asked, part=True)
            layouts, least = found.layouts, found.least
        yield from _differs(f"{told} layouts", one["layouts"], layouts)
        if least is not None and least <= best:
            yield told, f"may be as good as the winner: at least {float(least):.6g}, and that is {float(best):.6g}"
        if regenerate and one["stages"]:
            yield from _rederived(told, expression, one["stages"], question, peak=False)
    if regenerate and said["work"]:
        yield from _differs("work", said["work"], {again: str(seconds) for again, seconds in
                                                   Work.of(question).per_sequence.items()})


def by_formula(expression: str, sizes: Mapping[str, int], question: Question) -> dict[str, Fraction]:
    """The figures of a configuration by the formulas that `cost` prints, of each numbered stage."""
    step = derive(parse_strategy(expression), question.model)
    axis = step.reference.pipeline.axis
    known = {**question.sizes, **{n: Fraction(v) for n, v in sizes.items()}}
    each = [on_stage(step, k, known) for k in range(sizes[axis])] if axis else [step]
    rates = {**question.machine.values, **question.parameters, **known}

    def value(formula: Formula | None) -> Fraction:
        return Fraction(0) if formula is None else Fraction(formula.value(
            **{n: v for n, v in rates.items() if n in formula.inputs}) or 0)

    found = {"need": Fraction(0), "bound": Fraction(0), "estimate": Fraction(0), "card": Fraction(0)}
    for one in each:
        held, timed = memory(one), Written(one)
        mine = {"need": question.needed(value(held.peak), value(held.states)),
                **{name: value(timed[FIGURES[name]] if FIGURES[name] in timed.figures else None)
                   for name in ("bound", "estimate", "card")}}
        found = {name: max(found[name], mine[name]) for name in found}
    return {**found, "card": found["card"] * question.machine.values["card_bw"]}


def _rederived(told: str, expression: str, stages: Any, question: Question, peak: bool = True
               ) -> Iterator[tuple[str, str]]:
    """What is other in the sums of programs that are derived again; `peak` is as in `compiled`."""
    wanted = [Kind(one["place"], tuple(one["units"])) for one in stages]
    again = compiled(expression, question.model, wanted, peak)
    if again.refused:
        yield told, f"does not stand on the model: {again.refused}"
        return
    for one, program in zip(stages, again.stages, strict=True):
        yield from _differs(f"{told} {program.kind}", one, json.loads(json.dumps(stage(program, question))))


def _left_out(said: Any, question: Question) -> Iterator[tuple[str, str]]:
    pairs = tuple(LeftOut(one["worse"], one["better"]) for one in said)
    space = Space("again", question.space.parts, left_out=pairs)
    again = [{"worse": one.pair.worse, "better": one.pair.better, "verdicts": list(one.verdicts)}
             for one in decided(space, question.model)[1]]
    yield from _differs("left_out", said, again)


def question_of(said: Mapping[str, Any], model: Model) -> Question:
    """The question that a certificate says."""
    space = said["space"]
    parts = FrozenMap({str(part): tuple(choices) for part, choices in space["parts"].items()})
    rates = FrozenMap({n: Fraction(v) for n, v in said["rates"].items()})
    return Question(
        model, Devices(said["devices"], said["per_node"], *_batches(said["batch"])),
        Machine("as said", rates, said["per_node"]),
        Fraction(said["memory"]), Space("certified", parts, fixed=FrozenMap(space["fixed"]), only=tuple(space["only"]),
                                        uneven=space["uneven"]),
        FrozenMap({n: Fraction(v) for n, v in said["sizes"].items()}),
        Margin(Fraction(said["reserve"]), Fraction(said["activation_factor"])), said["objective"],
        FrozenMap({n: Fraction(v) for n, v in said["parameters"].items()}))


def _batches(said: int | list[int]) -> tuple[int, tuple[int, ...]]:
    return (said, ()) if isinstance(said, int) else (said[0], tuple(said[1:]))


def _differs(where: str, said: Any, found: Any) -> Iterator[tuple[str, str]]:
    if said != found or type(said) is not type(found):
        yield where, f"says {_short(said)}; it is {_short(found)}"


def _short(value: Any, most: int = 60) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= most else text[:most - 1] + "…"

