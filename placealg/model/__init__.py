"""What is trained: models, their units and parameters, with exact counts.

The package is a function, too: `pa.model("llama-3-8b")` is `pa.read_model("llama-3-8b")`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placealg.model.model import Model


class _Package(ModuleType):
    """The package, which gives a model when it is called with a name or the path of a config.json."""

    def __call__(self, name: str, **style: Any) -> Model:
        from placealg.model.config import read_model

        return read_model(name, **style)


sys.modules[__name__].__class__ = _Package
