(** A world over the rationals: any sizes, any number of microbatches, one token a rank, and one more where equal
  counts
    are not assumed. So the hypotheses of [correct] can be met for every program that is accepted, and a program that
      is
    wrong can be seen to be.

    What it backs: that [correct] says something; and the refutations that are printed.

    Main statements: [equal_counts_met] (the hypotheses hold in this world), [tells_wrong] (where the run in this
      world
    differs, the program is not correct). *)

From Coq Require Import Lia QArith Qcanon.
From Placealg Require Import Rationals.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Norms Facts Counting.
Open Scope nat_scope.

Lemma of_nat_is (n : nat) : of_nat n = Q2Qc (inject_Z (Z.of_nat n)) :> Rational.
Proof.
  induction n as [|n IH]; [reflexivity|]. cbn [of_nat]. etransitivity; [apply (f_equal (Qcplus 1) IH)|].
  apply Qc_is_canon; unfold Qcplus, Q2Qc, this; rewrite !Qred_correct, Nat2Z.inj_succ, <- Z.add_1_l, inject_Z_plus.
  reflexivity.
Qed.

Definition one_over (n : nat) : Qc := Qcinv (Q2Qc (inject_Z (Z.of_nat n))).

Lemma one_over_ok (n : nat) : n <> 0 -> (of_nat n * (one_over n : Rational))%ring = 1%ring.
Proof.
  intros some. rewrite of_nat_is. apply Qcmult_inv_r. intros equal. apply Q2Qc_eq_iff in equal.
  unfold Qeq in equal; cbn in equal; lia.
Qed.

Definition number_ (n : nat) : Qc := Q2Qc (inject_Z (Z.of_nat n)).

Lemma scaled_back (n : nat) : ((number_ (2 + n) : Rational) * one_over (2 + n))%ring = 1%ring :> Rational.
Proof. unfold number_. rewrite <- of_nat_is. apply one_over_ok. lia. Qed.

(** The larger of two numbers, of which 0 is the least. *)
Definition larger_ (x y : Qc) : Qc :=
  if Qc_eq_dec x 0 then y else if Qc_eq_dec y 0 then x else if Qclt_le_dec x y then y else x.

(** Cases by what is compared, inner comparisons first. *)
Ltac plain x := lazymatch x with context [if _ then _ else _] => fail | _ => idtac end.
Ltac by_order := intros; unfold larger_; repeat match goal with
  | |- context [Qc_eq_dec ?x ?y] => plain x; plain y; destruct (Qc_eq_dec x y)
  | |- context [Qclt_le_dec ?x ?y] => plain x; plain y; destruct (Qclt_le_dec x y) end; subst; try congruence.

Ltac below := first [assumption | apply Qclt_le_weak; assumption].
Ltac ordered := apply Qcle_antisym;
  match goal with |- (?x <= ?y)%Qc => first [below | match goal with v : _ |- _ => apply (Qcle_trans x v y);
    below end] end.

Lemma larger_sym_ (a b : Rational) : larger_ a b = larger_ b a :> Rational.
Proof. by_order; ordered. Qed.
Lemma larger_same_ (a : Rational) : larger_ a a = a :> Rational.
Proof. now by_order. Qed.
Lemma larger_zero_ (a : Rational) : larger_ (zero : Rational) a = a :> Rational.
Proof. unfold larger_. destruct (Qc_eq_dec _ _) as [|apart]; [reflexivity|]. exfalso. now apply apart. Qed.
Lemma larger_of_three_ (a b c : Rational) : larger_ a (larger_ b c) = larger_ (larger_ a b) c :> Rational.
Proof. by_order; ordered. Qed.
Definition total_of (l : list Qc) : Qc := fold_right Qcplus (number_ 0) l.

Section World.
Variables (p : program) (sizes : nat -> nat) (m : nat) (depths : nat -> nat) (width : nat).

