(** That [correct] says something: a step of data parallelism that the checker accepts, run in a world over the
    rationals beside its single device; a step of a pipeline, accepted for any assignment of instances to stages; and
    wrong steps, which it rejects, each of which is proved not to be correct.

    What it backs: that the hypotheses of [correct] can be met, and that what is wrong is not correct; the programs
    are those of tests/prover/kernel/test_language.py.

    Main statements: [right_accepted], [right_run], [wrong_rejected], [wrong_told], [stages_accepted], [stages_told],
    [keeps_nothing], [no_single_device], [one_rank_tells_nothing]. *)

From Coq Require Import QArith Qcanon.
From Placealg Require Import Rationals.
From Placealg.kernel Require Import Prelude Machine Meaning Trie Check World.
Open Scope nat_scope.

(** Axis 1 is data parallelism, dim 0 the batch, dim 1 what a product is summed over. The single device: y = x w, some
    derivative of the loss at y, over all tokens, the gradient, the new weight. *)
Definition alone_step : list stretch := [Plain [
  (1, Line (3, First) (SEinsum [1%nat]) [(1, First); (2, First)]);
  (2, Line (4, First) (SRow 0 []) [(3, First)]);
  (3, Line (5, First) (SScale [(0, 1)%nat]) [(4, First)]);
  (4, Line (6, First) (SEinsum [0%nat]) [(5, First); (1, First)]);
  (5, Line (7, First) (SRow 1 []) [(2, First); (6, First)])]]%positive.
Definition weight := Shared 1. Definition batch := Shared 2. Definition gradient := Shared 6. Definition sum_of :=
  Shared 7.
Definition split := [(0, 0); (1, 0)].

(** Atoms are all tokens, microbatches, ranks, and the tokens of a rank in a microbatch. *)
Definition with_step (parts : list part) : program := Program
  (Mesh 2 [] [] [] []) [[(1, 0); (0, 1); (0, 1); (0, 1)]] alone_step [(2, 7)%positive] []
  [Held 2 None [Full; Full]] [Held 1 None [Shard 0; Shard 0]]
  [Run [Read 2 weight]] parts [] [] [weight] [(weight, Held 2 None [Full; Full])].

Definition forward := [
  Read 1 batch; Do (Einsum split [1]) [batch; weight] (Shared 3) (Some 1%positive);
    Do (Row 0 [] split) [Shared 3] (Shared 4) (Some 2%positive);
  Do (Scale [(0, 0); (0, 0); (0, 0); (0, 1)]) [Shared 4] (Shared 5) (Some 3%positive)].
Definition backward := [Do (Einsum split [0]) [Shared 5; batch] gradient (Some 4%positive)].
Definition loop_ := Microbatches [(gradient, sum_of)] [Run (forward ++ backward)].
Definition reduce := Do (Send 1 AllReduce) [sum_of] sum_of None.
Definition mean := [Do (Scale [(0, 0); (0, 1); (0, 1)]) [sum_of] sum_of None].
Definition update := Do (Row 1 [] []) [weight; sum_of] weight (Some 5%positive).
Definition step_ (l : part) (before after : list instr) := [Once [Run before]; l; Once [Run after]].

Definition data_parallel := step_ loop_ [Zero sum_of] (reduce :: mean ++ [update]).
Definition not_reduced := step_ loop_ [Zero sum_of] (mean ++ [update]).
Definition not_divided := step_ loop_ [Zero sum_of] [reduce; update].
Definition not_cleared := step_ loop_ [] (reduce :: mean ++ [update]).
Definition not_updated := step_ loop_ [Zero sum_of] (reduce :: mean).
Definition freed_too_early := step_ (Microbatches [(gradient, sum_of)] [Run (forward ++ [Free batch] ++ backward)])
  [Zero sum_of] (reduce :: mean ++ [update]).
Definition stale := step_ loop_ [Zero sum_of]
  (Do (Rename []) [weight] (Shared 8) None :: reduce :: mean ++ [update; Do (Scale []) [Shared 8] weight None]).
Definition wrong := [not_reduced; not_divided; not_cleared; not_updated; freed_too_early; stale].

