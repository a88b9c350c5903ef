(** Counters: what is known of one behind each of its events is true. And lists of values that are all there.

    What it backs: the kernel.

    Main statements: [tick_ok], [share_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling.
From Placealg.kernel Require Import Facts.
Open Scope nat_scope.

Section Counters.
Context {w : world}.

(** What a fact about a counter says. *)
Definition ticking (v : nat -> nat) (t : nat) (h : ticks) (f : rank -> option nat) : Prop :=
  match h with
  | Unsaid => True
  | Unheld => forall r, ok r -> f r = None
  | Ticks b l o => forall r, ok r -> if at_first l r then f r = Some (v (if b then S t else t)) else o = true -> f r =
    None
  end.

Lemma ticked_ok (v : nat -> nat) (t : nat) (b o : bool) (l : list nat) (f : rank -> option nat) :
  ticking v t (Ticks b l o) f -> ticking v t (ticked b l o) f.
Proof.
  intros here r good. specialize (here r good). destruct (at_first l r) eqn:there; [exact here|].
  destruct l; [easy|]. intros only. rewrite orb_false_r in only. auto.
Qed.

Lemma ticking_ext (v : nat -> nat) (t : nat) (h : ticks) (f f' : rank -> option nat) : (forall r, ok r -> f' r = f r)
  -> ticking v t h f ->
  ticking v t h f'.
Proof. destruct h; cbn; intros same here; auto; intros r good; rewrite same by easy; now apply here. Qed.

Lemma at_first_app (l l' : list nat) (r : rank) : at_first (l ++ l') r = at_first l r && at_first l' r.
Proof. apply forallb_app. Qed.

Lemma at_first_moved (l along : list nat) (r : rank) :
  at_first l (moved (fun _ => 0) along r) = at_first (filter (fun a => negb (mem a along)) l) r.
Proof.
  induction l as [|a l IH]; [easy|]. cbn [at_first forallb filter]. fold (at_first l (moved (fun _ => 0) along r)).
  rewrite IH. unfold moved at 1. fold (mem a along). now destruct (mem a along).
Qed.

Section Known.
Variables (v_ : counter -> nat -> nat) (t : nat) (start decided_ : bool) (k : counters) (cnt : counter -> bool ->
  rank -> option nat) (c : counter).
Hypothesis C : forall c disk, ticking (v_ c) t (told k c disk) (cnt c disk).

Lemma tick_ok (d : tick) (firsts : list nat) (out : rank -> bool) (other_ : rank -> nat) (c' : counter) (disk : bool)
  :
  (start = true -> t = 0) -> v_ c 0 = 0 ->
  (decided_ || counter_eqb c Stream = true -> forall r, ok r ->
     (if counter_eqb c Step && out r then v_ c t else advance c (out r) (v_ c t)) = v_ c (S t)) ->
  ticking (v_ c') t (told (after_tick start decided_ k c d firsts) c' disk)
    (fun r => if counter_eqb c' c && at_first firsts r then
       match d, disk with
       | Start, false => Some 0
       | Advance, false => if counter_eqb c Step && out r then cnt c false r else match cnt c false r with
         | Some n => Some (advance c (out r) n) | None => Some (other_ r) end
       | Load, false => cnt c true r
       | Store, true => match cnt c false r with Some n => Some n | None => cnt c true r end
       | _, _ => cnt c' disk r end else cnt c' disk r).
Proof.
  intros starts zero_ advances. unfold after_tick.
  set (here := told k c false).
  assert (start_ok : d = Start -> start = true -> t = 0) by (intros; now apply starts).
  pose proof (C c false) as H. pose proof (C c true) as H'. fold here in H.
  assert (other : forall v dk, counter_eqb c' c && eqb disk dk = false ->
    told (tell k c dk v) c' disk = told k c' disk).
  { intros v dk apart_. destruct k, c, c', disk, dk; easy. }
  assert (same : forall v dk, told (tell k c dk v) c dk = v).
  { intros v dk. destruct k, c, dk; easy. }
  destruct (counter_eqb c' c) eqn:mine; cbn [andb] in *.
  2: { assert (left_ : ticking (v_ c') t (told k c' disk) (cnt c' disk)) by apply C.
       destruct d, firsts; rewrite other by easy; exact left_. }
  assert (c' = c) as -> by (destruct c, c'; easy).
  destruct d.
  * destruct disk.
    -- assert (left_ : ticking (v_ c) t (told k c true) (fun r => if at_first firsts r then cnt c true r
         else cnt c true r)).
       { eapply ticking_ext; [|exact H']. intros r _. now destruct (at_first firsts r). }
       destruct firsts; rewrite other by easy; exact left_.
    -- destruct firsts; rewrite same; [|easy]. destruct start; [|easy]. intros r _. cbn. now rewrite starts, zero_.
  * destruct disk.
    -- assert (left_ : ticking (v_ c) t (told k c true) (fun r => if at_first firsts r then cnt c true r
         else cnt c true r)).
       { eapply ticking_ext; [|exact H']. intros r _. now destruct (at_first firsts r). }
       destruct firsts; rewrite other by easy; exact left_.
    -- destruct firsts; rewrite same; [|easy]. destruct here as [| |[] l o]; try easy. destruct (decided_ || _)
      eqn:can; [|easy]. apply ticked_ok.
       intros r good_. specialize (H r good_). cbn [at_first forallb]. destruct (at_first l r); [|easy].
       rewrite <- (advances eq_refl r good_), H. now destruct (_ && out r).
  * destruct disk.
    -- rewrite same. destruct here as [| |b l o]; try easy. apply ticked_ok. intros r good_.
       specialize (H r good_). rewrite at_first_app. destruct (at_first l r) eqn:in_; cbn [andb].
       ++ destruct (at_first firsts r); [now rewrite H|]. intros only. apply andb_true_iff in only.
          destruct only as [_ none]. destruct (told k c true); try easy. now apply H'.
       ++ intros only. apply andb_true_iff in only. destruct only as [only none].
          destruct (told k c true); try easy. specialize (H' r good_). cbn beta in H'.
          destruct (at_first firsts r); [|easy]. now rewrite (H only), H'.
    -- rewrite other by easy. eapply ticking_ext; [|exact H]. intros r _. now destruct (at_first firsts r).
  * destruct disk.
    -- assert (left_ : ticking (v_ c) t (told k c true) (fun r => if at_first firsts r then cnt c true r
         else cnt c true r)).
       { eapply ticking_ext; [|exact H']. intros r _. now destruct (at_first firsts r). }
       destruct firsts; rewrite other by easy; exact left_.
    -- destruct firsts; rewrite same; [|easy]. exact H'.
Qed.

Lemma share_ok (along : list nat) (c' : counter) (disk : bool) :
  ticking (v_ c') t (told (after_share k c along) c' disk)
    (fun r => if counter_eqb c' c && negb disk then cnt c false (moved (fun _ => 0) along r) else cnt c' disk r).
Proof.
  unfold after_share.
 pose proof (C c false) as H.
  destruct (counter_eqb c' c && negb disk) eqn:mine.
  * apply andb_true_iff in mine. destruct mine as [mine off_]. destruct disk; [easy|].
    assert (c' = c) as -> by (destruct c, c'; easy).
    set (v := match told k c false with Ticks b l o => _ | h => h end).
    assert (told (tell k c false v) c false = v) as -> by (destruct k, c; easy).
    unfold v. destruct (told k c false) as [| |b l o]; [easy| |].
    -- intros r good_. cbn. destruct c; cbn; apply H; apply moved_ok; easy || (intros; apply size_pos).
    -- apply ticked_ok. intros r good_. specialize (H (moved (fun _ => 0) along r)
         ltac:(apply moved_ok; [intros; apply size_pos|easy])). rewrite at_first_moved in H.
       destruct c; exact H.
  * assert (told (tell k c false match told k c false with Ticks b l o => ticked b (filter (fun
    a
      => negb (mem a along)) l) o | h => h end) c' disk = told k c' disk) as ->.
    { destruct k, c, c', disk; easy. }
    exact (C c' disk).
Qed.
End Known.

Lemma inside_first (l m : list nat) (r : rank) : inside_of l m = true -> at_first m r = true -> at_first l r = true.
Proof.
  unfold inside_of, at_first. rewrite !forallb_forall. intros all first_ a inside. specialize (all a inside).
  unfold mem in all. apply existsb_exists in all. destruct all as [b [in_ same]]. apply Nat.eqb_eq in same. subst.
  now apply first_.
Qed.

Lemma count_entail_ok (v : nat -> nat) (t : nat) (n n' : ticks) (f : rank -> option nat) : count_entails n n' = true
  -> ticking v t n f
  ->
  ticking v t n' f.
Proof.
  destruct n as [| |b l o], n' as [| |b' l' o']; cbn [count_entails]; try easy. intros all here r good.
  apply andb_true_iff in all. destruct all as [all only]. apply andb_true_iff in all. destruct all as [same in_].
  destruct (bool_eq b b') as [<-|]; [|easy]. specialize (here r good). destruct (at_first l' r) eqn:there'.
  - now rewrite (inside_first _ _ _ in_ there') in here.
  - intros ->. cbn [negb orb] in only. apply andb_true_iff in only. destruct only as [-> in_'].
    destruct (at_first l r) eqn:there; [|now apply here]. now rewrite (inside_first _ _ _ in_' there) in there'.
Qed.

Lemma all_some_map {V : Type} (F : E -> option V) (H : E -> V) (l : list E) : (forall e, In e l -> F e = Some (H e))
  ->
  all_some (map F l) = Some (map H l).
Proof.
  induction l as [|e l IH]; intros all; [easy|]. cbn [map all_some fold_right]. rewrite (all e) by now left.
  fold (all_some (map F l)). rewrite IH; [easy|]. intros; apply all; now right.
Qed.

End Counters.
