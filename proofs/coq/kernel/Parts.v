(** What the checker knows stays true over the loop over microbatches: an axis that is run one coordinate after the
    other, over which what is added up is a sum.

    What it backs: [check_part_] of placealg/prover/kernel/extraction.py.

    Main statements: [part_sound], [parts_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check Infer Moving Order Slots Loops.

Lemma find_forget l k s x : find_slot (forget l k) s = Some x -> ~ In s l /\ find_slot k s = Some x.
Proof.
  unfold forget; induction l as [|m l IH]; cbn; [tauto|]; intros H.
  destruct (slot_dec m s) as [->|apart]; [rewrite find_put_same in H; discriminate|].
  rewrite find_put_other in H by easy; destruct (IH H); split; auto; intros [E|E]; auto.
Qed.

Section Parts.
Context {K : CRing}.
Add Ring K_ring6 : (laws K).
Variables (w : world K) (p : program) (v : @values K).
Hypothesis ok : valid w p.
Hypothesis solved : solves w p v.
Local Notation g := (on p).
Local Notation memory := (@memory K).
Local Notation means := (@Infer.means K w p).
Local Notation table := (of_list (lines p)).
Variables (t : nat) (start : bool) (inputs : list held).
Hypothesis inputs_ok : forall h, In h inputs -> forall l, l < count w (per h) ->
  lies (size w) (home w l) (axes g) (input w start (value_of h) t l) (v (value_of h) t l) (lying h).
Local Notation check_blocks := (check_blocks g (ones p) table inputs).
Local Notation check_part := (check_part g (ones p) table inputs).
Local Notation check_parts := (check_parts g (ones p) table inputs).
Local Notation item_true := (item_true w p v t).
Local Notation knows := (knows w p v t).
Local Notation settled := (settled p).
Local Notation when := (when t start).

Lemma find_fold new k0 s x : find_slot (fold_right (fun q k => put_slot (fst q) (Some (snd q)) k) k0 new) s = Some x ->
  (exists q, In q new /\ fst q = s /\ snd q = x) \/ (find_slot k0 s = Some x /\ ~ In s (map fst new)).
Proof.
  induction new as [|q new IH]; cbn; [right; auto|]; intros H.
  destruct (slot_dec (fst q) s) as [E|apart].
  - left; exists q; subst; rewrite find_put_same in H; inversion H; auto.
  - rewrite find_put_other in H by easy; destruct (IH H) as [[q' [inq [E X]]]|[F out]]; [left; exists q'; auto|].
    right; split; auto; intros [E|E]; auto.
Qed.
Lemma apart_once (sums : list (slot * slot)) q : apart (map snd sums) = true -> In q sums ->
  find (fun q' => slot_eqb (snd q) (snd q')) sums = Some q.
Proof.
  induction sums as [|q0 sums IH]; cbn; [tauto|]; intros A inq; apply andb_true_iff in A as [A1 A2].
  destruct (slot_eqb (snd q) (snd q0)) eqn:E.
  - apply slot_eqb_eq in E; destruct inq as [->|inq]; [easy|]; exfalso.
    apply negb_true_iff in A1; rewrite <- not_true_iff_false in A1; apply A1, existsb_exists; exists (snd q); split;
      [now apply in_map|].
    apply slot_eqb_eq; now symmetry.
  - destruct inq as [->|inq]; [|now apply IH].
    exfalso; apply slot_eqb_neq in E; now apply E.
Qed.

Section Microbatches.
Variables (sums : list (slot * slot)) (bs : list block) (k k1 : known) (new : list (slot * item)).
Variables (m : memory) (path : list nat).
Let changed := flat_map written bs.
Let k0 := forget (map snd sums ++ changed) k.
Hypothesis known_ : knows (fun _ => m) k.
Hypothesis settled_ : settled k.
Hypothesis body : check_blocks true bs k0 = Some k1.
Hypothesis added_ : Forall2 (fun q x => summed_up g k k1 q = Some x) sums new.
Hypothesis alone : forall s, In s (map snd sums) -> ~ In s changed.
Hypothesis once : apart (map snd sums) = true.

Definition iteration (c : nat) (m : memory) : memory := accumulate c sums (run_blocks g w (when true 0 c) (c :: path)
  0 bs m).
Definition mem (c : nat) : memory := loop c iteration m.
Definition behind (c : nat) : memory := run_blocks g w (when true 0 c) (c :: path) 0 bs (mem c).

Lemma accumulate_other c (m' : memory) s l : ~ In s (map snd sums) -> accumulate c sums m' s l = m' s l.
Proof.
  intros out; unfold accumulate; destruct (find _ sums) as [q|] eqn:F; [|easy]; apply find_some in F as [inq E].
  apply slot_eqb_eq in E; subst; exfalso; apply out; now apply in_map.
Qed.
Lemma mem_frame c s l : ~ In s (map snd sums ++ changed) -> mem c s l = m s l.
Proof.
  intros out; rewrite in_app_iff in out; induction c as [|c IH]; cbn; auto; unfold iteration.
  rewrite accumulate_other by tauto; rewrite (blocks_frame w p) by tauto; exact IH.
Qed.
Lemma body_known : knows behind k1 /\ settled k1.
Proof.
  apply (blocks_sound w p v ok solved t start inputs inputs_ok true bs mem (fun c => c :: path) 0 k0); auto; [easy| |].
  - intros u l small s x F Sc; apply find_forget in F as [out F].
    apply (item_frame w p v t (fun _ => m)); [intros c; now apply mem_frame|]; now apply (known_ u l small).
  - intros n x F; apply find_forget in F as [_ F]; exact (settled_ n x F).
Qed.

Lemma added_up q l c : In q sums -> (forall r i, m (snd q) l r i = 0%ring) ->
  forall r i, mem c (snd q) l r i = sum_list (seq 0 c) (fun c => behind c (fst q) l (put r 0 c) i).
Proof.
  intros inq Z r i; induction c as [|c IH]; [apply Z|].
  change (mem (S c)) with (accumulate c sums (behind c)); unfold accumulate; rewrite apart_once by easy.
  rewrite seq_S, (sum_list_app K), <- IH; cbn [sum_list Nat.add].
  unfold behind at 1; rewrite (blocks_frame w p (when true 0 c) (c :: path) bs 0 (mem c) (snd q) l) by (apply alone,
    in_map, inq).
  ring.
Qed.

Lemma microbatches_known : let k' := fold_right (fun q k => put_slot (fst q) (Some (snd q)) k) k0 new in
  knows (fun _ => mem (size w 0)) k' /\ settled k'.
Proof.
  cbn zeta; destruct body_known as [K1 S1].
  assert (one_of : forall q', In q' new -> exists q, In q sums /\ summed_up g k k1 q = Some q').
  { exact (in_second _ _ _ added_). }
  assert (S' : settled (fold_right (fun q k => put_slot (fst q) (Some (snd q)) k) k0 new)).
  { intros n x F; apply find_fold in F as [[q' [inq [E X]]]|[F _]].
    - destruct (one_of q' inq) as [q [inq0 U]]; unfold summed_up in U.
      destruct (find_slot k (snd q)) as [[u [?|]]|] eqn:F1; try discriminate.
      destruct (find_slot k1 (fst q)) as [[u' [[f nn]|]]|] eqn:F2; try discriminate.
      destruct (_ && _) eqn:A; [|discriminate]; inversion U as [E']; subst q'; cbn in E, X; subst; cbn.
      repeat rewrite andb_true_iff in A; destruct A as [[[A1 A2] A3] A4].
      destruct (snd q), (fst q) eqn:Fq; try discriminate; rewrite E in *; destruct (S1 _ _ F2) as [S1a S1b].
      split; [exact S1a|]; cbn; unfold all_still in S1b |- *; destruct (kinds f); cbn in S1b |- *; auto.
      now apply andb_true_iff in S1b.
    - apply find_forget in F as [_ F]; exact (settled_ n x F). }
  split; auto; intros u0 l small s x F Sc; apply find_fold in F as [[q' [inq [E X]]]|[F out]].
  - destruct (one_of q' inq) as [q [inq0 U]]; unfold summed_up in U.
    destruct (find_slot k (snd q)) as [[u [?|]]|] eqn:F1; try discriminate.
    destruct (find_slot k1 (fst q)) as [[u' [[f nn]|]]|] eqn:F2; try discriminate.
    destruct (_ && _) eqn:A; [|discriminate]; inversion U as [E']; subst q'; cbn in E, X; subst x s; clear U.
    repeat rewrite andb_true_iff in A; destruct A as [[[A1 A2] A3] A4]; apply unit_eqb_eq in A1; subst u'.
    apply negb_true_iff, Nat.eqb_neq in A4.
    assert (I : inst (snd q) l = inst (fst q) l) by (destruct (snd q), (fst q); try discriminate; reflexivity).
    assert (Sc' : scope_of u0 (fst q) = Some u) by (destruct (snd q), (fst q), u0; try discriminate; exact Sc).
    assert (Z := known_ u0 l small (snd q) _ F1 Sc); unfold Slots.item_true in Z; cbn in Z; specialize (Z 0).
    assert (T := K1 u0 l small (fst q) _ F2 Sc'); unfold Slots.item_true in T |- *; cbn [what] in *.
    destruct T as [X D].
    pose (y := summed (size w) 0 (glued behind (fst q) (inst (fst q) l))).
    apply (means_same w p l y _ (look w v t l nn) _ (full_at_0 f)); auto.
    { intros r i; unfold glued at 1; rewrite I in *; rewrite (added_up q) by auto; unfold y, summed, glued.
      apply (sum_list_ext K); intros c _; reflexivity. }
    split.
    { intros r r' i i' samer samei; unfold y, summed; apply (sum_list_ext K); intros c _; apply X; auto.
      intros a; unfold put; destruct (a =? 0); auto. }
    intros r i.
    change y with (send (size w) (home w l) (fun _ _ => 0%ring) 0 AllReduce (glued behind (fst q) (inst (fst q) l))).
    apply (send_sound (size w) (home w l) (touches g) (size_pos w p ok) (home_ok w p ok l) (home_touches w p ok l) _ 0
      AllReduce _ (kind_at f));
      auto using seq_NoDup.
    + apply in_seq; lia.
    + destruct (kind_at f 0); try discriminate; reflexivity.
    + intros b apart; unfold kind_at, full_at_0; cbn; destruct b; [tauto|]; destruct (kinds f); cbn; now destruct b.
  - apply find_forget in F as [out' F].
    apply (item_frame w p v t (fun _ => m)); [intros c; now apply mem_frame|]; now apply (known_ u0 l small).
Qed.
End Microbatches.

Theorem part_sound x m path k k' : knows (fun _ => m) k -> settled k -> check_part x k = Some k' ->
  knows (fun _ => run_part g w (Moment t 0 0 start) path x m) k' /\ settled k'.
Proof.
  intros known_ S C; destruct x as [bs|sums bs]; cbn [Check.check_part run_part] in *.
  - apply (blocks_sound w p v ok solved t start inputs inputs_ok false bs (fun _ => m) (fun _ => path) 0 k); auto;
    now intros _.
  - destruct (Check.check_blocks _ _ _ _ _ _ _) as [k1|] eqn:B; [|discriminate].
    destruct (sequence _) as [new|] eqn:Q; [|discriminate]; apply sequence_map in Q.
    destruct (_ && _) eqn:A; [|discriminate]; inversion C; subst; clear C; apply andb_true_iff in A as [A1 A2].
    apply (microbatches_known sums bs k k1 new m path); auto.
    intros s ins ch; rewrite forallb_forall in A1; specialize (A1 s ins); apply negb_true_iff in A1.
    rewrite <- not_true_iff_false in A1; apply A1, existsb_exists; exists s; split; auto; now apply slot_eqb_eq.
Qed.
Theorem parts_sound ps : forall m path n k k', knows (fun _ => m) k -> settled k -> check_parts ps k = Some k' ->
  knows (fun _ => run_parts g w (Moment t 0 0 start) path n ps m) k' /\ settled k'.
Proof.
  induction ps as [|x ps IH]; intros m path n k k' known_ S C; cbn [Check.check_parts run_parts] in *; [inversion C;
    now subst|].
  destruct (check_part x k) as [k1|] eqn:P; [|discriminate].
  destruct (part_sound x m (n :: path) k k1 known_ S P) as [K1 S1]; now apply (IH _ _ _ k1).
Qed.
End Parts.
