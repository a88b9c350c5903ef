"""The guide to imports: docs/import.md, made from the tables that the readers read.

`python -m placealg.importers.guide` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from placealg.importers.kinds import kinds
from placealg.importers.tables import Format, formats, table
from placealg.strategy.precision import precisions

HEAD = """\
# Importing configurations

Nobody writes a strategy file first. `placealg import FILE` reads what training frameworks are told, and says what
became of every key:

```console
$ placealg import tests/importers/miniatures/deepspeed/zero3_offload.json --model llama-3-8b
read as DeepSpeed JSON (defaults of deepspeed 0.19): zero3*offload_optimizer*offload_parameters,
  dp = 32
  model llama-3-8b
  b = 2
  zero3_offload.json:2   train_batch_size = 256                256 = 2 x 4 x ranks: 32 ranks of data
...
  zero3_offload.json:8   zero_optimization.stage = 3           zero3 over the ranks of data
  zero3_offload.json:9   zero_optimization.offload_optimizer.  [optimizer] tier = "nvme"
                         device = 'nvme'
...
  unsaid                 loss                                  the engine divides by the
...
```

The same file stands wherever STRATEGY does, `placealg prove ds_config.json --world-size 64` say, and
`import FILE -o strategy.toml` writes the strategy with the place that each line is from; it reads back equal.
`--format toml` writes it as a person would type it, the expression and the keys that it does not say: the same
program, bytes, picture and verdict. In a launch script, `placealg import -- torchrun ...` in the place of
`torchrun ...` reads the very command line. In Python `pa.read(path)` is the reading: its strategy, model, sizes, and
four lists.

```python
>>> import placealg as pa
>>> reading = pa.read("tests/importers/miniatures/megatron/experts.sh")
>>> reading.expression, reading.strategy.mesh.axes
('zero1*tp_sp*ep', (dp=4, tp=2, ep=4))
```

Formats are told by content; `--as FORMAT` settles what may be two. Nothing of a file is ever executed: shell scripts
and Python are read by code that evaluates nothing, YAML by a safe loader without tags.

## Four lists

A configuration never decides alone. Each item has its file, line and key:

- **read**: what the key became;
- **unsaid**: what the file leaves to somebody else, who that is, and the option that supplies it;
- **approximated**: what is understood and cannot be said, what stands instead, which figures are off. Verdicts name it
  as not covered, also those on the file that `-o` writes (`left_out`). `--strict` refuses it instead;
- **ignored**: what has no bearing on the placement; `--long` lists these keys, too.

A file is refused, in one line with exit code 2, only where a proof would be about another program: a degree that is
open, adapters that scale the base, tokens that are dropped, results of ops on the host, another schedule, another file
that decides, a script that is no entry point, a key that no list knows and whose name speaks of placement, of freezing
or of another engine (`--ignore KEY` reads on). Where a file names a model that is not here, `prove`, `cost` and `fit`
want `--model`; a model whose name tells that it has the ops of one that is here stands on that, which is approximated.

| option | supplies |
|---|---|
| `--world-size N`, or `--nodes N --per-node N` | the number of devices |
| `--model NAME` | the model: a shipped name or a config.json |
| `--with FILE` | a further file that it names, its model's config.json, a trainer's beside accelerate's |
| `--env NAME=VALUE`, `--args WORD` | a script's environment, and its arguments |
| `--key KEY=VALUE` | another value of a key, or of a template's placeholder |
| `--flash`, `--dropout`, `--loss` | how the model is run, before what the file says of it |
| `--framework NAME=VERSION` | the defaults of a version or a date: `deepspeed=0.16`, `torchtitan=2025-06` |
| `--trainer hf` | who calls the engine, and with it the loss |
| `--microbatches N` | the accumulation, where the file leaves it open |
| `--function NAME`, `--launch K` | one configuration of a Python file, one launch of a script |

## Beside the frameworks' own estimators

Bytes per parameter of weights, gradients and optimizer at rest on one of 8 ranks of data, without a transient copy:

