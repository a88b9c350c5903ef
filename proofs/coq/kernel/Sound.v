(** What the checker accepts is correct.

    What it backs: [check] of placealg/prover/kernel/extraction.py, as placealg/prover/kernel/checker.py runs it.

    Main statement: [check_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check Infer Moving Order Slots Loops Parts.

Lemma find_resting l s x : find_slot (resting l) s = Some x ->
  exists h, In (s, h) l /\ x = Item (per h) (Some (Fact (lying h) [], (value_of h, ix_of (per h)))).
Proof.
  induction l as [|[s0 h] l IH]; cbn; [destruct s; discriminate|]; intros H.
  destruct (slot_dec s0 s) as [->|apart]; [rewrite find_put_same in H; inversion H; exists h; auto|].
  rewrite find_put_other in H by easy; destruct (IH H) as [h' [ins X]]; exists h'; auto.
Qed.
Lemma find_disk disk k s x : find_slot (keep_disk disk k) s = Some x -> In s disk /\ find_slot k s = Some x.
Proof.
  unfold keep_disk; induction disk as [|s0 disk IH]; cbn; [destruct s; discriminate|]; intros H.
  destruct (slot_dec s0 s) as [->|apart]; [rewrite find_put_same in H; auto|].
  rewrite find_put_other in H by easy; destruct (IH H); auto.
Qed.

Section Sound.
Context {K : CRing}.
Add Ring K_ring7 : (laws K).
Variables (w : world K) (p : program) (v : @values K).
Hypothesis ok : valid w p.
Hypothesis solved : solves w p v.
Hypothesis handed_ : handed w p v.
Local Notation g := (on p).
Local Notation memory := (@memory K).
Local Notation knows := (knows w p v).
Local Notation settled := (settled p).
Local Notation right := (right w p v).

Lemma look_held t l h u : l < count w (per h) -> u = per h -> look w v t l (value_of h, ix_of u) = v (value_of h) t l.
Proof. intros small ->; unfold look; cbn; destruct (per h); cbn in *; auto; now replace l with 0 by lia. Qed.

(** What is kept between steps is known in the next, and what is known so is kept. *)
Lemma resting_known t (m : memory) : forallb (well_kept g) (rest p) = true -> right t m ->
  knows t (fun _ => m) (resting (rest p)) /\ settled (resting (rest p)).
Proof.
  intros W R; rewrite forallb_forall in W; split.
  - intros u l small s x F Sc; apply find_resting in F as [h [ins ->]]; cbn in Sc.
    assert (P : scope_of u s = Some (per h)) by exact Sc.
    specialize (W _ ins); unfold well_kept in W; cbn [fst snd] in W.
    assert (sl : exists l', l' < count w (per h) /\ inst s l' = inst s l /\
      look w v t l (value_of h, ix_of (per h)) = v (value_of h) t l' /\ (l' = l \/ all_still g (lying h) = true)).
    { destruct s as [n|n], (per h); cbn in P |- *; try discriminate; try (destruct u; discriminate);
      [exists 0|exists l]; auto.
      - apply andb_true_iff in W; repeat split; auto; right; apply W.
      - destruct u; [|discriminate]; inversion P; subst; auto. }
    destruct sl as [l' [sl' [Il [Lk still_]]]]; unfold item_true; cbn [what]; rewrite <- Il, Lk.
    assert (T : means w p l' (glued (fun _ => m) s (inst s l')) (v (value_of h) t l') (Fact (lying h) [])); [|
      destruct still_ as [->|still_]; [exact T|now apply (means_still w p ok l')]].
    destruct (R s h ins l' sl') as [X D]; split; [exact X|]; intros r i; cbn [factor].
    assert (O : (value (atom w) (inverse w) [] * v (value_of h) t l' i)%ring = v (value_of h) t l' i) by (unfold
      value; cbn; ring).
    rewrite O; exact (D r i).
  - intros n x F; apply find_resting in F as [h [ins ->]]; cbn; specialize (W _ ins); unfold well_kept in W; cbn in W.
    destruct (per h); [discriminate|]; apply andb_true_iff in W; split; [reflexivity|tauto].
Qed.
Lemma known_right next t t' (m : memory) k : knows t (fun _ => m) k ->
  (forall n n', next n = Some n' -> forall l i, v n t' l i = v n' t l i) -> forallb (well_kept g) (rest p) = true ->
  forallb (rests g (ones p) next k) (rest p) = true -> right t' m.
Proof.
  intros Kn N W R s h ins l small; rewrite forallb_forall in W, R; specialize (W _ ins); specialize (R _ ins).
  unfold rests in R; cbn [fst snd] in R; destruct (find_slot k s) as [[u [[f n]|]]|] eqn:F; try discriminate.
  destruct (next (value_of h)) as [n'|] eqn:Nx; [|discriminate]; specialize (N _ _ Nx).
  repeat rewrite andb_true_iff in R; destruct R as [[[R1 R2] R3] R4]; apply unit_eqb_eq in R1;
    apply named_eqb_eq in R2; subst.
  assert (Sc : scope_of (per h) s = Some (per h)).
  { unfold well_kept in W; cbn in W; destruct s, (per h); try discriminate; reflexivity. }
  assert (T := Kn (per h) l small s _ F Sc); unfold item_true in T; cbn [what] in T; destruct T as [X D].
  split; [exact X|]; intros r i; specialize (D r i).
  assert (O : (value (atom w) (inverse w) (factor f) * look w v t l (n',
    ix_of (per h)) i)%ring = v (value_of h) t' l i).
  { rewrite (value_one w p ok _ R4), N; unfold look; cbn.
    assert (E : at_ w l (ix_of (per h)) = l) by (destruct (per h); cbn in *; auto; lia); rewrite E; ring. }
  rewrite O in D; apply (den_kinds w l _ (kind_at f)); auto.
  intros a ina; rewrite forallb_forall in R3; exact (kind_eqb_eq _ _ (R3 a ina)).
Qed.

Lemma nothing_known t (m : memory) : knows t (fun _ => m) nothing /\ settled nothing.
Proof. split; [intros u l _ s x F|intros n x F]; [destruct s|]; discriminate. Qed.

Theorem accepted_right : check p = true -> forall pauses t, right t (run w p pauses t).
Proof.
  unfold check; rewrite !andb_true_iff; intros [[[[[_ W] _] I] S] R] pauses.
  destruct handed_ as [given_ [data_ begun]].
  set (table := of_list (lines p)) in *.
  assert (none : forall h, In h (@nil held) -> forall t l, l < count w (per h) ->
    lies (size w) (home w l) (axes g) (input w false (value_of h) t l) (v (value_of h) t l) (lying h)) by (intros h []).
  induction t as [|t IH]; cbn [run].
  - destruct (check_blocks _ _ _ _ _ _ _) as [k|] eqn:C in I; [|discriminate].
    destruct (nothing_known 0 (fun _ l => junk w [l])) as [Kn0 S0].
    destruct (blocks_sound w p v ok solved 0 true (given p) given_ false (init p) (fun _ _ l => junk w [l])
      (fun _ => [0]) 0 nothing k ltac:(easy) Kn0 S0 C) as [Kn _].
    apply (known_right (first_of p) 0 0 _ k Kn); auto. intros n n' E l i; unfold first_of in E.
    destruct (find _ (begins p)) as [[a b]|] eqn:F; inversion E; subst; auto.
    apply find_some in F as [ins same]; apply Pos.eqb_eq in same; cbn in same; subst; cbn; auto.
  - destruct (check_parts _ _ _ _ _ _) as [k|] eqn:C in S; [|discriminate].
    destruct (resting_known t _ W IH) as [Kn0 S0].
    destruct (parts_sound w p v ok solved t false (data p) (fun h ins l => data_ h ins t l) (step p) _ [1;
      t] 0 _ k Kn0 S0 C) as [Kn _].
    set (m := run_parts g w (Moment t 0 0 false) [1; t] 0 (step p) (run w p pauses t)) in *.
    assert (M : right (Datatypes.S t) m).
    { apply (known_right (next_of p) t _ _ k Kn); auto; intros n n' E l i; exact (proj2 solved n n' E t l i). }
    destruct (check_blocks _ _ _ _ _ (save p) _) as [k1|] eqn:C1 in R; [|discriminate].
    apply andb_true_iff in R as [Rs R].
    destruct (check_blocks _ _ _ _ _ (resume p) _) as [k2|] eqn:C2 in R; [|discriminate].
    destruct (resting_known (Datatypes.S t) _ W M) as [Kn1 S1].
    destruct (blocks_sound w p v ok solved (Datatypes.S t) false [] (fun h ins l => none h ins (Datatypes.S t) l)
      false (save p) (fun _ => m)
      (fun _ => [4; t]) 0 _ k1 ltac:(easy) Kn1 S1 C1) as [Kn2 S2].
    set (m1 := run_blocks g w (Moment (Datatypes.S t) 0 0 false) [4; t] 0 (save p) m) in *.
    destruct (pauses t); [exact M| |].
    { apply (known_right Some (Datatypes.S t) _ _ k1 Kn2); auto. intros n n' E; inversion E; auto. }
    assert (Kn3 : knows (Datatypes.S t) (fun _ => stopped w p [2; t] m1) (keep_disk (disk p) k1)).
    { intros u l small s x F Sc; apply find_disk in F as [ins F].
      apply (item_frame w p v _ (fun _ => m1)); [|now apply (Kn2 u l small)].
      intros _; unfold stopped; assert (E : existsb (slot_eqb s) (disk p) = true) by (apply existsb_exists; exists s;
        split; auto; now apply slot_eqb_eq).
      now rewrite E. }
    assert (S3 : settled (keep_disk (disk p) k1)) by (intros n x F; apply find_disk in F as [_ F]; exact (S2 n x F)).
    destruct (blocks_sound w p v ok solved (Datatypes.S t) false [] (fun h ins l => none h ins (Datatypes.S t) l)
      false (resume p)
      (fun _ => stopped w p [2; t] m1) (fun _ => [3; t]) 0 _ k2 ltac:(easy) Kn3 S3 C2) as [Kn4 _].
    apply (known_right Some (Datatypes.S t) _ _ k2 Kn4); auto. intros n n' E; inversion E; auto.
Qed.
End Sound.

Theorem check_sound p : check p = true -> correct p.
Proof.
  intros C; split.
  - unfold check in C; rewrite !andb_true_iff in C; destruct C as [[[[[C _] _] _] _] _]; rewrite forallb_forall in C.
    intros n k ins; specialize (C _ ins); apply existsb_exists in C; destruct C as [[s h] [inr E]];
      apply Pos.eqb_eq in E.
    exists s, h; auto.
  - intros K w free ok handed_ pauses t; apply accepted_right; auto; apply ordered_solves.
    unfold check in C; rewrite !andb_true_iff in C; tauto.
Qed.
