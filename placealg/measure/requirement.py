"""Which torch real runs are held against, and whether it is there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from placealg.errors import InputError

TORCH = "2.13.0"
"""The one version whose behaviour the strategy files describe."""


def need_torch(what: str = "real runs need", versions: Sequence[str] = (TORCH,)) -> None:
    """Raise InputError unless one of these versions of torch is installed; `what` is what needs it, with the verb."""
    try:
        found = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        found = ""
    if found not in versions:
        there = f"found torch {found}" if found else "torch is not installed"
        raise InputError(f"{what} torch {' or '.join(versions)}; {there}: pip install torch=={versions[0]}")
