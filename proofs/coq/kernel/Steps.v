(** The loop over microbatches, steps, saves and resumes: what is known behind them is true.

    What it backs: the kernel.

    Main statement: [boundary_ok]: what holds between steps goes on to hold, wherever the run stops and is resumed. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra.
From Placealg.kernel Require Import Facts.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units.
From Placealg.kernel Require Import Loops.
From Placealg.kernel Require Import Tables.
Open Scope nat_scope.

Section Sound.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat) (count_pos : 0 < count_) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall t j r, j < micro -> ok r -> length (local p t j r) = count_.
Hypothesis well : well_formed p = true.

Notation fits := (fits p count_).
Notation holds := (holds p count_).
Notation glob := (glob p).
Notation between := (between p count_).

Lemma well_parts : once (data p) = true /\ forallb (good_group p) (groups p) = true /\
  forallb (good_block p) (init p) = true /\ forallb (good_block p) (prepare p) = true /\
  forallb (good_block p) (inside p) = true /\ forallb (good_block p) (outside p) = true /\
  forallb (good_block p) (save p) = true /\ forallb (good_block p) (resume p) = true.
Proof.
  pose proof well as all. unfold well_formed in all. rewrite !forallb_app in all.
  repeat (apply andb_true_iff in all; destruct all as [all ?]); repeat match goal with
    H : _ && _ = true |- _ => apply andb_true_iff in H; destruct H end. auto 10.
Qed.

Lemma data_once a l l' : data p = l ++ a :: l' -> mem a l' = false.
Proof.
  destruct well_parts as [once_ _]. revert once_. generalize (data p) as d. intros d; revert l.
  induction d as [|b d IH]; intros l once_ e; [now destruct l|]. cbn [once] in once_.
  apply andb_true_iff in once_. destruct once_ as [first rest]. destruct l as [|c l]; injection e as -> ->.
  - now apply negb_true_iff.
  - now apply (IH l).
Qed.

Lemma deep u g : used p u g = true -> depth p u = depth p (hd 0 (sites_of p g)).
Proof.
  destruct well_parts as [_ [groups_ _]]. unfold used, sites_of. destruct (nth_error (groups p) g) as [d|]
    eqn:found; [|easy].
  rewrite forallb_forall in groups_. specialize (groups_ d (nth_error_In _ _ found)). unfold good_group in groups_.
  apply andb_true_iff in groups_. destruct groups_ as [good _]. destruct (sites d) as [|a [|b l]]; [easy| |].
  - cbn. rewrite orb_false_r. intros e. apply Nat.eqb_eq in e. now subst.
  - intros use. apply existsb_exists in use. destruct use as [v [in_ e]]. apply Nat.eqb_eq in e; subst v.
    rewrite forallb_forall in good.
    assert (flat : forall v, In v (a :: b :: l) -> depth p v = 1).
    { intros v iv. specialize (good v iv). apply andb_true_iff in good. destruct good as [_ no].
      unfold depth. apply negb_true_iff in no. now rewrite no. }
    rewrite (flat u in_). cbn [hd]. now rewrite (flat a) by now left.
Qed.

Notation blocks := (blocks_ok p count_ count_pos micro_pos counts_equal data_once deep).

(** ** Facts, compared *)

