"""The model of a reading: a shipped configuration by its name, or the fields that the file holds, run as it says."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.importers.reading import Reading
from placealg.models.config import has_style, resolve_model
from placealg.models.losses import with_loss
from placealg.models.model import Model


def model_of(reading: Reading, **options: Any) -> Model | None:
    """The model that a reading names, run as its file says; None where it names none.

    Fields that no family of models accepts are an InputError at the configuration.
    """
    if reading.model is None:
        return None
    options = {**options, "mtp": True} if "predictions" in reading.strategy.attributes else options
    if isinstance(reading.model, Mapping):
        chosen = {**options, **runs_of(reading, "", options)}
        return run_as(reading, model_of_fields(reading.model, Path(reading.file).name, **chosen))
    return model_as_read(reading, reading.model, **options)


def model_as_read(reading: Reading, name: str, **options: Any) -> Model:
    """The model of a name, run as a reading's file says unless `options` say otherwise."""
    return run_as(reading, resolve_model(name, **{**options, **runs_of(reading, name, options)}))


def runs_of(reading: Reading, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the model of a name that a reading's file decides and `options` do not."""
    if not has_style(name):
        return {}
    return {option: reading.runs[option] for option in ("flash", "dropout")
            if option in reading.runs and options.get(option) is None}


def run_as(reading: Reading, model: Model) -> Model:
    """The model with its cross entropies, if it has any, run as a reading's file says."""
    way = reading.runs.get("loss")
    return with_loss(model, way) if way and any(op.kind == "cross_entropy" for op in model.graph.ops) else model


def model_of_fields(fields: Mapping[str, Any], name: str, **options: Any) -> Model:
    """The model of the fields of a config.json, called `name`; its vocabulary is open where they give none."""
    if fields.get("vocab_size") is None:
        model = model_of_fields({**fields, "vocab_size": 2**20}, name, **options)
        return replace(model, sizes=FrozenMap({n: size for n, size in model.sizes.items() if n != "V"}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{Path(name).stem or 'model'}.json"
        path.write_text(json.dumps(dict(fields)), encoding="utf-8")
        try:
            return resolve_model(str(path), **options)
        except InputError as error:
            raise InputError(f"its model: {error.what}", where=name) from None
