(** What the checker knows stays true over a loop over a unit's instances, checked once for any number of them.

    What it backs: [check_block_] of placealg/prover/kernel/extraction.py.

    Main statement: [blocks_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check Infer Moving Order Slots.

Lemma in_both {A B : Type} (f : A -> option B) l l' : Forall2 (fun a b => f a = Some b) l l' ->
  forall c, In c (combine l l') -> f (fst c) = Some (snd c).
Proof. induction 1 as [|a b l l' E F IH]; cbn; [tauto|]; intros c [<-|inc]; auto. Qed.
Lemma in_second {A B : Type} (f : A -> option B) l l' : Forall2 (fun a b => f a = Some b) l l' ->
  forall b, In b l' -> exists a, In a l /\ f a = Some b.
Proof.
  induction 1 as [|a b l l' E F IH]; cbn; [tauto|]; intros b' [<-|inb]; [exists a; auto|].
  destruct (IH b' inb) as [a' [? ?]]; exists a'; auto.
Qed.

Lemma get_forget_shared l n k x : get (forget_shared l k) n = Some x -> ~ In (Shared n) l /\ get k n = Some x.
Proof.
  unfold forget_shared; intros H.
  assert (G : ~ In n (shared_of l) /\ get k n = Some x).
  { revert H; induction (shared_of l) as [|m ns IH]; cbn; [tauto|]; intros H.
    destruct (Pos.eq_dec m n) as [->|apart]; [rewrite get_set_same in H; discriminate|].
    rewrite get_set_other in H by easy; destruct (IH H); split; auto; intros [E|E]; auto. }
  destruct G as [out E]; split; auto; intros ins; apply out; unfold shared_of; apply in_flat_map; exists (Shared n);
    cbn; auto.
Qed.
Lemma get_put_carried a cs n k x : get (put_carried a cs k) n = Some x ->
  (exists c, In c cs /\ fst (fst c) = n /\ x = Item None (Some (snd (snd c), (snd (fst c), a)))) \/
  (get k n = Some x /\ forall c, In c cs -> fst (fst c) <> n).
Proof.
  induction cs as [|c cs IH]; cbn; [right; split; auto; intros ? []|]; intros H.
  destruct (Pos.eq_dec (fst (fst c)) n) as [E|apart].
  - left; exists c; subst; rewrite get_set_same in H; inversion H; auto.
  - rewrite get_set_other in H by easy; destruct (IH H) as [[c' [inc [E X]]]|[E out]]; [left; exists c'; auto|].
    right; split; auto; intros c' [<-|inc]; auto.
Qed.
Section Loops.
Context {K : CRing}.
Add Ring K_ring5 : (laws K).
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
Local Notation check_instrs := (check_instrs g (ones p) table inputs).
Local Notation check_block := (check_block g (ones p) table inputs).
Local Notation check_blocks := (check_blocks g (ones p) table inputs).
Local Notation item_true := (item_true w p v t).
Local Notation knows_at := (knows_at w p v t).
Local Notation knows := (knows w p v t).
Local Notation when := (when t start).

(** Of a slot that is one for all no value depends on an instance. *)
Definition settled (k : known) : Prop :=
  forall n x, find_slot k (Shared n) = Some x -> unmoved p (what x).
Lemma item_fixed M n l l' x : unmoved p (what x) -> item_true M l (Shared n) x -> item_true M l' (Shared n) x.
Proof.
  unfold Slots.item_true; cbn [inst]; destruct (what x) as [[f [m y]]|]; auto.
  intros [F S] T; apply (means_still w p ok l); auto; destruct y; try discriminate; exact T.
Qed.

Lemma means_declared l x u f f' : same_fact g f' f = true -> means l x u f' -> means l x u f.
Proof.
  intros S; apply andb_true_iff in S as [S F]; apply means_kinds; [|now apply (value_same w p ok)].
  intros a ina; rewrite forallb_forall in S; now apply kind_eqb_eq, S.
Qed.

(** The instances that a loop has run. *)
Lemma instance_small u down j : j < layers w u -> instance w u down j < layers w u.
Proof. unfold instance; destruct down; lia. Qed.
Lemma instance_once u down j j' : j < layers w u -> j' < layers w u -> instance w u down j = instance w u down j' ->
  j = j'.
Proof. unfold instance; destruct down; lia. Qed.
Lemma instance_all u down l : l < layers w u -> exists j, j < layers w u /\ instance w u down j = l.
Proof. intros small; unfold instance; destruct down; [exists (layers w u - S l)|exists l]; lia. Qed.

Section Layers.
Variables (inside : bool) (u : nat) (down : bool) (carried : list (positive * positive)) (is : list instr) (k k1 :
  known).
Variable ts : list (positive * fact).
Let at_ := if down then Next else This.
Let next := if down then This else Next.
Let first := if down then Last u else First.
Let last := if down then First else Last u.
Let cts := combine carried ts.
Let enter := moved g u (arriving down) (if down then behind else here).
Let leave := moved g u (arriving down) (if down then here else behind).
Let end_up := moved g u (arriving down) (leaving down).
Let outer := forget_shared (map out_of is) (shared k).
Hypothesis from : Forall2 (fun c b => carried_from k first c = Some b) carried ts.
Hypothesis body : check_instrs (Some u) inside is (Known (put_carried at_ (each_carried enter cts) outer) (each k)) =
  Some k1.
Hypothesis to : forall c, In c cts -> carried_to g k1 next (fst c) (fst (snd c), leave (snd (snd c))) = true.
Hypothesis ended : forall c, In c cts -> all_still g (kinds (end_up (snd (snd c)))) = true.
Hypothesis touched : forall c, In c carried -> In (Shared (fst c)) (map out_of is).
Variables (M : nat -> memory) (path : nat -> list nat).
Hypothesis one_ : one inside M path.
Hypothesis known_ : knows M k.
Hypothesis settled_ : settled k.

Definition after (j c : nat) : memory :=
  loop j (fun j => run_instrs g w (when inside (instance w u down j) c) (j :: path c) 0 is) (M c).

Lemma after_frame j c s l : ~ In s (map out_of is) -> after j c s l = M c s l.
Proof. intros out; induction j as [|j IH]; cbn; auto; rewrite (instrs_frame w p); [exact IH|now left]. Qed.
Lemma after_one j : one inside (after j) path.
Proof.
  intros out; destruct (one_ out) as [A B]; split; auto; intros c; unfold after; rewrite (A c).
  induction j as [|j IH]; cbn; auto; rewrite IH, (B c); unfold Slots.when; now rewrite out.
Qed.

Lemma from_in c : In c cts -> carried_from k first (fst c) = Some (snd c) /\ In (fst c) carried.
Proof.
  intros inc; split; [exact (in_both _ _ _ from c inc)|]; destruct c; now apply in_combine_l in inc.
Qed.
Lemma carried_name c : In c cts -> fst (fst c) = fst (snd c).
Proof.
  intros inc; destruct (from_in c inc) as [F _]; unfold carried_from in F.
  destruct (get _ _) as [[[?|] [[f n]|]]|]; try discriminate; destruct (named_eqb _ _); [|discriminate]; inversion F;
    now destruct (snd c); inversion H0.
Qed.

Lemma carried_still c : In c cts -> all_still g (kinds (snd (snd c))) = true.
Proof.
  intros inc; destruct (from_in c inc) as [F _]; unfold carried_from in F.
  destruct (get (shared k) (fst (fst c))) as [[[?|] [[f n]|]]|] eqn:G; try discriminate.
  destruct (named_eqb _ _); [|discriminate]; inversion F as [Q]; cbn [snd]; exact (proj2 (settled_ _ _ G)).
Qed.
Lemma in_each f (c : (positive * positive) * (positive * fact)) : In c (each_carried f cts) ->
  exists c', In c' cts /\ c = (fst c', (fst (snd c'), f (snd (snd c')))).
Proof. unfold each_carried; intros H; apply in_map_iff in H as [c' [<- inc]]; now exists c'. Qed.

Record invariant (j : nat) : Prop := Invariant {
  handed_on : forall c, In c cts -> means (position w u down j) (glued (after j) (Shared (fst (fst c))) 0)
    (v (snd (fst c)) t (position w u down j)) (moved g u (arriving down) here (snd (snd c)));
  visited : forall n x, find_slot k1 (Each n) = Some x -> instances x = Some u ->
    forall i, i < j -> item_true (after j) (instance w u down i) (Each n) x;
  waiting : forall n x, find_slot k (Each n) = Some x -> instances x = Some u ->
    forall i, j <= i < layers w u -> item_true (after j) (instance w u down i) (Each n) x
}.

Lemma invariant_start : invariant 0.
Proof.
  split; [|lia|].
  - intros c inc; destruct (from_in c inc) as [F _]; unfold carried_from in F.
    destruct (get (shared k) (fst (fst c))) as [[[?|] [[f n]|]]|] eqn:G; try discriminate.
    destruct (named_eqb _ _) eqn:E; [|discriminate]; apply named_eqb_eq in E; subst; inversion F as [Q]; cbn [snd].
    assert (T := known_ None 0 Nat.lt_0_1 (Shared (fst (fst c))) _ G eq_refl); unfold Slots.item_true in T; cbn in T.
    apply (means_entering w p ok u down); [exact (proj2 (settled_ _ _ G))|].
    unfold look in T; cbn in T; unfold position, first in *; destruct down; cbn in T; rewrite ?Nat.sub_0_r; exact T.
  - intros n x F E i range; apply (known_ (Some u) _ (instance_small u down i ltac:(lia)) (Each n) x F); cbn;
    now rewrite E.
Qed.

Lemma invariant_step j : j < layers w u -> invariant j -> invariant (S j).
Proof.
  intros small [I1 I2 I3]; set (l := instance w u down j).
  assert (K0 : knows_at (Some u) l (after j) (Known (put_carried at_ (each_carried enter cts) outer) (each k))).
  { intros s x F S; destruct s as [n|n]; cbn in F, S.
    - apply get_put_carried in F as [[c0 [inc [E X]]]|[F out]].
      + apply in_each in inc as [c [inc ->]]; cbn [fst snd] in E, X; subst; unfold Slots.item_true; cbn.
        assert (P : look w v t l (snd (fst c), at_) = v (snd (fst c)) t (position w u down j)).
        { unfold look, at_, position, l, instance; cbn; destruct down; cbn; auto; f_equal; lia. }
        rewrite P; apply (means_turning w p ok u down j); [now apply carried_still|easy|now apply I1].
      + apply get_forget_shared in F as [out_ F].
        apply (item_frame w p v t M); [intros c; now apply after_frame|].
        apply (item_fixed M n 0); [exact (settled_ n x F)|]; apply (known_ None 0 Nat.lt_0_1 (Shared n) x F); cbn;
          congruence.
    - apply (I3 n x F); [congruence|lia]. }
  assert (K1 : knows_at (Some u) l (after (S j)) k1).
  { exact (instrs_sound w p v ok solved t start inputs inputs_ok inside (Some u) l is (instance_small u down j small)
      (after j) (fun c => j :: path c) 0 _ k1
      (fun out => conj (proj1 (after_one j out)) (fun c => f_equal (cons j) (proj2 (after_one j out) c))) K0 body). }
  assert (other : forall i c n, i < layers w u -> i <> j -> after (S j) c (Each n) (instance w u down i) = after j c
    (Each n) (instance w u down i)).
  { intros i c n si apart; cbn; rewrite (instrs_frame w p); [easy|]; right; cbn; intros E; apply apart;
    now apply (instance_once u down). }
  split.
  - intros c inc; assert (T := to c inc); unfold carried_to in T.
    destruct (get (shared k1) (fst (fst c))) as [[[?|] [[f n]|]]|] eqn:G; try discriminate.
    apply andb_true_iff in T as [E Sf]; apply named_eqb_eq in E; subst.
    assert (Q := K1 (Shared (fst (fst c))) _ G eq_refl); unfold Slots.item_true in Q; cbn in Q.
    assert (P : look w v t l (snd (fst c), next) = v (snd (fst c)) t (position w u down (S j))).
    { unfold look, next, position, l, instance; cbn; destruct down; cbn; auto. }
    rewrite P in Q; apply (means_returning w p ok u down j); [now apply carried_still|easy|].
    now apply (means_declared _ _ _ _ f).
  - intros n x F E i range; destruct (Nat.eq_dec i j) as [->|apart].
    + apply (K1 (Each n) x F); cbn; now rewrite E.
    + destruct (Nat.lt_ge_cases i (layers w u)) as [si|]; [|lia].
      apply (item_frame w p v t (after j)); [intros c; now apply other|]; apply I2; auto; lia.
  - intros n x F E i range; apply (item_frame w p v t (after j)); [intros c; apply other; lia|]; apply I3; auto; lia.
Qed.

Lemma layers_known : knows (after (layers w u)) (Known (put_carried last (each_carried end_up cts) outer) (each k1)) /\
  settled (Known (put_carried last (each_carried end_up cts) outer) (each k1)).
Proof.
  assert (I : forall j, j <= layers w u -> invariant j).
  { induction j as [|j IH]; intros small; [apply invariant_start|apply invariant_step; [lia|apply IH; lia]]. }
  destruct (I _ (le_n _)) as [I1 I2 _].
  assert (S : settled (Known (put_carried last (each_carried end_up cts) outer) (each k1))).
  { intros n x F; cbn in F; apply get_put_carried in F as [[c0 [inc [E X]]]|[F out]].
    - apply in_each in inc as [c [inc ->]]; cbn [fst snd] in X; subst; cbn; split; [|now apply ended].
      unfold last; destruct down; reflexivity.
    - apply get_forget_shared in F as [_ F]; exact (settled_ n x F). }
  split; auto; intros u' l small s x F Sc; destruct s as [n|n].
  - apply (item_fixed _ n 0); [exact (S n x F)|]; cbn in F.
    apply get_put_carried in F as [[c0 [inc [E X]]]|[F out]].
    + apply in_each in inc as [c [inc ->]]; cbn [fst snd] in E, X; subst; unfold Slots.item_true; cbn.
      assert (P : look w v t 0 (snd (fst c), last) = v (snd (fst c)) t (position w u down (layers w u))).
      { unfold look, last, position; destruct down; cbn; auto; now rewrite Nat.sub_diag. }
      rewrite P; apply (means_leaving w p ok u down); [now apply carried_still|now apply I1].
    + apply get_forget_shared in F as [out_ F]; apply (item_frame w p v t M); [intros c; now apply after_frame|].
      apply (known_ None 0 Nat.lt_0_1 (Shared n) x F); cbn in *; congruence.
  - cbn in F, Sc; destruct u' as [u'|]; [|discriminate]; inversion Sc as [E]; destruct (Nat.eq_dec u' u) as [->|apart].
    + destruct (instance_all u down l small) as [j [sj <-]]; now apply (I2 n x F).
    + destruct (instrs_static p inputs inside (Some u) is _ _ body) as [R _].
      destruct (R (Each n) x F) as [F0 out]; [cbn; rewrite <- E; congruence|]; cbn in F0.
      apply (item_frame w p v t M); [intros c; now apply after_frame|].
      apply (known_ (Some u') l small (Each n) x F0); cbn; now rewrite E.
Qed.
End Layers.

Lemma block_frame e path b (m : memory) s l : ~ In s (written b) -> run_block g w e path b m s l = m s l.
Proof.
  intros out; destruct b as [is|u down carried is]; cbn in *; [apply (instrs_frame w p); now left|].
  induction (layers w u) as [|j IH]; cbn; auto; rewrite (instrs_frame w p); [exact IH|now left].
Qed.
Lemma blocks_frame e path bs : forall n (m : memory) s l, ~ In s (flat_map written bs) ->
  run_blocks g w e path n bs m s l = m s l.
Proof.
  induction bs as [|b bs IH]; intros n m s l out; cbn in *; auto; rewrite in_app_iff in out.
  rewrite IH by tauto; apply block_frame; tauto.
Qed.

Lemma block_sound inside b M path k k' : one inside M path -> knows M k -> settled k ->
  check_block inside b k = Some k' ->
  knows (fun c => run_block g w (when inside 0 c) (path c) b (M c)) k' /\ settled k'.
Proof.
  intros one_ known_ S C; destruct b as [is|u down carried is]; cbn [Check.check_block run_block] in *.
  - destruct (instrs_static p inputs inside None is _ _ C) as [R1 [R2 R3]].
    assert (K1 := instrs_sound w p v ok solved t start inputs inputs_ok inside None 0 is Nat.lt_0_1 M path 0 k k' one_
      (known_ None 0 Nat.lt_0_1) C).
    assert (S' : settled k').
    { intros n x F; destruct (in_dec slot_dec (Shared n) (map out_of is)) as [ins|out]; [now apply (R2 _ _ F)|].
      rewrite R3 in F by easy; exact (S n x F). }
    split; auto; intros u l small s x F Sc; destruct s as [n|n].
    + apply (item_fixed _ n 0); [exact (S' n x F)|]; apply (K1 (Shared n) x F); cbn in *; congruence.
    + destruct (R1 (Each n) x F) as [F0 out]; [discriminate|].
      apply (item_frame w p v t M); [intros c; apply (instrs_frame w p); now left|]; now apply (known_ u l small).
  - destruct (sequence _) as [ts|] eqn:Q; [|discriminate]; apply sequence_map in Q.
    destruct (Check.check_instrs _ _ _ _ _ _ _ _) as [k1|] eqn:B; [|discriminate].
    destruct (_ && _) eqn:A; [|discriminate]; inversion C; subst; clear C.
    repeat rewrite andb_true_iff in A; destruct A as [[[A1 A2] A3] A4]; rewrite forallb_forall in A1, A4.
    apply (layers_known inside u down carried is k k1 ts Q B); auto.
    + intros c inc; apply (A1 (fst c, (fst (snd c), moved g u (arriving down) (if down then here else behind) (snd (snd
        c))))); unfold each_carried; apply in_map_iff; now exists c.
    + intros c inc; apply (A4 (fst c, (fst (snd c), moved g u (arriving down) (leaving down) (snd (snd c)))));
        unfold each_carried; apply in_map_iff; now exists c.
Qed.

Lemma block_one inside b M path : one inside M path -> one inside (fun c => run_block g w (when inside 0 c) (path c) b
  (M c)) path.
Proof.
  intros one_ out; destruct (one_ out) as [A B]; split; auto; intros c; rewrite (A c), (B c); unfold Slots.when;
    now rewrite out.
Qed.

Theorem blocks_sound inside bs : forall M path n k k', one inside M path -> knows M k -> settled k ->
  check_blocks inside bs k = Some k' -> knows (fun c => run_blocks g w (when inside 0 c) (path c) n bs (M c)) k' /\
    settled k'.
Proof.
  induction bs as [|b bs IH]; intros M path n k k' one_ known_ S C; cbn [Check.check_blocks run_blocks] in *;
    [inversion C; now subst|].
  destruct (check_block inside b k) as [k1|] eqn:B; [|discriminate].
  assert (one1 : one inside M (fun c => n :: path c)).
  { intros out; destruct (one_ out) as [A1 A2]; split; auto; intros c; now rewrite (A2 c). }
  destruct (block_sound inside b M _ k k1 one1 known_ S B) as [K1 S1].
  apply (IH (fun c => run_block g w (when inside 0 c) (n :: path c) b (M c)) path (Datatypes.S n) k1 k'); auto.
  intros out; destruct (one_ out) as [A1 A2]; split; auto; intros c; rewrite (A1 c), (A2 c); unfold Slots.when;
    now rewrite out.
Qed.

End Loops.
