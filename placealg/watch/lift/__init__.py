"""A recorded step run again, whole, in exact numbers, on every rank and on a single device, and the two held together.

`trace.py` is what a recording holds of one rank: every op with the geometry of its tensors. `field.py` are the numbers
in which it is run again, `rules/` what each op does to them, `memory.py` storages, `ranks.py` the ranks beside each
other and what they send, and `judge.py` where the two differ.
"""
