(** The equivalence theorem: gradient integrity and state consistency hold iff the distributed run is the reference's.

    What it backs: "The two conditions", [gradient_integrity] and [wrong_read] of placealg/prover/correct.py, and
    proofs/theorems/equivalence.py. [D] are devices, [E] the elements of all states (parameters, master copies,
    moments), [X] the units of the batch. A model is any gradient of a unit, any
    update, any transforms (clipping), any types of values; an update of element [i] reads the elements near [i], and
    [near] is any reflexive relation: equality (elementwise), the same row, everything (global).

    A program says where each copy comes from, the weight of every unit in every gradient, which gradients a norm
    counts and how often, and which transforms are applied. What was never loaded is [junk], and may be anything.

    Main statements: [sufficient]; [necessary_version], [necessary_update] and [necessary_counted]; and
    [GI_SC_iff_equal]. [copies_suffice]: without a norm, equal copies are all that has to be observed. *)

From Placealg Require Export Sums.

Section Equivalence.
Variables (K : CRing) (D E X : Finite) (Name : Type).
Add Ring K_ring : (laws K).

(** [near i j]: the update of [i] may read [j]. [sees x i j]: the gradient of unit [x] for [i] may read [j]. *)
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop).
Hypothesis near_refl : forall i, near i i.

(** The loss's weights, and the ordered list of transforms between gradient and update. *)
Variables (w_ref : X -> K) (declared : list Name).

Record model := {
  value : Type;
  gradient : Type;
  start : E -> value;
  gamma : X -> (E -> value) -> E -> K;
  enter : K -> gradient;
  measure : E -> K -> K;
  transform : Name -> K -> gradient -> gradient;
  update : E -> (E -> value) -> (E -> gradient) -> value;
  gamma_local : forall x i a b, (forall j, sees x i j -> a j = b j) -> gamma x a i = gamma x b i;
  update_local : forall i a b g h,
    (forall j, near i j -> a j = b j) -> (forall j, near i j -> g j = h j) -> update i a g = update i b h
}.

(** The gradient after the transforms [names], each of which sees the norm. *)
Definition transformed (m : model) (names : list Name) (norm : K) (g : K) : gradient m :=
  fold_left (fun g a => transform m a norm g) names (enter m g).

(** ** The single device. *)

Definition ref_gradient (m : model) (v : E -> value m) (i : E) : K := Σ x, (w_ref x * gamma m x v i).
Definition ref_norm (m : model) (v : E -> value m) : K := Σ e, measure m e (ref_gradient m v e).

Fixpoint theta (m : model) (t : nat) : E -> value m := match t with
  | O => start m
  | S t => fun i => update m i (theta m t)
      (fun j => transformed m declared (ref_norm m (theta m t)) (ref_gradient m (theta m t) j))
  end.

(** ** The distributed program. *)

(** Where a copy comes from: from the update that device [d] made in the step before (in step 0: the initial values,
    which [d] hands out); it was kept from the step before; or it lies in the memory of [d], never loaded. *)
Inductive origin := Made (d : D) | Kept | Lost (d : D).

Record program := {
  (** In step t, the copy of i on device d. *)
  load : nat -> D -> E -> origin;
  (** In step t, in the gradient of i on device d: the weight of unit x as d' computed it. *)
  weight : nat -> D -> E -> X -> D -> K;
  (** In step t, in the norm on device d: how often the gradient of e that d' holds is counted. *)
  counts : nat -> D -> D -> E -> K;
  (** In step t, on device d: the transforms applied to the gradient of i. *)
  transforms : nat -> D -> E -> list Name;
  (** In step t, the copy of i on d is read from outside, as by a save. *)
  observed : nat -> D -> E -> Prop
}.

Section Run.
Variables (p : program) (m : model) (junk : nat -> D -> E -> value m).

Definition run_gradient (v : D -> E -> value m) (t : nat) (d : D) (i : E) : K :=
  Σ x, Σ d', (weight p t d i x d' * gamma m x (v d') i).
Definition run_norm (v : D -> E -> value m) (t : nat) (d : D) : K :=
  Σ e, Σ d', (counts p t d d' e * measure m e (run_gradient v t d' e)).
Definition made (v : D -> E -> value m) (t : nat) (d : D) (i : E) : value m :=
  update m i (v d) (fun j => transformed m (transforms p t d j) (run_norm v t d) (run_gradient v t d j)).

Fixpoint run (t : nat) (d : D) (i : E) : value m :=
  match load p t d i, t with
  | Made _, O => start m i
  | Made d', S t => made (run t) t d' i
  | Kept, S t => run t d i
  | Kept, O => junk O d i
  | Lost d', t => junk t d' i
  end.
End Run.

(** ** What is read. Only reads count: a dead update, or a copy that nothing reads, may be wrong. *)

Inductive live_copy (p : program) : nat -> D -> E -> Prop :=
  | read_outside t d i : observed p t d i -> live_copy p t d i
  | read_by_update t d i j : live_update p t d i -> near i j -> live_copy p t d j
  | read_by_gradient t d i x d' j : live_gradient p t d i -> weight p t d i x d' <> 0 -> sees x i j ->
      live_copy p t d' j
with live_update (p : program) : nat -> D -> E -> Prop :=
  | published t d i d' : live_copy p (S t) d' i -> load p (S t) d' i = Made d -> live_update p t d i
with live_gradient (p : program) : nat -> D -> E -> Prop :=
  | used t d i j : live_update p t d i -> near i j -> live_gradient p t d j
  | by_norm t d i : counted p t d i -> live_gradient p t d i
with counted (p : program) : nat -> D -> E -> Prop :=
  | in_norm t d i j d' e : live_update p t d i -> near i j -> transforms p t d j <> [] -> counts p t d d' e <> 0 ->
      counted p t d' e.

(** Gradient integrity: right weights, the declared transforms, a norm that counts each element once. *)
Definition GI (p : program) : Prop :=
  (forall t d i x, live_gradient p t d i -> Σ d', weight p t d i x d' = w_ref x) /\
  (forall t d i j, live_update p t d i -> near i j ->
     transforms p t d j = declared /\ (declared <> [] -> forall e, Σ d', counts p t d d' e = 1)).

(** State consistency: every copy that is read is of the step's version. *)
Definition SC (p : program) : Prop := forall t d i, live_copy p t d i -> exists d', load p t d i = Made d'.

(** The run is the reference's wherever it is read. *)
Definition equal (p : program) : Prop := forall (m : model) junk,
  (forall t d i, live_copy p t d i -> run p m junk t d i = theta m t i) /\
  (forall t d i, counted p t d i -> run_gradient p m (run p m junk t) t d i = ref_gradient m (theta m t) i).

(** ** Sufficiency: induction over steps. *)

Section Sufficient.
Variables (p : program) (gi : GI p) (sc : SC p) (m : model) (junk : nat -> D -> E -> value m).

Lemma right_gradient t : (forall d i, live_copy p t d i -> run p m junk t d i = theta m t i) ->
  forall d i, live_gradient p t d i -> run_gradient p m (run p m junk t) t d i = ref_gradient m (theta m t) i.
Proof.
  intros copies d i live; apply sum_ext; intros x.
  rewrite <- (proj1 gi t d i x) by auto; rewrite <- sum_times_right; apply sum_ext; intros d'.
  destruct (number_dec (weight p t d i x d') 0) as [->|weighs]; [ring|f_equal].
  apply gamma_local; intros j sees_j; apply copies; eapply read_by_gradient; eauto.
Qed.

Lemma same_norm (names : list Name) (one two g : K) : (names <> [] -> one = two) ->
  transformed m names one g = transformed m names two g.
Proof. destruct names; [reflexivity|]; intros same; now rewrite same. Qed.

Theorem sufficient t d i : live_copy p t d i -> run p m junk t d i = theta m t i.
Proof.
  revert d i; induction t as [|t copies]; intros d i live.
  { destruct (sc O d i) as [d' from]; auto; cbn; now rewrite from. }
  destruct (sc (S t) d i) as [d' from]; auto; cbn; rewrite from.
  assert (live_d' : live_update p t d' i) by now apply (published p t d' i d).
  apply update_local; intros j near_j; [apply copies; eapply read_by_update; eauto|].
  destruct (proj2 gi t d' i j live_d' near_j) as [names once].
  rewrite (right_gradient t copies) by (eapply used; eauto); rewrite names.
  apply same_norm; intros clips; apply sum_ext; intros e.
  transitivity ((Σ d'', counts p t d' d'' e) * measure m e (ref_gradient m (theta m t) e));
    [|rewrite (once clips); ring].
  rewrite <- sum_times_right; apply sum_ext; intros d''.
  destruct (number_dec (counts p t d' d'' e) 0) as [->|counts_e]; [ring|].
  rewrite (right_gradient t copies); [reflexivity|].
  apply by_norm; eapply in_norm; eauto; congruence.
Qed.

End Sufficient.

(** ** Necessity: two families of models tell every fault apart.

    [counter] counts the steps, so that a copy that is kept or was never loaded is behind. *)

Definition counter : model.
Proof.
  refine {| value := nat; gradient := unit; start _ := 1%nat; gamma _ _ _ := 0; enter _ := tt; measure _ _ := 0;
            transform _ _ _ := tt; update i v _ := S (v i) |}; [easy|].
  intros i a b _ _ same _; now rewrite (same i (near_refl i)).
Defined.

Theorem necessary_version p : equal p -> SC p.
Proof.
  intros same t d i live; destruct (load p t d i) as [d'| |d'] eqn:from; [eauto| |]; exfalso;
    specialize (proj1 (same counter (fun _ _ _ => O)) t d i live) as right;
    assert (steps : forall t i, theta counter t i = S t :> nat) by (clear; induction t; cbn; auto);
    assert (behind : forall t d i, (run p counter (fun _ _ _ => O) t d i <= S t)%nat)
      by (clear; induction t as [|t IH]; intros; cbn; destruct (load p _ _ _); auto using le_n_S, le_0_n);
    rewrite steps in right.
  - destruct t as [|t]; cbn in right; rewrite from in right; [discriminate|].
    specialize (behind t d i); rewrite right in behind; now apply PeanoNat.Nat.nle_succ_diag_l in behind.
  - destruct t; cbn in right; rewrite from in right; discriminate.
Qed.

(** [reveal] publishes at element [i0] what happened to the gradient of [j0]: the transforms, the norm, the number.
    The gradient of a unit is [which] of it; the norm adds up [what] of each element. *)

Definition reveal (which : X -> K) (what : E -> K) (i0 j0 : E) (near_j0 : near i0 j0) : model.
Proof.
  refine {| value := option (list Name * K * K); gradient := list Name * K * K; start _ := None;
            gamma x _ _ := which x; enter g := ([], 0, g); measure e _ := what e;
            transform a norm g := (a :: fst (fst g), norm, snd g);
            update i _ g := if i == i0 then Some (g j0) else None |}; [easy|].
  intros i a b g h _ same; destruct (i == i0) as [->|]; [f_equal; now apply same|reflexivity].
Defined.

Lemma revealed which what i0 j0 near_j0 (names : list Name) (norm g : K) :
  transformed (reveal which what i0 j0 near_j0) names norm g
  = (rev names, match names with [] => 0 | _ => norm end, g) :> list Name * K * K.
Proof.
  assert (all : forall names seen n, fold_left (fun (g : list Name * K * K) a => (a :: fst (fst g), norm, snd g)) names
    (seen, n, g) = (rev names ++ seen, match names with [] => n | _ => norm end, g)).
  { clear; induction names as [|a names IH]; intros; cbn; [reflexivity|].
    rewrite IH, <- app_assoc; now destruct names. }
  etransitivity; [exact (all names [] 0)|now rewrite app_nil_r].
Qed.

Section Necessary.
Variables (p : program) (same : equal p).

(** What [reveal] publishes at a live update is what it publishes on the single device. *)
Lemma both_reveal which what t d i j (near_j : near i j) : live_update p t d i ->
  let m := reveal which what i j near_j in let v := run p m (fun _ _ _ => None) t in
  transformed m (transforms p t d j) (run_norm p m v t d) (run_gradient p m v t d j)
  = transformed m declared (ref_norm m (theta m t)) (ref_gradient m (theta m t) j).
Proof.
  intros live m v; inversion live as [? ? ? d' copy from]; subst.
  specialize (proj1 (same m (fun _ _ _ => None)) (S t) d' i copy) as right; cbn in right; rewrite from in right.
  unfold made in right; cbn in right; destruct (i == i); [now injection right|congruence].
Qed.

Lemma gradient_of_unit (w : X -> K) x : Σ x', (w x' * (if x' == x then 1 else 0)) = w x.
Proof. rewrite <- (sum_indicator K x w); apply sum_ext; intros; ring. Qed.

Lemma weight_of_unit t d i x :
  Σ x', Σ d', (weight p t d i x' d' * (if x' == x then 1 else 0)) = Σ d', weight p t d i x d'.
Proof.
  rewrite <- (gradient_of_unit (fun x => Σ d', weight p t d i x d') x); apply sum_ext; intros; apply sum_times_right.
Qed.

Theorem necessary_update t d i j : live_update p t d i -> near i j ->
  (forall x, Σ d', weight p t d j x d' = w_ref x) /\ transforms p t d j = declared /\
  (declared <> [] -> forall e, Σ d', counts p t d d' e = 1).
Proof.
  intros live near_j.
  assert (names : transforms p t d j = declared).
  { specialize (both_reveal (fun _ => 0) (fun _ => 0) t d i j near_j live); cbv zeta; rewrite !revealed.
    intros right; injection right; intros _ _ reversed; rewrite <- (rev_involutive declared), <- reversed.
    symmetry; apply rev_involutive. }
  split; [|split; [exact names|]].
  - intros x; specialize (both_reveal (fun x' => if x' == x then 1 else 0) (fun _ => 0) t d i j near_j live); cbv zeta.
    rewrite !revealed; intros right; injection right; intros numbers _ _.
    unfold run_gradient, ref_gradient in numbers; cbn in numbers.
    now rewrite weight_of_unit, gradient_of_unit in numbers.
  - intros clips e; specialize (both_reveal (fun _ => 0) (fun e' => if e' == e then 1 else 0) t d i j near_j live).
    cbv zeta; rewrite !revealed, names; destruct declared as [|a rest]; [congruence|].
    intros right; injection right; intros _ norms.
    unfold run_norm, ref_norm in norms; cbn in norms.
    rewrite (sum_owner K e (fun _ => 1)) in norms.
    rewrite <- norms, <- (sum_indicator K e (fun e => Σ d', counts p t d d' e)).
    apply sum_ext; intros e'; rewrite <- sum_times; apply sum_ext; intros; ring.
Qed.

Theorem necessary_counted t d e x : counted p t d e -> Σ d', weight p t d e x d' = w_ref x.
Proof.
  intros live; specialize (proj2 (same (reveal (fun x' => if x' == x then 1 else 0) (fun _ => 0) e e (near_refl e))
    (fun _ _ _ => None)) t d e live) as right.
  unfold run_gradient, ref_gradient in right; cbn in right; now rewrite weight_of_unit, gradient_of_unit in right.
Qed.

End Necessary.

Theorem GI_SC_iff_equal p : GI p /\ SC p <-> equal p.
Proof.
  split.
  - intros [gi sc] m junk; split; intros t d i live; [now apply sufficient|].
    apply right_gradient; auto; [intros; now apply sufficient|now apply by_norm].
  - intros same; split; [split|now apply necessary_version].
    + intros t d i x live; inversion live; subst; [eapply necessary_update; eauto|now apply necessary_counted].
    + intros t d i j live near_j; split; eapply (necessary_update p same); eauto.
Qed.

(** Where nothing is clipped, nothing is counted in a norm: copies are all that has to be observed. *)
Theorem copies_suffice p : (forall t d i, transforms p t d i = []) ->
  (GI p /\ SC p <-> forall m junk t d i, live_copy p t d i -> run p m junk t d i = theta m t i).
Proof.
  intros plain; rewrite GI_SC_iff_equal; split; [intros same m junk; apply (same m junk)|].
  intros same m junk; split; [apply same|]; intros t d e live; inversion live; congruence.
Qed.

End Equivalence.

Arguments load {K D E X Name}. Arguments weight {K D E X Name}. Arguments counts {K D E X Name}.
Arguments transforms {K D E X Name}. Arguments observed {K D E X Name}. Arguments Made {D}. Arguments Kept {D}.
Arguments Lost {D}. Arguments GI {K D E X Name}. Arguments SC {K D E X Name}. Arguments equal {K D E X Name}.
Arguments run {K D E X Name near sees}. Arguments theta {K E X Name near sees}. Arguments live_copy {K D E X Name}.
Arguments live_update {K D E X Name}. Arguments live_gradient {K D E X Name}.
Arguments update_local {K E X Name near sees}. Arguments gamma_local {K E X Name near sees}.
