"""New values of parameters: whether each is updated, and where what it is afterwards comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placealg.watch.differences import Difference, Table
from placealg.watch.expected import Route
from placealg.watch.seen import Chain


def updates(chain: Chain, route: Route, sizes: Mapping[str, int]) -> Iterator[Difference]:
    """Whether the parameter is updated, and where its new value comes from."""
    name, group = chain.parameter, route.group.name
    if not chain.updated and (route.update is None or route.publish is None):
        return
    if chain.updated and route.update is None:
        yield Difference("update", group, f"{name} is updated; the program does not update it", "", (), (name,))
        return
    if not chain.updated:
        held = route.publish
        published = [a for a in (held.axes if held else ()) if sizes[a] > 1]
        gone = held if published else route.update
        drops: tuple[Table, ...] = ({"drop": gone.path},) if gone else ()
        what = ("keeps its old value: what its owner made is not published" if published else
                "is not updated")
        yield Difference("update", group, f"{name} {what}", "", drops, (name,))
        return
    got = sorted({a for h in chain.new for a in h.axes})
    want = sorted(a for a in (route.publish.axes if route.publish else ()) if sizes[a] > 1)
    if got != want:
        edits: tuple[Table, ...] = ()
        if route.publish and want:
            edits = ({"set": route.publish.path, "axes": got} if got else {"drop": route.publish.path},)
        yield Difference("publish", group, f"{name}: its new value comes "
                         f"{'over ' + listed(got) if got else 'from this rank alone'}; the program publishes it "
                         f"{'over ' + listed(want) if want else 'along no axis'}",
                         chain.new[0].line if chain.new else "", edits, (name,))


def listed(axes: Sequence[str]) -> str:
    """Axes as a message has them.

    >>> listed(["dp", "tp"])
    '[dp, tp]'
    """
    return f"[{', '.join(axes)}]"
