"""Which versions of torch the recorder follows, and whether one of them is there."""

from __future__ import annotations

from importlib import metadata

from placealg.errors import InputError

VERSIONS = ("2.13.0", "2.15.0")
"""The versions whose ops of the collective and FSDP namespaces are listed and tried: that of real runs, the newest."""


def need_torch(what: str = "recording") -> None:
    """Raise InputError unless a version of torch that the recorder follows is installed; `what` is what needs it."""
    try:
        found = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        found = ""
    if found not in VERSIONS:
        there = f"found torch {found}" if found else "torch is not installed"
        raise InputError(f"{what} needs torch {' or '.join(VERSIONS)}; {there}: pip install torch=={VERSIONS[0]}")
