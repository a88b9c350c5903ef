(** Sums over ranks, tokens and elements, and the ratios by which gradients are scaled.

    What it backs: the kernel; each lemma is about one line of Check.v.

    Main statement: [sum_reduced] (a sum over ranks of partial gradients is what [reduced] says), [sum_norm]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
Open Scope nat_scope.

Section Algebra.
Context {w : world}.
Add Ring K_ring : (laws K).
Local Open Scope ring_scope.

Lemma sum_flat_map {A B : Type} (g : A -> list B) (l : list A) (f : B -> K) :
  sum_list (flat_map g l) f = sum_list l (fun a => sum_list (g a) f).
Proof. induction l as [|a l IH]; cbn; [easy|]. now rewrite sum_list_app, IH. Qed.

Lemma sum_swap_list {A B : Type} (l : list A) (m : list B) (f : A -> B -> K) :
  sum_list l (fun a => sum_list m (f a)) = sum_list m (fun b => sum_list l (fun a => f a b)).
Proof.
  induction l as [|a l IH]; cbn.
  - symmetry; apply sum_list_zero.
  - now rewrite IH, sum_list_plus.
Qed.

Lemma sum_times_list {A : Type} (l : list A) (k : K) (f : A -> K) : sum_list l (fun a => k * f a) = k * sum_list l f.
Proof. apply sum_list_times. Qed.

Lemma sum_filter {A : Type} (P : A -> bool) (l : list A) (f : A -> K) :
  sum_list (filter P l) f = sum_list l (fun a => if P a then f a else 0).
Proof. induction l as [|a l IH]; cbn; [easy|]. destruct (P a); cbn; rewrite IH; ring. Qed.

Lemma sum_const {A : Type} (l : list A) (k : K) : sum_list l (fun _ => k) = of_nat (length l) * k.
Proof. induction l as [|a l IH]; cbn; [ring|]. rewrite IH; ring. Qed.

Lemma sum_absent (s n y : nat) (f : nat -> K) : (y < s)%nat ->
  sum_list (seq s n) (fun c => if (c =? y)%nat then f c else 0) = 0.
Proof.
  revert s; induction n as [|n IH]; intros s out; cbn; [easy|].
  replace (s =? y)%nat with false by (symmetry; apply Nat.eqb_neq; lia). rewrite IH by lia. ring.
Qed.

Lemma sum_pick (n y : nat) (f : nat -> K) : (y < n)%nat ->
  sum_list (seq 0 n) (fun c => if (c =? y)%nat then f c else 0) = f y.
Proof.
  intros inside. assert (all : forall s n, (s <= y)%nat -> (y < s + n)%nat ->
    sum_list (seq s n) (fun c => if (c =? y)%nat then f c else 0) = f y).
  { clear n inside. intros s n; revert s; induction n as [|n IH]; intros s low high; cbn; [lia|].
    destruct (s =? y)%nat eqn:here.
    - apply Nat.eqb_eq in here; subst. rewrite sum_absent by lia. ring.
    - apply Nat.eqb_neq in here. rewrite IH by lia. ring. }
  apply all; lia.
Qed.

Lemma of_nat_app (a b : nat) : of_nat (a + b) = of_nat a + of_nat b :> K.
Proof. induction a as [|a IH]; cbn; [ring|]. rewrite IH; ring. Qed.
Lemma of_nat_mul (a b : nat) : of_nat (a * b) = of_nat a * of_nat b :> K.
Proof. induction a as [|a IH]; cbn; [ring|]. rewrite of_nat_app, IH; ring. Qed.

(** ** Ranks *)

Lemma peers_sum (a : nat) (l : list nat) (r : rank) (F : rank -> K) :
  sum_list (peers (a :: l) r) F = sum_list (seq 0 (size a)) (fun c => sum_list (peers l (put r a c)) F).
Proof. cbn. apply sum_flat_map. Qed.

Lemma put_same (r : rank) (a c : nat) : put r a c a = c.
Proof. unfold put; now rewrite Nat.eqb_refl. Qed.
Lemma put_other (r : rank) (a b c : nat) : a <> b -> put r a c b = r b.
Proof. intros apart; unfold put. destruct (b =? a)%nat eqn:e; [apply Nat.eqb_eq in e; congruence|easy]. Qed.

Lemma ok_put (r : rank) (a c : nat) : ok r -> (c < size a)%nat -> ok (put r a c).
Proof.
  intros good small b. unfold put. destruct (b =? a)%nat eqn:e; [apply Nat.eqb_eq in e; now subst|apply good].
Qed.

Lemma peers_ok (l : list nat) (r r' : rank) : ok r -> In r' (peers l r) -> ok r'.
Proof.
  revert r; induction l as [|a l IH]; intros r good inside; cbn in inside.
  - destruct inside as [<-|[]]; easy.
  - apply in_flat_map in inside; destruct inside as [c [small inside]].
    apply in_seq in small. apply (IH (put r a c)); [apply ok_put; [easy|lia]|easy].
Qed.

Lemma peers_outside (l : list nat) (r r' : rank) (a : nat) : In r' (peers l r) -> mem a l = false -> r' a = r a.
Proof.
  revert r; induction l as [|b l IH]; intros r inside out; cbn in inside.
  - now destruct inside as [<-|[]].
  - apply in_flat_map in inside; destruct inside as [c [_ inside]].
    cbn in out; apply orb_false_iff in out; destruct out as [apart out].
    rewrite (IH _ inside out). apply put_other. apply Nat.eqb_neq in apart; congruence.
Qed.

Lemma peers_not_empty (l : list nat) (r : rank) : peers l r <> [].
Proof.
  revert r; induction l as [|a l IH]; intros r; cbn; [easy|].
  pose proof (size_pos a). destruct (size a) as [|n]; [lia|]. cbn.
  specialize (IH (put r a 0)). now destruct (peers l (put r a 0)).
Qed.

(** ** Partial gradients *)

Lemma near_put_in (un : list nat) (r : rank) (a c : nat) (x : X) : mem a un = true ->
  near un (put r a c) x = (c =? home x a)%nat && near (filter (fun b => negb (a =? b)%nat) un) r x.
Proof.
  unfold near. assert (out : forall un, mem a un = false ->
    forallb (fun a' => put r a c a' =? home x a')%nat un
    = forallb (fun a' => r a' =? home x a')%nat (filter (fun b => negb (a =? b)%nat) un)).
  { clear un; induction un as [|b un IH]; cbn; intros out; [easy|]. apply orb_false_iff in out; destruct out as
    [apart out].
    rewrite apart; cbn. rewrite IH by easy. rewrite put_other; [easy|apply Nat.eqb_neq in apart; congruence]. }
  induction un as [|b un IH]; cbn; intros inside; [easy|].
  destruct (a =? b)%nat eqn:e; cbn in *.
  - apply Nat.eqb_eq in e; subst b. rewrite put_same.
    destruct (mem a un) eqn:again.
    + rewrite IH by easy. now destruct (c =? home x a)%nat.
    + now rewrite out by easy.
  - rewrite IH by easy. rewrite put_other by (apply Nat.eqb_neq in e; congruence).
    destruct (r b =? home x b)%nat, (c =? home x a)%nat; cbn; try easy.
Qed.

Lemma near_put_out (un : list nat) (r : rank) (a c : nat) (x : X) : mem a un = false ->
  near un (put r a c) x = near un r x.
Proof.
  unfold near; induction un as [|b un IH]; cbn; intros out; [easy|]. apply orb_false_iff in out; destruct out as
    [apart out].
  rewrite IH by easy. rewrite put_other; [easy|apply Nat.eqb_neq in apart; congruence].
Qed.

Section Parts.
Context {Y : Type} (token : Y -> X).
Definition partial_sum (l : list Y) (un : list nat) (f : Y -> K) (r : rank) : K :=
  sum_list l (fun x => if near un r (token x) then f x else 0).

Lemma sum_axis_in (l : list Y) (un : list nat) (f : Y -> K) (r : rank) (a : nat) : mem a un = true ->
  sum_list (seq 0 (size a)) (fun c => partial_sum l un f (put r a c))
  = partial_sum l (filter (fun b => negb (a =? b)%nat) un) f r.
Proof.
  intros inside. unfold partial_sum. rewrite sum_swap_list. apply sum_list_ext; intros x _.
  set (un' := filter _ un).
  transitivity (sum_list (seq 0 (size a)) (fun c => if (c =? home (token x) a)%nat then
    (if near un' r (token x) then f x else 0) else 0)).
  - apply sum_list_ext; intros c _. rewrite near_put_in by easy. fold un'. now destruct (c =? home (token x) a)%nat.
  - apply (sum_pick (size a) (home (token x) a) (fun _ => if near un' r (token x) then f x else 0)), home_ok.
Qed.

Lemma sum_axis_out (l : list Y) (un : list nat) (f : Y -> K) (r : rank) (a : nat) : mem a un = false ->
  sum_list (seq 0 (size a)) (fun c => partial_sum l un f (put r a c)) = of_nat (size a) * partial_sum l un f r.
Proof.
  intros out. transitivity (sum_list (seq 0 (size a)) (fun _ => partial_sum l un f r)).
  - apply sum_list_ext; intros c _. apply sum_list_ext; intros x _. now rewrite near_put_out.
  - rewrite sum_const. now rewrite seq_length.
Qed.
End Parts.

(** ** Counts of tokens *)

Lemma list_sum_flat {A B : Type} (f : B -> nat) (g : A -> list B) (l : list A) :
  list_sum (map f (flat_map g l)) = list_sum (map (fun a => list_sum (map f (g a))) l).
Proof. induction l as [|a l IH]; [easy|]. cbn [flat_map map list_sum fold_right]. rewrite map_app, list_sum_app, IH.
  easy. Qed.

Lemma pick_count (n y s : nat) : list_sum (map (fun c => if (c =? y)%nat then 1%nat else 0%nat) (seq s n)) =
  (if (s <=? y) && (y <? s + n) then 1 else 0)%nat.
Proof.
  revert s; induction n as [|n IH]; intros s; cbn [seq map list_sum fold_right].
  - destruct (s <=? y)%nat eqn:a, (y <? s + 0)%nat eqn:b; try easy. apply Nat.leb_le in a. apply Nat.ltb_lt in b. lia.
  - fold (list_sum (map (fun c => if (c =? y)%nat then 1%nat else 0%nat) (seq (S s) n))). rewrite IH.
    destruct (s =? y)%nat eqn:a, (S s <=? y)%nat eqn:b, (y <? S s + n)%nat eqn:c, (s <=? y)%nat eqn:d, (y <? s + S
      n)%nat eqn:e;
      cbn [andb]; try easy; exfalso; rewrite ?Nat.eqb_eq, ?Nat.eqb_neq, ?Nat.leb_le, ?Nat.leb_gt, ?Nat.ltb_lt,
        ?Nat.ltb_ge in *; lia.
Qed.

Lemma list_sum_plus {A : Type} (f g : A -> nat) (l : list A) :
  list_sum (map (fun a => f a + g a)%nat l) = (list_sum (map f l) + list_sum (map g l))%nat.
Proof. induction l as [|a l IH]; cbn [map list_sum fold_right]; [easy|]. unfold list_sum in IH. rewrite IH. lia. Qed.

Lemma count_axis (l : list X) (un : list nat) (r : rank) (a : nat) : mem a un = true ->
  list_sum (map (fun c => length (filter (near un (put r a c)) l)) (seq 0 (size a)))
  = length (filter (near (filter (fun b => negb (a =? b)%nat) un) r) l).
Proof.
  intros inside. induction l as [|x l IH].
  - cbn [filter length]. generalize (seq 0 (size a)) as s. induction s; easy.
  - transitivity (list_sum (map (fun c => (if (c =? home x a)%nat then if near (filter (fun b => negb (a =? b)%nat)
    un) r x
      then 1 else 0 else 0) + length (filter (near un (put r a c)) l))%nat (seq 0 (size a)))).
    + f_equal. apply map_ext. intros c. cbn [filter]. rewrite near_put_in by easy.
      destruct (c =? home x a)%nat; cbn [andb]; [|easy]. now destruct (near _ r x).
    + rewrite list_sum_plus, IH. cbn [filter]. destruct (near _ r x).
      * rewrite pick_count. replace (home x a <? 0 + size a)%nat with true by (symmetry; apply Nat.ltb_lt, home_ok).
        easy.
      * replace (list_sum _) with 0%nat; [easy|]. generalize (seq 0 (size a)) as s. induction s as [|c s IHs];
        [easy|].
        cbn [map list_sum fold_right]. unfold list_sum in IHs. rewrite <- IHs. now destruct (c =? home x a)%nat.
Qed.

Definition tally_step (a : nat) (n : option (bool * list nat)) : option (bool * list nat) :=
  match n with
  | Some (e, un) => if mem a un then Some (e, filter (fun b => negb (a =? b)%nat) un) else None
  | None => None end.

Lemma count_summed (l : list X) (along un un' : list nat) (e e' : bool) (r : rank) :
  fold_right tally_step (Some (e, un)) along = Some (e', un') -> e' = e /\
  list_sum (map (fun r => length (filter (near un r) l)) (peers along r)) = length (filter (near un' r) l).
Proof.
  revert e' un' r; induction along as [|a along IH]; intros e' un' r found.
  - injection found as <- <-. split; [easy|]. cbn. lia.
  - cbn [fold_right] in found. destruct (fold_right tally_step (Some (e, un)) along) as [[e1 un1]|]; [|easy].
    cbn [tally_step] in found. destruct (mem a un1) eqn:inside; [|easy]. injection found as <- <-.
    destruct (IH e1 un1 r eq_refl) as [same _]. split; [easy|].
    cbn [peers]. rewrite list_sum_flat. rewrite <- count_axis by easy. f_equal. apply map_ext. intros c.
    now apply (IH e1 un1).
Qed.
End Algebra.
