(** What the events of one unit leave as it is, of what the checker knows.

    What it backs: the kernel.

    Main statement: [body_apart]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Units.
Open Scope nat_scope.

Section Pure.
Variable p : program.
Variables (start : bool) (now : moment).

(** What the events of one unit leave as it is. *)
Definition apart (u : nat) (f f' : facts) : Prop :=
  norms f' = norms f /\ counts f' = counts f /\ factor f' = factor f /\ (fine f' = true -> fine f = true) /\
  (length (slots f) = length (groups p) -> length (slots f') = length (groups p)) /\
  length (kepts f') = length (kepts f) /\
  (forall u', u' <> u -> nth u' (kepts f') false = nth u' (kepts f) false) /\
  (forall g, length (slots f) = length (groups p) -> uses p u g = false -> nth_table (slots f') g = nth_table
    (slots f) g).

Lemma instr_apart (u : nat) (f : facts) (e : instr) : good_instr p u e = true -> apart u f (after_instr p start now
  u f e).
Proof.
  destruct e as [g e| |own|g k]; cbn [after_instr good_instr]; intros good; repeat split;
    cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
  - now rewrite length_put_at.
  - intros g' _ out. unfold nth_table. rewrite nth_put_at. destruct (g' =? g) eqn:same; [|easy].
    apply Nat.eqb_eq in same. subst. rewrite out, andb_false_r in good. easy.
  - intros all. now apply andb_true_iff in all.
  - apply length_put_at.
  - intros u' apart. rewrite nth_put_at. apply Nat.eqb_neq in apart. now rewrite apart.
  - intros all. now apply andb_true_iff in all.
  - intros _. unfold group_numbers. now rewrite map_length, seq_length.
  - intros g len out. destruct (lt_dec g (length (groups p))) as [in_|out'].
    + rewrite nth_table_map by easy. now rewrite out.
    + unfold nth_table. rewrite !nth_overflow; [easy|lia|]. unfold group_numbers. rewrite map_length, seq_length. lia.
  - now rewrite length_put_at.
  - intros g' _ out. unfold nth_table. rewrite nth_put_at. destruct (g' =? g) eqn:same; [|easy].
    apply Nat.eqb_eq in same. subst. rewrite out, andb_false_r in good. easy.
Qed.

Lemma body_apart (u : nat) (body : list instr) (f : facts) : forallb (good_instr p u) body = true ->
  apart u f (fold_left (after_instr p start now u) body f).
Proof.
  revert f; induction body as [|e body IH]; intros f good; [now repeat split|]. cbn [forallb fold_left] in *.
  apply andb_true_iff in good. destruct good as [this rest].
  destruct (instr_apart u f e this) as [A [B [C [D [E1 [F [G H]]]]]]].
  destruct (IH (after_instr p start now u f e) rest) as [A' [B' [C' [D' [E1' [F' [G' H']]]]]]].
  repeat split; try congruence; auto.
  - intros; rewrite G', G; easy.
  - intros; rewrite H', H; auto.
Qed.
End Pure.

