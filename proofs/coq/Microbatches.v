(** The loop over microbatches, and the divisors of a loss.

    What it backs: "Time" and "Loss normaliser" in the theory, the hypothesis [equal_counts] of
    placealg/prover/correct.py, and the second part of proofs/theorems/sums.py. A unit belongs to one microbatch and
    to one rank; numbers of tokens may differ.

    Main statements: [accumulated] (a gradient sum that starts at 0 and to which every microbatch is added is the whole
    batch's), [not_cleared] and [assigned] (what else it is), [reduced_once_or_each_time], [running_mean],
    [token_mean] (right for any counts) and [mean_of_means] (right iff every rank holds equally many). *)

From Placealg Require Import Sums.

Section Loop.
Variables (K : CRing) (M X : Finite) (microbatch : X -> M) (contribution : X -> K).
Add Ring K_ring : (laws K).

(** What backward of one microbatch leaves in the gradient. *)
Definition local (m : M) : K := Σ x, (if m == microbatch x then contribution x else 0).

Definition accumulate (sum : K) (m : M) : K := sum + local m.
Definition assign (sum : K) (m : M) : K := local m.
Definition loop (body : K -> M -> K) (before : K) : K := fold_left body (points M) before.

Lemma added_up l before : fold_left accumulate l before = before + sum_list l local.
Proof.
  revert before; induction l as [|m l IH]; intros before; cbn [fold_left sum_list]; [ring|].
  rewrite IH; unfold accumulate; ring.
Qed.

Theorem accumulated : loop accumulate 0 = Σ x, contribution x.
Proof.
  unfold loop; rewrite added_up; transitivity (Σ m, local m); [|apply partition_sum].
  change (0 + Σ m, local m = Σ m, local m); ring.
Qed.

Theorem not_cleared before : loop accumulate before = before + Σ x, contribution x.
Proof. rewrite <- accumulated; unfold loop; rewrite !added_up; ring. Qed.

(** The last microbatch alone. *)
Theorem assigned before m l : points M = l ++ [m] -> loop assign before = local m.
Proof. intros last; unfold loop; now rewrite last, fold_left_app. Qed.

(** A mean that is kept up to date needs no number of microbatches beforehand; [inverse k] is 1/k. *)
Definition keep_mean (inverse count : nat -> K) '(k, mean) (m : M) : nat * K :=
  (S k, inverse (S k) * (count k * mean + local m)).

Theorem running_mean (inverse count : nat -> K) (l : list M) :
  (forall k, count (S k) = count k + 1) -> count 0%nat = 0 -> (forall k, count (S k) * inverse (S k) = 1) ->
  count (length l) * snd (fold_left (keep_mean inverse count) l (0%nat, 0)) = sum_list l local.
Proof.
  intros next none inverts.
  assert (from : forall l k mean, count (k + length l)%nat * snd (fold_left (keep_mean inverse count) l (k, mean))
    = count k * mean + sum_list l local).
  { clear l; induction l as [|m l IH]; intros k mean; cbn [length fold_left sum_list].
    - rewrite PeanoNat.Nat.add_0_r; cbn; ring.
    - unfold keep_mean at 2; rewrite <- PeanoNat.Nat.add_succ_comm, IH.
      transitivity (count (S k) * inverse (S k) * (count k * mean + local m) + sum_list l local); [ring|].
      rewrite inverts; ring. }
  etransitivity; [exact (from l 0%nat 0)|]; rewrite none; ring.
Qed.

End Loop.

(** Reducing every microbatch and adding up is adding up and reducing once. *)
Theorem reduced_once_or_each_time (K : CRing) (C M : Finite) (g : C -> M -> K) : Σ m, Σ c, g c m = Σ c, Σ m, g c m.
Proof. apply sum_swap. Qed.

Section Counts.
Variables (K : CRing) (C X : Finite) (home : X -> C).
Add Ring K_ring' : (laws K).

(** The number of units on a rank, and on all. *)
Definition count (c : C) : K := Σ x, (if c == home x then 1 else 0).
Definition total : K := Σ c, count c.

Lemma total_is_all : total = size K X.
Proof. apply partition_sum. Qed.

(** [inv] is 1/n, [inv_count c] is one over the count of rank [c], [inv_total] one over the count of all. *)
Variables (inv inv_total : K) (inv_count : C -> K).
Hypothesis size_inv : size K C * inv = 1.
Hypothesis total_inv : total * inv_total = 1.
Hypothesis count_inv : forall x, count (home x) * inv_count (home x) = 1.

(** The loss is a sum over local units, divided by a count that was summed over the ranks; gradients are summed. *)
Theorem token_mean x : Σ c, ((if c == home x then 1 else 0) * inv_total) = inv_total.
Proof. apply sum_indicator with (f := fun _ => inv_total). Qed.

(** The loss is a mean over local units, and gradients are averaged: the token mean iff counts are equal. *)
Theorem mean_of_means x :
  inv * (Σ c, ((if c == home x then 1 else 0) * inv_count c)) = inv_total <-> size K C * count (home x) = total.
Proof.
  rewrite (sum_indicator K (home x) inv_count); split; intros right.
  - transitivity (size K C * count (home x) * (total * inv_total)); [rewrite total_inv; ring|].
    rewrite <- right.
    transitivity (total * (size K C * inv) * (count (home x) * inv_count (home x))); [ring|].
    rewrite size_inv, count_inv; ring.
  - transitivity (inv * inv_count (home x) * (total * inv_total)); [rewrite total_inv; ring|].
    rewrite <- right.
    transitivity (inv_total * (size K C * inv) * (count (home x) * inv_count (home x))); [ring|].
    rewrite size_inv, count_inv; ring.
Qed.

End Counts.
