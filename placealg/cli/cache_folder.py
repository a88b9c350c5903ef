"""The user's folder for what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Where what can be made again is kept: below $XDG_CACHE_HOME, or ~/.cache.

    >>> cache_folder("search").parts[-2:]
    ('placealg', 'search')
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "placealg" / name
