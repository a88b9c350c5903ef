"""The catalogue, expressions, composition, and the text of strategies."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.placement import Mode, StatePlacement
from placealg.prover import verdict
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import EXPECT, Expect, parse_strategy_file, read_strategy_file
from placealg.strategy.options import DEFAULTS, SCHEMA
from placealg.strategy.spec import GroupRule, Strategy, strategy_on
from placealg.strategy.toml_lines import parse_toml
from placealg.strategy.validation import check
from placealg.strategy.vocabulary import LOSSES, OPTIMIZERS
from placealg.strategy.write import write_strategy

NAMES = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "tp", "tp_sp", "tp_sp_keep",
         "cp", "cp_ulysses", "cp_ring", "pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2",
         "pp_interleaved_zb", "pp_zb_v", "pp_dualpipe_v", "ep",
         "offload_optimizer",
         "offload_parameters", "offload_activations", "recompute_full", "recompute_selective")


def said(strategy: Strategy) -> Strategy:
    """Everything but the name."""
    return dataclasses.replace(strategy, name="")


# the catalogue

def test_catalogue_names_and_kinds() -> None:
    assert tuple(cat.catalogue()) == NAMES
    assert cat.entry("fsdp") is cat.catalogue()["zero3"]
    for entry in cat.catalogue().values():
        assert entry.kind in cat.KINDS
        assert entry.title
        assert entry.source
        assert bool(entry.axes) == (entry.kind == "axis")


@pytest.mark.parametrize("name", cat.names())
def test_every_entry_is_a_strategy_and_its_name_recreates_it(name: str) -> None:
    strategy = cat.standalone(cat.instantiate(name))
    check(strategy)
    assert parse_strategy(strategy.name) == strategy
    assert said(parse_strategy_file(write_strategy(strategy)).strategy) == said(strategy)


def modes(strategy: Strategy, axis: str) -> str:
    return " ".join(strategy.state(s).text(axis) for s in ("parameters", "optimizer", "gradients"))


def test_placements_of_the_family() -> None:
    assert [modes(cat.instantiate(n), "dp") for n in NAMES[:5]] == ["R R R", "R S R", "R S S", "S* S S", "S* S S"]
    assert [cat.instantiate(n).lifetime("dp") for n in ("zero3", "fsdp_no_reshard")] == ["use", "microbatch"]
    hybrid = cat.hsdp()
    assert (modes(hybrid, "dp_replicate"), modes(hybrid, "dp_shard")) == ("R R R", "S* S S")
    assert hybrid.data_axes == ("dp_replicate", "dp_shard")
    assert modes(cat.zero3() * cat.offload_optimizer(), "dp") == "S* S+O S"


def test_hsdp_is_dp_times_zero3_and_not_the_other_way_round() -> None:
    assert said(cat.hsdp()) == said(cat.dp("dp_replicate") * cat.zero3("dp_shard"))
    assert said(cat.hsdp()) != said(cat.zero3("dp_replicate") * cat.dp("dp_shard"))
    assert said(cat.hsdp()) != said(cat.dp("dp_replicate") * cat.zero2("dp_shard"))


def test_python_face() -> None:
    assert cat.zero3("dp") == cat.zero3()
    assert cat.zero3(dp=8).mesh.sizes() == {"dp": 8}
    assert cat.zero3("fsdp").dims == {"fsdp": ("batch",)}
    assert cat.fsdp_no_reshard("f1").lifetime("f1") == "microbatch"
    assert cat.hsdp(dp_replicate=2, dp_shard=4).name == "hsdp[dp_replicate=2,dp_shard=4]"
    assert cat.hsdp("outer", "inner").state("parameters").mode("inner") is Mode.GATHERED
    assert cat.zero3(Axis("x", 3)).mesh == Mesh((Axis("x", 3),))


@pytest.mark.parametrize(("text", "name", "axes"), [
    ("zero3", "zero3", "(dp,)"),
    (" zero3 * dp[ 8 ]", None, None),
    ("zero3[fsdp]*dp[8]", "zero3[fsdp]*dp[8]", "(fsdp, dp=8)"),
    ("zero3[fsdp=4]", "zero3[fsdp=4]", "(fsdp=4,)"),
    ("zero3[dp=4]", "zero3[4]", "(dp=4,)"),
    ("hsdp[dp_replicate=2,dp_shard=4]", "hsdp[dp_replicate=2,dp_shard=4]", "(dp_replicate=2, dp_shard=4)"),
    ("hsdp[2, 4]", "hsdp[dp_replicate=2,dp_shard=4]", "(dp_replicate=2, dp_shard=4)"),
    ("hsdp[dp_shard=4]", "hsdp[dp_shard=4]", "(dp_replicate, dp_shard=4)"),
    ("hsdp[dp_shard=4,dp_replicate]", "hsdp[dp_shard=4]", "(dp_replicate, dp_shard=4)"),
    ("hsdp[outer=2,inner]", "hsdp[outer=2,inner]", "(outer=2, inner)"),
    ("offload_optimizer", "dp*offload_optimizer", "(dp,)"),
    ("zero3*offload_optimizer", "zero3*offload_optimizer", "(dp,)"),
    ("tp_sp[8]", "tp_sp[8]", "(tp=8,)"),
    ("zero3*tp_sp[inner=2]*recompute_selective", "zero3*tp_sp[inner=2]*recompute_selective", "(dp, inner=2)"),
    ("recompute_full", "dp*recompute_full", "(dp,)"),
])
def test_expressions(text: str, name: str | None, axes: str | None) -> None:
    if name is None:
        with pytest.raises(InputError, match="axis 'dp'"):
            parse_strategy(text)
        return
    strategy = parse_strategy(text)
    assert (strategy.name, repr(strategy.mesh.axes)) == (name, axes)
    assert parse_strategy(name) == strategy


@pytest.mark.parametrize(("text", "message"), [
    ("zero33*dp", "column 1: unknown strategy 'zero33'; did you mean 'zero3'?"),
    ("zero3*zreo1[x]", "column 7: unknown strategy 'zreo1'; did you mean 'zero1'?"),
    ("dp*dp", "column 4: cannot compose dp with dp: both use axis 'dp'"),
    ("zero3[0]", "column 7: '0' is not a size"),
    ("zero3[dp=x]", "column 7: 'x' is not a size"),
    ("zero3[w]", "column 7: axis name 'w' is taken"),
    ("zero3[]", "column 7: '' is not an axis"),
    ("zero3[8", "column 8: missing ']'"),
    ("dp*zero3[x", "column 11: missing ']'"),
    ("dp*offload_optimizer*offload_optimizer", "column 22: cannot compose dp*offload_optimizer with "),
    ("zero3[layer]", "column 7: axis name 'layer' is taken: it means the loop over layers"),
    ("zero3[x,y]", "column 1: zero3 takes the axis dp; got 2"),
    ("hsdp[x]", "hsdp has 2 axes: rename all of them, or none"),
    ("hsdp[dp_shard,dp_shard]", "names axis 'dp_shard' twice"),
    ("hsdp[x,x]", "axis 'x' is used twice"),
    ("offload_optimizer*dp", "column 1: modifier offload_optimizer applies to what stands to its left"),
    ("offload_optimizer[dp]", "takes no axis"),
    ("tp*recompute_full*recompute_full", "column 19: cannot compose tp*recompute_full with recompute_full: "),
    ("recompute_selective*tp", "column 1: modifier recompute_selective applies to what stands to its left"),
    ("tp*tp_sp", "column 4: cannot compose tp with tp_sp: both use axis 'tp'; "),
    ("zero3 dp", "column 7: unexpected 'd'"),
    ("zero3*", "column 7: expected the name of a strategy"),
    ("", "column 1: expected the name of a strategy"),
])
def test_expression_errors(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_strategy(text)
    assert message in str(caught.value)


# composition

AXES = ("dp", "fsdp", "outer", "inner")
FACTORS = st.sampled_from([n for n in cat.names() if len(cat.entry(n).axes) < 2])


@st.composite
def products(draw: st.DrawFn) -> list[Strategy]:
    axes = draw(st.permutations(AXES))
    parts = []
    for axis in axes[:3]:
        name = draw(FACTORS)
        part = cat.instantiate(name) if cat.entry(name).kind == "modifier" else cat.instantiate(name, axis)
        tables = draw(st.sampled_from(({}, {"schedule": {"prefetch": 1}}, {"schedule": {"microbatches": 2}},
                                       {"optimizer": {"tier": "device"}}, {"loss": {"preset": "token_mean"}},
                                       {"schedule": {"replay": "early_stop"}},
                                       {"states": {"activations": {"region:core": "R"}}})))
        other = strategy_on("", {}, **tables)
        parts.append(dataclasses.replace(part, tables=part.tables.plus(other.tables),
                                         states=part.states if part.states else other.states))
    return parts


def composed(*parts: Strategy | None) -> Strategy | None:
    """The product, None where it is undefined."""
    product = parts[0]
    for part in parts[1:]:
        try:
            product = product * part if product and part else None
        except InputError:
            return None
    return product


@given(products())
def test_composition_is_associative(parts: list[Strategy]) -> None:
    a, b, c = parts
    left, right = composed(composed(a, b), c), composed(a, composed(b, c))
    assert left == right
    assert left is None or left.modifiers == right.modifiers  # type: ignore[union-attr]


def test_composition_keeps_factor_order_as_mesh_order() -> None:
    one, two = cat.zero1("outer"), cat.zero3("inner")
    assert (one * two).mesh.names == ("outer", "inner") != (two * one).mesh.names
    assert (one * two).states == (two * one).states


def test_composition_names_the_rule_that_failed() -> None:
    with pytest.raises(InputError, match=r"cannot compose a with b: \[schedule\] prefetch is 1 on one side and 2"):
        (strategy_on("a", {"x": None}, schedule={"prefetch": 1})
         * strategy_on("b", {"y": None}, schedule={"prefetch": 2}))
    rule = {"norms": {"match": "*norm*"}}
    with pytest.raises(InputError, match=r"\[states\] activations on region:core is R on one side and M on the other"):
        strategy_on("a", {"x": None}, states={"activations": {"region:core": "R"}}) * cat.recompute_selective()
    with pytest.raises(InputError, match=r"both have a \[groups.norms\]"):
        strategy_on("a", {"x": None}, groups=rule) * strategy_on("b", {"y": None}, groups=rule)


# files

FULL = """\
name   = "everything"
source = "a test"
model  = "abstract"
expect = { verdict = "refuted", obligation = "gradient", ratio = "(outer - 1)/inner", class = "bounded" }

