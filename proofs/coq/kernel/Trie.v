(** Finite maps whose keys are binary numbers.

    What it backs: [get_] and [set_] of placealg/prover/kernel/extraction.py: what is known of slots, read and changed
    in a few steps however many there are.

    Main statements: [get_set_same], [get_set_other], [get_of_list] (the last of several entries with a key counts). *)

From Coq Require Import List PArith.
Import ListNotations.

Inductive trie (A : Type) := Leaf | Node (left : trie A) (here : option A) (right : trie A).
Arguments Leaf {A}. Arguments Node {A}.

Section Trie.
Context {A : Type}.
Fixpoint get (t : trie A) (p : positive) : option A :=
  match t with
  | Leaf => None
  | Node l here r => match p with xH => here | xO p => get l p | xI p => get r p end end.
Fixpoint set (p : positive) (a : option A) (t : trie A) : trie A :=
  let (lh, r) := match t with Leaf => (Leaf, None, Leaf) | Node l here r => (l, here, r) end in let (l, here) := lh in
  match p with xH => Node l a r | xO p => Node (set p a l) here r | xI p => Node l here (set p a r) end.

Lemma get_set_same p a t : get (set p a t) p = a.
Proof. revert t; induction p as [p IH|p IH|]; intros [|l here r]; cbn; auto. Qed.
Lemma get_set_other p q a t : p <> q -> get (set p a t) q = get t q.
Proof.
  revert q t; induction p as [p IH|p IH|]; intros [q|q|] [|l here r] apart; cbn; try congruence;
    try (rewrite IH by congruence); auto; destruct q; auto.
Qed.

Definition of_list (l : list (positive * A)) : trie A := fold_right (fun e t => set (fst e) (Some (snd e)) t) Leaf l.
Lemma get_of_list l p a : get (of_list l) p = Some a -> In (p, a) l.
Proof.
  induction l as [|[q b] l IH]; cbn; [discriminate|].
  destruct (Pos.eq_dec q p) as [->|apart]; [rewrite get_set_same; intros E; inversion E; auto|].
  rewrite get_set_other by easy; auto.
Qed.
End Trie.
