(** Masks: what is held is not what is summed; undefined is not zero, and a buffer position is not an element.

    What it backs: "Undefined is not zero", the mask and side conditions of
    placealg/prover/calculus/contribution.py, and the
    second failure in proofs/theorems/composition.py.

    Main statements: [masked_sum] (a sum over an axis is defined iff every rank holds the element), [owned_sum] (so a
    sum over the axis that shards it needs an axis of one rank), [equal_masks] (reduce_scatter over one axis, then a
    sum over another, is right for every gradient iff the buffers hold the same element) and [weights_do_not_tell]
    (every rank counts once either way: got and want are both 1, and only the mask shows the foreign element). *)

From Placealg Require Import Sums.

Section Masks.
Variable K : CRing.
Add Ring K_ring : (laws K).

Section Defined.
Variable C : Finite.

(** What ranks hold: a number, or nothing that means anything. *)
Definition collect (x : C -> option K) (c : C) (s : option K) : option K :=
  match x c, s with Some k, Some s => Some (k + s) | _, _ => None end.
Definition collected (x : C -> option K) : option K := fold_right (collect x) (Some 0) (points C).

Definition masked (mask : C -> bool) (x : C -> K) (c : C) : option K := if mask c then Some (x c) else None.

Theorem masked_sum (mask : C -> bool) x s :
  collected (masked mask x) = Some s <-> (forall c, mask c = true) /\ s = Σ c, x c.
Proof.
  assert (over : forall l s, fold_right (collect (masked mask x)) (Some 0) l = Some s <->
    (forall c, In c l -> mask c = true) /\ s = sum_list l x).
  { unfold collect, masked; induction l as [|c l IH]; intros total; cbn; [intuition congruence|].
    destruct (mask c) eqn:held.
    - destruct (fold_right _ _ l) as [rest|].
      + destruct (proj1 (IH rest) eq_refl) as [all ->]; split; [intros [= <-]; split; [|easy]|intros [_ ->]; easy].
        intros c' [<-|inside]; auto.
      + split; [easy|]; intros [all _]; exfalso.
        enough (None = Some (sum_list l x)) by discriminate; apply IH; auto.
    - split; [easy|]; intros [all _]; rewrite all in held by auto; discriminate. }
  unfold collected, Sum; rewrite over; split; intros [all ->]; split; auto; intros; apply all; apply all_points.
Qed.

Definition owns (y : C) (c : C) : bool := if c == y then true else false.

Theorem owned_sum (y : C) (x : C -> K) : (exists s, collected (masked (owns y) x) = Some s) <-> forall c, c = y.
Proof.
  unfold owns; split.
  - intros [s defined] c; apply masked_sum in defined; destruct defined as [all _]; specialize (all c).
    destruct (c == y); congruence.
  - intros one; exists (Σ c, x c); apply masked_sum; split; [|reflexivity].
    intros c; destruct (c == y); [reflexivity|]; now destruct n.
Qed.

End Defined.

(** After a reduce_scatter over axis [A], device [(a, b)] has the sum of element [place b q] at position [q]; position
    [q] of rank [a] need not be the same element for every [b]. Then the buffers are summed over [B]. *)
Section Foreign.
Variables (A B E : Finite) (Q : Type) (place : A -> B -> Q -> E).
Implicit Type g : A -> B -> E -> K.

Definition scattered g (a : A) (b : B) (q : Q) : K := Σ a', g a' b (place a b q).
Definition buffers_summed g (a : A) (q : Q) : K := Σ b, scattered g a b q.
Definition element_sum g (e : E) : K := Σ a, Σ b, g a b e.

Theorem equal_masks a q e : (1 : K) <> 0 -> A ->
  ((forall g, buffers_summed g a q = element_sum g e) <-> forall b, place a b q = e).
Proof.
  intros apart some; unfold buffers_summed, scattered, element_sum; split.
  - intros right b; destruct (place a b q == e) as [|foreign]; [easy|exfalso; apply apart].
    specialize (right (fun a' b' e' => if a' == some then if b' == b then if e' == e then 1 else 0 else 0 else 0)).
    transitivity (Σ a', Σ b', (if a' == some then if b' == b then if e == e then 1 else 0 else 0 else 0) : K).
    + symmetry; rewrite (sum_ext K _ (fun a' => if a' == some then 1 else 0)).
      * apply (sum_owner K some (fun _ => 1)).
      * intros a'; destruct (a' == some); [|apply sum_zero].
        rewrite (sum_owner K b (fun _ => if e == e then 1 else 0)); now destruct (e == e).
    + rewrite <- right; erewrite sum_ext; [apply sum_zero|]; intros b'; cbn.
      rewrite (sum_owner K some (fun _ => if b' == b then if place a b' q == e then 1 else 0 else 0)).
      destruct (b' == b) as [->|]; [|easy]; now destruct (place a b q == e).
  - intros alike g; symmetry; rewrite sum_swap; apply sum_ext; intros b; now rewrite alike.
Qed.

Theorem weights_do_not_tell (w : A -> B -> K) a q e :
  buffers_summed (fun a b _ => w a b) a q = element_sum (fun a b _ => w a b) e.
Proof. apply sum_swap. Qed.

End Foreign.

End Masks.
