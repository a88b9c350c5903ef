(** Flags: the largest of those of several ranks is about the elements that these have together.

    What it backs: the kernel.

    Main statement: [look_max]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms.
Open Scope nat_scope.

Section Flags.
Context {w : world}.

Definition look_step (a : nat) (n : option place) : option place :=
  match n with
  | Some q => match on_axes [a] q with [] => if still [a] q then Some q else None | _ => spread a q end
  | None => None end.

Lemma existsb_flat {A B : Type} (g : A -> list B) (f : B -> bool) (l : list A) :
  existsb f (flat_map g l) = existsb (fun a => existsb f (g a)) l.
Proof. induction l as [|a l IH]; [easy|]. cbn. now rewrite existsb_app, IH. Qed.

Lemma look_axis (l : list E) (F : E -> bool) (q q' : place) (a : nat) (r : rank) : look_step a (Some q) = Some q' ->
  existsb (fun c => existsb (fun i => sat q (put r a c) i && F i) l) (seq 0 (size a)) =
  existsb (fun i => sat q' r i && F i) l.
Proof.
  intros found. apply eq_true_iff_eq. rewrite !existsb_exists. cbn [look_step] in found.
  destruct (on_axes [a] q) as [|d l0] eqn:on.
  - destruct (still [a] q) eqn:same; [|easy]. injection found as <-. split.
    + intros [c [_ some]]. apply existsb_exists in some. destruct some as [i [inside some]]. exists i. split; [easy|].
      now rewrite sat_off_put in some.
    + intros [i [inside some]]. exists 0. split; [apply in_seq; pose proof (size_pos a); lia|].
      apply existsb_exists. exists i. split; [easy|]. now rewrite sat_off_put.
  - clear on. split.
    + intros [c [_ some]]. apply existsb_exists in some. destruct some as [i [inside some]]. exists i. split; [easy|].
      destruct (spread_ok a q q' r i found) as [k [_ picks]]. rewrite picks in some.
      apply andb_true_iff in some. destruct some as [here is].
      apply andb_true_iff in here. destruct here as [_ here]. now rewrite here.
    + intros [i [inside some]]. destruct (spread_ok a q q' r i found) as [k [small picks]]. exists k.
      split; [apply in_seq; lia|]. apply existsb_exists. exists i. split; [easy|].
      rewrite picks, Nat.eqb_refl. exact some.
Qed.

Lemma look_max (l : list E) (F : E -> bool) (along : list nat) (q q' : place) (r : rank) :
  fold_right look_step (Some q) along = Some q' ->
  existsb (fun r => existsb (fun i => sat q r i && F i) l) (peers along r) = existsb (fun i => sat q' r i && F i) l.
Proof.
  revert q' r; induction along as [|a along IH]; intros q' r found.
  - injection found as <-. cbn. apply orb_false_r.
  - cbn [fold_right] in found. destruct (fold_right look_step (Some q) along) as [q1|] eqn:rest; [|easy].
    cbn [peers]. rewrite existsb_flat. rewrite <- (look_axis l F q1 q' a r found).
    induction (seq 0 (size a)) as [|c s IHs]; [easy|]. cbn. now rewrite IHs, (IH q1).
Qed.

Lemma largest_all {A : Type} (l : list A) (f : A -> option bool) (g : A -> bool) (j : bool) :
  (forall a, In a l -> f a = Some (g a)) -> largest (map f l) j = Some (existsb g l).
Proof.
  intros all. unfold largest. replace (forallb is_some (map f l)) with true.
  - f_equal. induction l as [|a l IH]; [easy|]. cbn. rewrite all by now left. rewrite IH; [easy|]. intros; apply all.
    now right.
  - symmetry. apply forallb_forall. intros o inside. apply in_map_iff in inside. destruct inside as [a [<- inside]].
    now rewrite all.
Qed.
End Flags.
