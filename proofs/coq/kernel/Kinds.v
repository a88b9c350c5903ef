(** Ops whose operands lie in given ways: how the result lies, and that it means the result of the op on whole tensors.

    What it backs: the split rule of placealg/step/split.py, for einsums and functions of rows, on any list of axes.

    Main statements: [einsum_sound], [row_sound]. *)

From Placealg.kernel Require Import Prelude Machine Meaning.

Section Kinds.
Variable touches : nat -> list nat.
Context {K : CRing}.
Add Ring K_ring : (laws K).
Variables (size : nat -> nat) (extent : nat -> nat) (home : nat -> nat -> index -> nat).
Hypothesis size_pos : forall a, 0 < size a.
Hypothesis home_ok : forall a d i, home a d i < size a.
Hypothesis home_touches : forall a d i j, (forall e, In e (touches d) -> i e = j e) -> home a d i = home a d j.
Local Notation tensor := (@tensor K).
Local Notation meets := (meets touches).
Local Notation has := (has touches home).
Local Notation einsum := (einsum touches extent home).
Local Notation einsum_ref := (einsum_ref extent).
Local Notation grid := (grid extent).
Local Notation val := (@val K size home).
Local Notation agree := (@agree K size home).
Local Notation den := (@den K size home).

Lemma overlay_out over p i d : ~ In d over -> overlay over p i d = i d.
Proof.
  revert p; induction over as [|e over IH]; intros [|n p] out; cbn; auto.
  destruct (Nat.eqb_spec d e); [subst; cbn in out; tauto|]. apply IH; cbn in out; tauto.
Qed.

Definition along (d : nat) (k : kind) : bool := match k with Full => true | Shard e => e =? d | Part => false end.
Definition is_full (k : kind) : bool := match k with Full => true | _ => false end.
Definition is_part (k : kind) : bool := match k with Part => true | _ => false end.
Fixpoint one_part (ks : list kind) : bool :=
  match ks with [] => false | Part :: ks => forallb is_full ks | Full :: ks => one_part ks | _ => false end.

Definition einsum_kind (over : list nat) (split : option nat) (ks : list kind) : option kind :=
  match split with
  | Some d => if forallb (along d) ks then Some (if meets d over then Part else Shard d) else None
  | None => if forallb is_full ks then Some Full else if one_part ks then Some Part else None
  end.

Lemma sum_pick (n y : nat) (f : nat -> K) : y < n ->
  sum_list (seq 0 n) (fun c => if y =? c then f c else 0%ring) = f y.
Proof.
  intros small. assert (H : forall m s, s <= y < s + m -> sum_list (seq s m) (fun c => if y =? c
    then f c else 0%ring) = f y).
  { induction m as [|m IH]; intros s range; [lia|]; cbn.
    destruct (Nat.eqb_spec y s) as [->|apart].
    - rewrite (sum_list_ext _ _ _ (fun _ => 0%ring)), (sum_list_zero K); [ring|].
      intros c inside; apply in_seq in inside; destruct (Nat.eqb_spec s c); [lia|easy].
    - rewrite IH by lia; ring. }
  apply H; lia.
Qed.

