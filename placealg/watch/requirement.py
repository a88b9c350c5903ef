"""Which versions of torch the recorder follows, and whether one of them is there."""

from __future__ import annotations

from importlib import metadata

from placealg.errors import InputError

VERSIONS = ("2.13.0",)
"""The versions whose ops of the collective and FSDP namespaces are listed and tried."""


def need_torch() -> None:
    """Raise InputError unless a version of torch that the recorder follows is installed."""
    try:
        found = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        found = ""
    if found not in VERSIONS:
        there = f"found torch {found}" if found else "torch is not installed"
        raise InputError(f"recording needs torch {' or '.join(VERSIONS)}; {there}: pip install torch=={VERSIONS[0]}")
