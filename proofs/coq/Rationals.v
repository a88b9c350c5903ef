(** Numbers: the rationals are such a ring, n ranks such an axis, and n ranks are not one unless n is 1.

    What it backs: that the hypotheses of the other files can be met, so that their theorems say something; and the
    words "for every n" in Instances.v, which are [PARAMETRIC] of placealg/prover/verdict.py.

    Main statements: [size_is_n], [zero3_for_every_n], [sum_for_mean_for_every_n]. *)

From Coq Require Import Fin FinFun Lia QArith Qcanon.
From Placealg Require Import Moves Equivalence Instances.

Open Scope ring_scope.

Definition Rational : CRing := {|
  number := Qc; zero := Q2Qc 0; one := Q2Qc 1; plus := Qcplus; times := Qcmult; minus := Qcminus; opposite := Qcopp;
  laws := Qcrt; number_dec := Qc_eq_dec
|}.

Fixpoint all_ranks (n : nat) : list (Fin.t n) := match n with O => [] | S n => F1 :: map FS (all_ranks n) end.

Definition Ranks (n : nat) : Finite.
Proof.
  refine {| point := Fin.t n; points := all_ranks n; same := Fin.eq_dec |}.
  - intros a; induction a as [n|n a inside]; cbn; [now left|right; now apply in_map].
  - induction n as [|n once]; cbn; constructor.
    + rewrite in_map_iff; intros [a [equal _]]; discriminate.
    + apply Injective_map_NoDup; [intros a b; apply FS_inj|exact once].
Defined.

Theorem size_is_n n : size Rational (Ranks n) = Q2Qc (inject_Z (Z.of_nat n)).
Proof.
  unfold size, Sum; cbn [points Ranks]; induction n as [|n IH]; [reflexivity|].
  cbn [all_ranks sum_list]; rewrite sum_list_map; etransitivity; [apply (f_equal (Qcplus 1) IH)|].
  apply Qc_is_canon; unfold Qcplus, Q2Qc, this; rewrite !Qred_correct, Nat2Z.inj_succ, <- Z.add_1_l, inject_Z_plus.
  reflexivity.
Qed.

Lemma only_one_is_one n : size Rational (Ranks n) = 1 -> n = 1%nat.
Proof.
  rewrite size_is_n; intros equal; apply Q2Qc_eq_iff in equal.
  unfold Qeq in equal; cbn in equal; rewrite !Z.mul_1_r in equal; now apply Nat2Z.inj.
Qed.

Lemma inverse_of_size n : size Rational (Ranks (S n)) * Qcinv (size Rational (Ranks (S n))) = 1.
Proof.
  apply Qcmult_inv_r; rewrite size_is_n; intros equal; apply Q2Qc_eq_iff in equal.
  unfold Qeq in equal; cbn in equal; lia.
Qed.

Section EveryN.
Variables (n : nat) (E X : Finite) (Name : Type) (near : E -> E -> Prop) (sees : X -> E -> E -> Prop).
Variables (w_ref : X -> Rational) (declared : list Name) (home : X -> Ranks (S n)) (own : E -> Ranks (S n)).
Variables (junk : Ranks (S n) -> E -> Rational) (outside : Ranks (S n) -> E -> Prop).
Hypothesis near_refl : forall i, near i i.
Hypothesis whole_on_owner : forall i j, near i j -> own i = own j.
Add Ring Rational_ring : (laws Rational).

Let inv : Rational := Qcinv (size Rational (Ranks (S n))).
Let local_weight (x : X) : Rational := size Rational (Ranks (S n)) * w_ref x.

Lemma local_is_mean x : inv * local_weight x = w_ref x.
Proof.
  unfold local_weight; transitivity (size Rational (Ranks (S n)) * inv * w_ref x); [ring|].
  unfold inv; rewrite inverse_of_size; ring.
Qed.

Theorem zero3_for_every_n : equal near sees w_ref declared
  (data_parallel declared (F1 : Ranks (S n)) inv junk home local_weight outside own inv (Shard own) (fun _ i => own i)).
Proof. apply zero3_correct; auto using local_is_mean. Qed.

Theorem sum_for_mean_for_every_n d i x : outside d i -> w_ref x <> 0 -> (S n > 1)%nat ->
  ~ equal near sees w_ref declared
      (data_parallel declared (F1 : Ranks (S n)) inv junk home local_weight outside own 1 Inv (fun d _ => d)).
Proof.
  intros reads weighs many.
  apply sum_for_mean_wrong with (inv := inv) (d := d) (i := i) (x := x) (u := Qcinv (w_ref x));
    auto using local_is_mean; try easy.
  - exact (inverse_of_size n).
  - now apply Qcmult_inv_r.
  - intros one; apply only_one_is_one in one; lia.
Qed.

End EveryN.
