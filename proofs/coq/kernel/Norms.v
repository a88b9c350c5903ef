(** Norms: sums over ranks of what each has of the elements at a place; and what ranks have together.

    What it backs: the kernel.

    Main statement: [sum_norm]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra.
Open Scope nat_scope.

Section Norms.
Context {w : world}.
Add Ring K_ring : (laws K).
Local Open Scope ring_scope.

Lemma mem_one (b a : nat) : mem b [a] = (b =? a)%nat.
Proof. unfold mem; cbn [existsb]. now rewrite orb_false_r. Qed.

Lemma sat_cons (d : clause) (q : place) (r : rank) (i : E) : sat (d :: q) r i = sat1 r i d && sat q r i.
Proof. reflexivity. Qed.

Lemma on_axes_cons (a : nat) (d : clause) (q : place) :
  on_axes [a] (d :: q) = if (axis_of d =? a)%nat then d :: on_axes [a] q else on_axes [a] q.
Proof. unfold on_axes; cbn [filter]. now rewrite mem_one. Qed.

Lemma off_axes_cons (a : nat) (d : clause) (q : place) :
  off_axes [a] (d :: q) = if (axis_of d =? a)%nat then off_axes [a] q else d :: off_axes [a] q.
Proof. unfold off_axes; cbn [filter]. rewrite mem_one. now destruct (axis_of d =? a)%nat. Qed.

Lemma sat1_other (d : clause) (r : rank) (a c : nat) (i : E) : axis_of d <> a -> drawn_by [a] d = false ->
  sat1 (put r a c) i d = sat1 r i d.
Proof.
  destruct d as [[n|n b'] b|b]; cbn [axis_of drawn_by sat1 owner]; intros apart same; rewrite put_other by congruence;
    try reflexivity.
  rewrite mem_one in same. apply Nat.eqb_neq in same. now rewrite put_other by congruence.
Qed.

Lemma still_cons (along : list nat) (d : clause) (q : place) :
  still along (d :: q) = negb (drawn_by along d) && still along q.
Proof. reflexivity. Qed.

Lemma sat_off_put (q : place) (r : rank) (a c : nat) (i : E) : on_axes [a] q = [] -> still [a] q = true ->
  sat q (put r a c) i = sat q r i.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, still_cons, !sat_cons.
  destruct (axis_of d =? a)%nat eqn:inside; [easy|]. intros out same. apply andb_true_iff in same.
  destruct same as [here same]. apply negb_true_iff in here.
  rewrite IH by easy. rewrite sat1_other; [easy|now apply Nat.eqb_neq|easy].
Qed.

Lemma off_axes_all (a : nat) (q : place) : on_axes [a] q = [] -> off_axes [a] q = q.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, off_axes_cons.
  destruct (axis_of d =? a)%nat; [easy|]. intros out; now rewrite IH.
Qed.

Lemma owner_ok (s : layout) (r : rank) (a : nat) (i : E) : (owner s r a i < size a)%nat.
Proof. destruct s; apply own_ok. Qed.
Definition coordinate (d : clause) (r : rank) (i : E) : nat := match d with Owner s a => owner s r a i | First _ => 0
  end.
Lemma coordinate_ok (d : clause) (r : rank) (i : E) : (coordinate d r i < size (axis_of d))%nat.
Proof. destruct d; cbn; [apply owner_ok|apply size_pos]. Qed.

Lemma sat_on_put (q : place) (r : rank) (a c : nat) (i : E) (d : clause) : on_axes [a] q = [d] -> still [a] q = true ->
  sat q (put r a c) i = (c =? coordinate d r i)%nat && sat (off_axes [a] q) r i.
Proof.
  induction q as [|e q IH]; [easy|]. rewrite on_axes_cons, off_axes_cons, still_cons, sat_cons.
  destruct (axis_of e =? a)%nat eqn:inside; intros found same; apply andb_true_iff in same;
    destruct same as [here same]; apply negb_true_iff in here.
  - injection found as -> out. rewrite off_axes_all, sat_off_put by easy. f_equal.
    apply Nat.eqb_eq in inside. destruct d as [[n|n b'] b|b]; cbn [axis_of drawn_by sat1 owner coordinate] in *;
      subst; rewrite put_same; try easy.
    rewrite mem_one in here. apply Nat.eqb_neq in here. now rewrite put_other by congruence.
  - rewrite IH, sat_cons by easy. rewrite sat1_other by (easy || now apply Nat.eqb_neq).
    destruct (c =? coordinate d r i)%nat; cbn [andb]; [easy|]. now rewrite andb_false_r.
Qed.

Lemma sat_of_first (q : place) (r : rank) (a : nat) (i : E) : on_axes [a] q = [] ->
  sat q (put r a 0) i = sat (map (of_first a) q) r i.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons. cbn [map]. rewrite !sat_cons.
  destruct (axis_of d =? a)%nat eqn:inside; [easy|]. intros out. rewrite IH by easy. f_equal.
  apply Nat.eqb_neq in inside. destruct d as [[n|n b'] b|b]; cbn in *; rewrite ?put_other by congruence; try easy.
  destruct (b' =? a)%nat eqn:e; cbn.
  - apply Nat.eqb_eq in e. subst. now rewrite put_same.
  - apply Nat.eqb_neq in e. now rewrite put_other by congruence.
Qed.

Lemma sat_first_put (q : place) (r : rank) (a c : nat) (i : E) (b : nat) : on_axes [a] q = [First b] ->
  sat q (put r a c) i = (c =? 0)%nat && sat (map (of_first a) (off_axes [a] q)) r i.
Proof.
  induction q as [|e q IH]; [easy|]. rewrite on_axes_cons, off_axes_cons, sat_cons.
  destruct (axis_of e =? a)%nat eqn:inside.
  - intros [= -> out]. rewrite off_axes_all by easy. apply Nat.eqb_eq in inside. cbn in inside. subst b.
    cbn [sat1]. rewrite put_same. destruct (c =? 0)%nat eqn:zero; cbn [andb]; [|easy].
    apply Nat.eqb_eq in zero. subst c. now apply sat_of_first.
  - intros found. rewrite IH by easy. cbn [map]. rewrite sat_cons. apply Nat.eqb_neq in inside.
    destruct (c =? 0)%nat eqn:zero; cbn [andb]; [|now rewrite andb_false_r]. apply Nat.eqb_eq in zero. subst c.
    f_equal. destruct e as [[n|n b'] b0|b0]; cbn in *; rewrite ?put_other by congruence; try easy.
    destruct (b' =? a)%nat eqn:e'; cbn.
    + apply Nat.eqb_eq in e'. subst. now rewrite put_same.
    + apply Nat.eqb_neq in e'. now rewrite put_other by congruence.
Qed.

(** Along an axis one rank has an element, if it is at the place that they have together. *)
Lemma spread_ok (a : nat) (q q' : place) (r : rank) (i : E) : spread a q = Some q' ->
  exists k, (k < size a)%nat /\ forall c, sat q (put r a c) i = (c =? k)%nat && sat q' r i.
Proof.
  unfold spread. destruct (on_axes [a] q) as [|d [|? ?]] eqn:on; try easy; [|now destruct d].
  assert (axis : axis_of d = a).
  { assert (inside : In d (on_axes [a] q)) by (rewrite on; now left).
    apply filter_In in inside; destruct inside as [_ inside]. rewrite mem_one in inside. now apply Nat.eqb_eq. }
  destruct d as [s b|b].
  - destruct (still [a] q) eqn:same; [|easy]. intros [= <-]. exists (owner s r a i). split; [apply owner_ok|].
    intros c. rewrite (sat_on_put _ _ _ _ _ _ on same). cbn in axis. now subst.
  - intros [= <-]. exists 0%nat. split; [apply size_pos|]. intros c. now apply sat_first_put with (b := b).
Qed.

Definition norm_step (a : nat) (n : option place) : option place :=
  match n with Some q => spread a q | None => None end.

Definition norm_sum (l : list E) (q : place) (f : E -> K) (r : rank) : K :=
  sum_list l (fun i => if sat q r i then f i else 0).

Lemma sum_norm (l : list E) (f : E -> K) (along : list nat) (q q' : place) (r : rank) :
  fold_right norm_step (Some q) along = Some q' ->
  sum_list (peers along r) (norm_sum l q f) = norm_sum l q' f r.
Proof.
  revert q' r; induction along as [|a along IH]; intros q' r found.
  - injection found as <-. cbn; ring.
  - rewrite peers_sum. cbn [fold_right] in found. destruct (fold_right norm_step (Some q) along) as [q1|]; [|easy].
    cbn [norm_step] in found.
    transitivity (sum_list (seq 0 (size a)) (fun c => norm_sum l q1 f (put r a c))).
    { apply sum_list_ext; intros c _; now apply IH. }
    unfold norm_sum. rewrite sum_swap_list. apply sum_list_ext; intros i _.
    destruct (spread_ok a q1 q' r i found) as [k [small picks]].
    transitivity (sum_list (seq 0 (size a)) (fun c => if (c =? k)%nat then (if sat q' r i then f i else 0) else 0)).
    + apply sum_list_ext; intros c _. rewrite picks. now destruct (c =? k)%nat.
    + now apply (sum_pick (size a) k (fun _ => if sat q' r i then f i else 0)).
Qed.

(** ** What ranks have together *)

Lemma together_all {A : Type} (big : bool) (l : list A) (f : A -> option K) (g : A -> K) (j : K) :
  (forall a, In a l -> f a = Some (g a)) -> together big (map f l) j = Some (join big l g).
Proof.
  intros all. unfold together. replace (forallb is_some (map f l)) with true.
  - f_equal. unfold join. destruct big.
    + clear - all. induction l as [|a l IH]; [easy|]. cbn [map greatest]. rewrite IH by (intros; apply all; now right).
      now rewrite all by now left.
    + rewrite sum_list_map. apply sum_list_ext; intros a inside. now rewrite all.
  - symmetry. apply forallb_forall. intros o inside. apply in_map_iff in inside. destruct inside as [a [<- inside]].
    now rewrite all.
Qed.

Lemma together_none {A : Type} (big : bool) (l : list A) (f : A -> option K) (j : K) : l <> [] ->
  (forall a, In a l -> f a = None) -> together big (map f l) j = None.
Proof.
  intros some none. destruct l as [|a l]; [easy|]. unfold together. cbn [map forallb].
  rewrite (none a) by now left. cbn [is_some andb existsb orb].
  replace (existsb is_some (map f l)) with false; [easy|]. symmetry.
  apply not_true_iff_false. rewrite existsb_exists. intros [o [inside some']]. apply in_map_iff in inside.
  destruct inside as [b [<- inside]]. rewrite none in some'; [easy|now right].
Qed.
End Norms.
