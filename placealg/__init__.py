"""placealg: a placement becomes a step program, closed forms and a proof.

>>> import placealg as pa
>>> pa.communication(pa.zero3(), pa.abstract()).total
Ψ·m·(2·w + wire)·(dp − 1)/dp bytes

Names load when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from placealg.cases.case import CommandCase
    from placealg.cases.given import Given
    from placealg.cases.resumed import Resumed, reshard
    from placealg.configurations.found import Found
    from placealg.configurations.space import Space
    from placealg.cost.communication import Communication
    from placealg.cost.comparison import Answer
    from placealg.cost.costs import Costs
    from placealg.cost.formula import Formula
    from placealg.cost.machines import Machine
    from placealg.cost.memory import Memory
    from placealg.cost.rounding import Tolerances
    from placealg.errors import InputError
    from placealg.importers.reading import Reading
    from placealg.models.abstract import abstract
    from placealg.models.build import graph
    from placealg.models.model import Model
    from placealg.models.transformer import gpt, moe
    from placealg.prover.verdict import Conclusion, Counterexample, Report
    from placealg.render.compare import Comparison
    from placealg.render.fit import Sized
    from placealg.render.svg import Picture
    from placealg.simulator import Outcome, Setting
    from placealg.step.program import Step
    from placealg.strategy.catalogue import (
        catalogue,
        cp,
        dp,
        ep,
        hsdp,
        offload_optimizer,
        pp,
        recompute_full,
        recompute_selective,
        tp,
        tp_sp,
        zero1,
        zero2,
        zero3,
    )
    from placealg.strategy.spec import Strategy, strategy_on

_HOME = {
    "InputError": "placealg.errors",
    **dict.fromkeys(("Strategy", "strategy_on"), "placealg.strategy.spec"),
    **dict.fromkeys(("catalogue", "dp", "zero1", "zero2", "zero3", "hsdp", "tp", "tp_sp", "cp", "pp", "ep",
                     "offload_optimizer", "recompute_full", "recompute_selective"), "placealg.strategy.catalogue"),
    "Model": "placealg.models.model",
    **dict.fromkeys(("Report", "Counterexample", "Conclusion"), "placealg.prover.verdict"),
    "abstract": "placealg.models.abstract",
    "graph": "placealg.models.build",
    "CommandCase": "placealg.cases.case",
    "Sized": "placealg.render.fit",
    **dict.fromkeys(("reshard", "Resumed"), "placealg.cases.resumed"),
    **dict.fromkeys(("gpt", "moe"), "placealg.models.transformer"),
    "Found": "placealg.configurations.found",
    "Space": "placealg.configurations.space",
    "Machine": "placealg.cost.machines",
    "Reading": "placealg.importers.reading",
    "Step": "placealg.step.program",
    "Formula": "placealg.cost.formula",
    "Setting": "placealg.simulator.setting",
    "Answer": "placealg.cost.comparison",
    "Communication": "placealg.cost.communication",
    "Comparison": "placealg.render.compare",
    "Costs": "placealg.cost.costs",
    "Memory": "placealg.cost.memory",
    "Outcome": "placealg.simulator.run",
    "Picture": "placealg.render.svg",
}
"""Public name -> the module that defines it."""

__all__ = [
    "abstract", "Answer", "catalogue", "CommandCase", "Communication", "communication", "compare", "Comparison",
    "Conclusion", "Costs", "costs", "Counterexample", "cp", "decide", "derive", "dp", "draw", "edit", "ep", "fit",
    "Formula", "Found", "from_torch", "gpt", "graph", "hsdp", "InputError", "Machine", "Memory", "memory", "Model",
    "model", "moe", "observe", "offload_optimizer", "Outcome", "parse_strategy", "Picture", "pp", "prove", "read",
    "Reading", "recompute_full", "recompute_selective", "record", "Report", "reshard", "Resumed", "search",
    "Setting", "simulate", "Sized", "Space", "Step", "Strategy", "strategy_on", "times", "tolerance", "tp",
    "tp_sp", "zero1", "zero2", "zero3",
]


def parse_strategy(text: str) -> Strategy:
    """The strategy of an expression: names of the catalogue, and strategy files, joined by `*`.

    >>> parse_strategy("zero3[fsdp]*dp[8]").mesh.axes
    (fsdp, dp=8)
    """
    from placealg.strategy.file import read_expression

    return read_expression(text)


def derive(what: Given, model: Model | str | None = None) -> Step:
    """The step program of a strategy on a model, with the reference against which it is checked; of a file, as edited.

    The number of events does not depend on layers, microbatches or devices.

    >>> derive("zero3", "abstract"), derive(zero3(), abstract()) == derive("zero3", "abstract")
    (zero3 on abstract: 33 events, True)
    """
    from placealg.cases.given import program_of

    return program_of(what, model)


def edit(what: Given, *tables: Mapping[str, Any], model: Model | str | None = None, **table: Any) -> Step:
    """The step under edits written as in a file: tables, or one table's keys as arguments.

    >>> len(derive("zero1", "gpt").events) - len(edit("zero1", model="gpt", drop="publish.*").events)
    4
    """
    from placealg.step.edit import edit as edited

    return edited(derive(what, model), *tables, **table)


def memory(what: Given, model: Model | str | None = None, stage: int | str | None = None) -> Memory:
    """What each device holds: a Formula per state at rest, transient, host, total and peak, in bytes.

    Of a pipeline, a device of `stage`: a number from 0, "first" or "last"; without one, of the most loaded stage where
    strategy and model bind all sizes, else of the first.

    >>> memory("zero3", "abstract").states
    Ψ·(w + g + o)/dp bytes
    """
    return costs(what, model, stage).memory


def communication(what: Given, model: Model | str | None = None,
                  stage: int | str | None = None) -> Communication:
    """What each device sends in a step: a Formula per event, axis set, phase, and in all; `stage` is as in `memory`."""
    return costs(what, model, stage).communication


def costs(what: Given, model: Model | str | None = None,
          stage: int | str | None = None) -> Costs:
    """Every figure of a program by its path, `costs(...).figures`; `stage` is as in `memory`.

    >>> costs("zero3", "abstract").figures["communication.total"]
    Ψ·m·(2·w + wire)·(dp − 1)/dp bytes
    """
    from placealg.cases.given import rules_of, side_of
    from placealg.cost.costs import Costs
    from placealg.cost.memory import chosen

    side = side_of(what, model)
    return Costs(chosen(side.step, stage), rules=rules_of(side))


def fit(what: Given, model: Model | str | None = None, *, device_memory: str = "",
        devices: int | None = None, batch: int | None = None, reserve: str | None = None,
        activation_factor: str | float | None = None, by: str = "peak", precision: str = "", loss: str = "",
        **sizes: Any) -> Sized:
    """What a device needs at least against its memory, as `placealg fit` prints it; `.fits` says whether it fits.

    A size that is left open is settled so that it fits; `devices` are laid out over the axes without one. `precision`
    and `loss` are those of the command line: "fsdp2", "chunked".

    >>> fit("zero3*recompute_full", "llama-3-8b", device_memory="80GB", reserve="6GB", dp=8, s=8192).fits
    True
    """
    from placealg.cases.given import case_of
    from placealg.cli.fit import fitted

    case = case_of(what, model, sizes, devices, precision=precision, loss=loss)
    return fitted(case, device_memory, devices, batch, reserve, activation_factor, by)


def compare(*what: Given, model: Model | str | None = None, **sizes: Any) -> Comparison:
    """Programs side by side, as `placealg compare` prints them: formulas, values at `sizes`, ratios to the first.

    >>> compare("zero3", "dp", model="abstract").ratio("states")
    dp
    """
    from placealg.cases.given import check_given, rules_of, side_of
    from placealg.cost.costs import Costs
    from placealg.cost.expressions import exact_size
    from placealg.cost.memory import chosen
    from placealg.errors import InputError
    from placealg.render.compare import Compared, Comparison

    if not what:
        raise InputError("compare takes strategies or programs: there is none")
    exact = {n: exact_size(n, size) for n, size in sizes.items()}
    sides = [side_of(one, model) for one in what]
    for side in sides:
        check_given(side, exact)
    every = [Costs(chosen(side.step), rules=rules_of(side)) for side in sides]
    compared = tuple(Compared(c.step.reference.strategy, c, exact) for c in every)
    return Comparison(compared, every[0].step.reference.model)


def decide(one: Given, two: Given, claim: str,
           model: Model | str | None = None, where: str = "", **sizes: Any) -> Answer:
    """Whether a figure of one program stands in a relation to the other's for all sizes, such as `memory.total <=`.

    That sizes divide is assumed of strategies, whose rules say what divides; a program brings no such rule.

    >>> decide("zero3", "dp", "memory.states <=", "abstract").verdict
    'PROVED'
    """
    from placealg.cases.given import side_of
    from placealg.check.claims import decide_claim
    from placealg.errors import need

    need(claim, str, "claim, such as 'memory.total <='")
    need(where, str, "condition, such as 'dp >= 2'")
    return decide_claim(side_of(one, model), side_of(two, model), claim, where, **sizes)


def read(path: str | Path, **said: Any) -> Reading | CommandCase:
    """What a file says: a strategy file its strategy, model and program; a framework's configuration a reading.

    A reading has the strategy, the model, sizes, and four lists; `said` supplies what such a file leaves open:
    world_size=64, model="llama-3-8b", files=("ds_config.json",), env={...}. Of a strategy file `said` is model="gpt"
    alone. A file that no strategy can stand for is an InputError. Both are taken by all that takes a strategy.

    >>> read("proofs/proved/token_mean.toml").strategy.name
    'hybrid sharding with a token mean'
    """
    from placealg.cases.given import read as read_given

    return cast("Reading | CommandCase", read_given(path, **said))


def model(name: str | Path, **style: Any) -> Model:
    """A model by its name, as `placealg models` lists them, or the path of a config.json; `style` as `pa.gpt` takes it.

    >>> model("llama-3-8b").total()
    8030261248
    """
    from placealg.models.config import read_model as by_name

    return by_name(name, **style)


def observe(model: Any, mesh: Any = None, *, gather: bool = True, shims: tuple[str, ...] = ()) -> Any:
    """A context that records the training step inside it: `with pa.observe(model, mesh) as seen: step()`.

    Afterwards `seen.seen` is the recording: `seen.seen.text()` is a file that `placealg conform` holds against a
    strategy without torch. `mesh` is a DeviceMesh with named dims, or axis -> size if ranks are numbered with the last
    axis fastest; None is one device. `gather` joins what all ranks saw. It needs the extra `torch`.
    """
    from placealg.watch.requirement import need_torch

    need_torch()
    from placealg.watch.recorder.observe import observe as recording

    return recording(model, mesh, gather=gather, shims=shims)


def record(step: Any, model: Any, mesh: Any = None, *, reference: Any = None, batch: Any = None, clip: float = 0.0,
           shims: tuple[str, ...] = ()) -> Any:
    """Run a training step under the recorder, and with a reference three more that measure how often each token counts.

    The arguments are those of `placealg.testing.assert_trains_as`; the recording is what `pa.observe` gives, `.text()`
    a file. It needs the extra `torch`.
    """
    from placealg.watch.requirement import need_torch

    need_torch()
    from placealg.watch.recorder.record import record as recorded

    return recorded(step, model, mesh, reference=reference, batch=batch, clip=clip, shims=shims)


def from_torch(model: Any, mesh: Any) -> Strategy:
    """The strategy of a live PyTorch model, or of its state dict: DTensor placements on a DeviceMesh with named dims.

    It needs the extra `torch`; without it an InputError says what to install.
    """
    from placealg.watch.requirement import need_torch

    need_torch("reading a live model")
    from placealg.measure.layout import from_torch as read

    return read(model, mesh)


def draw(what: Given, order: bool = False, **sizes: int) -> Picture:
    """A strategy on the mesh, with what every device holds, at `sizes` such as dp=8; or a step program in lanes.

    With `order`, the order of its pipeline: what every stage runs and when it can, at sizes such as pp=4, m=8. Of a
    file or a reading it is the strategy. `.save("x.svg")` writes the picture to a file.

    >>> draw("zero3", dp=4)
    zero3 on 4 devices: a picture of 850 by 234
    >>> draw("pp_zb_v", order=True, pp=4, m=8)
    the order of pp_zb_v: a picture of 1180 by 248
    """
    from placealg.cases.given import strategy_of
    from placealg.errors import InputError
    from placealg.render.mesh_drawing import draw_strategy
    from placealg.render.step_drawing import draw_step
    from placealg.step.program import Step

    if order:
        from placealg.render.order_drawing import draw_order, order_of

        step = what if isinstance(what, Step) else derive(what)
        said = None if isinstance(what, Step) else strategy_of(what).microbatches
        name = step.reference.strategy if isinstance(what, Step) else strategy_of(what).name
        return draw_order(order_of(step, sizes, said), name)
    if isinstance(what, Step):
        if sizes:
            raise InputError("a program is drawn for all sizes: only a strategy is drawn at some")
        return draw_step(what)
    return draw_strategy(strategy_of(what), **sizes)


def times(what: Given, model: Model | str | None = None,
          stage: int | str | None = None) -> Mapping[str, Formula]:
    """The time of a step by path, in seconds: `time.bound` and its parts, `time.estimate` and its terms.

    `stage` is as in `memory`; a bound of one stage is a bound of the step.

    >>> times("zero1", "gpt")["time.bound.memory"].text()
    '2·o·h·(s + 12·h·L + 13·L + V + 2)/(hbm_bw·dp)'
    """
    return costs(what, model, stage).timed


def tolerance(what: Given, model: Model | str | None = None, half: str = "", order: str = "",
              adds: str = "") -> Tolerances:
    """How far rounding alone can move the gradients of a step: bounds and expected errors in closed form.

    Types are those that the strategy names; where it says bytes, `half` says what 2 are, "bf16" or "fp16". `order` is
    how collectives add, "ring" or "tree", and `adds` the type in which a rank or a network adds what it receives; "" is
    what the strategy says.

    >>> found = tolerance("zero3", "gpt", half="bf16")
    >>> found.rows[0].worst.text(), found.explains(4e-3, dp=8, m=4), found.explains(4e-2, dp=8, m=4)
    ('u_bf16·(m + dp − 1)', True, False)
    """
    from placealg.cases.given import program_of
    from placealg.cost.rounding import tolerance as of

    return of(program_of(what, model), half, order, adds)


def search(model: Model | str, devices: int, batch: int | Sequence[int], machine: Machine | str,
           memory: str | None = None, space: Space | str = "dense", only: tuple[str, ...] | str = (),
           executor: Any = None, cache: Path | None = None, precision: str = "", **sizes: Any) -> Found:
    """The best configuration of a model on devices of a machine, all that fit, and the front: docs/search.md.

    `batch` are the sequences of a step; of several numbers of them, the best by the sequence is sought. `memory` is
    that of a device, such as "80GB", by default the machine's; `sizes` are those that the model leaves open, such as
    s=8192. `executor` derives strategies, `cache` is a folder that keeps them, `precision` is that of `cost`.

    >>> search("gpt2", devices=4, batch=8, machine="h100", only=("zero1",), s=64).best.text
    'zero1 dp=4 b=1 m=2'
    """
    from placealg.configurations.ask import ask

    return ask(model, devices, batch, machine, memory, space, only, executor, cache, precision, sizes)


def prove(what: Given, model: Model | str | None = None, base: Step | None = None, sums: str = "") -> Report:
    """Whether the distributed step equals the single-device step: a Verdict per obligation, one overall.

    `what` is a strategy on a model, a program, an expression or a file; `base` is the program from which an edited one
    comes, to which a repair may lead back; `sums` is the type, such as "fp32", than which no sum of a
    gradient may be narrower: the obligation precision, which types by name ask, too.

    >>> prove(parse_strategy("zero1"), Model.from_config("gpt2")).verdict
    'PROVED'
    """
    from placealg.cases.given import program_of
    from placealg.check.prove import prove as of

    return of(program_of(what, model), base, sums=sums)


def simulate(what: Given, model: Model | str | None = None, setting: Setting | None = None,
             steps: int = 2) -> Outcome:
    """Whether one concrete run, rank by rank in exact arithmetic, equals the single device's.

    `what` is a strategy on a model, a program, an expression or a file; `setting` says the sizes.
    """
    from placealg.cases.given import program_of
    from placealg.errors import InputError, need
    from placealg.simulator.run import simulate as run
    from placealg.simulator.setting import Setting

    if setting is None:
        raise InputError("simulate runs at some sizes: say setting=, such as pa.Setting.equal(step.reference, "
                         "{'dp': 2}, microbatches=2)")
    need(setting, Setting, "setting")
    need(steps, int, "number of steps")
    return run(program_of(what, model), setting, steps)


if TYPE_CHECKING:
    __version__: str


if not TYPE_CHECKING:  # a type checker knows every name from above, and refuses all others

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("placealg.version").VERSION
        if name not in _HOME:
            unfinished = f"placealg.{name}" in sys.modules
            commands = None
            if not unfinished and not name.startswith("_"):
                commands = import_module("placealg.annexes").annex("commands")
            command = commands is not None and name in commands.COMMANDS
            named = not unfinished and name in import_module("placealg.strategy.catalogue").names()
            raise AttributeError(f"module 'placealg' has no attribute '{name}'" + (
                f": it is a command, `placealg {name}`; docs/python.md lists what Python has" if command else
                f": it is a strategy, placealg.parse_strategy('{name}')" if named else ""))
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
