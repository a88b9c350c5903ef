"""Solvers and their answers: queries, premises, lemmas, certificates, counterexamples, and the second engine.

Read `symbols.py` (where the calculus becomes solver terms) and `solver.py` (the one module that runs Z3) first.
"""
