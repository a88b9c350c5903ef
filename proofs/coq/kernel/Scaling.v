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

Variables (p : program) (count_ at_step : nat) (count_pos : (0 < count_)%nat) (micro_pos : (0 < micro)%nat).

Definition num (s : symbol) : K :=
  match s with
  | Tokens => of_nat count_ | Count => of_nat (length (tokens at_step)) | Micro => of_nat micro
  | Size a => of_nat (size a) | Scaling => scaling (loss_scale p at_step) | Padding n => padding n end.
Definition inv (s : symbol) : K :=
  match s with
  | Tokens => share count_ | Count => share (length (tokens at_step)) | Micro => share micro
  | Size a => share (size a) | Scaling => unscaling (loss_scale p at_step) | Padding n => unpadding n end.
Definition mean (k : ratio) : K := product num (over k) * product inv (under k).

Lemma num_inv (s : symbol) : cancels s = true -> num s * inv s = 1.
Proof.
  destruct s as [| | |a| |k]; cbn; intros can;
    [apply share_ok; lia|easy|apply share_ok; lia| |apply scaling_ok|apply padding_ok].
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
End Scaling.
