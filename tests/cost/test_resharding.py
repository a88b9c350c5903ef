"""The closed forms of a reshard are what is counted read by read, at every size, those that do not divide too."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from predicting import predicting

import placealg as pa
from placealg.cost.indices import valued
from placealg.cost.resharding import Volumes, volumes
from placealg.cost.resharding_names import Names
from placealg.cost.resharding_stages import OLD, RANK, Side, own_instances
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.checkpoint import Sizes, checkpoint
from placealg.step.reshard import Reshard, check_alike, totals
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

ROWS = '[shards]\npad = "rows"'
UNEVEN = f'base = "zero3"\n{ROWS}'


def reshard(old: str, new: str, model: str = "gpt") -> tuple[Reshard, Volumes]:
    found = resolve_model(model)
    said = [parse_strategy_file(t).strategy if "=" in t else parse_strategy(t) for t in (old, new)]
    made = Reshard(*(checkpoint(pa.derive(s, found), s, found) for s in said))
    return made, volumes(made)


MADE: dict[tuple[str, str, str], tuple[Reshard, Volumes]] = {}


def kept(*key: str) -> tuple[Reshard, Volumes]:
    if key not in MADE:
        MADE[key] = reshard(*key)
    return MADE[key]


def sizes(mesh: dict[str, int], model: dict[str, int]) -> Sizes:
    return Sizes(FrozenMap(mesh), FrozenMap({n: Fraction(v) for n, v in model.items()}))


def agree(key: tuple[str, str, str], old: dict[str, int], new: dict[str, int], model: dict[str, int],
          *names: str) -> None:
    found, formulas = kept(*key)
    counted = totals(found, sizes(old, model), sizes(new, model))
    at = {**{a + OLD: n for a, n in old.items()}, **new, **model}
    for name, formula in formulas.items():
        if name in names:
            value = formula.value(**{n: v for n, v in at.items() if n in formula.inputs})
            assert value == {"rank_reads": counted.largest}.get(name, getattr(counted, name, None)), name


EVERY = ("stored", "read", "stays", "moved", "rank_reads")
SMALL = {"h": 6, "a": 2, "L": 3, "V": 7, "s": 5}


UNEVEN_PAIRS = [(UNEVEN, UNEVEN), ("dp", UNEVEN), (UNEVEN, "dp"), (f'base = "zero1"\n{ROWS}', UNEVEN)]


@settings(max_examples=5)
@given(old=st.integers(1, 9), new=st.integers(1, 9), rows=st.integers(1, 20))
@pytest.mark.parametrize(("one", "two"), UNEVEN_PAIRS[:3])
def test_of_shares_that_do_not_divide(one: str, two: str, old: int, new: int, rows: int) -> None:
    agree((one, two, "mlp"), {"dp": old}, {"dp": new}, {"h": 5, "f": rows, "L": 2, "V": 7}, *EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("old", range(1, 10))
@pytest.mark.parametrize("new", range(1, 10))
@pytest.mark.parametrize(("one", "two"), UNEVEN_PAIRS)
def test_of_shares_of_a_transformer_that_do_not_divide(one: str, two: str, old: int, new: int) -> None:
    agree((one, two, "gpt"), {"dp": old}, {"dp": new}, {"h": 6, "a": 2, "L": 3, "V": 7, "s": 5}, *EVERY)


@settings(max_examples=8)
@given(old=st.integers(1, 9), new=st.integers(1, 9), times=st.integers(1, 3))
@pytest.mark.parametrize(("one", "two"), [("zero3", "zero3"), ("zero1", "zero3"), ("zero3", "dp")])
def test_of_shares_that_divide(one: str, two: str, old: int, new: int, times: int) -> None:
    agree((one, two, "abstract"), {"dp": old}, {"dp": new}, {"Psi": old * new * times}, *EVERY)


@pytest.mark.parametrize(("one", "old", "two", "new"), [
    pytest.param("zero3*tp_sp", {"dp": 2, "tp": 2}, "zero1*tp", {"dp": 4, "tp": 2}, marks=pytest.mark.slow),
    ("hsdp", {"dp_replicate": 2, "dp_shard": 4}, "tp", {"tp": 2}),
    ("tp", {"tp": 4}, "zero3", {"dp": 2}),
])
def test_of_several_axes(one: str, old: dict[str, int], two: str, new: dict[str, int]) -> None:
    model = {"h": 8, "a": 4, "L": 2, "V": 8, "s": 8}
    found, formulas = kept(one, two, "gpt")
    agree((one, two, "gpt"), old, new, model, "stored", "read", "rank_reads")
    counted = totals(found, sizes(old, model), sizes(new, model))
    at = {**{a + OLD: n for a, n in old.items()}, **new, **model}
    has = [had(formulas, {**at, RANK: rank}) for rank in range(min(prod(old.values()), prod(new.values())))]
    assert sum(has) == counted.stays


@st.composite
def over_axes(draw: st.DrawFn) -> str:
    """A strategy of two axes, each of its states sharded over some of them: the same, nested or crossing ones."""
    at = draw(st.lists(st.sampled_from([(), ("x",), ("y",), ("x", "y")]), min_size=3, max_size=3))
    states = [f'{state} = {{ {", ".join(f"{a} = {mode!r}" for a in axes)} }}'.replace("'", '"')
              for state, mode, axes in zip(("parameters", "optimizer", "gradients"), ("S*", "S", "S"), at, strict=True)]
    pad = draw(st.sampled_from(["none", "none", "rows", "elements"]))
    return "\n".join(['[mesh]', 'x = "symbolic"', 'y = "symbolic"', '[dims]', 'x = ["batch"]', 'y = ["batch"]',
                      '[states]', *states, '[shards]', f'pad = "{pad}"'])


NESTED = """[mesh]\nx = "symbolic"\ny = "symbolic"\n[dims]\nx = ["batch"]\ny = ["batch"]\n[states]
parameters = { y = "S*" }\noptimizer = { x = "S", y = "S" }\n[shards]\npad = "%s\""""
CROSSING = NESTED.replace('optimizer = { x = "S", y', 'gradients = { x = "S", y = "S" }\noptimizer = { x')
SIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))


