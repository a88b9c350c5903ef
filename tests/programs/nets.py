"""Small models in which something stands that the shipped ones lack, for programs that were once proved by mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placealg.models.build import Builder, graph
from placealg.models.model import Model

Layers = Callable[[Builder, str], str]
"""From what enters a unit to what leaves it."""


def language_model(name: str, layers: Layers, *, seq: str = "seq", repeated: bool = True, left: str = "",
                   tied: bool = False) -> Model:
    """Tokens are looked up, run through `layers`, and projected to a vocabulary; what is `left` has these dims."""
    dims = {d: "s" for d in seq.split()}
    g = graph(batch="b", **dims, embed="h", vocab="V")
    table = g.parameter("embedding.weight", "vocab embed")
    x = g.lookup("embedding.tokens", table, g.ids("data.tokens", f"batch {seq}"), over="vocab")
    y = layers(g, g.repeat("layer", "L", x) if repeated else x)
    rows = left or f"batch {seq}"
    projection = table if tied else g.parameter("head.weight", "embed vocab")
    logits = g.einsum("head.logits", y, projection, to=f"{rows} vocab")
    g.cross_entropy("head.loss", logits, g.ids("data.targets", rows), over="vocab")
    g.sum("loss.sum", "head.loss")
    return Model.of_graph(name, g.build())


def scaled(g: Builder, x: str) -> str:
    """A weight for each element of a row."""
    return g.einsum("layer.up", x, g.parameter("layer.weight", "embed"), to="batch seq embed")


def tanh_last() -> Model:
    """The backward of a layer's last op reads the layer's result."""
    return language_model("tanh last", lambda g, x: g.unary("layer.act", scaled(g, x), "tanh"))


def gelu_last() -> Model:
    """The backward of a layer's last op reads what it worked on."""
    return language_model("gelu last", lambda g, x: g.unary("layer.act", scaled(g, x), "gelu"))


def gated() -> Model:
    """Layers that read data."""
    def layers(g: Builder, x: str) -> str:
        return g.unary("layer.act", scaled(g, g.mul("layer.gated", x, g.data("data.gate", "batch seq embed"))), "tanh")
    return language_model("gated", layers)


def linear_last() -> Model:
    """A layer's last op is linear, and its first is not."""
    return language_model("linear last", lambda g, x: scaled(g, g.unary("layer.act", x, "gelu")))


def exchanging() -> Model:
    """A layer exchanges two dims: what is split along one of them enters the next layer split along the other."""
    def layers(g: Builder, x: str) -> str:
        return g.scale("layer.out", g.rename("layer.swap", x, {"p": "q", "q": "p"}), "2")
    return language_model("exchanging", layers, seq="p q")


def summing() -> Model:
    """No layers; an op contracts a dim that its result lacks."""
    def layers(g: Builder, x: str) -> str:
        a = g.einsum("mid.a", x, g.parameter("mid.weight", "embed"), to="batch seq embed")
        y = g.einsum("mid.y", x, g.data("data.gate", "batch seq"), to="batch embed")
        return g.einsum("mid.z", a, y, to="batch embed")
    return language_model("summing", layers, repeated=False, left="batch")


def two_kinds() -> Model:
    """Two repeated units, one behind the other."""
    def layers(g: Builder, x: str) -> str:
        y = g.einsum("dense.up", x, g.parameter("dense.weight", "embed"), to="batch seq embed")
        return g.unary("layer.act", scaled(g, g.repeat("layer", "L", g.unary("dense.out", y, "gelu"))), "gelu")
    return language_model("two kinds of layers", lambda g, x: layers(g, g.repeat("dense", "D", x)), repeated=False)


def tied_layers() -> Model:
    """The table of the lookup is that of the projection."""
    return language_model("tied layers", lambda g, x: g.unary("layer.act", scaled(g, x), "gelu"), tied=True)


def all_tied() -> Model:
    """Layers without parameters: the table is the only one."""
    return language_model("all tied", lambda g, x: g.unary("layer.act", x, "gelu"), tied=True)


def weighed_by_data() -> Model:
    """Layers that multiply what enters them by data, which is linear in both."""
    def layers(g: Builder, x: str) -> str:
        y = g.einsum("layer.gated", x, g.data("data.gate", "batch seq embed"), to="batch seq embed")
        return g.unary("layer.act", scaled(g, y), "tanh")
    return language_model("weighed by data", layers)


