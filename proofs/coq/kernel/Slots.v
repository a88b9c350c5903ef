(** What the checker knows of slots stays true: one instruction, then many, for all microbatches at a time.

    What it backs: [check_instr_] of placealg/prover/kernel/extraction.py, which follows what is stored, overwritten,
    freed and read.

    Main statement: [instrs_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check Infer Moving Order.

Lemma slot_eqb_eq s s' : slot_eqb s s' = true <-> s = s'.
Proof. destruct s, s'; cbn; rewrite ?Pos.eqb_eq; split; intros H; try discriminate; try congruence. Qed.
Lemma slot_eqb_neq s s' : slot_eqb s s' = false <-> s <> s'.
Proof. rewrite <- slot_eqb_eq; destruct (slot_eqb s s'); split; congruence. Qed.
Lemma unit_eqb_eq u u' : unit_eqb u u' = true -> u = u'.
Proof. destruct u, u'; cbn; intros H; try discriminate; auto; apply Nat.eqb_eq in H; congruence. Qed.
Lemma named_eqb_eq n n' : named_eqb n n' = true -> n = n'.
Proof.
  destruct n as [n x], n' as [n' x']; unfold named_eqb; cbn [fst snd]; intros H; apply andb_true_iff in H as [A B];
    apply Pos.eqb_eq in A; subst.
  destruct x, x'; cbn in B; try discriminate; auto; apply Nat.eqb_eq in B; now subst.
Qed.
Lemma same_list_eq {A : Type} (same : A -> A -> bool) l l' : (forall a b, same a b = true -> a = b) ->
  same_list same l l' = true -> l = l'.
Proof.
  intros E; revert l'; induction l as [|a l IH]; intros [|b l'] H; cbn in H; try discriminate; auto.
  apply andb_true_iff in H as [H1 H2]; f_equal; auto.
Qed.

Definition slot_dec (s s' : slot) : {s = s'} + {s <> s'}.
Proof. repeat decide equality. Defined.

Lemma find_put_same s x k : find_slot (put_slot s x k) s = x.
Proof. destruct s; cbn; apply get_set_same. Qed.
Lemma find_put_other s s' x k : s <> s' -> find_slot (put_slot s x k) s' = find_slot k s'.
Proof. destruct s, s'; cbn; intros apart; auto; apply get_set_other; congruence. Qed.

Section Slots.
Context {K : CRing}.
Add Ring K_ring4 : (laws K).
Variables (w : world K) (p : program) (v : @values K).
Hypothesis ok : valid w p.
Hypothesis solved : solves w p v.
Local Notation g := (on p).
Local Notation memory := (@memory K).
Local Notation means := (@Infer.means K w p).
Local Notation table := (of_list (lines p)).

(** In a step; what may be read in it. *)
Variables (t : nat) (start : bool) (inputs : list held).
Hypothesis inputs_ok : forall h, In h inputs -> forall l, l < count w (per h) ->
  lies (size w) (home w l) (axes g) (input w start (value_of h) t l) (v (value_of h) t l) (lying h).
Local Notation fits := (fits g).
Local Notation check_instr := (check_instr g (ones p) table inputs).
Local Notation check_instrs := (check_instrs g (ones p) table inputs).

(** The memories of all microbatches as one: at a coordinate of axis 0 that of its microbatch. *)
Definition glued (M : nat -> memory) (s : slot) (l : nat) : @tensor K := fun r i => M (r 0) s l r i.
Definition item_true (M : nat -> memory) (l : nat) (s : slot) (x : item) : Prop :=
  match what x with
  | None => forall c r i, M c s (inst s l) r i = 0%ring
  | Some (f, n) => means l (glued M s (inst s l)) (look w v t l n) f end.
(** What is known so that it depends on no instance. *)
Definition unmoved (x : option (fact * named)) : Prop :=
  match x with Some (f, n) => fixed_ix n = true /\ all_still g (kinds f) = true | None => True end.
(** What is known is true in an instance of a unit; and in all. *)
Definition knows_at (u : option nat) (l : nat) (M : nat -> memory) (k : known) : Prop :=
  forall s x, find_slot k s = Some x -> scope_of u s = Some (instances x) -> item_true M l s x.
Definition knows (M : nat -> memory) (k : known) : Prop := forall u l, l < count w u -> knows_at u l M k.

Definition when (inside : bool) (l c : nat) : moment := Moment t (if inside then c else 0) l start.
(** Outside of the loop over microbatches there is one memory. *)
Definition one (inside : bool) (M : nat -> memory) (path : nat -> list nat) : Prop :=
  inside = false -> (forall c, M c = M 0) /\ (forall c, path c = path 0).

(** An op that sends nothing along axis 0 stays at a coordinate of it. *)
Definition same_at (c : nat) (x y : @tensor K) : Prop := forall r i, r 0 = c -> x r i = y r i.
Lemma apply_at c e e' j j' o xs ys : of_step e = of_step e' -> of_layer e = of_layer e' ->
  match o with Send a _ => a <> 0 | _ => True end -> rows_of w e o -> same_at c j j' ->
  Forall ext ys -> Forall2 (same_at c) xs ys ->
  same_at c (apply g w e j o xs) (apply g w e' j' o ys).
Proof.
  intros S1 S2 own rows J E S r i at_c.
  assert (N : forall r i, r 0 = c -> nth 0 xs (fun _ _ => 0%ring) r i = nth 0 ys (fun _ _ => 0%ring) r i).
  { clear -S; intros r i at_c; destruct S; cbn; auto. }
  destruct o as [s over|f over s|s|m|q|a s]; cbn [apply rows_of] in *.
  - rewrite <- S2; unfold einsum; apply (sum_list_ext K); intros b _; destruct (has _ _ _ _ _ _ _ _); auto; f_equal.
    clear -S at_c; induction S as [|x y xs ys H S IH]; cbn; [easy|]; rewrite IH; f_equal; now apply H.
  - unfold row; rewrite <- S1, <- S2; apply rows; auto.
    clear -S E at_c; revert E; induction S as [|x y xs ys H S IH]; intros E; inversion E; subst; cbn; constructor; auto.
    intros j1 j2 _ same; rewrite H by easy; auto.
  - unfold added; clear -S at_c; induction S as [|x y xs ys H S IH]; cbn; [easy|]; rewrite IH; f_equal; now apply H.
  - now rewrite N.
  - now apply N.
  - rewrite <- S2; set (x := nth 0 xs _) in *; set (y := nth 0 ys _) in *.
    assert (P : forall b j, x (put r a b) j = y (put r a b) j) by (intros; apply N; unfold put;
      destruct (Nat.eqb_spec 0 a); congruence).
    assert (Q : summed (size w) a x r i = summed (size w) a y r i) by (apply (sum_list_ext K); intros; apply P).
    destruct s; cbn; rewrite ?Q; unfold taken; rewrite ?P, ?(N r i at_c), ?(J r i at_c); reflexivity.
Qed.

(** What does not depend on the microbatch, read at the first. *)
Lemma means_flat l x u f : is_full (kind_at f 0) = true -> means l x u f -> means l (fun r i => x (put r 0 0) i) u f.
Proof.
  intros F [E D]; split.
  - intros r r' i i' samer samei; apply E; auto; intros a; unfold put; destruct (a =? 0); auto.
  - intros r i; specialize (D (put r 0 0) i); destruct (axes g) as [|n]; [exact D|].
    unfold den in *; cbn [seq agree val] in *; destruct D as [A B]; destruct (kind_at f 0); try discriminate.
    assert (out : ~ In 0 (seq 1 n)) by (rewrite in_seq; lia).
    assert (R : forall c, val (size w) (home w l) (seq 1 n) (kind_at f) (fun r i => x (put r 0 0) i) (put r 0 c) i
      = val (size w) (home w l) (seq 1 n) (kind_at f) x (put (put r 0 0) 0 0) i).
    { intros c; change (fun r i => x (put r 0 0) i) with (fixed 0 (fun _ => 0) x).
      rewrite (val_fixed (size w) (home w l) (touches g) (home_touches w p ok l)) by easy.
      apply (val_rank (size w) (home w l) (touches g) (home_touches w p ok l)); auto; intros b;
        now rewrite !put_twice. }
    split; rewrite ?R; [|exact B]; intros c small; rewrite !R; split; [|easy].
    change (fun r i => x (put r 0 0) i) with (fixed 0 (fun _ => 0) x).
    apply (agree_fixed (size w) (home w l) (touches g) (home_touches w p ok l)); auto.
    destruct (A 0 ltac:(apply (size_pos w p ok))) as [A0 _].
    eapply (agree_rank (size w) (home w l) (touches g) (home_touches w p ok l)); [exact E| |exact A0]; intros b;
      now rewrite !put_twice.
Qed.

(** What is stored is, for all microbatches at once, what the op makes of all at once. *)
Lemma stored_means inside l (M : nat -> memory) path out y x u f : ext y -> one inside M path ->
  (inside = true \/ is_full (kind_at f 0) = true) ->
  (forall c, same_at (if inside then c else 0) (x c) y) -> (inside = false -> forall c, x c = x 0) -> means l y u f ->
  means l (glued (fun c => store (when inside l c) out (x c) (M c)) out (inst out l)) u f.
Proof.
  intros Y one_ F S X D.
  assert (G : forall r i, glued (fun c => store (when inside l c) out (x c) (M c)) out (inst out l) r i = x (r 0) (put
    r 0 (if inside then r 0 else 0)) i).
  { intros r i; unfold glued, store; cbn. replace (slot_eqb out out) with true by (symmetry; now apply slot_eqb_eq).
    rewrite Nat.eqb_refl; now destruct inside. }
  destruct inside.
  - apply (means_same w p l y _ u u f); auto; intros r i; rewrite G, (S (r 0)).
    + apply Y; auto; intros a; unfold put; destruct (Nat.eqb_spec a 0); now subst.
    + unfold put; now rewrite Nat.eqb_refl.
  - destruct F as [F|F]; [discriminate|].
    apply (means_same w p l (fun r i => y (put r 0 0) i) _ u u f); auto; [|now apply means_flat].
    intros r i; rewrite G, (X eq_refl (r 0)), (S 0); auto.
Qed.

Lemma is_line_value o s m l n (vs : list (@logical K)) f i : is_line o s = Some m ->
  (value (atom w) (inverse w) f * whole w (Moment t n l start) o vs i)%ring =
  (value (atom w) (inverse w) (mono_over f m) * computed w s t l vs i)%ring.
Proof.
  intros H.
  assert (O : mono_over f [] = f) by (unfold mono_over; cbn; destruct f as [|[? ?] ?]; reflexivity).
  destruct o, s; cbn in H; try discriminate;
    repeat match type of H with (if ?b then _ else _) = _ => destruct b eqn:?; [|discriminate] end; inversion H;
      subst; cbn [whole computed of_step of_layer]; rewrite ?O.
  - apply (same_list_eq Nat.eqb) in Heqb; [now subst|]; intros a b; apply Nat.eqb_eq.
  - apply andb_true_iff in Heqb as [A B]; apply Nat.eqb_eq in A; now subst.
  - reflexivity.
  - rewrite <- (value_over w p ok f m); ring.
  - apply (same_list_eq same_pair) in Heqb; [now subst|]; intros [a b] [a' b']; unfold same_pair; cbn; intros E.
    apply andb_true_iff in E as [E1 E2]; apply Nat.eqb_eq in E1, E2; now subst.
Qed.

Lemma arg_known u l M k s f n : knows_at u l M k -> arg u k s = Some (f, n) ->
  means l (glued M s (inst s l)) (look w v t l n) f.
Proof.
  intros H A; unfold arg in A; destruct (find_slot k s) as [x|] eqn:F; [|discriminate].
  destruct (scope_of u s) as [s'|] eqn:S; [|discriminate]; destruct (unit_eqb _ _) eqn:E; [|discriminate];
    apply unit_eqb_eq in E; subst.
  specialize (H s x F S); unfold item_true in H; now rewrite A in H.
Qed.

(** What the checker does to what is known, whatever is true: it writes the slot that the instruction writes. *)
Lemma instr_static inside u x k k' : check_instr u inside x k = Some k' ->
  (forall s, s <> out_of x -> find_slot k' s = find_slot k s) /\
  (forall y, find_slot k' (out_of x) = Some y -> scope_of u (out_of x) = Some (instances y) /\
    (u = None -> unmoved (what y))).
Proof.
  assert (W : forall out y, (u = None -> unmoved y) ->
    write u out y k = Some k' ->
    (forall s, s <> out -> find_slot k' s = find_slot k s) /\
    (forall z, find_slot k' out = Some z -> scope_of u out = Some (instances z) /\
      (u = None -> unmoved (what z)))).
  { intros out y F C; unfold write in C; destruct (scope_of u out) as [su|]; [|discriminate]; inversion C; subst.
    split; [intros s apart; apply find_put_other; congruence|]; intros z E; rewrite find_put_same in E; inversion E;
      subst; cbn.
    split; auto. }
  assert (F : forall f n, fits u inside f n = true -> u = None -> unmoved (Some (f, n))).
  { unfold fits; intros f n H ->; apply andb_true_iff in H as [_ H]; now apply andb_true_iff in H. }
  destruct x as [o args out claim|n out|out|out]; cbn [Check.check_instr out_of]; intros C.
  - destruct (sequence _); [|discriminate]; destruct (infer _ _ _ _); [|discriminate];
    destruct (claimed _ _ _ _ _ _ _) as [[f0 n0]|]; [|discriminate].
    destruct (fits u inside f0 n0) eqn:Q; [|discriminate]; apply (W out (Some (f0, n0))); eauto.
  - destruct (find _ _); [|discriminate]; destruct (fits _ _ _ _) eqn:Q; [|discriminate];
    apply (W out (Some (_, _)) (F _ _ Q) C).
  - now apply (W out None).
  - inversion C; subst; split; [intros s apart; apply find_put_other; congruence|]; intros y E;
    rewrite find_put_same in E; discriminate.
Qed.
Lemma instrs_static inside u is : forall k k', check_instrs u inside is k = Some k' ->
  (forall s x, find_slot k' s = Some x -> scope_of u s <> Some (instances x) ->
    find_slot k s = Some x /\ ~ In s (map out_of is)) /\
  (forall s x, find_slot k' s = Some x -> In s (map out_of is) ->
     u = None -> unmoved (what x)) /\
  (forall s, ~ In s (map out_of is) -> find_slot k' s = find_slot k s).
Proof.
  induction is as [|x is IH]; intros k k' C; cbn [Check.check_instrs] in C.
  - inversion C; subst; repeat split; auto. intros s y _ [].
  - destruct (check_instr u inside x k) as [k1|] eqn:C1; [|discriminate].
    destruct (instr_static inside u x k k1 C1) as [F T]; destruct (IH k1 k' C) as [R2 [R3 R4]]; split; [|split].
    + intros s y E S; destruct (R2 s y E S) as [E1 out]; destruct (slot_eqb s (out_of x)) eqn:Q.
      * apply slot_eqb_eq in Q; subst; exfalso; apply S; now apply T.
      * apply slot_eqb_neq in Q; rewrite F in E1 by easy; split; auto; cbn; intros [eq|ins]; [congruence|tauto].
    + intros s y E ins un; destruct (in_dec slot_dec s (map out_of is)) as [later|never]; [now apply (R3 s)|].
      cbn in ins; destruct ins as [<-|ins]; [|tauto]; rewrite R4 in E by easy; now apply (T y).
    + intros s out; cbn in out; rewrite R4 by tauto; apply F; intros ->; apply out; now left.
Qed.

(** One instruction. *)
Lemma instr_true inside u l M path k k' x : l < count w u -> one inside M path -> knows_at u l M k ->
  check_instr u inside x k = Some k' ->
  forall y, find_slot k' (out_of x) = Some y -> item_true (fun c => run_instr g w (when inside l c) (path c) x (M c))
    l (out_of x) y.
Proof.
  intros small one_ H C; destruct x as [o args out claim|n out|out|out]; cbn [Check.check_instr out_of] in *.
  - destruct (sequence (map (arg u k) args)) as [os|] eqn:Q; [|discriminate]; apply sequence_map in Q.
    destruct (infer g (ones p) o (map fst os)) as [f|] eqn:I; [|discriminate].
    destruct (claimed (ones p) table u o claim (map snd os) f) as [[f' n]|] eqn:D; [|discriminate].
    destruct (fits u inside f' n) eqn:F; [|discriminate]; unfold write in C; destruct (scope_of u out) as [su|] eqn:S;
      [|discriminate].
    inversion C; subst; clear C.
    intros y E; rewrite find_put_same in E; inversion E; subst; clear E; cbn [instances what].
    unfold fits in F; apply andb_true_iff in F as [F1 F2].
    unfold item_true; cbn [what].
    pose (spare := fun (r : rank) (i : index) => junk w (path (r 0)) r i).
    assert (J : ext spare).
    { intros r r' i i' samer samei; unfold spare; rewrite <- (samer 0); now apply (junk_ext w p ok). }
    pose (ks := map (fun a => (glued M (fst a) (inst (fst a) l), look w v t l (snd (snd a)),
      fst (snd a))) (combine args os)).
    assert (L : map fst (combine args os) = args /\ map snd (combine args os) = os /\
      (forall a, In a (combine args os) -> arg u k (fst a) = Some (snd a))).
    { clear -Q; induction Q as [|a b args os A Q [IH1 [IH2 IH3]]]; cbn; [easy|]; rewrite IH1, IH2; split; [easy|split;
      [easy|]].
      intros a' [<-|ina]; auto. }
    destruct L as [L1 [L2 L3]].
    assert (T1 : tensors ks = map (fun s => glued M s (inst s l)) args) by (unfold tensors, ks; rewrite map_map;
      rewrite <- L1 at 2; now rewrite map_map).
    assert (T2 : meanings ks = map (look w v t l) (map snd os)) by (unfold meanings, ks; rewrite map_map;
      rewrite <- L2 at 2; now rewrite !map_map).
    assert (T3 : map snd ks = map fst os) by (unfold ks; rewrite map_map; rewrite <- L2 at 2; now rewrite map_map).
    assert (known_ : forall q, In q ks -> Infer.true_of w p l q).
    { intros q inq; unfold ks in inq; apply in_map_iff in inq; destruct inq as [[s [f0 n0]] [<- ina]].
      apply (arg_known u l M k s f0 n0 H (L3 _ ina)). }
    pose (e := when inside l 0).
    assert (W : rows_of w e o /\ (forall i, value (atom w) (inverse w) (factor f) * whole w e o (meanings ks) i =
      value (atom w) (inverse w) (factor f') * look w v t l n i)%ring
        /\ kinds f' = kinds f).
    { unfold claimed in D; destruct claim as [c|].
      - destruct (get table c) as [[scope x]|] eqn:G; [|discriminate]; destruct (is_line o (made x)) as [m|] eqn:Z;
        [|discriminate].
        destruct (unit_eqb scope u && _) eqn:U; [|discriminate]; apply andb_true_iff in U as [U1 U2].
        apply unit_eqb_eq in U1; apply (same_list_eq named_eqb) in U2; [|apply named_eqb_eq]; inversion D; subst.
        apply get_of_list in G; split; [|split; [|easy]].
        + destruct o; cbn in *; auto; destruct (made x) eqn:Mx; cbn in Z; try discriminate.
          destruct (_ && _) eqn:B; [|discriminate]; apply andb_true_iff in B as [B1 B2]; apply Nat.eqb_eq in B1.
          apply (same_list_eq Nat.eqb) in B2; [|intros; now apply Nat.eqb_eq]; subst;
            apply (rows_ok w p ok c _ x _ _ G Mx).
        + intros i; cbn [factor]; rewrite (value_reduced w p ok); unfold e, when;
          rewrite (is_line_value o (made x) m); auto.
          destruct solved as [eqs _]; rewrite (eqs c _ x G t l small i), T2, U2; reflexivity.
      - destruct (map snd os) as [|n0 [|? ?]] eqn:N0; try discriminate; destruct (keeps o) eqn:Kp; [|discriminate];
        inversion D; subst.
        rewrite T2; destruct o; try discriminate; cbn; auto. }
    destruct W as [rows [W Kf]].
    assert (Y := infer_sound w p ok l e spare o ks f eq_refl J rows known_ ltac:(rewrite T3; exact I)).
    assert (Y' : means l (apply g w e spare o (tensors ks)) (look w v t l n) f').
    { destruct Y as [E1 E2]; split; [exact E1|]; intros r i; rewrite <- W; unfold kind_at; rewrite Kf; apply E2. }
    apply (stored_means inside l M path out _ (fun c => apply g w (when inside l c) (junk w (path c)) o (map (load
      (when inside l c) (M c)) args)) _ _ (proj1 Y')); auto.
    + apply orb_true_iff in F1; exact F1.
    + intros c; rewrite T1; apply (apply_at (if inside then c else 0)); auto.
      * destruct o; auto; cbn in I; destruct (map fst os) as [|? [|? ?]]; try discriminate; destruct (_ && _) eqn:A;
        [|discriminate].
        apply andb_true_iff in A as [_ A]; apply negb_true_iff, Nat.eqb_neq in A; exact A.
      * intros r i at_c; unfold spare; rewrite at_c; destruct inside; auto; now rewrite (proj2 (one_ eq_refl) c).
      * rewrite <- T1; now apply (tensors_ext w p l).
      * clear -one_; induction args as [|s args IH]; cbn; constructor; auto.
        intros r i at_c; unfold glued, load; cbn [of_layer when]; rewrite at_c; destruct inside; auto;
          now rewrite (proj1 (one_ eq_refl) c).
    + intros out_ c; rewrite (proj1 (one_ out_) c), (proj2 (one_ out_) c); destruct inside; [discriminate|];
      reflexivity.
  - destruct (find _ inputs) as [h|] eqn:Fh; [|discriminate]; apply find_some in Fh as [inh E];
    apply andb_true_iff in E as [E1 E2].
    apply Pos.eqb_eq in E1; apply unit_eqb_eq in E2; subst.
    destruct (fits _ _ _ _) eqn:F; [|discriminate]; unfold write in C; destruct (scope_of _ out) as [su|] eqn:S;
      [|discriminate].
    inversion C; subst; clear C.
    intros y E; rewrite find_put_same in E; inversion E; subst; clear E; cbn [instances what].
    unfold fits in F; apply andb_true_iff in F as [F1 F2].
    unfold item_true; cbn [what run_instr].
    destruct (inputs_ok h inh l small) as [X D].
    assert (Lk : look w v t l (value_of h, match per h with Some _ => This | None => First end) = v (value_of h) t l).
    { unfold look; cbn; destruct (per h); cbn; auto; cbn in small; now replace l with 0 by lia. }
    rewrite Lk.
    apply (stored_means inside l M path out (input w start (value_of h) t l) (fun _ => input w start (value_of h) t
      l)); auto.
    + apply orb_true_iff in F1; exact F1.
    + intros c r i _; reflexivity.
    + split; [exact X|]; intros r i; cbn [factor].
      assert (O : (value (atom w) (inverse w) [] * v (value_of h) t l i)%ring = v (value_of h) t l i) by (unfold
        value; cbn; ring).
      rewrite O; apply D.
  - unfold write in C; destruct (scope_of u out) as [su|] eqn:S; [|discriminate]; inversion C; subst.
    intros y E; rewrite find_put_same in E; inversion E; subst; cbn; intros c r i; cbn.
    unfold store; cbn; replace (slot_eqb out out) with true by (symmetry; now apply slot_eqb_eq);
      now rewrite Nat.eqb_refl.
  - inversion C; subst; intros y E; rewrite find_put_same in E; discriminate.
Qed.

Lemma instr_frame e path x (m : memory) s l : (s <> out_of x \/ l <> inst s (of_layer e)) ->
  run_instr g w e path x m s l = m s l.
Proof.
  intros apart; destruct x; cbn in *; unfold store;
    (destruct (slot_eqb s out) eqn:E; [|easy]; apply slot_eqb_eq in E; subst;
      destruct (Nat.eqb_spec l (inst out (of_layer e))); [|easy]; cbn; tauto).
Qed.
Lemma instrs_frame e path is : forall k (m : memory) s l, (~ In s (map out_of is) \/ l <> inst s (of_layer e)) ->
  run_instrs g w e path k is m s l = m s l.
Proof.
  induction is as [|x is IH]; intros k m s l apart; cbn in *; [easy|]; rewrite IH by tauto; apply instr_frame.
  destruct apart as [apart|apart]; auto.
Qed.

Lemma item_frame M M' l s x : (forall c, M' c s (inst s l) = M c s (inst s l)) -> item_true M l s x ->
  item_true M' l s x.
Proof.
  unfold item_true; intros same; destruct (what x) as [[f n]|].
  - apply (means_same w p l); auto; intros r i; unfold glued; now rewrite same.
  - intros Z c r i; rewrite same; apply Z.
Qed.

(** Many instructions, in an instance of a unit. *)
Theorem instrs_sound inside u l is : l < count w u -> forall M path n k k', one inside M path -> knows_at u l M k ->
  check_instrs u inside is k = Some k' -> knows_at u l (fun c => run_instrs g w (when inside l c) (path c) n is (M c))
    k'.
Proof.
  intros small; induction is as [|x is IH]; intros M path n k k' one_ H C; cbn [Check.check_instrs] in C.
  - inversion C; now subst.
  - destruct (check_instr u inside x k) as [k1|] eqn:C1; [|discriminate].
    assert (one1 : one inside M (fun c => n :: path c)).
    { intros out; destruct (one_ out) as [A B]; split; auto; intros c; now rewrite (B c). }
    assert (T := instr_true inside u l M _ k k1 x small one1 H C1).
    destruct (instr_static inside u x k k1 C1) as [F _].
    pose (M1 := fun c => run_instr g w (when inside l c) (n :: path c) x (M c)).
    assert (H1 : knows_at u l M1 k1).
    { intros s y E S; destruct (slot_eqb s (out_of x)) eqn:Q.
      - apply slot_eqb_eq in Q; subst; now apply T.
      - apply slot_eqb_neq in Q; rewrite F in E by easy; apply (item_frame M); [|now apply H].
        intros c; apply instr_frame; now left. }
    assert (one2 : one inside M1 path).
    { intros out; destruct (one_ out) as [A B]; split; auto; intros c; unfold M1, when; rewrite (A c), (B c), out;
      reflexivity. }
    exact (IH M1 path (S n) k1 k' one2 H1 C).
Qed.
End Slots.