def agree_over_axes(one: str, two: str, old: tuple[int, int], new: tuple[int, int], rows: int, model: str) -> None:
    times = prod(old) * prod(new) if any('pad = "none"' in text for text in (one, two)) else 1
    at = {"Psi": rows * times} if model == "abstract" else {"h": 2 * times, "f": rows * times, "L": 2, "V": 3 * times}
    agree((one, two, model), *(dict(zip("xy", n, strict=True)) for n in (old, new)), at, *EVERY)


@settings(max_examples=6, deadline=None)
@given(one=over_axes(), two=over_axes(), old=SIDES, new=SIDES, rows=st.integers(1, 20))
@example(one=NESTED % "none", two=CROSSING % "none", old=(2, 3), new=(3, 2), rows=1)
@example(one=CROSSING % "elements", two=NESTED % "rows", old=(2, 3), new=(3, 2), rows=13)
def test_of_states_over_other_axes(one: str, two: str, old: tuple[int, int], new: tuple[int, int], rows: int) -> None:
    agree_over_axes(one, two, old, new, rows, "abstract")


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(one=over_axes(), two=over_axes(), old=SIDES, new=SIDES, rows=st.integers(1, 7))
def test_of_matrices_over_other_axes(one: str, two: str, old: tuple[int, int], new: tuple[int, int],
                                     rows: int) -> None:
    agree_over_axes(one, two, old, new, rows, "mlp")


@pytest.mark.slow
def test_of_scales_that_are_one_number_each() -> None:
    old, new = (f'base = "{name}"\n[optimizer]\nfp8_scales = ["mlp.*"]' for name in ("zero3", "zero1"))
    agree((old, new, "mlp"), {"dp": 2}, {"dp": 3}, {"h": 6, "f": 12, "L": 3, "V": 6}, *EVERY)


