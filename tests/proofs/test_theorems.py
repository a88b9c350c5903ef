"""The essays in proofs/theorems/ establish what they print, and cannot establish what is false."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import z3
from conftest import ROOT

from placealg import placement
from placealg.placement import DUAL, Kind, Redistribution
from placealg.prover.evidence import solver

THEOREMS = ROOT / "proofs" / "theorems"
SHARED = ("telling", "vectors", "sufficiency", "separating", "local_types")
ESSAYS = {
    "composition": ("reducing over a, then b", "A B = B A", "one row of a more", "tp with dp", "moves: what i gets",
                    "pp*zero3", "1. unequal counts", "2. another owner", "3. clipping"),
    "cutoff": ("(x - r) q(x)", "d = 4: the determinant", "two means", "those to which they go do",
               "less than k + s", "rank(dp)=5", "0 at d sizes, hence for every n"),
    "equivalence": ("per matrix", "any locality", "over ranks", "up to unit k+1", "all of it in one query",
                    "theta_{t+1}", "omega_{t+1}", "GI, weights", "GI, T is applied", "counts each element once",
                    "a rank's own moments", "copies theta_0", "a wrong weight", "an undefined copy",
                    "an undefined term in a sum", "missing (k = 0) or applied twice", "in another order",
                    "a norm that counts e0 twice", "wrong at j0 near i", "every number of versions back",
                    "moments k versions back", "reads two versions back", "the other element of the matrix alone",
                    "does not apply T", "counts element 1 twice", "moments are a version back", "never loaded"),
    "forward_backward": ("gains u(k) once", "all_reduce of the partial sums", "a bias", "nonlinear", "gamma",
                         "the MLP split along ffn",
                         "right inputs of layer k+1", "layers, backward", "converse, sums", "converse, nonlinear",
                         "converse, backward", "an all_reduce too many", "no converse for"),
    "hypotheses": ("rate 0", "m/sqrt(v)", "dead update", "per matrix", "keyed by rank", "needs equal counts",
                   "an additive loss", "units_independent", "nonzero_divisors", "never_resumed"),
    "redistribution_adjoints": ("[S]->[R] all_gather, back [P]->[S] reduce_scatter; local sums x 1",
                                "[I]->[R] none, back [P]->[I] all_reduce; local sums x 1/n", "all 16 pairs",
                                "stage -> stage send/recv from p to q", "every number n of stages",
                                "device -> host copy, back host -> device copy", "all 15 rows",
                                "all 16 rows of the table of local types"),
    "pipeline": ("F_i and B_j may change places", "frees it", "one pair less", "every map of layers to stages",
                 "Proved without a pipeline, not with one"),
    "rings": ("(c - k) mod n", "pass their own block every turn", "every block, once", "the right neighbour",
              "the sum over all ranks, each once", "the part of r counts twice", "all_reduce", "every n; a run on 3"),
    "schedules": ("does not come back", "gpipe, for all p and m", "1f1b, for all p and m", "p - i are in flight",
                  "no times at all", "every edge of placealg's schedules"),
    "softmax": ("any number of blocks", "commutative", "associative", "without keys is the unit", "e is additive",
                "not multiplicative", "saved lse", "no level at all", "the whole row's term"),
    "sums": ("sum_of_owner", "sum_of_constant", "ring: in k turns", "is all_reduce", "seen on any rank"),
}
"""Essay -> parts of what it has to establish."""


@pytest.fixture
def essay(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of proofs/theorems/ by name."""
    monkeypatch.syspath_prepend(str(THEOREMS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_every_essay_is_here() -> None:
    assert {p.stem for p in THEOREMS.glob("*.py")} == {*ESSAYS, *SHARED}


@pytest.mark.parametrize("name", ESSAYS)
def test_an_essay_establishes_what_it_prints(name: str, essay: Any, capsys: pytest.CaptureFixture[str]) -> None:
    account = essay(name).main()
    printed = capsys.readouterr().out
    claims = [told.claim for told in account.told]
    assert [c for c in claims if c not in printed] == []
    assert [part for part in ESSAYS[name] if not any(part in c for c in claims)] == []
    for theorem, twin in zip(account.told, account.told[1:], strict=False):
        assert theorem.kind != "proved" or twin.kind == "refuted", f"{theorem.claim} has no twin"
    assert account.count("refuted") >= account.count("proved") >= 3


@pytest.mark.parametrize("name", ESSAYS)
def test_an_essay_says_its_theorem(name: str, essay: Any) -> None:
    said = essay(name).__doc__
    assert any(word in said for word in ("Theorem. ", "Lemma. ", "No hypothesis"))
    assert len((THEOREMS / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 240


def test_an_essay_runs_as_a_script() -> None:
    done = subprocess.run([sys.executable, "proofs/theorems/sums.py"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "each with a premise that has a model" in done.stdout


N = z3.Int("n")


@pytest.mark.parametrize(("goal", "given", "twin"), [
    (N > 3, [N > 2], N > 4),
    (N > 3, [N > 5, N < 4], N > 9),
    (N > 1, [N > 2], N > 0),
], ids=["a false goal", "a premise without a model", "a twin that is true"])
def test_a_false_theorem_ends_the_essay(goal: Any, given: list[Any], twin: Any, essay: Any) -> None:
    telling = essay("telling")
    account = telling.Account("false")
    with pytest.raises(telling.NotEstablished, match="false"):
        account.theorem("it holds", goal, given, twin=telling.Twin("it does not", twin))
    account.theorem("it holds", N > 1, [N > 2], twin=telling.Twin("it does not", N > 5))


def test_a_solver_that_gives_up_establishes_nothing(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    telling = essay("telling")
    monkeypatch.setattr(telling.PROCESS, "ask", lambda *_, **__: solver.Reply(solver.UNKNOWN, {}, "gave up"))
    account = telling.Account("unknown")
    with pytest.raises(telling.NotEstablished, match="gave up"):
        account.theorem("it holds", N > 1, [N > 2], twin=telling.Twin("it does not", N > 5))
    with pytest.raises(telling.NotEstablished, match="gave up"):
        account.refuted("it holds", N > 1)
    with pytest.raises(telling.NotEstablished, match="does not"):
        account.run("one is two", False)


ROWS = {f"{r.source}->{r.target}": r for r in placement.REDISTRIBUTIONS}


@pytest.mark.parametrize("change", [{"event": "scale 1/n"}, {"backward": "scale 1/n"}, {"backward": "slice"}],
                         ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_changed_row_of_the_table_is_refuted(name: str, change: dict[str, str], essay: Any) -> None:
    essay_on_rows, row = essay("redistribution_adjoints"), ROWS[name]
    changed = replace(row, **change)
    wrong = not all(adjoint_on_lists(changed, changed.backward, n) for n in (1, 2, 3))
    account = essay("telling").Account("changed", {"n": 2, "v": 2, "gamma": 3})
    goal = essay_on_rows.adjoint(changed, changed.backward)
    assert account.counterexample(goal, essay_on_rows.SIZES).status == (solver.SAT if wrong else solver.UNSAT)


def test_the_essay_reads_the_table(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(replace(r, backward="slice") if (r.source, r.target) == (Kind.S, Kind.R) else r
                 for r in placement.REDISTRIBUTIONS)
    monkeypatch.setattr(placement, "REDISTRIBUTIONS", rows)
    with pytest.raises(essay("telling").NotEstablished, match=r"\[S\]->\[R\]"):
        essay("redistribution_adjoints").main()


def test_the_essay_reads_the_lemmas(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = essay("sums")
    wrong = tuple(replace(lemma, partial=lambda k: k) for lemma in sums.LEMMAS)
    monkeypatch.setattr(sums, "LEMMAS", wrong)
    with pytest.raises(essay("telling").NotEstablished, match="sum_of_owner"):
        sums.main()


@pytest.mark.parametrize(("name", "attribute", "wrong", "claim"), [
    ("rings", "left", lambda essay: lambda rank: essay.around(rank - 2), "every n: in turn k rank c gets"),
    ("rings", "right", lambda essay: lambda rank: rank, "the right neighbour"),
    ("rings", "collected", lambda essay: lambda start, turns: essay.F(turns), "after k turns it is the sum"),
    ("softmax", "merged", lambda essay: essay.newcomer_alone, "merging adds what both mean"),
    ("softmax", "down", lambda essay: lambda number, level: essay.e(number) > 0, "a key alone"),
    ("schedules", "ONE_F_ONE_B", lambda essay: replace(essay.ONE_F_ONE_B, forward=essay.GPIPE.forward), "1f1b, for"),
    ("schedules", "GPIPE", lambda essay: replace(essay.GPIPE, started=z3.IntVal(1)), "gpipe, for all"),
    ("pipeline", "backward", lambda essay: partial(essay.backward, adds=False), "B_i and B_j may change places"),
    ("equivalence", "seen", lambda essay: lambda which, state: state, "elementwise: alike at i"),
    ("sums", "EVENTS", lambda essay: {**essay.EVENTS, "reduce_scatter": essay.EVENTS["slice"]}, "on the events of the"),
    ("forward_backward", "owned_once", lambda essay: lambda rank: z3.If(rank == essay.own(essay.k), 2 * essay.u(
        essay.k), 0), "over ranks"),
    ("forward_backward", "gradients", lambda essay: lambda dy, x: (essay.a(dy), essay.a(x), x), "a wrong dy shows"),
    ("composition", "partial_sums", lambda essay: lambda weight: [], "one row of a more"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_an_essay_about_something_false_ends(name: str, attribute: str, wrong: Callable[[ModuleType], Any], claim: str,
                                             essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = essay(name)
    monkeypatch.setattr(subject, attribute, wrong(subject))
    with pytest.raises(essay("telling").NotEstablished, match=f"{claim}.*: sat"):
        subject.main()


LOCAL_TYPES = """
R->I convert        | I->P convert
R->V reinterpret    | V->P reinterpret
R->V convert        | V->P convert
R->P reinterpret    | R->P reinterpret
R->P convert        | R->P convert
I->R convert        | P->I all_reduce
I->V convert        | V->I all_gather
I->P convert        | R->I convert
V->R all_gather     | P->V reduce_scatter
V->I all_gather     | I->V convert
V->V all_to_all     | V->V all_to_all
V->P reinterpret    | R->V reinterpret
V->P convert        | R->V convert
P->R all_reduce     | P->R all_reduce
P->I all_reduce     | I->R convert
P->V reduce_scatter | V->R all_gather
"""
"""The forward/backward table of the design document of spmd_types (https://pypi.org/project/spmd-types/)."""


@pytest.fixture
def local_table(essay: Any) -> tuple[Any, list[Any]]:
    """An account of all rows of the table of local types, and the rows."""
    adjoints = essay("redistribution_adjoints")
    account = essay("telling").Account("local types", {"n": 2, "v": 2, "gamma": 3})
    return account, [*adjoints.prove_rows(account), *adjoints.prove_reinterpretations(account)]


def test_the_table_of_local_types_is_the_public_one(essay: Any, local_table: Any,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    account, rows = local_table
    want = {tuple(cell.strip() for cell in line.split("|")) for line in LOCAL_TYPES.strip().splitlines()}
    assert {(row.forward, row.backward) for row in rows} == want
    assert len(rows) == 16
    capsys.readouterr()
    essay("local_types").tell_local_types(account, rows)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in rows:
        assert [*row.forward.split(), *row.backward.split(), row.sums, row.value, *row.theorem.split()] in printed
    assert account.told[-1].kind == "run"


@pytest.mark.some(5)
@pytest.mark.parametrize("missing", range(16))
def test_a_missing_row_of_local_types_ends_the_essay(missing: int, essay: Any, local_table: Any) -> None:
    account, rows = local_table
    left = [row for at, row in enumerate(rows) if at != missing]
    with pytest.raises(essay("telling").NotEstablished, match="all 16 rows"):
        essay("local_types").tell_local_types(account, left)


@pytest.mark.parametrize("change", [{"theorem": "nothing above"}, {"backward": "V->V all_to_all"},
                                    {"forward": "I->R all_gather"}], ids=str)
def test_a_wrong_row_of_local_types_ends_the_essay(change: dict[str, str], essay: Any, local_table: Any) -> None:
    account, rows = local_table
    with pytest.raises(essay("telling").NotEstablished, match="all 16 rows"):
        essay("local_types").tell_local_types(account, [replace(rows[0], **change), *rows[1:]])


def test_a_redistribution_without_a_theorem_ends_the_essay(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adjoints = essay("redistribution_adjoints")
    monkeypatch.setattr(adjoints, "prove_host", lambda account: None)
    with pytest.raises(essay("telling").NotEstablished, match="all 15 rows"):
        adjoints.main()


def test_a_wrong_pairing_is_refuted(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adjoints = essay("redistribution_adjoints")
    monkeypatch.setattr(adjoints, "PAIRING", dict.fromkeys(Kind, 0))
    with pytest.raises(essay("telling").NotEstablished):
        adjoints.main()


Numbers = list[Fraction]


def applied(event: str, x: Numbers, source: int, target: int) -> Numbers:
    """What an event makes of one number per rank, written out; what is not held is 0."""
    n = len(x)
    kept = {"slice": target, "zero-pad": source, "reduce_scatter": target, "all_to_all": target}
    number = {"reduce_scatter": sum(x, Fraction(0)), "all_reduce": sum(x, Fraction(0)), "all_gather": x[source],
              "all_to_all": x[source]}
    values = [number[event]] * n if event in number else x
    values = [v / n for v in values] if event == "scale 1/n" else values
    return [v if event not in kept or c == kept[event] else Fraction(0) for c, v in enumerate(values)]


def drawn(kind: Kind, n: int, owner: int, draw: random.Random) -> Numbers:
    """A random member of a type."""
    numbers = [Fraction(draw.randrange(1, 20), draw.randrange(1, 20)) for _ in range(n)]
    if kind is Kind.P:
        return numbers
    return [numbers[0] if kind is not Kind.S or c == owner else Fraction(0) for c in range(n)]


def value(kind: Kind, x: Numbers, owner: int) -> Fraction | None:
    """What x means, or None where it is not of the type."""
    if kind is Kind.P:
        return sum(x, Fraction(0))
    if kind is Kind.S:
        return None if any(v for c, v in enumerate(x) if c != owner) else x[owner]
    return x[0] if len(set(x)) == 1 else None


def adjoint_on_lists(row: Redistribution, back: str, n: int) -> bool:
    """Types, values and <A x, g> = <x, B g> on random numbers, for every owner before and after."""
    draw = random.Random(n)
    for before in range(n):
        for after in range(n) if row.source is row.target else (before,):
            x, g = drawn(row.source, n, before, draw), drawn(DUAL[row.target], n, after, draw)
            ax, bg = applied(row.event, x, before, after), applied(back, g, after, before)
            sums = [sum((a * b for a, b in pairs), Fraction(0)) / (n if kind is Kind.I else 1) for kind, pairs in
                    ((row.target, zip(ax, g, strict=True)), (row.source, zip(x, bg, strict=True)))]
            kept = (value(row.target, ax, after) == value(row.source, x, before)
                    and value(DUAL[row.source], bg, before) == value(DUAL[row.target], g, after))
            if not kept or sums[0] != sums[1]:
                return False
    return True


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_adjoint_on_numbers_and_their_other_backwards_are_those_of_the_essay(name: str, essay: Any) -> None:
    adjoints, row = essay("redistribution_adjoints"), ROWS[name]
    account = essay("telling").Account("events", {"n": 3, "v": 2, "gamma": 3})
    assert all(adjoint_on_lists(row, row.backward, n) for n in (1, 2, 3, 5))
    for event in adjoints.EVENTS:
        refuted = account.counterexample(adjoints.adjoint(row, event), adjoints.SIZES).status == solver.SAT
        assert refuted is not adjoint_on_lists(row, event, 3), event


ASSUMED = ("consistent", "add_ranks", "add_units")


@pytest.mark.parametrize("attribute", ASSUMED)
def test_sufficiency_without_a_part_of_its_premise_ends_the_essay(attribute: str, essay: Any,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    sufficiency = essay("sufficiency")
    monkeypatch.setattr(sufficiency, attribute, (lambda: z3.BoolVal(True)) if attribute == "consistent" else
                        lambda *_: [])
    with pytest.raises(essay("telling").NotEstablished, match=r"over (ranks|units)"):
        sufficiency.prove_sums(essay("telling").Account("premises"))


def test_the_small_runs_of_sufficiency_refute_only_what_lacks_a_hypothesis(essay: Any) -> None:
    sufficiency, ask = essay("sufficiency"), essay("telling").PROCESS.ask
    named, defined = sufficiency.hypotheses(), sufficiency.definitions()
    wrong = z3.Not(sufficiency.invariant(sufficiency.t + 1, sufficiency.c, sufficiency.i))
    assert ask([*defined, *named.values(), wrong]).status == solver.UNSAT
    assert ask(sufficiency.on_two_ranks([*defined, *named.values(), wrong])).status == solver.UNSAT
    for name in named:
        rest = [held for other, held in named.items() if other != name]
        times = 2 if name == "GI, weights" else 1
        assert ask(sufficiency.on_two_ranks([*defined, *rest, wrong], times)).status == solver.SAT, name


def test_a_formula_written_out_is_of_two_ranks_and_the_elements_that_are_given(essay: Any) -> None:
    sufficiency = essay("sufficiency")
    both = z3.Consts("one other", sufficiency.Element)
    d, j, live, t = sufficiency.d, sufficiency.j, sufficiency.live, sufficiency.t
    got = sufficiency.written_out(z3.Not(z3.ForAll([d, j], live(t, d, j))), both)
    want = z3.Not(z3.And([live(t, rank, element) for rank in (0, 1) for element in both]))
    assert got.eq(want)


def test_the_theorems_that_the_essays_name_are_those_of_the_proof_assistant(essay: Any) -> None:
    proved = (ROOT / "proofs" / "coq" / "Equivalence.v").read_text(encoding="utf-8")
    cited = {"sufficiency": ("sufficient",), "separating": ("necessary_version", "necessary_update",
                                                            "necessary_counted")}
    for name, theorems in cited.items():
        for theorem in theorems:
            assert f"`{theorem}`" in essay(name).__doc__
            assert f"\nTheorem {theorem} " in proved


def test_runs_without_a_defect_are_the_single_device(essay: Any) -> None:
    separating = essay("separating")
    two = (Fraction(1, 2), *separating.WANT[1:])
    faulty = separating.Program("faulty", (separating.Rank(), separating.Rank((two, two))))
    model = separating.defect(faulty)
    single_device, ranks = separating.runs(faulty, model)
    assert ranks[0] == single_device != ranks[1]
    other = replace(model, x0=1)
    assert separating.runs(faulty, other)[1] == [separating.runs(faulty, other)[0]] * 2


@pytest.mark.parametrize(("fault", "model"), [
    ({"weights": (((0,) * 4), (Fraction(1, 4),) * 4)}, {}),
    ({"weights": ((Fraction(1, 4),) * 4, (Fraction(1, 4), 0, 0, 0))}, {"j0": 1, "x0": 1}),
    ({"back": 1}, {}), ({"lost": Fraction(3)}, {}), ({"moments_back": 2}, {"a": 1}),
    ({"applied": 0}, {"b": 1}), ({"applied": 3}, {"b": 1}), ({"counts": (1, 0)}, {"e0": 1}),
    ({"counts": (2, 0)}, {"e0": 0}),
], ids=str)
def test_each_fault_has_a_model_that_tells_and_others_that_do_not(fault: dict[str, Any], model: dict[str, int],
                                                                  essay: Any) -> None:
    separating = essay("separating")
    program = separating.Program("faulty", (separating.Rank(), separating.Rank(**fault)))
    assert separating.defect(program) == separating.Model(**model)
    single_device, (right, wrong) = separating.runs(program, separating.Model(**model))
    assert right == single_device != wrong
    if model:
        plain, ranks = separating.runs(program, separating.Model())
        assert ranks == [plain, plain]


@pytest.mark.parametrize("back", [1, 2, 3, 5])
def test_any_number_of_versions_back_is_told_as_soon_as_there_are_so_many(back: int, essay: Any) -> None:
    separating = essay("separating")
    stale = separating.Program("stale", (separating.Rank(), separating.Rank(back=back)))
    single_device, (fresh, late) = separating.runs(stale, separating.defect(stale), steps=back + 2)
    assert fresh == single_device
    assert [a == b for a, b in zip(late, single_device, strict=True)] == [True] * (back + 1) + [False] * 2


@pytest.mark.parametrize(("layer", "rank", "term"), [(0, 0, 0), (0, 1, 1), (1, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("times", [Fraction(0), Fraction(2), Fraction(1, 2)], ids=str)
def test_the_first_wrong_read_is_found_and_its_own_weights_tell(layer: int, rank: int, term: int, times: Fraction,
                                                                essay: Any) -> None:
    forward = essay("forward_backward")
    counted = [[[Fraction(1)] * 2 for _ in range(2)] for _ in range(3)]
    right = forward.Placed("right", [[list(row) for row in rows] for rows in counted])
    counted[layer][rank][term] = times
    wrong = forward.Placed("wrong", counted)
    assert (forward.defect(right), forward.defect(wrong)) == (None, (layer, rank, term))
    weights = [[int(f == term) for f in range(2)]] * 3
    got, want = forward.reads(wrong, weights), forward.reads(right, weights)
    assert got[:layer] == want[:layer]
    assert [c for c in range(2) if got[layer][c] != want[layer][c]] == [rank]


def test_an_essay_does_not_run_a_pair_that_agrees(essay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = essay("forward_backward")
    monkeypatch.setattr(forward, "reads", lambda placed, weights: [[Fraction(1)] * 2 for _ in weights])
    with pytest.raises(essay("telling").NotEstablished, match="no all_reduce"):
        forward.run_pairs(essay("telling").Account("pairs"))
