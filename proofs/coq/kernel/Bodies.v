(** The loop over microbatches: what is known behind it is true, wherever its ends are apart.

    What it backs: the kernel.

    Main statement: [loop_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Norms.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units.
From Placealg.kernel Require Import Loops.
From Placealg.kernel Require Import Tables.
Open Scope nat_scope.

Section Bodies.
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

Lemma well_parts : once (data p) = true /\ forallb (good_group p) (groups p) = true /\
  forallb (good_block p) (init p) = true /\ forallb (good_block p) (prepare p) = true /\
  forallb (good_block p) (bodies p) = true /\ forallb (good_block p) (outside p) = true /\
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
  intros [a b c d e1 e2 e3 e5 e4]. split; cbn; try easy; try (now destruct a; split); try (now intros [|]).
  - now rewrite map_length.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts f) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
Qed.

Lemma entails_facts_ok (t j : nat) (f g : facts) (m : memory) :
  length (kepts g) = length (repeated p) -> entails_facts f (quiet g) = true -> between t j f m -> between t j
    (quiet g) m.
Proof.
  intros len all known. apply quiet_between in known. destruct known as [a b c d e1 e2 e3 e5 e4].
  unfold entails_facts in all. cbn [quiet slots norms counts fine] in all.
  repeat (apply andb_true_iff in all; destruct all as [all ?]). cbn [quiet slots norms counts fine] in *.
  pose proof (all2_length _ _ _ all) as len'.
  split; cbn [quiet slots kepts acts cots factor norms counts fine]; try easy; try (now intros [|]).
  - destruct a as [A B C Y Z]. cbn [quiet norms counts] in *. split; cbn [quiet norms counts].
    + intros k disk. eapply counts_entail_ok; [eassumption|apply A].
    + pose proof (all2_length _ _ _ H1). congruence.
    + intros n q found. apply C. assert (small : n < length (norms g)) by (apply nth_error_Some; congruence).
      pose proof (all2_nth _ _ _ n None H1 small) as one. apply nth_error_nth with (d := None) in found as value.
      rewrite value in one. destruct (nth n (norms f) None) as [q0|] eqn:old; [|easy]. cbn in one.
      destruct (place_eq q0 q) as [->|]; [|easy]. pose proof (all2_length _ _ _ H1).
      rewrite <- old. apply nth_error_nth'. lia.
    + intros n e un found. apply Y. eapply tally_entail_ok; eassumption.
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
  rewrite here. cbn [val how un pt from]. now rewrite e.
Qed.

Lemma passed (t j : nat) (f : facts) (m : memory) : between t j f m -> between t (S j) (quiet (passing f)) m.
Proof.
  intros [a b c d e1 e2 e3 e5 e4].
  assert (passes : forall i, covers p i -> fits t (S j) (nth_table (slots (map_slots pass f)) (group_of i)) m i).
  { intros i cover. cbn [map_slots slots]. rewrite nth_map_table by easy.
    eapply (fits_map t j t (S j) (fun _ => pass)); [|now apply d]. intros x h. apply pass_ok. }
  assert (none : forall u, nth u (map (fun _ => false) (kepts f)) false = false).
  { intros u. clear. revert u. induction (kepts f) as [|x l IH]; intros [|u]; cbn; easy || apply IH. }
  unfold passing. split; cbn [quiet map_slots slots kepts acts cots factor norms counts fine]; try easy;
    try (now rewrite map_length); try (now intros [|]); try (intros u l no; now rewrite none in no).
  destruct a as [A B C Y Z]; split; cbn [norms counts quiet map_slots tell_tally]; try easy.
  intros n e un found r good. cbn [tallied tell_tally] in found. destruct (lasting_ok _ _ _ _ found) as [-> there].
  now rewrite (Y n false un there r good).
Qed.

Lemma entered_ok (t j : nat) (f : facts) (m : memory) : between t j f m -> between t j (entered p f) (enter m).
Proof.
  intros [a b c d e1 e2 e3 e5 e4]. split; cbn [entered slots kepts acts cots factor norms counts fine]; try easy;
    try (intros n c' no; exact (no_looks _ _ _ no _)).
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
  intros len [a b c d e1 e2 e3 e5 e4]. split; cbn [begins slots kepts acts cots factor norms counts fine]; try easy;
    try (now intros [|]).
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
    destruct (sat q r i); [|exact here]. rewrite here. cbn [val]. rewrite e. now destruct (how s).
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

Lemma body_good (b : list block) : (forall x, In x b -> In x (bodies p)) -> forallb (good_block p) b = true.
Proof.
  intros all. destruct well_parts as [_ [_ [_ [_ [good _]]]]]. rewrite forallb_forall in *. intros x inside_.
  now apply good, all.
Qed.

Lemma fine_body (b : list block) (f : facts) : fine (body p b f) = fine (after p false Amid b (entered p f)).
Proof. reflexivity. Qed.

Lemma body_step (b : list block) (t n : nat) (f : facts) (m : memory) : forallb (good_block p) b = true -> n < micro ->
  between t n f m -> between t (S n) (body p b f) (run_blocks p t n b (enter m)) /\
  log_kept t f (body p b f) m (run_blocks p t n b (enter m)).
Proof.
  intros good low known. destruct (blocks t n false Amid ltac:(easy) ltac:(cbn; lia) _ _ _ good (entered_ok _ _ _ _
    known)) as [B' L'].
  split; [now apply passed|]. intros fine_. rewrite fine_body in fine_. destruct (L' fine_) as [F G].
    split; [exact F|]. intros log. apply G.
  intros u l got read. now apply log.
Qed.

Lemma log_weaker (t : nat) (f g h : facts) (m m' : memory) : entails_facts g h = true -> log_kept t f g m m' ->
  log_kept t f h m m'.
Proof. intros all L fine_. apply L. now apply (entails_fine _ _ all). Qed.
Lemma log_trans (t : nat) (f g h : facts) (m m' m'' : memory) : log_kept t f g m m' -> log_kept t g h m' m'' ->
  log_kept t f h m m''.
Proof. intros L L' fine_. destruct (L' fine_) as [F G]. destruct (L F) as [F' G']. auto. Qed.

(** The body of some microbatches in a row, each alike. *)
Lemma alike_ok (b : list block) (t s k : nat) (h : facts) (m : memory) : forallb (good_block p) b = true ->
  length (kepts h) = length (repeated p) -> entails_facts (body p b (quiet h)) (quiet h) = true -> s + k <= micro ->
  between t s (quiet h) m ->
  between t (s + k) (quiet h) (fold_left (fun m j => run_blocks p t j b (enter m)) (seq s k) m) /\
  log_kept t (quiet h) (quiet h) m (fold_left (fun m j => run_blocks p t j b (enter m)) (seq s k) m).
Proof.
  intros good lenu next_ low known. induction k as [|k IH].
  - rewrite Nat.add_0_r. now split.
  - destruct (IH ltac:(lia)) as [B L]. rewrite seq_S, fold_left_app. cbn [fold_left].
    destruct (body_step b t (s + k) _ _ good ltac:(lia) B) as [B' L']. replace (s + S k) with (S (s + k)) by lia. split.
    + now eapply entails_facts_ok; [|exact next_|].
    + eapply log_trans; [exact L|]. now eapply log_weaker; [exact next_|].
Qed.

Lemma run_alike (b : list block) (t s k : nat) (m : memory) : (forall j, s <= j < s + k -> body_at p micro j = b) ->
  fold_left (fun m j => run_blocks p t j (body_at p micro j) (enter m)) (seq s k) m =
  fold_left (fun m j => run_blocks p t j b (enter m)) (seq s k) m.
Proof.
  revert s m. induction k as [|k IH]; intros s m all; [easy|]. cbn [seq fold_left]. rewrite all by lia.
  apply IH. intros j range. apply all. lia.
Qed.

Lemma loop_ok (t : nat) (f g : facts) (m : memory) : after_loop p f = Some g -> between t 0 f m ->
  between t micro g (fold_left (fun m j => run_blocks p t j (body_at p micro j) (enter m)) (seq 0 micro) m) /\
  log_kept t f g m (fold_left (fun m j => run_blocks p t j (body_at p micro j) (enter m)) (seq 0 micro) m).
Proof.
  unfold after_loop. destruct (at_ends p) as [|alone first last_] eqn:ends_; destruct (_ && _) eqn:can; [|easy| |easy];
    intros [= <-] known.
  - rewrite (run_alike (inside p)) by (intros; unfold body_at; now rewrite ends_).
    assert (quiet_h : exists h, invariant p (inside p) f = quiet h) by (eexists; reflexivity).
    destruct quiet_h as [h is]. rewrite is in *. clear is. apply andb_true_iff in can. destruct can as [can next_].
    apply andb_true_iff in can. destruct can as [size_ first].
    destruct (sized_ok _ size_) as [len lenu]. assert (lenu' : length (kepts h) = length (repeated p)).
    { rewrite <- lenu. cbn. now rewrite map_length. }
    assert (B0 : between t 0 (quiet h) m).
    { eapply entails_facts_ok; [easy|exact first|]. now apply begins_ok. }
    destruct (alike_ok (inside p) t 0 micro h m) as [B L]; try easy.
    { apply body_good. intros x inside_. apply in_app_iff. now left. }
    split; [exact B|]. eapply log_trans; [|exact L]. intros fine_. split; [|easy].
    exact (entails_fine _ _ first fine_).
  - apply andb_true_iff in can. destruct can as [can to_r]. apply andb_true_iff in can. destruct can as [can alone_r].
    apply andb_true_iff in can. destruct can as [can next_]. apply andb_true_iff in can. destruct can as [can to_g].
    apply andb_true_iff in can. destruct can as [can size_r].
    apply andb_true_iff in can. destruct can as [size_f size_g].
    set (f0 := begins f _) in *. set (f1 := body p first f0) in *. set (a := body p alone f0) in *.
    assert (ins : forall b, (forall x, In x b -> In x (inside p ++ alone ++ first ++ last_)) ->
      forallb (good_block p) b = true).
    { intros b all. apply body_good. intros x inside_. unfold bodies. rewrite ends_. now apply all. }
    assert (B0 : between t 0 f0 m) by (apply begins_ok; [now apply sized_ok|easy]).
    assert (L0 : forall h m', log_kept t f0 h m m' -> log_kept t f h m m') by (intros h m' L; exact L).
    assert (size_of : forall h, sized p (quiet h) = true -> length (kepts h) = length (repeated p)).
    { intros h size_. destruct (sized_ok _ size_) as [_ lenu]. cbn in lenu. now rewrite map_length in lenu. }
    destruct (Nat.eq_dec micro 1) as [one_|some].
    + replace (seq 0 micro) with (seq 0 1) by now rewrite one_. cbn [seq fold_left].
      replace (body_at p micro 0) with alone by (unfold body_at; now rewrite ends_, one_).
      destruct (body_step alone t 0 f0 m) as [B L]; [apply ins; intros; rewrite !in_app_iff; auto|lia|easy|].
      rewrite one_. split.
      * eapply entails_facts_ok; [now apply size_of|exact alone_r|exact B].
      * apply L0. eapply log_weaker; [exact alone_r|exact L].
    + assert (many : exists k, micro = S (S k)) by (exists (micro - 2); lia). destruct many as [k many].
      replace (seq 0 micro) with (0 :: seq 1 k ++ [S k]) by (rewrite many; cbn [seq]; now rewrite <- seq_S).
      cbn [fold_left]. rewrite fold_left_app. cbn [fold_left].
      replace (body_at p micro 0) with first by (unfold body_at; now rewrite ends_, many).
      replace (body_at p micro (S k)) with last_ by (unfold body_at; rewrite ends_, many; now rewrite Nat.eqb_refl).
      rewrite (run_alike (inside p)).
      2: { intros j range. unfold body_at. rewrite ends_, many. destruct j as [|j]; [lia|].
           replace (S (S j) =? S (S k)) with false; [easy|]. symmetry. apply Nat.eqb_neq. lia. }
      destruct (body_step first t 0 f0 m) as [B L]; [apply ins; intros; rewrite !in_app_iff; auto|lia|easy|].
      fold f1 in B, L. set (m1 := run_blocks p t 0 first (enter m)) in *.
      set (h := merge_facts f1 _) in *.
      assert (B1 : between t 1 (quiet h) m1) by (eapply entails_facts_ok; [now apply size_of|exact to_g|exact B]).
      destruct (alike_ok (inside p) t 1 k h m1) as [B2 L2]; try easy.
      { apply ins. intros. rewrite !in_app_iff; auto. }
      { now apply size_of. }
      { lia. }
      set (m2 := fold_left _ (seq 1 k) m1) in *.
      destruct (body_step last_ t (S k) (quiet h) m2) as [B3 L3];
        [apply ins; intros; rewrite !in_app_iff; auto 6|lia|easy|].
      rewrite many. split.
      * eapply entails_facts_ok; [now apply size_of|exact to_r|exact B3].
      * apply L0. eapply log_trans; [eapply log_weaker; [exact to_g|exact L]|]. eapply log_trans; [exact L2|].
        eapply log_weaker; [exact to_r|exact L3].
Qed.
End Bodies.
