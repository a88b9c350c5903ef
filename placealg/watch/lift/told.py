"""What came of running a recorded step again beside a single device, as a recording keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placealg.watch.lift.explain import several, summary
from placealg.watch.lift.field import PRIMES
from placealg.watch.lift.judge import Finding, judge
from placealg.watch.lift.tokens import same_inputs, same_tokens
from placealg.watch.lift.trace import Trace
from placealg.watch.seen import Lifted, Seen


def lifted(seen: Seen, ranks: Sequence[Trace], single: Trace, beside: str, given: bool = True, handed: bool = False
           ) -> Seen:
    """A recording with what comes of its ranks beside a single device, which must have read what they did together,
    unless it was `given` that; if models were `handed` what the ranks' were, it is what these read.
    """
    lost = next((t.lost for t in (*ranks, single) if t.lost), "")
    if lost:
        return replace(seen, alone=lost)
    try:
        return _lifted(seen, ranks, single, beside, given, handed)
    except Exception as error:  # a recording stands by itself
        return replace(seen, alone=f"running it again failed: {type(error).__name__}: {' '.join(str(error).split())}")


def _lifted(seen: Seen, ranks: Sequence[Trace], single: Trace, beside: str, given: bool, handed: bool) -> Seen:
    same = True if given else same_tokens(ranks, single, ("forward",) if handed else ("forward", "between"))
    told = judge(ranks, single, PRIMES[:1], around=(0,)) if same is False else judge(ranks, single, handed=handed)
    if same is None and told.single is not None:
        same = same_inputs(told.runs, told.single)
    twice = (f"ranks {', '.join(map(str, told.alike))} give the same to every sum of gradients: they train on the same "
             "tokens, which are several ranks' in the program",) if told.alike else ()
    if same is False and not twice:
        return replace(seen, alone=f"{beside} reads other tokens than the ranks do together")
    if same is None and told.differs and not twice:
        return replace(seen, alone=f"{beside} reads nothing from outside: whether it reads what ranks do is not known")
    if told.still:
        beside += f"; {told.still} parameter{'s' * (told.still > 1)} no optimizer updates in this step"
    again = judge(ranks, single, PRIMES[:1], keep=True, alike=True, handed=handed) if told.differs and same else None
    differs = (*twice, *(summary(told, again) if told.differs and same else ()))
    return replace(seen, lifted=Lifted(told.verdict, beside, differs, tuple(_said(told.unseen)), told.checked))


def _said(findings: Sequence[Finding]) -> list[str]:
    """What could not be followed, each once, with how many tensors it is of."""
    every: dict[str, dict[str, None]] = {}
    for finding in findings:
        every.setdefault(finding.what, {}).setdefault(finding.label, None)
    return [f"{several([n for n in labels if n], ' tensors')}{what}" for what, labels in every.items()]
