(** The largest of some magnitudes: over tokens and ranks, in any order, each once or more often.

    What it backs: the kernel.

    Main statement: [most_reduced] (the largest over ranks of what each has seen is what all of them have). *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling.
Open Scope nat_scope.

Section Maxima.
Context {w : world}.

Lemma larger_zero_right (a : K) : larger a 0%ring = a.
Proof. rewrite larger_sym. apply larger_zero. Qed.

Lemma greatest_ext {V : Type} (l : list V) (f g : V -> K) : (forall v, In v l -> f v = g v) ->
  greatest l f = greatest l g.
Proof.
  induction l as [|v l IH]; intros all; [easy|]. cbn. rewrite all by now left. rewrite IH; [easy|].
  intros; apply all; now right.
Qed.

Lemma greatest_zero {V : Type} (l : list V) : greatest l (fun _ => 0%ring) = 0%ring.
Proof. induction l as [|v l IH]; [easy|]. cbn. now rewrite IH, larger_zero. Qed.

Lemma greatest_app {V : Type} (l m : list V) (f : V -> K) : greatest (l ++ m) f = larger (greatest l f) (greatest m f).
Proof.
  induction l as [|v l IH]; cbn; [now rewrite larger_zero|]. now rewrite IH, larger_of_three.
Qed.

Lemma greatest_map {V W : Type} (g : V -> W) (l : list V) (f : W -> K) :
  greatest (map g l) f = greatest l (fun v => f (g v)).
Proof. induction l as [|v l IH]; [easy|]. cbn. now rewrite IH. Qed.

Lemma greatest_flat {V W : Type} (g : V -> list W) (l : list V) (f : W -> K) :
  greatest (flat_map g l) f = greatest l (fun v => greatest (g v) f).
Proof. induction l as [|v l IH]; [easy|]. cbn. now rewrite greatest_app, IH. Qed.

Lemma greatest_larger {V : Type} (l : list V) (f g : V -> K) :
  greatest l (fun v => larger (f v) (g v)) = larger (greatest l f) (greatest l g).
Proof.
  induction l as [|v l IH]; cbn; [now rewrite larger_zero|]. rewrite IH.
  rewrite <- !larger_of_three. f_equal. rewrite !larger_of_three. f_equal. apply larger_sym.
Qed.

Lemma greatest_swap {V W : Type} (l : list V) (m : list W) (f : V -> W -> K) :
  greatest l (fun v => greatest m (f v)) = greatest m (fun x => greatest l (fun v => f v x)).
Proof.
  induction l as [|v l IH]; cbn; [now rewrite greatest_zero|]. now rewrite IH, greatest_larger.
Qed.

Lemma greatest_filter {V : Type} (P : V -> bool) (l : list V) (f : V -> K) :
  greatest (filter P l) f = greatest l (fun v => if P v then f v else 0%ring).
Proof.
  induction l as [|v l IH]; [easy|]. cbn. destruct (P v); cbn; rewrite IH; [easy|]. now rewrite larger_zero.
Qed.

Lemma greatest_absent (s n y : nat) (k : K) : y < s ->
  greatest (seq s n) (fun c => if c =? y then k else 0%ring) = 0%ring.
Proof.
  revert s; induction n as [|n IH]; intros s out; [easy|]. cbn.
  replace (s =? y) with false by (symmetry; apply Nat.eqb_neq; lia). rewrite IH by lia. apply larger_zero.
Qed.

Lemma greatest_pick (n y : nat) (k : K) : y < n -> greatest (seq 0 n) (fun c => if c =? y then k else 0%ring) = k.
Proof.
  assert (all : forall n s, s <= y -> y < s + n -> greatest (seq s n) (fun c => if c =? y then k else 0%ring) = k).
  { clear n. induction n as [|n IH]; intros s low high; [lia|]. cbn. destruct (s =? y) eqn:here.
    - apply Nat.eqb_eq in here. subst. rewrite greatest_absent by lia. apply larger_zero_right.
    - apply Nat.eqb_neq in here. rewrite IH by lia. apply larger_zero. }
  intros small. apply all; lia.
Qed.

Lemma greatest_same (n : nat) (k : K) : 0 < n -> greatest (seq 0 n) (fun _ => k) = k.
Proof.
  intros some. destruct n as [|n]; [lia|]. clear some. generalize 0 as s.
  induction n as [|n IH]; intros s; [apply larger_zero_right|]. cbn [seq greatest] in *. rewrite (IH (S s)).
  apply larger_same.
Qed.

Section Parts.
Context {Y : Type} (token : Y -> X).
Definition partial_most (l : list Y) (un : list nat) (f : Y -> K) (r : rank) : K :=
  greatest l (fun x => if near un r (token x) then f x else 0%ring).

Lemma most_axis (l : list Y) (un : list nat) (f : Y -> K) (r : rank) (a : nat) :
  greatest (seq 0 (size a)) (fun c => partial_most l un f (put r a c))
  = partial_most l (filter (fun b => negb (a =? b)) un) f r.
Proof.
  unfold partial_most. rewrite greatest_swap. apply greatest_ext; intros x _. set (un' := filter _ un).
  destruct (mem a un) eqn:inside.
  - transitivity (greatest (seq 0 (size a)) (fun c => if c =? home (token x) a then
      (if near un' r (token x) then f x else 0%ring) else 0%ring)).
    + apply greatest_ext; intros c _. rewrite near_put_in by easy. fold un'. now destruct (c =? home (token x) a).
    + apply greatest_pick, home_ok.
  - assert (same : un' = un).
    { unfold un'. clear - inside. induction un as [|b un IH]; [easy|]. unfold mem in *. cbn [existsb filter] in *.
      apply orb_false_iff in inside. destruct inside as [apart_ out]. rewrite apart_. cbn. now rewrite IH. }
    rewrite same. transitivity (greatest (seq 0 (size a)) (fun _ => if near un r (token x) then f x else 0%ring)).
    + apply greatest_ext; intros c _. now rewrite near_put_out.
    + apply greatest_same, size_pos.
Qed.

Lemma most_reduced (l : list Y) (f : Y -> K) (s : terms) (along : list nat) (r : rank) : how s = None ->
  greatest (peers along r) (partial_most l (un s) f) = partial_most l (un (reduced along s)) f r.
Proof.
  intros none. revert r; induction along as [|a along IH]; intros r; [apply larger_zero_right|].
  cbn [peers]. rewrite greatest_flat. cbn [reduced fold_right]. fold (reduced along s).
  transitivity (greatest (seq 0 (size a)) (fun c => partial_most l (un (reduced along s)) f (put r a c))).
  { apply greatest_ext; intros c _; apply IH. }
  rewrite most_axis. unfold reduced1. destruct (mem a (un (reduced along s))) eqn:inside; [easy|]. cbn [un].
  f_equal. clear - inside. induction (un (reduced along s)) as [|b l' IH]; [easy|]. unfold mem in *.
  cbn [existsb filter] in *. apply orb_false_iff in inside. destruct inside as [apart_ out]. rewrite apart_.
  cbn. now rewrite IH.
Qed.
End Parts.
End Maxima.