[mesh]
outer = 2
inner = "symbolic"
[dims]
outer = ["batch"]
inner = ["batch"]
[states]
parameters = { inner = "S*" }
optimizer  = { inner = "S+O" }
gradients  = { inner = "S" }
activations = { "region:core" = "M", outer = "S" }
[groups.norms]
match     = "*norm*"
parameters = { inner = "R" }
optimizer = { name = "adamw", inner = "S" }
types     = { o = 16 }
[groups."a.b"]
match = "embedding*"
optimizer = "sgd"
[schedule]
microbatches = 4
lifetime = { inner = "step" }
prefetch = 1
replay = "by_dependency"
sharing = "per_use"
[optimizer]
name = "muon"
clip = "none"
[loss]
preset = "token_mean"
assume = ["equal_counts"]
count_axes = ["outer", "microbatch"]
[types]
g = 4
wire = "1/2"
act = 2.5
[random]
dropout = ["rank(inner)"]
"""


def test_a_file_with_everything() -> None:
    file = parse_strategy_file(FULL)
    strategy = file.strategy
    assert strategy.mesh.axes == (Axis("outer", 2), Axis("inner"))
    assert strategy.state("optimizer").text("inner") == "S+O"
    assert strategy.option("types", "wire") == "1/2"
    assert strategy.option("types", "act") == "5/2"
    assert strategy.lifetime("inner") == "step"
    assert strategy.recomputed == ("core",)
    assert (strategy.option("schedule", "replay"), strategy.option("schedule", "sharing")) == (
        "by_dependency", "per_use")
    assert strategy.loss()["count_axes"] == ("outer", "microbatch")
    assert strategy.optimizer()[1] == "matrix"
    assert strategy.groups[0] == GroupRule(
        "norms", "*norm*", FrozenMap({"parameters": StatePlacement.parse({"inner": "R"}),
                                      "optimizer": StatePlacement.parse({"inner": "S"})}),
        FrozenMap({"o": "16"}), "adamw")
    assert strategy.groups[1] == GroupRule("a.b", "embedding*", optimizer="sgd")
    assert file.expect == Expect("refuted", "gradient", "(outer - 1)/inner", "", "BOUNDED")
    assert (file.source, file.model, file.base) == ("a test", "abstract", "")
    assert parse_strategy_file(write_strategy(strategy)).strategy == strategy


def test_tables_beside_base_replace_keys() -> None:
    file = parse_strategy_file("""
        base = "fsdp_no_reshard*offload_optimizer"
        expect = "proved"
        mesh.dp = 8
        [states]
        gradients = { dp = "R" }
        [optimizer]
        name = "muon"
        [loss]
        assume = []
    """, "dir/mine.toml")
    strategy = file.strategy
    assert (strategy.name, strategy.mesh.axes) == ("mine", (Axis("dp", 8),))
    assert modes(strategy, "dp") == "S* S+O R"
    assert strategy.tables["optimizer"] == {"tier": "host", "name": "muon"}
    assert strategy.lifetime("dp") == "microbatch"
    assert (strategy.loss()["assume"], LOSSES["mean_of_means"]["assume"]) == ((), ("equal_counts",))
    assert file.expect == Expect("proved")


def test_a_base_alone_is_that_strategy() -> None:
    assert parse_strategy_file('base = "hsdp"').strategy == cat.hsdp()


def test_a_base_takes_a_new_axis_with_its_dims() -> None:
    strategy = parse_strategy_file('base = "zero3"\n[mesh]\nouter = 2\n[dims]\nouter = ["batch"]').strategy
    assert strategy.mesh.axes == (Axis("dp"), Axis("outer", 2))


def test_expected_obligations_are_the_verdict_tables() -> None:
    assert EXPECT["obligation"].schema["enum"] == [*verdict.OBLIGATIONS, *verdict.ASKED_FOR]
    assert EXPECT["class"].schema["enum"][:3] == [verdict.PARAMETRIC, verdict.CUTOFF, verdict.BOUNDED]


def test_schema_holds_every_default() -> None:
    for table, defaults in DEFAULTS.items():
        assert set(defaults) <= set(SCHEMA[table])


def test_lines_of_keys(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = ('# c\nname = "x # [no]"\r\n"q k" . b = \'a\'\nm = """\n[fake]\n\\"""\n"""  # after\n[mesh]\n  dp = 8\n'
            "[ groups . \"a.b\" ]\nmatch = '''x\n]]'''\ntypes = { w = 2, o = [1,\n 2, # c ]\n { z = 3 } ] }\n"
            "[[edit]]\ndrop = 'a'\n[[edit]]\ninsert = { verb = \"x\" }\n[edit.sub]\nk = 1\n")
    lines = parse_toml(text, "f")[1].lines
    assert [lines[path] for path in (("name",), ("q k", "b"), ("m",), ("mesh", "dp"), ("groups", "a.b"),
                                     ("groups", "a.b", "types", "o", 1), ("groups", "a.b", "types", "o", 2, "z"),
                                     ("edit", 0, "drop"), ("edit", 1), ("edit", 1, "insert", "verb"),
                                     ("edit", 1, "sub", "k"))] == [2, 3, 4, 9, 10, 14, 15, 17, 18, 19, 21]
    assert ("fake",) not in lines
    path = tmp_path / "s.toml"
    path.write_text('base = "zero3"\n[mesh]\ndp = 0\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_strategy_file(path)
    assert str(caught.value).startswith(f"{path}:3: [mesh] dp is 0")


# the round trip

_MODES = {"parameters": ("R", "S*"), "optimizer": ("R", "S", "O", "S+O"), "gradients": ("R", "S")}


@st.composite
def written(draw: st.DrawFn) -> Strategy:
    axes = draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))

    def placements() -> dict[str, dict[str, str]]:
        tables = {}
        for state, valid in _MODES.items():
            tier = draw(st.booleans()) if state == "optimizer" else None
            choices = [v for v in valid if tier is None or ("O" in v) == tier]
            tables[state] = draw(st.dictionaries(st.sampled_from(axes), st.sampled_from(choices), max_size=3))
        return {s: t for s, t in tables.items() if draw(st.booleans())}

    dims = {a: draw(st.sampled_from(([], ["batch"], ["loss.none", "heads", "ffn", "seq"], ["core.heads", "seq"])))
            for a in axes}
    states = placements()
    if draw(st.booleans()):
        valid = {a: ["R"] if not entries else ["S"] if entries == ["batch"] else ["R", "S*"]
                 for a, entries in dims.items()}
        states["activations"] = {a: draw(st.sampled_from(modes)) for a, modes in valid.items() if draw(st.booleans())}
        states["activations"] |= draw(st.dictionaries(st.sampled_from(("region:core", "region:mlp")),
                                                      st.sampled_from(("M", "R"))))
    gathered = [a for a, mode in states.get("parameters", {}).items() if mode == "S*"]
    tables = {
        "schedule": {"microbatches": draw(st.sampled_from(("m", 1, 7))), "prefetch": draw(st.integers(0, 3)),
                     "replay": draw(st.sampled_from(("whole", "by_dependency", "early_stop"))),
                     "sharing": draw(st.sampled_from(("shared", "per_use"))),
                     "lifetime": {a: draw(st.sampled_from(("use", "microbatch", "step"))) for a in gathered}},
        "optimizer": {"name": draw(st.sampled_from(tuple(OPTIMIZERS))),
                      "tier": draw(st.sampled_from(("device", "host"))), "locality": "matrix", "clip": "none"},
        "loss": {"preset": "token_mean", "assume": draw(st.sampled_from(([], ["equal_counts"]))),
                 "count_axes": draw(st.sampled_from(("data", axes, []))), "reference": "microbatch_mean",
                 "divisor": "count"},
        "types": {"g": draw(st.sampled_from((4, "3/2", 2.5))), "o": 12},
        "random": {"dropout": [f"rank({axes[0]})", "local(seq)"]},
    }
    chosen = {t: {k: v for k, v in keys.items() if draw(st.booleans())}
              for t, keys in tables.items() if draw(st.booleans())}
    text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9).filter(str.strip)
    groups = {draw(text): {"match": draw(text), **placements(), "types": {"w": 4}}
              for _ in range(draw(st.integers(0, 2)))}
    for group in groups.values():
        if draw(st.booleans()):
            name = draw(st.sampled_from(tuple(OPTIMIZERS)))
            group["optimizer"] = {"name": name, **group["optimizer"]} if "optimizer" in group else name
    name = draw(text.filter(str.isprintable))
    return strategy_on(name, {a: draw(st.sampled_from((None, 1, 8))) for a in axes}, dims=dims, states=states,
                       groups=groups, **chosen)


@settings(max_examples=150, deadline=None)
@given(written())
def test_a_written_strategy_reads_back_equal(strategy: Strategy) -> None:
    assert parse_strategy_file(write_strategy(strategy)).strategy == strategy


def test_the_round_trip_would_see_a_lost_table() -> None:
    strategy = parse_strategy_file(FULL).strategy
    text = write_strategy(strategy)
    for line in ('prefetch = 1', 'sharing = "per_use"', 'activations = { "region:core" = "M", outer = "S" }',
                 'g = 4', 'optimizer = "sgd"', 'clip = "none"', 'dropout = ["rank(inner)"]'):
        assert f"\n{line}\n" in text
        assert parse_strategy_file(text.replace(f"\n{line}\n", "\n")).strategy != strategy


@pytest.mark.parametrize("word", ["m", "gas", "accumulation_steps"])
def test_a_key_that_is_called_otherwise_elsewhere_is_led_to_its_own(word: str) -> None:
    with pytest.raises(InputError, match=rf"unknown key '{word}' in \[schedule\]; did you mean 'microbatches'\?"):
        parse_strategy_file(f'base = "zero3"\n[schedule]\n{word} = 4\n')
