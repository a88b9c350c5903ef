"""placealg: a placement becomes a step program, closed forms and a proof.

>>> import placealg as pa
>>> pa.communication(pa.zero3(), pa.abstract()).total
Ψ·m·(2·w + wire)·(dp − 1)/dp bytes

Names load when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placealg.cost.communication import Communication
    from placealg.cost.comparison import Answer
    from placealg.cost.formula import Formula
    from placealg.cost.memory import Memory
    from placealg.errors import InputError
    from placealg.importers.reading import Reading
    from placealg.model.abstract import abstract
    from placealg.model.build import graph
    from placealg.model.model import Model
    from placealg.model.transformer import gpt, mla, mlp, moe
    from placealg.prover.verdict import Report
    from placealg.render.svg import Picture
    from placealg.simulator import Outcome, Setting
    from placealg.step.derive import derive
    from placealg.step.edit import edit
    from placealg.step.program import Step
    from placealg.strategy.catalogue import (
        catalogue,
        cp,
        cp_ring,
        cp_ulysses,
        dp,
        ep,
        fsdp,
        fsdp_no_reshard,
        hsdp,
        mics,
        offload_optimizer,
        offload_parameters,
        pp,
        pp_1f1b,
        pp_gpipe,
        pp_interleaved,
        recompute_full,
        recompute_selective,
        tp,
        tp_sp,
        tp_sp_keep,
        zero1,
        zero2,
        zero3,
        zeropp,
    )
    from placealg.strategy.expression import parse_strategy
    from placealg.strategy.spec import Strategy, strategy_on

_HOME = {
    "InputError": "placealg.errors",
    "Strategy": "placealg.strategy.spec",
    "strategy_on": "placealg.strategy.spec",
    "parse_strategy": "placealg.strategy.expression",
    **dict.fromkeys(("catalogue", "dp", "zero1", "zero2", "zero3", "fsdp", "fsdp_no_reshard", "hsdp",
                     "mics", "zeropp", "tp", "tp_sp", "tp_sp_keep", "cp", "cp_ulysses", "cp_ring", "pp", "pp_gpipe",
                     "pp_1f1b", "pp_interleaved", "ep", "offload_optimizer", "offload_parameters", "recompute_full",
                     "recompute_selective"),
                    "placealg.strategy.catalogue"),
    "Model": "placealg.model.model",
    "Report": "placealg.prover.verdict",
    "abstract": "placealg.model.abstract",
    "graph": "placealg.model.build",
    **dict.fromkeys(("gpt", "mla", "mlp", "moe"), "placealg.model.transformer"),
    "derive": "placealg.step.derive",
    "edit": "placealg.step.edit",
    "Step": "placealg.step.program",
    "Formula": "placealg.cost.formula",
    "Setting": "placealg.simulator.setting",
}
"""Public name -> the module that defines it."""

__all__ = [
    "abstract", "catalogue", "communication", "compare", "cp", "cp_ring", "cp_ulysses", "derive", "dp", "draw", "edit",
    "ep", "Formula", "from_torch", "fsdp",
    "fsdp_no_reshard", "gpt", "graph", "hsdp", "InputError", "memory", "mics", "mla", "mlp",
    "Model", "moe", "offload_optimizer", "offload_parameters", "parse_strategy", "pp", "pp_1f1b", "pp_gpipe",
    "pp_interleaved", "prove", "recompute_full", "recompute_selective", "read", "Report", "Setting", "simulate", "Step",
    "Strategy", "strategy_on", "tp", "tp_sp", "tp_sp_keep", "zero1", "zero2", "zero3", "zeropp",
]


def memory(strategy: Strategy, model: Model, stage: int | str | None = None) -> Memory:
    """What each device holds: a Formula per state at rest, transient, host, total and peak, in bytes.

    Of a pipeline, a device of `stage`: a number from 0, "first" or "last"; without one, of the most loaded stage where
    strategy and model bind all sizes, else of the first.
    """
    from placealg.cost.memory import chosen
    from placealg.cost.memory import memory as of
    from placealg.step.derive import derive

    return of(chosen(derive(strategy, model), stage))


def communication(strategy: Strategy, model: Model, stage: int | str | None = None) -> Communication:
    """What each device sends in a step: a Formula per event, axis set, phase, and in all; `stage` is as in `memory`."""
    from placealg.cost.communication import communication as of
    from placealg.cost.memory import chosen
    from placealg.step.derive import derive

    return of(chosen(derive(strategy, model), stage))


def compare(one: Strategy, two: Strategy, model: Model, claim: str, where: str = "", **sizes: Any) -> Answer:
    """Whether a figure of one strategy stands in a relation to the other's for all sizes, such as `memory.total <=`."""
    from placealg.check.claims import compare_strategies

    return compare_strategies(one, two, model, claim, where, **sizes)


def read(path: str, **said: Any) -> Reading:
    """What a training framework's configuration says of a strategy: the strategy, the model, sizes, and four lists.

    `said` supplies what the file leaves open: world_size=64, model="llama-3-8b", files=("ds_config.json",), env={...}.
    A file that no strategy can stand for is an InputError.
    """
    from placealg.importers.read import read as reading

    return reading(path, **said)


def from_torch(model: Any, mesh: Any) -> Strategy:
    """The strategy of a live PyTorch model, or of its state dict: DTensor placements on a DeviceMesh with named dims.

    It needs the extra `torch`; without it an InputError says what to install.
    """
    from placealg.measure.requirement import need_torch

    need_torch()
    from placealg.measure.layout import from_torch as read

    return read(model, mesh)


def draw(what: Strategy | Step, **sizes: int) -> Picture:
    """A strategy on the mesh, with what every device holds, at `sizes` such as dp=8; or a step program in lanes.

    >>> draw(parse_strategy("zero3"), dp=4)
    zero3 on 4 devices: a picture of 850 by 234
    """
    from placealg.errors import InputError
    from placealg.render.mesh_drawing import draw_strategy
    from placealg.render.step_drawing import draw_step
    from placealg.step.program import Step

    if isinstance(what, Step):
        if sizes:
            raise InputError("a program is drawn for all sizes: only a strategy is drawn at some")
        return draw_step(what)
    return draw_strategy(what, **sizes)


def _program(what: Strategy | Step, model: Model | None) -> Step:
    """The program that is meant: itself, or the one that follows from a strategy and a model."""
    from placealg.errors import InputError
    from placealg.step.derive import derive
    from placealg.step.program import Step

    if isinstance(what, Step):
        if model is not None:
            raise InputError("a program is of its own model: name none beside it")
        return what
    if model is None:
        raise InputError("a strategy stands on a model: name one, such as pa.abstract()")
    return derive(what, model)


def prove(what: Strategy | Step, model: Model | None = None, base: Step | None = None) -> Report:
    """Whether the distributed step equals the single-device step: a Verdict per obligation, one overall.

    `what` is a strategy on a model, or a program; `base` is the program from which an edited one comes, to which a
    repair may lead back.

    >>> prove(parse_strategy("zero1"), Model.from_config("gpt2")).verdict
    'PROVED'
    """
    from placealg.check.prove import prove as of

    return of(_program(what, model), base)


def simulate(what: Strategy | Step, model: Model | None, setting: Setting, steps: int = 2) -> Outcome:
    """Whether one concrete run, rank by rank in exact arithmetic, equals the single device's.

    `what` is a strategy on a model, or a program, whose model is None.
    """
    from placealg.simulator.run import simulate as run

    return run(_program(what, model), setting, steps)


if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("placealg.version").VERSION
    if name not in _HOME:
        raise AttributeError(f"module 'placealg' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
