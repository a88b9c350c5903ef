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
    from pathlib import Path

    from placealg.check.claims import Side
    from placealg.cli.inputs import CommandCase
    from placealg.cost.communication import Communication
    from placealg.cost.comparison import Answer
    from placealg.cost.costs import Costs
    from placealg.cost.formula import Formula
    from placealg.cost.memory import Memory
    from placealg.errors import InputError
    from placealg.importers.reading import Reading
    from placealg.model.abstract import abstract
    from placealg.model.build import graph
    from placealg.model.model import Model
    from placealg.model.transformer import gpt, mla, mlp, moe
    from placealg.prover.verdict import Counterexample, Report
    from placealg.render.compare import Comparison
    from placealg.render.svg import Picture
    from placealg.simulator import Outcome, Setting
    from placealg.step.derive import derive, groups_by_name
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
        pp_zb_h1,
        pp_zb_h2,
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
                     "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "ep", "offload_optimizer",
                     "offload_parameters", "recompute_full", "recompute_selective"),
                    "placealg.strategy.catalogue"),
    "Model": "placealg.model.model",
    "Report": "placealg.prover.verdict",
    "abstract": "placealg.model.abstract",
    "graph": "placealg.model.build",
    **dict.fromkeys(("gpt", "mla", "mlp", "moe"), "placealg.model.transformer"),
    "derive": "placealg.step.derive",
    "groups_by_name": "placealg.step.derive",
    "edit": "placealg.step.edit",
    "Step": "placealg.step.program",
    "Formula": "placealg.cost.formula",
    "Setting": "placealg.simulator.setting",
    "Answer": "placealg.cost.comparison",
    "Communication": "placealg.cost.communication",
    "Comparison": "placealg.render.compare",
    "Costs": "placealg.cost.costs",
    "Counterexample": "placealg.prover.verdict",
    "Memory": "placealg.cost.memory",
    "Outcome": "placealg.simulator.run",
    "Picture": "placealg.render.svg",
}
"""Public name -> the module that defines it."""

__all__ = [
    "abstract", "Answer", "catalogue", "Communication", "communication", "compare", "Comparison", "Costs", "costs",
    "Counterexample", "cp", "cp_ring", "cp_ulysses", "decide", "derive", "dp", "draw", "edit",
    "ep", "Formula", "from_torch", "fsdp",
    "fsdp_no_reshard", "gpt", "graph", "groups_by_name", "hsdp", "InputError", "Memory", "memory", "mics", "mla", "mlp",
    "Model", "moe", "offload_optimizer", "offload_parameters", "Outcome", "parse_strategy", "Picture", "pp", "pp_1f1b",
    "pp_gpipe", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "prove", "recompute_full", "recompute_selective", "read",
    "Report", "Setting", "simulate", "Step", "Strategy", "strategy_on", "tp", "tp_sp", "tp_sp_keep", "zero1", "zero2",
    "zero3", "zeropp",
]


def memory(what: Strategy | Step | str | Path, model: Model | str | None = None,
           stage: int | str | None = None) -> Memory:
    """What each device holds: a Formula per state at rest, transient, host, total and peak, in bytes.

    Of a pipeline, a device of `stage`: a number from 0, "first" or "last"; without one, of the most loaded stage where
    strategy and model bind all sizes, else of the first.

    >>> memory("zero3", "abstract").states
    Ψ·(w + g + o)/dp bytes
    """
    return costs(what, model, stage).memory


def communication(what: Strategy | Step | str | Path, model: Model | str | None = None,
                  stage: int | str | None = None) -> Communication:
    """What each device sends in a step: a Formula per event, axis set, phase, and in all; `stage` is as in `memory`."""
    return costs(what, model, stage).communication


def costs(what: Strategy | Step | str | Path, model: Model | str | None = None,
          stage: int | str | None = None) -> Costs:
    """Every figure of a program by its path, `costs(...).figures`; `stage` is as in `memory`.

    >>> costs("zero3", "abstract").figures["communication.total"]
    Ψ·m·(2·w + wire)·(dp − 1)/dp bytes
    """
    from placealg.cost.costs import Costs
    from placealg.cost.memory import chosen

    return Costs(chosen(_program(what, model), stage))


