(** What the checker's facts say about memory, and the lemmas about places, contents and slots that each verb needs.

    What it backs: the kernel.

    Main statement: [whole_ok] (what is called whole is the reference's gradient), [ratio_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms.
Open Scope nat_scope.

Section Facts.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat) (count_pos : 0 < count_) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall t j r, j < micro -> ok r -> length (local p t j r) = count_.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.

Definition covered (t j : nat) (x : when) : list X :=
  match x with
  | Before => flat_map (batch t) (seq 0 j) | Now => batch t j | Through => flat_map (batch t) (seq 0 (S j)) end.
Definition weights_at (t : nat) : E -> T := fun i => fst (theta p t i).
Definition given (t : nat) (us : list nat) (x : X) (i : E) : K :=
  sum_list us (fun u => contribution p t (weights_at t) u (layer_of i) x i).
Definition grad_at (t : nat) (i : E) : K := gradient p t (weights_at t) i.

Lemma theta_next (t : nat) (i : E) : theta p (S t) i = if left_out p t (weights_at t) then theta p t i
  else if negb (trains p (group_of i)) then theta p t i
  else update 1%ring (updates p t) i (map (weights_at t) (reading p Master i))
         (map (fun j => snd (theta p t j)) (reading p Moments i)) (map (applied p t (weights_at t)) (reading p
           GradSum i)).
Proof.
  unfold weights_at, updates, theta. cbn [reference]. destruct (reference p t) as [n state]. cbn [fst snd].
  now destruct (left_out p t _).
Qed.

Lemma updates_next (t : nat) : updates p (S t) = if left_out p t (weights_at t) then updates p t else S (updates p t).
Proof.
  unfold weights_at, updates, theta. cbn [reference]. destruct (reference p t) as [n state]. cbn [fst snd].
  now destruct (left_out p t _).
Qed.

(** The number that a rank holds. *)
Definition val (t j : nat) (c : content) (r : rank) (i : E) : T + K :=
  match c with
  | Params next => inl (fst (theta p (if next then S t else t) i))
  | Moment next => inl (snd (theta p (if next then S t else t) i))
  | Zeroed => inr 0%ring
  | Sums s => inr (mean p count_ t (co s) * partial_sum (covered t j (pt s)) (un s) (fun x => given t (from s) x i)
    r)%ring
  | Clipped => inr (clip (norm p t (weights_at t)) (grad_at t i))
  | Averaged next => inl (averaged p (if next then S t else t) i)
  end.

Definition holds (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : Prop :=
  match h with
  | Any => True
  | Absent => forall r, ok r -> f r = None
  | Holds c q o => forall r, ok r -> if sat q r i then f r = Some (val t j c r i) else o = true -> f r = None
  end.

Definition fits (t j : nat) (k : table) (m : memory) (i : E) : Prop :=
  forall x, holds t j (get k x) (fun r => held m x r i) i.

Lemma get_cons (y x : slot) (h : know) (k : table) : get ((y, h) :: k) x = if slot_eq y x then h else get k x.
Proof. unfold get; cbn. now destruct (slot_eq y x). Qed.

Lemma get_set (k : table) (x y : slot) (h : know) : get (set k x h) y = if slot_eq x y then h else get k y.
Proof.
  induction k as [|[z h'] k IH]; cbn [set].
  - rewrite get_cons. now destruct (slot_eq x y).
  - destruct (slot_eq z x) as [->|apart]; rewrite !get_cons.
    + now destruct (slot_eq x y).
    + rewrite IH. destruct (slot_eq z y) as [->|]; [|easy]. now destruct (slot_eq x y) as [->|].
Qed.

Lemma slot_eqb_refl (x : slot) : slot_eqb x x = true.
Proof. now destruct x as [[] []]. Qed.
Lemma slot_eqb_apart (x y : slot) : x <> y -> slot_eqb y x = false.
Proof. destruct x as [[] []], y as [[] []]; cbn; congruence. Qed.

Lemma holds_ext (t j : nat) (h : know) (f g : rank -> option (T + K)) (i : E) :
  (forall r, ok r -> f r = g r) -> holds t j h g i -> holds t j h f i.
Proof.
  intros same. destruct h as [| |c q o]; cbn; auto; intros here r good; rewrite same by easy; now apply here.
Qed.

Lemma fits_write (t j : nat) (k : table) (m : memory) (here : E -> bool) (y : slot) f (h : know) (i : E) :
  here i = true -> fits t j k m i -> holds t j h (fun r => f r i) i -> fits t j (set k y h) (write m here y f) i.
Proof.
  intros inside old new x. rewrite get_set. cbn [held write]. destruct (slot_eq y x) as [<-|apart].
  - eapply holds_ext; [|exact new]. intros r _; cbn. now rewrite slot_eqb_refl, inside.
  - eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite slot_eqb_apart.
Qed.

Lemma fits_set (t j : nat) (k : table) (m m' : memory) (y : slot) (f : rank -> option (T + K)) (h : know) (i : E) :
  (forall x r, held m' x r i = if slot_eqb x y then f r else held m x r i) -> fits t j k m i -> holds t j h f i ->
  fits t j (set k y h) m' i.
Proof.
  intros same old new x. rewrite get_set. destruct (slot_eq y x) as [<-|apart].
  - eapply holds_ext; [|exact new]. intros r _; cbn. now rewrite same, slot_eqb_refl.
  - eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite same, slot_eqb_apart.
Qed.

Lemma fits_same (t j : nat) (k : table) (m m' : memory) (i : E) :
  (forall x r, held m' x r i = held m x r i) -> fits t j k m i -> fits t j k m' i.
Proof. intros same old x. eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite same. Qed.

(** ** Places *)

Lemma has_in (q : place) (c : clause) : has q c = true <-> In c q.
Proof. unfold has; destruct (in_dec clause_eq c q); split; intros; easy. Qed.

Lemma sat_in (q : place) (r : rank) (i : E) : sat q r i = true <-> forall c, In c q -> sat1 r i c = true.
Proof. apply forallb_forall. Qed.

Lemma within_ok (q q' : place) (r : rank) (i : E) : within q q' = true -> sat q r i = true -> sat q' r i = true.
Proof.
  unfold within. rewrite forallb_forall, !sat_in. intros all good c inside. apply good, has_in, all, inside.
Qed.

Lemma sat_app (q q' : place) (r : rank) (i : E) : sat (q ++ q') r i = sat q r i && sat q' r i.
Proof. apply forallb_app. Qed.

Lemma sat_union (q q' : place) (r : rank) (i : E) : sat (union q q') r i = sat q r i && sat q' r i.
Proof.
  unfold union. rewrite sat_app. destruct (sat q r i) eqn:here; [|easy]; cbn [andb].
  apply eq_true_iff_eq. rewrite sat_in in here. rewrite !sat_in. split; intros all c inside.
  - destruct (has q c) eqn:there; [apply here, has_in, there|]. apply all, filter_In. now rewrite there.
  - apply filter_In in inside. now apply all.
Qed.

Lemma sat_owners (s : nat) (along : list nat) (r : rank) (i : E) :
  sat (owners s along) r i = forallb (fun a => r a =? own s a i) along.
Proof. unfold sat, owners. induction along as [|a l IH]; cbn; [easy|]. now rewrite IH. Qed.

Lemma moved_ok (to : nat -> nat) (along : list nat) (r : rank) : (forall a, to a < size a) -> ok r -> ok (moved to
  along r).
Proof. intros small good a. unfold moved. destruct (existsb (Nat.eqb a) along); auto. Qed.

Lemma sat_moved (to : nat -> nat) (along : list nat) (q : place) (r : rank) (i : E) :
  (forall d, In d (on_axes along q) -> coordinate d i = to (axis_of d)) ->
  sat q (moved to along r) i = sat (off_axes along q) r i.
Proof.
  induction q as [|d q IH]; [easy|]. unfold on_axes, off_axes in *; cbn [filter] in *. intros all. rewrite sat_cons.
  destruct (mem (axis_of d) along) eqn:inside; cbn [negb].
  - rewrite IH by (intros; apply all; now right).
    specialize (all d (or_introl eq_refl)). unfold mem in inside.
    destruct d as [s a|a]; cbn in *; unfold moved; rewrite inside, <- all, Nat.eqb_refl; reflexivity.
  - rewrite IH by easy. rewrite sat_cons. f_equal. unfold mem in inside.
    destruct d as [s a|a]; cbn in *; unfold moved; now rewrite inside.
Qed.

Lemma sat_peer (along : list nat) (q : place) (r r' : rank) (i : E) : on_axes along q = [] -> In r' (peers along r) ->
  sat q r' i = sat q r i.
Proof.
  intros out inside. induction q as [|d q IH]; [easy|]. unfold on_axes in *; cbn [filter] in out.
  destruct (mem (axis_of d) along) eqn:on; [easy|]. rewrite !sat_cons, IH by easy. f_equal.
  destruct d as [s a|a]; cbn in *; now rewrite (peers_outside along r r').
Qed.

Lemma outside_none_ok (t j : nat) (h : know) (q : place) (f : rank -> option (T + K)) (i : E) (r : rank) :
  outside_none h q = true -> holds t j h f i -> ok r -> sat q r i = false -> f r = None.
Proof.
  intros none here good out. destruct q as [|d q]; [easy|]. destruct h as [| |c q' o]; cbn [outside_none] in none;
    try easy.
  - now apply here.
  - destruct o; [|easy]. specialize (here r good). destruct (sat q' r i) eqn:in'; [|now apply here].
    now rewrite (within_ok _ _ _ _ none in') in out.
Qed.

Lemma rigid_ok (t j : nat) (c : content) (to : nat -> nat) (along : list nat) (r : rank) (i : E) :
  rigid c along = true -> val t j c (moved to along r) i = val t j c r i.
Proof.
  destruct c as [| | |s| |]; try easy. cbn. rewrite forallb_forall. intros out. do 2 f_equal.
  apply sum_list_ext; intros x _. replace (near (un s) (moved to along r) x) with (near (un s) r x); [easy|].
  unfold near. induction (un s) as [|a l IH]; [easy|]. cbn. rewrite IH by (intros; apply out; now right). f_equal.
  unfold moved. specialize (out a (or_introl eq_refl)). apply negb_true_iff in out. unfold mem in out. now rewrite
    out.
Qed.

(** ** Ratios, and what is called whole *)

Definition when_ok (now : moment) (j : nat) : Prop := match now with Early => True | Amid => j < micro | Late => j
  = micro end.

(** The count of tokens and the loss scale are as the facts say. *)
Definition spoken (t : nat) (f : facts) (m : memory) : Prop :=
  (forall un, tallied (counts f) = Some un -> forall r, ok r -> tally m r = length (filter (near un r) (tokens t))) /\
  (current f LossScale = true -> forall r, ok r -> count m LossScale false r = Some (loss_scale p t)).

Lemma ratio_ok (t j : nat) (now : moment) (f : facts) (m : memory) (r : rank) (k : ratio) : spoken t f m ->
  sayable p now f k = true -> when_ok now j -> ok r -> ratio_of p m t j r k = mean p count_ t k.
Proof.
  intros [told_ scale_] said here good. unfold ratio_of, mean.
  assert (same : forall s, In s (over k ++ under k) ->
    number_of p m t j r s = num p count_ t s /\ inverse_of p m t j r s = inv p count_ t s).
  { intros s inside. unfold sayable in said. rewrite forallb_forall in said. specialize (said s inside).
    destruct s as [| | |a| |n]; cbn [sayable1 number_of inverse_of num inv] in *; try easy.
    - apply andb_true_iff in said. destruct said as [same_ in_]. destruct now; try easy. now rewrite counts_equal.
    - destruct (tallied (counts f)) as [[|]|]; try easy. rewrite (told_ [] eq_refl r good).
      replace (filter (near [] r) (tokens t)) with (tokens t); [easy|].
      generalize (tokens t) as l. induction l as [|x l IH]; [easy|]. cbn. now f_equal.
    - unfold scale_state. now rewrite (scale_ said r good). }
  f_equal; apply product_ext; intros s inside; apply same, in_app_iff; auto.
Qed.

Lemma sum_over_all (l : list X) (f : X -> K) (along un : list nat) (r : rank) :
  (forall a m m', along = m ++ a :: m' -> mem a m' = false) -> (forall a, In a along -> mem a un = true) ->
  sum_list (peers along r) (partial_sum l un f) = partial_sum l (filter (fun b => negb (mem b along)) un) f r.
Proof.
  revert r; induction along as [|a along IH]; intros r once all.
  - cbn [peers sum_list]. replace (filter _ un) with un.
    + ring.
    + clear; induction un; cbn; [easy|]; now f_equal.
  - rewrite peers_sum.
    transitivity (sum_list (seq 0 (size a)) (fun c =>
      partial_sum l (filter (fun b => negb (mem b along)) un) f (put r a c))).
    { apply sum_list_ext; intros c _. apply IH; [|intros; apply all; now right].
      intros b m m' found. apply (once b (a :: m) m'). now rewrite found. }
    rewrite sum_axis_in.
    + f_equal. clear. induction un as [|b un IH]; [easy|]. cbn [filter mem existsb].
      unfold mem in *. destruct (existsb (Nat.eqb b) along); cbn [negb orb]; rewrite ?orb_true_r; cbn [negb]; [easy|].
      rewrite orb_false_r. cbn [filter]. rewrite (Nat.eqb_sym a b). destruct (b =? a); cbn; [easy|now f_equal].
    + assert (out : mem a along = false) by (apply (once a [] along); easy).
      assert (inside : mem a un = true) by (apply all; now left).
      clear - out inside. induction un as [|b un IH]; [easy|]. cbn [filter]. unfold mem in *; cbn [existsb] in inside.
      destruct (a =? b) eqn:e.
      * apply Nat.eqb_eq in e; subst b. rewrite out; cbn. now rewrite Nat.eqb_refl.
      * cbn in inside. destruct (existsb (Nat.eqb b) along); cbn; [auto|]. rewrite e; cbn; auto.
Qed.

Lemma peers_count (along : list nat) (r : rank) : sum_list (peers along r) (fun _ => 1%ring) = product of_nat (map
  size along) :> K.
Proof.
  revert r; induction along as [|a along IH]; intros r; [cbn; ring|]. rewrite peers_sum. cbn [map product].
  transitivity (sum_list (seq 0 (size a)) (fun _ : nat => product of_nat (map size along) : K)).
  - apply sum_list_ext; intros c _; apply IH.
  - rewrite sum_const, seq_length; ring.
Qed.

Lemma batch_count (t j : nat) : equal p = true -> j < micro -> of_nat (length (batch t j)) = (of_nat count_ * product
  of_nat (map
  size (data p)))%ring :> K.
Proof.
  intros same here. pose (r0 := (fun _ => 0) : rank). assert (good : ok r0) by (intros a; apply size_pos).
  transitivity (sum_list (peers (data p) r0) (partial_sum (batch t j) (data p) (fun _ => 1%ring))).
  - rewrite sum_over_all.
    + replace (filter _ (data p)) with (@nil nat).
      * unfold partial_sum; cbn. rewrite sum_const. ring.
      * enough (all : forall l, (forall a, In a l -> mem a (data p) = true) -> filter (fun b => negb (mem b (data
        p))) l = []).
        { symmetry; apply all. intros a inside. unfold mem. apply existsb_exists. exists a; now rewrite
          Nat.eqb_refl. }
        induction l as [|a l IH]; intros all; [easy|]; cbn [filter]. rewrite (all a) by now left.
        apply IH; intros; apply all; now right.
    + intros a m m'. apply data_once.
    + intros a inside. unfold mem. apply existsb_exists. exists a; now rewrite Nat.eqb_refl.
  - transitivity (sum_list (peers (data p) r0) (fun _ => of_nat count_ * 1)%ring : K).
    + apply sum_list_ext; intros r inside. unfold partial_sum. rewrite <- sum_filter, sum_const.
      rewrite <- (counts_equal same t j r here) by (eapply peers_ok; eassumption). reflexivity.
    + rewrite sum_times_list, peers_count. ring.
Qed.

Definition means : ratio := fold_right by1 (by1 Tokens (by1 Micro one)) (map Size (data p)).

Lemma mean_means (t : nat) :
  mean p count_ t means = (product share (map size (data p)) * (share count_ * share micro))%ring.
Proof.
  unfold means. generalize (data p) as d; induction d as [|a l IH]; cbn [map fold_right product].
  - rewrite !by1_ok, mean_one by easy. cbn; ring.
  - rewrite by1_ok, IH by easy. cbn [inv]. ring.
Qed.

Lemma inverse_is (n : nat) (k : K) : (of_nat n * k)%ring = 1%ring -> share n = k.
Proof.
  intros inverse. destruct (Nat.eq_dec n 0) as [->|some].
  - cbn in inverse. assert (zero_one : (0 : K)%ring = 1%ring) by (rewrite <- inverse; ring).
    transitivity (1 * share 0)%ring; [ring|]. rewrite <- zero_one. transitivity (0 * k)%ring; [ring|].
    rewrite zero_one; ring.
  - transitivity (share n * (of_nat n * k))%ring; [rewrite inverse; ring|].
    transitivity ((of_nat n * share n) * k)%ring; [ring|]. rewrite share_ok by easy. ring.
Qed.

Lemma sizes_inverse (l : list nat) : (product of_nat (map size l) * product share (map size l))%ring = 1%ring :> K.
Proof.
  induction l as [|a l IH]; cbn [map product]; [ring|].
  transitivity ((of_nat (size a) * share (size a)) * (product of_nat (map size l) * product share (map size l)))%ring;
    [ring|]. rewrite IH, share_ok by (pose proof (size_pos a); lia). ring.
Qed.

Lemma tokens_count (t : nat) : equal p = true ->
  of_nat (length (tokens t)) = (of_nat micro * (of_nat count_ * product of_nat (map size (data p))))%ring :> K.
Proof.
  intros same. unfold tokens. replace (of_nat (length (flat_map (batch t) (seq 0 micro))) : K)
    with (sum_list (flat_map (batch t) (seq 0 micro)) (fun _ => 1%ring) : K) by (rewrite sum_const; ring).
  rewrite sum_flat_map.
  transitivity (sum_list (seq 0 micro) (fun _ : nat => of_nat count_ * product of_nat (map size (data p)))%ring : K).
  - apply sum_list_ext; intros j inside. rewrite sum_const, batch_count by (easy || apply in_seq in inside; lia).
    ring.
  - now rewrite sum_const, seq_length.
Qed.

Lemma of_tokens (t : nat) : equal p = true -> share (length (tokens t)) = mean p count_ t means.
Proof.
  intros same. apply inverse_is. rewrite tokens_count, mean_means by easy.
  transitivity ((of_nat micro * share micro) * (of_nat count_ * share count_) *
    (product of_nat (map size (data p)) * product share (map size (data p))))%ring; [ring|].
  rewrite !share_ok, sizes_inverse by lia. ring.
Qed.

Lemma of_batch (t j : nat) : equal p = true -> j < micro -> (share micro * share (length (batch t j)))%ring = mean
  p count_ t means.
Proof.
  intros same small. rewrite mean_means.
  rewrite (inverse_is (length (batch t j)) (product share (map size (data p)) * share count_)%ring); [ring|].
  rewrite batch_count by easy.
  transitivity ((of_nat count_ * share count_) *
    (product of_nat (map size (data p)) * product share (map size (data p))))%ring; [ring|].
  rewrite share_ok, sizes_inverse by lia. ring.
Qed.

Lemma mean_count (t : nat) : mean p count_ t (by1 Count one) = share (length (tokens t)).
Proof. rewrite by1_ok, mean_one by easy. cbn. ring. Qed.

Lemma wanted_ok (t g j : nat) (k : ratio) : In k (wanted p g) -> j < micro -> weight p t g j = mean p count_ t k.
Proof.
  pose proof (of_tokens t) as all_. pose proof (of_batch t j) as each_. pose proof (mean_count t) as count1.
  unfold wanted, weight. change (summed_at p g) with (adds_up p g). fold means. intros inside small.
  destruct (adds_up p g).
  { destruct inside as [<-|[]]. now rewrite mean_one. }
  apply in_app_iff in inside.
  destruct (weighs p), (equal p) eqn:same; cbn [In] in inside;
    repeat match goal with H : _ \/ _ |- _ => destruct H | H : False |- _ => destruct H end; subst;
    rewrite ?count1, ?mean_one; try easy; auto.
  now rewrite each_, all_.
Qed.

Lemma whole_ok (t j : nat) (now : moment) (g : nat) (c : content) (r : rank) (i : E) :
  whole p now g c = true -> when_ok now j -> group_of i = g -> val t j c r i = inr (grad_at t i).
Proof.
  destruct c as [| | |s| |]; try easy; destruct now; try easy. cbn. intros same -> <-.
  apply existsb_exists in same. destruct same as [c [good same]]. destruct (terms_eq s _) as [->|]; [|easy].
  cbn [co un pt from]. f_equal. unfold grad_at, gradient, covered, partial_sum, given. cbn [near forallb].
  rewrite sum_flat_map, <- sum_list_times. apply sum_list_ext; intros n small. apply in_seq in small.
  rewrite (wanted_ok t (group_of i) n c) by (easy || lia). reflexivity.
Qed.
End Facts.
