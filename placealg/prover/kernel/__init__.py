"""The kernel: step programs as data for a checker that Coq proved sound.

Read `program.py` (a step as such data) first; the theory is `proofs/coq/kernel/`.
"""
