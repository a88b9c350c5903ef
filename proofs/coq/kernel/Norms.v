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

Lemma sat1_other (d : clause) (r : rank) (a c : nat) (i : E) : axis_of d <> a -> sat1 (put r a c) i d = sat1 r i d.
Proof. destruct d as [s b|b]; cbn; intros apart; rewrite put_other by congruence; reflexivity. Qed.

Lemma sat_off_put (q : place) (r : rank) (a c : nat) (i : E) : on_axes [a] q = [] -> sat q (put r a c) i = sat q r i.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, !sat_cons.
  destruct (axis_of d =? a)%nat eqn:inside; [easy|]. intros out.
  rewrite IH by easy. rewrite sat1_other; [easy|]. now apply Nat.eqb_neq.
Qed.

Lemma off_axes_all (a : nat) (q : place) : on_axes [a] q = [] -> off_axes [a] q = q.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, off_axes_cons.
  destruct (axis_of d =? a)%nat; [easy|]. intros out; now rewrite IH.
Qed.

Definition coordinate (d : clause) (i : E) : nat := match d with Owner s a => own s a i | First _ => 0 end.
Lemma coordinate_ok (d : clause) (i : E) : (coordinate d i < size (axis_of d))%nat.
Proof. destruct d; cbn; [apply own_ok|apply size_pos]. Qed.

Lemma sat_on_put (q : place) (r : rank) (a c : nat) (i : E) (d : clause) : on_axes [a] q = [d] ->
  sat q (put r a c) i = (c =? coordinate d i)%nat && sat (off_axes [a] q) r i.
Proof.
  induction q as [|e q IH]; [easy|]. rewrite on_axes_cons, off_axes_cons, sat_cons.
  destruct (axis_of e =? a)%nat eqn:inside.
  - intros [= -> out]. rewrite off_axes_all, sat_off_put by exact out. f_equal.
    apply Nat.eqb_eq in inside. destruct d as [s b|b]; cbn in *; subst; now rewrite put_same.
  - intros found. rewrite IH, sat_cons by easy. rewrite sat1_other by now apply Nat.eqb_neq.
    destruct (c =? coordinate d i)%nat; cbn [andb]; [easy|]. now rewrite andb_false_r.
Qed.

Definition norm_step (a : nat) (n : option place) : option place :=
  match n with
  | Some q => match on_axes [a] q with [_] => Some (off_axes [a] q) | _ => None end
  | None => None end.

Definition norm_sum (l : list E) (q : place) (f : E -> K) (r : rank) : K :=
  sum_list l (fun i => if sat q r i then f i else 0).

Lemma sum_norm (l : list E) (f : E -> K) (along : list nat) (q q' : place) (r : rank) :
  fold_right norm_step (Some q) along = Some q' ->
  sum_list (peers along r) (norm_sum l q f) = norm_sum l q' f r.
Proof.
  revert q' r; induction along as [|a along IH]; intros q' r found.
  - injection found as <-. cbn; ring.
  - rewrite peers_sum. cbn [fold_right] in found. destruct (fold_right norm_step (Some q) along) as [q1|]; [|easy].
    cbn in found. destruct (on_axes [a] q1) as [|d [|? ?]] eqn:on; try easy. injection found as <-.
    transitivity (sum_list (seq 0 (size a)) (fun c => norm_sum l q1 f (put r a c))).
    { apply sum_list_ext; intros c _; now apply IH. }
    unfold norm_sum. rewrite sum_swap_list. apply sum_list_ext; intros i _.
    transitivity (sum_list (seq 0 (size a)) (fun c => if (c =? coordinate d i)%nat
      then (if sat (off_axes [a] q1) r i then f i else 0) else 0)).
    + apply sum_list_ext; intros c _. rewrite (sat_on_put _ _ _ _ _ d on). now destruct (c =? coordinate d i)%nat.
    + apply (sum_pick (size a) (coordinate d i) (fun _ => if sat (off_axes [a] q1) r i then f i else 0)).
      assert (axis : axis_of d = a).
      { assert (inside : In d (on_axes [a] q1)) by (rewrite on; now left).
        apply filter_In in inside; destruct inside as [_ inside]. rewrite mem_one in inside.
        now apply Nat.eqb_eq. }
      rewrite <- axis. apply coordinate_ok.
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
