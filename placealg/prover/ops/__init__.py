"""What every rank holds of the tensors of one microbatch: the op graph followed event by event.

Read `paths.py` (sums along paths), `tensors.py` (versions of tensors), `operators.py` and `redistributions.py` (a rule
per op and per verb), then `flow.py`, which runs them in program order.
"""
