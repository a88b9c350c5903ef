"""The kernel: step programs as ops on tensors that lie on a mesh, for a checker that Coq proved sound.

Read `program.py` (the language) first; the theory is `proofs/coq/kernel/`.
"""
