"""The command line's words: commands, options, and usage errors of one line with the nearest valid name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from placealg.cli.search_words import add_fit, add_search
from placealg.cli.stray_words import SIZE, check_models, meant, split_sizes, with_minus
from placealg.cli.tolerance_words import tolerance_words
from placealg.cli.torch_words import check_torch_words, conform_words, watch_words
from placealg.errors import InputError

LOSS_RUNS = ("eager", "fused", "chunked", "vocab_parallel")
FORMATS = ("text", "latex", "markdown", "python", "csv", "json")
COMPLETED_SHELLS = ("bash", "zsh", "fish")

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("the catalogue, a placement row each", ""),
    "show": ("placements and the step program, with reasons", "STRATEGY"),
    "cost": ("memory and communication in closed form", "STRATEGY"),
    "prove": ("the obligations and their verdicts", "STRATEGY..."),
    "tolerance": ("how far rounding alone can move a gradient", "STRATEGY"),
    "recheck": ("verify a certificate, replay it with two solvers", "DIR"),
    "compare": ("costs side by side, with ratios; or one proved", "STRATEGY..."),
    "diff": ("what differs: placements, program, costs, verdict", "A B"),
    "reshard": ("a checkpoint of OLD resumed by NEW: who reads what", "OLD NEW"),
    "report": ("placements, costs, verdicts as a page of HTML", "STRATEGY..."),
    "fit": ("what a device holds against its memory; what fits", "STRATEGY"),
    "search": ("the best configuration of a model, proved", "MODEL"),
    "simulate": ("train a small model rank by rank and on one device", "STRATEGY"),
    "museum": ("bugs of real projects, refuted; where they hide", "[NAME...]"),
    "check-torch": ("run PyTorch, and hold it against the formulas", "[NAME...]"),
    "watch": ("whether a training script's step is the strategy's", "STRATEGY"),
    "conform": ("the same of a step that was recorded", "STRATEGY"),
    "model": ("units, regions, dims, ops, exact counts", "NAME"),
    "models": ("the models that have a name, and the families read", ""),
    "import": ("the strategy of a framework's configuration", "FILE"),
    "explain": ("what a name means, in three sentences", "NAME"),
    "completion": ("a script for bash, zsh or fish to source", "SHELL"),
}
"""Command -> what it prints, what it takes."""

EPILOG = """\
STRATEGY is a TOML file, a training framework's configuration (see import), or
an expression over the catalogue:
  zero3    zero3[fsdp]    zero3[512]    hsdp[dp_replicate=2,dp_shard=4]
  zero2*offload_optimizer    zero3*tp_sp[tp=8]*recompute_selective

