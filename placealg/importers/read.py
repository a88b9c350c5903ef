"""Reading a foreign configuration: its text, its format, and the reader of that format."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.detect import parsed
from placealg.importers.document import Document, read_text, typed
from placealg.importers.reading import Options, Reading
from placealg.importers.tables import formats

READERS: Mapping[str, tuple[str, str]] = {
    "deepspeed": ("deepspeed", "read_deepspeed"),
    "accelerate": ("accelerate", "read_accelerate"),
    "torchtitan": ("torchtitan", "read_torchtitan"),
    "nanotron": ("nanotron", "read_nanotron"),
    "torchtitan_py": ("torchtitan_py", "read_registry"),
    "titan_layouts": ("titan_sharding", "read_layouts"),
    "pipeline_csv": ("pipeline_csv", "read_pipeline_csv"),
    "llamafactory": ("llamafactory", "read_llamafactory"),
    "llamafactory_v1": ("llamafactory_v1", "read_v1"),
    "trl": ("trl", "read_trl"),
    "trainer": ("trainer", "read_trainer"),
    "axolotl": ("axolotl", "read_axolotl"),
    "maxtext": ("maxtext", "read_maxtext"),
    "maxtext_sh": ("maxtext", "read_maxtext_script"),
    "levanter": ("levanter", "read_levanter"),
    "dtensor": ("dtensor", "read_dtensor"),
    "nemo": ("nemo", "read_nemo"),
    "automodel": ("automodel", "read_automodel"),
    "tp_plan": ("tp_plan", "read_tp_plan"),
    "megatron": ("megatron_lines", "read_flags_yaml"),
    "megatron_sh": ("megatron_lines", "read_script"),
    "megatron_log": ("megatron_lines", "read_log"),
    "megatron_bridge": ("megatron_files", "read_bridge"),
    "flagscale": ("megatron_files", "read_flagscale"),
    "primus": ("megatron_files", "read_primus"),
}
"""Format -> the module and the function that read it."""


def read(path: str | Path, **said: Any) -> Reading:
    """The reading of a file; keywords are the fields of Options: world_size=64, model="llama-3-8b", files=(...)."""
    return read_file(str(path), Options(**said))


def read_file(path: str, options: Options) -> Reading:
    """The reading of a file with what a user says beside it."""
    return replace(reading_of(read_text(path), path, options), options=options)


def read_once(reading: Reading) -> Reading:
    """The reading of a step with one microbatch, where nothing says how many: its gradients do not rest whole."""
    if not reading.accumulates or reading.options is None:
        return reading
    return read_file(reading.file, replace(reading.options, microbatches=1))


def reading_of(text: str, file: str, options: Options) -> Reading:
    """The reading of a text, which errors call `file`."""
    if options.format and options.format not in formats():
        raise InputError(f"unknown format '{options.format}'", where="--as", name=options.format, valid=formats())
    name, document = parsed(placed_settings(text, options.settings), file, options.format)
    document = overridden(document, options.settings)
    return reader_of(name)(document, options)


def reader_of(name: str) -> Callable[[Document, Options], Reading]:
    """The reader of a format."""
    module, function = READERS[name]
    reader: Callable[[Document, Options], Reading] = getattr(import_module(f"placealg.importers.{module}"), function)
    return reader


def read_words(words: Sequence[str], options: Options) -> Reading:
    """The reading of a command line, given as its words."""
    from placealg.importers.maxtext import is_maxtext, read_maxtext_words
    from placealg.importers.megatron_lines import read_command

    if is_maxtext(" ".join(words)):
        return read_maxtext_words(words, "command line", "", options)
    return read_command(words, options)


def overridden(document: Document, settings: Mapping[str, str]) -> Document:
    """A document with the values of --key KEY=VALUE in the place of its own; KEY is dotted."""
    data = copy.deepcopy(document.data)
    for name, value in settings.items():
        if not isinstance(data, dict) or re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            continue
        *above, last = name.lstrip("-").split(".")
        inner = data
        for part in above:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InputError(f"'{part}' holds no keys in {document.file}", where=f"--key {name}={value}")
        inner[last] = typed(value)
    return replace(document, data=data) if settings else document


def placed_settings(text: str, settings: Mapping[str, str]) -> str:
    """A template's text with the values of --set in the place of its bare words.

    >>> placed_settings('{"stage": ZERO_STAGE}', {"ZERO_STAGE": "2"})
    '{"stage": 2}'
    """
    for name, value in settings.items():
        if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            text = re.sub(rf"\$\{{{name}\}}|\$?\b{name}\b", lambda _, value=value: value, text)  # type: ignore[misc]
    return text
