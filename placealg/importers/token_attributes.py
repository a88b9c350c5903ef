"""What a file says of its tokens: which are masked in the loss, whether sequences are packed, where positions begin."""

from __future__ import annotations

import json

from placealg.importers.draft import Draft

Attribute = tuple[str, bool | str]
"""A key of [tokens], and what it says."""

WEIGHTS: Attribute = ("weights", True)
DOCUMENTS: Attribute = ("documents", True)
POSITIONS: Attribute = ("positions", "data")


def read_tokens(draft: Draft, key: str, *said: Attribute, on: bool | None = None, off: str = "") -> None:
    """What a key that is on says of tokens; one that is off is told as that, where it stands in the file."""
    if draft.said.flag(key) if on is None else on:
        for name, value in said:
            draft.parts.say("tokens", name, value)
        told = (f"{name} = {json.dumps(value)}" for name, value in said)
        draft.said.read(key, f"[tokens] {', '.join(told)}")
    else:
        draft.said.leave(key, off or "off")
