(** The redistribution table of one axis: types, events, what each keeps, and how its gradient returns.

    What it backs: the value types, [DUAL] and [REDISTRIBUTIONS] of placealg/placement.py. [C] are the ranks of an axis,
    [E] the elements of a tensor; [x c e] is what rank [c] holds at element [e]. What a rank holds of an element that it
    does not own is [junk], whatever that is.

    Main statements: [move_sound] (every move keeps the value), [move_adjoint] (the backward is the move from dual to
    dual), [pair_separates] (and no other), [move_weights] (moving a sum of contributions moves their weights: the
    bridge from this table to gradient integrity), [garbage_irrelevant] and [rs_ag]. *)

From Placealg Require Export Sums.

(** ** Types, duals, events: the table itself, without numbers. Table.v holds it against the Python tables. *)

Inductive kind := kI | kR | kS | kP.

Definition dual_kind (k : kind) : kind := match k with kI => kI | kR => kP | kP => kR | kS => kS end.

Inductive event := none | scale | slice | zero_pad | all_gather | all_reduce | reduce_scatter | all_to_all.

Definition event_of (source target : kind) : event :=
  match source, target with
  | kI, kI | kR, kR | kP, kP | kI, kR | kR, kI => none
  | kI, kP | kR, kP => scale
  | kI, kS | kR, kS => slice
  | kS, kP => zero_pad
  | kS, kI | kS, kR => all_gather
  | kP, kI | kP, kR => all_reduce
  | kP, kS => reduce_scatter
  | kS, kS => all_to_all
  end.

Definition backward_of (source target : kind) : event := event_of (dual_kind target) (dual_kind source).

Theorem dual_kind_dual k : dual_kind (dual_kind k) = k.
Proof. now destruct k. Qed.

(** ** What they mean on one axis. *)

Section Axis.
Variables (K : CRing) (C E : Finite) (root : C) (inv : K) (junk : C -> E -> K).
Add Ring K_ring : (laws K).

(** [inv] is 1/n. *)
Hypothesis size_inv : size K C * inv = 1.

Definition tensor := C -> E -> K.
Implicit Types (x g : tensor) (v : E -> K).

Inductive type := Inv | Rep | Part | Shard (own : E -> C).

Definition kind_of (T : type) : kind := match T with
  | Inv => kI | Rep => kR | Part => kP | Shard _ => kS end.
Definition owner_of (T : type) : E -> C := match T with Shard own => own | _ => fun _ => root end.
Definition dual (T : type) : type := match T with Inv => Inv | Rep => Part | Part => Rep | Shard own => Shard own end.

(** Tensor [x] of type [T] means the value [k] at element [e]; it means the values [v]. *)
Definition rep_at (T : type) x e (k : K) : Prop :=
  match T with
  | Inv | Rep => forall c, x c e = k
  | Part => Σ c, x c e = k
  | Shard own => x (own e) e = k
  end.
Definition rep T x v : Prop := forall e, rep_at T x e (v e).

(** The ranks that hold element [e]. *)
Definition holds (T : type) (c : C) e : Prop := match T with Shard own => c = own e | _ => True end.

Definition act (ev : event) (before after : E -> C) x : tensor := fun c e =>
  match ev with
  | none => x c e
  | scale => inv * x c e
  | slice => if c == after e then x c e else junk c e
  | zero_pad => if c == before e then x c e else 0
  | all_gather => x (before e) e
  | all_reduce => Σ c', x c' e
  | reduce_scatter => if c == after e then Σ c', x c' e else junk c e
  | all_to_all => if c == after e then x (before e) e else junk c e
  end.

