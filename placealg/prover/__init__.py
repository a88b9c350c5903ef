"""The prover: obligations from the reference step, decided for all sizes.

Read `correct.py` first: it defines when a distributed step equals the single-device step, and nothing else does.
`calculus/` is the abstract interpreter for one parameter group: contributions, versions, transfer rules, and the fixed
point of a run. `ops/` is the symbolic execution of one microbatch, op by op. `obligations.py` turns their findings into
formulas, `symmetry.py` finds groups that share a proof, `examine.py` asks the solver and makes a `verdict.py` Report.
`evidence/` holds all that talks to a solver or records its answers: queries, lemmas, certificates, counterexamples, the
second engine. `schedule.py` decides facts about pipelines, `inequality/` compares formulas.
"""
