"""Layouts of torchtitan's modules: those that it sets are read, whichever way they are written; any other is named."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from conftest import ROOT

import placealg as pa
from placealg.errors import InputError
from placealg.importers.read import read

MINIATURE = ROOT / "tests" / "importers" / "miniatures" / "titan_layouts" / "llama_sharding.py.txt"
HEAD = "import spmd_types as spmd\nfrom torchtitan.protocols.sharding import ShardingConfig, SpmdLayout\n\n"

W0, W1 = ("R", "R", 0), ("R", "R", 1)
"""A weight split along its outputs, and along its inputs, on dp, cp and tp."""


def llama(sequence: bool) -> dict[tuple[str, str], tuple[str | int, ...]]:
    """(module, field) -> the layout on dp, cp, tp of a Llama under tensor parallelism, as Megatron-LM has it."""
    norm, between = ("R", "R", "R" if sequence else "I"), (0, 0, 0 if sequence else "I")
    used, partial, split, attended = (0, 0, "R"), (0, 0, "P"), (0, 0, 1), (0, 0, 1)
    keys = (0, "R", 1)
    layer: dict[tuple[str, str], tuple[str | int, ...]] = {}
    for module in ("attention_norm", "ffn_norm"):
        layer |= {(module, "weight"): norm, (module, "in input"): between, (module, "out"): between}
    layer |= {("attention", "in x"): between, ("attention", "use x"): used}
    for module in ("wq", "wk", "wv"):
        layer |= {(f"attention.{module}", "weight"): W0, (f"attention.{module}", "out"): split}
    layer |= {("attention.inner_attention", f"in {name}"): attended for name in ("q", "k", "v")}
    layer |= {("attention.inner_attention", "use q"): attended, ("attention.inner_attention", "use k"): keys,
              ("attention.inner_attention", "use v"): keys, ("attention.inner_attention", "out"): attended}
    layer |= {("attention.wo", "weight"): W1, ("attention.wo", "out"): partial, ("attention.wo", "handed"): between}
    layer |= {("feed_forward", "in x"): between, ("feed_forward", "use x"): used}
    for module in ("w1", "w3"):
        layer |= {(f"feed_forward.{module}", "weight"): W0, (f"feed_forward.{module}", "out"): split}
    layer |= {("feed_forward.w2", "weight"): W1, ("feed_forward.w2", "out"): partial,
              ("feed_forward.w2", "handed"): between}
    whole = {("tok_embeddings", "weight"): W0, ("tok_embeddings", "out"): partial,
             ("tok_embeddings", "handed"): between,
             ("norm", "weight"): norm, ("norm", "in input"): between, ("norm", "out"): between,
             ("norm", "handed"): used, ("lm_head", "weight"): W0, ("lm_head", "in input"): used,
             ("lm_head", "out"): split}
    return {**whole, **{(f"layers.{module}", name): places for (module, name), places in layer.items()}}


def spelt(places: tuple[str | int, ...], rng: random.Random) -> str:
    """A layout in one of torchtitan's spellings: S(dim) on an axis, or V with a partition spec of all that split."""
    axes = ["'dp'", "'cp'", "'tp'"]
    split = [(axis, place) for axis, place in zip(axes, places, strict=True) if isinstance(place, int)]
    if len({place for _, place in split}) == len(split) and rng.random() < 0.5:
        words = [f"spmd.S({p})" if isinstance(p, int) else f"spmd.{p}" for p in places]
        spec = ""
    else:
        words = ["spmd.V" if isinstance(p, int) else f"spmd.{p}" for p in places]
        dims = ["(" + "".join(f"{axis}, " for axis, place in split if place == dim) + ")" for dim in (0, 1)]
        spec = f", partition_spec=({', '.join(d if d != '()' else 'None' for d in dims)})"
    pairs = [f"{axis}: {word}" for axis, word in zip(axes, words, strict=True)]
    rng.shuffle(pairs)
    name = "axis_types=" if rng.random() < 0.3 else ""
    return f"SpmdLayout({name}{{{', '.join(pairs)}}}{spec})"


FIELDS = {"in": "in_src_shardings", "use": "in_dst_shardings"}


