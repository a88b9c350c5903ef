"""Published numbers: each derived from its placement, never from the printed formula, and held against the print."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from conftest import ROOT, run_placealg

from placealg.check.published import (
    DERIVED,
    DIFFERS,
    EVALUATED,
    KINDS,
    REPRODUCED,
    PublishedClaim,
    agrees,
    claims,
    explained,
    find,
    read_claims,
)
from placealg.check.quantities import Subject, quantity, reading
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.strategy.catalogue import catalogue

OF_PROGRAMS = [c for c in claims().values() if c.kind in DERIVED]
OTHERS = [c for c in claims().values() if c.kind not in DERIVED]
FOLLOWING = [c for c in OF_PROGRAMS if not c.why]

DIFFERENT = {
    "zero3-8x": "dp",
    "zo-tnlg": "1376/5",
    "fsdp-hybrid": "2*Psi*(dp_replicate - 1)/(dp_replicate*dp_shard)",
    "llama3-mesh-2-v1": "8192",
    "dsv3-act-moe": "1",
    "ds-z2-gpu-none": "(2 + 18/8)*2851*10**6/2**30",
    "mlm-embed": "b*s*h*pp",
    "dsv3-dev": "6225199104",
    "dsv3-dev-gb": "6225199104*2/2**30",
    "dsv3-t8-opt-none": "6225199104*8/2**30",
    "dsv3-t8-total-none": "6225199104*14/2**30",
    "dsv3-t8-opt-z1": "353037/65536",
    "dsv3-t8-param-z3": "353037/262144",
    "dsv3-act-full": "4*4096*7168",
}
"""What comes out of the numbers that do not follow from their own inputs."""

ALTERNATIVES = {
    "abstract": ("dp", "zero1", "zero2", "zero3", "hsdp", "dp*offload_optimizer"),
    "gpt": ("dp", "tp", "tp_sp", "dp*recompute_full", "dp*recompute_selective", "cp_ulysses", "pp", "pp_gpipe",
            "pp_interleaved", "tp*pp", "tp_sp*pp"),
    "moe": ("dp", "tp"),
    "deepseek-v3": ("dp*ep*tp", "zero1*ep*tp"),
}


@pytest.mark.parametrize("claim", OF_PROGRAMS, ids=lambda c: c.id)
def test_a_placement_gives_the_number(claim: PublishedClaim) -> None:
    assert find(claim).verdict == (DIFFERS if claim.why else REPRODUCED)


@pytest.mark.parametrize("claim", OTHERS, ids=lambda c: c.id)
def test_what_no_placement_decides_is_evaluated(claim: PublishedClaim) -> None:
    want = DIFFERS if claim.why else REPRODUCED if claim.quantity else EVALUATED
    assert find(claim).verdict == want


@pytest.mark.parametrize("claim", FOLLOWING, ids=lambda c: c.id)
def test_another_strategy_does_not_give_it(claim: PublishedClaim) -> None:
    found = []
    for strategy in ALTERNATIVES[claim.model]:
        try:
            found.append(find(replace(claim, strategy=strategy)).verdict)
        except InputError:
            found += [DIFFERS] if claim.kind == "schedule" else []
    assert DIFFERS in found


@pytest.mark.parametrize("claim", [c for c in FOLLOWING if c.sizes], ids=lambda c: c.id)
def test_another_size_does_not_give_it(claim: PublishedClaim) -> None:
    """Ten times any size that stands in the formula."""
    used = [n for n in claim.sizes if n in find(claim).ours.names]
    assert used
    for name in used:
        other = replace(claim, sizes=claim.sizes.plus({name: 10 * claim.sizes[name]}))
        assert find(other).verdict == DIFFERS, name


@pytest.mark.parametrize("claim", claims().values(), ids=lambda c: c.id)
def test_a_tenth_more_is_not_the_number(claim: PublishedClaim) -> None:
    found = find(claim)
    if found.verdict != DIFFERS and found.at_sizes != Formula.parse("0", "1") and claim.rounding != "below":
        rough = claim.id in ("zero-pa-33to2", "zero-t2-mp16-os_g_p")
        assert not agrees(claim, found.at_sizes * Fraction(3 if rough else Fraction(11, 10)), found.printed)


def test_what_differs_is_told_apart_with_a_reason() -> None:
    assert {c.id for c in claims().values() if c.why} == set(DIFFERENT)
    for name, text in DIFFERENT.items():
        found = find(claims()[name])
        assert found.verdict == DIFFERS and len(found.claim.why) > 40
        assert found.at_sizes == Formula.parse(text, "1"), name


def test_a_reason_is_the_whole_reason() -> None:
    """What is said to be printed instead gives the print, and the claim as it stands does not."""
    for claim in (c for c in claims().values() if c.why and c.id != "zero3-8x"):
        found = find(claim)
        assert explained(found), claim.id
        as_claimed = replace(claim, instead=claim.quantity or claim.formula)
        assert not explained(replace(found, claim=as_claimed)), claim.id
    factor = claims()["zero3-8x"]
    assert find(replace(factor, sizes=factor.sizes.plus({"dp": Fraction(8)}))).verdict == REPRODUCED
    assert find(replace(factor, sizes=factor.sizes.plus({"dp": Fraction(64)}))).verdict == DIFFERS


def test_every_number_of_the_list_is_claimed() -> None:
    """The identifiers of the collected numbers; those of ZeRO++ are told once the catalogue has it."""
    listed = (ROOT / "tests" / "data" / "published_ids.txt").read_text(encoding="utf-8").split()
    assert len(listed) == len(set(listed)) == 182
    waiting = set() if "zeropp" in catalogue() else {"zpp-total", "zpp-hpz", "zpp-qwz", "zpp-qgz"}
    assert set(listed) - set(claims()) == waiting
    settled = [find(claims()[name]) for name in listed if name in claims()]
    assert all(f.verdict != DIFFERS or f.claim.why for f in settled)


def test_the_classes_cover_what_they_say() -> None:
    assert {c.kind for c in claims().values()} <= set(KINDS)
    for claim in claims().values():
        assert claim.claim and claim.source and claim.id
        assert bool(claim.quantity) or claim.kind not in DERIVED


@pytest.mark.parametrize(("printed", "rounding", "exact", "inside", "outside"), [
    ("31.4", "nearest", False, ("31.35", "31.45", "31.4"), ("31.34", "31.46")),
    ("2", "nearest", False, ("3/2", "5/2"), ("1.49", "2.51")),
    ("120", "nearest", True, ("120", "240/2"), ("120.1", "119.9")),
    ("3291", "down", False, ("3291", "3291.99"), ("3292", "3290.99")),
    ("10", "below", False, ("9.99",), ("10", "11")),
    ("3/2", "nearest", False, ("1.5",), ("1.4999", "1.51")),
    ("4*Psi", "nearest", False, ("2*Psi + 2*Psi",), ("4*Psi + 1", "4")),
])
def test_the_rule_of_rounding(printed: str, rounding: str, exact: bool, inside: tuple[str, ...],
                              outside: tuple[str, ...]) -> None:
    claim = replace(claims()["zero-fig1-os"], printed=printed, rounding=rounding, exact=exact)
    figure = Formula.parse(printed, "1")
    assert all(agrees(claim, Formula.parse(text, "1"), figure) for text in inside)
    assert not any(agrees(claim, Formula.parse(text, "1"), figure) for text in outside)


# --- quantities


def test_parts_of_a_quantity() -> None:
    tp, alone = Subject("tp", "gpt"), Subject("dp", "gpt")
    whole = quantity("memory.activations", tp)
    grows, rest = (quantity("memory.activations", tp, terms=terms) for terms in ("L", "not L"))
    assert whole == grows + rest and rest == quantity("memory.activations", tp, terms="not L", leading="b")
    assert quantity("memory.parameters/w", alone, terms="L", leading="h") == Formula.parse("12*L*h**2", "1")
    assert quantity("beside.memory.states - memory.states", alone, alone) == Formula.parse("0", "1")
    sent = quantity("regions.layer.mlp.sent", tp)
    assert sent == Formula.parse("2*act*b*m*s*h*L*(tp - 1)/tp", "1")


@pytest.mark.parametrize(("text", "message"), [
    ("memory.stats", "has no memory.stats; did you mean 'states'"),
    ("communication.by_axes.tp", "has no communication.by_axes.tp"),
    ("collective.all_gathers", "did you mean 'all_gather'"),
    ("memory.activations", "the abstract model has no activations"),
    ("beside.memory.states", "there is none"),
    ("schedule.bubble", "splits the layers into pipeline stages"),
    ("__import__('os')", "is not a function here"),
    ("memory.states.x", "has no memory.states.x"),
    ("parameters.layer.x", "has no parameters.layer.x"),
])
def test_a_quantity_that_is_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantity(text, Subject("dp", "abstract"))


def test_parameters_by_name() -> None:
    alone = Subject("dp", "gpt")
    assert quantity("parameters.layer.mlp", alone) == Formula.parse("L*(8*h**2 + 5*h)", "1")
    parts = "parameters.embedding + parameters.layer + parameters.head"
    assert quantity(parts, alone) == quantity("parameters", alone)
    assert reading(Subject("dp", "llama-3-8b"), "parameters.layer.mlp").value() == 32 * 3 * 4096 * 14336


def test_a_strategy_may_be_written_out() -> None:
    text = 'base = "dp"\n[states]\noptimizer = { dp = "S" }\n'
    assert quantity("memory.states", Subject(text, "abstract")) == quantity(
        "memory.states", Subject("zero1", "abstract"))


def test_terms_of_what_is_not_linear() -> None:
    with pytest.raises(InputError, match="is not linear in tp"):
        quantity("memory.activations", Subject("tp", "gpt"), terms="tp")


def test_readings_are_written_in_the_sizes_of_the_model() -> None:
    assert "Psi" not in reading(Subject("tp", "gpt"), "memory.states").names
    assert "Psi" in reading(Subject("dp", "abstract"), "memory.states").names


# --- records


GROUP = '[[group]]\nsource = "a"\nkind = "{kind}"\nclaims = [{{ id = "x", claim = "c", printed = "1", {more} }}]\n'


@pytest.mark.parametrize(("kind", "more", "message"), [
    ("placement", 'strategy = "dp", quantity = "memory.states", colour = 1', "x: unknown key 'colour'"),
    ("placment", 'formula = "1"', "x: unknown kind 'placment'; did you mean 'placement'"),
    ("placement", 'formula = "1"', "x: a claim of kind placement names a strategy and a quantity"),
    ("placement", 'strategy = "dp", quantity = "(w + g + o)*Psi"', "x: a claim of kind placement names a strategy and"),
    ("placement", 'strategy = "dp", quantity = "2*collective.all_gather"', "that is read of its program"),
    ("schedule", 'quantity = "memory.states"', "x: a claim of kind schedule names a strategy"),
    ("arithmetic", 'claim = "b"', "Duplicate inline table key"),
    ("arithmetic", 'unit = "GB"', "x: a claim has either a quantity or a formula"),
    ("arithmetic", 'formula = "1", quantity = "parameters"', "x: a claim has either a quantity or a formula"),
    ("arithmetic", 'formula = "1", unit = "GBs"', "x: unknown unit 'GBs'; did you mean 'GB'"),
    ("arithmetic", 'formula = "1", rounding = "up"', "x: unknown rounding 'up'"),
])
def test_a_record_that_is_none(kind: str, more: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_claims(GROUP.format(kind=kind, more=more))


def test_a_group_says_what_holds_for_its_claims() -> None:
    text = '[[group]]\nsource = "a"\nkind = "arithmetic"\nformula = "n*k"\nsizes = { n = 2 }\nclaims = [\n' \
           '  { id = "x", claim = "c", printed = "6", sizes = { k = 3 } },\n' \
           '  { id = "y", claim = "c", printed = "10", sizes = { n = 5, k = "2" } },\n]\n'
    assert [find(c).verdict for c in read_claims(text)] == [EVALUATED, EVALUATED]


# --- the table


def test_the_table_has_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    got = run_placealg("explain", "published")
    assert (got.code, got.err) == (0, "")
    lines = got.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert {line.split()[0] for line in lines if line.startswith("  ") and line.strip()} >= set(claims())
    differing = got.out[got.out.index("\ndo not follow from their own inputs"):]
    assert all(f"  {name} " in differing for name in DIFFERENT) and differing.count("why: ") == len(DIFFERENT)
    assert all(f"\n{kind} (" in got.out for kind in {c.kind for c in claims().values()})


def test_one_number_is_told_with_its_derivation() -> None:
    got = run_placealg("explain", "zero-os-4x")
    for part in ("published number, placement", "zero1 on abstract", "beside.memory.states/memory.states, beside dp",
                 "(w + g + o)/(w + g)", "o = 12", "reproduced"):
        assert part in got.out
    assert "why" in run_placealg("explain", "zo-tnlg").out
    assert "1.5*lp*4*n" in run_placealg("explain", "ds-z3-5").out
    got = run_placealg("explain", "zero-os-5x")
    assert (got.code, got.err) == (2, "placealg: nothing is called 'zero-os-5x'; did you mean 'zero-os-4x'?\n")


def test_the_document() -> None:
    document = json.loads(run_placealg("explain", "published", "--format", "json").out)
    assert document["version"] == 1
    found = {entry["id"]: entry for entry in document["published"]}
    assert list(found) == list(claims())
    assert found["kort-f1-22B-act-none"]["ours"]["value"] == 59.25
    assert found["kort-f1-22B-act-none"]["ratio"] == {"expr": "1", "value": 1}
    assert found["zo-tnlg"]["verdict"] == "differs" and found["zo-tnlg"]["why"]
    assert ("quantity" in found["zo-tnlg"], "formula" in found["zo-6M"]) == (True, True)
    alone = json.loads(run_placealg("explain", "fsdp-hybrid", "--format", "json").out)
    assert alone["published"] == [found["fsdp-hybrid"]]
