(** Sums over ranks, tokens and elements, and the ratios by which gradients are scaled.

    What it backs: the kernel; each lemma is about one line of Check.v.

    Main statement: [sum_reduced] (a sum over ranks of partial gradients is what [reduced] says), [sum_norm]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
Open Scope nat_scope.

Section Algebra.
Context {w : world}.
Add Ring K_ring : (laws K).
Local Open Scope ring_scope.

Lemma sum_flat_map {A B : Type} (g : A -> list B) (l : list A) (f : B -> K) :
  sum_list (flat_map g l) f = sum_list l (fun a => sum_list (g a) f).
Proof. induction l as [|a l IH]; cbn; [easy|]. now rewrite sum_list_app, IH. Qed.

Lemma sum_swap_list {A B : Type} (l : list A) (m : list B) (f : A -> B -> K) :
  sum_list l (fun a => sum_list m (f a)) = sum_list m (fun b => sum_list l (fun a => f a b)).
Proof.
  induction l as [|a l IH]; cbn.
  - symmetry; apply sum_list_zero.
  - now rewrite IH, sum_list_plus.
Qed.

Lemma sum_times_list {A : Type} (l : list A) (k : K) (f : A -> K) : sum_list l (fun a => k * f a) = k * sum_list l f.
Proof. apply sum_list_times. Qed.

Lemma sum_filter {A : Type} (P : A -> bool) (l : list A) (f : A -> K) :
  sum_list (filter P l) f = sum_list l (fun a => if P a then f a else 0).
Proof. induction l as [|a l IH]; cbn; [easy|]. destruct (P a); cbn; rewrite IH; ring. Qed.

Lemma sum_const {A : Type} (l : list A) (k : K) : sum_list l (fun _ => k) = of_nat (length l) * k.
Proof. induction l as [|a l IH]; cbn; [ring|]. rewrite IH; ring. Qed.

Lemma sum_absent (s n y : nat) (f : nat -> K) : (y < s)%nat ->
  sum_list (seq s n) (fun c => if (c =? y)%nat then f c else 0) = 0.
Proof.
  revert s; induction n as [|n IH]; intros s out; cbn; [easy|].
  replace (s =? y)%nat with false by (symmetry; apply Nat.eqb_neq; lia). rewrite IH by lia. ring.
Qed.

Lemma sum_pick (n y : nat) (f : nat -> K) : (y < n)%nat ->
  sum_list (seq 0 n) (fun c => if (c =? y)%nat then f c else 0) = f y.
Proof.
  intros inside. assert (all : forall s n, (s <= y)%nat -> (y < s + n)%nat ->
    sum_list (seq s n) (fun c => if (c =? y)%nat then f c else 0) = f y).
  { clear n inside. intros s n; revert s; induction n as [|n IH]; intros s low high; cbn; [lia|].
    destruct (s =? y)%nat eqn:here.
    - apply Nat.eqb_eq in here; subst. rewrite sum_absent by lia. ring.
    - apply Nat.eqb_neq in here. rewrite IH by lia. ring. }
  apply all; lia.
Qed.

Lemma of_nat_app (a b : nat) : of_nat (a + b) = of_nat a + of_nat b :> K.
Proof. induction a as [|a IH]; cbn; [ring|]. rewrite IH; ring. Qed.
Lemma of_nat_mul (a b : nat) : of_nat (a * b) = of_nat a * of_nat b :> K.
Proof. induction a as [|a IH]; cbn; [ring|]. rewrite of_nat_app, IH; ring. Qed.

(** ** Ranks *)

Lemma peers_sum (a : nat) (l : list nat) (r : rank) (F : rank -> K) :
  sum_list (peers (a :: l) r) F = sum_list (seq 0 (size a)) (fun c => sum_list (peers l (put r a c)) F).
Proof. cbn. apply sum_flat_map. Qed.

Lemma put_same (r : rank) (a c : nat) : put r a c a = c.
Proof. unfold put; now rewrite Nat.eqb_refl. Qed.
Lemma put_other (r : rank) (a b c : nat) : a <> b -> put r a c b = r b.
Proof. intros apart; unfold put. destruct (b =? a)%nat eqn:e; [apply Nat.eqb_eq in e; congruence|easy]. Qed.

Lemma ok_put (r : rank) (a c : nat) : ok r -> (c < size a)%nat -> ok (put r a c).
Proof.
  intros good small b. unfold put. destruct (b =? a)%nat eqn:e; [apply Nat.eqb_eq in e; now subst|apply good].
Qed.

Lemma peers_ok (l : list nat) (r r' : rank) : ok r -> In r' (peers l r) -> ok r'.
Proof.
  revert r; induction l as [|a l IH]; intros r good inside; cbn in inside.
  - destruct inside as [<-|[]]; easy.
  - apply in_flat_map in inside; destruct inside as [c [small inside]].
    apply in_seq in small. apply (IH (put r a c)); [apply ok_put; [easy|lia]|easy].
Qed.

Lemma peers_outside (l : list nat) (r r' : rank) (a : nat) : In r' (peers l r) -> mem a l = false -> r' a = r a.
Proof.
  revert r; induction l as [|b l IH]; intros r inside out; cbn in inside.
  - now destruct inside as [<-|[]].
  - apply in_flat_map in inside; destruct inside as [c [_ inside]].
    cbn in out; apply orb_false_iff in out; destruct out as [apart out].
    rewrite (IH _ inside out). apply put_other. apply Nat.eqb_neq in apart; congruence.
Qed.

Lemma peers_not_empty (l : list nat) (r : rank) : peers l r <> [].
Proof.
  revert r; induction l as [|a l IH]; intros r; cbn; [easy|].
  pose proof (size_pos a). destruct (size a) as [|n]; [lia|]. cbn.
  specialize (IH (put r a 0)). now destruct (peers l (put r a 0)).
Qed.

(** ** Partial gradients *)

Lemma near_put_in (un : list nat) (r : rank) (a c : nat) (x : X) : mem a un = true ->
  near un (put r a c) x = (c =? home x a)%nat && near (filter (fun b => negb (a =? b)%nat) un) r x.
Proof.
  unfold near. assert (out : forall un, mem a un = false ->
    forallb (fun a' => put r a c a' =? home x a')%nat un
    = forallb (fun a' => r a' =? home x a')%nat (filter (fun b => negb (a =? b)%nat) un)).
  { clear un; induction un as [|b un IH]; cbn; intros out; [easy|]. apply orb_false_iff in out; destruct out as
    [apart out].
    rewrite apart; cbn. rewrite IH by easy. rewrite put_other; [easy|apply Nat.eqb_neq in apart; congruence]. }
  induction un as [|b un IH]; cbn; intros inside; [easy|].
  destruct (a =? b)%nat eqn:e; cbn in *.
  - apply Nat.eqb_eq in e; subst b. rewrite put_same.
    destruct (mem a un) eqn:again.
    + rewrite IH by easy. now destruct (c =? home x a)%nat.
    + now rewrite out by easy.
  - rewrite IH by easy. rewrite put_other by (apply Nat.eqb_neq in e; congruence).
    destruct (r b =? home x b)%nat, (c =? home x a)%nat; cbn; try easy.
Qed.

Lemma near_put_out (un : list nat) (r : rank) (a c : nat) (x : X) : mem a un = false ->
  near un (put r a c) x = near un r x.
Proof.
  unfold near; induction un as [|b un IH]; cbn; intros out; [easy|]. apply orb_false_iff in out; destruct out as
    [apart out].
  rewrite IH by easy. rewrite put_other; [easy|apply Nat.eqb_neq in apart; congruence].
Qed.

Definition partial_sum (l : list X) (un : list nat) (f : X -> K) (r : rank) : K :=
  sum_list l (fun x => if near un r x then f x else 0).

Lemma sum_axis_in (l : list X) (un : list nat) (f : X -> K) (r : rank) (a : nat) : mem a un = true ->
  sum_list (seq 0 (size a)) (fun c => partial_sum l un f (put r a c))
  = partial_sum l (filter (fun b => negb (a =? b)%nat) un) f r.
Proof.
  intros inside. unfold partial_sum. rewrite sum_swap_list. apply sum_list_ext; intros x _.
  set (un' := filter _ un).
  transitivity (sum_list (seq 0 (size a)) (fun c => if (c =? home x a)%nat then (if near un' r x then f x else 0)
    else 0)).
  - apply sum_list_ext; intros c _. rewrite near_put_in by easy. fold un'. now destruct (c =? home x a)%nat.
  - apply (sum_pick (size a) (home x a) (fun _ => if near un' r x then f x else 0)), home_ok.
Qed.

Lemma sum_axis_out (l : list X) (un : list nat) (f : X -> K) (r : rank) (a : nat) : mem a un = false ->
  sum_list (seq 0 (size a)) (fun c => partial_sum l un f (put r a c)) = of_nat (size a) * partial_sum l un f r.
Proof.
  intros out. transitivity (sum_list (seq 0 (size a)) (fun _ => partial_sum l un f r)).
  - apply sum_list_ext; intros c _. apply sum_list_ext; intros x _. now rewrite near_put_out.
  - rewrite sum_const. now rewrite seq_length.
Qed.

(** ** Counts of tokens *)

Lemma list_sum_flat {A B : Type} (f : B -> nat) (g : A -> list B) (l : list A) :
  list_sum (map f (flat_map g l)) = list_sum (map (fun a => list_sum (map f (g a))) l).
Proof. induction l as [|a l IH]; [easy|]. cbn [flat_map map list_sum fold_right]. rewrite map_app, list_sum_app, IH.
  easy. Qed.

Lemma pick_count (n y s : nat) : list_sum (map (fun c => if (c =? y)%nat then 1%nat else 0%nat) (seq s n)) =
  (if (s <=? y) && (y <? s + n) then 1 else 0)%nat.
Proof.
  revert s; induction n as [|n IH]; intros s; cbn [seq map list_sum fold_right].
  - destruct (s <=? y)%nat eqn:a, (y <? s + 0)%nat eqn:b; try easy. apply Nat.leb_le in a. apply Nat.ltb_lt in b. lia.
  - fold (list_sum (map (fun c => if (c =? y)%nat then 1%nat else 0%nat) (seq (S s) n))). rewrite IH.
    destruct (s =? y)%nat eqn:a, (S s <=? y)%nat eqn:b, (y <? S s + n)%nat eqn:c, (s <=? y)%nat eqn:d, (y <? s + S
      n)%nat eqn:e;
      cbn [andb]; try easy; exfalso; rewrite ?Nat.eqb_eq, ?Nat.eqb_neq, ?Nat.leb_le, ?Nat.leb_gt, ?Nat.ltb_lt,
        ?Nat.ltb_ge in *; lia.
Qed.

Lemma list_sum_plus {A : Type} (f g : A -> nat) (l : list A) :
  list_sum (map (fun a => f a + g a)%nat l) = (list_sum (map f l) + list_sum (map g l))%nat.
Proof. induction l as [|a l IH]; cbn [map list_sum fold_right]; [easy|]. unfold list_sum in IH. rewrite IH. lia. Qed.

Lemma count_axis (l : list X) (un : list nat) (r : rank) (a : nat) : mem a un = true ->
  list_sum (map (fun c => length (filter (near un (put r a c)) l)) (seq 0 (size a)))
  = length (filter (near (filter (fun b => negb (a =? b)%nat) un) r) l).
Proof.
  intros inside. induction l as [|x l IH].
  - cbn [filter length]. generalize (seq 0 (size a)) as s. induction s; easy.
  - transitivity (list_sum (map (fun c => (if (c =? home x a)%nat then if near (filter (fun b => negb (a =? b)%nat)
    un) r x
      then 1 else 0 else 0) + length (filter (near un (put r a c)) l))%nat (seq 0 (size a)))).
    + f_equal. apply map_ext. intros c. cbn [filter]. rewrite near_put_in by easy.
      destruct (c =? home x a)%nat; cbn [andb]; [|easy]. now destruct (near _ r x).
    + rewrite list_sum_plus, IH. cbn [filter]. destruct (near _ r x).
      * rewrite pick_count. replace (home x a <? 0 + size a)%nat with true by (symmetry; apply Nat.ltb_lt, home_ok).
        easy.
      * replace (list_sum _) with 0%nat; [easy|]. generalize (seq 0 (size a)) as s. induction s as [|c s IHs];
        [easy|].
        cbn [map list_sum fold_right]. unfold list_sum in IHs. rewrite <- IHs. now destruct (c =? home x a)%nat.
Qed.

Definition tally_step (a : nat) (n : option (list nat)) : option (list nat) :=
  match n with
  | Some un => if mem a un then Some (filter (fun b => negb (a =? b)%nat) un) else None
  | None => None end.

Lemma count_summed (l : list X) (along un un' : list nat) (r : rank) : fold_right tally_step (Some un) along = Some
  un' ->
  list_sum (map (fun r => length (filter (near un r) l)) (peers along r)) = length (filter (near un' r) l).
Proof.
  revert un' r; induction along as [|a along IH]; intros un' r found.
  - injection found as <-. cbn. lia.
  - cbn [fold_right] in found. destruct (fold_right tally_step (Some un) along) as [un1|]; [|easy].
    cbn [tally_step] in found. destruct (mem a un1) eqn:inside; [|easy]. injection found as <-.
    cbn [peers]. rewrite list_sum_flat. rewrite <- count_axis by easy. f_equal. apply map_ext. intros c. now apply IH.
Qed.

(** ** Ratios *)

Variables (p : program) (count_ at_step : nat) (count_pos : (0 < count_)%nat) (micro_pos : (0 < micro)%nat).

Definition num (s : symbol) : K :=
  match s with
  | Tokens => of_nat count_ | Count => of_nat (length (tokens at_step)) | Micro => of_nat micro
  | Size a => of_nat (size a) | Scaling => scaling (loss_scale p at_step) end.
Definition inv (s : symbol) : K :=
  match s with
  | Tokens => share count_ | Count => share (length (tokens at_step)) | Micro => share micro
  | Size a => share (size a) | Scaling => unscaling (loss_scale p at_step) end.
Definition mean (k : ratio) : K := product num (over k) * product inv (under k).

Lemma num_inv (s : symbol) : cancels s = true -> num s * inv s = 1.
Proof.
  destruct s as [| | |a|]; cbn; intros can; [apply share_ok; lia|easy|apply share_ok; lia| |apply scaling_ok].
  apply share_ok. pose proof (size_pos a). lia.
Qed.

Lemma product_ext {V : Type} (f g : V -> K) (l : list V) : (forall v, In v l -> f v = g v) -> product f l = product g l.
Proof.
  induction l as [|v l IH]; intros all; [easy|]. cbn [product]. rewrite all by now left. rewrite IH; [easy|].
  intros; apply all; now right.
Qed.

Lemma insert_ok (f : symbol -> K) (s : symbol) (l : list symbol) : product f (insert s l) = f s * product f l.
Proof. induction l as [|t l IH]; cbn; [easy|]. destruct (before s t); cbn; [easy|]. rewrite IH; ring. Qed.

Lemma take_ok (f : symbol -> K) (s : symbol) (l l' : list symbol) : take s l = Some l' ->
  product f l = f s * product f l'.
Proof.
  revert l'; induction l as [|t l IH]; cbn; [easy|]; intros l'.
  destruct (symbol_eq s t) as [<-|apart]; [intros [= ->]; ring|].
  destruct (take s l) as [l''|]; [|easy]. intros [= <-]; cbn. rewrite (IH l'' eq_refl); ring.
Qed.

Lemma times1_ok (s : symbol) (k : ratio) : mean (times1 s k) = num s * mean k.
Proof.
  unfold times1, mean. destruct (cancels s) eqn:can; [destruct (take s (under k)) as [l|] eqn:found|]; cbn [over
    under]; [| |rewrite insert_ok; ring].
  - rewrite (take_ok inv _ _ _ found).
    transitivity ((num s * inv s) * (product num (over k) * product inv l)); [|ring].
    rewrite num_inv by easy. ring.
  - rewrite insert_ok. ring.
Qed.

Lemma by1_ok (s : symbol) (k : ratio) : mean (by1 s k) = inv s * mean k.
Proof.
  unfold by1, mean. destruct (cancels s) eqn:can; [destruct (take s (over k)) as [l|] eqn:found|]; cbn [over
    under]; [| |rewrite insert_ok; ring].
  - rewrite (take_ok num _ _ _ found).
    transitivity ((num s * inv s) * (product num l * product inv (under k))); [|ring].
    rewrite num_inv by easy. ring.
  - rewrite insert_ok. ring.
Qed.

Lemma times_ok (k l : ratio) : mean (times k l) = mean k * mean l.
Proof.
  destruct k as [o u]; unfold times; cbn [over under].
  assert (top : mean (fold_right times1 l o) = product num o * mean l).
  { induction o as [|s o IH]; cbn [fold_right product]; [ring|]. rewrite times1_ok, IH. ring. }
  induction u as [|s u IH]; cbn [fold_right].
  - rewrite top. unfold mean; cbn; ring.
  - rewrite by1_ok, IH. unfold mean; cbn; ring.
Qed.

Lemma mean_one : mean one = 1.
Proof. unfold mean; cbn; ring. Qed.

Lemma mean_of_ok (along : list nat) (k : ratio) : mean (mean_of along k) = product share (map size along) * mean k.
Proof. induction along as [|a l IH]; cbn [mean_of fold_right]; [cbn; ring|]. rewrite by1_ok. unfold mean_of in IH.
  rewrite IH. cbn; ring. Qed.

Lemma sum_reduced (l : list X) (f : X -> K) (s : terms) (along : list nat) (r : rank) :
  sum_list (peers along r) (fun r' => mean (co s) * partial_sum l (un s) f r')
  = mean (co (reduced along s)) * partial_sum l (un (reduced along s)) f r.
Proof.
  revert r; induction along as [|a along IH]; intros r.
  - cbn; ring.
  - rewrite peers_sum. cbn [reduced fold_right]. fold (reduced along s).
    transitivity (sum_list (seq 0 (size a)) (fun c => mean (co (reduced along s)) *
      partial_sum l (un (reduced along s)) f (put r a c))).
    { apply sum_list_ext; intros c _; apply IH. }
    rewrite sum_list_times. unfold reduced1. destruct (mem a (un (reduced along s))) eqn:inside; cbn [co un].
    + now rewrite sum_axis_in.
    + rewrite sum_axis_out by easy. rewrite times1_ok. cbn [num]. ring.
Qed.

(** ** Places, and norms *)

Lemma mem_one (b a : nat) : mem b [a] = (b =? a)%nat.
Proof. unfold mem; cbn [existsb]. now rewrite orb_false_r. Qed.

Lemma sat_cons (d : clause) (q : place) (r : rank) (i : E) : sat (d :: q) r i = sat1 r i d && sat q r i.
Proof. reflexivity. Qed.

Lemma on_axes_cons (a : nat) (d : clause) (q : place) :
  on_axes [a] (d :: q) = if (axis_of d =? a)%nat then d :: on_axes [a] q else on_axes [a] q.
Proof. unfold on_axes; cbn [filter]. now rewrite mem_one. Qed.

Lemma off_axes_cons (a : nat) (d : clause) (q : place) :
  off_axes [a] (d :: q) = if (axis_of d =? a)%nat then off_axes [a] q else d :: off_axes [a] q.
Proof. unfold off_axes; cbn [filter]. rewrite mem_one. now destruct (axis_of d =? a)%nat. Qed.

Lemma sat1_other (d : clause) (r : rank) (a c : nat) (i : E) : axis_of d <> a -> sat1 (put r a c) i d = sat1 r i d.
Proof. destruct d as [b|b]; cbn; intros apart; rewrite put_other by congruence; reflexivity. Qed.

Lemma sat_off_put (q : place) (r : rank) (a c : nat) (i : E) : on_axes [a] q = [] -> sat q (put r a c) i = sat q r i.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, !sat_cons.
  destruct (axis_of d =? a)%nat eqn:inside; [easy|]. intros out.
  rewrite IH by easy. rewrite sat1_other; [easy|]. now apply Nat.eqb_neq.
Qed.

Lemma off_axes_all (a : nat) (q : place) : on_axes [a] q = [] -> off_axes [a] q = q.
Proof.
  induction q as [|d q IH]; [reflexivity|]. rewrite on_axes_cons, off_axes_cons.
  destruct (axis_of d =? a)%nat; [easy|]. intros out; now rewrite IH.
Qed.

Definition coordinate (d : clause) (i : E) : nat := match d with Owner a => own a i | First _ => 0 end.
Lemma coordinate_ok (d : clause) (i : E) : (coordinate d i < size (axis_of d))%nat.
Proof. destruct d; cbn; [apply own_ok|apply size_pos]. Qed.

Lemma sat_on_put (q : place) (r : rank) (a c : nat) (i : E) (d : clause) : on_axes [a] q = [d] ->
  sat q (put r a c) i = (c =? coordinate d i)%nat && sat (off_axes [a] q) r i.
Proof.
  induction q as [|e q IH]; [easy|]. rewrite on_axes_cons, off_axes_cons, sat_cons.
  destruct (axis_of e =? a)%nat eqn:inside.
  - intros [= -> out]. rewrite off_axes_all, sat_off_put by exact out. f_equal.
    apply Nat.eqb_eq in inside. destruct d as [b|b]; cbn in *; subst; now rewrite put_same.
  - intros found. rewrite IH, sat_cons by easy. rewrite sat1_other by now apply Nat.eqb_neq.
    destruct (c =? coordinate d i)%nat; cbn [andb]; [easy|]. now rewrite andb_false_r.
Qed.

Definition norm_step (a : nat) (n : option place) : option place :=
  match n with
  | Some q => match on_axes [a] q with [_] => Some (off_axes [a] q) | _ => None end
  | None => None end.

Definition norm_sum (l : list E) (q : place) (f : E -> K) (r : rank) : K :=
  sum_list l (fun i => if sat q r i then f i else 0).

Lemma sum_norm (l : list E) (f : E -> K) (along : list nat) (q q' : place) (r : rank) :
  fold_right norm_step (Some q) along = Some q' ->
  sum_list (peers along r) (norm_sum l q f) = norm_sum l q' f r.
Proof.
  revert q' r; induction along as [|a along IH]; intros q' r found.
  - injection found as <-. cbn; ring.
  - rewrite peers_sum. cbn [fold_right] in found. destruct (fold_right norm_step (Some q) along) as [q1|]; [|easy].
    cbn in found. destruct (on_axes [a] q1) as [|d [|? ?]] eqn:on; try easy. injection found as <-.
    transitivity (sum_list (seq 0 (size a)) (fun c => norm_sum l q1 f (put r a c))).
    { apply sum_list_ext; intros c _; now apply IH. }
    unfold norm_sum. rewrite sum_swap_list. apply sum_list_ext; intros i _.
    transitivity (sum_list (seq 0 (size a)) (fun c => if (c =? coordinate d i)%nat
      then (if sat (off_axes [a] q1) r i then f i else 0) else 0)).
    + apply sum_list_ext; intros c _. rewrite (sat_on_put _ _ _ _ _ d on). now destruct (c =? coordinate d i)%nat.
    + apply (sum_pick (size a) (coordinate d i) (fun _ => if sat (off_axes [a] q1) r i then f i else 0)).
      assert (axis : axis_of d = a).
      { assert (inside : In d (on_axes [a] q1)) by (rewrite on; now left).
        apply filter_In in inside; destruct inside as [_ inside]. rewrite mem_one in inside.
        now apply Nat.eqb_eq. }
      rewrite <- axis. apply coordinate_ok.
Qed.

(** ** What ranks have together *)

Lemma together_all {A : Type} (l : list A) (f : A -> option K) (g : A -> K) (j : K) :
  (forall a, In a l -> f a = Some (g a)) -> together (map f l) j = Some (sum_list l g).
Proof.
  intros all. unfold together. replace (forallb is_some (map f l)) with true.
  - f_equal. rewrite sum_list_map. apply sum_list_ext; intros a inside. now rewrite all.
  - symmetry. apply forallb_forall. intros o inside. apply in_map_iff in inside. destruct inside as [a [<- inside]].
    now rewrite all.
Qed.

Lemma together_none {A : Type} (l : list A) (f : A -> option K) (j : K) : l <> [] ->
  (forall a, In a l -> f a = None) -> together (map f l) j = None.
Proof.
  intros some none. destruct l as [|a l]; [easy|]. unfold together. cbn [map forallb].
  rewrite (none a) by now left. cbn [is_some andb existsb orb].
  replace (existsb is_some (map f l)) with false; [easy|]. symmetry.
  apply not_true_iff_false. rewrite existsb_exists. intros [o [inside some']]. apply in_map_iff in inside.
  destruct inside as [b [<- inside]]. rewrite none in some'; [easy|now right].
Qed.
End Algebra.
