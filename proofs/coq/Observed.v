(** A trap: if only the copies at step boundaries are observed, "only if" is false.

    What it backs: "*Observed* means every live read" in the theorem, [Read] of placealg/prover/calculus/machine.py,
    and [prove_every_read] of proofs/theorems/equivalence.py. Two devices read one copy that was never loaded, and
    their contributions carry the weights +1 and -1: they cancel for every model, so that the parameters are right
    after every step, though neither read was.

    Main statements: [boundaries_do_not_tell], [GI_alone_is_not_enough]. *)

From Placealg Require Import Equivalence.

Inductive three := worker | one_more | another.

Definition Three : Finite.
Proof.
  refine {| point := three; points := [worker; one_more; another] |}.
  - intros []; cbn; auto.
  - repeat constructor; cbn; intuition discriminate.
  - decide equality.
Defined.

Section Trap.
Variables (K : CRing) (E X : Finite) (Name : Type).
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop) (w_ref : X -> K).
Add Ring K_ring : (laws K).
Hypothesis near_refl : forall i, near i i.

(** [worker] keeps itself up to date; the other two read what lies in the memory of [one_more]. *)
Definition trap : program K Three E X Name := {|
  load _ (d : Three) _ := match d with worker => Made (worker : Three) | _ => Lost (one_more : Three) end;
  weight _ _ _ x (d' : Three) := match d' with worker => w_ref x | one_more => 1 | another => - (1) end;
  counts _ _ _ _ := 0;
  transforms _ _ _ := [];
  observed _ d _ := d = worker
|}.

(** Gradient integrity holds, every copy at a step boundary is the reference's for every model and every junk, and yet
    a copy is read that is not of the step's version. *)
Theorem boundaries_do_not_tell x i j : sees x i j -> (1 : K) <> 0 ->
  GI near sees w_ref [] trap /\
  (forall (m : model K E X Name near sees) junk t i, run trap m junk t worker i = theta w_ref [] m t i) /\
  ~ SC near sees trap.
Proof.
  intros reads apart; split; [|split].
  - split; [intros; cbn; ring|easy].
  - intros m junk t; induction t as [|t IH]; intros k; [reflexivity|]; cbn; unfold made; cbn.
    apply update_local; [intros; apply IH|]; intros e _; f_equal.
    unfold run_gradient, ref_gradient; apply sum_ext; intros x'; cbn.
    assert (idle : forall d, d <> worker -> forall e, run trap m junk t d e = junk t one_more e)
      by (intros [] other; [easy| |]; destruct t; reflexivity).
    rewrite (gamma_local m x' e _ _ (fun j _ => IH j)).
    rewrite (gamma_local m x' e _ _ (fun j _ => idle one_more ltac:(discriminate) j)).
    rewrite (gamma_local m x' e _ _ (fun j _ => idle another ltac:(discriminate) j)); ring.
  - intros sc; destruct (sc 0%nat one_more j) as [d from]; [|discriminate].
    apply (read_by_gradient _ _ _ _ _ _ _ trap 0%nat worker i x one_more j); [|exact apart|exact reads].
    apply used with (i := i); [|apply near_refl].
    apply published with (d' := worker); [now apply read_outside|reflexivity].
Qed.

(** Hence gradient integrity alone does not make runs equal. *)
Theorem GI_alone_is_not_enough x i j : sees x i j -> (1 : K) <> 0 ->
  GI near sees w_ref [] trap /\ ~ equal near sees w_ref [] trap.
Proof.
  intros reads apart; destruct (boundaries_do_not_tell x i j reads apart) as [gi [_ no_sc]]; split; [exact gi|].
  intros right; apply no_sc; now apply GI_SC_iff_equal in right.
Qed.

End Trap.
