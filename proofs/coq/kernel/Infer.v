(** What the checker infers of an op is true: its result lies so, and means what the op makes of whole tensors.

    What it backs: [infer_] of placealg/prover/kernel/extraction.py: a rule for each op of the language.

    Main statement: [infer_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends Check.

Section Infer.
Context {K : CRing}.
Add Ring K_ring3 : (laws K).
Variables (w : world K) (p : program).
Hypothesis ok : valid w p.
(** In an instance of a unit. *)
Variable here_ : nat.
Local Notation g := (on p).
Local Notation tensor := (@tensor K).
Local Notation logical := (@logical K).
Local Notation touches := (touches g).
Local Notation size := (size w).
Local Notation extent := (extent w).
Local Notation home := (home w here_).
Local Notation atom := (atom w).
Local Notation inverse := (inverse w).
Local Notation value := (value atom inverse).
Local Notation value_from := (value_from atom inverse).
Local Notation den := (@Meaning.den K size home).
Local Notation val := (@Meaning.val K size home).
Local Notation agree := (@Meaning.agree K size home).
Local Notation all_axes := (seq 0 (axes g)).
Let size_pos := size_pos w p ok.
Let home_ok := home_ok w p ok here_.
Let home_touches := home_touches w p ok here_.
Let home_like := home_like w p ok here_.
Let inverted := inverted w p ok.

(** ** Factors mean products. *)
Lemma power_plus (x : K) n m : power x (n + m) = (power x n * power x m)%ring.
Proof. induction n as [|n IH]; cbn; [ring|]. rewrite IH; ring. Qed.
Lemma power_inverted k n : (power (atom k) n * power (inverse k) n)%ring = 1%ring.
Proof.
  induction n as [|n IH]; cbn; [ring|].
  transitivity ((atom k * inverse k) * (power (atom k) n * power (inverse k) n))%ring; [ring|]. rewrite IH, inverted;
    ring.
Qed.
Lemma value_times m m' : value (mono_times m m') = (value m * value m')%ring.
Proof.
  unfold Machine.value; generalize 0; revert m'; induction m as [|[b n] m IH]; intros [|[b' n'] m'] k; cbn; try ring.
  rewrite IH, !power_plus; ring.
Qed.
Lemma value_swap m : (value m * value (map (fun e => (snd e, fst e)) m))%ring = 1%ring.
Proof.
  unfold Machine.value; generalize 0; induction m as [|[b n] m IH]; intros k; cbn; [ring|].
  transitivity ((power (atom k) b * power (inverse k) b) * (power (atom k) n * power (inverse k) n) *
    (value_from (S k) m * value_from (S k) (map (fun e => (snd e, fst e)) m)))%ring; [ring|].
  rewrite IH, !power_inverted; ring.
Qed.
Lemma value_cancels m : cancels m = true -> value m = 1%ring.
Proof.
  unfold Machine.value; generalize 0; induction m as [|[q n] m IH]; intros k; cbn; [easy|].
  intros H; apply andb_true_iff in H as [E H].
  apply Nat.eqb_eq in E; subst; rewrite IH, power_inverted by easy; ring.
Qed.
Lemma value_over m m' : (value (mono_over m m') * value m')%ring = value m.
Proof.
  unfold mono_over; rewrite value_times.
  transitivity (value m * (value m' * value (map (fun e => (snd e, fst e)) m')))%ring; [ring|]. rewrite value_swap;
    ring.
