(** Transfer rules: what the prover does with symbols is what the events do with numbers, on one axis.

    What it backs: [Term.summed], [Term.read_at], [Value.reduced], [Value.gathered] and [Value.masked] of
    placealg/prover/calculus/contribution.py. A value is a sum of terms, a power of n each times the indicator that
    a rank stands
    at a position, under conditions that two positions coincide; with a mask (which rank holds it) and sides (what has
    to be so for it to be defined). Table.v runs the Python rules and holds their answers against these definitions.

    Main statements: [reduced_sound], [gathered_sound], [masked_sound]. *)

From Coq Require Import Arith.
From Placealg Require Import Sums.

(** Ranks with a name: where a contribution is computed, and the element's owner under two owner functions. *)
Inductive position := unit_rank | owner | other_owner.

Definition position_dec (p q : position) : {p = q} + {p <> q}.
Proof. decide equality. Defined.

(** In the order of their names, so that a condition is written in one way. *)
Definition rank_of (p : position) : nat := match p with other_owner => 0 | owner => 1 | unit_rank => 2 end.
Definition coincide (p q : position) : list (position * position) :=
  if position_dec p q then [] else [if rank_of p <? rank_of q then (p, q) else (q, p)].

Inductive side := Coincide (positions : position * position) | SizeOne.

Record term := { sizes : nat; stands : option position; given : list (position * position) }.
Record value := { terms : list term; mask : option position; sides : list side }.

Definition summed (t : term) : term := match stands t with
  | Some _ => {| sizes := sizes t; stands := None; given := given t |}
  | None => {| sizes := S (sizes t); stands := None; given := given t |}
  end.

Definition read_at (q : position) (t : term) : term := match stands t with
  | Some p => {| sizes := sizes t; stands := None; given := coincide p q ++ given t |}
  | None => t
  end.

Definition reduced (v : value) : value := {|
  terms := map summed (terms v); mask := None;
  sides := match mask v with Some _ => [SizeOne] | None => [] end ++ sides v |}.

Definition gathered (q : position) (v : value) : value := {|
  terms := map (read_at q) (terms v); mask := None;
  sides := match mask v with Some p => map Coincide (coincide p q) | None => [] end ++ sides v |}.

Definition masked (q : position) (v : value) : value := {| terms := terms v; mask := Some q; sides := sides v |}.

Section Meaning.
Variables (K : CRing) (C : Finite) (place : position -> C).
Add Ring K_ring : (laws K).

Definition indicator (c c' : C) : K := if c == c' then 1 else 0.
Fixpoint power (k : nat) : K := match k with O => 1 | S k => size K C * power k end.
Fixpoint all_given (pairs : list (position * position)) : K := match pairs with
  | [] => 1
  | (p, q) :: pairs => indicator (place p) (place q) * all_given pairs
  end.

Definition term_on (t : term) (c : C) : K :=
  power (sizes t) * match stands t with Some p => indicator c (place p) | None => 1 end * all_given (given t).
Definition number_on (v : value) (c : C) : K := sum_list (terms v) (fun t => term_on t c).

Definition so (s : side) : Prop := match s with
  | Coincide (p, q) => place p = place q
  | SizeOne => forall c c' : C, c = c'
  end.

(** Where its sides hold, what the ranks of its mask hold is the value. *)
Definition describes (v : value) (x : C -> K) : Prop :=
  Forall so (sides v) -> forall c, match mask v with Some p => c = place p | None => True end -> x c = number_on v c.

Lemma sum_of_terms (l : list term) : Σ c, sum_list l (fun t => term_on t c) = sum_list l (fun t => Σ c, term_on t c).
Proof. induction l as [|t l IH]; cbn; [apply sum_zero|]; now rewrite sum_plus, IH. Qed.

Lemma term_summed t c : term_on (summed t) c = Σ c', term_on t c'.
Proof.
  unfold term_on, summed; destruct (stands t) as [p|]; cbn.
  - rewrite sum_times_right, sum_times; unfold indicator; rewrite (sum_owner K (place p) (fun _ => 1)); ring.
  - rewrite sum_constant; ring.
Qed.

Lemma given_coincide p q pairs : all_given (coincide p q ++ pairs) = indicator (place q) (place p) * all_given pairs.
Proof.
  unfold coincide, indicator; destruct (position_dec p q) as [->|].
  - destruct (place q == place q); [cbn; ring|easy].
  - destruct (rank_of p <? rank_of q); cbn; unfold indicator; [|ring].
    destruct (place p == place q), (place q == place p); congruence || ring.
Qed.

Lemma term_read q t c : term_on (read_at q t) c = term_on t (place q).
Proof.
  unfold term_on, read_at; destruct (stands t) as [p|] eqn:at_p; cbn; [|now rewrite at_p].
  rewrite given_coincide; ring.
Qed.

Lemma sides_so p q : Forall so (map Coincide (coincide p q)) -> place q = place p.
Proof.
  unfold coincide; destruct (position_dec p q) as [->|]; [easy|].
  destruct (rank_of p <? rank_of q); cbn; intros all; inversion all; cbn in *; auto.
Qed.

(** A sum over the axis, on every rank. *)
Theorem reduced_sound v x : describes v x -> describes (reduced v) (fun _ => Σ c, x c).
Proof.
  intros right sides_hold c _; cbn in sides_hold; apply Forall_app in sides_hold.
  destruct sides_hold as [alone sides_hold].
  unfold number_on; cbn [terms reduced]; rewrite sum_list_map.
  rewrite (sum_list_ext K (terms v) _ (fun t => Σ c', term_on t c')) by (intros; apply term_summed).
  rewrite <- sum_of_terms; apply sum_ext; intros c'; apply right; [exact sides_hold|].
  destruct (mask v); [|easy]; inversion alone as [|? ? one _]; apply one.
Qed.

(** Every rank reads what the rank at [q] holds. *)
Theorem gathered_sound q v x : describes v x -> describes (gathered q v) (fun _ => x (place q)).
Proof.
  intros right sides_hold c _; cbn in sides_hold; apply Forall_app in sides_hold.
  destruct sides_hold as [lacking sides_hold].
  unfold number_on; cbn [terms gathered]; rewrite sum_list_map.
  rewrite (sum_list_ext K (terms v) _ (fun t => term_on t (place q))) by (intros; apply term_read).
  apply right; [exact sides_hold|]; destruct (mask v); [|easy]; now apply sides_so.
Qed.

(** The rank at [q] keeps what it has; what the others hold may be anything. *)
Theorem masked_sound q v x x' :
  mask v = None -> x' (place q) = x (place q) -> describes v x -> describes (masked q v) x'.
Proof.
  intros whole kept right sides_hold c; cbn; intros ->; rewrite kept; apply right; [exact sides_hold|now rewrite whole].
Qed.

End Meaning.
