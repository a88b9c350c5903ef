"""Why nothing is known of the tensors of a program: the one place where costs ask whether units run whole."""

from __future__ import annotations

from placealg.step.program import Reference

NO_ACTIVATIONS = "the abstract model has no activations"
RUN_WHOLE = "the step runs units whole; `placealg model` lists what their ops save"


def unknown(reference: Reference) -> str:
    """Why nothing is known of the tensors of a program: its units run whole. "" where ops list them.

    >>> import placealg as pa
    >>> unknown(pa.derive(pa.dp(), pa.abstract()).reference), unknown(pa.derive(pa.tp(), pa.gpt()).reference)
    ('the abstract model has no activations', '')
    """
    if not reference.whole:
        return ""
    return NO_ACTIVATIONS if reference.abstract else RUN_WHOLE
