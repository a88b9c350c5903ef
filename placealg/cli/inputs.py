"""The words of a command line that say what a case is: options of the model, files of frameworks, a stage."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from placealg.cases.case import CommandOptions, StyleOptions
from placealg.errors import InputError

if TYPE_CHECKING:
    from placealg.importers.reading import Options as Foreign


def style(chosen: Namespace) -> StyleOptions:
    """The options of the model's transformer among the words of a command line."""
    return StyleOptions(flash=chosen.flash, dropout=chosen.dropout, parallel=chosen.parallel, fused=chosen.fused,
                 mtp=chosen.mtp, upcast=chosen.upcast)


def options(chosen: Namespace) -> CommandOptions:
    """The options of a case among the words of a command line."""
    said = CommandOptions(flash=chosen.flash, dropout=chosen.dropout, parallel=chosen.parallel, fused=chosen.fused,
                   mtp=chosen.mtp, upcast=chosen.upcast)
    if getattr(chosen, "precision", None):
        said["precision"] = chosen.precision
    if getattr(chosen, "loss", None):
        said["loss"] = chosen.loss
    if (found := foreign(chosen)) is not None:
        said["foreign"] = found
    return said


_FOREIGN = ("world_size", "nodes", "per_node", "files", "form", "env", "settings", "arguments", "function", "framework",
            "trainer", "microbatches", "ignore", "launch")


def foreign(chosen: Namespace) -> Foreign | None:
    """What a command line says beside a framework's configuration; None where it says nothing of the kind."""
    if not any(getattr(chosen, name, None) for name in _FOREIGN):
        return None
    from placealg.cli.foreign import foreign_options

    return foreign_options(chosen)


def read_stage(word: str | None) -> str | None:
    """The stage that `--rank` names.

    >>> read_stage("stage=last")
    'last'
    """
    if word is None:
        return None
    name, equals, which = (part.strip() for part in word.partition("="))
    if name != "stage" or not equals:
        raise InputError(f"'{word}' is not stage=WHICH, where WHICH is first, last, a number from 0, or i for any "
                         "between", where="--rank")
    return which