(** Elements are (group, instance, index); tokens are (step, microbatch, a rank of the data axes, a loss). *)
Definition at_index (a k : nat) : nat := k mod S (sizes a).
Definition all_elements : list (nat * nat * nat) :=
  flat_map (fun g => flat_map (fun l => map (pair (g, l)) (seq 0 width)) (seq 0 (depths g))) (seq 0 (length (groups
    p))).
Definition code (x : nat * nat * rank * nat) : Qc :=
  let '(t, j, r, n) := x in number_ (1 + 3 * t + 2 * j + 5 * n + fold_right (fun a n => (a + 1) * r a + 2 * n) 0 (data
    p)).

Fixpoint ranks_of (along : list nat) (r : rank) : list rank :=
  match along with
  | [] => [r] | a :: l => flat_map (fun c => ranks_of l (put r a c)) (seq 0 (S (sizes a))) end.

(** A token of each loss on each rank; one more of the first where equal counts are not assumed. *)
Definition batch_of (t j : nat) : list (nat * nat * rank * nat) :=
  flat_map (fun n => map (fun r => (t, j, r, n)) (ranks_of (data p) (fun _ => 0))) (seq 0 (S (further p))) ++
  if equal p then [] else [(t, j, fun _ => 0, 0)].

Definition telling : world.
Proof.
  refine {|
    size := fun a => S (sizes a); E := nat * nat * nat; elements := all_elements;
    group_of := fun i => fst (fst i); layer_of := fun i => snd (fst i);
    matrix_of := fun i => 0; own := fun s c a i => at_index a (s + c + snd i);
    X := nat * nat * rank * nat; micro := S m; batch := batch_of; loss_of := snd;
    home := fun x a => at_index a (snd (fst x) a); K := Rational; share := one_over; share_ok := one_over_ok;
    T := Qc; A := Qc; B := Qc; layers := depths;
    first_weight := fun i => number_ (2 + snd i + fst (fst i)); first_moments := fun i => number_ (3 + snd i);
    input := code;
    forward := fun u l n x ws a => (a + total_of ws * number_ (1 + u + l) + number_ n)%Qc;
    seed := fun x a => (a + code x)%Qc;
    backward := fun u l x k ws b => (b + total_of ws + number_ (fst (fst k)) + total_of (snd (fst k)))%Qc;
    gamma := fun u l x k ws b i => (code x * number_ (1 + u) + total_of ws + b + snd k + number_ (snd i))%Qc;
    statistic := fun u l x k i => (code x * number_ (2 + u) + total_of (snd (fst k)) + snd k + number_ (snd i))%Qc;
    padding := fun n => number_ (2 + n); unpadding := fun n => one_over (2 + n); padding_ok := scaled_back;
    larger := larger_; larger_sym := larger_sym_; larger_of_three := larger_of_three_; larger_same := larger_same_;
    larger_zero := larger_zero_;
    scaling := fun n => number_ (2 + n); unscaling := fun n => one_over (2 + n); scaling_ok := scaled_back;
    grow := fun n out => if out then 0 else S n;
    measure := fun i k => (k * k)%Qc;
    overflows := fun i k => (snd i =? 0) && Z.odd (Qnum (this k)); clip := fun n k => (k + n)%Qc;
    update := fun k n i x o g => ((total_of x + k * total_of g + number_ 2 * total_of o + number_ n)%Qc,
      (total_of o + total_of g)%Qc);
    average := fun i a b => (number_ 3 * a + b)%Qc;
    junk := fun c r i => inl (number_ (1009 + 7 * c + r 0)); junk_stream := fun c r => 1013 + c;
    junk_norm := fun c g r => number_ (1019 + c); junk_flag := fun c g r => true; junk_scale := fun n r =>
      number_ 1021; junk_tally := fun c n r => 1033 + c;
    junk_flow := fun r x => number_ 1031
  |}.
  - intros a; lia.
  - intros s c a i; unfold at_index; apply Nat.mod_upper_bound; lia.
  - intros x a; unfold at_index; apply Nat.mod_upper_bound; lia.
