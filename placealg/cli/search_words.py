"""The words of `placealg search` and of `placealg fit`."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

_OBJECTIVES = ("estimate", "bound", "memory", "card")


MANY = 24
"""So many strategies are derived by all processors."""


def add_search(parser: ArgumentParser, transformer: Callable[[Any], None],
               formats: Callable[[Any, Sequence[str]], None]) -> None:
    """Add the options; `transformer` adds those of a model, `formats` that of how to print."""
    parser.add_argument("name", metavar="MODEL", help="a config.json, or a shipped configuration")
    transformer(parser)
    parser.add_argument("--devices", metavar="N", required=True, help="all of them take part")
    parser.add_argument("--batch", metavar="N", required=True, help="the sequences of a step; of several, 512,1024, "
                        "the best by the sequence")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="sizes",
                        help="sizes that the model leaves open, and bytes per element: --set s=8192")
    parser.add_argument("--precision", metavar="NAME", help="bytes per element as an engine has them: fsdp2, megatron, "
                        "deepspeed; every strategy then says it, as in zero1*megatron")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--machine", metavar="NAME", help="rates with their sources: a100, h100, h200, h800, and with "
                         "products in FP8 h100-fp8, h800-fp8")
    machine.add_argument("--device-memory", metavar="AMOUNT", help="of one device: 80GB, 64GiB; the machine's")
    machine.add_argument("--per-node", metavar="N", help="devices in a node; the machine's")
    machine.add_argument("--flops", metavar="RATE", help="of one device at its peak: 989TFLOPS")
    for option, text in (("--node-bandwidth", "what a device sends to others of its node, one way: 450GB/s"),
                         ("--card-bandwidth", "what it sends through its network card, one way: 50GB/s"),
                         ("--hbm", "of its memory: 3.35TB/s"), ("--host", "between a device and its host: 64GB/s")):
        machine.add_argument(option, metavar="RATE", help=text)
    space = parser.add_argument_group("the space")
    space.add_argument("--space", metavar="NAME|FILE", help="dense, wide, moe, moe_wide; modes or modes2, every table "
                       "of modes of an axis, named or not; or a TOML file; default dense")
    space.add_argument("--fix", action="append", default=[], metavar="AXIS=N",
                       help="the size of an axis, or of b, m or v: --fix tp=8 pp=4; 1 leaves an axis out")
    space.add_argument("--only", action="append", default=[], metavar="PATTERN", help="strategies that match: 'zero1*'")
    space.add_argument("--without", action="append", default=[], metavar="NAME", help="no such part or choice: offload")
    space.add_argument("--objective", choices=_OBJECTIVES, default="estimate", metavar="|".join(_OBJECTIVES),
                       help="what the best has least of")
    margin = parser.add_argument_group("margins and parameters")
    margin.add_argument("--reserve", metavar="AMOUNT", help="set aside for what no formula counts: 6GB")
    margin.add_argument("--activation-factor", metavar="X",
                        help="what is held beyond the states at rest counts X times: 1.5")
    margin.add_argument("--assume", action="append", default=[], metavar="NAME=X", help="parameters of the estimate: "
                        "--assume efficiency=0.5 link_efficiency=0.8 exposed_states=0.1 exposed_tensors=1 "
                        "latency=1/50000")
    margin.add_argument("--measured", metavar="TEXT", help="a step of yours, to which efficiency is fitted: "
                        "'zero1*tp dp=64 tp=8 b=1: 16.4 s 61GB', the peak if known")
    parser.add_argument("--top", metavar="N", default="10", help="how many are listed; 10")
    parser.add_argument("--best-alone", action="store_true", help="derive no strategy of which a bound excludes "
                        "that it has the best, and say what that saved")
    parser.add_argument("--at-most", metavar="N", help="evaluate so many strategies and no more; with --best-alone "
                        "those first that work least. Where some are left the exit code is 3")
    parser.add_argument("--prefer", action="append", default=[], metavar="PATTERN", help="the best of the strategies "
                        "that match, beside the best of all: 'zero3*'")
    parser.add_argument("--within", metavar="PERCENT", default="1", help="whether what is preferred loses no more than "
                        "that; 1")
    parser.add_argument("--front", action="store_true", help="the front of memory, time and card traffic, each proved")
    parser.add_argument("--front-alone", action="store_true", help="the front and nothing else, each proved; with "
                        "--format csv or json its rows alone")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw that front")
    parser.add_argument("--certificate", metavar="FILE", help="write why nothing in the space is better, for `recheck`")
    parser.add_argument("--why", metavar="TEXT", help="why not this one: 'zero3*tp_sp dp=64 tp=8 b=1'")
    parser.add_argument("--robust", action="store_true", help="for each parameter, rate and the memory alone: the "
                        "range in which the best stays the best, and what is the best beyond")
    parser.add_argument("--regions", action="append", default=[], metavar="NAME[=LOW..HIGH]", help="the best over a "
                        "range of one: --regions efficiency card_bw=25GB/s..100GB/s memory=40GB..80GB")
    parser.add_argument("-j", "--jobs", metavar="N", help="processes that derive what the cache lacks; by default "
                        f"one for each processor, where a space has {MANY} strategies, else one")
    parser.add_argument("--cache", metavar="DIR", help="where derived programs are kept; the user's cache folder")
    parser.add_argument("--no-cache", action="store_true", help="keep and read none")
    formats(parser, ("text", "csv", "json"))
    parser.epilog = ("What fits, needs and takes at least is exact under named hypotheses; what it takes about is what "
                     "the parameters make of it.\nExit code 0: found and proved; 1: nothing fits; 2: bad input; "
                     "3: undecided.")


def add_fit(parser: ArgumentParser) -> None:
    """Add the options of `fit` beside those of a strategy and a loss."""
    parser.add_argument("--device-memory", metavar="AMOUNT", help="of one device: 80GB, 64GiB; the machine's")
    parser.add_argument("--devices", metavar="N", help="the product of all axes; laid out over those without a size")
    parser.add_argument("--batch", metavar="N", help="the sequences of a step, over all microbatches and ranks: m "
                        "follows, or b where m is set; layouts are then compared at the same work")
    parser.add_argument("--reserve", metavar="AMOUNT", help="set aside for what no formula counts: 6GB")
    parser.add_argument("--activation-factor", metavar="X",
                        help="what is held beyond the states at rest counts X times: 1.5")
    parser.add_argument("--measured", metavar="AMOUNT", help="the peak of a real step at these sizes: which "
                        "reserve, and which activation factor, that is")
    parser.add_argument("--by", choices=("peak", "total"), default="peak", metavar="peak|total",
                        help="what is held against the memory: the largest moment, or the sum of the parts")
    parser.add_argument("--flops", metavar="RATE", help="of one device: 400TFLOPS")
    parser.add_argument("--machine", metavar="NAME", help="whose memory it is, and whose rates bound the time of a "
                        "step: h100 and its kind; axes fill its nodes from the innermost")
    parser.add_argument("--bandwidth", action="append", default=[], metavar="AXES=RATE",
                        help="what a device sends over a set of axes: --bandwidth dp=50GB/s tp=450GB/s")
    parser.add_argument("--gib", action="store_true", help="values in GiB rather than GB")
