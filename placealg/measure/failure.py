"""The one error of real runs: a rank that died, raised or hung."""

from __future__ import annotations


class RankError(RuntimeError):
    """A real run that came to no end of its own, in one line; the command line exits with 3."""
