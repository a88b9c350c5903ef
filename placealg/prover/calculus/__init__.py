"""The abstract interpreter for one parameter group: values as counted contributions, transfer rules, fixed points.

Read `contribution.py` (what a device's value is), `versions.py` and `machine.py` (the abstract state), `transfer.py`
(a rule per verb), `one_step.py` (a step, for every m), then `explore.py` (every state that a run reaches).
"""
