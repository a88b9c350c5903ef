"""Random pairs of programs, one resumed from a checkpoint of the other on another mesh: verdicts against runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_programs import placements_of_ops

from placealg.check.reshard import judge_reshard, small_sizes, with_phase
from placealg.cost.resharding import volumes
from placealg.cost.resharding_stages import OLD, RANK
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.transformer import mlp
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator.resharded import meshes, resharded
from placealg.step.checkpoint import Sizes, checkpoint
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.reshard import Reshard, totals
from placealg.strategy.spec import Strategy

BRIEF, EACH, RUNS = 2, 12, 10
MODEL = mlp()


@dataclass(frozen=True)
class Pair:
    """Two strategies against one reference, and an event of a save or a resume that goes, or runs twice."""

    strategies: tuple[Strategy, Strategy]
    steps: tuple[Step, Step]
    change: str

    @property
    def bases(self) -> tuple[Step, Step]:
        """The derived programs."""
        return derive(self.strategies[0], MODEL), derive(self.strategies[1], MODEL)

    @property
    def reshard(self) -> Reshard:
        """What is stored and loaded."""
        (old, new), bases = self.steps, self.bases
        return Reshard(checkpoint(old, self.strategies[0], MODEL),
                       checkpoint(with_phase(new, bases[1], "save"), self.strategies[1], MODEL))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    old, new = draw(placements_of_ops()), draw(placements_of_ops())
    new = replace(new, tables=new.tables.plus({"optimizer": old.tables["optimizer"]}))
    steps = [derive(strategy, MODEL) for strategy in (old, new)]
    change, which = "", draw(st.integers(0, 3))
    if which < 2:
        phase = ("save", "resume")[which]
        event = draw(st.sampled_from([e.path for e in steps[which].phase(phase)]))
        action = draw(st.sampled_from(["drop", "double"]))
        steps[which], change = edit(steps[which], {action: event}), f"{action} {event}"
    return Pair((old, new), (steps[0], steps[1]), change)


def judged(pair: Pair) -> str:
    """The verdict of a pair, "" where it is refused; every one is held against a run of both on small meshes."""
    try:
        found = judge_reshard(pair.reshard, pair.bases)
    except InputError as error:
        assert pair.change, error
        return ""
    old, new = pair.steps
    at = small_sizes(old, 0), small_sizes(new, 1)
    try:
        ran = resharded(old, with_phase(new, pair.bases[1], "save"), meshes(old, new, at)).equal
    except InputError as error:
        assert pair.change, error
        return ""
    story = f"{pair.strategies}, {pair.change}: {found.reason}"
    assert found.verdict != PROVED or ran, story
    assert found.verdict != REFUTED or pair.change, story
    assert found.verdict == PROVED or pair.change, story
    return str(found.verdict)


def drawn(number: int, each: int) -> list[str]:
    verdicts: list[str] = []

    @seed(number)
    @settings(max_examples=each, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(pairs())
    def run(pair: Pair) -> None:
        verdicts.append(judged(pair))

    run()
    return verdicts


def test_a_few_pairs_go_on_as_their_verdicts_say() -> None:
    assert len(drawn(0, BRIEF)) == BRIEF


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 1 + RUNS))
def test_pairs_go_on_as_their_verdicts_say(number: int) -> None:
    assert {PROVED} <= set(drawn(number, EACH))


def counted_alike(number: int, each: int) -> list[str]:
    """Compare closed forms of pairs with what is counted read by read; the figures that were, by name."""
    draw, compared = Random(number), list[str]()

    @seed(number)
    @settings(max_examples=each, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(st.tuples(placements_of_ops(), placements_of_ops()))
    def run(drawn: tuple[Strategy, Strategy]) -> None:
        said = tuple(replace(s, tables=s.tables.plus({"shards": FrozenMap({"pad": "rows"}),
                                                      "optimizer": drawn[0].tables["optimizer"]})) for s in drawn)
        made = Reshard(*(checkpoint(derive(s, MODEL), s, MODEL) for s in said))
        sizes = {"h": 5, "f": draw.randrange(3, 14), "L": draw.randrange(12, 15), "V": 7}
        at = [{a: max(draw.randrange(1, 4), c.pipeline.least if a == c.pipeline.axis else 1)
               for a in s.mesh.names} for s, c in zip(said, (made.old, made.new), strict=True)]
        counted = totals(made, *(Sizes(FrozenMap(mesh), FrozenMap({n: Fraction(v) for n, v in sizes.items()}))
                                 for mesh in at))
        known = {**{a + OLD: n for a, n in at[0].items()}, **at[1], **sizes}
        for name, formula in volumes(made).items():
            want = {"rank_reads": counted.largest}.get(name, getattr(counted, name, None))
            if want is not None and RANK not in formula.inputs:
                assert formula.expr is not None, (name, formula.reason, said)
                value = formula.value(**{n: known[n] for n in formula.inputs if n in known})
                assert value == want, (name, said, at, sizes)
                compared.append(name)

    run()
    return compared


def test_closed_forms_of_random_pairs_are_what_is_counted() -> None:
    """Of pipelines in every order, padded shares, and layers that stages do not share evenly."""
    assert {"stored", "read"} <= set(counted_alike(0, 6))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 1 + RUNS))
def test_closed_forms_of_more_random_pairs_are_what_is_counted(number: int) -> None:
    assert {"stored", "read", "rank_reads"} <= set(counted_alike(number, 30))