def compare(*what: Strategy | Step | str | Path, model: Model | str | None = None, **sizes: Any) -> Comparison:
    """Programs side by side, as `placealg compare` prints them: formulas, values at `sizes`, ratios to the first.

    >>> compare("zero3", "dp", model="abstract").ratio("states")
    dp
    """
    from placealg.cost.formula import exact_size
    from placealg.errors import InputError
    from placealg.render.compare import Compared, Comparison

    if not what:
        raise InputError("compare takes strategies or programs: there is none")
    every = [costs(one, model) for one in what]
    exact = {n: exact_size(n, size) for n, size in sizes.items()}
    sides = tuple(Compared(c.step.reference.strategy, c, exact) for c in every)
    return Comparison(sides, every[0].step.reference.model)


def decide(one: Strategy | Step | str | Path, two: Strategy | Step | str | Path, claim: str,
           model: Model | str | None = None, where: str = "", **sizes: Any) -> Answer:
    """Whether a figure of one program stands in a relation to the other's for all sizes, such as `memory.total <=`.

    That sizes divide is assumed of strategies, whose rules say what divides; a program brings no such rule.

    >>> decide("zero3", "dp", "memory.states <=", "abstract").verdict
    'PROVED'
    """
    from placealg.check.claims import decide_claim

    return decide_claim(_side(one, model), _side(two, model), claim, where, **sizes)


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


def _model(model: Model | str | None) -> Model | None:
    if isinstance(model, str):
        from placealg.model.config import resolve_model

        return resolve_model(model)
    return model


def _program(what: Strategy | Step | str | Path, model: Model | str | None) -> Step:
    """The program that is meant: itself, or the one that follows from a strategy and a model, or that a file says."""
    from placealg.errors import InputError
    from placealg.step.derive import derive
    from placealg.step.program import Step
    from placealg.strategy.spec import Strategy

    if isinstance(what, Step):
        if model is not None:
            raise InputError("a program is of its own model: name none beside it")
        return what
    if not isinstance(what, Strategy):
        return _case(what, model).step
    on = _model(model)
    if on is None:
        raise InputError("a strategy stands on a model: name one, such as pa.abstract()")
    return derive(what, on)


def _case(what: object, model: Model | str | None) -> CommandCase:
    """What an expression or a strategy file says, on the model that it names or needs where none is given."""
    from pathlib import Path

    from placealg.cli.inputs import read_case
    from placealg.errors import InputError

    if not isinstance(what, str | Path):
        raise InputError(f"a {type(what).__name__} is no strategy: a Strategy, a Step, an expression such as "
                         "'zero3*tp_sp' or a strategy file is one")
    return read_case(str(what), model, ())


def _side(what: Strategy | Step | str | Path, model: Model | str | None) -> Side:
    """A program, with the strategy and model from which it comes where there are any."""
    from placealg.check.claims import Side
    from placealg.step.program import Step
    from placealg.strategy.spec import Strategy

    if isinstance(what, Strategy | Step):
        step = _program(what, model)
        return Side(None, step, {}) if isinstance(what, Step) else Side(what, step, {}, _model(model))
    case = _case(what, model)
    return Side(case.strategy, case.step, {}, case.model)


def prove(what: Strategy | Step | str | Path, model: Model | str | None = None, base: Step | None = None) -> Report:
    """Whether the distributed step equals the single-device step: a Verdict per obligation, one overall.

    `what` is a strategy on a model, a program, an expression or a file; `base` is the program from which an edited one
    comes, to which a repair may lead back.

    >>> prove(parse_strategy("zero1"), Model.from_config("gpt2")).verdict
    'PROVED'
    """
    from placealg.check.prove import prove as of

    return of(_program(what, model), base)


def simulate(what: Strategy | Step | str | Path, model: Model | str | None = None, setting: Setting | None = None,
             steps: int = 2) -> Outcome:
    """Whether one concrete run, rank by rank in exact arithmetic, equals the single device's.

    `what` is a strategy on a model, a program, an expression or a file; `setting` says the sizes.
    """
    from placealg.errors import InputError
    from placealg.simulator.run import simulate as run

    if setting is None:
        raise InputError("simulate runs at some sizes: say setting=, such as pa.Setting.equal(step.reference, "
                         "{'dp': 2}, microbatches=2)")
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