exit codes:
  0 done, proved, or as the file expects    1 refuted, or not as expected
  2 bad input                               3 undecided
  130 interrupted"""


class _Help(argparse.RawTextHelpFormatter):
    """Help with room for the longest command before what it takes."""

    def __init__(self, prog: str):
        super().__init__(prog)
        self._action_max_length = 4 + max(map(len, COMMANDS))


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are InputErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as one line."""
        where = "" if self.prog == "placealg" else self.prog.removeprefix("placealg ")
        text = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        raise InputError(text.replace("the following arguments are required: ", "missing "), where=where)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "command" if action.dest == "command" else f"{'/'.join(action.option_strings)} value"
            meant = "show" if (what, value) == ("command", "derive") else str(value)  # show prints what pa.derive makes
            raise InputError(f"unknown {what} '{value}'", name=meant, valid=map(str, action.choices))


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a usage error is an InputError."""
    parser, commands = _parser()
    words, argv = _command_line(words)
    split = split_sizes(with_minus(_model_alone(words)))
    for word in split:
        option, equals, value = word.partition("=")
        if equals and value == "--" and option.startswith("--"):
            raise InputError(f"'{value}' is no value", where=option)
    chosen, rest = parser.parse_known_args(split)
    chosen.argv = argv
    if chosen.command is None and not chosen.version:
        parser.print_help()
        raise SystemExit(0)
    for word in _read_as_strategy(chosen):
        if SIZE.match(word) and not Path(word).exists():
            raise InputError(f"'{word}' is a size, and no strategy; did you mean '--set {word}'?", where=chosen.command)
    check_models(chosen, [*_read_as_strategy(chosen), *(word for word in rest[:1] if not word.startswith("-"))])
    if chosen.command == "watch" and not chosen.strategy and rest and not rest[0].startswith("-"):
        chosen.strategy, *rest = rest  # argparse takes an optional word only where it stands before the options
    if rest:
        meant(chosen, rest)
        options = [o for o in commands.get(chosen.command, parser)._option_string_actions if o.startswith("--")]
        word = rest[0].partition("=")[0]
        if word.startswith("-"):
            bare = {o.removeprefix("--"): o for o in options}
            near = get_close_matches(word.removeprefix("--")[:40], bare, n=1, cutoff=0.65)
            raise InputError(f"unknown option '{word}'", where=chosen.command, name=bare[near[0]] if near else "",
                             valid=options)
        raise InputError(f"unexpected argument '{rest[0]}'", where=chosen.command)
    return chosen


def _model_alone(words: Sequence[str]) -> list[str]:
    """The words with `--model NAME` as the word that it is for `search`, which takes a model and no strategy.

    >>> _model_alone(["search", "--model", "gpt2", "--devices", "8"]), _model_alone(["search", "--model=gpt2"])
    (['search', 'gpt2', '--devices', '8'], ['search', 'gpt2'])
    """
    if not words or words[0] != "search":
        return list(words)
    return [word.removeprefix("--model=") for word in words if word != "--model"]


def _command_line(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """(the words of placealg, those of another program): `import -- torchrun ...` and `watch` have both."""
    if not words or words[0] not in ("import", "watch") or "--" not in words:
        return words, []
    at = list(words).index("--")
    return words[:at], list(words[at + 1:])


def _read_as_strategy(chosen: argparse.Namespace) -> list[str]:
    """The words that a command reads as strategies."""
    return [*getattr(chosen, "strategies", ()), *([chosen.strategy] if getattr(chosen, "strategy", None) else [])] \
        if chosen.command not in ("check-torch",) else []


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="placealg", description="Costs and proofs of distributed training, from placements.",
                    epilog=EPILOG, formatter_class=_Help, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    rooms = parser.add_subparsers(dest="command", metavar="command", parser_class=Parser)
    made = {}
    for name, (text, takes) in COMMANDS.items():
        made[name] = rooms.add_parser(name, help=f"{takes:<12}{text}", description=f"{text[0].upper()}{text[1:]}.",
                                      allow_abbrev=False)
        _ARGUMENTS[name](made[name])
    return parser, made


def parsers() -> dict[str, Parser]:
    """The parser of every command."""
    return _parser()[1]


_STRATEGY = "a TOML file, a framework's configuration, or an expression"


def _strategies(parser: Parser, several: bool, *formats: str) -> None:
    if several:
        parser.add_argument("strategies", nargs="+", metavar="STRATEGY", help=_STRATEGY)
    else:
        parser.add_argument("strategy", metavar="STRATEGY", help=_STRATEGY)
    _settings(parser, *formats)


def _settings(parser: Parser, *formats: str) -> None:
    parser.add_argument("--model", metavar="FILE|NAME", help="a config.json, or the name of a shipped "
                        "configuration; default abstract, or gpt for a strategy that splits more than the batch")
    _transformer(parser)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="sizes",
                        help="sizes: --set dp=8 m=4, or dp=8,m=4; devices=512 checks or completes the mesh")
    parser.add_argument("--precision", metavar="NAME", help="bytes per element as an engine has them: fsdp2, megatron, "
                        "deepspeed; `explain fsdp2` tells one, docs/import.md lists them")
    _foreign(parser)
    if formats:
        _format(parser, formats)


def _foreign(parser: Parser) -> None:
    """What a configuration of a training framework leaves to others."""
    group = parser.add_argument_group("a framework's configuration")
    group.add_argument("--world-size", metavar="N", help="devices in all")
    group.add_argument("--nodes", metavar="N", help="nodes, with --per-node")
    group.add_argument("--per-node", metavar="N", help="devices per node")
    for option, metavar, dest, text in (
            ("--with", "FILE", "files", "a further file that it names or needs"),
            ("--env", "NAME=VALUE", "env", "a variable of the environment"),
            ("--args", "WORD", "arguments", "an argument of a script: $1, then $2"),
            ("--key", "KEY=VALUE", "settings", "another value of a key, or of a template's placeholder"),
            ("--framework", "NAME=VERSION", "framework", "defaults of a version or of a date: deepspeed=0.16"),
            ("--ignore", "KEY", "ignore", "read on past a key that is not known")):
        group.add_argument(option, metavar=metavar, dest=dest, action="append", default=[], help=text)
    group.add_argument("--as", metavar="FORMAT", dest="form", help="its format, where its content may be two")
    group.add_argument("--function", metavar="NAME", help="the function of a Python file")
    group.add_argument("--trainer", metavar="NAME", choices=("hf", "deepspeed", "megatron"),
                       help="who calls the engine: hf, deepspeed or megatron")
    group.add_argument("--microbatches", metavar="N", help="microbatches of a step")
    group.add_argument("--launch", metavar="K", help="which launch of a script, from 1")


def _transformer(parser: Parser) -> None:
    both = argparse.BooleanOptionalAction
    parser.add_argument("--flash", action=both, help="attention as one op; by default as the model's family has it")
    parser.add_argument("--dropout", action=both, help="dropout; by default as the model's family has it")
    parser.add_argument("--fused", action=both, default=True, help="norms and activations as one op each: the default")
    parser.add_argument("--upcast", action="store_true", help="norms written out, and they and the softmax of an "
                        "attention that is written out on copies of 32 bits, as eager code in 16 bits has them")
    parser.add_argument("--mtp", action="store_true", help="with the layers that predict tokens after the next")
    parser.add_argument("--parallel", action="store_true", help="attention beside the MLP rather than before it")


def _loss(parser: Parser) -> None:
    parser.add_argument("--loss", choices=LOSS_RUNS, metavar="|".join(LOSS_RUNS),
                        help="how the cross entropy is run, which decides what it holds; by default eager, and "
                             "vocab_parallel where the vocabulary is split")


def _format(parser: Parser, formats: Sequence[str]) -> None:
    parser.add_argument("--format", choices=formats, default="text", metavar="|".join(formats), help="how to print")


def _costs(parser: Parser) -> None:
    _loss(parser)
    parser.add_argument("--convention", choices=("exact", "asymptotic"), default="exact", metavar="exact|asymptotic",
                        help="keep each event's (n - 1)/n, or replace it by 1")
    parser.add_argument("--unit", choices=("bytes", "elements"), default="bytes", metavar="bytes|elements",
                        help="the unit of communication")
    parser.add_argument("--rank", metavar="stage=WHICH", help="the pipeline stage whose costs are printed: first, "
                        "last, a number from 0, or i for any between; by default the most loaded one, the first where "
                        "sizes are missing")
    parser.add_argument("--gib", action="store_true", help="values in GiB rather than GB")


def _timing(parser: Parser) -> None:
    parser.add_argument("--no-timing", action="store_true", help="leave times out, so that runs can be compared")


def _list(parser: Parser) -> None:
    _format(parser, ("text", "json"))


def _show(parser: Parser) -> None:
    _strategies(parser, False, "text", "json")
    parser.add_argument("--why", action="store_true", help="name the rule beside every reason")
    parser.add_argument("--write-program", metavar="FILE", help="write the program as TOML, which reads back equal")
    parser.add_argument("--graph", metavar="FILE.svg", help="draw the program: phases as lanes, reasons as tooltips")
    parser.add_argument("--order", metavar="FILE.svg", help="draw the order of a pipeline: what each stage runs, and "
                                                            "when it can")


def _cost(parser: Parser) -> None:
    _strategies(parser, False, *FORMATS)
    _costs(parser)
    parser.add_argument("--by", choices=("event", "region", "tensor"), default="event", metavar="event|region|tensor",
                        help="what is listed below the sums: events, the model's regions, or the tensors kept")
    growth = parser.add_mutually_exclusive_group()
    growth.add_argument("--per", metavar="SIZE", help="what one more of a size takes, such as L, of every figure")
    growth.add_argument("--leading", metavar="SIZE", help="what of every figure grows fastest with a size, such as s")


def _prove(parser: Parser) -> None:
    _strategies(parser, True, "text", "json", "junit")
    _timing(parser)
    parser.add_argument("--certificate", metavar="DIR", help="write every obligation as an SMT-LIB 2 file, with hashes")
    parser.add_argument("--coq", nargs="?", const="", metavar="DIR",
                        help="have coqc prove the program from the kernel's theorem, or prove a refuted one wrong; in "
                        "DIR its file is kept")
    parser.add_argument("--engine", choices=("closed_form", "cutoff"), default="closed_form",
                        metavar="closed_form|cutoff",
                        help="take sums over an axis in closed form, or write them out at enough sizes")
    parser.add_argument("--most-proofs", type=int, default=60, metavar="N",
                        help="proofs of a parameter group that --engine cutoff may take, 60 unless told: one of each "
                        "group at each size")
    parser.add_argument("--sums", metavar="TYPE",
                        help="the type that no sum of gradients may be narrower than, such as "
                        "fp32: the obligation precision")
    parser.add_argument("--cross-check", action="store_true", help="ask a second solver, cvc5, every query as well")
    parser.add_argument("--masked", action="store_true",
                        help="also run a file's program where its `masked` says that nothing shows")
    parser.add_argument("--verbose", action="store_true",
                        help="also tell how many instances were decided by data, construction, simplification, solver")


def _recheck(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a certificate, as `prove --certificate DIR` wrote it, or the "
                        "file that `search --certificate FILE` wrote")
    parser.add_argument("--sha256", metavar="HEX", help="what `prove` printed as the manifest's, or `search` as the "
                        "file's; any other is an edit")
    parser.add_argument("--regenerate", action="store_true",
                        help="prove the certificate's own program again, and compare every file byte for byte; of a "
                        "search, derive every strategy again")
    _format(parser, ("text", "json"))


def _compare(parser: Parser) -> None:
    _strategies(parser, True, "text", "markdown", "json")
    _costs(parser)
    parser.add_argument("--prove", metavar="CLAIM", help="decide for all sizes: 'PATH <= [PATH] [iff CONDITION]', with "
                        "paths of `cost --format json`, such as memory.total, and ==, <, <=, > or >=")
    parser.add_argument("--where", metavar="CONDITION", help="sizes to which --prove is confined: 'tp >= 2 and m == 1'")
    parser.add_argument("--solve", metavar="SIZE", help="with --prove: the values of SIZE at which both are equal")


def _diff(parser: Parser) -> None:
    for dest in ("A", "B"):
        parser.add_argument(dest.lower(), metavar=dest, help=_STRATEGY)
    _settings(parser, "text", "markdown", "json")
    _loss(parser)
    parser.epilog = "Exit code 0: no difference; 1: some; 2: bad input."


def _reshard(parser: Parser) -> None:
    for dest, metavar in (("a", "OLD"), ("b", "NEW")):
        parser.add_argument(dest, metavar=metavar, help=_STRATEGY)
    _settings(parser, "text", "json")
    _timing(parser)
    parser.add_argument("--reader", metavar="RANK", help="a rank of the new mesh: what it reads of whose file")
    parser.add_argument("--gib", action="store_true", help="values in GiB rather than GB")
    parser.epilog = "Sizes of the old mesh have _old behind their names: --set dp=8 dp_old=4."


def _report(parser: Parser) -> None:
    _strategies(parser, True)
    _loss(parser)
    parser.add_argument("-o", "--output", metavar="FILE.html", required=True, help="where the page goes")
    parser.add_argument("--rank", metavar="stage=WHICH", help="the pipeline stage whose costs are printed")
    parser.epilog = "The page is one file that needs no network; its sliders start at the sizes of --set."


def _fit(parser: Parser) -> None:
    _strategies(parser, False, "text", "json")
    _loss(parser)
    add_fit(parser)


def _search(parser: Parser) -> None:
    add_search(parser, _transformer, _format)


def _tolerance(parser: Parser) -> None:
    _strategies(parser, False, "text", "json")
    tolerance_words(parser)


def _simulate(parser: Parser) -> None:
    _strategies(parser, False, "text", "json")
    parser.epilog = "The model is small, with the parameter groups of the one named; its numbers are exact."
    parser.add_argument("--seed", type=int, default=0, help="of the network and its data")


def _model(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME",
                        help="a config.json, a shipped configuration, gpt, lora, mla, mlp, moe, amax, statistics, "
                             "two_losses or abstract")
    _transformer(parser)
    _format(parser, ("text", "json"))


def _import(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="a configuration or a script; or, instead, "
                        "-- and a command line: import -- torchrun ...")
    parser.add_argument("--model", metavar="FILE|NAME", help="a config.json, or a shipped configuration")
    parser.add_argument("-o", "--output", metavar="OUT.toml", help="write the strategy, with where each line is from")
    parser.add_argument("--strict", action="store_true", help="refuse what can only be approximated")
    parser.add_argument("--long", action="store_true", help="list the keys that have no bearing, too")
    _foreign(parser)
    _format(parser, ("text", "json", "toml"))
    parser.epilog = ("Formats are told by content: see docs/import.md. Nothing of a file is ever executed.\n"
                     "Exit code 0: read; 2: refused, in one line.")


def _museum(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs, by project and number; all of them by default")
    _timing(parser)
    _format(parser, ("text", "markdown", "json"))


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=COMPLETED_SHELLS, metavar="SHELL", help="bash, zsh or fish")


def _recorded(words: Callable[[Parser, str], None], parser: Parser) -> None:
    words(parser, _STRATEGY)
    _settings(parser, "text", "json")
    _timing(parser)


def _explain(parser: Parser) -> None:
    parser.add_argument("name", nargs="+", metavar="NAME", help="a mode, verb, obligation, rule, hypothesis, strategy, "
                        "symbol, quantity, value type, table, loss, optimizer, precision or lemma; a bug of the "
                        "museum; `published` for the table of published numbers, or the name of one")
    _format(parser, ("text", "json"))


_ARGUMENTS: dict[str, Callable[[Parser], None]] = {
    "models": _list, "check-torch": partial(check_torch_words, _format),
    "watch": partial(_recorded, watch_words), "conform": partial(_recorded, conform_words)}
_ARGUMENTS |= {n: globals()[f"_{n.replace('-', '_')}"] for n in COMMANDS if n not in _ARGUMENTS}