Definition move (T T' : type) x : tensor := act (event_of (kind_of T) (kind_of T')) (owner_of T) (owner_of T') x.

(** How a value meets its gradient: the change of the loss that the change [x] causes. *)
Definition pair (T : type) x g : K :=
  match T with
  | Inv => Σ e, x root e * g root e
  | Rep | Part => Σ c, Σ e, x c e * g c e
  | Shard own => Σ e, x (own e) e * g (own e) e
  end.

(** *** The value is kept. *)

Lemma move_sound_at T T' x e k : rep_at T x e k -> rep_at T' (move T T' x) e k.
Proof.
  intros means.
  assert (average : (forall c, x c e = k) -> Σ c, (inv * x c e) = k).
  { intros all; rewrite (sum_ext K _ (fun _ => inv * k)) by (intros; now rewrite all).
    rewrite (sum_constant K); transitivity (size K C * inv * k); [ring|]. rewrite size_inv; ring. }
  assert (padded : forall own, x (own e) e = k -> Σ c, (if c == own e then x c e else 0) = k).
  { intros own <-; apply (sum_owner K (own e) (fun c => x c e)). }
  destruct T, T'; cbn in *; auto; destruct (_ == _); congruence.
Qed.

Theorem move_sound T T' x v : rep T x v -> rep T' (move T T' x) v.
Proof. intros means e; now apply move_sound_at. Qed.

(** *** An event is a matrix: rank [c] gets from rank [c'] so much, wherever it then holds the element. *)

Definition matrix (ev : event) (before : E -> C) e (c c' : C) : K :=
  match ev with
  | none | slice => if c' == c then 1 else 0
  | scale => if c' == c then inv else 0
  | zero_pad => if c' == c then if c == before e then 1 else 0 else 0
  | all_gather | all_to_all => if c' == before e then 1 else 0
  | all_reduce | reduce_scatter => 1
  end.

Lemma sum_only (y : C) (k : K) (f : C -> K) : Σ c, ((if c == y then k else 0) * f c) = k * f y.
Proof. rewrite <- (sum_owner K y (fun c => k * f c)); apply sum_ext; intros c; destruct (c == y); ring. Qed.

Lemma act_is_matrix ev before after x c e :
  (ev = slice \/ ev = reduce_scatter \/ ev = all_to_all -> c = after e) ->
  act ev before after x c e = Σ c', (matrix ev before e c c' * x c' e).
Proof.
  intros held; destruct ev; cbn; rewrite ?sum_only; try (destruct (c == after e); [|now destruct held; auto]);
    try destruct (c == before e); try ring; apply sum_ext; intros; ring.
Qed.

Definition weights (T T' : type) := matrix (event_of (kind_of T) (kind_of T')) (owner_of T).

Lemma move_is_matrix T T' x c e : holds T' c e -> move T T' x c e = Σ c', (weights T T' e c c' * x c' e).
Proof.
  intros held; apply act_is_matrix.
  destruct T, T'; cbn in *; auto; intros [|[]]; congruence.
Qed.

(** *** The backward is the move from dual to dual. *)

Theorem dual_dual T : dual (dual T) = T.
Proof. now destruct T. Qed.

Lemma kind_of_dual T : kind_of (dual T) = dual_kind (kind_of T).
Proof. now destruct T. Qed.

(** On every type the pairing is value times gradient. *)
Lemma pair_is_value T x g v gv : rep T x v -> rep (dual T) g gv -> pair T x g = Σ e, (v e * gv e).
Proof.
  assert (spread : forall x g v gv, rep Rep x v -> rep Part g gv -> Σ c, Σ e, (x c e * g c e) = Σ e, (v e * gv e)).
  { intros y h w hw one many; rewrite sum_swap; apply sum_ext; intros e.
    rewrite <- (many e : Σ c, h c e = hw e), <- sum_times; apply sum_ext; intros c; now rewrite (one e c). }
  intros means means'; destruct T as [| | |own]; cbn.
  - apply sum_ext; intros e; now rewrite (means e root), (means' e root).
  - now apply spread.
  - rewrite (sum_ext K _ (fun c => Σ e, (g c e * x c e))) by (intros; apply sum_ext; intros; ring).
    rewrite (spread g x gv v means' means); apply sum_ext; intros; ring.
  - apply sum_ext; intros e; now rewrite (means e), (means' e).
Qed.

Theorem move_adjoint T T' x g v gv : rep T x v -> rep (dual T') g gv ->
  pair T' (move T T' x) g = pair T x (move (dual T') (dual T) g).
Proof.
  intros means means'; rewrite (pair_is_value T' _ _ v gv), (pair_is_value T _ _ v gv); auto.
  - now apply move_sound.
  - now apply move_sound.
Qed.

(** The event of that backward is the one in the backward column. *)
Theorem backward_is_tabled T T' g : move (dual T') (dual T) g
  = act (backward_of (kind_of T) (kind_of T')) (owner_of (dual T')) (owner_of (dual T)) g.
Proof. unfold move, backward_of; now rewrite !kind_of_dual. Qed.

(** Every value has a tensor of every type. *)
Definition spread_out (T : type) v : tensor :=
  match T with Part => fun c e => if c == root then v e else 0 | _ => fun _ e => v e end.

Lemma spread_out_means T v : rep T (spread_out T v) v.
Proof. intros e; destruct T; cbn; auto; apply (sum_owner K root (fun _ => v e)). Qed.

Theorem pair_separates T g g' gv gv' : rep (dual T) g gv -> rep (dual T) g' gv' ->
  (forall x v, rep T x v -> pair T x g = pair T x g') -> forall e, gv e = gv' e.
Proof.
  intros means means' alike e.
  specialize (alike _ _ (spread_out_means T (fun e' => if e' == e then 1 else 0))).
  rewrite (pair_is_value T _ _ _ _ (spread_out_means T _) means),
    (pair_is_value T _ _ _ _ (spread_out_means T _) means'), !sum_indicator in alike; exact alike.
Qed.

(** *** What a rank holds of elements that it does not own never matters. *)

Theorem garbage_irrelevant own T' x x' v g : (forall e, x (own e) e = x' (own e) e) ->
  (rep (Shard own) x v <-> rep (Shard own) x' v) /\ pair (Shard own) x g = pair (Shard own) x' g /\
  (forall c e, holds T' c e -> move (Shard own) T' x c e = move (Shard own) T' x' c e).
Proof.
  intros alike; split; [|split].
  - split; intros means e; cbn; [rewrite <- alike|rewrite alike]; apply means.
  - cbn; apply sum_ext; intros e; now rewrite alike.
  - intros c e held; destruct T' as [| | |own']; cbn in *; auto; destruct (_ == _); subst; auto.
Qed.

(** *** An all_reduce in two halves. *)

Theorem rs_ag own x c e : move (Shard own) Inv (move Part (Shard own) x) c e = move Part Inv x c e.
Proof. cbn; destruct (own e == own e); easy. Qed.

(** *** A redistribution moves the weights of a sum of contributions, and leaves the contributions alone. *)

Theorem move_weights {U : Finite} T T' (w : C -> E -> U -> K) (gamma : U -> E -> K) c e : holds T' c e ->
  move T T' (fun c e => Σ u, (w c e u * gamma u e)) c e = Σ u, (move T T' (fun c e => w c e u) c e * gamma u e).
Proof.
  intros held; rewrite move_is_matrix by easy.
  transitivity (Σ c', Σ u, (weights T T' e c c' * w c' e u * gamma u e)).
  - apply sum_ext; intros; rewrite <- sum_times; apply sum_ext; intros; ring.
  - rewrite sum_swap; apply sum_ext; intros u; rewrite move_is_matrix by easy; apply sum_times_right.
Qed.

End Axis.

Arguments Inv {C E}. Arguments Rep {C E}. Arguments Part {C E}. Arguments Shard {C E}.
Arguments rep_at {K C E}. Arguments rep {K C E}. Arguments holds {C E}. Arguments kind_of {C E}.
Arguments move {K C E}. Arguments act {K C E}. Arguments pair {K C E}. Arguments dual {C E}. Arguments weights {K C E}.