Example right_accepted : check (with_step data_parallel) = true.
Proof. reflexivity. Qed.
Example wrong_rejected : map (fun parts => check (with_step parts)) wrong = [false; false; false; false; false; false].
Proof. reflexivity. Qed.

(** ** A world: two ranks, two microbatches, four positions of the batch, one for each rank in each microbatch. *)
Definition Q (n : nat) : Qc := Q2Qc (inject_Z (Z.of_nat n)).
Definition atoms (k : nat) : nat := nth k [4; 2; 2; 1] 1.
Definition home_ (a way : nat) (i : index) : nat := match a with 0 => i way mod 2 | 1 => (i way / 2) mod 2 | _ => 0 end.
Definition data_ (t : nat) (i : index) : Rational := Q (1 + t + 2 * i 0 + 3 * i 1 * i 0).
Definition begin_ (i : index) : Rational := Q (5 + i 1).
Definition rows (f t l : nat) (i : index) (vs : list (@logical Rational)) : Rational :=
  let first := nth 0 vs (fun _ => 0%ring) i in let second := nth 1 vs (fun _ => 0%ring) i in
  match f with 0 => (first * first)%ring | _ => (first - second)%ring end.
Definition world_ : world Rational := World Rational
  (fun a => if a <? 2 then 2 else 1) (fun d => match d with 0 => 4 | 1 => 2 | _ => 1 end) (fun _ => home_) (fun _ => 1)
  (fun k => Q (atoms k)) (fun k => Qcinv (Q (atoms k))) rows
  (fun start _ t _ _ i => if start then begin_ i else data_ t i) (fun path _ _ => Q (7 + length path)).
Definition free_ : nat -> @made_now Rational := fun t n _ i => if (n =? 2)%positive then begin_ i else data_ t i.

Lemma inverse_of n : n <> 0 -> (Q n * Qcinv (Q n))%Qc = 1%Qc.
Proof.
  intros some; apply Qcmult_inv_r; unfold Q; intros equal; apply Q2Qc_eq_iff in equal; unfold Qeq in equal;
    cbn in equal; lia.
