(** Strategies: data parallelism, ZeRO-1, ZeRO-3, hybrid sharding and expert parallelism are correct for every number of
    ranks; some bugs are wrong for every number but one.

    What it backs: the verdicts on [dp], [zero1], [zero3] and [hsdp] of placealg/strategy/catalogue.toml, and on
    experts, and four files of proofs/refuted/ (dp_sum_for_mean.toml, deepspeed_8437.toml, megatron_5956.toml,
    veomni_184.toml). Weights are not typed in: they are what the events of Moves.v and Axes.v make of a gradient that
    every rank computes from its own units, each weighted by its local loss.

    Main statements: [data_parallel_correct] with [dp_correct], [zero1_correct], [zero3_correct]; [hsdp_correct];
    [experts_correct]; [sum_for_mean_wrong], [matrix_update_on_shard_wrong], [expert_divisor_wrong] and
    [norm_on_replicas_wrong]; [dead_updates_may_be_wrong] (integrity is asked of live updates alone). *)

From Placealg Require Import Moves Axes Equivalence.

(** ** Shared by all. *)

Section Strategy.
Context {K : CRing} {D E X : Finite} {Name : Type}.
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop) (w_ref : X -> K) (declared : list Name).
Hypothesis near_refl : forall i, near i i.
Add Ring K_ring : (laws K).

(** A program that reads in every step copies that [maker] made in the step before. *)
Definition steady (maker : D -> E -> D) (weigh : D -> E -> X -> D -> K) (count : D -> E -> K)
    (outside : D -> E -> Prop) : program K D E X Name := {|
    load _ d i := Made (maker d i); weight _ := weigh; counts _ _ := count; transforms _ _ _ := declared;
    observed _ := outside |}.

Theorem steady_correct maker weigh count outside :
  (forall d i j, near i j -> forall x, Σ d', weigh (maker d i) j x d' = w_ref x) ->
  (forall d e, count d e <> 0 -> maker d e = d) ->
  (forall e, Σ d, count d e = 1) ->
  equal near sees w_ref declared (steady maker weigh count outside).
