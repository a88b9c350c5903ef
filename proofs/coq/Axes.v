(** Several mesh axes: a redistribution along one is sound whatever the type along the others.

    What it backs: "On several axes define a type by its readers, which makes the order of axes irrelevant", the
    composition of strategies on disjoint axes, and [REDISTRIBUTIONS] of placealg/placement.py on several axes.

    A reader of a type weighs what the ranks hold: all ones read [P], the owner alone reads [S], and any weights that
    add up to one read [I] and [R], where all hold the same. A tensor of a type means [k] iff every reader reads [k].
    The one idea of this file is [reader_pulls_back]: to read after a move is to read before it, by another reader.

    Main statements: [rep_by_readers]; [move_a_sound] (two axes, any type on the other); [moves_sound] (any list of
    axes, by induction); [events_commute]; [weights_multiply]; [order_of_axes]. *)

From Placealg Require Export Moves.

Section OneAxis.
Context {K : CRing} {C E : Finite}.
Variables (root : C) (inv : K).
Add Ring K_ring : (laws K).
Hypothesis size_inv : size K C * inv = 1.

Definition reader (T : type C E) (e : E) (r : C -> K) : Prop :=
  match T with
  | Inv | Rep => Σ c, r c = 1
  | Part => forall c, r c = 1
  | Shard own => forall c, r c = if c == own e then 1 else 0
  end.

Definition reading (r : C -> K) (x : C -> K) : K := Σ c, (r c * x c).

Lemma reading_at (y : C) (x : C -> K) : reading (fun c => if c == y then 1 else 0) x = x y.
Proof. apply sum_indicator. Qed.

Theorem rep_by_readers T x e (k : K) : rep_at T x e k <-> forall r, reader T e r -> reading r (fun c => x c e) = k.
Proof.
  assert (alone : forall y : C, Σ c, (if c == y then 1 else 0) = (1 : K))
    by (intros y; apply (sum_owner K y (fun _ => 1))).
  assert (whole : (forall c, x c e = k) <-> forall r, Σ c, r c = 1 -> reading r (fun c => x c e) = k).
  { split; [intros all r one|intros all c].
    - unfold reading; rewrite (sum_ext K _ (fun c => r c * k)) by (intros; now rewrite all).
      rewrite sum_times_right, one; ring.
    - rewrite <- (all _ (alone c)), reading_at; reflexivity. }
  destruct T as [| | |own]; cbn; auto; split.
  - intros <- r one; unfold reading; apply sum_ext; intros; rewrite one; ring.
  - intros all; rewrite <- (all (fun _ => 1)) by easy; unfold reading; apply sum_ext; intros; ring.
  - intros <- r own_reader; rewrite <- (reading_at (own e) (fun c => x c e)); unfold reading; apply sum_ext.
    intros; now rewrite own_reader.
  - intros all; rewrite <- (all (fun c => if c == own e then 1 else 0)) by easy; now rewrite reading_at.
Qed.

(** A reader is what reads every tensor of its type. *)
Lemma reader_reads T e r : reader T e r <-> forall x k, rep_at T x e k -> reading r (fun c => x c e) = k.
Proof.
  split; [intros reads x k means; now apply (proj1 (rep_by_readers T x e k) means)|intros all].
  assert (at_rank : forall c, r c = reading r (fun c' => if c' == c then 1 else 0)).
  { intros c; unfold reading; rewrite <- (reading_at c r); apply sum_ext; intros; ring. }
  destruct T as [| | |own]; cbn in *.
  - rewrite <- (all (fun _ _ => 1) 1) by easy; apply sum_ext; intros; ring.
  - rewrite <- (all (fun _ _ => 1) 1) by easy; apply sum_ext; intros; ring.
  - intros c; rewrite at_rank; apply (all (fun c' _ => if c' == c then 1 else 0)); apply (sum_owner K c (fun _ => 1)).
  - intros c; rewrite at_rank; apply (all (fun c' _ => if c' == c then 1 else 0)).
    destruct (own e == c), (c == own e); congruence.
Qed.

(** What a reader does not weigh may be anything. *)
Lemma reader_holds T e r : reader T e r -> forall c, r c = 0 \/ holds T c e.
Proof. destruct T as [| | |own]; cbn; auto; intros H c; rewrite H; destruct (c == own e); auto. Qed.

Lemma reader_pulls_back T T' e r' : reader T' e r' -> exists r, reader T e r /\ forall junk x,
  reading r' (fun c => move root inv junk T T' x c e) = reading r (fun c => x c e).
