(** What the checker's ratios mean, and how a sum over ranks changes them.

    What it backs: the kernel.

    Main statement: [sum_reduced] (a sum over ranks of partial gradients is what [reduced] says). *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra.
Open Scope nat_scope.

Section Scaling.
Context {w : world}.
Add Ring K_ring : (laws K).
Local Open Scope ring_scope.

Variables (p : program) (count_ : nat -> nat) (at_step : nat) (count_pos : forall n, (0 < count_ n)%nat)
  (micro_pos : (0 < micro)%nat).

Section OfMicrobatch.
Variable j : nat.

Definition num (s : symbol) : K :=
  match s with
  | Tokens n => of_nat (count_ n) | Count _ => 0 | Micro => of_nat micro
  | Size a => of_nat (size a) | Scaling => scaling (loss_scale p at_step) | Padding n => padding n
  | All n each => of_nat (length (counted p n at_step j each)) end.
Definition inv (s : symbol) : K :=
  match s with
  | Tokens n => share (count_ n) | Count _ => 0 | Micro => share micro
  | Size a => share (size a) | Scaling => unscaling (loss_scale p at_step) | Padding n => unpadding n
  | All n each => share (length (counted p n at_step j each)) end.
Definition mean (k : ratio) : K := product num (over k) * product inv (under k).

Lemma num_inv (s : symbol) : cancels s = true -> num s * inv s = 1.
Proof.
  destruct s as [n|n| |a| |k|n e]; cbn; intros can;
    [apply share_ok; specialize (count_pos n); lia|easy|apply share_ok; lia| |apply scaling_ok|apply padding_ok|easy].
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
End OfMicrobatch.

(** What a token of a microbatch is weighed by. *)
Definition coef (co : list ratio) (x : nat * X) : K :=
  match nth_error co (its_loss p (snd x)) with Some k => mean (fst x) k | None => 0 end.
Definition by_how (s : terms) (x : nat * X) : K := match how s with Some co => coef co x | None => 0 end.
Notation part_of l un f := (partial_sum snd l un f).

Lemma coef_map (F : ratio -> ratio) (co : list ratio) (x : nat * X) (c : K) :
  (forall k, mean (fst x) (F k) = c * mean (fst x) k) -> coef (map F co) x = c * coef co x.
Proof.
  intros all. unfold coef. rewrite nth_error_map. destruct (nth_error co _) as [k|]; cbn [option_map]; [apply all|ring].
Qed.

Lemma coef_scaled (F : ratio -> ratio) (co : list ratio) (l : list (nat * X)) (un : list nat) (f : nat * X -> K)
    (r : rank) (c : K) : (forall x, In x l -> forall k, mean (fst x) (F k) = c * mean (fst x) k) ->
  part_of l un (fun x => coef (map F co) x * f x) r = c * part_of l un (fun x => coef co x * f x) r.
Proof.
  intros all. unfold partial_sum. rewrite <- sum_times_list. apply sum_list_ext. intros x inside.
  rewrite (coef_map F co x c) by now apply all. destruct (near un r (snd x)); ring.
Qed.

Lemma sum_reduced (l : list (nat * X)) (f : nat * X -> K) (s : terms) (along : list nat) (r : rank) :
  sum_list (peers along r) (part_of l (un s) (fun x => by_how s x * f x))
  = part_of l (un (reduced along s)) (fun x => by_how (reduced along s) x * f x) r.
Proof.
  revert r; induction along as [|a along IH]; intros r.
  - cbn; ring.
  - rewrite peers_sum. cbn [reduced fold_right]. fold (reduced along s). set (s' := reduced along s) in *.
    transitivity (sum_list (seq 0 (size a)) (fun c => part_of l (un s') (fun x => by_how s' x * f x) (put r a c))).
    { apply sum_list_ext; intros c _; apply IH. }
    unfold reduced1. destruct (mem a (un s')) eqn:inside; cbn [un].
    + rewrite sum_axis_in by easy. reflexivity.
    + rewrite sum_axis_out by easy. unfold by_how; cbn [how]. destruct (how s') as [co|]; cbn [option_map].
      * rewrite (coef_scaled _ _ _ _ _ _ (of_nat (size a))); [easy|]. intros x _ k. now rewrite times1_ok.
      * unfold partial_sum. rewrite <- sum_times_list. apply sum_list_ext. intros x _.
        destruct (near _ r (snd x)); ring.
Qed.

Lemma reduced_kept (s : terms) (along : list nat) : pt (reduced along s) = pt s /\ from (reduced along s) = from s /\
  largest_of (reduced along s) = largest_of s.
Proof.
  induction along as [|a l IH]; [easy|]. cbn [reduced fold_right]. fold (reduced l s). unfold reduced1, largest_of in *.
  destruct (mem a (un (reduced l s))); cbn [pt from how]; [easy|]. now destruct (how (reduced l s)).
Qed.
End Scaling.
