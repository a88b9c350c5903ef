"""The model of a reading: a shipped configuration by its name, or the fields that the file holds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.reading import Reading
from placealg.models.config import resolve_model
from placealg.models.model import Model


def model_of(reading: Reading, **options: Any) -> Model | None:
    """The model that a reading names; None where it names none.

    Fields that no family of models accepts are an InputError at the configuration.
    """
    if reading.model is None:
        return None
    if isinstance(reading.model, Mapping):
        return model_of_fields(reading.model, Path(reading.file).name, **options)
    return resolve_model(reading.model, **options)


def model_of_fields(fields: Mapping[str, Any], name: str, **options: Any) -> Model:
    """The model of the fields of a config.json, called `name`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{Path(name).stem or 'model'}.json"
        path.write_text(json.dumps(dict(fields)), encoding="utf-8")
        try:
            return resolve_model(str(path), **options)
        except InputError as error:
            raise InputError(f"its model: {error.what}", where=name) from None