def written(layouts: dict[tuple[str, str], tuple[str | int, ...]], rng: random.Random) -> str:
    """A file that sets the layouts, of modules in any order, in the function itself or in one that it calls."""
    modules: dict[str, dict[str, tuple[str | int, ...]]] = {}
    for (module, name), places in layouts.items():
        modules.setdefault(module, {})[name] = places
    lines: dict[bool, list[str]] = {True: [], False: []}
    for module in rng.sample(sorted(modules), len(modules)):
        tables: dict[str, list[str]] = {}
        for name, places in modules[module].items():
            part, _, inner = name.partition(" ")
            field = FIELDS.get(part, {"out": "out_src_shardings", "handed": "out_dst_shardings"}.get(
                part, "state_shardings"))
            text = spelt(places, rng)
            tables.setdefault(field, []).append(text if part in ("out", "handed") else f"'{inner or name}': {text}")
        words = [f"{field}={texts[0]}" if field.startswith("out") else f"{field}={{{', '.join(texts)}}}"
                 for field, texts in tables.items()]
        inside = module.startswith("layers.")
        target = f"layer.{module.removeprefix('layers.')}" if inside else f"config.{module}"
        lines[inside].append(f"{target}.sharding_config = ShardingConfig({', '.join(words)})")
    body = "".join(f"    {line}\n" for line in lines[False])
    if rng.random() < 0.5:
        helper = "def _of_layer(layer):\n" + "".join(f"    {line}\n" for line in lines[True]) + "\n"
        return HEAD + helper + f"def set_llama3_sharding(config):\n{body}    for layer in config.layers:\n" \
            "        _of_layer(layer)\n"
    return HEAD + f"def set_llama3_sharding(config):\n{body}    for layer in config.layers:\n" \
        + "".join(f"        {line}\n" for line in lines[True])


@pytest.mark.parametrize("seed", range(8))
def test_layouts_of_torchtitan_are_read_as_the_strategy(tmp_path: Path, seed: int) -> None:
    rng, file = random.Random(seed), tmp_path / "sharding.py"
    sequence = seed % 2 == 0
    file.write_text(written(llama(sequence), rng), encoding="utf-8")
    found = read(file, settings={}) if sequence else None
    if not sequence:
        text = file.read_text(encoding="utf-8").replace("(config):", "(config, *, enable_sp):")
        file.write_text(text, encoding="utf-8")
        found = read(file, settings={"enable_sp": "false"})
    assert found is not None
    assert found.expression == ("zero3*cp*tp_sp_keep" if sequence else "zero3*cp*tp")
    assert len([item for item in found.read if item.text == "as derived"]) >= len(llama(sequence))


QUOTED = [(("layers.attention.wo", "handed"), 2, "P"), (("layers.feed_forward.w2", "handed"), 2, "P"),
          (("tok_embeddings", "handed"), 2, "P"), (("layers.attention.inner_attention", "use k"), 1, 0),
          (("norm", "handed"), 2, 0), (("layers.attention_norm", "weight"), 2, "I"),
          (("layers.attention.wq", "weight"), 2, 1), (("lm_head", "weight"), 2, "R")]
"""A place that is another, first partial sums that nobody reduces."""


def another(seed: int) -> tuple[tuple[str, str], int, str | int]:
    rng = random.Random(seed)
    at = rng.choice(sorted(llama(True)))
    axis = rng.choice((0, 1, 2))
    old = llama(True)[at][axis]
    return at, axis, rng.choice([p for p in ("R", "I", "P", 0, 1) if p != old])


@pytest.mark.parametrize(("at", "axis", "place"), [*QUOTED, *map(another, range(6)), *(
    pytest.param(*another(seed), marks=pytest.mark.slow) for seed in range(6, 60))])
def test_any_other_layout_is_named(tmp_path: Path, at: tuple[str, str], axis: int, place: str | int) -> None:
    layouts = llama(True)
    layouts[at] = tuple(place if k == axis else p for k, p in enumerate(layouts[at]))
    file = tmp_path / "sharding.py"
    file.write_text(written(layouts, random.Random(axis)), encoding="utf-8")
    module = re.escape(at[0].replace("layers.", "layers.*."))
    with pytest.raises(InputError) as caught:
        read(file)
    told = str(caught.value)
    assert re.search(rf"sharding\.py:\d+: {module}: ", told) or re.search(r"and \d+ more", told), told
    assert f" on {('dp', 'cp', 'tp')[axis]}; " in told or "more" in told, told


LEFT_OUT = [at for at in llama(True) if at[1] in ("handed", "weight") or at[1].startswith("use ")]


@pytest.mark.parametrize("at", [
    at if at[1] != "weight" else pytest.param(at, marks=pytest.mark.slow) for at in LEFT_OUT])