Proof.
  intros weights counters once; apply GI_SC_iff_equal; [exact near_refl|].
  assert (makers : forall t d i,
    live_update near sees (steady maker weigh count outside) t d i -> exists d', d = maker d' i).
  { intros t d i live; inversion live as [? ? ? d' copy from]; subst; cbn in from; injection from; eauto. }
  split; [split|].
  - intros t d i x live; inversion live as [? ? i' ? live' near_j|? ? ? in_norm]; subst.
    + destruct (makers _ _ _ live') as [d' ->]; now apply weights.
    + inversion in_norm; subst; cbn in *; rewrite <- (counters d i) by easy; now apply weights.
  - intros; split; [reflexivity|intros; apply once].
  - intros t d i live; cbn; eauto.
Qed.

(** Weights that are [k] times the reference's are wrong, if [k] is not 1. *)
Theorem factor_wrong maker weigh count (outside : D -> E -> Prop) k d i x u :
  outside d i -> (Σ d', weigh (maker d i) i x d') = k * w_ref x -> w_ref x * u = 1 -> k <> 1 ->
  ~ equal near sees w_ref declared (steady maker weigh count outside).
Proof.
  intros reads got inverse apart right; apply GI_SC_iff_equal in right; [|exact near_refl].
  destruct right as [[weights _] _]; specialize (weights 0%nat (maker d i) i x); cbn in weights; rewrite got in weights.
  apply apart; transitivity (k * w_ref x * u); [transitivity (k * (w_ref x * u)); [rewrite inverse|]; ring|].
  rewrite weights; [exact inverse|].
  apply used with (i := i); [|apply near_refl]; apply published with (d' := d); [now apply read_outside|reflexivity].
Qed.

(** So is a norm that counts an element not once, if gradients are clipped by it. *)
Theorem norm_wrong maker weigh count (outside : D -> E -> Prop) d i e :
  outside d i -> declared <> [] -> (Σ d, count d e) <> 1 ->
  ~ equal near sees w_ref declared (steady maker weigh count outside).
Proof.
  intros reads clips apart right; apply GI_SC_iff_equal in right; [|exact near_refl].
  destruct right as [[_ once] _]; apply apart; eapply (once 0%nat (maker d i) i i); auto.
  apply published with (d' := d); [now apply read_outside|reflexivity].
Qed.

End Strategy.

(** ** One data axis. *)

Section DataParallel.
Context {K : CRing} {C E X : Finite} {Name : Type}.
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop) (w_ref : X -> K) (declared : list Name).
Variables (root : C) (inv : K) (junk : C -> E -> K) (home : X -> C) (local_weight : X -> K).
Variables (outside : C -> E -> Prop) (own : E -> C).
Add Ring K_ring' : (laws K).
Hypothesis near_refl : forall i, near i i.
Hypothesis size_inv : size K C * inv = 1.

(** Equal counts: a unit's weight in its rank's mean, averaged over ranks, is its weight in the mean of all. *)
Hypothesis equal_counts : forall x, inv * local_weight x = w_ref x.

(** What the ranks hold of the contribution of unit [x] as rank [c'] computes it, times the divisor of the reduction. *)
Definition computed (factor : K) (x : X) (c' : C) : C -> E -> K :=
  fun c _ => if c == c' then if c' == home x then factor * local_weight x else 0 else 0.

Definition reduced (factor : K) (T : type C E) (d : C) (i : E) (x : X) (c' : C) : K :=
  move root inv junk Part T (computed factor x c') d i.

Lemma reduced_once factor T d i x : T <> Part -> holds T d i ->
  Σ c', reduced factor T d i x c' = factor * local_weight x.
Proof.
  intros whole held; rewrite <- (sum_owner K (home x) (fun _ => factor * local_weight x)).
  apply sum_ext; intros c'; unfold reduced, computed; destruct T as [| | |o]; cbn in *; try easy.
  - apply (sum_owner K c' (fun _ => if c' == home x then factor * local_weight x else 0)).
  - apply (sum_owner K c' (fun _ => if c' == home x then factor * local_weight x else 0)).
  - destruct (d == o i); [|easy]; apply (sum_owner K c' (fun _ => if c' == home x then factor * local_weight x else 0)).
Qed.

(** Gradients are brought to the type [T], times [factor]; [maker] updates; each element is counted in the norm by its
    owner. *)
Definition data_parallel (factor : K) (T : type C E) (maker : C -> E -> C) : program K C E X Name :=
  steady declared maker (reduced factor T) (fun d e => if d == own e then 1 else 0) outside.

Theorem data_parallel_correct T maker : T <> Part ->
  (forall d i j, near i j -> holds T (maker d i) j) -> (forall e, maker (own e) e = own e) ->
  equal near sees w_ref declared (data_parallel inv T maker).
Proof.
  intros whole held self; apply steady_correct; auto.
  - intros; rewrite reduced_once, equal_counts by auto; reflexivity.
  - intros d e; destruct (d == own e) as [->|]; [auto|easy].
  - intros e; apply (sum_owner K (own e) (fun _ => 1)).
Qed.

(** All hold everything, and update everything. *)
Theorem dp_correct : equal near sees w_ref declared (data_parallel inv Inv (fun d _ => d)).
Proof. now apply data_parallel_correct. Qed.

(** Gradients are all-reduced; owners update, and publish to all. An update reads what its owner owns. *)
Hypothesis whole_on_owner : forall i j, near i j -> own i = own j.

Theorem zero1_correct : equal near sees w_ref declared (data_parallel inv Inv (fun _ i => own i)).
Proof. now apply data_parallel_correct. Qed.

(** Gradients are reduce-scattered, owners update, and all gather from them what they use. *)
Theorem zero3_correct : equal near sees w_ref declared (data_parallel inv (Shard own) (fun _ i => own i)).
Proof. apply data_parallel_correct; cbn; auto; discriminate. Qed.

(** Adding gradients up, where the loss asks for their mean: n times too large. *)
Theorem sum_for_mean_wrong T maker d i x u : T <> Part -> holds T (maker d i) i -> outside d i ->
  w_ref x * u = 1 -> size K C <> 1 -> ~ equal near sees w_ref declared (data_parallel 1 T maker).
Proof.
  intros whole held reads inverse apart.
  apply factor_wrong with (k := size K C) (d := d) (i := i) (x := x) (u := u); auto.
  rewrite reduced_once, <- equal_counts by auto.
  transitivity (size K C * inv * local_weight x); [rewrite size_inv|]; ring.
Qed.

(** Where nothing but 0 lies in the memory of ranks that do not own: an update on a shard that reads another shard. *)
Lemma nothing_elsewhere factor d i x : (forall c e, junk c e = 0) -> d <> own i ->
  Σ c', reduced factor (Shard own) d i x c' = 0.
Proof.
  intros nothing apart; rewrite (sum_ext K _ (fun _ => 0)); [apply sum_zero|].
  intros c'; unfold reduced; cbn; destruct (d == own i); [easy|apply nothing].
Qed.

End DataParallel.

(** ZeRO-3 with 0 in all memory that no owner holds. *)
Section Owners.
Context {K : CRing} {C E X : Finite} {Name : Type}.
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop) (w_ref : X -> K) (declared : list Name).
Variables (root : C) (inv : K) (home : X -> C) (local_weight : X -> K) (outside : C -> E -> Prop) (own : E -> C).
Hypothesis near_refl : forall i, near i i.

Definition zero3 : program K C E X Name :=
  data_parallel declared root inv (fun _ _ => 0) home local_weight outside own inv (Shard own) (fun _ i => own i).

(** The hypothesis [whole_on_owner] is needed: an optimizer that reads a whole matrix cannot run on a shard of it. *)
Theorem matrix_update_on_shard_wrong d i j x : near i j -> own i <> own j -> outside d i -> w_ref x <> 0 ->
  ~ equal near sees w_ref declared zero3.
Proof.
  intros near_j apart reads weighs right; apply GI_SC_iff_equal in right; [|exact near_refl].
  destruct right as [[weights _] _]; apply weighs; rewrite <- (weights 0%nat (own i) j x).
  - now apply nothing_elsewhere.
  - apply used with (i := i); [|exact near_j]; apply published with (d' := d); [now apply read_outside|reflexivity].
Qed.

(** And integrity is asked of live updates alone: ZeRO-3 is correct, and on a rank that does not own an element the
    weights in what lies there are wrong. *)
Theorem dead_updates_may_be_wrong d i x : (forall i j, near i j -> own i = own j) -> size K C * inv = 1 ->
  (forall x, inv * local_weight x = w_ref x) -> d <> own i -> w_ref x <> 0 ->
  equal near sees w_ref declared zero3 /\ Σ d', weight zero3 0 d i x d' <> w_ref x.
Proof.
  intros whole size_inv equal_counts elsewhere weighs; split; [now apply zero3_correct|].
  intros right; apply weighs; rewrite <- right; now apply nothing_elsewhere.
Qed.

End Owners.

(** ** Two axes. *)

Section TwoAxes.
Context {K : CRing} {A B E X : Finite} {Name : Type}.
Variables (near : E -> E -> Prop) (sees : X -> E -> E -> Prop) (w_ref : X -> K) (declared : list Name).
Variables (root_a : A) (root_b : B) (inv_a inv_b : K) (junk_a : A -> E -> K) (junk_b : B -> E -> K).
Variables (home : X -> Pair A B) (local_weight : X -> K) (outside : Pair A B -> E -> Prop) (own : E -> B).
Add Ring K_ring'' : (laws K).
Hypothesis near_refl : forall i, near i i.
Hypothesis size_a : size K A * inv_a = 1.
Hypothesis size_b : size K B * inv_b = 1.
Hypothesis equal_counts : forall x, inv_a * inv_b * local_weight x = w_ref x.
Hypothesis whole_on_owner : forall i j, near i j -> own i = own j.

Definition stands {C : Finite} (c' : C) : C -> E -> K := fun c _ => if c == c' then 1 else 0.

(** Each replica holds one copy, its ranks shards of it: owners along [B], in the replica of the reader. *)
Definition in_replica (d : Pair A B) (i : E) : Pair A B := (fst d, own i).

(** Hybrid sharding: gradients are averaged to the owners within a replica, then over replicas. *)
Definition hybrid (d : Pair A B) (i : E) (x : X) (d' : Pair A B) : K :=
  inv_a * inv_b * (if d' == home x then local_weight x else 0)
  * along_a root_a inv_a junk_a Part Inv (along_b root_b inv_b junk_b Part (Shard own)
      (fun a b e => stands (fst d') a e * stands (snd d') b e)) (fst d) (snd d) i.

(** In the norm, an element counts once: at its owner, in the replica [root_a]. *)
Definition hsdp : program K (Pair A B) E X Name :=
  steady declared in_replica hybrid (fun d e => if d == ((root_a, own e) : Pair A B) then 1 else 0) outside.

Theorem hsdp_correct : equal near sees w_ref declared hsdp.
Proof.
  apply steady_correct; auto.
  - intros [a b] i j near_j x.
    rewrite <- equal_counts, <- (sum_owner K (home x) (fun _ => inv_a * inv_b * local_weight x)).
    apply sum_ext; intros d'; unfold hybrid; destruct (d' == home x); [|ring].
    rewrite weights_multiply by (cbn; auto using whole_on_owner); unfold stands; cbn.
    rewrite (whole_on_owner i j near_j); destruct (own j == own j); [|easy].
    rewrite (sum_owner K (fst d') (fun _ => 1)), (sum_owner K (snd d') (fun _ => 1)); ring.
  - intros [a b] e; destruct (_ == _) as [[=]|]; [|easy]; intros _; unfold in_replica; cbn; congruence.
  - intros e; apply (sum_owner K ((root_a, own e) : Pair A B) (fun _ => 1)).
Qed.

(** If every replica counts it, an element is counted as many times as there are replicas. *)
Theorem norm_on_replicas_wrong d i : outside d i -> declared <> [] -> size K A <> 1 ->
  ~ equal near sees w_ref declared
      (steady declared in_replica hybrid (fun d e => if snd d == own e then 1 else 0) outside).
Proof.
  intros reads clips apart; apply norm_wrong with (d := d) (i := i) (e := i); auto.
  rewrite sum_pair; intros once; apply apart; rewrite <- once; apply sum_ext; intros a.
  symmetry; apply (sum_owner K (own i) (fun _ => 1)).
Qed.

(** Expert parallelism: tokens of all ranks of a row come to the expert's owner, who computes their contributions;
    [A] are the replicas of an expert. Local losses are means over a rank's tokens, so that the gradient is to be
    divided by the ranks of both axes; [factor] is what it is multiplied by. *)
Definition expert_weight (factor : K) (d : Pair A B) (i : E) (x : X) (d' : Pair A B) : K :=
  move root_a inv_a junk_a Part Inv
    (fun a e => stands (fst d') a e * (if d' == ((fst (home x), own e) : Pair A B) then factor * local_weight x else 0))
    (fst d) i.

Definition experts (factor : K) : program K (Pair A B) E X Name :=
  steady declared in_replica (expert_weight factor)
    (fun d e => if d == ((root_a, own e) : Pair A B) then 1 else 0) outside.

Lemma expert_once factor d i x : Σ d', expert_weight factor d i x d' = factor * local_weight x.
Proof.
  rewrite <- (sum_owner K ((fst (home x), own i) : Pair A B) (fun _ => factor * local_weight x)).
  apply sum_ext; intros d'; unfold expert_weight, stands; cbn.
  apply (sum_indicator K (fst d') (fun _ => if d' == _ then _ else _)).
Qed.

Theorem experts_correct : equal near sees w_ref declared (experts (inv_a * inv_b)).
Proof.
  apply steady_correct; auto.
  - intros; now rewrite expert_once.
  - intros [a b] e; destruct (_ == _) as [[=]|]; [|easy]; intros _; unfold in_replica; cbn; congruence.
  - intros e; apply (sum_owner K ((root_a, own e) : Pair A B) (fun _ => 1)).
Qed.

(** Dividing by the replicas alone is as many times too large as there are expert ranks. *)
Theorem expert_divisor_wrong d i x u : outside d i -> w_ref x * u = 1 -> size K B <> 1 ->
  ~ equal near sees w_ref declared (experts inv_a).
Proof.
  intros reads inverse apart.
  apply factor_wrong with (k := size K B) (d := d) (i := i) (x := x) (u := u); auto.
  rewrite expert_once, <- equal_counts.
  transitivity (size K B * inv_b * (inv_a * local_weight x)); [rewrite size_b|]; ring.
Qed.

End TwoAxes.
