(** Finite sums over any commutative ring.

    What it backs: "Contribution" in the theory of a training step, where a gradient is a sum over units and a
    collective is a sum over ranks; the lemma [sum_of_owner] of placealg/prover/evidence/lemmas.py. The ring is any
    commutative ring with decidable equality, the index sets are any finite types: nothing here or later is about a
    particular number of ranks.

    Main statements: [sum_owner] (a sum over ranks picks the owner), [partition_sum] (what each owner holds, summed
    over the ranks, is the whole: coverage and no overlap), [sum_swap] (two axes may be summed in either order). *)

From Coq Require Export List Ring.
Export ListNotations.

Record CRing := {
  number :> Type;
  zero : number; one : number;
  plus : number -> number -> number; times : number -> number -> number;
  minus : number -> number -> number; opposite : number -> number;
  laws : ring_theory zero one plus times minus opposite eq;
  number_dec : forall x y : number, {x = y} + {x <> y}
}.
Arguments zero {_}. Arguments one {_}. Arguments plus {_}. Arguments times {_}. Arguments minus {_}.
Arguments opposite {_}. Arguments number_dec {_}.

Declare Scope ring_scope.
Delimit Scope ring_scope with ring.
Notation "0" := zero : ring_scope.
Notation "1" := one : ring_scope.
Infix "+" := plus : ring_scope.
Infix "*" := times : ring_scope.
Infix "-" := minus : ring_scope.
Notation "- x" := (opposite x) : ring_scope.
Global Open Scope ring_scope.

Record Finite := {
  point :> Type;
  points : list point;
  all_points : forall a, In a points;
  no_point_twice : NoDup points;
  same : forall a b : point, {a = b} + {a <> b}
}.
Arguments points _ : clear implicits.
Arguments same {_}.
Infix "==" := same (at level 70).

Fixpoint sum_list {K : CRing} {A : Type} (l : list A) (f : A -> K) : K :=
  match l with [] => 0 | a :: l => f a + sum_list l f end.

Definition Sum {K : CRing} {A : Finite} (f : A -> K) : K := sum_list (points A) f.
Notation "'Σ' a .. b , f" := (Sum (fun a => .. (Sum (fun b => f)) ..))
  (at level 41, a binder, b binder, f at level 41, right associativity).

(** The number of ranks of an axis, as an element of the ring. *)
Definition size (K : CRing) (A : Finite) : K := Σ _ : A, 1.

Section Sums.
Variable K : CRing.
Add Ring K_ring : (laws K).

Section OverLists.
Context {A : Type}.
Implicit Types (l : list A) (f g : A -> K).

Lemma sum_list_ext l f g : (forall a, In a l -> f a = g a) -> sum_list l f = sum_list l g.
Proof. induction l as [|a l IH]; cbn; intros H; [easy|]. rewrite H, IH; auto. Qed.

Lemma sum_list_plus l f g : sum_list l (fun a => f a + g a) = sum_list l f + sum_list l g.
Proof. induction l as [|a l IH]; cbn; [ring|]. rewrite IH; ring. Qed.

Lemma sum_list_times l k f : sum_list l (fun a => k * f a) = k * sum_list l f.
Proof. induction l as [|a l IH]; cbn; [ring|]. rewrite IH; ring. Qed.

Lemma sum_list_zero l : sum_list l (fun _ => 0) = (0 : K).
Proof. induction l as [|a l IH]; cbn; [easy|]. rewrite IH; ring. Qed.

Lemma sum_list_app l l' f : sum_list (l ++ l') f = sum_list l f + sum_list l' f.
Proof. induction l as [|a l IH]; cbn; [ring|]. rewrite IH; ring. Qed.

Lemma sum_list_map {B : Type} (l : list B) (h : B -> A) f : sum_list (map h l) f = sum_list l (fun b => f (h b)).
Proof. induction l as [|b l IH]; cbn; congruence. Qed.

End OverLists.

Context {A : Finite}.

Lemma sum_ext (f g : A -> K) : (forall a, f a = g a) -> Σ a, f a = Σ a, g a.
Proof. intros H; apply sum_list_ext; auto. Qed.