def test_a_layout_that_is_left_out_is_missed(tmp_path: Path, at: tuple[str, str]) -> None:
    """Without what an output is handed on as, or an input used as, it stays as it is: partial sums among them.

    The queries of a core are used as they come.
    """
    layouts = llama(True)
    del layouts[at]
    file = tmp_path / "sharding.py"
    file.write_text(written(layouts, random.Random(3)), encoding="utf-8")
    if at == ("layers.attention.inner_attention", "use q"):
        assert read(file).expression == "zero3*cp*tp_sp_keep"
        return
    with pytest.raises(InputError, match=re.escape(at[0].removeprefix("layers.")) + "|" + {
            "norm": "lm_head", "attention": "attention_norm|wq", "feed_forward": "ffn_norm|w1"}.get(
            at[0].removeprefix("layers."), "more|no layout")):
        read(file)


def test_a_run_is_held_to_the_layouts_beside_it(tmp_path: Path) -> None:
    run, layouts = tmp_path / "config_registry.py", tmp_path / "sharding.py"
    run.write_text("from torchtitan.trainer import Trainer\nfrom . import model_registry\n\n"
                   "def llama3_8b() -> Trainer.Config:\n    return Trainer.Config(model_spec=model_registry('8B'),\n"
                   "        parallelism=ParallelismConfig(tensor_parallel_degree=4))\n", encoding="utf-8")
    good = MINIATURE.read_text(encoding="utf-8")
    layouts.write_text(good, encoding="utf-8")
    found = read(run, files=(str(layouts),))
    assert any(re.fullmatch(r"\d+ layouts of modules are as derived", item.text) for item in found.read)
    assert read(run, files=(str(layouts),), settings={"parallelism.enable_sequence_parallel": "false"}).expression \
        == "zero3*tp"
    layouts.write_text(good.replace("out_dst_shardings=between(enable_sp)", "out_dst_shardings=tokens(spmd.P)"),
                       encoding="utf-8")
    with pytest.raises(InputError, match="its output as handed on is P on tp"):
        read(run, files=(str(layouts),))


@pytest.mark.parametrize("sequence", [True, False])
def test_the_reading_is_proved(sequence: bool, tmp_path: Path) -> None:
    file = tmp_path / "sharding.py"
    file.write_text(MINIATURE.read_text(encoding="utf-8"), encoding="utf-8")
    found = read(file, settings={"enable_sp": str(sequence).lower()})
    assert str(pa.prove(found.strategy, "gpt").verdict) == "PROVED"


def variant(name: str) -> dict[tuple[str, str], tuple[str | int, ...]]:
    """Layouts that no named strategy has: modules whose weights are whole on tp, on gathered tokens."""
    layouts = llama(True)

    def whole(module: str, made: str | int) -> None:
        layouts[(module, "weight")] = ("R", "R", "R")
        layouts[(module, "out")] = (0, 0, made)

    if name == "mlp":
        for module in ("w1", "w3", "w2"):
            whole(f"layers.feed_forward.{module}", "R")
    else:
        whole("lm_head", "R")
    return layouts


@pytest.mark.parametrize(("name", "entries"), [
    ("mlp", ("mlp.each",)), ("logits", ("head.logits.each", "head.loss.each"))])
def test_layouts_that_no_named_strategy_has_are_dims(tmp_path: Path, name: str, entries: tuple[str, ...]) -> None:
    file = tmp_path / "sharding.py"
    file.write_text(written(variant(name), random.Random(1)), encoding="utf-8")
    found = read(file)
    assert set(entries) <= set(found.strategy.dims["tp"])


RUN = "from torchtitan.trainer import Trainer\nfrom . import model_registry\n\n" \
      "def deepseek_v3_671b() -> Trainer.Config:\n    return Trainer.Config(model_spec=model_registry('671B'),\n" \
      "        parallelism=ParallelismConfig(tensor_parallel_degree=4{more}))\n"


@pytest.mark.parametrize(("more", "entries"), [
    ("", ("attn.each", "router.each", "dispatch.each", "combine.none")),
    (", expert_parallel_degree=8, expert_tensor_parallel_degree=1", ("attn.each", "expert.expert")),
    (", spmd_backend='partial_dtensor'", ("attn.none", "router.each", "dispatch.each", "combine.none")),
])
def test_low_rank_products_and_routed_tokens_are_gathered(tmp_path: Path, more: str, entries: tuple[str, ...]) -> None:
    """Latent attention's low-rank products run whole on each rank, as spmd_types or DTensor sums their gradients."""
    run = tmp_path / "config_registry.py"
    run.write_text(RUN.format(more=more), encoding="utf-8")
    dims = read(run).strategy.dims["tp"]
    assert [entry for entry in dims if "." in entry and not entry.endswith((".heads", "loss.none"))] == list(entries)
