(** What is sent along one axis, whatever tensors are along the others.

    What it backs: the events of placealg/placement.py that send, on numbered tensors.

    Main statement: [send_sound] (how a tensor lies behind it; it means what it meant). *)

From Placealg.kernel Require Import Prelude Machine Meaning Kinds.

Section Sends.
Context {K : CRing}.
Add Ring K_ring2 : (laws K).
Variables (size : nat -> nat) (home : nat -> nat -> index -> nat) (touches : nat -> list nat).
Hypothesis size_pos : forall a, 0 < size a.
Hypothesis home_ok : forall a d i, home a d i < size a.
Hypothesis home_touches : forall a d i j, (forall e, In e (touches d) -> i e = j e) -> home a d i = home a d j.
Local Notation tensor := (@tensor K).
Local Notation val := (@val K size home).
Local Notation agree := (@agree K size home).
Local Notation den := (@den K size home).
Local Notation summed := (summed size).
Local Notation taken := (taken home).
Local Notation send := (send size home).

Lemma put_put r a c b e : a <> b -> forall x, put (put r a c) b e x = put (put r b e) a c x.
Proof. intros apart x; unfold put; destruct (Nat.eqb_spec x b), (Nat.eqb_spec x a); congruence. Qed.
Lemma put_twice r a c e : forall x, put (put r a c) a e x = put r a e x.
Proof. intros x; unfold put; destruct (Nat.eqb_spec x a); auto. Qed.

Lemma val_ext l T x r r' i i' : ext x -> (forall a, r a = r' a) -> (forall d, i d = i' d) ->
  val l T x r i = val l T x r' i'.
