"""Command lines and shell scripts: what is followed, what stays open, and that nothing is ever run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import run_placealg
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placealg.errors import InputError
from placealg.importers.read import read, read_words, reading_of
from placealg.importers.reading import LISTS, Options
from placealg.importers.shell import OPEN, follow

MINIATURES = Path(__file__).parent / "miniatures" / "megatron"
ARGV = [
    "torchrun", "--nproc_per_node", "8", "--nnodes", "2", "pretrain_gpt.py", "--num-layers", "24",
    "--hidden-size", "1024", "--num-attention-heads", "16", "--tensor_model_parallel_size", "2",
    "--pipeline-model-parallel-size=2", "--micro-batch-size", "2", "--global-batch-size", "64", "--seq-length", "2048",
    "--vocab-size", "50257", "--fp16", "--use-distributed-optimizer"]


@pytest.mark.parametrize(("script", "variable", "value"), [
    ("A=1\nB=$A$A", "B", "11"),
    ("B=${A:-4}", "B", "4"),
    ("A=\nB=${A:-4}", "B", "4"),
    ("A=\nB=${A-4}", "B", ""),
    ("A=2\nB=${A:+yes}", "B", "yes"),
    ("B=$((2 * (3 + 1)))", "B", "8"),
    ("N=4\nB=$(( $N * 8 ))", "B", "32"),
    ("A=(x y)\nA+=(z)\nB=\"${A[@]}\"", "B", "x y z"),
    ("A=(x y)\nB=${#A[@]}", "B", "2"),
    ("A=a.b.c\nB=${A%%.*}", "B", "a"),
    ("A=a.b.c\nB=${A##*.}", "B", "c"),
    ("A=Xy\nB=${A,,}", "B", "xy"),
    ("if [ 3 -gt 2 ]; then B=1; else B=2; fi", "B", "1"),
    ("if [[ -z \"$U\" ]]; then B=1; fi", "B", "1"),
    ("if [[ a == b || c == c ]]; then B=1; else B=2; fi", "B", "1"),
    ("for i in 1 2 3; do B=$B_$i; B=$i; done", "B", "3"),
    ("case x8 in x*) B=1;; *) B=2;; esac", "B", "1"),
    ("f() { B=$1; }\nf 7", "B", "7"),
    ("B='a b' # c", "B", "a b"),
    ("B=a\\\nb", "B", "a"),
    ("# --a 1 \\\nB=2", "B", "2"),
    ("A=(x # y \\\nz)\nB=\"${A[@]}\"", "B", "x z"),
    ("[ 1 = 2 ] && B=1\n[ 1 = 1 ] && B=2", "B", "2"),
    ("B=$(echo 8)", "B", "8"),
    ("export B=3", "B", "3"),
    ("eval B=4", "B", "4"),
])
def test_what_can_be_told_is_followed(script: str, variable: str, value: str) -> None:
    assert follow(script, "s.sh", {}).variables[variable] == value


@pytest.mark.parametrize("script", [
    "B=$U", "B=$(nvidia-smi -L | wc -l)", "if [ $U -gt 1 ]; then B=1; else B=2; fi", "B=$((U * 2))",
    "while read x; do B=1; done", "B=`hostname`", "if [ -f f ]; then B=1; fi", "case $U in a) B=1;; esac",
])
def test_what_cannot_be_told_is_open(script: str) -> None:
    assert OPEN in str(follow(script, "s.sh", {}).variables["B"])


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "s.sh"
    script.write_text("touch ran\n$(touch ran)\n`touch ran`\neval touch ran\nbash -c 'touch ran'\n: > ran\n"
                      + (MINIATURES / "experts.sh").read_text(encoding="utf-8"))
    assert read(script).strategy.mesh.sizes()["dp"] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["s.sh"]


def test_a_command_line_is_read_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    got = run_placealg("import", "--", *ARGV)
    assert got.code == 0, got.err
    assert "zero1*tp*pp, dp = 4, tp = 2, pp = 2" in got.out
    assert "microbatches = 8" in got.out


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_flags_in_any_order_are_one_reading(order: random.Random) -> None:
    head, tail = ARGV[:6], ARGV[6:]
    groups, current = [], []
    for word in tail:
        if word.startswith("--"):
            current = [word]
            groups.append(current)
        else:
            current.append(word)
    order.shuffle(groups)
    words = [*head, *(w for group in groups for w in group)]
    assert read_words(words, Options()).strategy == read_words(ARGV, Options()).strategy


@pytest.mark.parametrize("at", [k for k, w in enumerate(ARGV) if w.startswith("--") and k > 5])
@pytest.mark.parametrize("what", ["dropped", "misspelt", "changed"])
def test_no_flag_is_passed_over(at: int, what: str) -> None:
    """Dropping, changing or misspelling one flag changes the reading or one of its lists, or is refused."""
    end = next((k for k in range(at + 1, len(ARGV)) if ARGV[k].startswith("--")), len(ARGV))
    flag, values = ARGV[at], ARGV[at + 1:end]
    if what == "misspelt":
        new = [flag.replace("--", "--q", 1), *values]
    elif what == "changed":
        new = [flag, *(str(int(v) + 1) if v.isdigit() else f"{v}x" for v in values)] if values else [f"{flag}=false"]
    else:
        new = []

    def told(words: list[str]) -> object:
        try:
            found = read_words(words, Options())
        except InputError as error:
            return str(error)
        return found.strategy, found.sizes, found.model, [
            [(i.key, i.value, i.text) for i in getattr(found, kind)] for kind in LISTS]

    assert told([*ARGV[:at], *new, *ARGV[end:]]) != told(ARGV)


def test_a_fraction_of_the_optimizer_state_on_the_host_is_a_share_of_the_layers() -> None:
    words = [*ARGV, "--optimizer-cpu-offload", "--optimizer-offload-fraction"]
    found = {part: read_words([*words, part], Options()).strategy for part in ("0.5", "1.0")}
    assert [str(strategy.share_away) for strategy in found.values()] == ["1/2", "0"]
    assert {strategy.tier("optimizer") for strategy in found.values()} == {"host"}


@pytest.mark.parametrize(("ratio", "share"), [("0.3", "3/10"), ("1.0", "0"), ("0.0", "")])
def test_a_ratio_of_offloaded_sub_groups_is_a_share_of_the_layers(ratio: str, share: str) -> None:
    text = ('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", '
            f'"ratio": {ratio}}}}}}}')
    if share:
        assert str(reading_of(text, "ds.json", Options()).strategy.share_away) == share
    else:
        with pytest.raises(InputError, match="no sub-group's optimizer state is on the host; leave offload_optimizer"):
            reading_of(text, "ds.json", Options())


@pytest.mark.parametrize(("flags", "said"), [
    ("--tensor-model-parallel-sze 2", "did you mean 'tensor-model-parallel-size'"),
    ("--use-dpp", "'use-dpp' is no known key"),
    ("--moe-expert-capacity-factor 1.0 --num-experts 8", "dropped"),
    ("--enable-zero-bubble", "another schedule"),
    ("--enable-zbh1-exact-semantics", "enable-zbh1-exact-semantics without enable-zbh1-pipeline"),
    ("--enable-zbh1-pipeline --num-layers-per-virtual-pipeline-stage 2", "with several chunks"),
    ("--cpu-offloading-num-layers 4 --pipeline-model-parallel-size 2", "which Megatron does not take"),
    ("--fine-grained-activation-offloading", "inputs of single modules rest on the host"),
    ("--optimizer-cpu-offload --optimizer-offload-fraction 1.5", "a fraction is above 0 and at most 1"),
    ("--recompute-granularity selective --recompute-modules moe_act", "of no region"),
    ("--pipeline-model-parallel-layout Ett|tttL|tt|ttL", "9 layers of 24"),
    ("--train-type longlora", "the base is frozen"),
    ("--global-batch-size 7", "is not a multiple"),
    ("--bf16", "both on"),
])
def test_what_no_strategy_says_is_refused(flags: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", "\\(")):
        read_words([*ARGV, *flags.split()], Options())


@pytest.mark.parametrize(("flags", "kept"), [("--enable-zbh1-pipeline", "approximated"), (
    "--enable-zbh1-pipeline --enable-zbh1-exact-semantics", "read")])
def test_the_zero_bubble_of_megatron_deepspeed(flags: str, kept: str) -> None:
    found = read_words([*ARGV, *flags.split()], Options())
    assert found.strategy.option("schedule", "pipeline") == "zb_h1"
    assert "enable-zbh1-pipeline" in [item.key.rpartition("--")[2] for item in getattr(found, kept)]


@pytest.mark.parametrize(("script", "said"), [
    ("if [ 1 ]; then\necho", "s.sh:1: expected 'fi'"),
    ("A='open\n", "s.sh:1: a quote ' is not closed"),
    ("A=(1 2\n", "a '(' is not closed"),
    ("#!/bin/bash\necho hello", "no launch of Megatron-LM is found"),
    ("#!/bin/bash\n" + "(" * 200 + "true" + ")" * 200, "nested too deeply"),
])
def test_a_broken_script_is_one_line(script: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        reading_of(script, "s.sh", Options(format="megatron"))
    assert said in str(caught.value)


def test_two_launches_are_told_apart() -> None:
    path = MINIATURES / "two_launches.sh"
    with pytest.raises(InputError, match="2 launches"):
        read(path)
    assert read(path, launch=2).strategy.mesh.sizes()["tp"] == 4


def test_a_variable_of_the_environment_is_supplied() -> None:
    path = MINIATURES / "open_degree.sh"
    with pytest.raises(InputError, match="TP, which nothing sets"):
        read(path)
    assert read(path, env={"TP": "2"}).strategy.mesh.sizes() == {"dp": 4, "tp": 2}


SCALED = ("pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
          "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 8 --vocab-size 128 --bf16 "
          "--tokenizer-type NullTokenizer {more}")


def scaled(more: str) -> tuple[dict[str, Any], list[str]]:
    """([optimizer] and the bytes that linears keep, what is approximated) of a command line with these flags."""
    found = read_words(["torchrun", "--nproc_per_node", "8", *SCALED.format(more=more).split()], Options())
    said, types = found.strategy.tables.get("optimizer", {}), found.strategy.tables["types"]
    chosen = {key: said[key] for key in ("fp8_scales", "fp8_history") if key in said}
    return {**chosen, **({"act_linear": types["act_linear"]} if "act_linear" in types else {})}, [
        item.text for item in found.approximated]


@pytest.mark.parametrize(("more", "wanted", "told"), [
    ("--fp8-format hybrid", {"fp8_scales": ("attn.*", "mlp.*"), "fp8_history": 1, "act_linear": "1"}, "are left out"),
    ("--fp8-format e4m3 --fp8-recipe delayed --fp8-amax-history-len 1024 --fp8-amax-compute-algo max",
     {"fp8_scales": ("attn.*", "mlp.*"), "fp8_history": 1024, "act_linear": "1"}, "the scales of weights"),
    ("--fp8-hybrid --no-fp8-wgrad", {"fp8_scales": ("attn.*", "mlp.*"), "fp8_history": 1}, "the scales of weights"),
    ("--fp8-format hybrid --num-experts 4 --moe-router-topk 2 --swiglu --disable-bias-linear --normalization RMSNorm "
     "--position-embedding-type rope --untie-embeddings-and-output-weights",
     {"fp8_scales": ("attn.*", "expert.*"), "fp8_history": 1, "act_linear": "1"}, "the scales of weights"),
    ("--fp8-format hybrid --fp8-recipe tensorwise", {}, "which tensorwise makes of what a tensor holds now"),
    ("--fp8-format e4m3 --fp8-recipe mxfp8", {}, "which mxfp8 makes of"),
    ("--fp8-format hybrid --tp-only-amax-red", {}, "ranks of data have scales of their own"),
    ("--fp4-format e2m1", {}, "costed at act"),
    ("", {}, "")])
def test_delayed_scales_of_megatron_are_those_of_the_language(more: str, wanted: dict[str, Any], told: str) -> None:
    chosen, approximated = scaled(more)
    assert {k: tuple(v) if isinstance(v, (list, tuple)) else v for k, v in chosen.items()} == wanted
    assert any(told in text for text in approximated) if told else not approximated


def test_an_unknown_recipe_of_scales_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="fp8-recipe is 'delay'; did you mean 'delayed'"):
        scaled("--fp8-format hybrid --fp8-recipe delay")


@settings(max_examples=15, deadline=None)
@given(st.text("ab \"'$(`#", max_size=6))
@example("PP=2")
def test_a_comment_ends_at_its_line(words: str) -> None:
    """A comment that ends in a backslash among assignments: the line below it counts."""
    script = f"# {words} \\\nTP=2\n{' '.join(ARGV)} --tensor-model-parallel-size $TP"
    assert reading_of(script, "s.sh", Options()).strategy.mesh == read_words(ARGV, Options()).strategy.mesh


def test_a_flag_that_a_comment_cuts_off_is_refused() -> None:
    """Bash takes it for the name of a command, so that the launch lacks it."""
    with pytest.raises(InputError, match="--tensor-model-parallel-size begins a command here"):
        reading_of(f"{' '.join(ARGV)} \\\n# tp \\\n--tensor-model-parallel-size 4\n", "s.sh", Options())


QUOTES = ["B=\"$(conda 'shell.bash' \"hook\" 2> /dev/null)\"", "B=\"$('/a b/c' x)\"", "B=\"$(f \"$(g 'h')\")\"",
          "B=\"x $(f \\\"y\\\" ')') z\"", "eval \"$('/a/conda' 'hook' 2> /dev/null)\""]


@pytest.mark.parametrize("inner", QUOTES)
def test_quotes_inside_quotes_of_a_command_are_read_on(inner: str) -> None:
    """What a command in quotes makes is open, and the script goes on behind it."""
    script = follow(f"{inner}\nC=after\n", "s.sh", {})
    assert script.variables["C"] == "after" and OPEN in str(script.variables.get("B", OPEN))


@given(st.recursive(st.sampled_from(["x", "'y z'", '"w"', "$V", "')'"]), lambda inner: st.lists(inner, max_size=3).map(
    lambda parts: f'"$(f {" ".join(parts)})"'), max_leaves=8))
@example("\"$('/admin/conda' 'shell.bash' 'hook' 2> /dev/null)\"")
@settings(max_examples=60, deadline=None)
def test_drawn_quotes_inside_quotes_are_read_on(word: str) -> None:
    assert follow(f"B={word}\nC=after\n", "s.sh", {}).variables["C"] == "after"


SIZES = "--tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
DISTRACTING = "OTHER='--tensor-model-parallel-size 8 --num-layers 96 --hidden-size 128 --micro-batch-size 4'\n"


@pytest.mark.parametrize("seed", range(12))
def test_a_variable_that_comes_out_empty_is_said_by_name(seed: int) -> None:
    """No other variable's value stands in its place: it is unsaid by name, or the refusal names it."""
    draw = random.Random(seed)
    name = "".join(draw.choice("ABCDEFGKLMNPQ") for _ in range(5))
    empty = draw.choice([f"{name}=\n", f"{name}=''\n", f'{name}="  "\n', ""])
    beside = draw.choice([f" {SIZES}", ""])
    word = draw.choice([f"${name}", f"${{{name}}}"])
    script = draw.choice(["pretrain_gpt.py ", ""]) if not beside else "pretrain_gpt.py "
    text = f"#!/bin/bash\n{DISTRACTING}{empty}torchrun --nproc_per_node 8 {script}{word}{beside}\n"
    try:
        reading = reading_of(text, "s.sh", Options())
    except InputError as error:
        assert not beside and f"${name}" in str(error) and f"--env {name}=VALUE" in str(error)
        return
    assert beside and reading.strategy.mesh.sizes()["tp"] == 2
    assert any(item.key == f"${name}" for item in reading.unsaid)


def test_bloom_divides_its_layers_as_deepspeed_does() -> None:
    """The embedding and the logits count as a layer each: 70 layers on 12 stages are 5, ten times 6, and 5."""
    flags = SIZES.replace("--num-layers 4", "--num-layers 70") + " --pipeline-model-parallel-size 12 --deepspeed " \
        "--zero-stage 0 --pp-partition-method type:transformer|embedding --pad-vocab-size-to 250880"
    reading = read_words(["pretrain_gpt.py", *flags.split()], Options())
    assert reading.strategy.option("schedule", "stages") == (5, *[6] * 10, 5)
    uneven = read_words(["pretrain_gpt.py", *flags.replace(" 70 ", " 68 ").split()], Options())
    assert any(item.key == "pp-partition-method" for item in uneven.approximated)