CHUNKED = {"pp": "", "pp_interleaved": "chunks = 2", "pp_interleaved_zb": "chunks = 3", "pp_zb_v": "", "dp": "",
           "pp_zb_h1": 'alone = ["last"]', "pp_dualpipe_v": 'alone = ["last"]', "pp_1f1b": 'alone = ["first", "last"]'}
"""Pipelines by name -> what [schedule] says of them besides."""


@pytest.mark.parametrize(("one", "two", "model"), [
    ("pp_interleaved", "pp", "mlp"), ("pp_zb_h1", "pp_zb_v", "mlp"), ("pp_1f1b", "pp_interleaved", "gpt"),
    *(pytest.param(a, b, "mlp", marks=pytest.mark.slow) for a in CHUNKED for b in CHUNKED if "1f1b" not in a + b)])
def test_of_stages_that_have_chunks(one: str, two: str, model: str) -> None:
    """What the device of a rank had is a closed form in its number, for layers that do not divide, too."""
    texts = [f'base = "{name}"\n' + f"[schedule]\n{CHUNKED[name]}" * bool(CHUNKED[name]) for name in (one, two)]
    found, formulas = reshard(*texts, model=model)
    for old, new, layers in ((3, 4, 13), (4, 3, 17), (3, 3, 12)):
        known = {**SMALL, "f": 7, "L": layers}
        axes = [made.axes[0] for made in (found.old, found.new)]
        counted = totals(found, sizes({axes[0]: old}, known), sizes({axes[1]: new}, known))
        at = {axes[0] + OLD: old, axes[1]: new, **known}
        assert sum(had(formulas, {**at, RANK: rank}) for rank in range(min(old, new))) == counted.stays, (old, new)


ALONE = {"first": 'alone = ["first"]', "last": 'alone = ["last"]', "both": 'alone = ["first", "last"]',
         "prediction": 'alone = ["prediction"]'}
"""What of a model has a stage without layers -> what [schedule] says of it."""


def of_name(name: str) -> str:
    """The strategy of a name, behind which a comma says what stands alone."""
    if "\n" in name:
        return name
    base, _, alone = name.partition(", ")
    said = ALONE.get(alone, "chunks = 2" if base == "pp_interleaved" else "")
    return f'base = "{base}"\n[schedule]\n{said}' if said else f'base = "{base}"'


STAGED = [("pp", "dp"), ("dp", "pp"), ("pp", "zero3"), ("zero3", "pp"), ("pp_interleaved", "dp"), ("dp", "pp_zb_v"),
          ("pp_zb_v", "zero3"), ("pp, both", "dp"), ("zero3", "pp, last"), ("tp", "pp"), ("pp, first", "tp")]


def agree_of_stages(one: str, two: str, model: str, numbers: tuple[tuple[int, int, int], ...]) -> None:
    """What stays and what must move is what is counted, device by device, at these (old, new, layers)."""
    found, formulas = reshard(of_name(one), of_name(two), model=model)
    axes = [made.axes[0] for made in (found.old, found.new)]
    for old, new, layers in numbers:
        # parameters divide by every number of ranks; layers do not
        known = {"h": 60, "a": 60, "f": 120, "V": 120, "s": 60, "L": layers, "b": 1}
        counted = totals(found, sizes({axes[0]: old}, known), sizes({axes[1]: new}, known))
        at = {axes[0] + OLD: old, axes[1]: new, **known}
        for name in ("stored", "read", "stays", "moved"):
            formula = getattr(formulas, name)
            assert formula.expr is not None, (one, two, formula.reason)
            value = formula.value(**{n: v for n, v in at.items() if n in formula.inputs})
            assert value == getattr(counted, name), (one, two, name, old, new, layers)