Lemma entails_ok (t j : nat) (h h' : know) (f : rank -> option (T + K)) (i : E) :
  entails h h' = true -> holds t j h f i -> holds t j h' f i.
Proof.
  destruct h as [| |c q o], h' as [| |c' q' o']; cbn [entails]; try easy. intros all here r good.
  apply andb_true_iff in all. destruct all as [all only]. apply andb_true_iff in all. destruct all as [same in_].
  destruct (content_eq c c') as [<-|]; [|easy]. specialize (here r good). cbn beta in here.
  destruct (sat q' r i) eqn:there'.
  - now rewrite (within_ok _ _ _ _ in_ there') in here.
  - intros ->. cbn [negb orb] in only. apply andb_true_iff in only. destruct only as [-> in_'].
    destruct (sat q r i) eqn:there; [|now apply here].
    now rewrite (within_ok _ _ _ _ in_' there) in there'.
Qed.

Lemma entails_table_ok (t j : nat) (k k' : table) (m : memory) (i : E) :
  entails_table k k' = true -> fits t j k m i -> fits t j k' m i.
Proof.
  unfold entails_table. rewrite forallb_forall. intros all fit x.
  unfold get at 1. destruct (find _ k') as [[y h]|] eqn:found; [|easy].
  apply find_some in found. destruct found as [in_ same]. cbn [fst] in same. destruct (slot_eq y x) as [->|]; [|easy].
  specialize (all _ in_). cbn [fst snd] in all. eapply entails_ok; [exact all|apply fit].
Qed.

Lemma counts_entail_ok (v : nat -> nat) (t : nat) (k l : counters) c disk f : counts_entail k l = true ->
  ticking v t (told k c disk) f -> ticking v t (told l c disk) f.
Proof.
  unfold counts_entail. intros all. repeat (apply andb_true_iff in all; destruct all as [all ?]).
  destruct c, disk; cbn [told]; now apply count_entail_ok.
Qed.

Lemma quiet_between (t j : nat) (f : facts) (m : memory) : between t j f m -> between t j (quiet f) m.
Proof.
  intros [a b c d e1 e2 e3 e4]. split; cbn; try easy; try (now destruct a; split).
  - now rewrite map_length.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts f) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
Qed.

Lemma entails_facts_ok (t j : nat) (f g : facts) (m : memory) :
  length (kepts g) = length (repeated p) -> entails_facts f (quiet g) = true -> between t j f m -> between t j
    (quiet g) m.
Proof.
  intros len all known. apply quiet_between in known. destruct known as [a b c d e1 e2 e3 e4].
  unfold entails_facts in all. cbn [quiet slots norms counts fine] in all.
  repeat (apply andb_true_iff in all; destruct all as [all ?]). cbn [quiet slots norms counts fine] in *.
  pose proof (all2_length _ _ _ all) as len'.
  split; cbn [quiet slots kepts acts cots factor norms counts fine]; try easy.
  - destruct a as [A B C Y Z]. cbn [quiet norms counts] in *. split; cbn [quiet norms counts].
    + intros k disk. eapply counts_entail_ok; [eassumption|apply A].
    + pose proof (all2_length _ _ _ H1). congruence.
    + intros n q found. apply C. assert (small : n < length (norms g)) by (apply nth_error_Some; congruence).
      pose proof (all2_nth _ _ _ n None H1 small) as one. apply nth_error_nth with (d := None) in found as value.
      rewrite value in one. destruct (nth n (norms f) None) as [q0|] eqn:old; [|easy]. cbn in one.
      destruct (place_eq q0 q) as [->|]; [|easy]. pose proof (all2_length _ _ _ H1).
      rewrite <- old. apply nth_error_nth'. lia.
    + intros un found. apply Y. eapply tally_entail_ok; eassumption.
    + intros n q found. apply Z. eapply looked_entail_ok; eassumption.
  - congruence.
  - now rewrite map_length.
  - intros i cover. eapply entails_table_ok; [|now apply d]. apply all2_nth; [easy|]. destruct cover. lia.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts g) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
Qed.

Lemma fits_map (t j t' j' : nat) (F : slot -> know -> know) (k : table) (m m' : memory) (i : E) :
  (forall x h, holds t j h (fun r => held m x r i) i -> holds t' j' (F x h) (fun r => held m' x r i) i) ->
  fits t j k m i -> fits t' j' (map (fun e => (fst e, F (fst e) (snd e))) k) m' i.
Proof.
  intros step fit x. destruct (get_map F k x) as [-> | ->]; [easy|]. apply step, fit.
Qed.

Lemma nth_map_table (F : table -> table) (l : list table) (g : nat) : F [] = [] -> nth_table (map F l) g = F
  (nth_table l g).
Proof. intros nil. unfold nth_table. rewrite <- nil at 1. apply map_nth. Qed.

(** ** Microbatches *)

Lemma pass_ok (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : holds t j h f i -> holds t (S j) (pass
  h) f i.
Proof.
  destruct h as [| |c q o]; try easy. destruct c as [n|n| |s| |n]; try easy. cbn [pass].
  destruct (pt s) eqn:e; try easy.
  intros here r good. specialize (here r good). cbn beta in here. destruct (sat q r i); [|exact here].
  rewrite here. cbn [val co un pt from]. now rewrite e.
Qed.

Lemma passed (t j : nat) (f : facts) (m : memory) : between t j f m -> between t (S j) (quiet (map_slots pass f)) m.
Proof.
  intros [a b c d e1 e2 e3 e4]. apply quiet_between. split; cbn [map_slots slots kepts acts cots factor norms
    counts fine]; try easy.
  - now destruct a; split.
  - now rewrite map_length.
  - intros i cover. rewrite nth_map_table by easy. eapply (fits_map t j t (S j) (fun _ => pass)); [|now apply d].
    intros x h. apply pass_ok.
Qed.

Lemma entered_ok (t j : nat) (f : facts) (m : memory) : between t j f m -> between t j (entered f) (enter m).
Proof.
  intros [a b c d e1 e2 e3 e4]. split; cbn [entered slots kepts acts cots factor norms counts fine]; try easy.
  - destruct a as [A B C Y Z]. split; cbn; easy.
  - now rewrite map_length.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts f) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
  - intros n [= <-] r x _. reflexivity.
Qed.

Lemma begins_ok (t : nat) (f g : facts) (m : memory) : length (slots g) = length (groups p) ->
  between t 0 f m -> between t 0 (begins f g) m.
Proof.
  intros len [a b c d e1 e2 e3 e4]. split; cbn [begins slots kepts acts cots factor norms counts fine]; try easy.
  - now destruct a; split.
  - now rewrite length_zip by congruence.
  - intros i cover x. destruct (nth_table_zip begin_table (slots f) (slots g) (group_of i)) as [-> | ->]; [easy|].
    pose proof (d i cover x) as here. unfold begin_table.
    destruct (get_map (fun y h => begin_sums h (get (nth_table (slots g) (group_of i)) y)) (nth_table (slots f)
      (group_of i)) x)
      as [-> | ->]; [easy|].
    destruct (get (nth_table (slots f) (group_of i)) x) as [| |[| | | | |] q o]; try easy.
    destruct (get (nth_table (slots g) (group_of i)) x) as [| |[| | |s| |] q' o']; try easy. cbn [begin_sums].
    destruct (pt s) eqn:e; try easy. intros r good. specialize (here r good). cbn beta in here.
    destruct (sat q r i); [|exact here]. rewrite here. cbn [val]. rewrite e. cbn. do 2 f_equal. unfold partial_sum;
      cbn. ring.
Qed.

Definition log_kept (t : nat) (f f' : facts) (m m' : memory) : Prop :=
  fine f' = true -> fine f = true /\ (log_ok p t m -> log_ok p t m').

Lemma entails_fine (f g : facts) : entails_facts f g = true -> fine g = true -> fine f = true.
Proof.
  unfold entails_facts. intros all fine_. apply andb_true_iff in all. destruct all as [_ last_]. now rewrite fine_
    in last_.
Qed.

Lemma sized_ok (f : facts) : sized p f = true -> length (slots f) = length (groups p) /\ length (kepts f) = length
  (repeated p).
Proof. unfold sized. intros all. apply andb_true_iff in all. destruct all. now split; apply Nat.eqb_eq. Qed.

Lemma loop_ok (t : nat) (f g : facts) (m : memory) : after_loop p f = Some g -> between t 0 f m ->
  between t micro g (fold_left (fun m j => run_blocks p t j (inside p) (enter m)) (seq 0 micro) m) /\
  log_kept t f g m (fold_left (fun m j => run_blocks p t j (inside p) (enter m)) (seq 0 micro) m).
Proof.
  unfold after_loop. destruct (_ && _) eqn:can; [|easy]. intros [= <-] known.
  assert (quiet_h : exists h, invariant p f = quiet h) by (eexists; reflexivity). destruct quiet_h as [h is].
  rewrite is in *. clear is. apply andb_true_iff in can. destruct can as [can next_].
  apply andb_true_iff in can. destruct can as [size_ first].
  destruct (sized_ok _ size_) as [len lenu]. assert (lenu' : length (kepts h) = length (repeated p)).
  { rewrite <- lenu. cbn. now rewrite map_length. }
  assert (all : forall n, n <= micro ->
    between t n (quiet h) (fold_left (fun m j => run_blocks p t j (inside p) (enter m)) (seq 0 n) m) /\
    log_kept t f (quiet h) m (fold_left (fun m j => run_blocks p t j (inside p) (enter m)) (seq 0 n) m)).
  { induction n as [|n IH]; intros low.
    - cbn [seq fold_left]. split.
      + eapply entails_facts_ok; [easy|exact first|]. now apply begins_ok.
      + intros fine_. split; [|easy]. apply (entails_fine _ _ first) in fine_. exact fine_.
    - destruct (IH ltac:(lia)) as [B L]. rewrite seq_S, fold_left_app. cbn [fold_left Nat.add].
      set (m1 := fold_left _ (seq 0 n) m) in *.
      destruct well_parts as [_ [_ [_ [_ [good _]]]]].
      destruct (blocks t n false Amid ltac:(easy) ltac:(cbn; lia) _ _ _ good (entered_ok _ _ _ _ B)) as [B' L'].
      split.
      + eapply entails_facts_ok; [easy|exact next_|]. now apply passed.
      + intros fine_. pose proof (entails_fine _ _ next_ fine_) as fine'. destruct (L fine_) as [F G].
        split; [easy|]. intros log. apply L'; [exact fine'|]. specialize (G log).
        intros u l got read. now apply G. }
  now apply all.
Qed.

(** ** Steps *)

Lemma step_ok (t : nat) (f g : facts) (m : memory) : after_step p f = Some g -> between t 0 f m ->
  between t micro g (step p t m) /\ (fine g = true -> log_ok p t (step p t m)).
Proof.
  unfold after_step, step. intros found known.
  set (m0 := Memory (held m) (partial m) (count m) (act m) (cot m) (scale m) (junk_tally (clock m)) (flag m) (kept m)
    []
    (clock m)).
  assert (B0 : between t 0 (refreshed f) m0).
  { destruct known as [a b c d e1 e2 e3 e4]. split; cbn; try easy. now destruct a; split. }
  destruct well_parts as [_ [_ [_ [prep [_ [out _]]]]]].
  destruct (blocks t 0 false Early ltac:(easy) I _ _ _ prep B0) as [B1 L1].
  destruct (after_loop p _) as [h|] eqn:loop; [|easy]. injection found as <-.
  destruct (loop_ok t _ h _ loop B1) as [B2 L2].
  destruct (blocks t micro false Late ltac:(easy) eq_refl _ _ _ out B2) as [B3 L3].
  split; [now apply quiet_between|]. cbn [quiet fine]. intros fine_.
  destruct (L3 fine_) as [F3 G3]. destruct (L2 F3) as [F2 G2]. destruct (L1 F2) as [F1 G1].
  apply G3, G2, G1. now intros u l got read.
Qed.

Lemma turn_ok (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : holds t j h f i -> holds (S t) 0 (turn
  h) f i.
Proof. destruct h as [| |[[]|[]| | | |[]] q o]; try easy. Qed.

Lemma stay_ok (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : trains p (group_of i) = false ->
  holds t j h f i -> holds (S t) 0 (stay h) f i.
Proof.
  intros still. destruct h as [| |[[]|[]| | | |[]] q o]; try easy. intros here r good. specialize (here r good).
  cbn beta in *.
  destruct (sat q r i); [|exact here]. rewrite here. cbn [val]. rewrite theta_next, still.
  now destruct (left_out p t _).
Qed.

Lemma turned_ok (t j : nat) (f : facts) (m : memory) : between t j f m -> between (S t) 0 (turned p f) m.
Proof.
  intros [a b c d e1 e2 e3 e4]. split; cbn [turned slots kepts acts cots factor norms counts fine]; try
    easy.
  - destruct a as [A B C Y Z]. split; cbn [turned norms counts].
    + intros k disk. pose proof (A k disk) as here.
      assert (told (on_counts (fun n _ => match n with Ticks true l o => Ticks false l o | Unheld => Unheld
        | _ => Unsaid end) (counts f) (counts f)) k disk = match told (counts f) k disk with
        | Ticks true l o => Ticks false l o | Unheld => Unheld | _ => Unsaid end) as -> by now destruct k, disk.
      destruct (told (counts f) k disk) as [| |[] l o]; try easy.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (norms f) g); easy.
    + easy.
    + intros n q found. exact (no_looks _ _ _ found _).
  - rewrite length_zip; [easy|]. easy.
  - now rewrite map_length.
  - intros i cover. destruct (nth_table_zipped turn_group (groups p) (slots f) (group_of i)) as [-> | [g [found ->]]];
      [easy|]. unfold turn_group.
    eapply (fits_map t j (S t) 0 (fun _ h => if frozen g then stay h else turn h)); [|now apply d].
    intros x h. destruct (frozen g) eqn:still; [|apply turn_ok]. apply stay_ok.
    unfold trains. rewrite found. now rewrite still.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts f) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
Qed.

Lemma next_ok (t : nat) (f g : facts) (m : memory) : next p f = Some g -> between t 0 f m ->
  between (S t) 0 g (step p t m) /\ (fine g = true -> log_ok p t (step p t m)).
Proof.
  unfold next. destruct (after_step p f) as [h|] eqn:found; [|easy]. intros [= <-] known.
  destruct (step_ok t f h m found known) as [B L]. split; [|exact L]. eapply turned_ok; exact B.
Qed.

(** ** Saves and resumes *)

Lemma save_ok (t : nat) (f : facts) (m : memory) : between t 0 f m -> between t 0 (after_save p f) (saved p t m).
Proof.
  intros [a b c d e1 e2 e3 e4]. unfold after_save, saved. destruct well_parts as [_ [_ [_ [_ [_ [_ [good _]]]]]]].
  apply quiet_between. apply (blocks t 0 false Early ltac:(easy) I); [easy|].
  split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
  - destruct a as [A B C Y Z]. split; cbn [norms counts count partial]; try easy.
    + intros k []; [now destruct k|]. pose proof (A k false) as here. now destruct k.
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - intros i cover. rewrite nth_map_table by easy.
    eapply (fits_map t 0 t 0 (fun x h => if on_disk x then Absent else h)); [|now apply d].
    intros [x []] h here; cbn [on_disk on held]; easy.
Qed.

Lemma off_ok (t : nat) (f : facts) (m : memory) : between t 0 f m -> between t 0 (after_off f) (off m).
Proof.
  intros [a b c d e1 e2 e3 e4]. split; cbn [after_off slots kepts acts cots factor norms counts fine]; try easy.
  - destruct a as [A B C Y Z]. split; cbn [after_off off norms counts count partial].
    + intros k []; [|now destruct k]. pose proof (A k true) as here. now destruct k.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (norms f) g); easy.
    + easy.
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - intros i cover. rewrite nth_map_table by easy.
    eapply (fits_map t 0 t 0 (fun x h => if on_disk x then h else if slot_eq x (At Weight Device) then Any else
      Absent));
      [|now apply d].
    intros x h here. destruct (slot_eq x (At Weight Device)) as [->|apart_]; [easy|].
    destruct x as [[] []]; cbn [on_disk on held off]; easy.
Qed.

Lemma resume_ok (t : nat) (f : facts) (m : memory) : between t 0 f m ->
  between t 0 (after_resume p f) (run_blocks p t 0 (resume p) (off m)).
Proof.
  intros known. unfold after_resume. destruct well_parts as [_ [_ [_ [_ [_ [_ [_ good]]]]]]].
  apply quiet_between. apply (blocks t 0 false Early ltac:(easy) I); [easy|]. now apply off_ok.
Qed.

Lemma boundary_ok (t : nat) (f g : facts) (m : memory) (stop : bool) : (resumes p = false -> stop = false) ->
  length (kepts g) = length (repeated p) ->
  holds_between p f (quiet g) = true -> between t 0 f m ->
  between t 0 (quiet g) (if stop then run_blocks p t 0 (resume p) (off (saved p t m)) else saved p t m).
Proof.
  unfold holds_between. intros never len both known. apply andb_true_iff in both. destruct both as [stay back].
  pose proof (save_ok t f m known) as S1. destruct stop.
  - destruct (resumes p); [|now specialize (never eq_refl)].
    eapply entails_facts_ok; [easy|exact back|]. now apply resume_ok.
  - eapply entails_facts_ok; [easy|exact stay|easy].
Qed.

Lemma power_on_ok : between 0 0 (at_power_on p) (power_on p).
Proof.
  split; cbn [at_power_on slots kepts acts cots factor norms counts fine]; try easy.
  - split; cbn [at_power_on norms counts].
    + intros k disk. now destruct k, disk.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (groups p) g); easy.
    + easy.
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - now rewrite map_length.
  - intros i [small _] x. rewrite nth_table_const by easy.
    induction (named p) as [|y l IH]; [easy|]. cbn [map]. rewrite get_cons.
    destruct (slot_eq y x) as [->|]; [|exact IH]. destruct (slot_eq x (At Weight Device)) as [->|apart_].
    + intros r good. cbn [held power_on]. replace (sat (map First (axes p)) r i) with (forallb (fun a => r a =? 0)
      (axes p)).
      * now destruct (forallb _ (axes p)).
      * clear. unfold sat. induction (axes p) as [|a l IH]; [easy|]. cbn. now rewrite IH.
    + intros r good. destruct x as [[] []]; cbn [held power_on]; congruence.
  - intros u l no. exfalso. clear - no. revert u no. induction (repeated p) as [|x l' IH]; intros [|u] no; cbn in
    no; try easy.
    now apply (IH u).
Qed.

End Sound.
