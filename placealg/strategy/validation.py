"""What a declaration gets wrong by itself: axes, modes and options that do not make sense together."""

from __future__ import annotations

from collections.abc import Iterator

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import ALONE, PREDICTION, SAID
from placealg.placement import REGION, STATES, Mode, StatePlacement
from placealg.strategy.kinds import Path, check_entry, unknown_axis
from placealg.strategy.options import ELEMENT_SIZES, option_key
from placealg.strategy.spec import GroupRule, Strategy, parts
from placealg.strategy.vocabulary import IN_A_V, LAYER, OPTIMIZERS, WITH_VECTORS

Problem = tuple[Path, InputError]


def check(strategy: Strategy) -> None:
    """Raise InputError unless every axis, mode and option of `strategy` makes sense together."""
    for _path, error in problems(strategy):
        raise error


def problems(strategy: Strategy) -> Iterator[Problem]:
    """Everything that a declaration gets wrong by itself, each with the path of the key that says it.

    What is merely incorrect (a stale copy, a wrong scale) is no problem here: the program says it, and is refuted.
    """
    axes = strategy.mesh.names
    if not axes:
        yield ("mesh",), InputError(f"strategy {strategy.name} has no axis: [mesh] names at least one")
    yield from _dims_problems(strategy)
    for state, placement in strategy.states.items():
        yield from _placement_problems(strategy, ("states", state), state, placement)
    for number, rule in enumerate(strategy.groups):
        yield from _group_problems(strategy, rule, strategy.groups[:number])
    for table, said in strategy.tables.items():
        for key, value in said.items():
            try:
                option_key(table, key).kind.read(f"[{table}] {key}", value, axes)
            except InputError as error:
                yield (table, key), error
                return
    yield from _schedule_problems(strategy)
    yield from _pipeline_problems(strategy)
    yield from _checkpoint_problems(strategy)


def _checkpoint_problems(strategy: Strategy) -> Iterator[Problem]:
    by = strategy.option("checkpoint", "by")
    placements = [*((state, strategy.state(state)) for state in ("parameters", "optimizer")),
                  *(pair for rule in strategy.groups for pair in rule.states.items())]
    share = "the optimizer states of a share of the layers" if strategy.share_away else None
    away = next((state for state, placement in placements if placement.offloaded), share)
    if by != "owners" and away:
        yield ("checkpoint", "by"), InputError(f"[checkpoint] by is '{by}', and {away} do not rest on the device: "
                                               "every rank stores its own there; say \"owners\"")


def _dims_problems(strategy: Strategy) -> Iterator[Problem]:
    for axis, entries in strategy.dims.items():
        if axis not in strategy.mesh.names:
            yield ("dims", axis), unknown_axis("[dims]", axis, strategy.mesh.names)
        for at, entry in enumerate(entries):
            try:
                check_entry(f"[dims] {axis}", entry)
            except InputError as error:
                yield ("dims", axis, at), error
            if entry in entries[:at]:
                yield ("dims", axis, at), InputError(f"[dims] {axis} names '{entry}' twice")
    for axis in strategy.mesh.names:
        if axis not in strategy.dims:
            yield ("mesh", axis), InputError(f"axis '{axis}' has no entry in [dims]: say which dims it splits, or []")


