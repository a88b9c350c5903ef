"""The symbolic execution of one microbatch, event by event: what every rank holds of every tensor.

Read `paths.py` (sums along paths), `tensors.py` (versions of tensors), `operators.py` and `redistributions.py` (a rule
per op and per verb), then `flow.py`, which runs them in program order.
"""
