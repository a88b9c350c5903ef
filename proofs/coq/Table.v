(** The tie: the tables and rules that the Python code runs on, computed by Coq. Written by tests/coq/coq_table.py.

    What it backs: REDISTRIBUTIONS and DUAL of placealg/placement.py, and the rules [summed], [read_at], [reduced],
    [gathered] and [masked] of placealg/prover/calculus/contribution.py, for every value of one term on one axis. *)

From Placealg Require Import Sums Moves Rules.

(** A value of one term. *)
Definition one (n : nat) (at_rank : option position) (conditions : list (position * position))
    (held_by : option position) (defined_if : list side) : value :=
  {| terms := [{| sizes := n; stands := at_rank; given := conditions |}]; mask := held_by; sides := defined_if |}.

(** Duals. *)
Example dual_of_I : dual_kind kI = kI := eq_refl.
Example dual_of_R : dual_kind kR = kP := eq_refl.
Example dual_of_P : dual_kind kP = kR := eq_refl.
Example dual_of_S : dual_kind kS = kS := eq_refl.

(** Rows, and their backward column. *)
Example I_to_R : event_of kI kR = none := eq_refl.
Example I_to_R_backward : backward_of kI kR = all_reduce := eq_refl.
Example R_to_I : event_of kR kI = none := eq_refl.
Example R_to_I_backward : backward_of kR kI = scale := eq_refl.
Example I_to_S : event_of kI kS = slice := eq_refl.
Example I_to_S_backward : backward_of kI kS = all_gather := eq_refl.
Example I_to_P : event_of kI kP = scale := eq_refl.
Example I_to_P_backward : backward_of kI kP = none := eq_refl.
Example R_to_S : event_of kR kS = slice := eq_refl.
Example R_to_S_backward : backward_of kR kS = zero_pad := eq_refl.
Example R_to_P : event_of kR kP = scale := eq_refl.
Example R_to_P_backward : backward_of kR kP = scale := eq_refl.
Example S_to_I : event_of kS kI = all_gather := eq_refl.
Example S_to_I_backward : backward_of kS kI = slice := eq_refl.
Example S_to_R : event_of kS kR = all_gather := eq_refl.
Example S_to_R_backward : backward_of kS kR = reduce_scatter := eq_refl.
Example S_to_P : event_of kS kP = zero_pad := eq_refl.
Example S_to_P_backward : backward_of kS kP = slice := eq_refl.
Example P_to_I : event_of kP kI = all_reduce := eq_refl.
Example P_to_I_backward : backward_of kP kI = none := eq_refl.
Example P_to_R : event_of kP kR = all_reduce := eq_refl.
Example P_to_R_backward : backward_of kP kR = all_reduce := eq_refl.
Example P_to_S : event_of kP kS = reduce_scatter := eq_refl.
Example P_to_S_backward : backward_of kP kS = all_gather := eq_refl.
Example S_to_S : event_of kS kS = all_to_all := eq_refl.
Example S_to_S_backward : backward_of kS kS = all_to_all := eq_refl.

Definition rows : list (kind * kind) := [
  (kI, kR);
  (kR, kI);
  (kI, kS);
  (kI, kP);
  (kR, kS);
  (kR, kP);
  (kS, kI);
  (kS, kR);
  (kS, kP);
  (kP, kI);
  (kP, kR);
  (kP, kS);
  (kS, kS)].

(** No pair of different types is missing, and [S] to [S], where owners change, is there. *)

