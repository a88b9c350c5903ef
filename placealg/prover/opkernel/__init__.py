"""Programs of ops: training steps as ops on tensors that lie on a mesh, for a checker that Coq proved sound.

Read `program.py` (the language) first; the theory is `proofs/coq/ops/`.
"""
