"""Which versions of torch the recorder follows, and whether one of them is there."""

from __future__ import annotations

from placealg.measure import requirement

VERSIONS = (requirement.TORCH, "2.15.0")
"""The versions whose ops of the collective and FSDP namespaces are listed and tried: that of real runs, the newest."""


def need_torch(what: str = "recording") -> None:
    """Raise InputError unless a version of torch that the recorder follows is installed; `what` is what needs it."""
    requirement.need_torch(f"{what} needs", VERSIONS)
