"""`placealg reshard OLD NEW`: a checkpoint of one strategy resumed by another one, on another mesh."""

from __future__ import annotations

from argparse import Namespace

from placealg.cases.case import CommandCase, one_model, read_case, read_strategy
from placealg.cases.resumed import known_sizes, of_old_mesh, own_sizes, reading, resumed, split_sizes
from placealg.cli.glosses import SAYS
from placealg.cli.inputs import foreign, options
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.cost.resharding_stages import OLD
from placealg.errors import InputError
from placealg.prover.verdict import PROVED, UNDECIDED
from placealg.render.reshard import Page, document, page
from placealg.step.checkpoint import Sizes


def reshard(chosen: Namespace) -> int:
    """Print the verdict, the volumes, and what a rank reads; the exit code is that of the verdict."""
    old, new = _cases(chosen)
    meshes = known_sizes(old, new)
    reader = _reader(chosen, meshes)
    found = resumed(old, new)
    own = own_sizes(old.strategy)
    sizes = {**{n + OLD: v for n, v in old.sizes.items() if n in own}, **new.sizes,
             **{n: v for n, v in old.sizes.items() if n not in own}}
    reads = found.reads(reader) if found.meshes and reader is not None else ()
    told = Page(found.proof, found.volumes, sizes, found.totals, reader, reads, chosen.gib)
    if chosen.format == "json":
        print_json(document(told, not chosen.no_timing))
    else:
        print_lines(page(told, width(), SAYS))
    return DONE if found.verdict == PROVED else OPEN if found.verdict == UNDECIDED else FAILED


def _cases(chosen: Namespace) -> tuple[CommandCase, CommandCase]:
    """Both cases, on one model; a size of the old mesh has `_old` behind its name."""
    strategies = [read_strategy(word, foreign(chosen)) for word in (chosen.a, chosen.b)]
    of_old, of_new, of_both = split_sizes(chosen.sizes, strategies[0], strategies[1])
    said = options(chosen)
    beside = [a + OLD for a in own_sizes(strategies[0])]  # a typing error may have meant one of these
    default = "" if chosen.model else one_model((chosen.a, chosen.b), strategies, said)
    try:
        old = read_case(chosen.a, chosen.model, [*of_old, *of_both], beside, default=default, **said)
    except InputError as error:
        raise of_old_mesh(error, of_old) from None
    return (old,
            read_case(chosen.b, chosen.model, [*of_new, *of_both], beside, default=default, **said))


def _reader(chosen: Namespace, meshes: tuple[Sizes, Sizes] | None) -> int | None:
    """The rank of the new mesh whose reads are told."""
    if chosen.reader is None:
        return None
    try:
        return reading(chosen.reader, meshes)[0]
    except InputError as error:
        raise error.at("--reader") from None
