(** Parts of a gradient or of a statistic: added up, scaled, and put together over ranks.

    What it backs: the kernel.

    Main statements: [together_ok], [same_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms Maxima.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Globals.
Open Scope nat_scope.

Section Parts.
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

Section One.
Variables (t j : nat) (now : moment) (f : facts) (m : memory) (i : E).
Hypothesis when_ : when_ok now j.
Hypothesis known : glob t j f m.

Lemma added_ok (big : bool) (c d e : content) (r : rank) : added big c d = Some e ->
  exists a b, val t j c r i = inr a /\ val t j d r i = inr b /\
  val t j e r i = inr (if big then larger a b else a + b)%ring.
Proof.
  destruct c as [| | |s| |]; try easy; destruct d as [| | |s'| |]; try easy; cbn [added].
  - intros [= <-]. cbn [Facts.val]. do 2 eexists. split; [reflexivity|]. split; [reflexivity|]. apply f_equal.
    destruct big; [now rewrite larger_zero|ring].
  - destruct (terms_eq s _) as [->|].
    + cbn [how un from pt]. destruct (pt s') eqn:now_; try easy.
      destruct (eqb big _) eqn:kind; [|easy]. apply eqb_prop in kind. subst big. intros [= <-].
      cbn [Facts.val how un pt from]. rewrite now_. unfold largest_of; cbn [how].
      do 2 eexists. split; [reflexivity|]. split; [reflexivity|]. apply f_equal.
      destruct (how s'); unfold partial_sum, partial_most, covered; rewrite seq_S, flat_map_app.
      * rewrite sum_list_app. cbn [flat_map Nat.add]. rewrite app_nil_r. ring.
      * rewrite greatest_app. cbn [flat_map Nat.add]. now rewrite app_nil_r.
    + destruct big; [|easy]. cbn [andb]. destruct (terms_eq s _) as [is|]; [|easy].
      destruct (pt s) eqn:past; try easy; destruct (pt s') eqn:now_; try easy; destruct (how s') eqn:kind; try easy;
        intros [= <-]; cbn [Facts.val]; rewrite is; cbn [how un pt from]; rewrite now_, kind;
        do 2 eexists; (split; [reflexivity|]); (split; [reflexivity|]); apply f_equal; [now rewrite larger_same|].
      unfold partial_most, covered. rewrite seq_S, flat_map_app, greatest_app. cbn [flat_map Nat.add].
      rewrite app_nil_r, <- larger_of_three. now rewrite larger_same.
Qed.

Lemma covered_now (x : nat * X) : In x (covered t j Now) -> fst x = j.
Proof. intros in_. apply in_map_iff in in_. now destruct in_ as [y [<- _]]. Qed.

(** What a ratio says of the tokens that a sum is of. *)
Lemma said_ok (of_ : when) (r0 k' : ratio) (r : rank) (x : nat * X) : said p now f of_ r0 = Some k' -> ok r ->
  In x (covered t j of_) -> ratio_of p m t j r r0 = mean p count_ t (fst x) k'.
Proof.
  intros is good inside_. apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j (fst x) now f of_ m);
    try easy; [now apply spoken_ok|]. intros ->. now apply covered_now.
Qed.

Lemma scaled_ok (s s' : terms) (k' : ratio) (r : rank) (c : K) : scaled k' s = Some s' ->
  (forall x, In x (covered t j (pt s)) -> mean p count_ t (fst x) k' = c) ->
  exists a, val t j (Sums s) r i = inr a /\ val t j (Sums s') r i = inr (a * c)%ring.
Proof.
  unfold scaled. destruct (how s) as [co|] eqn:is; [|easy]. intros [= <-] all. cbn [Facts.val how un pt from].
  rewrite is. eexists; split; [reflexivity|]. apply f_equal.
  rewrite (coef_scaled p count_ t (times k') co _ _ _ r c); [ring|]. intros x inside_ k0.
  rewrite times_ok by easy. now rewrite all.
Qed.

(** [s'] says what a reduction of [s] makes: whose parts, joined how, over which ranks, and scaled by what. *)
Definition reduces (by_ : operator) (along : list nat) (r0 : ratio) (s s' : terms) (r : rank) : Prop :=
  let big := match by_ with Largest => true | _ => false end in
  let parts := join big (peers along r) (fun r' => as_number (val t j (Sums s) r' i) *
    match by_ with Premultiplied => ratio_of p m t j r' r0 | _ => 1 end)%ring in
  val t j (Sums s') r i = inr (match by_ with
    | Premultiplied => parts | Plain | Largest => parts * ratio_of p m t j r r0
    | Mean => parts * product share (map size along) * ratio_of p m t j r r0 end)%ring.

(** The parts of a sum, or of a largest, put together. *)
Lemma together_ok (by_ : operator) (along : list nat) (r0 k' : ratio) (s s' : terms) (r : rank) :
  said p now f (pt s) r0 = Some k' -> put_together by_ along k' s = Some s' -> ok r ->
  reduces by_ along r0 s s' r.
Proof.
  intros is new good. unfold reduces. cbn zeta. unfold put_together in new.
  destruct (reduced_kept s along) as [P [F L]]. set (s1 := reduced along s) in *.
  pose proof (fun x => said_ok (pt s) r0 k' r x is good) as of_x.
  set (c := ratio_of p m t j r r0) in *.
  assert (same : forall r', ok r' -> ratio_of p m t j r' r0 = c).
  { intros r' good'. transitivity (mean p count_ t j k'); [|symmetry];
      apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f (pt s) m);
      easy || now apply spoken_ok. }
  destruct (how s) as [co|] eqn:kind.
  - assert (sums : forall d, sum_list (peers along r) (fun r' => as_number (val t j (Sums s) r' i) * d)%ring =
      (as_number (val t j (Sums s1) r i) * d)%ring).
    { intros d. transitivity (sum_list (peers along r) (fun r' => d * as_number (val t j (Sums s) r' i)))%ring.
      { apply sum_list_ext; intros; ring. }
      rewrite sum_list_times. transitivity (d * as_number (val t j (Sums s1) r i))%ring; [|ring]. f_equal.
      pose proof (sum_reduced p count_ t count_pos micro_pos (covered t j (pt s))
        (fun x => given p t (from s) (snd x) i) s along r) as eq_. fold s1 in eq_. unfold by_how in eq_.
      rewrite kind in eq_. cbn [Facts.val as_number]. rewrite kind, P, F. unfold largest_of in L. rewrite kind in L.
      destruct (how s1); [exact eq_|easy]. }
    unfold largest_of in L. rewrite kind in L. destruct (how s1) as [co1|] eqn:kind1; [|easy].
    assert (plain : forall s2 d, scaled k' s2 = Some s' -> pt s2 = pt s ->
      val t j (Sums s2) r i = inr (as_number (val t j (Sums s1) r i) * d)%ring ->
      val t j (Sums s') r i = inr (as_number (val t j (Sums s1) r i) * d * c)%ring).
    { intros s2 d new' same_pt is2. destruct (scaled_ok s2 s' k' r c new') as [a [A B]].
      { intros x inside_. symmetry. apply of_x. now rewrite <- same_pt. }
      rewrite B. rewrite is2 in A. now injection A as <-. }
    assert (self : val t j (Sums s1) r i = inr (as_number (val t j (Sums s1) r i) * 1)%ring).
    { transitivity (inr (as_number (val t j (Sums s1) r i)) : T + K); [|apply f_equal; ring]. cbn [Facts.val as_number].
      reflexivity. }
    destruct by_; unfold join; try easy.
    + rewrite (sums 1%ring), (plain s1 1%ring new P self). apply f_equal; ring.
    + rewrite (sums 1%ring), (plain _ (product share (map size along)) new P); [apply f_equal; ring|].
      cbn [Facts.val how un pt from as_number]. rewrite kind1. apply f_equal.
      rewrite (coef_scaled p count_ t (mean_of along) co1 _ _ _ r (product share (map size along))); [ring|].
      intros x _ k0. now rewrite mean_of_ok.
    + transitivity (inr (as_number (val t j (Sums s1) r i) * c)%ring : T + K).
      { rewrite (plain s1 1%ring new P self). apply f_equal; ring. }
      apply f_equal. rewrite <- (sums c). apply sum_list_ext. intros r' peer. f_equal. symmetry. apply same.
      eapply peers_ok; eassumption.
  - unfold largest_of in L. rewrite kind in L. destruct (how s1) as [|] eqn:kind1; [easy|].
    destruct by_; try easy. destruct (ratio_eq k' one) as [->|]; [|easy]. injection new as <-.
    assert (unit_ : c = 1%ring).
    { unfold c. transitivity (mean p count_ t j one); [|now apply mean_one].
      apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f (pt s) m);
        easy || now apply spoken_ok. }
    rewrite unit_. unfold join. cbn [Facts.val as_number]. rewrite kind1, kind, P, F. apply f_equal.
    pose proof (most_reduced snd (covered t j (pt s)) (fun x => given p t (from s) (snd x) i) s along r kind) as eq_.
    fold s1 in eq_. rewrite <- eq_.
    transitivity (greatest (peers along r) (partial_most snd (covered t j (pt s)) (un s)
      (fun x => given p t (from s) (snd x) i))); [reflexivity|].
    transitivity (greatest (peers along r) (fun r' => partial_most snd (covered t j (pt s)) (un s)
      (fun x => given p t (from s) (snd x) i) r' * 1)%ring); [|ring].
    apply greatest_ext; intros; ring.
Qed.

Lemma rigid_peer (c : content) (along : list nat) (r r' : rank) : rigid c along = true -> In r' (peers along r) ->
  val t j c r' i = val t j c r i.
Proof.
  destruct c as [| | |s| |]; try easy. cbn [rigid]. rewrite forallb_forall. intros out peer.
  assert (same : forall x, near (un s) r' x = near (un s) r x).
  { intros x. unfold near. apply eq_true_iff_eq. rewrite !forallb_forall.
    assert (at_ : forall a, In a (un s) -> r' a = r a).
    { intros a inside_. apply (peers_outside along); [easy|]. now apply negb_true_iff, out. }
    split; intros all a inside_; specialize (all a inside_); now rewrite at_ in * by easy. }
  cbn [Facts.val]. do 2 f_equal. destruct (how s).
  - apply sum_list_ext; intros x _. now rewrite same.
  - apply greatest_ext; intros x _. now rewrite same.
Qed.

Lemma greatest_all {V : Type} (l : list V) (k : K) : l <> [] -> greatest l (fun _ => k) = k.
Proof.
  destruct l as [|v l]; [easy|]. intros _. cbn [greatest]. induction l as [|v' l IH]; [apply larger_zero_right|].
  cbn [greatest]. rewrite larger_of_three, larger_same. exact IH.
Qed.

(** Where the parts are one number, so are their mean and the largest of them. *)
Lemma same_ok (by_ : operator) (along : list nat) (r0 k' : ratio) (s s' : terms) (r : rank) :
  said p now f (pt s) r0 = Some k' -> rigid (Sums s) along = true -> put_alike by_ along k' s = Some s' -> ok r ->
  reduces by_ along r0 s s' r.
Proof.
  intros is rig new good. unfold reduces. cbn zeta.
  set (v := as_number (val t j (Sums s) r i)).
  assert (one_number : forall r', In r' (peers along r) -> as_number (val t j (Sums s) r' i) = v).
  { intros r' peer. unfold v. now rewrite (rigid_peer (Sums s) along r r' rig peer). }
  assert (ratio_ : forall r', ok r' -> ratio_of p m t j r' r0 = mean p count_ t j k').
  { intros r' good'. apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f (pt s) m);
      easy || now apply spoken_ok. }
  assert (many : forall d, sum_list (peers along r) (fun r' => as_number (val t j (Sums s) r' i) * d)%ring =
    (product of_nat (map size along) * (v * d))%ring).
  { intros d. transitivity (sum_list (peers along r) (fun _ => (v * d) * 1)%ring).
    - apply sum_list_ext; intros r' peer. rewrite one_number by easy. ring.
    - rewrite sum_list_times, peers_count. ring. }
  assert (inverse_ : (product of_nat (map size along) * product share (map size along))%ring = 1%ring :> K)
    by (eapply sizes_inverse; eassumption).
  unfold put_alike in new. destruct (how s) as [co|] eqn:kind; destruct by_;
    try (now apply (together_ok _ along r0 k' s s' r is new good)); unfold join.
  - destruct (scaled_ok s s' k' r (ratio_of p m t j r r0) new) as [a [A B]].
    { intros x inside_. symmetry. now apply (said_ok (pt s) r0 k' r x is good). }
    rewrite B. apply f_equal. f_equal. transitivity (greatest (peers along r) (fun _ => v)).
    + rewrite greatest_all by apply peers_not_empty. unfold v. now rewrite A.
    + apply greatest_ext; intros r' peer. rewrite one_number by easy. ring.
  - destruct (ratio_eq k' (mean_of along one)) as [->|]; [|easy]. injection new as <-. rewrite (many 1%ring), ratio_,
      mean_of_ok, mean_one by easy. transitivity (inr v : T + K); [unfold v; cbn [Facts.val as_number]; reflexivity|].
    apply f_equal. transitivity ((product of_nat (map size along) * product share (map size along)) * v)%ring;
      [rewrite inverse_|]; ring.
  - destruct (ratio_eq k' one) as [->|]; [|easy]. injection new as <-. rewrite (many 1%ring), ratio_, mean_one by easy.
    transitivity (inr v : T + K); [unfold v; cbn [Facts.val as_number]; reflexivity|].
    apply f_equal. transitivity ((product of_nat (map size along) * product share (map size along)) * v)%ring;
      [rewrite inverse_|]; ring.
  - destruct (ratio_eq k' (mean_of along one)) as [->|]; [|easy]. injection new as <-.
    transitivity (inr v : T + K); [unfold v; cbn [Facts.val as_number]; reflexivity|]. apply f_equal.
    transitivity (sum_list (peers along r) (fun r' => as_number (val t j (Sums s) r' i) *
      product share (map size along))%ring).
    + rewrite many. transitivity ((product of_nat (map size along) * product share (map size along)) * v)%ring;
        [rewrite inverse_|]; ring.
    + apply sum_list_ext; intros r' peer. f_equal.
      rewrite ratio_, mean_of_ok, mean_one by (easy || (eapply peers_ok; eassumption)). ring.
Qed.

Lemma join_ok (by_ : operator) (along : list nat) (r0 k' : ratio) (s s' : terms) (r : rank) :
  said p now f (pt s) r0 = Some k' ->
  (if rigid (Sums s) along then put_alike else put_together) by_ along k' s = Some s' -> ok r ->
  reduces by_ along r0 s s' r.
Proof.
  intros is. destruct (rigid (Sums s) along) eqn:rig; [now apply same_ok|now apply together_ok].
Qed.
End One.
End Parts.
