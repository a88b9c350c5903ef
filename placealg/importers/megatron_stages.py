"""Megatron's pipelines: virtual stages, uneven splits, and layouts by letters."""

from __future__ import annotations

import re

from placealg.importers.draft import Draft
from placealg.importers.key_log import Said

UNEVEN = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split",
          "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout")
ALONE = "standalone-embedding-stage"
ZERO_BUBBLE = ("enable-zbh1-pipeline", "enable-zbh1-exact-semantics")
"""The flags of Megatron-DeepSpeed for ZB-H1, and for backwards that are all split, as in the paper."""

PARTITION = "pp-partition-method"
"""How DeepSpeed's pipeline divides layers among stages (Megatron-DeepSpeed)."""

VIRTUAL = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")


def read_pipeline(draft: Draft, said: Said, pp: int) -> int | None:
    """Put the pipeline in; the answer is the number of layers, None where the flags do not say it."""
    layers = said.number("num-layers")
    if pp == 1:
        for key in ("pipeline-model-parallel-size", *VIRTUAL, *UNEVEN, *ZERO_BUBBLE, ALONE, PARTITION):
            said.leave(key, "no pipeline")
        return layers
    layout = _layout(said, pp, layers)
    chunks = layout[1] if layout else _chunks(said, pp, layers)
    name = _zero_bubble(said, chunks) or ("pp" if chunks == 1 else "pp_interleaved")
    draft.parts.axis(name, pp)
    if chunks > 1:
        draft.parts.say("schedule", "chunks", chunks)
    said.read("pipeline-model-parallel-size", f"{name} over {pp} ranks")
    stages = layout[0] if layout else _stages(said, pp, chunks, layers)
    if stages and len(set(stages)) > 1:
        draft.parts.say("schedule", "stages", stages)
    if said.flag(ALONE):
        if stages:
            raise said.refuse(ALONE, f"{ALONE} beside another flag that says the layers of stages")
        draft.parts.say("schedule", "alone", ["first"])
        said.read(ALONE, "[schedule] alone = ['first']")
    for key in (*VIRTUAL, *UNEVEN, *ZERO_BUBBLE, ALONE):
        said.leave(key, "off")
    return layers


def _zero_bubble(said: Said, chunks: int) -> str:
    """The pipeline of Megatron-DeepSpeed's ZB-H1; "" where it is off."""
    on, exact = map(said.flag, ZERO_BUBBLE)
    if exact and not on:
        raise said.refuse(ZERO_BUBBLE[1], f"{ZERO_BUBBLE[1]} without {ZERO_BUBBLE[0]}, which it needs")
    if on and chunks > 1:
        raise said.refuse(ZERO_BUBBLE[0], f"{ZERO_BUBBLE[0]} with several chunks on a rank")
    if exact:
        said.read(ZERO_BUBBLE[1], "every backward is split")
    if on and not exact:
        said.approximated(ZERO_BUBBLE[0], "pp_zb_h1: a backward is split only where a stage would wait, and every one "
                                          "is here; the order in which gradients are added is another")
    elif on:
        said.read(ZERO_BUBBLE[0], "pp_zb_h1")
    return "pp_zb_h1" if on else ""


def _chunks(said: Said, pp: int, layers: int | None) -> int:
    """The chunks of each rank."""
    by_layers, by_count = VIRTUAL
    each = said.number(by_layers)
    if each:
        if layers is None:
            raise said.refuse(by_layers, f"{by_layers} {each} of a number of layers that is not said")
        extra = said.flag(UNEVEN[0]) + said.flag(UNEVEN[1])
        if (layers + extra) % (pp * each):
            raise said.refuse(by_layers, f"{layers} layers are not a multiple of {pp} ranks x {each} layers")
        chunks = (layers + extra) // pp // each
        said.read(by_layers, f"[schedule] chunks = {chunks}: {layers} layers / {pp} ranks / {each}")
        return chunks
    count = said.number(by_count)
    if count and count > 1:
        said.read(by_count, f"[schedule] chunks = {count}")
        return count
    return 1


def _stages(said: Said, pp: int, chunks: int, layers: int | None) -> list[int]:
    """The layers of each stage where they are not even; [] where they are, or are not known."""
    first, last = said.number(UNEVEN[2]), said.number(UNEVEN[3])
    less = [said.flag(UNEVEN[0]), said.flag(UNEVEN[1])]
    if said.has(PARTITION):
        less = _partition(said, pp, layers, less)
    if not any((first, last, *less)):
        return []
    key = next((k for k in UNEVEN if said.has(k)), PARTITION)
    if layers is None:
        raise said.refuse(key, f"{key} of a number of layers that is not said")
    count = pp * chunks
    if any(less):
        each, rest = divmod(layers + sum(less), count)
        stages = [each] * count
        stages[0] -= less[0]
        stages[-1] -= less[1]
    else:
        stages, rest = _ends(pp, chunks, layers, first, last)
    if rest or min(stages) < 0 or 0 in stages[1:-1]:
        raise said.refuse(key, f"{layers} layers do not make {count} stages so")
    for name in (*UNEVEN[:4], PARTITION):
        if said.has(name):
            said.read(name, f"[schedule] stages = {stages}")
    return stages