Proof.
  intros reads'; exists (fun c' => Σ c, (r' c * weights root inv T T' e c c')).
  assert (pulled : forall junk x, reading r' (fun c => move root inv junk T T' x c e)
    = reading (fun c' => Σ c, (r' c * weights root inv T T' e c c')) (fun c => x c e)).
  { intros junk x; unfold reading; transitivity (Σ c, Σ c', (r' c * weights root inv T T' e c c' * x c' e)).
    - apply sum_ext; intros c; destruct (reader_holds _ _ _ reads' c) as [->|held].
      + rewrite (sum_ext K _ (fun _ => 0)), sum_zero by (intros; ring); ring.
      + rewrite move_is_matrix, <- sum_times by easy; apply sum_ext; intros; ring.
    - rewrite sum_swap; apply sum_ext; intros; apply sum_times_right. }
  split; [|exact pulled]; apply reader_reads; intros x k means; rewrite <- (pulled (fun _ _ => 0)).
  apply (proj1 (reader_reads T' e r') reads' (move root inv _ T T' x)), move_sound_at; auto.
Qed.

End OneAxis.

(** ** Two axes. On the second, [B], the readers may be any: those of a type, or of a whole mesh of other axes. *)

Section TwoAxes.
Context {K : CRing} {A B E : Finite}.
Variables (root : A) (inv : K).
Add Ring K_ring_two : (laws K).
Hypothesis size_inv : size K A * inv = 1.

Definition both_read (T : type A E) (others : E -> (B -> K) -> Prop) (x : A -> B -> E -> K) e (k : K) : Prop :=
  forall r s, reader T e r -> others e s -> reading r (fun a => reading s (fun b => x a b e)) = k.

(** The same event, on every slice of the other axis. *)
Definition move_a (junk : A -> B -> E -> K) T T' (x : A -> B -> E -> K) : A -> B -> E -> K :=
  fun a b => move root inv (fun a => junk a b) T T' (fun a => x a b) a.

Lemma reading_swap (r : A -> K) (s : B -> K) (x : A -> B -> K) :
  reading r (fun a => reading s (x a)) = reading s (fun b => reading r (fun a => x a b)).
Proof.
  unfold reading; transitivity (Σ a, Σ b, (r a * s b * x a b)).
  - apply sum_ext; intros; rewrite <- sum_times; apply sum_ext; intros; ring.
  - rewrite sum_swap; apply sum_ext; intros; rewrite <- sum_times; apply sum_ext; intros; ring.
Qed.

Theorem move_a_sound junk T T' others x e k :
  both_read T others x e k -> both_read T' others (move_a junk T T' x) e k.
