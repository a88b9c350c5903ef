"""The device mesh: named axes with symbolic sizes, and the table of symbols that formulas use."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction

from placealg.errors import InputError, letters, nearest
from placealg.number_formats import FORMATS

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,39}\Z")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of the formulas: what it means, what values it takes, its LaTeX, its default."""

    name: str
    meaning: str
    assumption: str = "positive integer"
    latex: str = ""
    default: Fraction | None = None


def _element(name: str, meaning: str, default: int | None = None) -> Symbol:
    return Symbol(name, meaning, "positive rational", name if len(name) == 1 else rf"\mathrm{{{name}}}",
                  None if default is None else Fraction(default))


PACKED = "packed"
"""The sum of the squares of the lengths of a sequence's documents over that of the sequence: from 1/docs to 1."""

STAGED = ("layer", "again", "away", "dense", "window", "chunk", "nope", "dense_window", "dense_chunk", "dense_nope",
          "delta", "state", "conv", "dense_delta", "dense_state", "dense_conv", "mlp", "moe")
"""The repeated units of models whose instances on a pipeline stage have a symbol."""

SYMBOLS: Mapping[str, Symbol] = {s.name: s for s in (
    Symbol("Psi", "parameters of the model", latex=r"\Psi"),
    Symbol("Psi_unit", "parameters of the largest unit gathered at once", latex=r"\Psi_{\mathrm{unit}}"),
    _element("w", "bytes per parameter of the weights", 2),
    _element("g", "bytes per parameter of the gradients at rest", 2),
    _element("wire", "bytes per parameter of a gradient while it is reduced", 2),
    _element("wire_w", "bytes per parameter of a weight while it is gathered, where a strategy says so; else w"),
    _element("use", "bytes per parameter of a gathered copy of a weight, where a strategy says so; else w"),
    _element("acc", "bytes per parameter of a gradient before its reduction, while it accumulates, where a strategy "
             "says so; else g"),
    _element("o", "bytes per parameter of the optimizer state, fp32 master copy included", 12),
    _element("avg", "bytes per parameter of an average of the weights, where a strategy says so; else 4"),
    _element("act", "bytes per element of the activations", 2),
    _element("act_linear", "bytes per element of what linear ops alone keep, where a strategy says so; else act"),
    _element("act_norm", "bytes per element of what norms alone keep, where a strategy says so; else act"),
    _element("act_function", "bytes per element of what elementwise functions and products alone keep, where a "
             "strategy says so; else act"),
    Symbol("b", "sequences per device and microbatch"),
    Symbol("m", "microbatches per step", default=Fraction(1)),
    Symbol("s", "sequence length"),
    Symbol("docs", "documents of a sequence, at most"),
    Symbol(PACKED, "share of the pairs of two tokens of a sequence that are of one document, from 1/docs to 1",
           "positive rational",
           r"\pi", Fraction(1)),
    Symbol("h", "hidden size"),
    Symbol("a", "attention heads"),
    Symbol("kv", "key and value heads", latex=r"\mathrm{kv}"),
    Symbol("f", "feed-forward size"),
    Symbol("L", "layers"),
    Symbol("V", "vocabulary"),
    Symbol("d", "size of one attention head"),
    Symbol("s_max", "positions of a learned position table", latex=r"s_{\mathrm{max}}"),
    Symbol("experts", "routed experts", latex=r"\mathrm{experts}"),
    Symbol("topk", "experts per token", latex=r"\mathrm{topk}"),
    Symbol("shared", "shared experts", latex=r"\mathrm{shared}"),
    Symbol("adapter_rank", "rank of the low-rank adapters beside a product", latex=r"r_{\mathrm{adapter}}"),
    Symbol("f_dense", "feed-forward size of a dense layer", latex=r"f_{\mathrm{dense}}"),
    Symbol("L_dense", "dense layers, where others have experts", latex=r"L_{\mathrm{dense}}"),
    Symbol("L_moe", "layers of experts, where others are dense", latex=r"L_{\mathrm{moe}}"),
    *(Symbol(name, f"{kind} layers, where others are of another kind", latex=rf"L_{{\mathrm{{{kind}}}}}")
      for name, kind in (("L_full", "full attention"), ("L_window", "sliding window"), ("L_chunk", "chunked attention"),
                         ("L_nope", "positionless"), ("L_rotary", "rotary"),
                         ("L_again", "recomputed"), ("L_away", "offloaded"), ("L_rest", "other"),
                         ("L_dense_window", "dense sliding window"),
                         ("L_dense_chunk", "dense chunked attention"), ("L_dense_nope", "dense positionless"),
                         ("L_delta", "delta-rule"), ("L_state", "state-space"), ("L_conv", "short-convolution"),
                         ("L_dense_delta", "dense delta-rule"), ("L_dense_state", "dense state-space"),
                         ("L_dense_conv", "dense short-convolution"), ("L_mlp", "MLP-only"))),
    *(Symbol(f"L_{end}", f"the one unit that hands on what {what}, where a stage has that alone",
             latex=rf"L_{{\mathrm{{{end}}}}}") for end, what in (
                 ("entry", "stands before the layers"), ("exit", "the layers made, to what stands behind them"))),
    Symbol("L_predicted", "one layer that predicts a later token, where a stage has those alone",
           latex=r"L_{\mathrm{predicted}}"),
    Symbol("f_shared", "feed-forward size of the shared experts", latex=r"f_{\mathrm{shared}}"),
    Symbol("h_low", "size of the embedding before it is projected", latex=r"h_{\mathrm{low}}"),
    Symbol("q_rank", "rank of the latent from which queries come", latex=r"r_{q}"),
    Symbol("kv_rank", "rank of the latent from which keys and values come", latex=r"r_{kv}"),
    Symbol("d_nope", "size of the part of a latent head without positions", latex=r"d_{\mathrm{nope}}"),
    Symbol("d_rope", "size of the rotary part of a latent head", latex=r"d_{\mathrm{rope}}"),
    Symbol("d_v", "size of the values of a latent head", latex=r"d_{v}"),
    Symbol("a_state", "heads with a state", latex=r"a_{\mathrm{state}}"),
    Symbol("kv_state", "key heads of states", latex=r"\mathrm{kv}_{\mathrm{state}}"),
    Symbol("d_key", "size of a key of a state", latex=r"d_{\mathrm{key}}"),
    Symbol("d_value", "size of a value of a state", latex=r"d_{\mathrm{value}}"),
    Symbol("taps", "taps of a convolution along the sequence", latex=r"k_{\mathrm{taps}}"),
    Symbol("halo", "places before a block that a convolution reads, one less than its taps"),
    Symbol("v", "pipeline chunks per rank"),
    *(Symbol(f"T_{part}", f"time of a stage's {what}, of one microbatch", "positive rational", rf"T_{part}")
      for part, what in (("F", "forward"), ("B", "backward for the inputs of its ops"),
                         ("W", "backward for the weights of its ops"))),
    Symbol("i", "number of a pipeline stage between the first and the last"),
    *(Symbol(f"n_{unit}", f"instances of {unit} on a pipeline stage", latex=rf"n_{{\mathrm{{{name}}}}}")
      for unit, name in ((u, u.replace("_", r"\_")) for u in STAGED)),
    *(Symbol(f"in_flight_{unit}", f"instances of {unit} of a pipeline stage with a forward and no backward, at most",
             latex=rf"k_{{\mathrm{{{name}}}}}") for unit, name in ((u, u.replace("_", r"\_")) for u in STAGED)),
    *(Symbol(f"first_{unit}", f"place of the first {unit} that a pipeline stage runs among all of them, from 1",
             latex=rf"f_{{\mathrm{{{name}}}}}") for unit, name in ((u, u.replace("_", r"\_")) for u in STAGED)),
    *(Symbol(name, meaning, "positive rational", latex) for name, meaning, latex in (
        ("peak_flops", "flop per second of a device at its peak", "F"),
        ("node_bw", "bytes per second that a device sends to others of its node", r"B_{\mathrm{node}}"),
        ("card_bw", "bytes per second that a device sends through its network card", r"B_{\mathrm{card}}"),
        ("out_bw", "bytes per second that a device sends in all, to its node and through its card",
         r"B_{\mathrm{out}}"),
        ("hbm_bw", "bytes per second of a device's memory", r"B_{\mathrm{hbm}}"),
        ("host_bw", "bytes per second between a device and its host", r"B_{\mathrm{host}}"),
        ("nvme_bw", "bytes per second between a host and its drives, a device's part", r"B_{\mathrm{nvme}}"),
        ("efficiency", "share of peak_flops that products reach", r"\eta"),
        ("link_efficiency", "share of a link's bandwidth that collectives reach", r"\eta_{\mathrm{link}}"),
        ("exposed_states", "share of the traffic of parameters and gradients that nothing hides",
         r"x_{\mathrm{states}}"),
        ("exposed_tensors", "share of the traffic of activations that nothing hides", r"x_{\mathrm{tensors}}"),
        ("latency", "seconds until a collective on activations begins to send", r"\alpha"))),
    *(Symbol(f.symbol, f"unit roundoff of {f.name}: the largest relative error of one rounding to the nearest",
             "positive rational", rf"u_{{\mathrm{{{f.name.replace('_', chr(92) + '_')}}}}}", f.roundoff)
      for f in FORMATS.values()),
)}
"""Every symbol that is not an axis size. An axis size carries the axis's own name."""

RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("E", "I", "N", "O", "Q", "S"), "a name that SymPy keeps for itself"),
    "devices": "the number of devices",
    "microbatch": "the loop over microbatches",
    "layer": "the loop over layers",
    **dict.fromkeys(("tokens", "count"), "a number of tokens, in divisors"),
    **dict.fromkeys(("samples", "all_samples"), "a number of samples, in divisors"),
    "loss_scale": "what multiplies the loss, in divisors",
    **dict.fromkeys(("device", "host", "nvme"), "a tier"),
    "padding": "what shards take when all are as large as the largest, over the elements, in divisors",
    **dict.fromkeys(("rank", "owner"), "ranks, in `where`"),
    "stage": "a pipeline stage",
    **dict.fromkeys(("turn", "turn_old"), "the turns in which a stage takes its chunks, in sums over them"),
    **dict.fromkeys(("all", "only", "first", "middle", "last"), "a position in a loop"),
    "name": "the optimizer's name, in a group's table",
}
"""Word that no axis may have as its name -> what it means elsewhere. The names of SYMBOLS are taken too."""


IN_NODE = "_in_node"
"""Ends the name of the number of ranks of an axis that lie in one node."""

STAGE_ENDS = ("first", "last")
"""The ends of a pipeline: its first stage, which has what stands before the layers, and its last. No repeated unit
is called so."""