| file | read as | here | theirs | by |
|---|---|---|---|---|
| DeepSpeed JSON, stage 2, bf16 | `zero2` | 2 + 14/8 = 3.75 | 2 + 18/8 = 4.25 | stage_1_and_2.py, \
estimate_zero2_model_states_mem_needs: fp32 gradients of a shard are counted, which exist while it is updated |
| DeepSpeed JSON, stage 3, bf16 | `zero3` | 16/8 = 2 | 18/8 = 2.25 | stage3.py, \
estimate_zero3_model_states_mem_needs: 2 more, and 4 bytes of the largest layer |
| accelerate YAML, FSDP, bf16 | `zero3`, gradients R | 4/8 + 2 + 8/8 = 3.5 | 4 + 6 + 8 = 18 | estimate-memory: of \
one device without sharding, gradients in 16 and in 32 bits |
| Megatron arguments, bf16, distributed optimizer | `zero1` | 6 + 12/8 = 7.5 | 6 + 12/8 = 7.5 | \
theoretical_memory_usage.py, num_bytes_per_parameter |
| Megatron arguments, bf16 | `dp` | 18 | 18 | theoretical_memory_usage.py |
| Nanotron YAML, fp32 accumulation, ZeRO-1 | `zero1` | 6 + 12/8 = 7.5 | 8 + 12/8 = 9.5 | the Ultra-Scale Playbook's \
20 bytes unsharded: gradients in 16 bits beside those in 32 |
| LLaMA-Factory YAML, full, bf16 | `dp` | 16 | 18 | its README, Hardware Requirement: a copy of the weights in 16 \
bits beside those in 32, which autocast makes op by op |
| LLaMA-Factory YAML, full, pure_bf16 | `dp` | 8 | 8 | the same table |
| LLaMA-Factory YAML, lora of rank 8 on all linear modules of Llama-3-8B, bf16 | `dp`, adapters | 2 + 16·0.0026 = \
2.04 | 2 | the same table, without the adapters |
| the same in 4 bits | `dp`, adapters | 0.74 | 0.5 | the same table; embedding and head stay in 16 bits |
| torchtitan TOML | `zero3` | 16/8 = 2 | none | its estimator is a run on fake tensors |
"""

PRECISION = """
## Precision presets

The same word, bf16, means other bytes in other engines. These are usable by name, as `[types] preset = "fsdp2"` in a
strategy file and as `--precision fsdp2` on the command line; a key beside a preset goes before it.

| preset | bytes per element | what it is | source |
|---|---|---|---|
"""


KINDS = """
## Keys that no table names

Such a key is judged by the words of its name, unless its value is off; the first kind that has one of them holds. One
of no kind is ignored by name, or refused if it speaks of placement.

| kind | words | becomes | what it speaks of |
|---|---|---|---|
"""


def guide() -> str:
    """The text of docs/import.md."""
    tables = (line for name in formats() for line in _format(table(name)))
    return "\n".join([HEAD.rstrip(), KINDS.rstrip(), *_kinds(), PRECISION.rstrip(), *_precisions(), *tables]) + "\n"


def _precisions() -> Iterator[str]:
    for row in precisions().values():
        sizes = ", ".join(f"{name} = {value}" for name, value in row.types.items())
        yield f"| `{row.name}` | {sizes} | {row.title} | {row.source} |"


def _kinds() -> Iterator[str]:
    for kind in kinds():
        words = ", ".join(f"`{word}`" for word in kind.words)
        yield f"| {kind.name.replace('_', ' ')} | {words} | {kind.becomes} | {kind.says.removeprefix('speaks of ')} |"


def _format(form: Format) -> Iterator[str]:
    yield from ("", f"## {form.title}", "", f"Told by: {form.detect}. Defaults of {form.framework} {form.newest}, from "
                f"{form.source}.", "")
    if form.note:
        yield from (form.note, "")
    yield from ("| key | default | what it becomes | source |", "|---|---|---|---|")
    for row in form.keys.values():
        moved = "; ".join(f"{_told(m.value)} up to {m.until}" for m in row.moved)
        default = "" if row.default is None else _told(row.default) + (f" ({moved})" if moved else "")
        yield f"| `{row.key}` | {default} | {_cell(row.effect)} | {_cell(row.source)} |".replace("|  |", "| |")
    reasons: dict[str, list[str]] = {}
    for key, why in form.ignored.items():
        reasons.setdefault(why, []).append(f"`{key}`")
    for key, why in form.rest.items():
        reasons.setdefault(f"{why}, unless its name speaks of placement, which is refused", []).append(f"`{key}`")
    yield from ("", "Ignored, and why:", "")
    for why, keys in reasons.items():
        yield f"- {why}: {', '.join(keys)}"


def _told(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "`\"\"`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(guide(), end="")
