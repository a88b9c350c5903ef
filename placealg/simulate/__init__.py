"""The oracle: a step executed rank by rank on exact rationals, and held against the single device.

Read `machine.py` first (what a rank holds), then `execute.py` (the verbs), `compute.py` and `network.py` (the small
network that is trained), `reference.py` (the single device), `run.py` (what is observed and compared).
"""

from placealg.simulate.run import Difference, Outcome, simulate
from placealg.simulate.setting import Setting

__all__ = ["Difference", "Outcome", "Setting", "simulate"]