PREDICTION = "prediction"
"""The stage before the last one, where it has the layers that predict tokens after the next, and no other."""

ALONE = (STAGE_ENDS[0], PREDICTION, STAGE_ENDS[1])
"""The parts of a model that may have a stage without any of its layers, in order."""

SAID = {PREDICTION: "last but one"}
"""Part -> how its stage is called, where that is not the part's own name."""

ENDS = "_ends"
"""Ends the name of what consists of the first and the last rank of an axis, and stands in that of other such ranks."""


def axis_symbol(name: str) -> Symbol:
    """The symbol of an axis size: its name, printed as N with the name as index."""
    return Symbol(name, f"devices along mesh axis {name}",
                  latex=rf"N_{{\mathrm{{{name.replace('_', chr(92) + '_')}}}}}")


_CALLED: Mapping[str, str] = {word: name for name, words in (
    ("b", "batch batchsize microbatchsize perdevicebatchsize mbs"),
    ("m", "microbatches nummicrobatches gas accumulation accumulationsteps gradientaccumulation "
          "gradientaccumulationsteps accum"),
    ("s", "seq seqlen seqlength sequence sequencelength context contextlength maxseqlen"),
    ("h", "hidden hiddensize hiddendim dmodel embed embeddim"), ("a", "heads nheads numheads attentionheads"),
    ("kv", "kvheads numkvheads"), ("f", "ffn ffnsize intermediatesize mlp"), ("L", "layers nlayers numlayers depth"),
    ("V", "vocab vocabsize vocabulary"), ("devices", "devices gpu gpus ngpus numgpus worldsize nproc ranks"),
    ("Psi", "params parameters"), ("topk", "k expertspertoken"), ("experts", "numexperts nexperts"),
) for word in words.split()}


AXES = ("dp", "tp", "pp", "cp", "ep", "dp_shard", "dp_replicate")
"""The axes of the catalogue's strategies."""


def called(name: str) -> str:
    """The symbol of what is often called so; "" where nothing is.

    >>> called("num-gpus"), called("seq_len"), called("dp")
    ('devices', 's', '')
    """
    return _CALLED.get(letters(name), "")