Qed.
Lemma value_same m m' : mono_same m m' = true -> value m = value m'.
Proof. intros H; apply value_cancels in H. rewrite <- (value_over m m'), H; ring. Qed.
Lemma value_one m : is_one (ones p) m = true -> value m = 1%ring.
Proof.
  intros H; apply orb_true_iff in H as [H|H]; [now apply value_cancels|].
  apply existsb_exists in H; destruct H as [o [ino H]]; assert (O := ones_ok w p ok o ino).
  apply orb_true_iff in H as [H|H]; [rewrite (value_same _ _ H); exact O|].
  apply value_cancels in H; rewrite value_times, O in H; rewrite <- H; ring.
Qed.

Lemma value_atom k : value (atom_of k) = atom k.
Proof.
  unfold Machine.value, atom_of; assert (G : forall n, value_from n (repeat (0, 0) k ++ [(1, 0)]) = atom (n + k)).
  { induction k as [|k IH]; intros n; cbn; [rewrite Nat.add_0_r; ring|].
    rewrite IH; replace (S n + k) with (n + S k) by lia; ring. }
  exact (G 0).
Qed.
Lemma value_reduced m : value (reduced (ones p) m) = value m.
Proof. unfold reduced; destruct (is_one (ones p) m) eqn:O; [|easy]; now rewrite (value_one m O). Qed.

(** ** Sums, factors and names keep what is meant. *)
Lemma scale_sound c l T x r i k : den l T x r i k -> den l T (fun r i => c * x r i)%ring r i (c * k)%ring.
Proof.
  revert r k; induction l as [|a l IH]; intros r k [ag <-]; unfold den in *; cbn in *; [easy|].
  destruct (T a) as [|d|].
  - assert (V : forall e, e < size a -> agree l T (fun r i => c * x r i)%ring (put r a e) i /\
    val l T (fun r i => c * x r i)%ring (put r a e) i = (c * val l T x (put r a 0) i)%ring).
    { intros e small; apply IH; destruct (ag e small); auto. }
    split; [|apply V, size_pos]; intros e small; split; [now apply V|].
    now rewrite (proj2 (V e small)), (proj2 (V 0 (size_pos a))).
  - apply IH; auto.
  - split; [intros e small; apply (IH (put r a e) _ (conj (ag e small) eq_refl))|].
    rewrite <- (sum_list_times K); apply (sum_list_ext K); intros e ins; apply in_seq in ins; apply (IH (put r a e));
      split; auto; apply ag; lia.
Qed.

Lemma add_sound l : forall split T (os : list (@operand K)) r i (k : operand -> K),
  (forall a, In a l -> add_kind (split a) (map (fun o => ty o a) os) = Some (T a)) ->
  (forall o, In o os -> den l (ty o) (x_of o) r i (k o)) ->
  den l T (added (map x_of os)) r i (sum_list os k).
Proof.
  induction l as [|a l IH]; intros split T os r i k kinds means.
  - split; [exact I|]; cbn; unfold added; rewrite sum_list_map; apply (sum_list_ext K); intros o ino; apply means; easy.
  - assert (rest : forall b, In b l -> add_kind (split b) (map (fun o => ty o b) os) = Some (T b)) by (intros;
    apply kinds; now right).
    specialize (kinds a (or_introl eq_refl)); unfold add_kind in kinds.
    assert (all : forall (P : kind -> bool), forallb P (map (fun o => ty o a) os) = true -> forall o, In o os ->
      P (ty o a) = true).
    { intros P A o ino; rewrite forallb_forall in A; apply A, in_map_iff; eauto. }
    destruct (split a) as [d|].
    + destruct (forallb _ _) eqn:A; [|discriminate]; inversion kinds as [E].
      unfold den; cbn; rewrite <- E; apply (IH split T os (put r a (home a d i)) i k rest).
      intros o ino; specialize (all _ A o ino); destruct (means o ino) as [ag <-]; cbn in ag |- *.
      destruct (ty o a) as [|e|]; try discriminate.
      * destruct (ag (home a d i) (home_ok _ _ _)) as [? <-]; now split.
      * apply Nat.eqb_eq in all; subst e; now split.
    + destruct (forallb is_full _) eqn:A.
      * inversion kinds as [E].
        assert (each : forall c, c < size a -> den l T (added (map x_of os)) (put r a c) i (sum_list os k)).
        { intros c small; apply (IH split T); auto; intros o ino; specialize (all _ A o ino);
          destruct (means o ino) as [ag <-]; cbn in ag |- *.
          destruct (ty o a); try discriminate; destruct (ag c small) as [? <-]; now split. }
        unfold den; cbn; rewrite <- E; split; [|now apply each]; intros c small; split; [now apply each|].
        destruct (each c small) as [_ ->]; destruct (each 0 (size_pos a)) as [_ ->]; reflexivity.
      * destruct (forallb is_part _) eqn:P; [|discriminate]; inversion kinds as [E].
        assert (each : forall c, c < size a -> den l T (added (map x_of os)) (put r a c) i (sum_list os (fun o => val
          l (ty o) (x_of o) (put r a c) i))).
        { intros c small; apply (IH split T); auto; intros o ino; specialize (all _ P o ino);
          destruct (means o ino) as [ag _]; cbn in ag.
          destruct (ty o a); try discriminate; split; [now apply ag|easy]. }
        unfold den; cbn; rewrite <- E; split; [intros c small; now apply each|].
        rewrite (sum_list_ext K _ _ (fun c => sum_list os (fun o => val l (ty o) (x_of o) (put r a c) i))) by (intros
          c ins; apply in_seq in ins; apply each; lia).
        rewrite (sum_exchange (K := K)); apply (sum_list_ext K); intros o ino; specialize (all _ P o ino);
          destruct (means o ino) as [_ <-]; cbn.
        destruct (ty o a); try discriminate; reflexivity.
Qed.

Lemma rename_sound q l (T T' : type) x r i k :
  (forall a, In a l -> rename_kind g q (T a) = Some (T' a)) ->
  den l T x r (fun d => i (renamed q d)) k -> den l T' (fun r i => x r (fun d => i (renamed q d))) r i k.
Proof.
  revert r k; induction l as [|a l IH]; intros r k kinds [ag <-]; unfold den in *; cbn in *; [easy|].
  assert (rest : forall b, In b l -> rename_kind g q (T b) = Some (T' b)) by (intros; apply kinds; now right).
  specialize (kinds a (or_introl eq_refl)).
  destruct (T a) as [|d|]; cbn in kinds.
  - inversion kinds as [E].
    assert (V : forall e, e < size a -> agree l T' (fun r i => x r (fun d => i (renamed q d))) (put r a e) i /\
      val l T' (fun r i => x r (fun d => i (renamed q d))) (put r a e) i = val l T x (put r a 0) (fun d => i (renamed
        q d))).
    { intros e small; apply IH; auto; destruct (ag e small); auto. }
    split; [|apply V, size_pos]; intros e small; split; [now apply V|].
    now rewrite (proj2 (V e small)), (proj2 (V 0 (size_pos a))).
  - destruct (forallb _ _) eqn:U.
    { inversion kinds as [E]; rewrite forallb_forall in U.
      rewrite (home_touches a d i (fun d => i (renamed q d))); [now apply IH|].
      intros e ine; specialize (U e ine); apply Nat.eqb_eq in U; now rewrite U. }
    destruct (_ && _) eqn:L; [|discriminate]; apply andb_true_iff in L as [L P']; apply andb_true_iff in L as [L P0].
    apply Nat.eqb_eq in L; inversion kinds as [E].
    rewrite (home_like a (renamed q d) d i (fun d => i (renamed q d)) P' P0 L eq_refl); now apply IH.
  - inversion kinds as [E].
    split; [intros e small; apply (IH (put r a e) _ rest (conj (ag e small) eq_refl))|].
    apply (sum_list_ext K); intros e ins; apply in_seq in ins; apply (IH (put r a e)); auto; split; auto; apply ag; lia.
Qed.

Lemma sequence_map {A B : Type} (f : A -> option B) l l' : sequence (map f l) = Some l' ->
  Forall2 (fun a b => f a = Some b) l l'.
Proof.
  revert l'; induction l as [|a l IH]; cbn; intros l' H; [inversion H; constructor|].
  destruct (f a) eqn:E; [|discriminate]; destruct (sequence (map f l)); [|discriminate]; inversion H; subst;
    constructor; auto.
Qed.
Lemma overlay_ext over q i i' : (forall d, i d = i' d) -> forall d, overlay over q i d = overlay over q i' d.
Proof. intros same; revert q; induction over as [|e over IH]; intros [|n q] d; cbn; auto; destruct (d =? e); auto. Qed.
Lemma einsum_ext s over (xs : list tensor) : Forall ext xs -> ext (einsum touches extent home all_axes s over xs).
Proof.
  intros E r r' i i' samer samei; unfold einsum; apply (sum_list_ext K); intros q inq.
  assert (has touches home all_axes s over q i r = has touches home all_axes s over q i' r') as ->.
  { unfold has; induction (seq 0 (axes g)) as [|a l IH]; cbn; [easy|]; rewrite IH; destruct (s a); auto.
    destruct (meets _ _ _); auto; rewrite samer, (home_touches a n (overlay over q i) (overlay over q i')) by (intros;
      now apply overlay_ext); auto. }
  destruct (has _ _ _ _ _ _ _); auto; f_equal; induction E as [|x xs Ex E IH]; cbn; [easy|]; rewrite IH; f_equal;
    apply Ex; auto using overlay_ext.
Qed.

Lemma send_ext a s (j x : tensor) : ext j -> ext x -> ext (send size home j a s x).
Proof.
  intros Ej Ex r r' i i' samer samei.
  assert (P : forall c b, put r a c b = put r' a c b) by (intros; unfold put; destruct (b =? a); auto).
  assert (S : summed size a x r i = summed size a x r' i') by (apply (sum_list_ext K); intros; apply Ex; auto).
  assert (G : forall d, taken home a d x r i = taken home a d x r' i') by (intros; unfold taken;
    rewrite (home_touches a d i i') by auto; apply Ex; auto).
  assert (Q : forall d, home a d i = home a d i') by (intros; apply home_touches; auto).
  destruct s; cbn; rewrite ?samer, ?Q, ?S, ?G; try easy; destruct (_ =? _); auto.
Qed.

Lemma val_kinds l (T T' : type) x r i : (forall a, In a l -> T a = T' a) -> val l T x r i = val l T' x r i.
Proof.
  revert r; induction l as [|a l IH]; intros r same; cbn; [easy|]; rewrite (same a (or_introl eq_refl)).
  assert (IH' := fun r => IH r (fun b inb => same b (or_intror inb))); destruct (T' a); auto; apply (sum_list_ext K);
    auto.
Qed.
Lemma den_kinds l (T T' : type) x r i k : (forall a, In a l -> T a = T' a) -> den l T x r i k -> den l T' x r i k.
Proof.
  intros same [ag <-]; split; [|symmetry; now apply val_kinds].
  revert r ag; induction l as [|a l IH]; intros r ag; cbn in *; [easy|]; rewrite <- (same a (or_introl eq_refl)).
  assert (same' : forall b, In b l -> T b = T' b) by (intros; apply same; now right).
  destruct (T a); auto.
  intros c small; destruct (ag c small) as [g e]; split; auto; rewrite <- !(val_kinds l T T') by auto; exact e.
Qed.



Lemma kind_eqb_eq k k' : kind_eqb k k' = true -> k = k'.
Proof. destruct k, k'; cbn; intros H; try discriminate; auto; apply Nat.eqb_eq in H; now subst. Qed.

(** ** What is known of a tensor is true. *)
Definition means (x : tensor) (v : logical) (t : fact) : Prop :=
  ext x /\ forall r i, den all_axes (kind_at t) x r i (value (factor t) * v i)%ring.

Lemma means_same x y v v' t : (forall r i, x r i = y r i) -> (forall i, v i = v' i) -> means x v t -> means y v' t.
Proof.
  intros same samev [E D]; split.
  - intros r r' i i' samer samei; rewrite <- !same; now apply E.
  - intros r i; rewrite <- samev; destruct (D r i) as [A B]; split; [apply (agree_same size home _ _ x); auto|].
    rewrite <- (val_same size home _ _ x); auto.
Qed.
Lemma means_kinds x v t t' : (forall a, In a all_axes -> kind_at t a = kind_at t' a) ->
  value (factor t) = value (factor t') ->
  means x v t -> means x v t'.
Proof. intros same F [E D]; split; [easy|]; intros r i; rewrite <- F; now apply (den_kinds _ (kind_at t)). Qed.

Lemma per_axis_kinds rule ks m : per_axis g rule = Some ks -> forall a, In a all_axes ->
  rule a = Some (kind_at (Fact ks m) a).
Proof.
  unfold per_axis, kind_at; cbn [kinds]; intros H a ina; apply in_seq in ina; cbn in ina.
  assert (G : forall n s ks, sequence (map rule (seq s n)) = Some ks -> forall a, s <= a < s + n ->
    rule a = Some (nth (a - s) ks Full)).
  { clear; induction n as [|n IH]; intros s ks H a range; [lia|]; cbn in H.
    destruct (rule s) eqn:R; [|discriminate]; destruct (sequence _) as [ks'|] eqn:R'; [|discriminate]; inversion H;
      subst.
    destruct (Nat.eq_dec a s) as [->|apart]; [now rewrite Nat.sub_diag|].
    replace (a - s) with (S (a - S s)) by lia; cbn; apply (IH (S s)); auto; lia. }
  specialize (G (axes g) 0 ks H a ltac:(lia)); now rewrite Nat.sub_0_r in G.
Qed.

(** An operand: what ranks have, what it means, what is known of it. *)
Definition operand_of (k : tensor * logical * fact) : operand :=
  Operand (kind_at (snd k)) (fst (fst k)) (fun i => value (factor (snd k)) * snd (fst k) i)%ring.
Definition tensors (ks : list (tensor * logical * fact)) : list tensor := map (fun k => fst (fst k)) ks.
Definition meanings (ks : list (tensor * logical * fact)) : list logical := map (fun k => snd (fst k)) ks.
Definition true_of (k : tensor * logical * fact) : Prop := means (fst (fst k)) (snd (fst k)) (snd k).

Lemma means_of_operand k : true_of k -> forall r i, den all_axes (ty (operand_of k)) (x_of (operand_of k)) r i (v_of
  (operand_of k) i).
Proof. intros [_ H]; exact H. Qed.
Lemma tensors_ext ks : (forall k, In k ks -> true_of k) -> Forall ext (tensors ks).
Proof. intros C; apply Forall_forall; intros x inx; apply in_map_iff in inx; destruct inx as [k [<- ink]];
  apply C, ink. Qed.

Lemma product_factors (l : list (tensor * logical * fact)) (f : tensor * logical * fact -> K) :
  product (map (fun k => value (factor (snd k)) * f k)%ring l) =
  (value (fold_right (fun t m => mono_times (factor t) m) [] (map snd l)) * product (map f l))%ring.
Proof. induction l as [|k l IH]; cbn; [unfold Machine.value; cbn; ring|]. rewrite IH, value_times; ring. Qed.

(** What an ext tensor means is ext, too: factors have an inverse. *)
Lemma means_ext x v t i i' : means x v t -> (forall d, i d = i' d) -> v i = v i'.
Proof.
  intros [E D] same; destruct (D (fun _ => 0) i) as [_ A]; destruct (D (fun _ => 0) i') as [_ B].
  rewrite (val_ext size home touches home_touches all_axes (kind_at t) x _ (fun _ => 0) i i' E) in A by auto;
    rewrite A in B.
  assert (I : forall u, u = (value (map (fun e => (snd e, fst e)) (factor t)) * (value (factor t) * u))%ring :> K).
  { intros u; transitivity (value (factor t) * value (map (fun e => (snd e, fst e)) (factor t)) * u)%ring;
    [rewrite value_swap|]; ring. }
  rewrite (I (v i)), (I (v i')); now rewrite B.
Qed.
Lemma meanings_are (P : index -> Prop) ks : (forall k, In k ks -> true_of k) -> (forall k, In k ks ->
  is_one (ones p) (factor (snd k)) = true) ->
  Forall2 (fun v u => forall j j', P j -> (forall d, j d = j' d) -> v j = u j') (map (fun k => snd (fst k)) ks) (map
    (fun k => v_of (operand_of k)) ks).
Proof.
  induction ks as [|k ks IH]; intros C O; cbn; constructor; [|apply IH; intros; [apply C|apply O]; now right].
  intros j j' _ same; cbn [v_of operand_of]; rewrite value_one by (apply O; now left).
  rewrite (means_ext _ _ _ j j' (C k (or_introl eq_refl)) same); set (y := snd (fst k) j');
    change (y = (1 * y)%ring :> K); ring.
Qed.

(** What an op makes of whole tensors; what is sent or scaled is what it was, up to its factor. *)
Definition whole (e : moment) (o : op) (vs : list logical) : logical :=
  let x := nth 0 vs (fun _ => 0%ring) in
  match o with
  | Einsum _ over => einsum_ref extent over vs
  | Row f _ _ => fun i => fn w f (of_step e) (of_layer e) i vs
  | Add _ => fun i => sum_list vs (fun v => v i)
  | Scale _ | Send _ _ => x
  | Rename q => fun i => x (fun d => i (renamed q d))
  end.
Definition rows_of (e : moment) (o : op) : Prop :=
  match o with Row f over _ => whole_rows over (fn w f (of_step e) (of_layer e)) | _ => True end.

Theorem infer_sound e spare o ks t : of_layer e = here_ -> ext spare -> rows_of e o ->
  (forall k, In k ks -> true_of k) ->
  infer g (ones p) o (map snd ks) = Some t -> means (apply g w e spare o (tensors ks)) (whole e o (meanings ks)) t.
Proof.
  intros at_e J rows C; pose (ops := map operand_of ks).
  assert (X : tensors ks = map x_of ops) by (unfold ops, tensors; now rewrite map_map).
  assert (kinds_of : forall a, map (fun o => ty o a) ops = map (fun t => kind_at t a) (map snd ks)) by (intros a;
    unfold ops; now rewrite !map_map).
  assert (D : forall o, In o ops -> forall r i, den all_axes (ty o) (x_of o) r i (v_of o i)).
  { intros o' ino; unfold ops in ino; apply in_map_iff in ino; destruct ino as [q [<- inq]];
    apply means_of_operand, C, inq. }
  assert (E := tensors_ext ks C).
  destruct o as [s over|f over s|s|m|q|a s]; cbn [infer apply whole rows_of] in *; rewrite ?at_e in *.
  - destruct (per_axis _ _) as [kd|] eqn:P; [|discriminate]; cbn; intros R; inversion R; subst; clear R.
    split; [now apply einsum_ext|]; intros r i.
    assert (W : (value (fold_right (fun t m => mono_times (factor t) m) [] (map snd ks)) * einsum_ref extent over
      (meanings ks) i)%ring
      = meant extent over (fun _ => true) ops i).
    { unfold Machine.einsum_ref, meant; rewrite <- (sum_list_times K); apply (sum_list_ext K); intros q _.
      unfold ops, meanings; rewrite !map_map; rewrite <- product_factors; reflexivity. }
    cbn [factor]; rewrite W.
    apply (einsum_sound touches size extent home size_pos home_ok home_touches all_axes (seq_NoDup (axes g) 0) _
      (at_axis s) over ops (fun _ => true)).
    + intros a ina; rewrite <- (per_axis_kinds _ _ _ P a ina), kinds_of; reflexivity.
    + intros r' _; unfold Machine.einsum; apply (sum_list_ext K); intros q inq; cbn [andb];
      destruct (has _ _ _ _ _ _ _ _); auto.
      rewrite X, map_map; reflexivity.
    + intros o q ino inq _; now apply D.
  - destruct (forallb _ (map snd ks)) eqn:U; [|discriminate].
    destruct (per_axis _ _) as [kd|] eqn:P; [|discriminate]; cbn; intros R; inversion R; subst; clear R.
    split.
    { intros r r' i i' samer samei; unfold row; apply rows; auto.
      clear X; induction E as [|x l Ex E IH]; cbn; constructor; auto. }
    intros r i.
    assert (W : (value [] * fn w f (of_step e) here_ i (meanings ks))%ring = fn w f (of_step e) here_ i
      (map v_of ops)).
    { transitivity (fn w f (of_step e) here_ i (meanings ks)); [unfold Machine.value; cbn; ring|].
      apply rows; auto; unfold ops, meanings; rewrite map_map.
      apply meanings_are; auto; intros q inq; rewrite forallb_forall in U; apply U; now apply in_map. }
    cbn [factor]; rewrite W, X.
    apply (row_sound touches size home size_pos home_ok home_touches all_axes over (fn w f (of_step e) here_)
      (at_axis s)).
    + intros i' ws us; now apply rows.
    + intros o ino; unfold ops in ino; apply in_map_iff in ino; destruct ino as [q [<- inq]]; apply (proj1 (C q inq)).
    + intros a ina; rewrite <- (per_axis_kinds _ _ _ P a ina), kinds_of; reflexivity.
    + intros o j ino _; now apply D.
  - destruct (map snd ks) as [|t0 ts] eqn:S; [discriminate|]; rewrite <- S in *.
    destruct (forallb _ (map snd ks)) eqn:U; [|discriminate].
    destruct (per_axis _ _) as [kd|] eqn:P; [|discriminate]; cbn [with_factor]; intros R; inversion R; subst; clear R.
    split.
    { intros r r' i i' samer samei; unfold added; clear X.
      induction E as [|x l Ex E IH]; cbn; [easy|]; rewrite (Ex r r' i i' samer samei); f_equal; exact IH. }
    intros r i; rewrite X; cbn [factor].
    assert (W : (value (factor t0) * sum_list (meanings ks) (fun v => v i))%ring = sum_list ops (fun o => v_of o i)).
    { unfold ops, meanings; rewrite !sum_list_map, <- (sum_list_times K); apply (sum_list_ext K); intros q inq; cbn.
      assert (F : value (factor (snd q)) = value (factor t0)); [|now rewrite F].
      apply value_same; rewrite forallb_forall in U; apply U; now apply in_map. }
    rewrite W; apply (add_sound all_axes (at_axis s)).
    + intros a ina; rewrite <- (per_axis_kinds _ _ (factor t0) P a ina), kinds_of; reflexivity.
    + intros o ino; now apply D.
  - destruct ks as [|[[x v] t0] [|? ?]]; try discriminate; cbn; intros R; inversion R; subst; clear R.
    destruct (C _ (or_introl eq_refl)) as [Ex M]; cbn in Ex, M; split.
    { intros r r' i i' samer samei; now rewrite (Ex r r' i i' samer samei). }
    intros r i; cbn [factor].
    assert (W : (value (reduced (ones p) (mono_times m (factor t0))) * v i)%ring = (value m * (value (factor t0) * v
      i))%ring) by
      (rewrite value_reduced, value_times; ring).
    rewrite W; apply scale_sound, M.
  - destruct ks as [|[[x v] t0] [|? ?]]; try discriminate; cbn [map snd].
    destruct (per_axis _ _) as [kd|] eqn:P; [|discriminate]; cbn; intros R; inversion R; subst; clear R.
    destruct (C _ (or_introl eq_refl)) as [Ex M]; cbn in Ex, M; split.
    { intros r r' i i' samer samei; apply Ex; auto. }
    intros r i; apply (rename_sound q all_axes (kind_at t0)); [exact (per_axis_kinds _ _ _ P)|apply M].
  - destruct ks as [|[[x v] t0] [|? ?]]; try discriminate; cbn [map snd].
    destruct (a <? axes g) eqn:small; [|discriminate]; destruct (negb _); [|discriminate]; cbn [andb].
    destruct (C _ (or_introl eq_refl)) as [Ex M]; cbn in Ex, M; apply Nat.ltb_lt in small.
    assert (ina : In a all_axes) by (apply in_seq; lia).
    assert (N : with_factor (factor t0) (per_axis g (fun b => if b =? a then sent_kind s (kind_at t0 a)
      else Some (kind_at t0 b))) = Some t -> means (send size home spare a s x) v t).
    { destruct (per_axis _ _) as [kd|] eqn:P; [|discriminate]; cbn; intros R; inversion R; subst; clear R.
      split; [now apply send_ext|]; intros r i. assert (Q := per_axis_kinds _ _ (factor t0) P).
      pose (T' := fun b => if b <? axes g then kind_at (Fact kd (factor t0)) b else kind_at t0 b).
      assert (S : den all_axes T' (send size home spare a s x) r i (value (factor t0) * v i)%ring).
      { apply (send_sound size home touches size_pos home_ok home_touches spare a s _ (kind_at t0));
          auto using seq_NoDup.
        - specialize (Q a ina); cbn beta in Q; rewrite Nat.eqb_refl in Q; rewrite Q; unfold T';
          apply Nat.ltb_lt in small; now rewrite small.
        - intros b apart; unfold T'; destruct (b <? axes g) eqn:I; [|easy]; apply Nat.ltb_lt in I.
          specialize (Q b ltac:(apply in_seq; lia)); cbn beta in Q; apply Nat.eqb_neq in apart; rewrite apart in Q;
            now inversion Q. }
      assert (same : forall b, In b all_axes -> T' b = kind_at (Fact kd (factor t0)) b).
      { intros b inb; apply in_seq in inb; unfold T'; destruct (Nat.ltb_spec b (axes g)); [easy|lia]. }
      now apply (den_kinds all_axes T'). }
    destruct s as [|d|d|d|d d0|d]; try exact N.
    destruct (kind_at t0 a) as [|d|] eqn:Kd; try exact N.
    destruct (find _ (sized g)) as [[b k]|] eqn:Fd; [|exact N].
    apply find_some in Fd as [inq same]; apply Nat.eqb_eq in same; cbn [fst] in same; subst b.
    intros R; inversion R; subst; clear R; split; [now apply send_ext|]; intros r i.
    cbn [factor kinds snd tensors meanings map fst nth].
    assert (W : (value (reduced (ones p) (mono_times (atom_of k) (factor t0))) * v i)%ring =
      (sum_list (seq 0 (size a)) (fun _ => 1) * (value (factor t0) * v i))%ring).
    { rewrite value_reduced, value_times, value_atom, (sized_ok w p ok a k inq); ring. }
    rewrite W; apply (den_kinds all_axes (kind_at t0)); [easy|].
    exact (summed_full size home touches size_pos home_touches a x (kind_at t0) all_axes i _ Ex (seq_NoDup _ _) ina Kd r
      (M r i)).
Qed.
End Infer.
