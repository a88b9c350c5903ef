"""What a file says of its tokens: which are masked in the loss, whether sequences are packed, where positions begin."""

from __future__ import annotations

import json
from collections.abc import Iterable

from placealg.importers.draft import Draft

Attribute = tuple[str, bool | str]
"""A key of [tokens], and what it says."""

WEIGHTS: Attribute = ("weights", True)
DOCUMENTS: Attribute = ("documents", True)
POSITIONS: Attribute = ("positions", "data")


OWNERS = "who owns which part of a sequence, in a zig-zag say: what is proved is of any owners"
"""What becomes of a key that balances work along a sequence."""


def read_owners(draft: Draft, keys: Iterable[str], cut: bool) -> None:
    """Keys that balance the work of ranks that share sequences; `cut` says that some do."""
    for key in keys:
        if cut and draft.said.has(key):
            draft.said.read(key, OWNERS)
        draft.said.leave(key, "no ranks share sequences")


def read_tokens(draft: Draft, key: str, *said: Attribute, on: bool | None = None, off: str = "") -> None:
    """What a key that is on says of tokens; one that is off is told as that, where it stands in the file."""
    if draft.said.flag(key) if on is None else on:
        for name, value in said:
            draft.parts.say("tokens", name, value)
        told = (f"{name} = {json.dumps(value)}" for name, value in said)
        draft.said.read(key, f"[tokens] {', '.join(told)}")
    else:
        draft.said.leave(key, off or "off")