def _pipeline_problems(strategy: Strategy) -> Iterator[Problem]:
    axes = [a for a in strategy.mesh.names if any(dim == LAYER for _, dim in map(parts, strategy.dims.get(a, ())))]
    for axis in axes:
        if strategy.dims[axis] != (LAYER,):
            yield ("dims", axis), InputError(f"[dims] {axis} names '{LAYER}' beside other dims: a pipeline axis splits "
                                             f"the model along its depth, and nothing else; say [\"{LAYER}\"]")
        if axis != axes[0]:
            yield ("dims", axis), InputError(f"[dims] {axes[0]} and {axis} both name '{LAYER}': a model has one "
                                             "pipeline; make it one axis")
    for axis in strategy.rings:
        if all(entry == "batch" for entry in strategy.dims.get(axis, ())):
            yield ("schedule", "gather", axis), InputError(f"[schedule] gather of {axis}: activations are not gathered "
                                                           f"along {axis}, which splits the batch alone")
    said = [(("states",), strategy.states), *((("groups", rule.name), rule.states) for rule in strategy.groups)]
    for path, states in said:
        for state, placement in states.items():
            for axis in (a for a in axes if a in placement.modes):
                yield (*path, state, axis), InputError(
                    f"[{'.'.join(path)}] {state} on {axis}: a pipeline axis splits all states by layer, each stage has "
                    "its own; leave it out")
    chunks, order = strategy.option("schedule", "chunks"), strategy.option("schedule", "pipeline")
    if order in IN_A_V and chunks != 2:
        named = "chunks" if "chunks" in strategy.tables.get("schedule", FrozenMap()) else "pipeline"
        yield ("schedule", named), InputError(f"[schedule] chunks = {chunks}: pipeline = \"{order}\" is folded into "
                                             "a V, which has chunks = 2 on each stage")
    elif chunks != 1 and order not in ("interleaved", "interleaved_zb", *IN_A_V):
        yield ("schedule", "chunks"), InputError(f"[schedule] chunks = {chunks} is for pipeline = \"interleaved\"; "
                                                 f"it is \"{order}\"")
    listed, alone = strategy.option("schedule", "stages"), strategy.option("schedule", "alone")
    ranks = strategy.mesh.sizes().get(axes[0]) if axes else None
    if axes and listed and (needed := _chunks_needed(axes[0], ranks, chunks, len(listed))):
        yield ("schedule", "stages"), InputError(f"[schedule] stages has {len(listed)} entries; {needed}"
                                                 + f", chunks being {chunks}" * (chunks not in (1, "v")))
    for end, at in zip(ALONE, (0, max(0, len(listed) - 2), len(listed) - 1), strict=True) if listed else ():
        if listed[at] and (end in alone or (PREDICTION in alone and end == ALONE[-1])):
            yield ("schedule", "alone"), InputError(f"[schedule] alone says that the {SAID.get(end, end)} stage has no "
                                                    f"layer, and stages = {list(listed)} gives it {listed[at]}")
    for table, key in (*(("schedule", k) for k in ("pipeline", "chunks", "stages", "alone", "actions")),
                       ("overlap", "messages")):
        if not axes and key in strategy.tables.get(table, FrozenMap()):
            yield (table, key), InputError(f"[{table}] {key}: no axis is a pipeline; one names [\"{LAYER}\"] in "
                                           "[dims]")


def _chunks_needed(axis: str, ranks: int | None, chunks: int | str, listed: int) -> str:
    """How many entries a list of chunks needs, where it has `listed` and that is wrong; else nothing."""
    if isinstance(chunks, str):  # any number of chunks on each stage
        return f"{axis} = {ranks} needs a multiple of {ranks}" if ranks and listed % ranks else ""
    if ranks:
        return f"{axis} = {ranks} needs {ranks * chunks}" if listed != ranks * chunks else ""
    return f"each stage has {chunks}" if listed % chunks else ""


def _placement_problems(strategy: Strategy, path: Path, state: str, placement: StatePlacement) -> Iterator[Problem]:
    label = f"[{'.'.join(map(str, path[:-1]))}] {path[-1]}"
    if state not in STATES:
        yield path, InputError(f"unknown state '{state}'", name=state, valid=STATES)
    for axis, mode in placement.modes.items():
        here = (*path, axis)
        if axis.startswith(REGION):
            if state != "activations" or mode not in (Mode.M, Mode.R):
                yield here, InputError(f"{label} on {axis} is {mode}: only activations have regions, with M or R, or "
                                       "O beside one of these")
            continue
        if axis not in strategy.mesh.names:
            yield here, unknown_axis(label, axis, strategy.mesh.names)
        if state == "activations":
            yield from _activation_problems(strategy, here, f"{label} on {axis}", axis, mode)
        if state in ("optimizer", "gradients") and mode is Mode.GATHERED:
            yield here, InputError(f"{label} on {axis}: S* is for values that are used whole; say S")
        if state in ("parameters", "optimizer") and mode is Mode.M:
            yield here, InputError(f"{label} on {axis}: M holds nothing at rest, so nothing could be updated")
        if state == "gradients" and mode is Mode.M and strategy.option("schedule", "microbatches") != 1:
            yield here, InputError(f"{label} on {axis}: M, a full gradient that rests nowhere, needs [schedule] "
                                   "microbatches = 1")
    if placement.offloaded and state not in ("parameters", "optimizer"):
        yield path, InputError(f"{label}: only parameters and the optimizer state can be offloaded")