Lemma sum_exchange {A B : Type} (l : list A) (l' : list B) (f : A -> B -> K) :
  sum_list l (fun a => sum_list l' (f a)) = sum_list l' (fun b => sum_list l (fun a => f a b)).
Proof.
  induction l as [|a l IH]; cbn; [now rewrite (sum_list_zero K)|].
  now rewrite IH, (sum_list_plus K).
Qed.

(** An operand: its type, what ranks hold, and what it means. *)
Record operand := Operand { ty : type; x_of : tensor; v_of : index -> K }.
Definition at_coordinate l r a c (o : operand) : operand :=
  Operand (ty o) (x_of o) (fun j => val l (ty o) (x_of o) (put r a c) j).
Definition mean_at l (P : list nat -> bool) over (os : list operand) r i : Prop :=
  forall o p, In o os -> In p (grid over) -> P p = true -> den l (ty o) (x_of o) r (overlay over p i) (v_of o (overlay
    over p i)).
Definition sums_up l split over (P : list nat -> bool) os (out : tensor) r i : Prop :=
  forall r', (forall b, ~ In b l -> r' b = r b) -> out r' i =
    sum_list (grid over) (fun p => if P p && has l split over p i r'
      then product (map (fun o => x_of o r' (overlay over p i)) os) else 0%ring).
Definition meant over (P : list nat -> bool) (os : list operand) (i : index) : K :=
  sum_list (grid over) (fun p => if P p then product (map (fun o => v_of o (overlay over p i)) os) else 0%ring).

Lemma meant_ext over P os os' i :
  (forall p, In p (grid over) -> P p = true ->
    product (map (fun o => v_of o (overlay over p i)) os) = product (map (fun o => v_of o (overlay over p i)) os')) ->
  meant over P os i = meant over P os' i.
Proof. intros same; apply (sum_list_ext K); intros p inside; destruct (P p) eqn:admits; auto. Qed.

Lemma product_ext {A : Type} (l : list A) (f g : A -> K) : (forall a, In a l -> f a = g a) ->
  product (map f l) = product (map g l).
Proof. induction l as [|a l IH]; cbn; intros same; [easy|]. rewrite same, IH; auto. Qed.

Lemma put_out r a c l b : ~ In b l -> b <> a -> forall r', (forall b, ~ In b l -> r' b = put r a c b) -> r' b = r b.
Proof. intros out apart r' same; rewrite same by easy; unfold put; destruct (Nat.eqb_spec b a); congruence. Qed.

(** One axis fewer: at coordinate [c] of the first axis, with the positions that the rank has there. *)
Lemma one_axis_fewer l a c split over P os out r i P' : ~ In a l ->
  (forall p, In p (grid over) -> P' p = P p && match split a with
    | Some d => if meets d over then home a d (overlay over p i) =? c else true | None => true end) ->
  sums_up (a :: l) split over P os out r i -> sums_up l split over P' (map (at_coordinate l r a c) os) out (put r a c)
    i.
Proof.
  intros apart same made r' agrees.
  rewrite made.
  - apply (sum_list_ext K); intros p inside; rewrite same by easy; cbn [has forallb].
    assert (here : r' a = c) by (rewrite agrees by easy; unfold put; now rewrite Nat.eqb_refl).
    fold (has l split over p i r'). rewrite here, andb_assoc, map_map; reflexivity.
  - intros b out_; cbn in out_; apply put_out with (a := a) (c := c) (l := l); try tauto; auto.
Qed.

Lemma along_value l a c d over P os r i p o : mean_at (a :: l) P over os r i -> In o os -> In p (grid over) ->
  P p = true ->
  along d (ty o a) = true -> c < size a -> home a d (overlay over p i) = c ->
  den l (ty o) (x_of o) (put r a c) (overlay over p i) (v_of o (overlay over p i)).
Proof.
  intros means ino inp admits kind small here; specialize (means o p ino inp admits) as [agrees <-]; cbn in *.
  destruct (ty o a) as [|e|]; try discriminate.
  - destruct (agrees c small) as [agree0 <-]; now split.
  - apply Nat.eqb_eq in kind; subst e; rewrite here in *; now split.
Qed.

Lemma one_part_product l a over P os r i p : mean_at (a :: l) P over os r i -> In p (grid over) -> P p = true ->
  one_part (map (fun o => ty o a) os) = true ->
  (forall c o, c < size a -> In o os -> agree l (ty o) (x_of o) (put r a c) (overlay over p i)) /\
  sum_list (seq 0 (size a)) (fun c => product (map (fun o => val l (ty o) (x_of o) (put r a c) (overlay over p i)) os))
    = product (map (fun o => v_of o (overlay over p i)) os).
Proof.
  intros means inp admits; unfold mean_at in means.
  assert (M : forall o, In o os -> den (a :: l) (ty o) (x_of o) r (overlay over p i) (v_of o (overlay over p i))) by
    auto.
  clear means; set (j := overlay over p i) in *; induction os as [|o os IH]; [discriminate|]; cbn [map one_part].
  assert (Mo := M o (or_introl eq_refl)); destruct Mo as [ag <-]; cbn in ag |- *.
  destruct (ty o a) as [|e|] eqn:K0; intros one; try discriminate.
  - destruct IH as [ags sums]; auto. { intros o' ino'; apply M; now right. }
    split. { intros c o' small [<-|ino']; [apply ag; easy|now apply ags]. }
    rewrite <- sums, <- (sum_list_times K); apply (sum_list_ext K); intros c inside; apply in_seq in inside.
    destruct (ag c ltac:(lia)) as [_ ->]; reflexivity.
  - assert (full : forall o', In o' os -> ty o' a = Full).
    { rewrite forallb_forall in one; intros o' ino'; assert (F : is_full (ty o' a) = true) by (apply one, in_map_iff;
      eauto).
      destruct (ty o' a); auto; discriminate F. }
    assert (value : forall c o', c < size a -> In o' os -> den l (ty o') (x_of o') (put r a c) j (v_of o' j)).
    { intros c o' small ino'; destruct (M o' (or_intror ino')) as [ag' <-]; cbn in ag' |- *;
      rewrite (full o' ino') in *.
      destruct (ag' c small) as [? <-]; now split. }
    split. { intros c o' small [<-|ino']; [now apply ag|now apply value]. }
    transitivity (sum_list (seq 0 (size a)) (fun c => product (map (fun o => v_of o j) os) * val l (ty o) (x_of o)
      (put r a c) j)%ring).
    + apply (sum_list_ext K); intros c inside; apply in_seq in inside.
      rewrite (product_ext os _ (fun o => v_of o j)); [ring|]; intros o' ino'; apply value; [lia|easy].
    + rewrite (sum_list_times K); ring.
Qed.

Theorem einsum_sound l : NoDup l -> forall T split over os P out r i,
  (forall a, In a l -> einsum_kind over (split a) (map (fun o => ty o a) os) = Some (T a)) ->
  sums_up l split over P os out r i -> mean_at l P over os r i -> den l T out r i (meant over P os i).
Proof.
  induction l as [|a l IH]; intros once T split over os P out r i kinds made means.
  - split; [exact I|]; cbn; rewrite (made r) by easy; apply (sum_list_ext K); intros p inside; cbn.
    rewrite andb_true_r; destruct (P p) eqn:admits; [|easy].
    apply product_ext; intros o ino; apply (means o p ino inside admits).
  - inversion once as [|? ? apart once']; subst.
    assert (rest : forall b, In b l -> einsum_kind over (split b) (map (fun o => ty o b) os) = Some (T b)) by (intros;
      apply kinds; now right).
    assert (down : forall c P', c < size a ->
      (forall p, In p (grid over) -> P' p = P p && match split a with
        | Some d => if meets d over then home a d (overlay over p i) =? c else true | None => true end) ->
      (forall o p, In o os -> In p (grid over) -> P' p = true -> agree l (ty o) (x_of o) (put r a c) (overlay over p
        i)) ->
      den l T out (put r a c) i (meant over P' (map (at_coordinate l r a c) os) i)).
    { intros c P' small same ag; apply IH with (split := split); auto.
      - intros b inb; rewrite map_map; cbn; now apply rest.
      - now apply one_axis_fewer with (P := P).
      - intros o p ino inp admits; apply in_map_iff in ino; destruct ino as [o' [<- ino']]; split; cbn; auto. }
    specialize (kinds a (or_introl eq_refl)); unfold einsum_kind in kinds; cbn [den agree val].
    destruct (split a) as [d|] eqn:S.
    + destruct (forallb (along d) (map (fun o => ty o a) os)) eqn:A; [|discriminate].
      assert (A' : forall o, In o os -> along d (ty o a) = true).
      { rewrite forallb_forall in A; intros o ino; apply A, in_map_iff; eauto. }
      destruct (meets d over) eqn:inside; inversion kinds as [E]; unfold den; cbn [agree val]; rewrite <- E.
      * set (P' c p := P p && (home a d (overlay over p i) =? c)).
        assert (each : forall c, c < size a -> den l T out (put r a c) i (meant over (P' c) os i)).
        { intros c small.
          assert (V : forall o p, In o os -> In p (grid over) -> P' c p = true ->
            den l (ty o) (x_of o) (put r a c) (overlay over p i) (v_of o (overlay over p i))).
          { intros o p ino inp admits; apply andb_true_iff in admits as [admits here]; apply Nat.eqb_eq in here.
            apply (along_value l a c d over P os r i p o); auto. }
          rewrite (meant_ext over (P' c) os (map (at_coordinate l r a c) os)).
          - apply down; auto. intros o p ino inp admits; apply V; auto.
          - intros p inp admits; rewrite map_map; apply product_ext; intros o ino; cbn; symmetry; apply V; auto. }
        split; [intros c small; now apply each|].
        rewrite (sum_list_ext K _ _ (fun c => meant over (P' c) os i)) by (intros c ins; apply in_seq in ins;
          apply each; lia).
        unfold meant; rewrite sum_exchange; apply (sum_list_ext K); intros p inp.
        rewrite <- (sum_pick (size a) (home a d (overlay over p i)) (fun _ => if P p
          then product (map (fun o => v_of o (overlay over p i)) os) else 0%ring)) by apply home_ok.
        apply (sum_list_ext K); intros c _; unfold P'; destruct (P p), (_ =? c); reflexivity.
      * assert (kept : forall p, home a d (overlay over p i) = home a d i).
        { intros p; apply home_touches; intros e ine; apply overlay_out; intros ino;
          apply not_true_iff_false in inside; apply inside.
          apply existsb_exists; exists e; split; [easy|]; apply existsb_exists; exists e; split;
            [easy|apply Nat.eqb_refl]. }
        set (c := home a d i); assert (small : c < size a) by apply home_ok.
        assert (V : forall o p, In o os -> In p (grid over) -> P p = true ->
          den l (ty o) (x_of o) (put r a c) (overlay over p i) (v_of o (overlay over p i))).
        { intros o p ino inp admits; apply (along_value l a c d over P os r i p o); auto; apply kept. }
        fold (den l T out (put r a c) i (meant over P os i)).
        rewrite (meant_ext over P os (map (at_coordinate l r a c) os)).
        -- apply down; auto; [intros; now rewrite andb_true_r|]. intros o p ino inp admits; apply V; auto.
        -- intros p inp admits; rewrite map_map; apply product_ext; intros o ino; cbn; symmetry; apply V; auto.
    + destruct (forallb is_full (map (fun o => ty o a) os)) eqn:A.
      * inversion kinds as [E]; unfold den; cbn [agree val]; rewrite <- E.
        assert (V : forall c o p, c < size a -> In o os -> In p (grid over) -> P p = true ->
          den l (ty o) (x_of o) (put r a c) (overlay over p i) (v_of o (overlay over p i))).
        { intros c o p small ino inp admits; destruct (means o p ino inp admits) as [ag <-]; cbn in ag |- *.
          rewrite forallb_forall in A; assert (F : is_full (ty o a) = true) by (apply A, in_map_iff; eauto).
          destruct (ty o a); try discriminate; destruct (ag c small) as [? <-]; now split. }
        assert (each : forall c, c < size a -> den l T out (put r a c) i (meant over P os i)).
        { intros c small; rewrite (meant_ext over P os (map (at_coordinate l r a c) os)).
          - apply down; auto; [intros; now rewrite andb_true_r|]. intros o p ino inp admits; now apply V.
          - intros p inp admits; rewrite map_map; apply product_ext; intros o ino; cbn; symmetry; now apply V. }
        split; [|now apply each]; intros c small; split; [now apply each|].
        destruct (each c small) as [_ ->]; destruct (each 0 (size_pos a)) as [_ ->]; reflexivity.
      * destruct (one_part (map (fun o => ty o a) os)) eqn:O; [|discriminate].
        inversion kinds as [E]; unfold den; cbn [agree val]; rewrite <- E.
        assert (each : forall c, c < size a -> den l T out (put r a c) i (meant over P (map (at_coordinate l r a c)
          os) i)).
        { intros c small; apply down; auto; [intros; now rewrite andb_true_r|].
          intros o p ino inp admits; now apply (one_part_product l a over P os r i p). }
        split; [intros c small; now apply each|].
        rewrite (sum_list_ext K _ _ (fun c => meant over P (map (at_coordinate l r a c) os) i)) by (intros c ins;
          apply in_seq in ins; apply each; lia).
        unfold meant; rewrite sum_exchange; apply (sum_list_ext K); intros p inp; destruct (P p) eqn:admits;
          [|apply (sum_list_zero K)].
        rewrite <- (proj2 (one_part_product l a over P os r i p means inp admits O)); apply (sum_list_ext K);
          intros c _; now rewrite map_map.
Qed.

(** ** Functions of whole rows: no operand is partial, and none is split along what a row reads. *)
Definition respects (over : list nat) (f : index -> list (index -> K) -> K) : Prop := forall i vs ws,
  Forall2 (fun v w => forall j j', outside over i j -> (forall d, j d = j' d) -> v j = w j') vs ws -> f i vs = f i ws.
Definition row_kind (over : list nat) (split : option nat) (ks : list kind) : option kind :=
  match split with
  | Some d => if negb (meets d over) && forallb (along d) ks then Some (Shard d) else None
  | None => if forallb is_full ks then Some Full else None
  end.

Definition mean_row l over (os : list operand) r i : Prop :=
  forall o j, In o os -> outside over i j -> den l (ty o) (x_of o) r j (v_of o j).

Theorem row_sound l over f split : respects over f -> forall T os r i, (forall o, In o os -> ext (x_of o)) ->
  (forall a, In a l -> row_kind over (split a) (map (fun o => ty o a) os) = Some (T a)) ->
  mean_row l over os r i -> den l T (row f (map x_of os)) r i (f i (map v_of os)).
Proof.
  intros whole; induction l as [|a l IH]; intros T os r i exts kinds means.
  - split; [exact I|]; cbn; unfold row; apply whole.
    rewrite map_map. clear kinds; induction os as [|o os IHo]; constructor.
    + intros j j' out same; rewrite (exts o (or_introl eq_refl) r r j j') by auto.
      apply (means o j'); cbn; auto; intros d outd; rewrite <- same; now apply out.
    + apply IHo; [intros o' ino; apply exts; now right|]; intros o' j ino; apply means; now right.
  - assert (rest : forall b, In b l -> row_kind over (split b) (map (fun o => ty o b) os) = Some (T b)) by (intros;
    apply kinds; now right).
    specialize (kinds a (or_introl eq_refl)); unfold row_kind in kinds.
    assert (all : forall (P : kind -> bool), forallb P (map (fun o => ty o a) os) = true -> forall o, In o os ->
      P (ty o a) = true).
    { intros P A o ino; rewrite forallb_forall in A; apply A, in_map_iff; eauto. }
    destruct (split a) as [d|].
    + destruct (negb _ && _) eqn:A; [|discriminate]; apply andb_true_iff in A as [out A]; inversion kinds as [E].
      unfold den; cbn; rewrite <- E. apply (IH T os (put r a (home a d i)) i exts rest).
      intros o j ino outj; specialize (all _ A o ino); destruct (means o j ino outj) as [ag <-]; cbn in ag |- *.
      assert (same : home a d j = home a d i). { apply home_touches; intros e ine; apply outj; intros inov;
        apply negb_true_iff, not_true_iff_false in out; apply out.
        apply existsb_exists; exists e; split; [easy|]; apply existsb_exists; exists e; split;
          [easy|apply Nat.eqb_refl]. }
      destruct (ty o a) as [|e|]; try discriminate.
      * destruct (ag (home a d i) (home_ok _ _ _)) as [? <-]; now split.
      * apply Nat.eqb_eq in all; subst e; rewrite same in *; now split.
    + destruct (forallb is_full _) eqn:A; [|discriminate]; inversion kinds as [E].
      assert (each : forall c, c < size a -> den l T (row f (map x_of os)) (put r a c) i (f i (map v_of os))).
      { intros c small; apply IH; auto; intros o j ino outj; specialize (all _ A o ino);
        destruct (means o j ino outj) as [ag <-]; cbn in ag |- *.
        destruct (ty o a); try discriminate; destruct (ag c small) as [? <-]; now split. }
      unfold den; cbn; rewrite <- E; split; [|now apply each]; intros c small; split; [now apply each|].
      destruct (each c small) as [_ ->]; destruct (each 0 (size_pos a)) as [_ ->]; reflexivity.
Qed.

End Kinds.
