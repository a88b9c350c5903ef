"""The page docs/models.md, from the table that `make models-write` keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placealg.models.config import PUBLISHED as PACKAGED
from placealg.models.family import aliases, families, family, refusals

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "data" / "model_counts.json"
PUBLISHED = ROOT / "tests" / "data" / "published_models.json"
PAGE = ROOT / "docs" / "models.md"


def published() -> dict[str, dict[str, Any]]:
    """Model id -> its published configuration: those of the package, then those of the tests."""
    inside = json.loads(PACKAGED.read_text(encoding="utf-8"))
    models = {name: fields for name, fields in inside.items() if not name.startswith("_")}
    return {**models, **json.loads(PUBLISHED.read_text(encoding="utf-8"))["models"]}


def written(table: Mapping[str, Any]) -> str:
    """The page: what is read, what is refused and by which part, and what was held against what."""
    return "\n".join([*_head(table), *_types(table), *_refused(table), *_steps(table), *_published(table)]) + "\n"


def _head(table: Mapping[str, Any]) -> Iterator[str]:
    causal, runs = table["causal"], table["random"].values()
    read = [name for name in causal if name in families() or name in aliases()]
    refused = [name for name in causal if name in refusals()]
    equal = sum(run.get("equal", 0) for run in runs)
    others = {what: sum(run.get(what, 0) for run in runs) for what in ("refused", "unbuildable", "wrong")}
    published = table["published"].values()
    yield from ("# Models", "")
    yield (f"transformers {table['transformers']} has {len(causal)} types of models that it calls causal. "
           f"**{len(read)} are read, {len(refused)} are refused by the part that no model here has, "
           f"{len(causal) - len(read) - len(refused)} are neither.** Of the other "
           f"{table['types_in_all'] - len(causal)} types of its configurations {len(table['larger'])} are language "
           "models inside larger ones that see or hear, and are read alone (`--model config.json#text_config`); the "
           "rest (encoders, images, sound, parts of larger models) is refused, too.")
    yield ""
    yield ("`make models` builds each type on the meta device, in an environment of its own (models.lock), and holds "
           "its parameters against the model here: the total, and every name of a parameter with its size, integer "
           "for integer.")
    yield ""
    yield "| held against transformers | equal | refused here | not built there | wrong |"
    yield "|---|---|---|---|---|"
    defaults = [entry.get("outcome", "equal") for entry in table["types"].values()]
    for label, found in (("the default configuration of each type", defaults),
                         ("published configurations", ["equal" if isinstance(n, int) else n.split(":")[0]
                                                       for n in published])):
        yield f"| {label} | " + " | ".join(str(found.count(w)) for w in
                                           ("equal", "refused", "unbuildable", "wrong")) + " |"
    yield (f"| small random ones, fields left out or null at random | {equal} | {others['refused']} | "
           f"{others['unbuildable']} | {others['wrong']} |")
    yield ""
    yield ("Each family is proved for every device count and simulated at a small one under the strategies of the last "
           "column; `as NAME` says that its default has the graph of that family, which was asked.")
    yield ""
    yield ("A random configuration that is refused has a part that no model here has (biases in experts, say), or "
           "fields that contradict each other; one that is not built there makes transformers itself raise. What a "
           "default configuration needs to be built at all is given with it (column *given*).")
    yield ""
    yield (f"Whether the head of a language model inside a larger one is its embedding, the larger one's file says: "
           f"{sum(table['larger'].values())} of {9 * len(table['larger'])} files that say it, or do not, outside and "
           "inside are equal to the head and the language model in what transformers builds of the larger one.")
    yield ""
    yield ("Layers that predict tokens after the next are built by transformers apart from the model "
           "(`MtpModel`), and are an option here (`--mtp`), held against that: "
           f"{', '.join(f'{name} {n:,}' for name, n in table['predicting'].items())}.") if table["predicting"] else ""
    yield ""


def _types(table: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Read", "", "| model_type | like | lines of data | parameters of its default | given | random: "
                "equal, refused, not built | proved and simulated |", "|---|---|---|---|---|---|---|")
    for name, entry in table["types"].items():
        shown = f"{entry['parameters']:,}" if "parameters" in entry else f"{entry['outcome']}: {entry['why']}"
        run = table["random"].get(name, {})
        like = f"is {aliases()[name]}" if name in aliases() else family(name).like
        lines = "" if name in aliases() else str(family(name).lines)
        given = ", ".join(f"`{k}`" for k in entry.get("given", ()))
        yield (f"| {name} | {like} | {lines} | {shown} | {given} | {run.get('equal', 0)}, {run.get('refused', 0)}, "
               f"{run.get('unbuildable', 0)} | {_passed(table, name)} |")
    other = sorted(set(aliases()) - set(table["types"]))
    yield ""
    yield (f"Types that transformers lacks, whose blocks are those of a family: "
           f"{', '.join(f'{name} ({aliases()[name]})' for name in other)}. No field of theirs is filled in.")
    yield ""


def _passed(table: Mapping[str, Any], name: str) -> str:
    """The strategies under which a family is proved and simulated, and the family whose graph it has."""
    row = table["passed"].get(aliases().get(name, name), {})
    others = {what for what in row.values() if what != "passed"}
    told = ", ".join(dict.fromkeys(text.partition(" of ")[0] for text in row))
    mixed = "; also with several kinds of layers" if any(" of " in text for text in row) else ""
    return f"{told}{mixed}" + (f" ({', '.join(sorted(others))})" if others else "")


def _refused(table: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Refused", "", "| part that no model here has | types that transformers calls causal |", "|---|---|")
    parts: dict[str, list[str]] = {}
    for name in table["causal"]:
        if name in refusals():
            parts.setdefault(refusals()[name], []).append(name)
    for part, names in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"| {part} | {', '.join(names)} |"
    yield ""


def _steps(table: Mapping[str, Any]) -> Iterator[str]:
    from real_activations import CASES, RESIDUES

    yield from ("## One real step", "",
                "A small model of each family trains one step in float32 on the CPU, attention and norms written out "
                "(`--no-flash --no-fused`). Bytes of parameters, gradients and moments and the flop of all products "
                "are equal; what autograd saves is equal after the residues. Sizes and bytes as tests/models/"
                "real_activations.py has them; r are the rotated elements of a head, act is 4.", "",
                "| residue | op | formula, bytes | what transformers keeps |", "|---|---|---|---|")
    used = {residue for name in table["steps"] for residue in CASES[name].residues}
    for name, residue in RESIDUES.items():
        if name in used:
            yield f"| {name} | {residue.op} | `{residue.formula}` | {residue.why} |"
    yield from ("", "| model_type | parameters | flop | saved here | residues | saved there |",
                "|---|---|---|---|---|---|")
    yield from _step_rows(table["steps"])
    yield ""
    yield ("Choosing and weighting experts is a product of matrices here and is none there; that flop, "
           "6·b·s·topk·h + 4·b·s·topk for each router of a layer, is taken off mixtral's and jetmoe's, and "
           "4·b·s·topk·kv·d for the experts of attention.")
    yield from ("", "The same step in bfloat16, where eager norms and the softmax are computed on copies of 32 bits "
                "(`--no-flash --upcast`, act is 2): such a norm keeps 4 bytes of each element that it reads, 2 of what "
                "it multiplies by its weight, and the softmax 4 beside the 2 of the probabilities.", "",
                "| model_type | parameters | flop | saved here | residues | saved there |", "|---|---|---|---|---|---|")
    yield from _step_rows(table["wide"])
    yield ""


def _step_rows(rows: Mapping[str, Any]) -> Iterator[str]:
    for name, row in rows.items():
        told = ", ".join(f"{residue} {n:,}" for residue, n in row["residues"].items())
        here, there = row["activations"]
        yield f"| {name} | {row['parameters'][1]:,} | {row['flop'][1]:,} | {here:,} | {told} | {there:,} |"


def _published(table: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Published configurations", "",
                "The source of each is the config.json of the model of that name, https://huggingface.co/ID/blob/main/"
                "config.json (`#TABLE` is a table inside it). The sizes of those with a name in the last column were "
                "held against a second source, and agree; those held against litgpt or llm-analysis are in the "
                "package, `--model Qwen/Qwen3-8B` say:", "")
    data, models = json.loads(PUBLISHED.read_text(encoding="utf-8")), published()
    held = {**json.loads(PACKAGED.read_text(encoding="utf-8"))["_held_against"], **data["held"]}
    yield from (f"- {name}: {what}" for name, what in data["held_against"].items())
    yield from ("", "| model | model_type | parameters | held against |", "|---|---|---|---|")
    for name, count in table["published"].items():
        shown = f"{count:,}" if isinstance(count, int) else count
        more = table["predicting"].get(name)
        tail = f", and {more:,} that predict later tokens" if more else ""
        yield f"| {name} | {models[name]['model_type']} | {shown}{tail} | {held.get(name, '')} |"


if __name__ == "__main__":
    PAGE.write_text(written(json.loads(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")
    sys.exit(0)