def _activation_problems(strategy: Strategy, path: Path, label: str, axis: str, mode: Mode) -> Iterator[Problem]:
    dims = strategy.dims.get(axis, ())
    if mode is Mode.M:
        yield path, InputError(f"{label}: M is for regions: say \"{REGION}NAME\" = \"M\"")
    elif dims == ("batch",) and mode is not Mode.S:
        yield path, InputError(f"{label}: the batch is split over {axis}, so only S holds there")
    elif not dims and mode is not Mode.R:
        yield path, InputError(f"{label}: nothing is split over {axis}, so only R holds there")
    elif dims != ("batch",) and mode is Mode.S:
        yield path, InputError(f"{label}: say R (what was gathered stays so until backward has read it), or S* (it is "
                               "freed after use and gathered again)")


def _group_problems(strategy: Strategy, rule: GroupRule, earlier: tuple[GroupRule, ...]) -> Iterator[Problem]:
    path = ("groups", rule.name)
    if rule.name in {r.name for r in earlier}:
        yield path, InputError(f"[groups.{rule.name}] stands twice")
    if not rule.match.strip():
        yield path, InputError(f"[groups.{rule.name}] needs match, a pattern of parameter names")
    if rule.optimizer and rule.optimizer not in OPTIMIZERS:
        yield (*path, "optimizer"), InputError(f"[groups.{rule.name}] optimizer is '{rule.optimizer}'",
                                               name=rule.optimizer, valid=OPTIMIZERS)
    for state in ("gradients", "optimizer"):
        if rule.frozen and (state in rule.states or (state == "optimizer" and rule.optimizer)):
            yield (*path, state), InputError(f"[groups.{rule.name}] {state}: its parameters are frozen, and have no "
                                             f"{'gradient' if state == 'gradients' else 'optimizer state'}; leave it "
                                             "out, or frozen")
    if rule.matrix is not None:
        yield from _matrix_problems(strategy, rule)
    for state, placement in rule.states.items():
        yield from _placement_problems(strategy, (*path, state), state, placement)
    try:
        ELEMENT_SIZES.read(f"[groups.{rule.name}] types", rule.types, strategy.mesh.names)
    except InputError as error:
        yield (*path, "types"), error


def _matrix_problems(strategy: Strategy, rule: GroupRule) -> Iterator[Problem]:
    """What matrices mean nothing to: an update of each element by itself, or none."""
    here, label = ("groups", rule.name, "matrix"), f"[groups.{rule.name}] matrix"
    known = rule.optimizer if rule.optimizer in OPTIMIZERS else ""
    name, locality, _ = strategy.optimizer(known)
    if rule.frozen:
        yield here, InputError(f"{label}: its parameters are frozen, and nothing updates them; leave it out, or frozen")
    elif locality != "matrix":
        acting = [n for n, (reads, _) in OPTIMIZERS.items() if reads == "matrix"]
        yield here, InputError(f"{label}: {name} updates every element by itself; leave it out, or say another "
                               "optimizer", valid=acting)
    elif not rule.matrix and name not in WITH_VECTORS:
        yield here, InputError(f"{label} is []: {name} updates every parameter alike, matrix or not; name dims, or "
                               "leave it out")
    elif len(rule.matrix or ()) == 1:
        yield here, InputError(f"{label} names '{(rule.matrix or ('',))[0]}' alone: a matrix has two dims at least, "
                               "and [] says that there is none")