Proof.
  intros E; revert r r'; induction l as [|a l IH]; intros r r' same samei; cbn; [now apply E|].
  assert (P : forall c b, put r a c b = put r' a c b) by (intros; unfold put; destruct (b =? a); auto).
  destruct (T a) as [|d|]; [apply IH; auto|rewrite (home_touches a d i i') by auto; apply IH;
    auto|apply (sum_list_ext K); intros; apply IH; auto].
Qed.
Lemma agree_ext l T x r r' i i' : ext x -> (forall a, r a = r' a) -> (forall d, i d = i' d) -> agree l T x r i ->
  agree l T x r' i'.
Proof.
  intros E; revert r r'; induction l as [|a l IH]; intros r r' same samei; cbn; [auto|].
  assert (P : forall c b, put r a c b = put r' a c b) by (intros; unfold put; destruct (b =? a); auto).
  destruct (T a) as [|d|]; intros H.
  - intros c small; destruct (H c small) as [H1 H2]; split; [eapply IH; eauto|].
    rewrite <- (val_ext l T x (put r a c) _ i _ E (P c) samei), <- (val_ext l T x (put r a 0) _ i _ E (P 0) samei);
      exact H2.
  - rewrite <- (home_touches a d i i') by auto; eapply IH; eauto.
  - intros c small; eapply IH; eauto.
Qed.

Lemma val_rank l T x r r' i : ext x -> (forall a, r a = r' a) -> val l T x r i = val l T x r' i.
Proof. intros; now apply val_ext. Qed.
Lemma agree_rank l T x r r' i : ext x -> (forall a, r a = r' a) -> agree l T x r i -> agree l T x r' i.
Proof. intros E same; now apply agree_ext. Qed.

(** A sum over the coordinates of an axis that is not in the list, and what is read at one of them. *)

Lemma val_summed l T a x r i : ext x -> ~ In a l ->
  val l T (summed a x) r i = sum_list (seq 0 (size a)) (fun c => val l T x (put r a c) i).
Proof.
  intros E; revert r; induction l as [|b l IH]; intros r out; cbn; [easy|].
  assert (apart : a <> b) by (cbn in out; intros ->; tauto); assert (out' : ~ In a l) by (cbn in out; tauto).
  destruct (T b) as [|d|].
  - rewrite IH by easy; apply (sum_list_ext K); intros c _; apply val_rank; auto; intros; apply put_put; auto.
  - rewrite IH by easy; apply (sum_list_ext K); intros c _; apply val_rank; auto; intros; apply put_put; auto.
  - transitivity (sum_list (seq 0 (size b)) (fun e => sum_list (seq 0 (size a)) (fun c => val l T x (put (put r a c) b
    e) i))).
    + apply (sum_list_ext K); intros e _; rewrite IH by easy; apply (sum_list_ext K); intros c _; apply val_rank;
      auto; intros; apply put_put; auto.
    + apply sum_exchange.
Qed.
Lemma agree_summed l T a x r i : ext x -> ~ In a l -> (forall c, c < size a -> agree l T x (put r a c) i) ->
  agree l T (summed a x) r i.
Proof.
  intros E; revert r; induction l as [|b l IH]; intros r out H; cbn; [easy|].
  assert (apart : a <> b) by (cbn in out; intros ->; tauto); assert (out' : ~ In a l) by (cbn in out; tauto).
  cbn in H; destruct (T b) as [|d|].
  - intros e small; split.
    + apply IH; auto; intros c cs; eapply agree_rank; [exact E| |apply (H c cs e small)]; intros; apply put_put; auto.
    + rewrite !val_summed by easy; apply (sum_list_ext K); intros c ins; apply in_seq in ins.
      rewrite (val_rank l T x (put (put r b e) a c) (put (put r a c) b e)); auto using put_put.
      rewrite (val_rank l T x (put (put r b 0) a c) (put (put r a c) b 0));
        auto using put_put. apply (H c ltac:(lia) e small).
  - apply IH; auto; intros c cs; eapply agree_rank; [exact E| |apply (H c cs)]; intros; apply put_put; auto.
  - intros e small; apply IH; auto; intros c cs; eapply agree_rank; [exact E| |apply (H c cs e small)]; intros;
    apply put_put; auto.
Qed.
Definition fixed (a : nat) (h : index -> nat) (x : tensor) : tensor := fun r i => x (put r a (h i)) i.
Lemma val_fixed l T a h x r i : ext x -> ~ In a l -> val l T (fixed a h x) r i = val l T x (put r a (h i)) i.
Proof.
  intros E; revert r; induction l as [|b l IH]; intros r out; cbn; [easy|].
  assert (apart : a <> b) by (cbn in out; intros ->; tauto); assert (out' : ~ In a l) by (cbn in out; tauto).
  destruct (T b) as [|e|]; try (rewrite IH by easy; apply val_rank; auto; intros; apply put_put; auto).
  apply (sum_list_ext K); intros c _; rewrite IH by easy; apply val_rank; auto; intros; apply put_put; auto.
Qed.
Lemma agree_fixed l T a h x r i : ext x -> ~ In a l -> agree l T x (put r a (h i)) i -> agree l T (fixed a h x) r i.
Proof.
  intros E; revert r; induction l as [|b l IH]; intros r out H; cbn; [easy|].
  assert (apart : a <> b) by (cbn in out; intros ->; tauto); assert (out' : ~ In a l) by (cbn in out; tauto).
  cbn in H; destruct (T b) as [|e|].
  - intros c small; split.
    + apply IH; auto; eapply agree_rank; [exact E| |apply (H c small)]; intros; apply put_put; auto.
    + rewrite !val_fixed by easy.
      rewrite (val_rank l T x (put (put r b c) a (h i)) (put (put r a (h i)) b c)); auto using put_put.
      rewrite (val_rank l T x (put (put r b 0) a (h i)) (put (put r a (h i)) b 0));
        auto using put_put. apply (H c small).
  - apply IH; auto; eapply agree_rank; [exact E| |apply H]; intros; apply put_put; auto.
  - intros c small; apply IH; auto; eapply agree_rank; [exact E| |apply (H c small)]; intros; apply put_put; auto.
Qed.

Lemma val_taken l T a d x r i : ext x -> ~ In a l -> val l T (taken a d x) r i = val l T x (put r a (home a d i)) i.
Proof. exact (val_fixed l T a (home a d) x r i). Qed.
Lemma agree_taken l T a d x r i :
  ext x -> ~ In a l -> agree l T x (put r a (home a d i)) i -> agree l T (taken a d x) r i.
Proof. exact (agree_fixed l T a (home a d) x r i). Qed.

Definition sent_kind (s : sent) (k : kind) : option kind :=
  match s, k with
  | AllReduce, Part => Some Full
  | ReduceScatter d, Part => Some (Shard d)
  | AllGather d, Shard e => if d =? e then Some Full else None
  | AllGather _, Full => Some Full
  | Slice d, Full => Some (Shard d)
  | Slice d, Shard e => if d =? e then Some (Shard d) else None
  | AllToAll d e, Shard d' => if d =? d' then Some (Shard e) else None
  | Only _, Full => Some Part
  | Only d, Shard e => if d =? e then Some Part else None
  | _, _ => None end.

Lemma val_same l T x y r i : (forall r', (forall b, ~ In b l -> r' b = r b) -> x r' i = y r' i) ->
  val l T x r i = val l T y r i.
Proof.
  revert r; induction l as [|a l IH]; intros r same; cbn; [now apply same|].
  assert (D : forall c, val l T x (put r a c) i = val l T y (put r a c) i).
  { intros c; apply IH; intros r' agrees; apply same; intros b out; cbn in out; rewrite agrees by tauto.
    unfold put; destruct (Nat.eqb_spec b a); [subst; tauto|easy]. }
  destruct (T a); auto; apply (sum_list_ext K); auto.
Qed.
Lemma agree_same l T x y r i : (forall r', (forall b, ~ In b l -> r' b = r b) -> x r' i = y r' i) ->
  agree l T x r i -> agree l T y r i.
Proof.
  revert r; induction l as [|a l IH]; intros r same H; cbn in *; [easy|].
  assert (S : forall c r', (forall b, ~ In b l -> r' b = put r a c b) -> x r' i = y r' i).
  { intros c r' agrees; apply same; intros b out; cbn in out; rewrite agrees by tauto.
    unfold put; destruct (Nat.eqb_spec b a); [subst; tauto|easy]. }
  destruct (T a) as [|d|].
  - intros c small; destruct (H c small) as [H1 H2]; split; [now apply (IH _ (S c))|].
    rewrite <- (val_same l T x y (put r a c) i (S c)), <- (val_same l T x y (put r a 0) i (S 0)); exact H2.
  - now apply (IH _ (S _)).
  - intros c small; apply (IH _ (S c)); auto.
Qed.

Lemma at_home l a c r r' : ~ In a l -> (forall b, ~ In b l -> r' b = put r a c b) -> r' a = c.
Proof. intros out agrees; rewrite agrees by easy; unfold put; now rewrite Nat.eqb_refl. Qed.

(** What is zero but at one coordinate. *)
Lemma zero_true l T r i : agree l T (fun _ _ => 0%ring) r i /\ val l T (fun _ _ => 0%ring) r i = 0%ring.
Proof.
  revert r; induction l as [|a l IH]; intros r; cbn; [easy|]; destruct (T a).
  - split; [intros c _; split; [apply IH|now rewrite !(proj2 (IH _))]|apply IH].
  - apply IH.
  - split; [intros c _; apply IH|]; rewrite (sum_list_ext K _ _ (fun _ => 0%ring)) by (intros; apply IH).
    apply (sum_list_zero K).
Qed.
Lemma val_only l T T' junk a d x r i :
  (forall y r, val l T' y r i = val l T y r i) -> (forall y r, agree l T y r i -> agree l T' y r i) -> ~ In a l ->
  agree l T x (put r a (home a d i)) i ->
  (forall c, c < size a -> agree l T' (send junk a (Only d) x) (put r a c) i) /\
  sum_list (seq 0 (size a)) (fun c => val l T' (send junk a (Only d) x) (put r a c) i) =
    val l T x (put r a (home a d i)) i.
Proof.
  intros TV TA out ag; set (h := home a d i) in *; set (y := send junk a (Only d) x).
  assert (S : forall r', (forall b, ~ In b l -> r' b = put r a h b) -> x r' i = y r' i).
  { intros r' agrees; unfold y; cbn; rewrite (at_home l a h r r' out agrees); unfold h; now rewrite Nat.eqb_refl. }
  assert (Z : forall c, c <> h -> forall r', (forall b, ~ In b l -> r' b = put r a c b) -> 0%ring = y r' i).
  { intros c other r' agrees; unfold y; cbn; rewrite (at_home l a c r r' out agrees); fold h.
    apply Nat.eqb_neq in other; now rewrite other. }
  assert (V : forall c, val l T' y (put r a c) i = if h =? c then val l T x (put r a h) i else 0%ring).
  { intros c; rewrite TV; destruct (Nat.eqb_spec h c) as [<-|other].
    - symmetry; now apply val_same.
    - rewrite <- (val_same l T (fun _ _ => 0%ring) y (put r a c) i (Z c (not_eq_sym other))); apply zero_true. }
  split.
  - intros c small; apply TA; destruct (Nat.eq_dec c h) as [->|other]; [now apply (agree_same l T x)|].
    apply (agree_same l T (fun _ _ => 0%ring)); [now apply (Z c)|apply zero_true].
  - rewrite (sum_list_ext K _ _ _ (fun c _ => V c)); exact (sum_pick (size a) h (fun _ => val l T x (put r a h) i)
      (home_ok a d i)).
Qed.

Theorem send_sound junk a s x T T' l i k : ext x -> NoDup l -> In a l ->
  sent_kind s (T a) = Some (T' a) -> (forall b, b <> a -> T' b = T b) ->
  forall r, den l T x r i k -> den l T' (send junk a s x) r i k.
Proof.
  intros E once ina kind others; revert k; induction l as [|b l IH]; [easy|]; intros k r [ag <-].
  inversion once as [|? ? out once']; subst; unfold den in *.
  destruct (Nat.eq_dec b a) as [->|apart].
  - clear ina IH. assert (Tl : forall y r, val l T' y r i = val l T y r i /\ (agree l T y r i -> agree l T' y r i)).
    { intros y r'; clear -others out; revert r'; induction l as [|b l IH]; intros r'; cbn; [easy|].
      assert (T' b = T b) as -> by (apply others; intros ->; apply out; now left).
      assert (out' : ~ In a l) by (intros ?; apply out; now right).
      destruct (T b).
      - split; [apply IH, out'|intros H c small; destruct (H c small) as [H1 H2]; split; [now apply IH|]].
        now rewrite !(proj1 (IH out' _)).
      - split; apply IH, out'.
      - split; [apply (sum_list_ext K); intros; apply IH, out'|intros H c small; now apply IH, H]. }
    cbn in ag |- *.
    destruct s as [|d|d|d|d e|d], (T a) as [|f|]; cbn in kind; try discriminate;
      repeat match type of kind with (if ?p then _ else _) = _ => destruct p eqn:?; [|discriminate] end;
        inversion kind as [E']; rewrite <- ?E'.
    + (* all_reduce *)
      assert (V : forall c, val l T' (send junk a AllReduce x) (put r a c) i = sum_list (seq 0 (size a)) (fun c => val
        l T x (put r a c) i)).
      { intros c; rewrite (proj1 (Tl _ _)); change (send junk a AllReduce x) with (summed a x);
        rewrite val_summed by easy.
        apply (sum_list_ext K); intros e _; apply val_rank; auto using put_twice. }
      split; [|apply V]; intros c small; split; [|now rewrite !V].
      apply Tl; change (send junk a AllReduce x) with (summed a x); apply agree_summed; auto.
      intros e small'; eapply agree_rank; [exact E| |apply (ag e small')]; intros; symmetry; apply put_twice.
    + (* reduce_scatter *)
      set (h := home a d i).
      assert (S : forall r', (forall b, ~ In b l -> r' b = put r a h b) ->
        summed a x r' i = send junk a (ReduceScatter d) x r' i).
      { intros r' agrees; cbn; rewrite (at_home l a h r r' out agrees); unfold h; now rewrite Nat.eqb_refl. }
      split.
      * apply Tl; apply (agree_same l T (summed a x)); auto; apply agree_summed; auto.
        intros e small'; eapply agree_rank; [exact E| |apply (ag e small')]; intros; symmetry; apply put_twice.
      * rewrite (proj1 (Tl _ _)), <- (val_same l T (summed a x)), val_summed by auto.
        apply (sum_list_ext K); intros e _; apply val_rank; auto using put_twice.
    + (* all_gather of what all have *)
      assert (V : forall c, val l T' (send junk a (AllGather d) x) (put r a c) i = val l T x (put r a 0) i).
      { intros c; rewrite (proj1 (Tl _ _)); change (send junk a (AllGather d) x) with (taken a d x);
        rewrite val_taken by easy; rewrite (val_rank l T x _ (put r a (home a d i))) by auto using put_twice.
        apply (ag _ (home_ok _ _ _)). }
      split; [|apply V]; intros c small; split; [|now rewrite !V].
      apply Tl; change (send junk a (AllGather d) x) with (taken a d x); apply agree_taken; auto.
      eapply agree_rank; [exact E| |apply (ag _ (home_ok a d i))]; intros; symmetry; apply put_twice.
    + (* all_gather *)
      apply Nat.eqb_eq in Heqb; subst f.
      assert (V : forall c, val l T' (send junk a (AllGather d) x) (put r a c) i = val l T x (put r a (home a d i)) i).
      { intros c; rewrite (proj1 (Tl _ _)); change (send junk a (AllGather d) x) with (taken a d x);
        rewrite val_taken by easy; apply val_rank; auto using put_twice. }
      split; [|apply V]; intros c small; split; [|now rewrite !V].
      apply Tl; change (send junk a (AllGather d) x) with (taken a d x); apply agree_taken; auto.
      eapply agree_rank; [exact E| |apply ag]; intros; symmetry; apply put_twice.
    + (* slice *)
      set (h := home a d i).
      assert (S : forall r', (forall b, ~ In b l -> r' b = put r a h b) -> x r' i = send junk a (Slice d) x r' i).
      { intros r' agrees; cbn; rewrite (at_home l a h r r' out agrees); unfold h; now rewrite Nat.eqb_refl. }
      destruct (ag h (home_ok _ _ _)) as [ag1 <-]; split.
      * apply Tl; now apply (agree_same l T x).
      * rewrite (proj1 (Tl _ _)); symmetry; now apply val_same.
    + (* slice of what is split so *)
      apply Nat.eqb_eq in Heqb; subst f. set (h := home a d i).
      assert (S : forall r', (forall b, ~ In b l -> r' b = put r a h b) -> x r' i = send junk a (Slice d) x r' i).
      { intros r' agrees; cbn; rewrite (at_home l a h r r' out agrees); unfold h; now rewrite Nat.eqb_refl. }
      split.
      * apply Tl; now apply (agree_same l T x).
      * rewrite (proj1 (Tl _ _)); symmetry; now apply val_same.
    + (* all_to_all *)
      apply Nat.eqb_eq in Heqb; subst f. set (h := home a e i).
      assert (S : forall r', (forall b, ~ In b l -> r' b = put r a h b) ->
        taken a d x r' i = send junk a (AllToAll d e) x r' i).
      { intros r' agrees; cbn; rewrite (at_home l a h r r' out agrees); unfold h; now rewrite Nat.eqb_refl. }
      split.
      * apply Tl; apply (agree_same l T (taken a d x)); auto; apply agree_taken; auto.
        eapply agree_rank; [exact E| |apply ag]; intros; symmetry; apply put_twice.
      * rewrite (proj1 (Tl _ _)), <- (val_same l T (taken a d x)), val_taken by auto; apply val_rank;
        auto using put_twice.
    + (* only the owner's, of what all have *)
      destruct (val_only l T T' junk a d x r i (fun y r => proj1 (Tl y r)) (fun y r => proj2 (Tl y r)) out
        (proj1 (ag _ (home_ok a d i)))) as [A V].
      split; [exact A|]; rewrite V; apply (ag _ (home_ok a d i)).
    + (* only the owner's *)
      apply Nat.eqb_eq in Heqb; subst f.
      destruct (val_only l T T' junk a d x r i (fun y r => proj1 (Tl y r)) (fun y r => proj2 (Tl y r)) out ag) as [A V].
      split; [exact A|exact V].
  - destruct ina as [->|ina]; [congruence|]. cbn in ag |- *. rewrite (others b apart).
    assert (D : forall r k, agree l T x r i /\ val l T x r i = k -> agree l T' (send junk a s x) r i /\
      val l T' (send junk a s x) r i = k) by (intros; now apply IH).
    destruct (T b) as [|d|].
    + assert (V : forall c, c < size b -> agree l T' (send junk a s x) (put r b c) i /\
      val l T' (send junk a s x) (put r b c) i = val l T x (put r b 0) i).
      { intros c small; apply D; destruct (ag c small); auto. }
      split; [|apply V, size_pos]; intros c small; split; [now apply V|].
      rewrite (proj2 (V c small)), (proj2 (V 0 (size_pos b))); reflexivity.
    + now apply D.
    + split; [intros c small; now apply (D _ (val l T x (put r b c) i)); split; auto|].
      apply (sum_list_ext K); intros c ins; apply in_seq in ins; apply (D _ (val l T x (put r b c) i)); split; auto;
        apply ag; lia.
Qed.

(** The sum of what all have alike is as often it as there are ranks. *)
Theorem summed_full a x T l i k : ext x -> NoDup l -> In a l -> T a = Full -> forall r, den l T x r i k ->
  den l T (summed a x) r i (sum_list (seq 0 (size a)) (fun _ => 1) * k)%ring.
Proof.
  intros E once ina full; set (n := sum_list (seq 0 (size a)) (fun _ => 1%ring)).
  revert k; induction l as [|b l IH]; [easy|]; intros k r [ag <-].
  inversion once as [|? ? out once']; subst; unfold den in *.
  destruct (Nat.eq_dec b a) as [->|apart].
  - cbn in ag |- *; rewrite full in *.
    assert (V : forall c, val l T (summed a x) (put r a c) i = (n * val l T x (put r a 0) i)%ring).
    { intros c; rewrite val_summed by easy.
      transitivity (sum_list (seq 0 (size a)) (fun _ => (val l T x (put r a 0) i * 1)%ring)).
      - apply (sum_list_ext K); intros e ins; apply in_seq in ins.
        rewrite (val_rank l T x _ (put r a e)) by auto using put_twice; rewrite (proj2 (ag e ltac:(lia))); ring.
      - rewrite (sum_list_times K); unfold n; ring. }
    split; [|apply V]; intros c small; split; [|now rewrite !V]; apply agree_summed; auto.
    intros e small'; eapply agree_rank; [exact E| |apply (ag e small')]; intros; symmetry; apply put_twice.
  - destruct ina as [->|ina]; [congruence|]; cbn in ag |- *.
    assert (D : forall r k, agree l T x r i /\ val l T x r i = k -> agree l T (summed a x) r i /\
      val l T (summed a x) r i = (n * k)%ring) by (intros; now apply IH).
    destruct (T b) as [|d|].
    + assert (V : forall c, c < size b -> agree l T (summed a x) (put r b c) i /\
        val l T (summed a x) (put r b c) i = (n * val l T x (put r b 0) i)%ring).
      { intros c small; apply D; destruct (ag c small); auto. }
      split; [|apply V, size_pos]; intros c small; split; [now apply V|].
      rewrite (proj2 (V c small)), (proj2 (V 0 (size_pos b))); reflexivity.
    + now apply D.
    + split; [intros c small; now apply (D _ (val l T x (put r b c) i)); split; auto|].
      rewrite <- (sum_list_times K); apply (sum_list_ext K); intros c ins; apply in_seq in ins.
      apply (D _ (val l T x (put r b c) i)); split; auto; apply ag; lia.
Qed.
End Sends.
