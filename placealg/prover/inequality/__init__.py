"""Whether one formula is never below another, for all sizes: proved, refuted at sizes, or undecided with the reason.

Read `sizes.py` (the domain of sizes), then `decide.py` (the decision); the plain form is `placealg.polynomial`.
"""
