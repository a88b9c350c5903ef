(** Lists of tables: what stands in one that was mapped, or zipped with another.

    What it backs: the kernel.

    Main statement: [get_map]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Facts.
Open Scope nat_scope.

Lemma get_map (F : slot -> know -> know) (k : table) (x : slot) :
  get (map (fun e => (fst e, F (fst e) (snd e))) k) x = Any \/
  get (map (fun e => (fst e, F (fst e) (snd e))) k) x = F x (get k x).
Proof.
  induction k as [|[y h] k IH]; [now left|]. cbn [map fst snd]. rewrite !get_cons.
  destruct (slot_eq y x) as [->|]; [now right|exact IH].
Qed.

Lemma nth_table_const {V : Type} (k : table) (l : list V) (g : nat) : g < length l -> nth_table (map (fun _ => k)
  l) g = k.
Proof. revert g; induction l as [|x l IH]; intros [|g] small; cbn in *; try lia; [easy|]. apply IH; lia. Qed.

Lemma nth_table_nil (g : nat) : nth_table [] g = [].
Proof. now destruct g. Qed.

Lemma nth_table_zipped {V : Type} (F : V -> table -> table) (l : list V) (m : list table) (g : nat) :
  nth_table (zip F l m) g = [] \/ exists d, nth_error l g = Some d /\ nth_table (zip F l m) g = F d (nth_table m g).
Proof.
  revert m g; induction l as [|x l IH]; intros [|y m] [|g]; cbn; auto; [right; now exists x|apply IH].
Qed.

Lemma nth_table_zip (F : table -> table -> table) (l m : list table) (g : nat) :
  nth_table (zip F l m) g = [] \/ nth_table (zip F l m) g = F (nth_table l g) (nth_table m g).
Proof.
  revert m g; induction l as [|x l IH]; intros [|y m] [|g]; cbn; auto. apply IH.
Qed.

Lemma length_zip {V W U : Type} (F : V -> W -> U) (l : list V) (m : list W) : length l = length m ->
  length (zip F l m) = length l.
Proof. revert m; induction l as [|x l IH]; intros [|y m]; cbn; try easy. intros [= e]. now rewrite IH. Qed.

Lemma all2_nth {V : Type} (F : V -> V -> bool) (l m : list V) (n : nat) (d : V) :
  all2 F l m = true -> n < length m -> F (nth n l d) (nth n m d) = true.
Proof.
  revert m n; induction l as [|x l IH]; intros [|y m] [|n]; cbn; try easy; try lia; intros all small;
    apply andb_true_iff in all; destruct all; [easy|]. apply IH; [easy|lia].
Qed.
Lemma all2_length {V : Type} (F : V -> V -> bool) (l m : list V) : all2 F l m = true -> length l = length m.
Proof.
  revert m; induction l as [|x l IH]; intros [|y m]; cbn; try easy. intros all. apply andb_true_iff in all.
  destruct all as [_ all]. now rewrite (IH m).
Qed.

Lemma tally_entail_ok (k l : counters) n e un : counts_entail k l = true -> nth n (tallied l) None = Some (e, un) ->
  nth n (tallied k) None = Some (e, un).
Proof.
  unfold counts_entail. intros all found. apply andb_true_iff in all. destruct all as [all _].
  apply andb_true_iff in all. destruct all as [_ all].
  destruct (lt_dec n (length (tallied l))) as [small|out]; [|now rewrite nth_overflow in found by lia].
  pose proof (all2_nth _ _ _ n None all small) as one. rewrite found in one.
  destruct (nth n (tallied k) None) as [[e0 un0]|]; [|easy]. cbn [tally_entails] in one.
  apply andb_true_iff in one. destruct one as [same one]. apply eqb_prop in same.
  destruct (nats_eq un0 un) as [->|]; [congruence|easy].
Qed.

Lemma lasting_ok (k : counters) n e un : nth n (lasting k) None = Some (e, un) ->
  e = false /\ nth n (tallied k) None = Some (e, un).
Proof.
  unfold lasting. revert n. induction (tallied k) as [|x l IH]; intros [|n]; cbn [map nth]; try easy; [|apply IH].
  destruct x as [[[|] un0]|]; try easy. now intros [= <- <-].
Qed.

Lemma looked_entail_ok (k l : counters) n q : counts_entail k l = true -> nth n (looked l) None = Some q ->
  nth n (looked k) None = Some q.
Proof.
  unfold counts_entail. intros all found. apply andb_true_iff in all. destruct all as [_ all].
  destruct (lt_dec n (length (looked l))) as [small|out]; [|now rewrite nth_overflow in found by lia].
  pose proof (all2_nth _ _ _ n None all small) as one. rewrite found in one.
  destruct (nth n (looked k) None) as [q0|]; [|easy]. cbn in one. now destruct (place_eq q0 q) as [->|].
Qed.

Lemma no_looks {V W : Type} (l : list V) n (q : W) : nth n (map (fun _ => @None W) l) None = Some q ->
  forall P : Prop, P.
Proof. revert n. induction l as [|x l IH]; intros [|n]; cbn; try easy. apply IH. Qed.