Definition same_kind (k k' : kind) : bool :=
  match k, k' with kI, kI | kR, kR | kP, kP | kS, kS => true | _, _ => false end.
Definition listed (k k' : kind) : bool :=
  existsb (fun row => same_kind (fst row) k && same_kind (snd row) k')%bool rows.
Definition needed (k k' : kind) : bool := (negb (same_kind k k') || same_kind k kS)%bool.
Definition every_kind := [kI; kR; kS; kP].
Example no_pair_is_missing :
  forallb (fun k => forallb (fun k' => negb (needed k k') || listed k k')%bool every_kind) every_kind = true := eq_refl.

(** Transfer rules. *)
Example reduced_0 :
  reduced (one 0 None [] None [])
  = one 1 None [] None [] := eq_refl.
Example gathered_0_unit_rank :
  gathered unit_rank (one 0 None [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_0_unit_rank :
  masked unit_rank (one 0 None [] None [])
  = one 0 None [] (Some unit_rank) [] := eq_refl.
Example gathered_0_owner :
  gathered owner (one 0 None [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_0_owner :
  masked owner (one 0 None [] None [])
  = one 0 None [] (Some owner) [] := eq_refl.
Example gathered_0_other_owner :
  gathered other_owner (one 0 None [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_0_other_owner :
  masked other_owner (one 0 None [] None [])
  = one 0 None [] (Some other_owner) [] := eq_refl.
Example reduced_1 :
  reduced (one 0 None [] (Some unit_rank) [])
  = one 1 None [] None [SizeOne] := eq_refl.
Example gathered_1_unit_rank :
  gathered unit_rank (one 0 None [] (Some unit_rank) [])
  = one 0 None [] None [] := eq_refl.
Example gathered_1_owner :
  gathered owner (one 0 None [] (Some unit_rank) [])
  = one 0 None [] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_1_other_owner :
  gathered other_owner (one 0 None [] (Some unit_rank) [])
  = one 0 None [] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example reduced_2 :
  reduced (one 0 None [] (Some owner) [])
  = one 1 None [] None [SizeOne] := eq_refl.
Example gathered_2_unit_rank :
  gathered unit_rank (one 0 None [] (Some owner) [])
  = one 0 None [] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_2_owner :
  gathered owner (one 0 None [] (Some owner) [])
  = one 0 None [] None [] := eq_refl.
Example gathered_2_other_owner :
  gathered other_owner (one 0 None [] (Some owner) [])
  = one 0 None [] None [Coincide (other_owner, owner)] := eq_refl.
Example reduced_3 :
  reduced (one 0 None [] (Some other_owner) [])
  = one 1 None [] None [SizeOne] := eq_refl.
Example gathered_3_unit_rank :
  gathered unit_rank (one 0 None [] (Some other_owner) [])
  = one 0 None [] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example gathered_3_owner :
  gathered owner (one 0 None [] (Some other_owner) [])
  = one 0 None [] None [Coincide (other_owner, owner)] := eq_refl.
Example gathered_3_other_owner :
  gathered other_owner (one 0 None [] (Some other_owner) [])
  = one 0 None [] None [] := eq_refl.
Example reduced_4 :
  reduced (one 0 (Some unit_rank) [] None [])
  = one 0 None [] None [] := eq_refl.
Example gathered_4_unit_rank :
  gathered unit_rank (one 0 (Some unit_rank) [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_4_unit_rank :
  masked unit_rank (one 0 (Some unit_rank) [] None [])
  = one 0 (Some unit_rank) [] (Some unit_rank) [] := eq_refl.
Example gathered_4_owner :
  gathered owner (one 0 (Some unit_rank) [] None [])
  = one 0 None [(owner, unit_rank)] None [] := eq_refl.
Example masked_4_owner :
  masked owner (one 0 (Some unit_rank) [] None [])
  = one 0 (Some unit_rank) [] (Some owner) [] := eq_refl.
Example gathered_4_other_owner :
  gathered other_owner (one 0 (Some unit_rank) [] None [])
  = one 0 None [(other_owner, unit_rank)] None [] := eq_refl.
Example masked_4_other_owner :
  masked other_owner (one 0 (Some unit_rank) [] None [])
  = one 0 (Some unit_rank) [] (Some other_owner) [] := eq_refl.
Example reduced_5 :
  reduced (one 0 (Some unit_rank) [] (Some unit_rank) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_5_unit_rank :
  gathered unit_rank (one 0 (Some unit_rank) [] (Some unit_rank) [])
  = one 0 None [] None [] := eq_refl.
Example gathered_5_owner :
  gathered owner (one 0 (Some unit_rank) [] (Some unit_rank) [])
  = one 0 None [(owner, unit_rank)] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_5_other_owner :
  gathered other_owner (one 0 (Some unit_rank) [] (Some unit_rank) [])
  = one 0 None [(other_owner, unit_rank)] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example reduced_6 :
  reduced (one 0 (Some unit_rank) [] (Some owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_6_unit_rank :
  gathered unit_rank (one 0 (Some unit_rank) [] (Some owner) [])
  = one 0 None [] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_6_owner :
  gathered owner (one 0 (Some unit_rank) [] (Some owner) [])
  = one 0 None [(owner, unit_rank)] None [] := eq_refl.
Example gathered_6_other_owner :
  gathered other_owner (one 0 (Some unit_rank) [] (Some owner) [])
  = one 0 None [(other_owner, unit_rank)] None [Coincide (other_owner, owner)] := eq_refl.
Example reduced_7 :
  reduced (one 0 (Some unit_rank) [] (Some other_owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_7_unit_rank :
  gathered unit_rank (one 0 (Some unit_rank) [] (Some other_owner) [])
  = one 0 None [] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example gathered_7_owner :
  gathered owner (one 0 (Some unit_rank) [] (Some other_owner) [])
  = one 0 None [(owner, unit_rank)] None [Coincide (other_owner, owner)] := eq_refl.
Example gathered_7_other_owner :
  gathered other_owner (one 0 (Some unit_rank) [] (Some other_owner) [])
  = one 0 None [(other_owner, unit_rank)] None [] := eq_refl.
Example reduced_8 :
  reduced (one 0 (Some owner) [] None [])
  = one 0 None [] None [] := eq_refl.
Example gathered_8_unit_rank :
  gathered unit_rank (one 0 (Some owner) [] None [])
  = one 0 None [(owner, unit_rank)] None [] := eq_refl.
Example masked_8_unit_rank :
  masked unit_rank (one 0 (Some owner) [] None [])
  = one 0 (Some owner) [] (Some unit_rank) [] := eq_refl.
Example gathered_8_owner :
  gathered owner (one 0 (Some owner) [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_8_owner :
  masked owner (one 0 (Some owner) [] None [])
  = one 0 (Some owner) [] (Some owner) [] := eq_refl.
Example gathered_8_other_owner :
  gathered other_owner (one 0 (Some owner) [] None [])
  = one 0 None [(other_owner, owner)] None [] := eq_refl.
Example masked_8_other_owner :
  masked other_owner (one 0 (Some owner) [] None [])
  = one 0 (Some owner) [] (Some other_owner) [] := eq_refl.
Example reduced_9 :
  reduced (one 0 (Some owner) [] (Some unit_rank) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_9_unit_rank :
  gathered unit_rank (one 0 (Some owner) [] (Some unit_rank) [])
  = one 0 None [(owner, unit_rank)] None [] := eq_refl.
Example gathered_9_owner :
  gathered owner (one 0 (Some owner) [] (Some unit_rank) [])
  = one 0 None [] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_9_other_owner :
  gathered other_owner (one 0 (Some owner) [] (Some unit_rank) [])
  = one 0 None [(other_owner, owner)] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example reduced_10 :
  reduced (one 0 (Some owner) [] (Some owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_10_unit_rank :
  gathered unit_rank (one 0 (Some owner) [] (Some owner) [])
  = one 0 None [(owner, unit_rank)] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_10_owner :
  gathered owner (one 0 (Some owner) [] (Some owner) [])
  = one 0 None [] None [] := eq_refl.
Example gathered_10_other_owner :
  gathered other_owner (one 0 (Some owner) [] (Some owner) [])
  = one 0 None [(other_owner, owner)] None [Coincide (other_owner, owner)] := eq_refl.
Example reduced_11 :
  reduced (one 0 (Some owner) [] (Some other_owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_11_unit_rank :
  gathered unit_rank (one 0 (Some owner) [] (Some other_owner) [])
  = one 0 None [(owner, unit_rank)] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example gathered_11_owner :
  gathered owner (one 0 (Some owner) [] (Some other_owner) [])
  = one 0 None [] None [Coincide (other_owner, owner)] := eq_refl.
Example gathered_11_other_owner :
  gathered other_owner (one 0 (Some owner) [] (Some other_owner) [])
  = one 0 None [(other_owner, owner)] None [] := eq_refl.
Example reduced_12 :
  reduced (one 0 (Some other_owner) [] None [])
  = one 0 None [] None [] := eq_refl.
Example gathered_12_unit_rank :
  gathered unit_rank (one 0 (Some other_owner) [] None [])
  = one 0 None [(other_owner, unit_rank)] None [] := eq_refl.
Example masked_12_unit_rank :
  masked unit_rank (one 0 (Some other_owner) [] None [])
  = one 0 (Some other_owner) [] (Some unit_rank) [] := eq_refl.
Example gathered_12_owner :
  gathered owner (one 0 (Some other_owner) [] None [])
  = one 0 None [(other_owner, owner)] None [] := eq_refl.
Example masked_12_owner :
  masked owner (one 0 (Some other_owner) [] None [])
  = one 0 (Some other_owner) [] (Some owner) [] := eq_refl.
Example gathered_12_other_owner :
  gathered other_owner (one 0 (Some other_owner) [] None [])
  = one 0 None [] None [] := eq_refl.
Example masked_12_other_owner :
  masked other_owner (one 0 (Some other_owner) [] None [])
  = one 0 (Some other_owner) [] (Some other_owner) [] := eq_refl.
Example reduced_13 :
  reduced (one 0 (Some other_owner) [] (Some unit_rank) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_13_unit_rank :
  gathered unit_rank (one 0 (Some other_owner) [] (Some unit_rank) [])
  = one 0 None [(other_owner, unit_rank)] None [] := eq_refl.
Example gathered_13_owner :
  gathered owner (one 0 (Some other_owner) [] (Some unit_rank) [])
  = one 0 None [(other_owner, owner)] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_13_other_owner :
  gathered other_owner (one 0 (Some other_owner) [] (Some unit_rank) [])
  = one 0 None [] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example reduced_14 :
  reduced (one 0 (Some other_owner) [] (Some owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_14_unit_rank :
  gathered unit_rank (one 0 (Some other_owner) [] (Some owner) [])
  = one 0 None [(other_owner, unit_rank)] None [Coincide (owner, unit_rank)] := eq_refl.
Example gathered_14_owner :
  gathered owner (one 0 (Some other_owner) [] (Some owner) [])
  = one 0 None [(other_owner, owner)] None [] := eq_refl.
Example gathered_14_other_owner :
  gathered other_owner (one 0 (Some other_owner) [] (Some owner) [])
  = one 0 None [] None [Coincide (other_owner, owner)] := eq_refl.
Example reduced_15 :
  reduced (one 0 (Some other_owner) [] (Some other_owner) [])
  = one 0 None [] None [SizeOne] := eq_refl.
Example gathered_15_unit_rank :
  gathered unit_rank (one 0 (Some other_owner) [] (Some other_owner) [])
  = one 0 None [(other_owner, unit_rank)] None [Coincide (other_owner, unit_rank)] := eq_refl.
Example gathered_15_owner :
  gathered owner (one 0 (Some other_owner) [] (Some other_owner) [])
  = one 0 None [(other_owner, owner)] None [Coincide (other_owner, owner)] := eq_refl.
Example gathered_15_other_owner :
  gathered other_owner (one 0 (Some other_owner) [] (Some other_owner) [])
  = one 0 None [] None [] := eq_refl.
