(** What every file of the kernel begins with: numbers, sums over finite types, and numbers' signs for those of nat.

    What it backs: placealg/prover/kernel/program.py, as Machine.v and Meaning.v do, which read their signs here.

    Main statements: those of Sums.v. *)

From Coq Require Export Arith Lia Bool PArith.
From Placealg Require Export Sums.
Global Open Scope nat_scope.
