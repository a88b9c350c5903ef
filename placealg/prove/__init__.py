"""The prover: obligations from the reference step, decided for all sizes. Read `correct.py` first."""