def _schedule_problems(strategy: Strategy) -> Iterator[Problem]:
    for table, key in (("schedule", "offload_layers"), ("activations", "tier")):
        if key in strategy.tables.get(table, FrozenMap()) and not strategy.offloaded:
            yield (table, key), InputError(f"[{table}] {key}: no region's activations rest on another tier; say "
                                           "\"region:NAME\" = \"O\" in activations")
    again, away = (strategy.option("schedule", key) for key in ("recompute_layers", "offload_layers"))
    if again and away and again != away:
        yield ("schedule", "offload_layers"), InputError(
            "[schedule] offload_layers and recompute_layers choose different layers: layers are of two kinds, those "
            "chosen and the rest; choose the same")
    if strategy.share_away and (again or away):
        yield ("optimizer", "offload_share"), InputError(
            f"[optimizer] offload_share and [schedule] {'recompute_layers' if again else 'offload_layers'} choose "
            "layers: they are of two kinds, those chosen and the rest; leave one out")
    for key in ("keep", "recompute", "recompute_layers"):
        if strategy.option("schedule", key) and not strategy.recomputed:
            yield ("schedule", key), InputError(
                f"[schedule] {key}: no region is recomputed, so that everything is kept; say \"region:NAME\" = \"M\" "
                "in activations")
    if strategy.option("schedule", "keep") and strategy.option("schedule", "recompute"):
        yield ("schedule", "keep"), InputError("[schedule] keep and recompute both choose among the ops of M regions; "
                                               "say one of them")
    gathered = [strategy.state("parameters"), *(r.states.get("parameters", StatePlacement()) for r in strategy.groups)]
    for axis in strategy.option("schedule", "lifetime"):  # the value has been read above: it is a table
        if not any(p.mode(axis) is Mode.GATHERED for p in gathered):
            yield ("schedule", "lifetime", axis), InputError(
                f"[schedule] lifetime of {axis}: parameters are not S* on {axis}, so nothing is gathered there")
    for rule in strategy.groups:
        mine = rule.states.get("parameters", strategy.state("parameters"))
        for axis in rule.lifetime:
            if mine.mode(axis) is not Mode.GATHERED and strategy.state("parameters").mode(axis) is not Mode.GATHERED:
                yield ("groups", rule.name, "lifetime", axis), InputError(
                    f"[groups.{rule.name}] lifetime of {axis}: its parameters are not S* on {axis}, so nothing is "
                    "gathered there")
    owned = [strategy.state("gradients"), strategy.state("optimizer"), *(
        rule.states[state] for rule in strategy.groups for state in ("gradients", "optimizer") if state in rule.states)]
    for axis in strategy.option("schedule", "reduction"):
        if not any(p.sharded(axis) for p in owned):
            yield ("schedule", "reduction", axis), InputError(
                f"[schedule] reduction of {axis}: neither gradients nor the optimizer state are S on {axis}, so that "
                "every rank needs the whole sum; leave it out")
    mean = strategy.option("schedule", "microbatch_mean")
    if mean != "loss" and "microbatch" in (strategy.loss()["count_axes"] or ()):
        yield ("schedule", "microbatch_mean"), InputError(
            f"[schedule] microbatch_mean is '{mean}', but the loss is divided by the tokens of all microbatches, or "
            "by nothing: no mean over microbatches is taken; leave it out")
    if strategy.option("loss", "scale") == "dynamic" and strategy.option("optimizer", "skip") != "overflow":
        yield ("loss", "scale"), InputError(
            "[loss] scale is 'dynamic': it grows and shrinks by overflow, at which nobody looks; say [optimizer] skip "
            "= \"overflow\"")
    if strategy.option("optimizer", "norm") != "all_axes" and strategy.option("optimizer", "clip") == "none":
        yield ("optimizer", "norm"), InputError("[optimizer] norm: clip is 'none', and no norm is taken; leave it out")
