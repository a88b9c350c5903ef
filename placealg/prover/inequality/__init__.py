"""Whether one formula is never below another, for all sizes: proved, refuted at sizes, or undecided with the reason.

Read `sizes.py` (over which sizes), `polynomial.py` (the plain form), `decide.py` (the decision).
"""
