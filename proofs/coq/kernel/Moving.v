(** Ways that move with the instances of a unit, such as the stages of a pipeline: what a loop is handed lies by other
    ways in each instance, and means what it meant.

    What it backs: [check_block_] of placealg/prover/kernel/extraction.py, where something is handed to a loop, from
    instance to instance, and out of it.

    Main statements: [means_still] (what lies by no such way lies so in every instance), [means_entering],
    [means_turning], [means_returning], [means_leaving]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check Infer.

Section Moving.
Context {K : CRing}.
Variables (w : world K) (p : program).
Hypothesis ok : valid w p.
Local Notation g := (on p).
Local Notation all_axes := (seq 0 (axes g)).

Definition same_homes (h h' : nat -> nat -> index -> nat) (k k' : kind) : Prop :=
  match k, k' with
  | Full, Full | Part, Part => True
  | Shard d, Shard d' => forall a i, h a d i = h' a d' i
  | _, _ => False end.
Lemma den_homes h h' l (T T' : type) (x : @tensor K) r i k : (forall a, In a l -> same_homes h h' (T a) (T' a)) ->
  Meaning.den (size w) h l T x r i k -> Meaning.den (size w) h' l T' x r i k.
Proof.
  intros same; assert (G : forall r, Meaning.val (size w) h' l T' x r i = Meaning.val (size w) h l T x r i /\
    (Meaning.agree (size w) h l T x r i -> Meaning.agree (size w) h' l T' x r i)).
  { clear r k; induction l as [|a l IH]; intros r; cbn; [easy|].
    specialize (IH (fun b inb => same b (or_intror inb))); specialize (same a (or_introl eq_refl)).
    destruct (T a) as [|d|], (T' a) as [|d'|]; cbn in same; try easy.
    - split; [apply IH|]; intros A c small; destruct (A c small) as [A1 A2]; split; [now apply IH|].
      now rewrite !(proj1 (IH _)).
    - rewrite <- same; apply IH.
    - split; [apply (sum_list_ext K); intros; apply IH|]; intros A c small; apply IH; auto. }
  intros [A V]; destruct (G r) as [GV GA]; split; [auto|now rewrite GV].
Qed.
Lemma means_homes l l' x v t t' : factor t = factor t' ->
  (forall a, In a all_axes -> same_homes (home w l) (home w l') (kind_at t a) (kind_at t' a)) ->
  means w p l x v t -> means w p l' x v t'.
Proof.
  intros F S [E D]; split; [easy|]; intros r i; rewrite <- F; apply (den_homes (home w l) _ _ (kind_at t)); auto.
Qed.

Lemma still_at t a : all_still g (kinds t) = true -> match kind_at t a with Shard d => still g d = true | _ => True end.
Proof.
  intros S; unfold all_still in S; rewrite forallb_forall in S; unfold kind_at.
  destruct (Nat.lt_ge_cases a (length (kinds t))) as [small|large]; [|now rewrite nth_overflow].
  specialize (S _ (nth_In _ Full small)); destruct (nth a (kinds t) Full); auto.
Qed.
Lemma means_still l l' x v t : all_still g (kinds t) = true -> means w p l x v t -> means w p l' x v t.
Proof.
  intros S; apply means_homes; auto; intros a _; assert (Sa := still_at t a S); destruct (kind_at t a) as [|d|]; cbn;
    auto.
  intros b i; now rewrite (home_still w p ok l), (home_still w p ok l').
Qed.

Lemma kind_moved from to t a :
  kind_at (Fact (map (move_kind from to) (kinds t)) (factor t)) a = move_kind from to (kind_at t a).
Proof. unfold kind_at; cbn [kinds]; change Full with (move_kind from to Full) at 1; apply map_nth. Qed.
Lemma means_moved u l l' x v from to to' t : all_still g (kinds t) = true ->
  (forall f, In f (moving g) -> of_unit f = u -> forall a i, home w l a (to f) i = home w l' a (to' f) i) ->
  means w p l x v (moved g u from to t) -> means w p l' x v (moved g u from to' t).
Proof.
  intros S H; unfold moved; destruct (find _ (moving g)) as [f|] eqn:F; [|now apply means_still].
  apply find_some in F as [inf E]; apply Nat.eqb_eq in E; specialize (H f inf E).
  apply means_homes; auto; intros a _; rewrite !kind_moved; assert (Sa := still_at t a S).
  destruct (kind_at t a) as [|d|]; cbn; auto; destruct (d =? from f); cbn; [apply H|].
  intros b i; now rewrite (home_still w p ok l), (home_still w p ok l').
Qed.
Lemma means_unmoved u l x v from t : means w p l x v t <-> means w p l x v (moved g u from from t).
Proof.
  unfold moved; destruct (find _ (moving g)) as [f|]; [|easy].
  assert (E : forall a, kind_at t a = kind_at (Fact (map (move_kind (from f) (from f)) (kinds t)) (factor t)) a).
  { intros a; rewrite kind_moved; destruct (kind_at t a) as [|d|]; cbn; auto.
    destruct (Nat.eqb_spec d (from f)); now subst. }
  split; apply means_kinds; auto.
Qed.

(** What is handed to a loop, from instance to instance, and out of it. *)
Variables (u : nat) (down : bool).
Definition position (j : nat) : nat := if down then layers w u - j else j.
Definition arriving := if down then exit else entry.
Definition leaving := if down then entry else exit.

Lemma means_entering x v t : all_still g (kinds t) = true -> means w p 0 x v t ->
  means w p (position 0) x v (moved g u arriving here t).
Proof.
  intros S M; apply (means_moved u 0 _ x v arriving arriving here t S); [|now apply means_unmoved].
  intros f inf E a i; destruct (home_moves w p ok f inf a i) as [H1 [H2 _]]; rewrite E in H2.
  unfold position, arriving; destruct down; [rewrite Nat.sub_0_r; symmetry; exact H2|symmetry; exact H1].
Qed.
Lemma means_turning j x v t : all_still g (kinds t) = true -> j < layers w u ->
  means w p (position j) x v (moved g u arriving here t) ->
  means w p (instance w u down j) x v (moved g u arriving (if down then behind else here) t).
Proof.
  intros S small; apply (means_moved u); auto; intros f inf _ a i.
  destruct (home_moves w p ok f inf a i) as [_ [_ H]]; unfold position, instance; destruct down; auto.
  rewrite H; now replace (Datatypes.S (layers w u - Datatypes.S j)) with (layers w u - j) by lia.
Qed.
Lemma means_returning j x v t : all_still g (kinds t) = true -> j < layers w u ->
  means w p (instance w u down j) x v (moved g u arriving (if down then here else behind) t) ->
  means w p (position (S j)) x v (moved g u arriving here t).
Proof.
  intros S small; apply (means_moved u); auto; intros f inf _ a i.
  destruct (home_moves w p ok f inf a i) as [_ [_ H]]; unfold position, instance; destruct down; auto.
Qed.
Lemma means_leaving x v t : all_still g (kinds t) = true ->
  means w p (position (layers w u)) x v (moved g u arriving here t) -> means w p 0 x v (moved g u arriving leaving t).
Proof.
  intros S; apply (means_moved u); auto; intros f inf E a i.
  destruct (home_moves w p ok f inf a i) as [H1 [H2 _]]; rewrite E in H2.
  unfold position, leaving; destruct down; [rewrite Nat.sub_diag|]; auto.
Qed.
End Moving.