Qed.
Lemma world_valid parts : valid world_ (with_step parts).
Proof.
  split.
  - intros a; cbn [size world_]; destruct (a <? 2); lia.
  - intros l a d i; cbn [home size world_]; destruct a as [|[|a]]; cbn [home_ Nat.ltb Nat.leb];
    try apply Nat.mod_upper_bound; lia.
  - intros l a d i j same; cbn in *; unfold home_; cbn in same.
    assert (E : i d = j d) by (apply same; unfold touches; cbn; destruct d; now left); now rewrite E.
  - reflexivity.
  - intros f [].
  - intros l a d e i j Pd Pe L E; cbn in *; unfold likeness in L; cbn in L; assert (D : d = e) by (destruct d, e;
    cbn in L; congruence).
    subst; unfold home_; now rewrite E.
  - intros k; cbn [atom inverse world_]; apply inverse_of; unfold atoms; do 4 (destruct k as [|k]; [discriminate|]);
    destruct k; discriminate.
  - intros m [<-|[]]; vm_compute; now apply Qc_is_canon.
  - intros a k [].
  - intros k u x f over _ _ t l i i' vs ws same V; cbn [fn world_]; unfold rows.
    assert (N : forall n, nth n vs (fun _ => 0%ring) i = nth n ws (fun _ => 0%ring) i').
    { clear -V same; induction V as [|v w vs ws E V IH]; intros [|n]; cbn; auto; apply E; auto; now intros d. }
    now rewrite !N.
  - intros path r r' i i' _ _; reflexivity.
Qed.

Lemma lies_whole (x : index -> Rational) ks : (forall i i', (forall d, i d = i' d) -> x i = x i') -> ~ In Part ks ->
  lies (size world_) (home world_ 0) 2 (fun _ => x) x ks.
Proof.
  intros E no; split; [intros r r' i i' _ same; now apply E|]; intros r i; generalize (seq 0 2); intros l; revert r.
  assert (N : forall a, kind_in ks a <> Part).
  { intros a P; unfold kind_in in P; destruct (Nat.lt_ge_cases a (length ks)); [apply no; rewrite <- P;
    now apply nth_In|].
    rewrite nth_overflow in P by easy; discriminate. }
  unfold den; induction l as [|a l IH]; intros r; cbn; auto; specialize (N a); destruct (kind_in ks a); try easy.
  split; [|apply IH]; intros c _; split; [apply IH|]; now rewrite !(proj2 (IH _)).
Qed.
Lemma world_handed parts : handed world_ (with_step parts) (truth world_ (with_step parts) free_).
Proof.
  split; [|split; [|intros n k []]]; intros h [<-|[]]; cbn [value_of lying per Machine.axes on with_step input world_].
  - intros l _; change (home world_ l) with (home world_ 0); apply (lies_whole begin_); [|cbn; intuition discriminate].
    intros i i' same; unfold begin_; now rewrite same.
  - intros t l _; assert (T : truth world_ (with_step parts) free_ 1%positive t l = data_ t) by (destruct t;
    reflexivity); rewrite T.
    change (home world_ l) with (home world_ 0); apply (lies_whole (data_ t)); [|cbn; intuition discriminate].
    intros i i' same; unfold data_; now rewrite !same.
Qed.

Definition at_rank (a b : nat) : rank := put (put (fun _ => 0) 0 a) 1 b.
(** What a rank has of the weight behind some steps, and the single device. *)
Definition has_ (parts : list part) (t : nat) (a b : nat) (i : index) : Qc :=
  run world_ (with_step parts) (fun _ => On) t weight 0 (at_rank a b) i.
Definition has_alone (t : nat) (i : index) : Qc := truth world_ (with_step []) free_ 2%positive t 0 i.
Definition differs (parts : list part) : bool :=
  existsb (fun x => if Qc_eq_dec (has_ parts 1 (fst x) (snd x) (fun _ => 0)) (has_alone 1 (fun _ => 0))
    then false else true)
    (list_prod [0; 1] [0; 1]).

Lemma lies_at (x : @tensor Rational) (v : @logical Rational) a b i : lies (size world_) (home world_ 0) 2 x v [Full;
  Full] -> a < 2 -> b < 2 -> x (at_rank a b) i = v i.
Proof.
  intros [_ L] Sa Sb; destruct (L (fun _ => 0) i) as [A V]; cbn in A, V; destruct (A a Sa) as [B E];
    destruct (B b Sb) as [_ F].
  unfold at_rank; rewrite F, E; exact V.
Qed.
Lemma told parts : differs parts = true -> ~ correct (with_step parts).
Proof.
  intros D [_ C]; assert (L := C Rational world_ free_ (world_valid parts) (world_handed parts) (fun _ => On) 1
    weight _ (or_introl eq_refl) 0 Nat.lt_0_1).
  apply existsb_exists in D; destruct D as [[a b] [ins D]]; unfold fst, snd in D.
  apply in_prod_iff in ins; destruct ins as [ina inb].
  assert (S : a < 2 /\ b < 2) by (split; [destruct ina as [<-|[<-|[]]]|destruct inb as [<-|[<-|[]]]]; lia);
    destruct S as [Sa Sb].
  apply (fun L => lies_at _ _ a b (fun _ => 0) L Sa Sb) in L.
  destruct (Qc_eq_dec _ _) as [|N]; [discriminate|]; exact (N L).
Qed.

Theorem wrong_told : Forall (fun parts => ~ correct (with_step parts)) wrong.
Proof. repeat constructor; apply told; vm_compute; reflexivity. Qed.

(** The right step on every rank: behind one step and behind two. *)
Theorem right_run : forallb (fun t => forallb (fun x => forallb (fun n =>
    if Qc_eq_dec (has_ data_parallel t (fst x) (snd x) (fun _ => n)) (has_alone t (fun _ => n))
      then true else false) [0; 1])
  (list_prod [0; 1] [0; 1])) [1; 2] = true.
Proof. vm_compute; reflexivity. Qed.

(** ** A pipeline along axis 1. An instance makes of what the one before hands on, and of its weight, what it hands on,
    and its next weight. Way 0 is the batch; by ways 1 to 4 all is of one stage: that of the first instance, of the one
    that runs, of the one behind it, and of what follows the last. *)
Definition chain : list stretch := [
  Plain [(1, Line (2, First) (SRow 0 []) [(1, First)])];
  Repeat 0 false [(2, Line (2, Next) (SRow 1 []) [(2, This); (3, This)]);
    (3, Line (4, This) (SRow 2 []) [(3, This); (2, This)])]]%positive.
Definition by_stage := [Full; Shard 2].
Definition in_stages (sent : list instr) : program := Program
  (Mesh 2 [] [[0]; []; []; []; []] [] [Moves 0 1 2 3 4]) [] chain [(3, 4)%positive] []
  [Held 3 (Some 0) by_stage] [Held 1 None [Full; Full]] [Layers 0 false [] [Read 3 (Each 3)]]
  [Once [
    Run [Read 1 (Shared 1); Do (Send 1 (Slice 1)) [Shared 1] (Shared 1) None;
      Do (Row 0 [] [(1, 1)]) [Shared 1] (Shared 2) (Some 1%positive)];
    Layers 0 false [(2, 2)%positive] ([
      Do (Row 2 [] [(1, 2)]) [Each 3; Shared 2] (Each 4) (Some 3%positive);
      Do (Row 1 [] [(1, 2)]) [Shared 2; Each 3] (Shared 2) (Some 2%positive)] ++ sent ++ [
      Do (Scale []) [Each 4] (Each 3) None])]]
  [] [] [Each 3] [(Each 3, Held 3 (Some 0) by_stage)].
Definition to_the_next := [Do (Send 1 (AllToAll 2 3)) [Shared 2] (Shared 2) None].
Definition to_the_first := [Do (Send 1 (AllToAll 2 1)) [Shared 2] (Shared 2) None].

Example stages_accepted : check (in_stages to_the_next) = true.
Proof. reflexivity. Qed.
Example stages_rejected : map (fun sent => check (in_stages sent)) [[]; to_the_first] = [false; false].
Proof. reflexivity. Qed.
Theorem stages_told : Forall (fun sent => ~ correct (in_stages sent)) [[]; to_the_first].
Proof. repeat constructor; apply (tells_wrong _ [0; 1] 1 2 [] false 1 [[0]]); vm_compute; reflexivity. Qed.

(** ** That [correct] is not empty: what it would be to keep nothing, to have no single device, or one whose lines do
    not run in order, to be asked on one rank alone, or to count on what nobody holds. *)
Definition with_all (alone_ : list stretch) (rest_ : list (slot * held)) : program := Program
  (Mesh 2 [] [] [] []) [[(1, 0); (0, 1); (0, 1); (0, 1)]] alone_ [(2, 7)%positive] []
  [Held 2 None [Full; Full]] [Held 1 None [Shard 0; Shard 0]]
  [Run [Read 2 weight]] data_parallel [] [] [weight] rest_.
Definition kept := [(weight, Held 2 None [Full; Full])].
Definition backwards : list stretch := map (fun s => match s with Plain ls => Plain (rev ls) | s => s end) alone_step.

Example whole_accepted : check (with_all alone_step kept) = true.
Proof. reflexivity. Qed.
Example empty_rejected : map check [with_all alone_step []; with_all [] kept; with_all backwards kept] =
  [false; false; false].
Proof. reflexivity. Qed.
Theorem keeps_nothing : ~ correct (with_all alone_step []).
Proof. intros [S _]; destruct (S 2%positive 7%positive (or_introl eq_refl)) as [s [h [[] _]]]. Qed.

(** Residues of the four atoms, and their inverses: of one rank, and of two. *)
Definition of_one := [(1, 1); (1, 1); (1, 1); (1, 1)]%Z.
Definition of_two := [(2, 5004); (1, 1); (2, 5004); (1, 1)]%Z.
Theorem no_single_device : ~ correct (with_all [] kept).
Proof. apply (tells_wrong _ [0; 0] 2 1 of_one false 1 [[0; 0]]); vm_compute; reflexivity. Qed.
(** On one rank nothing differs where nothing is reduced; a theorem of all sizes says more. *)
Example one_rank_tells_nothing : map (fun sizes => tells (with_step not_reduced) (fst sizes) 2 1 (snd sizes) false 1
  [[0; 0]; [1; 0]]) [([0; 0], of_one); ([0; 1], of_two)] = [false; true].
Proof. vm_compute; reflexivity. Qed.
