(** Rings: which blocks have come by after [k] turns, and what a sum that goes round has collected, for every [n].

    What it backs: "Rings" in the theory, the lemma [ring] of placealg/prover/evidence/lemmas.py, and
    proofs/theorems/rings.py.
    Rank [c] of [n] begins with its own block; in every later turn it gets what its left neighbour got last.

    Main statements: [ring_interval] (after [k] turns: the [k] blocks up to the own one), [ring_once] (in [n] turns
    every block, once), [ring_sum] (a sum that passes all ranks counts the part of each once). *)

From Coq Require Import Arith Lia Permutation.
From Placealg Require Import Sums.

Definition left (n c : nat) : nat := (c + (n - 1)) mod n.

Fixpoint got (n c turn : nat) : nat := match turn with O => c | S turn => got n (left n c) turn end.

Lemma mod_plus n a b : (n <> 0 -> (a mod n + b) mod n = (a + b) mod n)%nat.
Proof. intros; now apply Nat.add_mod_idemp_l. Qed.

(** The block of the rank that many places to the left. *)
Lemma got_is n k c : (c < n -> k <= n -> got n c k = (c + (n - k)) mod n)%nat.
Proof.
  revert c; induction k as [|k IH]; intros c inside short; cbn [got].
  - replace (c + (n - 0))%nat with (c + 1 * n)%nat by lia.
    rewrite Nat.mod_add, Nat.mod_small; lia.
  - unfold left; rewrite IH by (try apply Nat.mod_upper_bound; lia).
    rewrite mod_plus by lia.
    replace (c + (n - 1) + (n - k))%nat with (c + (n - S k) + 1 * n)%nat by lia.
    apply Nat.mod_add; lia.
Qed.

(** After [k] turns rank [c] has had block [t]. *)
Definition had (n k c t : nat) : Prop := (exists j, j < k /\ got n c j = t)%nat.

(** By how many ranks block [t] lies behind rank [c]. *)
Lemma behind n c t j : (c < n -> t < n -> j < n -> (got n c j = t <-> (c + (n - t)) mod n = j))%nat.
Proof.
  intros; rewrite got_is by lia.
  assert (wrap : forall a, (a < 2 * n -> a mod n = if a <? n then a else a - n)%nat).
  { intros a; destruct (Nat.ltb_spec a n); intros; [now apply Nat.mod_small|].
    transitivity ((a - n + 1 * n) mod n)%nat; [f_equal; lia|]; rewrite Nat.mod_add by lia; apply Nat.mod_small; lia. }
  rewrite !wrap by lia; destruct (Nat.ltb_spec (c + (n - j)) n), (Nat.ltb_spec (c + (n - t)) n); lia.
Qed.

Theorem ring_interval n k c t : (c < n -> t < n -> k <= n -> (had n k c t <-> (c + (n - t)) mod n < k))%nat.
Proof.
  intros; split.
  - intros [j [early arrives]]; apply behind in arrives; lia.
  - intros near; exists ((c + (n - t)) mod n)%nat; split; [easy|]; apply behind; lia.
Qed.

Theorem ring_once n c t : (c < n -> t < n -> exists! j, j < n /\ got n c j = t)%nat.
Proof.
  intros; exists ((c + (n - t)) mod n)%nat; split.
  - split; [apply Nat.mod_upper_bound; lia|apply behind; auto; apply Nat.mod_upper_bound; lia].
  - intros j [early arrives]; apply behind in arrives; lia.
Qed.

(** One turn fewer misses one block: that of the right neighbour. *)
Theorem ring_short n c t : (c < n -> t < n -> (~ had n (n - 1) c t <-> (c + (n - t)) mod n = n - 1))%nat.
Proof.
  intros; rewrite ring_interval by lia; assert ((c + (n - t)) mod n < n)%nat by (apply Nat.mod_upper_bound; lia); lia.
Qed.

Lemma turns_are_ranks n c : (c < n)%nat -> Permutation (map (got n c) (seq 0 n)) (seq 0 n).
Proof.
  intros inside; symmetry; apply NoDup_Permutation_bis; [apply seq_NoDup|now rewrite map_length, seq_length|].
  intros t; rewrite in_seq, in_map_iff; intros; destruct (ring_once n c t) as [j [[early arrives] _]]; try lia.
  exists j; rewrite in_seq; lia.
Qed.

Section Sum.
Variable K : CRing.
Add Ring K_ring : (laws K).

Lemma sum_permuted {A} (l l' : list A) (f : A -> K) : Permutation l l' -> sum_list l f = sum_list l' f.
Proof. induction 1; cbn; [ring|congruence|ring|congruence]. Qed.

(** What rank [c] has added up when it adds the part of each block that comes by; and, read from the end, what a block
    of sums that stands at rank [c] in its last turn has collected from the ranks it passed. *)
Theorem ring_sum n c (part : nat -> K) : (c < n)%nat ->
  sum_list (seq 0 n) (fun turn => part (got n c turn)) = sum_list (seq 0 n) part.
Proof. intros; rewrite <- (sum_permuted _ _ part (turns_are_ranks n c H)); symmetry; apply sum_list_map. Qed.

End Sum.