def two_branches() -> Model:
    """Two repeated units that begin with the same tensor, side by side."""
    def layers(g: Builder, x: str) -> str:
        y = g.repeat("one", "L", x)
        y = g.unary("one.act", g.einsum("one.up", y, g.parameter("one.weight", "embed"), to="batch seq embed"), "gelu")
        z = g.unary("layer.act", scaled(g, g.repeat("layer", "L", x)), "gelu")
        return g.add("head.sum", y, z)
    return language_model("two branches", layers, repeated=False)


def choosing(own: bool = False) -> Model:
    """What is chosen by passes no gradient: the logits have one from elsewhere, or only the parameter has one."""
    g = graph(batch="b", seq="s", embed="h", vocab="V", code="n", choice="k")
    table, gate = g.parameter("embedding.weight", "vocab embed"), g.parameter("mid.gate.weight", "embed code")
    x = g.lookup("embedding.tokens", table, g.ids("data.tokens", "batch seq"), over="vocab")
    logits = g.einsum("mid.logits", x, gate, to="batch seq code")
    ids = g.route("mid.ids", g.unary("mid.act", logits, "gelu"), "code", "choice")
    picked = g.einsum("mid.picked", ids, g.parameter("mid.table.weight", "code embed"), to="batch seq embed")
    y = g.einsum("mid.y", picked, x, to="batch seq embed")
    again = g.einsum("mid.own", y, gate, to="batch seq code") if own else logits
    y = g.add("mid.z", y, g.einsum("mid.back", again, gate, to="batch seq embed"))
    rows = g.einsum("head.logits", y, g.parameter("head.weight", "embed vocab"), to="batch seq vocab")
    g.cross_entropy("head.loss", rows, g.ids("data.targets", "batch seq"), over="vocab")
    g.sum("loss.sum", "head.loss")
    return Model.of_graph("choosing", g.build())


def attending_data() -> Model:
    """Attention whose queries and keys are data."""
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", heads="a", head_dim="d", vocab="V")
    table = g.parameter("embedding.weight", "vocab embed")
    x = g.lookup("embedding.tokens", table, g.ids("data.tokens", "batch seq"), over="vocab")
    q, k = g.data("data.q", "batch seq heads head_dim"), g.data("data.k", "batch seq_kv heads head_dim")
    v = g.einsum("mid.v", x, g.parameter("mid.weight", "embed heads head_dim"), to="batch seq heads head_dim")
    y = g.flash("mid.core", q, k, g.rename("mid.values", v, {"seq": "seq_kv"}), over="head_dim seq_kv")
    y = g.einsum("mid.out", y, g.parameter("mid.proj", "heads head_dim embed"), to="batch seq embed")
    rows = g.einsum("head.logits", y, g.parameter("head.weight", "embed vocab"), to="batch seq vocab")
    g.cross_entropy("head.loss", rows, g.ids("data.targets", "batch seq"), over="vocab")
    g.sum("loss.sum", "head.loss")
    return Model.of_graph("attending data", g.build())


def opaque_layers() -> Model:
    """Units that run whole; what the first one reads is read by each layer, too."""
    g = graph(batch="b", vocab="V", embed="h", element="f")
    table = g.parameter("embedding.weight", "vocab embed")
    x = g.repeat("layer", "L", g.opaque("embedding.out", g.data("data.input", "batch"), table, to="batch"))
    g.opaque("layer.out", x, table, g.parameter("layer.weight", "element"), to="batch")
    g.sum("loss.sum", "layer.out")
    return Model.of_graph("opaque layers", g.build())


NETS: Mapping[str, Callable[[], Model]] = {
    "tanh last": tanh_last, "gelu last": gelu_last, "gated": gated, "linear last": linear_last,
    "exchanging": exchanging, "summing": summing,
    "two kinds of layers": two_kinds, "tied layers": tied_layers, "all tied": all_tied,
    "weighed by data": weighed_by_data, "two branches": two_branches, "choosing": choosing,
    "choosing, and again": lambda: choosing(own=True), "attending data": attending_data}
OPAQUE: Mapping[str, Callable[[], Model]] = {"opaque layers": opaque_layers}