Lemma sum_plus (f g : A -> K) : Σ a, (f a + g a) = Σ a, f a + Σ a, g a.
Proof. apply sum_list_plus. Qed.

Lemma sum_times k (f : A -> K) : Σ a, (k * f a) = k * Σ a, f a.
Proof. apply sum_list_times. Qed.

Lemma sum_times_right k (f : A -> K) : Σ a, (f a * k) = (Σ a, f a) * k.
Proof. transitivity (k * Σ a, f a); [rewrite <- sum_times; apply sum_ext; intros; ring | ring]. Qed.

Lemma sum_zero : Σ _ : A, 0 = (0 : K).
Proof. apply sum_list_zero. Qed.

Lemma sum_constant k : Σ _ : A, k = size K A * k.
Proof. unfold size; rewrite <- sum_times_right; apply sum_ext; intros; ring. Qed.

Theorem sum_owner (y : A) (f : A -> K) : Σ a, (if a == y then f a else 0) = f y.
Proof.
  assert (absent : forall l, ~ In y l -> sum_list l (fun a => if a == y then f a else 0) = 0).
  { intros l out; erewrite sum_list_ext; [apply sum_list_zero|].
    intros a inside; cbn; destruct (a == y); congruence. }
  unfold Sum. generalize (all_points A y) (no_point_twice A).
  induction (points A) as [|a l IH]; cbn; [easy|]; intros inside once.
  inversion once; subst; destruct (a == y) as [->|apart].
  - rewrite absent by easy; ring.
  - destruct inside; [congruence|]. rewrite IH by easy; ring.
Qed.

Lemma sum_indicator (y : A) (f : A -> K) : Σ a, ((if a == y then 1 else 0) * f a) = f y.
Proof. rewrite <- (sum_owner y f); apply sum_ext; intros a; destruct (a == y); ring. Qed.

End Sums.

Theorem sum_swap {K : CRing} {A B : Finite} (f : A -> B -> K) : Σ a, Σ b, f a b = Σ b, Σ a, f a b.
Proof.
  change (sum_list (points A) (fun a => Σ b, f a b) = Σ b, sum_list (points A) (fun a => f a b)).
  induction (points A) as [|a l IH]; cbn [sum_list].
  - now rewrite sum_zero.
  - now rewrite IH, sum_plus.
Qed.

(** What each owner holds, summed over all ranks, is everything: each element has one owner. *)
Theorem partition_sum {K : CRing} {C E : Finite} (own : E -> C) (f : E -> K) :
  Σ c, Σ e, (if c == own e then f e else 0) = Σ e, f e.
Proof. rewrite sum_swap; apply sum_ext; intros e; apply sum_owner with (f := fun _ => f e). Qed.

(** A mesh of two axes: the pairs of their ranks. *)
Lemma no_pair_twice {A B : Type} (l : list A) (l' : list B) : NoDup l -> NoDup l' -> NoDup (list_prod l l').
Proof.
  intros once once'; induction once as [|a l out once IH]; cbn; [constructor|].
  assert (row : forall r, NoDup r -> NoDup (map (pair a) r ++ list_prod l l')).
  { intros r once_r; induction once_r as [|b r out_r once_r IHr]; cbn; [exact IH|]; constructor; [|exact IHr].
    rewrite in_app_iff, in_map_iff, in_prod_iff; intros [[b' [same_pair inside]]|[inside _]]; congruence. }
  auto.
Qed.

Definition Pair (A B : Finite) : Finite.
Proof.
  refine {| point := (A * B)%type; points := list_prod (points A) (points B) |}.
  - intros [a b]; apply in_prod; apply all_points.
  - apply no_pair_twice; apply no_point_twice.
  - decide equality; apply same.
Defined.

Lemma sum_pair {K : CRing} {A B : Finite} (f : Pair A B -> K) : Σ p, f p = Σ a, Σ b, f (a, b).
Proof.
  unfold Sum; cbn; induction (points A) as [|a l IH]; cbn; [easy|].
  now rewrite sum_list_app, sum_list_map, IH.
Qed.