Proof.
  intros means r' s reads' reads_s; destruct (reader_pulls_back root inv size_inv T T' e r' reads') as [r [reads same]].
  rewrite <- (means r s reads reads_s), !reading_swap.
  unfold reading at 1 3; apply sum_ext; intros b; f_equal; apply (same (fun a => junk a b) (fun a => x a b)).
Qed.

End TwoAxes.

(** It does not matter which axis is named first. *)
Theorem order_of_axes {K : CRing} {A B E : Finite} (T : type A E) (T' : type B E) (x : A -> B -> E -> K) e k :
  both_read T (reader T') x e k <-> both_read T' (reader T) (fun b a => x a b) e k.
Proof. split; intros means r s reads_r reads_s; rewrite reading_swap; now apply means. Qed.

Section Commute.
Context {K : CRing} {A B E : Finite}.
Variables (root_a : A) (inv_a : K) (root_b : B) (inv_b : K) (junk_a : A -> E -> K) (junk_b : B -> E -> K).
Variables (T T' : type A E) (U U' : type B E).
Add Ring K_ring_commute : (laws K).

Definition along_a (x : A -> B -> E -> K) : A -> B -> E -> K :=
  fun a b => move root_a inv_a junk_a T T' (fun a => x a b) a.
Definition along_b (x : A -> B -> E -> K) : A -> B -> E -> K :=
  fun a => move root_b inv_b junk_b U U' (x a).

Theorem events_commute x a b e : holds T' a e -> holds U' b e ->
  along_a (along_b x) a b e = along_b (along_a x) a b e.
Proof.
  intros held_a held_b; unfold along_a, along_b; rewrite !move_is_matrix by easy.
  transitivity (Σ a', Σ b', (weights root_a inv_a T T' e a a' * weights root_b inv_b U U' e b b' * x a' b' e)).
  - apply sum_ext; intros; rewrite move_is_matrix, <- sum_times by easy; apply sum_ext; intros; ring.
  - rewrite sum_swap; apply sum_ext; intros; rewrite move_is_matrix, <- sum_times by easy; apply sum_ext; intros; ring.
Qed.

(** What a pair of events makes of a weight that is a product, one factor for each axis. *)
Theorem weights_multiply (u : A -> E -> K) (w : B -> E -> K) a b e : holds T' a e -> holds U' b e ->
  along_a (along_b (fun a b e => u a e * w b e)) a b e
  = move root_a inv_a junk_a T T' u a e * move root_b inv_b junk_b U U' w b e.
Proof.
  intros held_a held_b; unfold along_a, along_b; rewrite !move_is_matrix, <- sum_times_right by easy.
  apply sum_ext; intros a'; rewrite !move_is_matrix by easy.
  rewrite <- !sum_times; apply sum_ext; intros; ring.
Qed.

End Commute.

(** ** Any list of axes. A device is a rank of each; a layout is a type for each. *)

Section Mesh.
Context {K : CRing} {E : Finite}.

(** An axis, with a rank of it and 1/n. *)
Record axis := { ranks : Finite; first : ranks; inverse : K; inverse_of_size : size K ranks * inverse = 1 }.

Fixpoint device (axes : list axis) : Type := match axes with [] => unit | A :: axes => ranks A * device axes end.
Fixpoint layout (axes : list axis) : Type :=
  match axes with [] => unit | A :: axes => type (ranks A) E * layout axes end.
Fixpoint readers (axes : list axis) : Type :=
  match axes with [] => unit | A :: axes => (ranks A -> K) * readers axes end.

Fixpoint read (axes : list axis) : readers axes -> (device axes -> K) -> K := match axes with
  | [] => fun _ x => x tt
  | A :: axes => fun rs x => reading (fst rs) (fun a => read axes (snd rs) (fun d => x (a, d)))
  end.

Fixpoint all_read (axes : list axis) : layout axes -> E -> readers axes -> Prop := match axes with
  | [] => fun _ _ _ => True
  | A :: axes => fun Ts e rs => reader (fst Ts) e (fst rs) /\ all_read axes (snd Ts) e (snd rs)
  end.

Definition means axes (Ts : layout axes) (x : device axes -> E -> K) e k : Prop :=
  forall rs, all_read axes Ts e rs -> read axes rs (fun d => x d e) = k.

(** One event along each axis, the first axis first; [junk] as on one axis. *)
Fixpoint moves (axes : list axis) : layout axes -> layout axes -> (device axes -> E -> K) -> (device axes -> E -> K) ->
    device axes -> E -> K := match axes with
  | [] => fun _ _ _ x => x
  | A :: axes => fun Ts Ts' junk x d =>
      moves axes (snd Ts) (snd Ts') (fun rest => junk (fst d, rest)) (fun rest =>
        move (first A) (inverse A) (fun a => junk (a, rest)) (fst Ts) (fst Ts') (fun a => x (a, rest)) (fst d)) (snd d)
  end.

Lemma read_ext axes rs x y : (forall d, x d = y d) -> read axes rs x = read axes rs y.
Proof.
  revert x y; induction axes as [|B axes IH]; intros x y same; cbn; [apply same|].
  unfold reading; apply sum_ext; intros b; f_equal; apply IH; intros; apply same.
Qed.

Lemma read_linear axes rs {A : Finite} (r : A -> K) (x : A -> device axes -> K) :
  read axes rs (fun d => reading r (fun a => x a d)) = reading r (fun a => read axes rs (x a)).
Proof.
  revert x; induction axes as [|B axes IH]; intros x; cbn; [reflexivity|].
  rewrite reading_swap; unfold reading at 1 3; apply sum_ext; intros b; f_equal.
  apply (IH (snd rs) (fun a d => x a (b, d))).
Qed.

Lemma readers_pull_back axes Ts Ts' e rs' : all_read axes Ts' e rs' -> exists rs, all_read axes Ts e rs /\
  forall junk x, read axes rs' (fun d => moves axes Ts Ts' junk x d e) = read axes rs (fun d => x d e).
Proof.
  revert Ts Ts' rs'; induction axes as [|A axes IH]; [now exists tt|].
  intros [T Ts] [T' Ts'] [r' rs']; cbn; intros [reads' rest'].
  destruct (IH Ts Ts' rs' rest') as [rs [rest same_rest]].
  destruct (reader_pulls_back (first A) (inverse A) (inverse_of_size A) T T' e r' reads') as [r [reads same]].
  exists (r, rs); split; [easy|]; intros junk x; cbn.
  transitivity (read axes rs (fun d => reading r' (fun a =>
    move (first A) (inverse A) (fun a => junk (a, d)) T T' (fun a => x (a, d)) a e))).
  - rewrite read_linear; unfold reading; apply sum_ext; intros a; f_equal; apply same_rest.
  - rewrite <- read_linear; apply read_ext; intros d; apply (same (fun a => junk (a, d)) (fun a => x (a, d))).
Qed.

Theorem moves_sound axes Ts Ts' junk x e k : means axes Ts x e k -> means axes Ts' (moves axes Ts Ts' junk x) e k.
Proof.
  intros value rs' reads'; destruct (readers_pull_back axes Ts Ts' e rs' reads') as [rs [reads same]].
  rewrite same; now apply value.
Qed.

End Mesh.
