"""Which torch real runs are held against, and whether it is there."""

from __future__ import annotations

from importlib import metadata

from placealg.errors import InputError

TORCH = "2.13.0"
"""The one version whose behaviour the strategy files describe."""


def need_torch() -> None:
    """Raise InputError unless that version of torch is installed."""
    try:
        found = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        found = ""
    if found != TORCH:
        there = f"found torch {found}" if found else "torch is not installed"
        raise InputError(f"real runs need torch {TORCH}; {there}: pip install torch=={TORCH}")