def _partition(said: Said, pp: int, layers: int | None, less: list[bool]) -> list[bool]:
    """Whether the ends count as layers by DeepSpeed's partition; one that is not even is approximated."""
    method = str(said.raw(PARTITION)).strip("'\"").lower()
    ends = method == "type:transformer|embedding"
    if (ends or method == "type:transformer") and layers is not None and (layers + 2 * ends) % pp == 0:
        said.read(PARTITION, "the embedding and the logits count as a layer each" if ends else "layers alone count")
        return [ends, ends]
    said.approximated(PARTITION, "stages of as many layers each, where DeepSpeed balances what it counts")
    return less


def _ends(pp: int, chunks: int, layers: int, first: int | None, last: int | None) -> tuple[list[int], int]:
    """(stages, what is left over) where the layers of the first and the last rank are given, over all their chunks."""
    middle = layers - (first or 0) - (last or 0)
    ranks = pp - (first is not None) - (last is not None)
    each, rest = divmod(middle, ranks * chunks) if ranks else (0, middle)
    per_rank = [each] * pp
    if first is not None:
        rest += first % chunks
        per_rank[0] = first // chunks
    if last is not None:
        rest += last % chunks
        per_rank[-1] = last // chunks
    return per_rank * chunks, rest


_LONGEST = 10_000
"""Letters of a layout beyond which the rest is not read: no pipeline has so many layers."""


def _layout(said: Said, pp: int, layers: int | None) -> tuple[list[int], int] | None:
    """(layers of each stage, chunks) of a layout by letters: E embedding, t a layer, m one that predicts, L loss, |."""
    key = "pipeline-model-parallel-layout"
    text = said.raw(key)
    if not text:
        return None
    flat = str(text).replace(",", "").replace(" ", "")
    expanded = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda m: m[1] * int(m[2]), flat[:_LONGEST])
    expanded = re.sub(r"([A-Za-z|])\*(\d{1,4})", lambda m: m[1] * int(m[2]), expanded[:_LONGEST])
    if not re.fullmatch(r"[EtmL|]+", expanded):
        raise said.refuse(key, f"layout {text}: letters other than E, t, m, L and |")
    parts = expanded.split("|")
    stages = [part.count("t") for part in parts]
    apart = parts[-1] == "L" and len(parts) > 2 and set(parts[-2]) == {"m"}
    _check_predicting(said, key, parts[:-1 - apart], expanded.count("m"))
    if 0 in stages[1:-1 - apart]:
        raise said.refuse(key, f"layout {text}: a stage without layers between the first and the last")
    if layers is not None and sum(stages) != layers:
        raise said.refuse(key, f"layout {text}: {sum(stages)} layers of {layers}")
    if len(stages) % pp:
        few, many = len(stages) // pp * pp, -(-len(stages) // pp) * pp
        raise said.refuse(key, f"layout {text}: {len(stages)} stages for {pp} ranks, each of which runs as many: make "
                               f"them {f'{few} or {many}' if few else many}")
    if parts[0][:1] != "E" or parts[-1][-1:] != "L" or expanded.count("E") + expanded.count("L") > 2:
        raise said.refuse(key, f"layout {text}: the first stage begins with E, and the last one ends in L")
    if apart:
        said.approximated(key, f"[schedule] stages = {stages}: the norm behind the last layer runs on the stage of "
                               "those that predict, which read it; Megatron-LM has it with the last layer")
    else:
        said.read(key, f"[schedule] stages = {stages}")
    return stages, len(stages) // pp


def _check_predicting(said: Said, key: str, before: list[str], count: int) -> None:
    """Refuse layers that predict where they are neither with the loss nor on the stage before it, or not as many."""
    if any("m" in part for part in before):
        raise said.refuse(key, f"layout {said.raw(key)}: layers that predict later tokens (m) stand with the loss, or "
                               "alone on the one stage before a last one of L: write ..t|tmL or ..t|m|L in place of "
                               "..tm|L, which no strategy says")
    told = said.number("mtp-num-layers") or 0
    if count != told:
        raise said.refuse(key, f"layout {said.raw(key)}: {count} layers that predict later tokens (m), and "
                               f"mtp-num-layers is {told}")