@pytest.mark.parametrize(("one", "two", "model"), [
    ("pp", "dp", "mlp"), ("zero3", "pp", "mlp"), ("pp_zb_v", "zero3", "mlp"),
    *(pytest.param(a, b, m, marks=pytest.mark.slow) for a, b in STAGED for m in ("mlp", "gpt")
      if not (m == "gpt" and "zb_v" in a + b) and not (m == "mlp" and ("tp" in (a, b) or "first" in a + b or
                                                                     "both" in a + b)))])
def test_stages_onto_other_meshes(one: str, two: str, model: str) -> None:
    """For numbers of stages that are equal, fewer, and more than ranks; for layers that do not divide."""
    agree_of_stages(one, two, model, ((3, 4, 13), (4, 3, 17), (3, 3, 12), (5, 3, 11)))


@pytest.mark.parametrize(("one", "two", "model"), [
    ("pp", "pp", "mlp"), ("pp_interleaved", "pp_zb_v", "mlp"), ("pp, last", "pp", "mlp"),
    *(pytest.param(a, b, m, marks=pytest.mark.slow) for a, b, m in (
        ("pp", "pp_zb_h1", "gpt"), ("pp", "pp_interleaved", "gpt"), ("pp, both", "pp_interleaved", "gpt"),
        ("pp", 'base = "zero3"\n[shards]\npad = "rows"', "mlp")))])
def test_stages_onto_other_numbers_of_stages(one: str, two: str, model: str) -> None:
    """A sum over ranks, exact for layers that divide by neither number of stages, too."""
    least = 3 if "both" in one + two else 2
    agree_of_stages(one, two, model, ((least, 3, 12), (3, least, 7), (4, 3, 13), (3, 4, 17)))


def test_where_layers_divide_the_sum_has_a_closed_form_of_its_own() -> None:
    _, formulas = reshard("pp", "pp", model="mlp")
    assert formulas.stays.note.startswith("where L divides by pp_old and by pp, the sum over ranks is ")


def of_any(one: str, two: str, model: str, *numbers: tuple[dict[str, int], dict[str, int], dict[str, int]]) -> None:
    """Every figure is what is counted, at these sizes of the old mesh, of the new one, and of the model."""
    found, formulas = kept(one, two, model)
    for old, new, known in numbers:
        before = {**known, "v": known.get("v" + OLD, known.get("v", 1))}
        counted = totals(found, sizes(old, before), sizes(new, known))
        at = {**{a + OLD: n for a, n in old.items()}, **new, **known, "v" + OLD: before["v"]}
        for name, formula in formulas.items():
            if name != "rank_has":
                value = formula.value(**{n: v for n, v in at.items() if n in formula.inputs})
                assert value == {"rank_reads": counted.largest}.get(name, getattr(counted, name, None)), (name, at)


def chunked(v: int, layers: int, **more: int) -> dict[str, int]:
    return {"h": 12, "f": 24, "V": 12, "L": layers, "v": v, **more}


LISTED = 'base = "pp"\n[schedule]\nstages = [3, 1, 5]'
TURNS = 'base = "pp_interleaved"\n[schedule]\nchunks = 2\nstages = [1, 2, 1, 3, 1, 2]'


@pytest.mark.parametrize(("one", "two", "old", "new", "layers"), [
    (LISTED, "dp", "pp", "dp", 9), ("dp", TURNS, "dp", "pp", 10), (LISTED, "pp", "pp", "pp", 9),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (TURNS, "pp_zb_v", "pp", "pp", 10), ("zero3", LISTED, "dp", "pp", 9)))])
def test_of_lists_of_stages(one: str, two: str, old: str, new: str, layers: int) -> None:
    """The layers of each stage are data, so that what they share is written out."""
    for ranks in (2, 4):
        mesh = [{axis: 3 if "stages" in text else ranks} for axis, text in ((old, one), (new, two))]
        of_any(one, two, "mlp", (mesh[0], mesh[1], chunked(1, layers)))


@pytest.mark.parametrize(("one", "two"), [("pp_interleaved", "dp"), ("dp", "pp_interleaved"),
                                          pytest.param("pp_interleaved", "pp_interleaved_zb", marks=pytest.mark.slow)])