_MOST_BYTES = 8
"""The bytes of the largest element that frameworks have, a double."""

_MOST_STATE = 4 * _MOST_BYTES
"""The most bytes of an optimizer state: a master copy and three more, each a double."""


def check_size(name: str, value: Fraction) -> None:
    """Refuse more bytes an element than the largest type has, and a share that is none.

    >>> check_size("w", Fraction(16))
    Traceback (most recent call last):
    placealg.errors.InputError: w = 16: an element has at most 8 bytes, and sizes are in bytes: 16 bits are w = 2
    """
    if name == PACKED and not 0 < value <= 1:
        raise InputError(f"{name} = {value}: {SYMBOLS[name].meaning.partition(',')[0]} is above 0 and at most 1")
    if name not in SYMBOLS or not SYMBOLS[name].meaning.startswith("bytes"):
        return
    most = _MOST_STATE if name == "o" else _MOST_BYTES
    if value > most:
        meant = f": {value} bits are {name} = {value / 8}" if value / 8 <= most else ""
        what = "an optimizer state" if name == "o" else "an element"
        raise InputError(f"{name} = {value}: {what} has at most {most} bytes, and sizes are in bytes{meant}")


def meant_size(name: str, known: Iterable[str]) -> str:
    """Which of some names was meant by a size that is none of them: what it is called elsewhere, or a typing error.

    Of a symbol, almost every letter must be right: most are so short that any word is like one of them.

    >>> meant_size("batch_size", ["dp", "b", "act"]), meant_size("pd", ["dp", "b"]), meant_size("gaz", ["dp", "s", "a"])
    ('b', 'dp', '')
    """
    names = list(known)
    if (size := called(name)) in names:
        return size
    return nearest(name, (n for n in names if n not in SYMBOLS)) or nearest(
        name, (n for n in names if n in SYMBOLS and SequenceMatcher(None, name[:40], n).ratio() >= 0.8))


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the device mesh; `size` None keeps it symbolic.

    >>> Axis("dp"), Axis("tp", 8)
    (dp, tp=8)
    """

    name: str
    size: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.name) or keyword.iskeyword(self.name):
            raise InputError(f"'{self.name}' is not an axis name (a letter, then letters, digits or _)")
        if self.name in SYMBOLS or self.name in RESERVED:
            meaning = SYMBOLS[self.name].meaning if self.name in SYMBOLS else RESERVED[self.name]
            raise InputError(f"axis name '{self.name}' is taken: it means {meaning}")
        if self.size is not None and (type(self.size) is not int or self.size < 1):
            raise InputError(f"axis {self.name} has size {self.size!r}: a size is a whole number of at least 1")

    def __repr__(self) -> str:
        return self.name if self.size is None else f"{self.name}={self.size}"


@dataclass(frozen=True, slots=True)
class Mesh:
    """An ordered product of axes, the first one major.

    >>> mesh = Mesh((Axis("dp"), Axis("tp", 8)))
    >>> mesh.names, mesh.devices
    (('dp', 'tp'), 'dp*tp')
    """

    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for axis in self.axes:
            if axis.name in seen:
                raise InputError(f"axis '{axis.name}' is used twice")
            if ENDS in axis.name and axis.name.partition(ENDS)[0] in {a.name for a in self.axes} - {axis.name}:
                raise InputError(f"axis name '{axis.name}' is taken: it means the first and the last of "
                                 f"{axis.name.removesuffix(ENDS)}")
            seen.add(axis.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The axis names, major to minor."""
        return tuple(a.name for a in self.axes)

    @property
    def devices(self) -> str:
        """The device count as a product of axis names."""
        return "*".join(self.names) or "1"

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def __getitem__(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise InputError(f"unknown axis '{name}'", name=name, valid=self.names)

    def sizes(self) -> dict[str, int]:
        """The sizes that are bound to numbers."""
        return {a.name: a.size for a in self.axes if a.size is not None}

    def ranks(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Every rank at concrete `sizes`, as a coordinate per axis, the last axis fastest."""
        ranks: list[dict[str, int]] = [{}]
        for name in self.names:
            ranks = [{**rank, name: k} for rank in ranks for k in range(sizes[name])]
        return iter(ranks)
