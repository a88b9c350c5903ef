(** Counts of tokens, what a ratio of the program says, and what is called whole.

    What it backs: the kernel.

    Main statements: [ratio_ok], [whole_ok] (what is called whole is the reference's gradient). *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms Maxima.
From Placealg.kernel Require Import Facts.
Open Scope nat_scope.

Section Counting.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.

Notation mean := (mean p count_).
Notation coef := (coef p count_).
Notation val := (val p count_).

Definition when_ok (now : moment) (j : nat) : Prop :=
  match now with Early => True | Amid => j < micro | Late => j = micro end.

(** The count of tokens and the loss scale are as the facts say. *)
Definition spoken (t j : nat) (f : facts) (m : memory) : Prop :=
  (forall n each un, nth n (tallied (counts f)) None = Some (each, un) -> forall r, ok r ->
     tally m n r = length (filter (near un r) (counted p n t j each))) /\
  (current f LossScale = true -> forall r, ok r -> count m LossScale false r = Some (loss_scale p t)).

Lemma sum_over_all {Y : Type} (token : Y -> X) (l : list Y) (f : Y -> K) (along un : list nat) (r : rank) :
  (forall a m m', along = m ++ a :: m' -> mem a m' = false) -> (forall a, In a along -> mem a un = true) ->
  sum_list (peers along r) (partial_sum token l un f) = partial_sum token l (filter (fun b => negb (mem b along)) un)
    f r.
Proof.
  revert r; induction along as [|a along IH]; intros r once all.
  - cbn [peers sum_list]. replace (filter _ un) with un.
    + ring.
    + clear; induction un; cbn; [easy|]; now f_equal.
  - rewrite peers_sum.
    transitivity (sum_list (seq 0 (size a)) (fun c =>
      partial_sum token l (filter (fun b => negb (mem b along)) un) f (put r a c))).
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

(** ** Counts that are equal *)

Lemma once_filter (P : nat -> bool) (l : list nat) : (forall a k k', l = k ++ a :: k' -> mem a k' = false) ->
  forall a k k', filter P l = k ++ a :: k' -> mem a k' = false.
Proof.
  induction l as [|b l IH]; intros once_ a k k' split_; [now destruct k|]. cbn [filter] in split_.
  assert (rest : forall a k k', l = k ++ a :: k' -> mem a k' = false).
  { intros a' m m' e. apply (once_ a' (b :: m) m'). now rewrite e. }
  destruct (P b); [|now apply (IH rest a k k')]. destruct k as [|c k]; injection split_ as -> split_.
  - specialize (once_ a [] l eq_refl). clear - once_ split_. subst. induction l as [|b l IH]; [easy|].
    unfold mem in *. cbn [existsb filter] in *. apply orb_false_iff in once_. destruct once_ as [apart_ out].
    destruct (P b); cbn [existsb]; [rewrite apart_; cbn|]; now apply IH.
  - now apply (IH rest a k k').
Qed.

Lemma mem_filter (P : nat -> bool) (a : nat) (l : list nat) : mem a (filter P l) = mem a l && P a.
Proof.
  induction l as [|b l IH]; [easy|]. unfold mem in *. cbn [filter existsb]. destruct (P b) eqn:yes; cbn [existsb].
  - rewrite IH. destruct (a =? b) eqn:same; [|easy]. apply Nat.eqb_eq in same. subst. now rewrite yes.
  - rewrite IH. destruct (a =? b) eqn:same; [|easy]. apply Nat.eqb_eq in same. subst. rewrite yes. cbn [orb andb].
    now rewrite andb_false_r.
Qed.

Lemma near_same (l m : list nat) (r : rank) (x : X) : (forall a, mem a l = mem a m) -> near l r x = near m r x.
Proof.
  intros same. unfold near. apply eq_true_iff_eq. rewrite !forallb_forall.
  assert (in_ : forall a k, In a k <-> mem a k = true).
  { intros a k. unfold mem. rewrite existsb_exists. split; [intros; exists a; split; [easy|apply Nat.eqb_refl]|].
    intros [b [inside e]]. apply Nat.eqb_eq in e. now subst. }
  split; intros all a inside; apply all; apply in_; apply in_ in inside; [now rewrite same|now rewrite <- same].
Qed.

Definition others (un : list nat) : list nat := filter (fun a => negb (mem a un)) (data p).

Lemma left_over (un : list nat) (a : nat) : inside_of un (data p) = true ->
  mem a (filter (fun b => negb (mem b (others un))) (data p)) = mem a un.
Proof.
  intros all. unfold others. rewrite !mem_filter. destruct (mem a un) eqn:there.
  - unfold inside_of in all. rewrite forallb_forall in all. rewrite all; [easy|].
    unfold mem in there. apply existsb_exists in there. destruct there as [b [inside e]]. apply Nat.eqb_eq in e.
    now subst.
  - destruct (mem a (data p)); easy.
Qed.

Lemma near_count (un : list nat) (n t j : nat) (r : rank) : equal p = true -> n <= further p -> j < micro -> ok r ->
  inside_of un (data p) = true -> of_nat (length (filter (near un r) (of_loss p n (batch t j)))) =
  (of_nat (count_ n) * product of_nat (map size (others un)))%ring :> K.
Proof.
  intros same known here good all. set (l := of_loss p n (batch t j)).
  transitivity (sum_list (peers (others un) r) (partial_sum (fun x : X => x) l (data p) (fun _ => 1%ring))).
  - rewrite sum_over_all.
    + unfold partial_sum. rewrite <- sum_filter, sum_const.
      rewrite (filter_ext (near (filter (fun b => negb (mem b (others un))) (data p)) r) (near un r)); [ring|].
      intros x. apply near_same. intros a. now apply left_over.
    + now apply once_filter.
    + intros a inside. apply filter_In in inside. destruct inside as [inside _]. unfold mem. apply existsb_exists.
      exists a. split; [easy|apply Nat.eqb_refl].
  - transitivity (sum_list (peers (others un) r) (fun _ => of_nat (count_ n) * 1)%ring : K).
    + apply sum_list_ext; intros r' inside. unfold partial_sum. rewrite <- sum_filter, sum_const.
      assert (good' : ok r') by (eapply peers_ok; eassumption).
      now rewrite <- (counts_equal same n t j r' known here good').
    + rewrite sum_times_list, peers_count. ring.
Qed.

Lemma of_loss_flat (n : nat) (g : nat -> list X) (l : list nat) :
  of_loss p n (flat_map g l) = flat_map (fun j => of_loss p n (g j)) l.
Proof. unfold of_loss. induction l as [|a l IH]; [easy|]. cbn. now rewrite filter_app, IH. Qed.

Definition steps_of (each : bool) : list symbol := if each then [] else [Micro].

Lemma counted_equal (each : bool) (un : list nat) (n t j : nat) (r : rank) : equal p = true -> n <= further p ->
  (each = true -> j < micro) -> ok r -> inside_of un (data p) = true ->
  of_nat (length (filter (near un r) (counted p n t j each))) =
  product (num p count_ t j) (Tokens n :: steps_of each ++ map Size (others un)) :> K.
Proof.
  intros same known here good all.
  assert (sizes : forall l, product (num p count_ t j) (map Size l) = product of_nat (map size l) :> K).
  { induction l as [|a l IH]; [easy|]. cbn. now rewrite IH. }
  unfold counted, steps_of. destruct each; cbn [app product num]; rewrite sizes.
  - now rewrite near_count by auto.
  - unfold tokens. rewrite of_loss_flat.
    transitivity (sum_list (flat_map (fun j => of_loss p n (batch t j)) (seq 0 micro))
      (fun x => if near un r x then 1%ring else 0%ring) : K); [rewrite <- sum_filter, sum_const; ring|].
    rewrite sum_flat_map.
    transitivity (sum_list (seq 0 micro) (fun _ : nat => of_nat (count_ n) *
      product of_nat (map size (others un)))%ring : K).
    + apply sum_list_ext; intros j' inside. apply in_seq in inside.
      rewrite <- (near_count un n t j' r) by (easy || lia). rewrite <- sum_filter, sum_const. ring.
    + rewrite sum_const, seq_length. ring.
Qed.

Lemma inverse_product (t j : nat) (l : list symbol) : forallb cancels l = true ->
  (product (num p count_ t j) l * product (inv p count_ t j) l)%ring = 1%ring :> K.
Proof.
  induction l as [|s l IH]; intros all; [cbn; ring|]. cbn [forallb product] in *. apply andb_true_iff in all.
  destruct all as [can all].
  transitivity ((num p count_ t j s * inv p count_ t j s) *
    (product (num p count_ t j) l * product (inv p count_ t j) l))%ring; [ring|].
  rewrite IH, (num_inv p count_ t count_pos micro_pos j s can) by easy. ring.
Qed.

Lemma counted_share (each : bool) (un : list nat) (n t j : nat) (r : rank) : equal p = true -> n <= further p ->
  (each = true -> j < micro) -> ok r -> inside_of un (data p) = true ->
  share (length (filter (near un r) (counted p n t j each))) =
  product (inv p count_ t j) (Tokens n :: steps_of each ++ map Size (others un)) :> K.
Proof.
  intros same known here good all. apply inverse_is. rewrite (counted_equal each un n t j r) by easy.
  apply inverse_product. cbn [forallb cancels]. rewrite forallb_app. unfold steps_of.
  assert (sizes : forallb cancels (map Size (others un)) = true) by (induction (others un); easy).
  now destruct each.
Qed.

(** ** What is said *)

Lemma product_app (f : symbol -> K) (l m : list symbol) : product f (l ++ m) = (product f l * product f m)%ring.
Proof. induction l as [|s l IH]; cbn; [ring|]. rewrite IH. ring. Qed.

Lemma all_meant (f : facts) (now : moment) (at_ : when) (F G : symbol -> K) (l : list symbol) (o : list (list symbol)) :
  (forall s m, meant p now f at_ s = Some m -> F s = product G m) ->
  everything (map (meant p now f at_) l) = Some o -> product F l = product G (concat o).
Proof.
  intros each_. revert o; induction l as [|s l IH]; intros o found; cbn in found; [now injection found as <-|].
  destruct (meant p now f at_ s) as [m|] eqn:this; [|easy].
  destruct (everything _) as [o'|]; [|easy]. injection found as <-. cbn [product concat].
  now rewrite product_app, (IH o' eq_refl), (each_ s m this).
Qed.

Lemma meant_ok (t j j' : nat) (now : moment) (f : facts) (at_ : when) (m : memory) (r : rank) (s : symbol)
    (l : list symbol) : spoken t j f m -> when_ok now j -> ok r -> (at_ = Now -> j' = j) ->
  meant p now f at_ s = Some l ->
  number_of p m t j r s = product (num p count_ t j') l /\ inverse_of p m t j r s = product (inv p count_ t j') l.
Proof.
  intros [told_ scale_] here good now_ found.
  destruct s as [n|n| |a| |n|n e]; cbn [meant number_of inverse_of] in *.
  - revert found. case_eq (equal p); intros same; [|easy]. cbn [andb].
    destruct (n <=? further p) eqn:small; [|easy]. apply Nat.leb_le in small. intros found.
    destruct now; try easy. injection found as <-. cbn [product num inv].
    rewrite (counts_equal same n t j r) by easy. split; ring.
  - destruct (nth n (tallied (counts f)) None) as [[each un]|] eqn:known; [|easy].
    rewrite (told_ n each un known r good).
    destruct (negb each || amid now) eqn:can; [|easy].
    assert (inside : each = true -> j < micro).
    { intros e. rewrite e in can. now destruct now. }
    revert found. case_eq (equal p); intros same found.
    + destruct ((n <=? further p) && inside_of un (data p)) eqn:all; [|easy]. injection found as <-.
      apply andb_true_iff in all. destruct all as [small all]. apply Nat.leb_le in small.
      change (filter _ (data p)) with (others un). fold (steps_of each).
      assert (free : forall F G : symbol -> K, (forall s, In s (Tokens n :: steps_of each ++ map Size (others un)) ->
        F s = G s) ->
        product F (Tokens n :: steps_of each ++ map Size (others un)) = product G (Tokens n :: steps_of each ++ map
          Size (others un))).
      { intros; now apply product_ext. }
      assert (no : forall s, In s (Tokens n :: steps_of each ++ map Size (others un)) -> cancels s = true).
      { intros s [<-|in_]; [easy|]. apply in_app_iff in in_. destruct in_ as [in_|in_].
        - unfold steps_of in in_. destruct each; [easy|]. now destruct in_ as [<-|[]].
        - apply in_map_iff in in_. now destruct in_ as [a [<- _]]. }
      split.
      * rewrite (counted_equal each un n t j r) by easy. apply free. intros s in_. specialize (no s in_). now destruct
        s.
      * rewrite (counted_share each un n t j r) by easy. apply free. intros s in_. specialize (no s in_). now destruct
        s.
    + assert (whole_ : un = [] /\ (each = true -> j' = j) /\ l = [All n each]).
      { destruct un; [|easy]. destruct each.
        - destruct at_; try easy. injection found as <-. auto.
        - injection found as <-. now split. }
      destruct whole_ as [-> [same_ ->]]. cbn [product num inv].
      replace (filter (near [] r) (counted p n t j each)) with (counted p n t j' each)
        by (unfold counted; destruct each; [rewrite same_ by easy|];
            generalize (of_loss p n) as g; intros g; match goal with |- ?x = filter _ ?x =>
              generalize x as k; induction k as [|a k IH]; [easy|]; cbn; now f_equal end).
      split; ring.
  - injection found as <-. cbn. split; ring.
  - injection found as <-. cbn. split; ring.
  - destruct (current f LossScale) eqn:cur; [|easy]. injection found as <-. unfold scale_state.
    rewrite (scale_ eq_refl r good). cbn. split; ring.
  - injection found as <-. cbn. split; ring.
  - easy.
Qed.

Lemma ratio_ok (t j j' : nat) (now : moment) (f : facts) (at_ : when) (m : memory) (r : rank) (k k' : ratio) :
  spoken t j f m -> when_ok now j -> ok r -> (at_ = Now -> j' = j) -> said p now f at_ k = Some k' ->
  ratio_of p m t j r k = mean t j' k'.
Proof.
  intros told_ here good now_. unfold said.
  destruct (everything (map _ (over k))) as [o|] eqn:top; [|easy].
  destruct (everything (map _ (under k))) as [u|] eqn:low; [|easy]. intros [= <-].
  rewrite times_ok, mean_one by easy. unfold ratio_of, Scaling.mean. cbn [over under].
  rewrite (all_meant f now at_ (number_of p m t j r) (num p count_ t j') _ o) by
    (easy || (intros s l is; exact (proj1 (meant_ok t j j' now f at_ m r s l told_ here good now_ is)))).
  rewrite (all_meant f now at_ (inverse_of p m t j r) (inv p count_ t j') _ u) by
    (easy || (intros s l is; exact (proj2 (meant_ok t j j' now f at_ m r s l told_ here good now_ is)))).
  ring.
Qed.

(** ** What is called whole *)

Lemma its_loss_small (x : X) : its_loss p x <= further p.
Proof.
  clear count_pos micro_pos counts_equal data_once. unfold its_loss.
  destruct (loss_of x <=? further p) eqn:small; [now apply Nat.leb_le|lia].
Qed.

Lemma near_none (r : rank) (l : list X) : filter (near [] r) l = l.
Proof. induction l as [|x l IH]; [easy|]. cbn. now rewrite IH. Qed.

Lemma mean_means (t j n : nat) :
  mean t j (means p n) = (product share (map size (data p)) * (share (count_ n) * share micro))%ring.
Proof.
  unfold means. generalize (data p) as d; induction d as [|a l IH]; cbn [map fold_right product].
  - rewrite !by1_ok, mean_one by easy. cbn; ring.
  - rewrite by1_ok, IH by easy. cbn [inv]. ring.
Qed.

Lemma all_data : others [] = data p.
Proof.
  unfold others. generalize (data p). intros l. induction l as [|a l IH]; [easy|]. cbn. f_equal. exact IH.
Qed.

Lemma of_batch (n t j : nat) : equal p = true -> n <= further p -> j < micro ->
  (share micro * share (length (of_loss p n (batch t j))))%ring = mean t j (means p n).
Proof.
  intros same small here. rewrite mean_means. pose (r0 := (fun _ => 0) : rank).
  assert (good : ok r0) by (intros a; apply size_pos).
  rewrite (inverse_is (length (of_loss p n (batch t j)))
    (product share (map size (data p)) * share (count_ n))%ring); [ring|].
  rewrite <- (near_none r0 (of_loss p n (batch t j))), near_count, all_data by easy.
  transitivity ((of_nat (count_ n) * share (count_ n)) *
    (product of_nat (map size (data p)) * product share (map size (data p))))%ring; [ring|].
  rewrite share_ok, sizes_inverse by (specialize (count_pos n); lia). ring.
Qed.

Lemma of_tokens (n t j : nat) : equal p = true -> n <= further p -> j < micro ->
  share (length (of_loss p n (tokens t))) = mean t j (means p n).
Proof.
  intros same small here. rewrite mean_means. pose (r0 := (fun _ => 0) : rank).
  assert (good : ok r0) by (intros a; apply size_pos). apply inverse_is. unfold tokens. rewrite of_loss_flat.
  replace (of_nat (length (flat_map (fun j => of_loss p n (batch t j)) (seq 0 micro))) : K)
    with (sum_list (flat_map (fun j => of_loss p n (batch t j)) (seq 0 micro)) (fun _ => 1%ring) : K)
    by (rewrite sum_const; ring).
  rewrite sum_flat_map.
  transitivity (sum_list (seq 0 micro) (fun _ : nat => of_nat (count_ n) * product of_nat (map size (data p)))%ring *
    (product share (map size (data p)) * (share (count_ n) * share micro)))%ring.
  - f_equal. apply sum_list_ext; intros j' inside. apply in_seq in inside. rewrite sum_const.
    rewrite <- (near_none r0 (of_loss p n (batch t j'))), near_count, all_data by (easy || lia). ring.
  - rewrite sum_const, seq_length.
    transitivity ((of_nat micro * share micro) * (of_nat (count_ n) * share (count_ n)) *
      (product of_nat (map size (data p)) * product share (map size (data p))))%ring; [ring|].
    rewrite !share_ok, sizes_inverse by (lia || specialize (count_pos n); lia). ring.
Qed.

Lemma ratio_inside (k : ratio) (l : list ratio) : ratio_in k l = true -> In k l.
Proof.
  unfold ratio_in. rewrite existsb_exists. intros [k' [inside same]]. destruct (ratio_eq k k') as [->|]; easy.
Qed.

Lemma wanted_ok (t g n j : nat) (k : ratio) : In k (wanted p g n) -> n <= further p -> j < micro ->
  weight p t g n j = mean t j k.
Proof.
  unfold wanted, weight. change (summed_at p g) with (adds_up p g). intros inside small here.
  destruct (adds_up p g); [destruct inside as [<-|[]]; now rewrite mean_one|].
  revert inside. case_eq (equal p); intros same inside; destruct (weighs p);
    cbn [In] in inside;
    repeat match goal with H : _ \/ _ |- _ => destruct H | H : False |- _ => destruct H end; subst;
    rewrite ?mean_one, ?(of_tokens n t j), ?(of_batch n t j) by easy; try easy;
    rewrite !by1_ok, mean_one by easy; cbn [inv]; unfold counted; ring.
Qed.

Lemma statistic_apart (t : nat) (us : list nat) (x : X) (i : E) : by_gradient p (group_of i) = false ->
  its_loss p x <> 0 -> given p t us x i = 0%ring.
Proof.
  intros no other. unfold given, contribution. rewrite no. apply Nat.eqb_neq in other. rewrite other.
  induction us as [|u us IH]; [easy|]. cbn [sum_list]. rewrite IH. ring.
Qed.

Lemma whole_ok (t j : nat) (now : moment) (g : nat) (c : content) (r : rank) (i : E) :
  whole p now g c = true -> when_ok now j -> group_of i = g -> val t j c r i = inr (grad_at p t i).
Proof.
  destruct c as [| | |s| |]; try easy; destruct now; try easy. cbn [whole]. intros all -> <-.
  apply andb_true_iff in all. destruct all as [form all]. destruct (terms_eq s _) as [->|]; [clear form|easy].
  cbn [how un pt from Facts.val] in *. f_equal. unfold grad_at, gradient.
  change (most_at p (group_of i)) with (takes_most p (group_of i)) in all.
  destruct (how s) as [co|].
  - apply andb_true_iff in all. destruct all as [no all]. apply negb_true_iff in no. rewrite no.
    unfold partial_sum, covered. rewrite sum_flat_map. apply sum_list_ext; intros n small. apply in_seq in small.
    unfold items. rewrite sum_list_map. apply sum_list_ext; intros x _. cbn [near forallb snd].
    unfold given_by. fold (sites_at p (group_of i)). change (sites_at p) with (sites_of p).
    fold (given p t (sites_of p (group_of i)) x i). unfold Scaling.coef. cbn [fst snd].
    unfold weighed in all. rewrite forallb_forall in all. specialize (all (its_loss p x)).
    unfold losses in all. rewrite in_seq in all. specialize (all ltac:(pose proof (its_loss_small x); lia)).
    apply orb_true_iff in all. destruct all as [all|all].
    + apply andb_true_iff in all. destruct all as [graded_ other]. apply negb_true_iff in graded_.
      apply Nat.ltb_lt in other. change (graded_at p) with (by_gradient p) in graded_.
      rewrite statistic_apart by (easy || lia). destruct (nth_error co _); ring.
    + destruct (nth_error co _) as [k|]; [|easy]. apply ratio_inside in all.
      rewrite (wanted_ok t (group_of i) (its_loss p x) n k) by (easy || lia || apply its_loss_small). reflexivity.
  - rewrite all. unfold partial_most, covered. rewrite greatest_flat. apply greatest_ext; intros n _.
    unfold items. rewrite greatest_map. reflexivity.
Qed.
End Counting.