def test_of_any_number_of_chunks(one: str, two: str) -> None:
    """The number of chunks is a symbol, whose turns are summed up; and what is read is counted with it, too."""
    axes = ["dp" if text == "dp" else "pp" for text in (one, two)]
    of_any(one, two, "mlp", *(({axes[0]: old}, {axes[1]: new}, chunked(v, layers))
                              for old, new, v, layers in ((2, 3, 3, 19), (3, 2, 2, 13), (2, 1, 2, 7))))


def test_layers_of_two_kinds_have_formulas_that_are_shown() -> None:
    """What both meshes have of the layers of one kind is one name; what all have is gathered by the kinds."""
    _, formulas = reshard("tp*pp", "zero3*pp", "deepseek-v3")
    names = Names(f for _, f in formulas.items())
    assert names.shortened(formulas.stored).startswith("(w + o − 4)·(L_moe·(")
    stays = names.shortened(formulas.stays)
    assert "L_moe" not in stays and len(stays) < 1000
    assert any("L_moe" in line for line in names.told())


def test_of_two_numbers_of_chunks() -> None:
    """The old mesh's stages have chunks of their own number."""
    of_any("pp_interleaved", "pp_interleaved_zb", "mlp", *(
        ({"pp": old}, {"pp": new}, chunked(v, layers, v_old=before))
        for old, new, before, v, layers in ((2, 3, 3, 1, 19), (3, 2, 1, 4, 13), (2, 2, 2, 3, 12))))


@pytest.mark.parametrize(("one", "two"), [
    ("zero3*tp", "zero1*tp"), ("pp*dp", "zero3*pp"),
    *(pytest.param(a, b, marks=pytest.mark.slow) for a, b in (
        ("hsdp", "tp"), ("zero3*tp*pp", "pp_interleaved*dp"), ("pp_interleaved*zero1", "hsdp*tp")))])
def test_of_all_ranks_of_several_axes(one: str, two: str) -> None:
    found, _ = kept(one, two, "gpt")
    for turn in range(2):
        meshes = [{a: (2, 3, 2, 3)[k + turn] for k, a in enumerate(made.axes)} for made in (found.old, found.new)]
        of_any(one, two, "gpt", (*meshes, chunked(2, 13, h=36, a=36, s=36, V=36)))


ANY_CHUNKS = 'base = "pp_interleaved"\n[schedule]\nstages = [1, 2, 1, 3, 1, 2]'


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_of_a_list_of_stages_every_rank_has_its_turns(ranks: int) -> None:
    """Of layers that are dealt out to ranks whose number is a symbol, each has every so many of the list's entries."""
    model, said = resolve_model("mlp"), parse_strategy_file(ANY_CHUNKS).strategy
    side = Side(checkpoint(pa.derive(said, model), said, model), "")
    item = next(i for i in side.found.items if i.parameter.startswith("layer."))
    for rank in range(ranks):
        runs = own_instances(side, item, {"pp": sympy.Integer(rank)})
        layers = valued(sum(run.times * run.length for run in runs), {"pp": Fraction(ranks)})
        assert layers == sum([1, 2, 1, 3, 1, 2][rank::ranks])


@pytest.mark.slow
@pytest.mark.parametrize(("one", "two"), [
    (ANY_CHUNKS, "dp"), ("dp", ANY_CHUNKS), (ANY_CHUNKS, "pp"), ("pp_interleaved", ANY_CHUNKS), (ANY_CHUNKS, "zero3")])
def test_of_lists_of_stages_dealt_out_to_any_number_of_ranks(one: str, two: str) -> None:
    """The number of chunks is a symbol: that of the ranks says how the chunks of the list are dealt out in turn."""
    axes = ["pp" if "stages" in text or "pp" in text else "dp" for text in (one, two)]
    for ranks, v, others in ((2, 3, 4), (3, 2, 2)):
        at = [ranks if "stages" in text or "interleaved" in text else others for text in (one, two)]
        of_any(one, two, "mlp", ({axes[0]: at[0]}, {axes[1]: at[1]}, chunked(v, 10)))


