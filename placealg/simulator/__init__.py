"""The oracle: a step executed rank by rank on exact numbers, and held against the single device.

Read `machine.py` first (what a rank holds), then `execute.py` (the verbs), `run.py` (what is observed and compared).
Every step runs op by op, with small dims, in a prime field: `field.py`, `box.py` and `functions.py` are its numbers,
`space.py` its sizes and owners, `operate.py` and `redistribute.py` its events, `device.py` and `reference.py` the
single device. Where units run whole each is one op, and computes what `network.py` says, in fractions. Of a pipeline,
`stages.py` says what lives where, `pipeline.py` runs the loop.

The prover uses none of this, and this uses nothing of the prover. Both read events, the op graph, which verbs are
collective, and how many layers a chunk of a pipeline has. Each rule is written twice: what a verb does, what an op
computes or leaves, along which dim an axis splits an op and in which order a stage runs (`rules.py`).
"""

from placealg.simulator.run import Difference, Outcome, simulate
from placealg.simulator.setting import Setting

__all__ = ["Difference", "Outcome", "Setting", "simulate"]
