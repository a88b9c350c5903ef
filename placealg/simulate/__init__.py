"""The oracle: a step executed rank by rank on exact numbers, and held against the single device.

Read `machine.py` first (what a rank holds), then `execute.py` (the verbs), `run.py` (what is observed and compared).
A step that runs unit by unit trains the small network of `network.py` in fractions: `compute.py`, `reference.py`.
One that runs op by op trains its model's op graph, with small dims, in a prime field: `field.py`, `box.py` and
`functions.py` are its numbers, `space.py` its sizes and owners, `operate.py` and `redistribute.py` its events,
`device.py` the single device. Of a pipeline, `stages.py` says what lives where, `pipeline.py` runs the loop.
"""

from placealg.simulate.run import Difference, Outcome, simulate
from placealg.simulate.setting import Setting

__all__ = ["Difference", "Outcome", "Setting", "simulate"]