@pytest.mark.parametrize(("one", "two"), [("pp, prediction", "dp"), ("dp", "pp, prediction"), ("pp, prediction", "pp"),
                                          ("pp_zb_v, prediction", "dp"), ("pp", "pp, prediction")])
def test_a_layer_that_predicts_alone_is_read_as_one_that_stands_with_the_head(one: str, two: str) -> None:
    """What a device had is a closed form in its number; the copies of the embedding are two."""
    model = predicting()
    said = [parse_strategy_file(of_name(name)).strategy for name in (one, two)]
    found = Reshard(*(checkpoint(pa.derive(s, model), s, model) for s in said))
    check_alike(found, (model, model))
    formulas = volumes(found)
    axes = [made.axes[0] for made in (found.old, found.new)]
    for old, new, layers in ((3, 4, 13), (4, 3, 17), (3, 3, 12)):
        known = {"h": 8, "a": 4, "kv": 2, "f": 7, "V": 5, "L": layers}
        counted = totals(found, sizes({axes[0]: old}, known), sizes({axes[1]: new}, known))
        at = {axes[0] + OLD: old, axes[1]: new, **known}
        assert sum(had(formulas, {**at, RANK: rank}) for rank in range(min(old, new))) == counted.stays, (old, new)
        for name in ("read", "stored", "stays", "rank_reads"):
            formula = getattr(formulas, name)
            assert formula.value(**{n: v for n, v in at.items() if n in formula.inputs}) == {
                "rank_reads": counted.largest}.get(name, getattr(counted, name, None)), name


def had(formulas: Volumes, at: dict[str, int]) -> Fraction:
    """What the device of one rank had; the number of a rank may be 0, as no size of a formula may."""
    value = valued(formulas.rank_has.expr, {n: Fraction(v) for n, v in {**formulas.rank_has.values, **at}.items()})
    assert value is not None
    return value


def test_a_tied_embedding_lives_on_both_ends_of_a_pipeline() -> None:
    model = {"h": 8, "a": 4, "L": 4, "V": 8, "s": 8}
    for stages in (1, 2, 4):
        agree(("zero3", "zero3*pp", "gpt"), {"dp": 2}, {"dp": 2, "pp": stages}, model, "stored", "read")


SOME = 'base = "{}*recompute_full"\n[schedule]\nrecompute_layers = {{ first = 2 }}\n[shards]\npad = "rows"'


@pytest.mark.parametrize(("one", "two"), [
    (SOME.format("zero3"), "dp"), *(pytest.param(a, b, marks=pytest.mark.slow) for a, b in (
        ("dp", SOME.format("zero3")), (SOME.format("zero1*pp"), UNEVEN), (UNEVEN, SOME.format("zero1*pp"))))])
def test_layers_of_which_some_are_computed_again_are_told_as_one_kind(one: str, two: str) -> None:
    """They are stored as the others are: formulas speak of all layers, and a stage has those that follow each other."""
    found, formulas = kept(one, two, "mlp")
    assert "L_again" not in formulas.read.inputs and not [i for i in found.new.items if "again" in i.parameter]
    meshes = [{a: 2 + (a == "dp") for a in made.axes} for made in (found.old, found.new)]
    of_any(one, two, "mlp", (*meshes, {"h": 5, "f": 7, "L": 7, "V": 6}))


def test_layers_that_rest_otherwise_than_those_computed_again_are_refused() -> None:
    text = SOME.format("zero3") + '\n[groups.g]\nmatch = "again.*"\nparameters = { dp = "R" }\n'
    said = parse_strategy_file(text).strategy
    model = resolve_model("mlp")
    with pytest.raises(pa.InputError, match=r"rests otherwise in layers that are computed again"):
        checkpoint(pa.derive(said, model), said, model)
