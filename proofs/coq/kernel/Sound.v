(** What the checker accepts is correct, in every world.

    What it backs: the kernel, and every verdict with a line `kernel   accepted`.

    Main statement: [check_sound]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Norms.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units.
From Placealg.kernel Require Import Loops.
From Placealg.kernel Require Import Bodies.
From Placealg.kernel Require Import Steps.
Open Scope nat_scope.

Section Sound.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis well : well_formed p = true.

Notation fits := (fits p count_).
Notation holds := (holds p count_).
Notation glob := (glob p).
Notation between := (between p count_).

Hypothesis accepted : check p = true.

Lemma accepted_parts : exists f f', between 0 0 (initialised p) (run_blocks p 0 0 (init p) (power_on p)) /\
  length (kepts f) = length (repeated p) /\ holds_between p (initialised p) (quiet f) = true /\
  next p (quiet f) = Some f' /\ fine f' = true /\ holds_between p f' (quiet f) = true /\
  forallb (rested p (quiet f)) (seq 0 (length (groups p))) = true /\
  (resumes p = true -> forall c, carried p c = true -> exists l, told (counts f) c true = Ticks false l true).
Proof.
  assert (found : exists f f', next p (quiet f) = Some f' /\ settled p (quiet f) f' = true).
  { pose proof accepted as all. unfold check in all. apply andb_true_iff in all. destruct all as [_ all].
    destruct (next p (first_guess p)) as [f'|] eqn:step_; [|easy]. apply orb_true_iff in all. destruct all as
      [all|all].
    - do 2 eexists. split; [exact step_|exact all].
    - destruct (next p (second_guess p (first_guess p) f')) as [g'|] eqn:step'; [|easy].
      do 2 eexists. split; [exact step'|exact all]. }
  destruct found as [f [f' [step_ all]]]. unfold settled in all.
  apply andb_true_iff in all; destruct all as [all counts_]. apply andb_true_iff in all; destruct all as [all rest_].
  apply andb_true_iff in all; destruct all as [all H1]. apply andb_true_iff in all; destruct all as [all F].
  apply andb_true_iff in all; destruct all as [size_ H0].
  exists f, f'. assert (lenu : length (kepts f) = length (repeated p)).
  { destruct (sized_ok p _ size_) as [_ len]. cbn [quiet kepts] in len. now rewrite map_length in len. }
  split.
  { unfold initialised. apply (quiet_between p). destruct (well_parts p well) as [_ [_ [good _]]].
    apply (blocks_ok p count_ count_pos micro_pos counts_equal (data_once p well) (deep p well) 0 0 true Early
      ltac:(easy) I); [easy|]. apply (power_on_ok p). }
  repeat (split; [easy|]). intros back. rewrite back in counts_. cbn [negb orb quiet counts] in *.
  rewrite forallb_forall in counts_. intros c carries. specialize (counts_ c ltac:(destruct c; cbn; auto)).
  rewrite carries in counts_. cbn [negb orb] in counts_.
  destruct (told (counts f) c true) as [| |[] l []]; try easy. now exists l.
Qed.

Theorem accepted_correct : forall (stops : nat -> bool) (t : nat),
  (resumes p = false -> forall t, stops t = false) ->
  (forall r i, ok r -> covers p i -> sat (rests (group_at p i)) r i = true ->
     held (run p stops t) (At Weight (lies (group_at p i))) r i = Some (truth p Weight t i)) /\
  (forall i, exists r, ok r /\ sat (rests (group_at p i)) r i = true) /\
  (forall i q k, average_rests (group_at p i) = AverageAt q k -> (exists r, ok r /\ sat q r i = true) /\
     forall r, ok r -> covers p i -> sat q r i = true ->
     held (run p stops t) (At Average k) r i = Some (truth p Average t i)) /\
  (forall u l got, In (u, l, got) (reads (step p t (run p stops t))) -> forall r i, ok r -> In i (needs p u l) ->
     covers p i -> got r i = Some (truth p Weight t i)) /\
  (forall x r i v, x = Weight \/ x = Moments \/ x = Average /\ average_rests (group_at p i) <> NoAverage ->
     ok r -> covers p i ->
     held (run p stops t) (At x Disk) r i = Some v -> v = truth p x t i) /\
  (resumes p = true -> forall c, carried p c = true ->
     count (run p stops t) c true (fun _ => 0) = Some (ticks_of p c t) /\
     forall r n, ok r -> count (run p stops t) c true r = Some n -> n = ticks_of p c t).
Proof.
  intros stops t never. destruct accepted_parts as [f [f' [I0 [lenu [H0 [step_ [F [H1 [rest_ D]]]]]]]]].
  assert (always : forall t, between t 0 (quiet f) (run p stops t)).
  { clear t. induction t as [|t IH].
    - cbn [run]. apply (boundary_ok p count_ count_pos micro_pos counts_equal well 0 (initialised p));
        [intros; now apply never|easy..].
    - cbn [run]. apply (boundary_ok p count_ count_pos micro_pos counts_equal well (S t) f');
        [intros; now apply never|easy|easy|].
      apply (next_ok p count_ count_pos micro_pos counts_equal well t (quiet f) f' _ step_ IH). }
  specialize (always t).
  assert (group_ : forall i, covers p i -> rested p (quiet f) (group_of i) = true /\
     nth_error (groups p) (group_of i) = Some (group_at p i)).
  { intros i [small _]. split.
    - rewrite forallb_forall in rest_. apply rest_. apply in_seq. lia.
    - unfold group_at. now apply nth_error_nth'. }
  assert (owned : forall q i, one_layout q = true -> exists r, ok r /\ sat q r i = true).
  { intros q i owners_. destruct q as [|[s a|a] q];
      [exists (fun _ => 0); split; [intros a; apply size_pos|easy]| |easy].
    cbn [one_layout] in owners_. apply andb_true_iff in owners_. destruct owners_ as [owners_ still_].
    rewrite forallb_forall in owners_. unfold still in still_. rewrite forallb_forall in still_.
    set (along := map axis_of (Owner s a :: q)) in *.
    exists (fun b => if mem b along then owner s (fun _ => 0) b i else 0). split.
    - intros b. destruct (mem b along); [apply owner_ok|apply size_pos].
    - apply sat_in. intros c inside. specialize (owners_ c inside). specialize (still_ c inside).
      destruct c as [s' b|]; [|easy]. cbn [owner_of] in owners_. destruct (layout_eq s' s) as [->|]; [|easy].
      assert (there : mem b along = true).
      { unfold mem. apply existsb_exists. exists b. split; [|apply Nat.eqb_refl].
        exact (in_map axis_of _ (Owner s b) inside). }
      cbn [sat1]. rewrite there. destruct s as [n|n c]; cbn [owner]; [apply Nat.eqb_refl|].
      cbn [drawn_by] in still_. apply negb_true_iff in still_. rewrite still_. apply Nat.eqb_refl. }
  assert (good_ : forall i, one_layout (rests (group_at p i)) = true /\
     match average_rests (group_at p i) with AverageAt q _ => one_layout q | NoAverage => true end = true).
  { intros i. destruct (well_parts p well) as [_ [groups_ _]]. unfold group_at.
    destruct (nth_in_or_default (group_of i) (groups p) (Group [] [] Device [] Gradient NoAverage)) as [in_|out];
      [|now rewrite out].
    rewrite forallb_forall in groups_. specialize (groups_ _ in_). unfold good_group in groups_.
    apply andb_true_iff in groups_. destruct groups_ as [_ both]. now apply andb_true_iff in both. }
  split; [|split; [|split; [|split; [|split]]]].
  - intros r i good cover in_. destruct (group_ i cover) as [R G]. unfold rested in R. rewrite G in R.
    destruct (nth_error (slots (quiet f)) (group_of i)) as [k|] eqn:K1; [|easy].
    repeat (apply andb_true_iff in R; destruct R as [R ?]).
    pose proof (bt_fit _ _ _ _ _ _ always i cover (At Weight (lies (group_at p i)))) as here.
    assert (is : nth_table (slots (quiet f)) (group_of i) = k) by (unfold nth_table; now apply nth_error_nth).
    rewrite is in here.
    destruct (get k (At Weight (lies (group_at p i)))) as [| |[[]|[]| | | |] q o]; try easy.
    specialize (here r good). cbn beta in here. now rewrite (within_ok _ _ _ _ R in_) in here.
  - intros i. apply owned, good_.
  - intros i q k rests_. split.
    + apply owned. destruct (good_ i) as [_ both]. now rewrite rests_ in both.
    + intros r good cover in_. destruct (group_ i cover) as [R G]. unfold rested in R. rewrite G in R.
      destruct (nth_error (slots (quiet f)) (group_of i)) as [k'|] eqn:K1; [|easy].
      apply andb_true_iff in R. destruct R as [_ R]. rewrite rests_ in R.
      apply andb_true_iff in R. destruct R as [R _].
      pose proof (bt_fit _ _ _ _ _ _ always i cover (At Average k)) as here.
      assert (is : nth_table (slots (quiet f)) (group_of i) = k') by (unfold nth_table; now apply nth_error_nth).
      rewrite is in here. destruct (get k' (At Average k)) as [| |[| | | | |[]] q' o]; try easy.
      specialize (here r good). cbn beta in here. now rewrite (within_ok _ _ _ _ R in_) in here.
  - intros u l got read r i good need cover.
    destruct (next_ok p count_ count_pos micro_pos counts_equal well t (quiet f) f' _ step_ always) as [_ L]. now
      apply (L F u l got read r i).
  - intros x r i v which good cover found. destruct (group_ i cover) as [R G]. unfold rested in R. rewrite G in R.
    destruct (nth_error (slots (quiet f)) (group_of i)) as [k|] eqn:K1; [|easy].
    apply andb_true_iff in R. destruct R as [R average_].
    repeat (apply andb_true_iff in R; destruct R as [R ?]).
    pose proof (bt_fit _ _ _ _ _ _ always i cover (At x Disk)) as here.
    assert (is : nth_table (slots (quiet f)) (group_of i) = k) by (unfold nth_table; now apply nth_error_nth).
    rewrite is in here.
    destruct which as [-> | [-> | [-> some]]].
    + destruct (get k (At Weight Disk)) as [| |[[]|[]| | | |] q []]; try easy; specialize (here r good); cbn beta in
      here.
      * congruence.
      * destruct (sat q r i); [|now rewrite here in found]. rewrite here in found. now injection found as <-.
    + destruct (get k (At Moments Disk)) as [| |[[]|[]| | | |] q []]; try easy; specialize (here r good); cbn beta in
      here.
      * congruence.
      * destruct (sat q r i); [|now rewrite here in found]. rewrite here in found. now injection found as <-.
    + destruct (average_rests (group_at p i)) as [|q0 k0]; [easy|]. apply andb_true_iff in average_.
      destruct average_ as [_ average_].
      destruct (get k (At Average Disk)) as [| |[| | | | |[]] q []]; try easy; specialize (here r good); cbn beta in
        here.
      * congruence.
      * destruct (sat q r i); [|now rewrite here in found]. rewrite here in found. now injection found as <-.
  - intros back c carries. destruct (D back c carries) as [l L].
    pose proof (of_counts _ _ _ _ _ (bt_glob _ _ _ _ _ _ always) c true) as here. cbn [quiet counts] in here.
    rewrite L in here. split.
    + specialize (here (fun _ => 0) ltac:(intros a; apply size_pos)). replace (at_first l (fun _ => 0)) with true in
      here;
        [exact here|]. clear. induction l; easy.
    + intros r n good found. specialize (here r good). destruct (at_first l r); [congruence|].
      rewrite here in found; easy.
Qed.
End Sound.

Theorem check_sound : forall p, check p = true -> correct p.
Proof.
  intros p yes w counts_ micro_pos.
  assert (count_ : exists c : nat -> nat, (forall n, 0 < c n) /\ (equal p = true -> forall n t j r, n <= further p ->
    j < micro -> ok r -> length (mine p n t j r) = c n)).
  { destruct (equal p) eqn:same; [|exists (fun _ => 1); split; [lia|easy]].
    destruct (counts_ eq_refl) as [c all]. exists (fun n => if n <=? further p then c n else 1). split.
    - intros n. destruct (n <=? further p) eqn:small; [|lia]. apply Nat.leb_le in small. now apply all.
    - intros _ n t j r small here good. pose proof small as small'. apply Nat.leb_le in small'. rewrite small'.
      now apply all. }
  destruct count_ as [c [c_pos same]]. apply (accepted_correct p c c_pos micro_pos same); [|exact yes].
  unfold check in yes. now apply andb_true_iff in yes.
Qed.
