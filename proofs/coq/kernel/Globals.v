(** What is known of all groups at once: counters, norms, the count of tokens, flags.

    What it backs: the kernel.

    Main statements: [total_ok] (the norm is that of the reference), [decided_ok] (a rank leaves out a step where the
    reference does). *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
Open Scope nat_scope.

Section Globals.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).

(** What is known of counters and norms. *)
Record glob (t j : nat) (f : facts) (m : memory) : Prop := {
  of_counts : forall c disk, ticking (ticks_of p c) t (told (counts f) c disk) (count m c disk);
  as_many_norms : length (norms f) = length (groups p);
  of_norms : forall g q, nth_error (norms f) g = Some (Some q) ->
    forall l r, l < depth p (hd 0 (sites_of p g)) -> ok r ->
    partial m g l r = Some (norm_sum (part g l) q (fun i => measure i (grad_at p t i)) r);
  of_tally : forall n each un, nth n (tallied (counts f)) None = Some (each, un) -> forall r, ok r ->
    tally m n r = length (filter (near un r) (counted p n t j each));
  of_looks : forall g q, nth g (looked (counts f)) None = Some q ->
    forall l r, l < depth p (hd 0 (sites_of p g)) -> ok r ->
    flag m g l r = Some (existsb (fun i => sat q r i && overflows i (grad_at p t i)) (part g l))
}.

Lemma existsb_same {V : Type} (F H : V -> bool) (l : list V) : (forall v, In v l -> F v = H v) -> existsb F l =
  existsb H l.
Proof.
  induction l as [|v l IH]; intros all; [easy|]. cbn. rewrite all by now left. rewrite IH; [easy|]. intros; apply
    all; now right.
Qed.

Lemma current_ok (t j : nat) (c : counter) (f : facts) (m : memory) (r : rank) : glob t j f m -> current f c = true ->
  ok r ->
  count m c false r = Some (ticks_of p c t).
Proof.
  intros g now good. unfold current in now. pose proof (of_counts _ _ _ _ g c false) as here.
  destruct (told (counts f) c false) as [| |[] [|] o]; try easy. exact (here r good).
Qed.

Lemma spoken_ok (t j : nat) (f : facts) (m : memory) : glob t j f m -> spoken p t j f m.
Proof.
  intros g. split; [apply (of_tally _ _ _ _ g)|]. intros now r good. exact (current_ok t j LossScale f m r g now good).
Qed.

Lemma part_of (gl : nat * nat) : In gl (all_parts p) -> fst gl < length (groups p) /\ by_gradient p (fst gl) = true /\
  snd gl < depth p (hd 0 (sites_of p (fst gl))).
Proof.
  destruct gl as [n k]. intros inside. unfold all_parts in inside.
    apply in_flat_map in inside.
  destruct inside as [n' [small inside]]. apply in_map_iff in inside. destruct inside as [k' [[= <- <-] small']].
  apply filter_In in small. destruct small as [small learns]. apply in_seq in small, small'. cbn. lia || (repeat
    split; lia || easy).
Qed.

Lemma decided_ok (t j : nat) (f : facts) (m : memory) (r : rank) : glob t j f m -> decided p f = true -> ok r ->
  leaves_out p m r = left_out p t (weights_at p t).
Proof.
  intros g all good. unfold decided in all. unfold leaves_out,
    left_out. destruct (skips p); [|easy]. cbn [negb orb andb] in *.
  rewrite forallb_forall in all. apply existsb_same. intros gl inside. destruct (part_of gl inside) as [small [learns
    deep_]].
  specialize (all (fst gl)). rewrite in_seq in all. specialize (all ltac:(lia)).
  change (graded_at p (fst gl)) with (by_gradient p (fst gl)) in all. rewrite learns in all. cbn [negb orb] in all.
  destruct (nth (fst gl) (looked (counts f)) None) as [[|]|] eqn:found; try easy.
  now rewrite (of_looks _ _ _ _ g _ _ found (snd gl) r deep_ good).
Qed.

Lemma total_ok (t j : nat) (f : facts) (m : memory) (r : rank) : glob t j f m -> normed p f = true -> ok r ->
  total p m r = Some (norm p t (weights_at p t)).
Proof.
  intros g all good. unfold total.
  set (l := flat_map _ _).
  assert (parts : l = map (fun gl => partial m (fst gl) (snd gl) r) (all_parts p)).
  { unfold l, all_parts. induction (filter (by_gradient p) (seq 0 (length (groups p)))) as [|n s IH]; cbn; [easy|].
    now rewrite map_app, IH, map_map. }
  assert (right : forall gl, In gl (all_parts p) -> partial m (fst gl) (snd gl) r =
    Some (sum_list (part (fst gl) (snd gl)) (fun i => measure i (grad_at p t i)))).
  { intros [n k] inside. unfold all_parts in inside. apply in_flat_map in inside. destruct inside as [n' [small
    inside]].
    apply in_map_iff in inside. destruct inside as [k' [[= <- <-] small']]. apply filter_In in small.
    destruct small as [small learns]. apply in_seq in small, small'.
    assert (known : nth_error (norms f) n' = Some (Some [])).
    { destruct (nth_error (norms f) n') as [q|] eqn:found.
      - unfold normed in all. rewrite forallb_forall in all. specialize (all n'). rewrite in_seq in all.
        specialize (all ltac:(lia)). change (graded_at p n') with (by_gradient p n') in all. rewrite learns in all.
        apply nth_error_nth with (d := None) in found. rewrite found in all. destruct q as [[|]|]; easy.
      - apply nth_error_None in found. rewrite (as_many_norms _ _ _ _ g) in found. lia. }
    cbn [fst snd]. rewrite (of_norms _ _ _ _ g n' [] known k' r) by (easy || lia). reflexivity. }
  rewrite parts. rewrite (together_all _ _ _ _ _ right).
  replace (forallb is_some _) with true; [reflexivity|]. symmetry. apply forallb_forall. intros o inside.
  apply in_map_iff in inside. destruct inside as [gl [<- inside]]. now rewrite right.
Qed.

End Globals.