Defined.

Lemma ranks_outside (along : list nat) (r r' : rank) (a : nat) : In r' (ranks_of along r) -> mem a along = false ->
  r' a = r a.
Proof. exact (@peers_outside telling along r r' a). Qed.

Lemma one_rank (t j n0 : nat) (along : list nat) (r0 r : rank) : once along = true -> (forall a, r a < S (sizes a)) ->
  length (filter (fun x => forallb (fun a => r a =? at_index a (snd (fst x) a)) along) (map (fun r => (t, j, r, n0))
    (ranks_of along
    r0))) = 1.
Proof.
  intros once_ good. revert r0; induction along as [|a l IH]; intros r0; [easy|].
  cbn [once] in once_. apply andb_true_iff in once_. destruct once_ as [out rest]. apply negb_true_iff in out.
  cbn [ranks_of]. specialize (IH rest).
  assert (some : forall n s, s <= r a -> r a < s + n -> s + n <= S (sizes a) ->
    length (filter (fun x => forallb (fun a => r a =? at_index a (snd (fst x) a)) (a :: l))
      (map (fun r => (t, j, r, n0)) (flat_map (fun c => ranks_of l (put r0 a c)) (seq s n)))) = 1).
  { assert (piece : forall c, c < S (sizes a) -> length (filter (fun x : nat * nat * rank * nat =>
        forallb (fun a => r a =? at_index a (snd (fst x) a)) (a :: l)) (map (fun r => (t, j, r, n0)) (ranks_of l (put
          r0 a c)))) =
        if r a =? c then 1 else 0).
    { intros c small.
      assert (same : forall x, In x (map (fun r => (t, j, r, n0)) (ranks_of l (put r0 a c))) ->
        forallb (fun a => r a =? at_index a (snd (fst x) a)) (a :: l) =
        (r a =? c) && forallb (fun a => r a =? at_index a (snd (fst x) a)) l).
      { intros x inside. apply in_map_iff in inside. destruct inside as [r' [<- inside]]. cbn [forallb fst snd].
        f_equal.
        rewrite (ranks_outside _ _ _ _ inside out), put_same. unfold at_index. now rewrite Nat.mod_small. }
      rewrite (filter_ext_in _ _ _ same). destruct (r a =? c); cbn [andb]; [apply IH|].
      clear same. induction (map (fun r => (t, j, r, n0)) (ranks_of l (put r0 a c))) as [|y l' IHl]; [easy|exact IHl]. }
    induction n as [|n IHn]; intros s low high top; [lia|]. cbn [seq flat_map].
    rewrite map_app, filter_app, app_length, piece by lia.
    destruct (r a =? s) eqn:here.
    - apply Nat.eqb_eq in here.
      assert (none : forall n' s', r a < s' -> s' + n' <= S (sizes a) -> length (filter (fun x : nat * nat * rank *
        nat =>
        forallb (fun a => r a =? at_index a (snd (fst x) a)) (a :: l))
        (map (fun r => (t, j, r, n0)) (flat_map (fun c => ranks_of l (put r0 a c)) (seq s' n')))) = 0).
      { induction n' as [|n' IHn']; intros s' past top'; [easy|]. cbn [seq flat_map].
        rewrite map_app, filter_app, app_length, piece by lia. rewrite IHn' by lia.
        replace (r a =? s') with false by (symmetry; apply Nat.eqb_neq; lia). easy. }
      rewrite none by lia. easy.
    - apply Nat.eqb_neq in here. rewrite IHn by lia. easy. }
  specialize (good a). apply some; lia.
Qed.

Lemma its_loss_is (x : nat * nat * rank * nat) (n : nat) : snd x = n -> n <= further p -> @its_loss telling p x = n.
Proof. intros is small. unfold its_loss. cbn [loss_of telling]. rewrite is. apply Nat.leb_le in small.
  now rewrite small. Qed.

Theorem equal_counts_met : once (data p) = true -> equal p = true -> @equal_counts telling p.
Proof.
  intros once_ same. exists (fun _ => 1). intros n small. split; [lia|]. intros t j r _ good. unfold mine, near.
  cbn [batch telling]. unfold batch_of. rewrite same, app_nil_r. rewrite (@of_loss_flat telling p).
  assert (all : forall k s, s + k <= S (further p) ->
    length (filter (fun x => forallb (fun a => r a =? @home telling x a) (data p))
      (flat_map (fun n' => @of_loss telling p n (map (fun r => (t, j, r, n')) (ranks_of (data p) (fun _ => 0))))
        (seq s k))) = if (s <=? n) && (n <? s + k) then 1 else 0).
  { induction k as [|k IH]; intros s top; cbn [seq flat_map].
    - destruct (s <=? n) eqn:a, (n <? s + 0) eqn:b; try easy. apply Nat.leb_le in a. apply Nat.ltb_lt in b. lia.
    - rewrite filter_app, app_length, IH by lia.
      assert (one : @of_loss telling p n (map (fun r => (t, j, r, s)) (ranks_of (data p) (fun _ => 0))) =
        if s =? n then map (fun r => (t, j, r, s)) (ranks_of (data p) (fun _ => 0)) else []).
      { clear IH. unfold of_loss. induction (ranks_of (data p) (fun _ => 0)) as [|r' l IHl]; [now destruct (s =? n)|].
        cbn [map filter]. rewrite (its_loss_is (t, j, r', s) s) by (easy || lia). rewrite IHl. now destruct (s =? n). }
      rewrite one. destruct (s =? n) eqn:here.
      + pose proof (one_rank t j s (data p) (fun _ => 0) r once_ good) as single.
        match goal with |- length ?a + _ = _ => replace (length a) with 1 by (symmetry; exact single) end.
        apply Nat.eqb_eq in here. subst. rewrite Nat.leb_refl.
        replace (S n <=? n) with false by (symmetry; apply Nat.leb_gt; lia).
        replace (n <? n + S k) with true by (symmetry; apply Nat.ltb_lt; lia). easy.
      + apply Nat.eqb_neq in here. cbn [filter length Nat.add]. destruct (S s <=? n) eqn:a, (s <=? n) eqn:b;
          rewrite ?Nat.add_succ_r; try easy; (apply Nat.leb_le in a || apply Nat.leb_gt in a);
          (apply Nat.leb_le in b || apply Nat.leb_gt in b); lia. }
  rewrite (all (S (further p)) 0) by lia. cbn [Nat.leb andb]. now replace (n <? 0 + S (further p)) with true
    by (symmetry; apply Nat.ltb_lt; lia).
Qed.

(** ** Where the run differs *)

Definition same_value (v v' : Qc + Qc) : bool :=
  match v, v' with
  | inl x, inl y | inr x, inr y => if Qc_eq_dec x y then true else false | _, _ => false end.

Definition right_at (stops : nat -> bool) (t : nat) (r : rank) (i : nat * nat * nat) : bool :=
  let got := @held telling (@run telling p stops t) (At Weight (lies (@group_at telling p i))) r i in
  negb (@sat telling (rests (@group_at telling p i)) r i) ||
  match got with Some v => same_value v (@truth telling p Weight t i) | None => false end.

Definition saved_right_at (stops : nat -> bool) (t : nat) (r : rank) (i : nat * nat * nat) : bool :=
  forallb (fun x => match @held telling (@run telling p stops t) (At x Disk) r i with
    | Some v => same_value v (@truth telling p x t i) | None => true end)
    ([Weight; Moments] ++ match average_rests (@group_at telling p i) with NoAverage => [] | _ => [Average] end).

Definition average_right_at (stops : nat -> bool) (t : nat) (r : rank) (i : nat * nat * nat) : bool :=
  match average_rests (@group_at telling p i) with
  | NoAverage => true
  | AverageAt q k => negb (@sat telling q r i) ||
      match @held telling (@run telling p stops t) (At Average k) r i with
      | Some v => same_value v (@truth telling p Average t i) | None => false end end.

Definition read_right_at (stops : nat -> bool) (t : nat) (r : rank) (i : nat * nat * nat) : bool :=
  forallb (fun e : nat * nat * (rank -> nat * nat * nat -> option (Qc + Qc)) => let '(u, l, got) := e in
    negb (used p u (fst (fst i)) && (snd (fst i) =? l)) ||
    match got r i with Some v => same_value v (@truth telling p Weight t i) | None => false end)
  (@reads telling (@step telling p t (@run telling p stops t))).

Definition tells (stops : nat -> bool) (t : nat) : bool :=
  let stops := fun t => resumes p && stops t in once (data p) &&
  existsb (fun r => existsb (fun i => (fst (fst i) <? length (groups p)) &&
      (snd (fst i) <? @depth telling p (hd 0 (sites_of p (fst (fst i))))) &&
      negb (right_at stops t r i && average_right_at stops t r i && saved_right_at stops t r i &&
        read_right_at stops t r i)) all_elements)
    (ranks_of (axes p) (fun _ => 0)).

Lemma same_value_refl (v : Qc + Qc) : same_value v v = true.
Proof. destruct v as [x|x]; cbn; now destruct (Qc_eq_dec x x). Qed.

Theorem tells_wrong (stops : nat -> bool) (t : nat) : tells stops t = true -> ~ correct p.
Proof.
  unfold tells. intros told_ right. apply andb_true_iff in told_. destruct told_ as [once_ told_].
  apply existsb_exists in told_. destruct told_ as [r [in_r told_]]. apply existsb_exists in told_.
  destruct told_ as [i [in_i told_]]. apply andb_true_iff in told_. destruct told_ as [cover_ wrong].
  apply andb_true_iff in cover_. destruct cover_ as [c1 c2]. apply Nat.ltb_lt in c1, c2.
  assert (cover : @covers telling p i) by (split; assumption).
  assert (good : @ok telling r).
  { apply (@peers_ok telling (axes p) (fun _ => 0) r); [|exact in_r]. intros a. cbn. lia. }
  set (stops' := fun t => resumes p && stops t) in *.
  destruct (right telling (equal_counts_met once_) ltac:(cbn; lia) stops' t
    ltac:(intros never; unfold stops'; now rewrite never)) as [A [_ [B [C [D _]]]]].
  apply negb_true_iff in wrong. rewrite <- not_true_iff_false in wrong. apply wrong. clear wrong.
  rewrite !andb_true_iff. repeat split.
  - unfold right_at. destruct (@sat telling _ r i) eqn:in_; [|easy]. rewrite (A r i good cover in_). apply
    same_value_refl.
  - unfold average_right_at. destruct (average_rests _) as [|q k] eqn:rests_; [easy|].
    destruct (@sat telling q r i) eqn:in_; [|easy]. destruct (B i q k rests_) as [_ here].
    rewrite (here r good cover in_). apply same_value_refl.
  - unfold saved_right_at. apply forallb_forall. intros x which.
    destruct (@held telling _ (At x Disk) r i) as [v|] eqn:found; [|easy].
    rewrite (D x r i v); [apply same_value_refl| |easy..].
    destruct (average_rests (@group_at telling p i)); cbn in which; intuition congruence.
  - unfold read_right_at. apply forallb_forall. intros [[u l] got] inside.
    destruct (used p u (fst (fst i)) && (snd (fst i) =? l)) eqn:need; [|easy]. cbn [negb orb].
    rewrite (C u l got inside r i good); [apply same_value_refl| |easy].
    unfold needs. apply filter_In. split; [exact in_i|exact need].
Qed.
End World.
