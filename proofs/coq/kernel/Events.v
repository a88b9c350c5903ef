(** Each verb on the parameters and gradients of one instance of one group: what is known behind it is true.

    What it backs: the kernel.

    Main statement: [event_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms Maxima.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Parts.
Open Scope nat_scope.

Section Events.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.

Notation val := (val p count_).
Notation holds := (holds p count_).
Notation fits := (fits p count_).
Notation glob := (glob p).

Lemma ready_ok (t j : nat) (now : moment) (g : nat) (c : content) (r : rank) (i : E) :
  ready p now g c = true -> when_ok now j -> group_of i = g ->
  val t j c r i = inr (applied p t (weights_at p t) i).
Proof.
  unfold ready, applied. intros all here <-. change (graded_at p (group_of i)) with (by_gradient p (group_of i)) in all.
  destruct (clips p && by_gradient p (group_of i)).
  - destruct c; easy.
  - now apply (whole_ok p count_ count_pos micro_pos counts_equal data_once t j now (group_of i)).
Qed.

Ltac here H r good := specialize (H r good); cbn beta in H.

Section One.
Variables (t j : nat) (start : bool) (now : moment) (f : facts) (m : memory) (g : nat) (k : table) (at_ : E ->
  bool) (i : E).
Hypothesis starts : start = true -> t = 0.
Hypothesis when_ : when_ok now j.
Hypothesis known : glob t j f m.
Hypothesis inside : at_ i = true.
Hypothesis group : group_of i = g.
Hypothesis fit_all : forall i', group_of i' = g -> layer_of i' = layer_of i -> fits t j k m i'.

Let fit : fits t j k m i := fit_all i group eq_refl.

Notation goal e := (fits t j (after_event p start now f g k e) (at_event p t j at_ e m) i).

Lemma broadcast_ok x along : goal (Broadcast x along).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H.
  destruct (get k x) as [| |c q o]; [easy| |].
  - intros r good. apply H. apply moved_ok; [intros; apply size_pos|easy].
  - destruct (_ && _) eqn:can; [|easy]. apply andb_true_iff in can. destruct can as [can firsts].
    apply andb_true_iff in can. destruct can as [rig same]. rewrite forallb_forall in firsts.
    intros r good. cbn beta. specialize (H (moved (fun _ => 0) along r)).
    rewrite sat_moved in H by (easy || (intros d on; specialize (firsts d on); now destruct d)).
    rewrite <- (rigid_ok p count_ t j c (fun _ => 0) along r i rig). apply H. apply moved_ok; [intros; apply
      size_pos|easy].
Qed.

Lemma gather_ok x y s along q : goal (Gather x y s along q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H.
  destruct (get k x) as [| |c q' o]; [easy|easy|].
  destruct (rigid c along && _ && _) eqn:can; [|easy]. apply andb_true_iff in can. destruct can as [can firsts].
  apply andb_true_iff in can. destruct can as [rig same]. rewrite forallb_forall in firsts.
  intros r good. cbn beta. specialize (H (moved (fun a => owner s r a i) along r)). rewrite sat_moved in H.
  - rewrite rigid_ok in H by easy. specialize (H ltac:(apply moved_ok; [intros; apply owner_ok|easy])).
    rewrite sat_union. destruct (sat q r i) eqn:here_; cbn [andb].
    + destruct (sat (off_axes along q') r i) eqn:there; [now rewrite H|].
      intros [_ in_]%andb_true_iff.
      now rewrite (within_ok _ _ _ _ in_ here_) in there.
    + intros [none _]%andb_true_iff.
      now apply (outside_none_ok p count_ t j (get k y) q (fun r => held m y r i) i r).
  - easy.
  - intros d on. specialize (firsts d on). destruct d as [s' a|]; [|easy]. cbn [owner_of] in firsts.
    now destruct (layout_eq s' s) as [->|].
Qed.

Lemma initial_ok y q : goal (Initial y q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit y) as H. destruct start; [|easy].
  intros r good. cbn beta. destruct (sat q r i) eqn:there.
  - cbn. now rewrite starts.
  - intros none. now apply (outside_none_ok p count_ t j (get k y) q (fun r => held m y r i) i r).
Qed.

Lemma begun_ok (y : slot) (c : content) (r : rank) : val t j (begun start y c) r i = val t j c r i.
Proof.
  unfold begun. destruct (what y); try easy. destruct c as [[]| | | | |]; try easy. destruct start; [|easy].
  cbn. now rewrite starts.
Qed.

Lemma copy_ok x y q : goal (Copy x y q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H. pose proof (fit y) as H'.
  destruct (get k x) as [| |c q' o]; [easy| |].
  - destruct (outside_none (get k y) q) eqn:none; [|easy]. intros r good. cbn beta. destruct (sat q r i) eqn:there.
    + now apply H.
    + now apply (outside_none_ok p count_ t j (get k y) q (fun r => held m y r i) i r).
  - intros r good. cbn beta. rewrite sat_union. here H r good. destruct (sat q r i) eqn:there; cbn [andb].
    + destruct (sat q' r i) eqn:there'; [now rewrite begun_ok|]. intros [_ either]%andb_true_iff.
      apply orb_true_iff in either. destruct either as [->|in_]; [now apply H|].
      now rewrite (within_ok _ _ _ _ in_ there) in there'.
    + intros both. apply andb_true_iff in both.
      now apply (outside_none_ok p count_ t j (get k y) q (fun r => held m y r i) i r).
Qed.

Lemma publish_ok x y q : goal (Publish x y q).
Proof.
  cbn [after_event at_event]. pose proof (fit x) as H. pose proof (fit y) as H'.
  destruct (get k x) as [| |c q' o].
  - now apply fits_write.
  - intros z. cbn [held write]. eapply holds_ext; [|exact (fit z)]. intros r good; cbn beta.
    destruct (slot_eqb z y && at_ i) eqn:there; [|easy]. rewrite (H r good). cbn [is_some]. rewrite andb_false_r.
    apply andb_true_iff in there. destruct there as [same _].
    destruct (slot_eq y z) as [->|apart]; [easy|]. now rewrite slot_eqb_apart in same.
  - apply fits_write; try easy. intros r good. cbn beta. rewrite sat_union. here H r good.
    pose proof (outside_none_ok p count_ t j (get k y) (union q q') (fun r => held m y r i) i r) as none.
    rewrite sat_union in none. destruct (sat q r i) eqn:there; cbn [andb] in *.
    + destruct (sat q' r i) eqn:there'; [now rewrite H|]. intros [out either]%andb_true_iff.
      apply orb_true_iff in either. destruct either as [->|in_].
      * rewrite H by easy. cbn. now apply none.
      * now rewrite (within_ok _ _ _ _ in_ there) in there'.
    + intros both. apply andb_true_iff in both. now apply none.
Qed.

Lemma keep_ok x s along : goal (Keep x s along).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H.
  destruct (get k x) as [| |c q o]; [easy| |]; intros r good; here H r good; cbn beta.
  - destruct (forallb _ along); easy.
  - rewrite sat_union, sat_owners. destruct (forallb _ along) eqn:owner; rewrite ?andb_true_r, ?andb_false_r; [|easy].
    destruct (sat q r i) eqn:there; [easy|]. intros either. apply orb_true_iff in either. destruct either as
      [->|in_]; [auto|].
    rewrite <- sat_owners in owner. now rewrite (within_ok _ _ _ _ in_ owner) in there.
Qed.

Lemma free_ok x q : goal (Free x q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H.
  destruct (get k x) as [| |c q' o].
  - destruct q; easy.
  - intros r good; here H r good. now destruct (sat q r i).
  - destruct q; easy.
Qed.

Lemma zero_ok y q : goal (Zero y q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit y) as H. intros r good. cbn beta.
  destruct (sat q r i) eqn:there; [easy|]. intros none.
  now apply (outside_none_ok p count_ t j (get k y) q (fun r => held m y r i) i r).
Qed.

Lemma accumulate_ok x y big q : goal (Accumulate x y big q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H. pose proof (fit y) as H'.
  destruct (get k y) as [| |c q2 o]; [easy| |].
  - destruct (get k x); intros r good; here H' r good; cbn beta; rewrite H'; now destruct (sat q r i).
  - destruct (get k x) as [| |d q1 o1]; [easy|easy|]. destruct (added big c d) as [e|] eqn:sum; [|easy].
    intros r good. here H r good. here H' r good. cbn beta. rewrite !sat_union.
    destruct (sat q2 r i) eqn:in2; cbn [andb].
    + destruct (sat q r i) eqn:inq; cbn [andb].
      * destruct (sat q1 r i) eqn:in1.
        -- destruct (added_ok p count_ t j i big c d e r sum) as [a [b [A [B C]]]]. rewrite H, H', A, B, C. reflexivity.
        -- intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in2)
          in in1.
      * intros [[_ in_]%andb_true_iff _]%andb_true_iff.
        now rewrite (within_ok _ _ _ _ in_ in2) in inq.
    + intros [[only _]%andb_true_iff _]%andb_true_iff.
      rewrite (H' only). now destruct (sat q r i).
Qed.

Lemma scale_ok y r0 q : goal (Scale y r0 q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit y) as H.
  destruct (get k y) as [| |c q' o]; [easy| |].
  - intros r good; here H r good; cbn beta; rewrite H. now destruct (sat q r i).
  - destruct c as [| | |s| |]; try easy. destruct (said p now f (pt s) r0) as [k'|] eqn:is; [|easy].
    destruct (scaled k' s) as [s'|] eqn:new; [|easy].
    intros r good; here H r good; cbn beta. rewrite sat_union.
    destruct (sat q r i) eqn:inq; destruct (sat q' r i) eqn:in'; cbn [andb].
    + destruct (scaled_ok p count_ count_pos micro_pos t j i s s' k' r (ratio_of p m t j r r0) new) as [a [A B]].
      { intros x inside_. symmetry. now apply (said_ok p count_ count_pos micro_pos counts_equal data_once t j now f m
        when_ known (pt s)). }
      now rewrite H, A, B.
    + intros all. apply andb_true_iff in all. now rewrite H.
    + intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in') in inq.
    + intros all. apply andb_true_iff in all. now rewrite H.
Qed.

Lemma reduce_ok y along by_ to r0 : goal (Reduce y along by_ to r0).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit y) as H.
  destruct (get k y) as [| |c q o]; [easy| |].
  - intros r good. cbn beta. destruct (match to with Some s => _ | None => true end); [|easy].
    rewrite together_none; [easy|apply peers_not_empty|]. intros r' peer. now rewrite H by (eapply peers_ok;
      eassumption).
  - destruct c as [| | |s| |]; try easy. destruct (on_axes along q) eqn:out; [|easy].
    destruct (said p now f (pt s) r0) as [k'|] eqn:is; [|easy].
    destruct ((if rigid (Sums s) along then put_alike else put_together) by_ along k' s) as [s'|] eqn:new; [|easy].
    destruct (still along q) eqn:same_; [|easy].
    intros r good. cbn beta. rewrite sat_union.
    assert (owned : sat match to with Some s => owners s along | None => [] end r i =
      match to with Some s => forallb (fun a => r a =? owner s r a i) along | None => true end).
    { destruct to; [apply sat_owners|easy]. }
    rewrite owned. destruct (match to with Some s => _ | None => true end) eqn:mine;
      rewrite ?andb_true_r, ?andb_false_r.
    + assert (same : forall r', In r' (peers along r) -> sat q r' i = sat q r i) by (intros; now apply (sat_peer
        along)).
      destruct (sat q r i) eqn:there.
      * rewrite (join_ok p count_ count_pos micro_pos counts_equal data_once t j now f m i when_ known by_ along r0
          k' s s' r is new good).
        rewrite (together_all _ _ _ (fun r' => as_number (val t j (Sums s) r' i) *
          match by_ with Premultiplied => ratio_of p m t j r' r0 | _ => 1 end)%ring).
        -- now destruct by_.
        -- intros r' peer. assert (good' : ok r') by (eapply peers_ok; eassumption).
           specialize (H r' good'). cbn beta in H. rewrite same in H by easy. rewrite H.
           cbn [option_map as_number Facts.val]. destruct by_; apply f_equal; ring.
      * intros either.
        assert (none : forall r', In r' (peers along r) -> held m y r' i = None).
        { intros r' peer. assert (good' : ok r') by (eapply peers_ok; eassumption). specialize (H r' good'). cbn
          beta in H.
          rewrite same in H by easy. apply H. apply orb_true_iff in either. destruct either as [->|in_]; [easy|].
          now rewrite (within_ok _ _ _ _ in_ owned) in there. }
        rewrite together_none; [easy|apply peers_not_empty|]. intros r' peer. now rewrite none.
    + intros _. reflexivity.
Qed.

Lemma clip_ok y q : goal (Clip y q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit y) as H.
  destruct (get k y) as [| |c q' o]; [easy| |].
  - intros r good; here H r good; cbn beta; rewrite H. now destruct (sat q r i).
  - destruct (normed p f && _) eqn:can; [|easy]. apply andb_true_iff in can. destruct can as [all right].
    intros r good; here H r good; cbn beta. rewrite sat_union.
    destruct (sat q r i) eqn:inq; destruct (sat q' r i) eqn:in'; cbn [andb].
    + rewrite H, (whole_ok p count_ count_pos micro_pos counts_equal data_once t j now g) by easy.
    now rewrite (total_ok p t j f).
    + intros both. apply andb_true_iff in both. now rewrite H.
    + intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in')
      in inq.
    + intros both. apply andb_true_iff in both. now rewrite H.
Qed.

Lemma read_at (v : value) (q : place) (r : rank) (i' : E) : local_to p v g q = true -> In i' (reading p v i) ->
  sat q r i = true -> group_of i' = g /\ layer_of i' = layer_of i /\ sat q r i' = true.
Proof.
  intros loc [<-|mate] there; [easy|]. destruct (wholly p v (group_of i)) eqn:whole_; [|easy].
  unfold mates in mate. apply filter_In in mate. destruct mate as [_ mate].
  apply andb_true_iff in mate. destruct mate as [mate _]. apply andb_true_iff in mate. destruct mate as [mg ml].
  apply Nat.eqb_eq in mg, ml. split; [congruence|]. split; [easy|].
  unfold local_to in loc. rewrite group in whole_. change (wholly p v g) with (whole_of p v g) in whole_.
  rewrite whole_ in loc. cbn [negb orb] in loc. unfold anywhere in loc. rewrite forallb_forall in loc.
  rewrite sat_in in there. apply sat_in. intros c inside_. specialize (loc c inside_). specialize (there c inside_).
  destruct c; easy.
Qed.

Lemma update_ok tr n q : goal (Update tr n q).
Proof.
  cbn [after_event at_event]. set (x := At Master tr). set (o := At Moments tr).
  pose proof (fit x) as Hx. pose proof (fit o) as Ho. pose proof (fit (At GradSum tr)) as Hg.
  assert (nothing : forall h h' f f', holds t j h (fun r => f r i) i -> holds t j h' (fun r => f' r i) i ->
     fits t j (set (set k x h) o h') (write (write m at_ x f) at_ o f') i).
  { intros. now repeat apply fits_write. }
  destruct (get k x) as [| |[[|]| | | | |] q1 o1] eqn:kx; try (apply nothing; easy).
  destruct (get k o) as [| |[|[|]| | | |] q2 o2] eqn:ko; try (apply nothing; easy).
  destruct (get k (At GradSum tr)) as [| |c q3 o3] eqn:kg; try (apply nothing; easy).
  destruct (_ && _) eqn:can; [|apply nothing; easy].
  apply andb_true_iff in can. destruct can as [can in3]. apply andb_true_iff in can. destruct can as [can in2].
  apply andb_true_iff in can. destruct can as [can whole_]. destruct (ratio_eq n one) as [->|]; [clear whole_|easy].
  apply andb_true_iff in can. destruct can as [can rdy]. apply andb_true_iff in can. destruct can as [can cur].
  apply andb_true_iff in can. destruct can as [can l3]. apply andb_true_iff in can. destruct can as [can l2].
  apply andb_true_iff in can. destruct can as [can l1]. apply andb_true_iff in can. destruct can as [sure learns].
  change (trained p g) with (trains p g) in learns.
  assert (by_one : forall r, ratio_of p m t j r one = 1%ring) by (intros; unfold ratio_of; cbn; ring).
  set (q' := union q q1) in *.
  assert (both : forall r, sat q' r i = sat q r i && sat q1 r i) by (intros; apply sat_union).
  assert (right : forall r, ok r -> sat q' r i = true ->
    held m x r i = Some (inl (fst (theta p t i))) /\
    all_some (map (fun e => a_state (held m x r e)) (reading p Master i)) =
      Some (map (fun e => fst (theta p t e)) (reading p Master i)) /\
    all_some (map (fun e => a_state (held m o r e)) (reading p Moments i)) =
      Some (map (fun e => snd (theta p t e)) (reading p Moments i)) /\
    all_some (map (fun e => a_number (held m (At GradSum tr) r e)) (reading p GradSum i)) =
      Some (map (applied p t (weights_at p t)) (reading p GradSum i)) /\ count m Step false r = Some (updates p t)).
  { intros r good there.
    assert (in1 : sat q1 r i = true) by (rewrite both in there; now apply andb_true_iff in there).
    split; [|split; [|split; [|split]]].
    - here Hx r good. now rewrite in1 in Hx.
    - apply all_some_map. intros e inside_. destruct (read_at Master q1 r e l1 inside_ in1) as [ge [le se]].
      pose proof (fit_all e ge le x) as H. rewrite kx in H. specialize (H r good). cbn beta in H. rewrite se in H.
      now rewrite H.
    - apply all_some_map. intros e inside_.
      destruct (read_at Moments q2 r e l2 inside_ (within_ok _ _ _ _ in2 there)) as [ge [le se]].
      pose proof (fit_all e ge le o) as H. rewrite ko in H. specialize (H r good). cbn beta in H. rewrite se in H.
      now rewrite H.
    - apply all_some_map. intros e inside_.
      destruct (read_at GradSum q3 r e l3 inside_ (within_ok _ _ _ _ in3 there)) as [ge [le se]].
      pose proof (fit_all e ge le (At GradSum tr)) as H. rewrite kg in H. specialize (H r good). cbn beta in H.
      rewrite se in H. rewrite H. now rewrite (ready_ok t j now g c r e rdy when_ ge).
    - apply (current_ok p t j Step f m r known cur good). }
  apply nothing; intros r good; cbn beta; specialize (both r); rewrite both; rewrite (decided_ok p t j f m r known sure
    good);
    here Hx r good; here Ho r good; pose proof (theta_next p t i) as then_; destruct (left_out p t _) eqn:left_;
    cbn [negb andb].
  - destruct (sat q r i) eqn:inq; destruct (sat q1 r i) eqn:in1; cbn [andb].
    + rewrite Hx. cbn [Facts.val]. now rewrite then_.
    + intros all. apply andb_true_iff in all. now apply Hx.
    + intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in1) in inq.
    + intros all. apply andb_true_iff in all. now apply Hx.
  - rewrite group, learns in then_. cbn [negb] in then_.
    destruct (sat q r i) eqn:inq; destruct (sat q1 r i) eqn:in1; cbn [andb].
    + destruct (right r good) as [A [B [C [D D']]]]; [now rewrite both|]. rewrite A, B, C, D, D', by_one; cbn [is_some].
      cbn [fst snd Facts.val]. rewrite then_. unfold weights_at. now destruct (update 1%ring (updates p t) i _ _ _).
    + intros [only _]%andb_true_iff. now rewrite (Hx only).
    + intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in1) in inq.
    + intros all. apply andb_true_iff in all. now apply Hx.
  - destruct (sat q r i && sat q1 r i) eqn:in'.
    + rewrite (within_ok _ _ _ _ in2 both) in Ho. rewrite Ho. cbn [Facts.val]. now rewrite then_.
    + intros [[only _]%andb_true_iff in_]%andb_true_iff.
      destruct (sat q2 r i) eqn:there2; [|now apply Ho]. apply (within_ok _ _ _ _ in_) in there2. rewrite both in
        there2.
      congruence.
  - rewrite group, learns in then_. cbn [negb] in then_.
    destruct (sat q r i && sat q1 r i) eqn:in'.
    + pose proof both as in''. apply andb_true_iff in in'. destruct in' as [inq in1].
      destruct (right r good in'') as [A [B [C [D D']]]]. rewrite inq, A, B, C, D, D', by_one; cbn [is_some andb].
      cbn [fst snd Facts.val]. rewrite then_. unfold weights_at. now destruct (update 1%ring (updates p t) i _ _ _).
    + intros [[only only1]%andb_true_iff in_]%andb_true_iff.
      assert (none2 : sat q2 r i = false).
      { destruct (sat q2 r i) eqn:there2; [|easy]. apply (within_ok _ _ _ _ in_) in there2. rewrite both in there2.
        congruence. }
      rewrite none2 in Ho. destruct (sat q r i); [|now apply Ho]. cbn [andb] in *. rewrite in' in Hx. rewrite (Hx
        only1).
      now apply Ho.
Qed.

Lemma take_in_ok x y q : goal (TakeIn x y q).
Proof.
  cbn [after_event at_event]. apply fits_write; try easy. pose proof (fit x) as H. pose proof (fit y) as H'.
  destruct (get k y) as [| |c q2 o]; [easy| |].
  - destruct (get k x); intros r good; here H' r good; cbn beta; rewrite H'; now destruct (sat q r i).
  - destruct c as [| | | | |[|]]; try easy. destruct (get k x) as [| |[[|]| | | | |] q1 o1]; try easy.
    intros r good. here H r good. here H' r good. cbn beta. rewrite !sat_union.
    destruct (sat q2 r i) eqn:in2; cbn [andb].
    + destruct (sat q r i) eqn:inq; cbn [andb].
      * destruct (sat q1 r i) eqn:in1.
        -- rewrite H, H'. reflexivity.
        -- intros [_ in_]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in2)
          in in1.
      * intros [[_ in_]%andb_true_iff _]%andb_true_iff. now rewrite (within_ok _ _ _ _ in_ in2) in inq.
    + intros [[only _]%andb_true_iff _]%andb_true_iff. rewrite (H' only). now destruct (sat q r i).
Qed.

Theorem event_ok e : goal e.
Proof.
  destruct e; [apply broadcast_ok|apply gather_ok|apply initial_ok|apply copy_ok|apply publish_ok|apply keep_ok|
    apply free_ok|apply zero_ok|apply accumulate_ok|apply scale_ok|apply reduce_ok|apply clip_ok|apply update_ok|
    apply take_in_ok].
Qed.
End One.
End Events.
