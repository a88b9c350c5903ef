(** Where its lines are in order, what the single device computes satisfies them: each value is what its line makes of
    the values that the line reads.

    What it backs: [ordered_] of placealg/prover/kernel/extraction.py, which is asked of the single device's program.

    Main statement: [ordered_solves]. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Check.

Section Order.
Context {K : CRing}.
Variables (w : world K) (p : program).

Definition solves (v : @values K) : Prop :=
  (forall k u x, In (k, (u, x)) (lines p) -> forall t l, l < count w u -> forall i,
    look w v t l (target x) i = computed w (made x) t l (map (look w v t l) (reads x)) i) /\
  (forall n k, next_of p n = Some k -> forall t l i, v n (S t) l i = v k t l i).

(** ** A step as the list of what it runs, each line in an instance. *)
Definition event := (nat * line)%type.
Definition key := (positive * nat)%type.
Definition key_of (l : nat) (n : named) : key := (fst n, at_ w l (snd n)).
Definition makes (e : event) : key := key_of (fst e) (target (snd e)).
Definition uses (e : event) : list key := map (key_of (fst e)) (reads (snd e)).
Definition events (s : stretch) : list event :=
  match s with
  | Plain ls => map (fun x => (0, snd x)) ls
  | Repeat u down ls => flat_map (fun j => map (fun x => (instance w u down j, snd x)) ls) (seq 0 (layers w u)) end.
Definition run_events (t : nat) (es : list event) (m : made_now) : made_now := fold_left (fun m e => run_line w t (fst
  e) (snd e) m) es m.

Lemma run_lines_events t l ls m : run_lines w t l ls m = run_events t (map (fun x => (l, snd x)) ls) m.
Proof. unfold run_lines, run_events; revert m; induction ls as [|x ls IH]; intros m; cbn; auto. Qed.
Lemma run_events_app t a b m : run_events t (a ++ b) m = run_events t b (run_events t a m).
Proof. apply fold_left_app. Qed.
Lemma run_stretch_events t s m : run_stretch w t s m = run_events t (events s) m.
Proof.
  destruct s as [ls|u down ls]; cbn [run_stretch events]; [apply run_lines_events|].
  generalize (seq 0 (layers w u)); intros js; revert m; induction js as [|j js IH]; intros m;
    cbn [fold_left flat_map]; auto.
  rewrite run_events_app, <- run_lines_events; apply IH.
Qed.
Lemma run_step_events t ss m : fold_left (fun m s => run_stretch w t s m) ss m = run_events t (flat_map events ss) m.
Proof.
  revert m; induction ss as [|s ss IH]; intros m; cbn [flat_map fold_left]; auto.
  now rewrite run_events_app, <- run_stretch_events, IH.
Qed.

(** Nothing is made again, and nothing that is read is made later. *)
Fixpoint good (es : list event) : Prop :=
  match es with [] => True | e :: es => (forall e', In e' es -> makes e' <> makes e) /\
    (forall a e', In a (uses e) -> In e' (e :: es) -> makes e' <> a) /\ good es end.

Lemma run_events_other t es m (k : key) : (forall e, In e es -> makes e <> k) ->
  run_events t es m (fst k) (snd k) = m (fst k) (snd k).
Proof.
  revert m; induction es as [|e es IH]; intros m out; cbn; auto.
  unfold run_events in IH; rewrite IH by (intros; apply out; now right); unfold run_line.
  destruct (_ && _) eqn:E; auto; apply andb_true_iff in E as [A B]; apply Pos.eqb_eq in A; apply Nat.eqb_eq in B.
  exfalso; apply (out e (or_introl eq_refl)); unfold makes, key_of; rewrite <- A, <- B; now destruct k.
Qed.
Lemma good_solves t es : good es -> forall m e, In e es ->
  let v := fun n (_ : nat) => run_events t es m n in
  look w v t (fst e) (target (snd e)) = computed w (made (snd e)) t (fst e) (map (look w v t (fst e)) (reads (snd e))).
Proof.
  induction es as [|e0 es IH]; [intros _ m e []|]; cbn [good]; intros [G1 [G2 G3]] m e [->|ine]; cbn zeta.
  - unfold look; cbn [run_events fold_left]; fold (run_events t es (run_line w t (fst e) (snd e) m)).
    rewrite (run_events_other t es _ (makes e) G1); unfold run_line at 1; rewrite Pos.eqb_refl, Nat.eqb_refl;
      cbn [andb].
    f_equal; apply map_ext_in; intros a ina.
    assert (U : In (key_of (fst e) a) (uses e)) by (now apply in_map).
    symmetry; exact (run_events_other t (e :: es) m (key_of (fst e) a) (fun e' ine' => G2 _ e' U ine')).
  - exact (IH G3 (run_line w t (fst e0) (snd e0) m) e ine).
Qed.
Lemma good_app a b : good a -> good b -> (forall e e', In e a -> In e' b ->
  makes e' <> makes e /\ ~ In (makes e') (uses e)) -> good (a ++ b).
Proof.
  induction a as [|e a IH]; cbn [good app]; auto; intros [G1 [G2 G3]] Gb C; split; [|split].
  - intros e' ine; apply in_app_or in ine as [ine|ine]; auto; apply C; auto; now left.
  - intros k e' ink [<-|ine]; [now apply G2; [|left]|]; apply in_app_or in ine as [ine|ine]; [now apply G2; [|right]|].
    intros <-; destruct (C e e' (or_introl eq_refl) ine); auto.
  - apply IH; auto; intros e1 e2 in1 in2; apply C; auto; now right.
Qed.

(** ** What the check finds of later lines is so. *)
Definition later (es : list event) (l : made_later) : Prop := forall e, In e es ->
  exists d, get l (fst (makes e)) = Some d /\
  match d with Some (u, x) => exists j, j < layers w u /\ snd (makes e) = at_ w j x | None => True end.

Lemma unread_later es l a e : later es l -> unread l a = true -> In e es -> forall j, makes e <> key_of j a.
Proof.
  intros L U ine j E; destruct (L e ine) as [d [G _]]; unfold unread in U.
  assert (F : fst (makes e) = fst a) by now rewrite E. rewrite F in G; now rewrite G in U.
Qed.

Lemma plain_good ls : forall l l' es, plain_ordered ls l = Some l' -> good es -> later es l ->
  good (map (fun x => (0, snd x)) ls ++ es) /\ later (map (fun x => (0, snd x)) ls ++ es) l'.
Proof.
  induction ls as [|x ls IH]; intros l l' es O G L; cbn [plain_ordered map app] in *; [inversion O; now subst|].
  destruct (plain_ordered ls l) as [l1|] eqn:O1; [|discriminate]; destruct (IH l l1 es O1 G L) as [G1 L1].
  destruct (_ && _) eqn:C; [|discriminate]; inversion O; subst; clear O; apply andb_true_iff in C as [B R];
    rewrite forallb_forall in R.
  assert (new : forall e', In e' (map (fun x => (0, snd x)) ls ++ es) -> makes e' <> makes (0, snd x)).
  { intros e' ine E; destruct (L1 e' ine) as [d [Gt D]]; rewrite E in Gt, D; cbn in Gt, D; unfold beside in B;
    rewrite Gt in B.
    destruct d as [[u y]|]; [|destruct (snd (target (snd x))); discriminate].
    destruct D as [j [small D]]; destruct y, (snd (target (snd x))); try discriminate; cbn in D; try lia.
    apply Nat.eqb_eq in B; subst; lia. }
  split; cbn [good].
  - split; [exact new|split; [|exact G1]]; intros a e' ina ine; unfold uses in ina; apply in_map_iff in ina;
    destruct ina as [r [<- inr]].
    specialize (R r inr); apply andb_true_iff in R as [R1 R2]; destruct ine as [<-|ine];
      [|exact (unread_later _ l1 r e' L1 R1 ine _)].
    intros E; apply negb_true_iff, Pos.eqb_neq in R2; apply R2; unfold makes, key_of in E; cbn in E; congruence.
  - intros e [<-|ine]; [exists None; cbn; rewrite get_set_same; auto|].
    destruct (Pos.eq_dec (fst (target (snd x))) (fst (makes e))) as [E|apart]; [exists None; rewrite E, get_set_same;
      auto|].
    destruct (L1 e ine) as [d [Gt D]]; exists d; now rewrite get_set_other.
Qed.

Lemma targets_own down ls own : loop_targets down ls Leaf = Some own ->
  (forall x, In x ls -> get own (fst (target (snd x))) = Some (snd (target (snd x)))) /\
  (forall x, In x ls -> snd (target (snd x)) = This \/ (snd (target (snd x)) = Next /\ down = false)) /\
  NoDup (map (fun x => fst (target (snd x))) ls) /\
  (forall n, get own n <> None -> In n (map (fun x => fst (target (snd x))) ls)).
Proof.
  revert own; induction ls as [|x ls IH]; intros own H; cbn [loop_targets] in H.
  - inversion H; subst; repeat split; [intros ? []|intros ? []|constructor|]; intros n N; now destruct n.
  - destruct (loop_targets down ls Leaf) as [o|] eqn:O; [|discriminate]; destruct (IH o eq_refl) as [I1 [I2 [I3 I4]]].
    assert (Z : (snd (target (snd x)) = This \/ (snd (target (snd x)) = Next /\ down = false)) /\
      fresh o (fst (target (snd x))) = true
      /\ own = set (fst (target (snd x))) (Some (snd (target (snd x)))) o).
    { destruct (snd (target (snd x))) eqn:T; try discriminate; destruct (fresh o _) eqn:F; try discriminate;
      cbn [andb] in H.
      - inversion H; auto.
      - destruct down; [discriminate|]; inversion H; auto. }
    destruct Z as [Z1 [Z2 ->]].
    assert (out : ~ In (fst (target (snd x))) (map (fun x => fst (target (snd x))) ls)).
    { intros ins; apply in_map_iff in ins; destruct ins as [y [E iny]]; unfold fresh in Z2;
      rewrite <- E, (I1 y iny) in Z2; discriminate. }
    split; [|split; [|split]].
    + intros y [<-|iny]; [apply get_set_same|]; rewrite get_set_other; auto; intros E; apply out; rewrite E.
      apply in_map_iff; exists y; auto.
    + intros y [<-|iny]; auto.
    + constructor; auto.
    + intros n N; cbn; destruct (Pos.eq_dec (fst (target (snd x))) n) as [->|apart]; auto; right; apply I4.
      now rewrite get_set_other in N.
Qed.

Section Loop.
Variables (u : nat) (down : bool) (ls : list (positive * line)) (own : trie ix).
Hypothesis owns : loop_targets down ls Leaf = Some own.
Let T := targets_own down ls own owns.
Definition body (j : nat) (ls : list (positive * line)) : list event := map (fun x => (instance w u down j, snd x)) ls.

(** What an instance makes, another does not, and what a read may have that the loop makes. *)
Lemma other_instance x y j j' : In x ls -> In y ls -> j < j' < layers w u ->
  makes (instance w u down j', snd y) <> makes (instance w u down j, snd x).
Proof.
  intros inx iny range E; unfold makes, key_of in E; cbn in E; inversion E as [[E1 E2]]; clear E.
  destruct T as [T1 [T2 [T3 T4]]].
  assert (S : snd (target (snd y)) = snd (target (snd x))) by (assert (A := T1 x inx); rewrite <- E1, (T1 y iny) in A;
    congruence).
  rewrite S in E2; unfold instance in E2; destruct (T2 x inx) as [F|[F D]]; rewrite F in E2; cbn in E2; destruct down;
    try discriminate; lia.
Qed.
Lemma read_apart x y j j' a : In x ls -> In y ls -> In a (reads (snd x)) -> j <= j' < layers w u ->
  match get own (fst a), snd a with
  | None, _ => True | Some This, This => j < j' | Some This, Next => down = true | Some Next,
    This => down = false | _, _ => False end ->
  makes (instance w u down j', snd y) <> key_of (instance w u down j) a.
Proof.
  intros inx iny ina range C E; unfold makes, key_of in E; cbn in E; inversion E as [[E1 E2]]; clear E.
  destruct T as [T1 [T2 _]]; rewrite <- E1, (T1 y iny) in C; unfold instance in E2.
  destruct (T2 y iny) as [F|[F D]]; rewrite F in *; destruct (snd a); try tauto; cbn in E2; destruct down;
    try discriminate; lia.
Qed.

Lemma body_good j ls' : (exists before, ls = before ++ ls') -> j < layers w u ->
  forall after, loop_reads down own ls' = Some after ->
  good (body j ls') /\
  (forall n, get after n <> None <-> In n (map (fun x => fst (target (snd x))) ls')) /\
  (forall x a, In x ls' -> In a (reads (snd x)) -> match get own (fst a), snd a with
    | None, _ => True | Some This, This => True | Some This, Next => down = true | Some Next,
      This => down = false | _, _ => False end).
Proof.
  intros part small; induction ls' as [|x ls' IH]; intros after R; cbn [loop_reads body map good] in *.
  - inversion R; subst; repeat split; [intros N; now destruct n|tauto|intros ? ? []].
  - destruct (loop_reads down own ls') as [af|] eqn:R1; [|discriminate].
    destruct part as [before P]; assert (P' : ls = (before ++ [x]) ++ ls') by (rewrite <- app_assoc; exact P).
    destruct (IH (ex_intro _ (before ++ [x]) P') af eq_refl) as [I1 [I2 I3]].
    destruct (forallb _ _) eqn:F; [|discriminate]; inversion R; subst after; clear R; rewrite forallb_forall in F.
    assert (inx : forall y, In y (x :: ls') -> In y ls) by (intros y iny; rewrite P; apply in_or_app; now right).
    assert (once : ~ In (fst (target (snd x))) (map (fun x => fst (target (snd x))) ls')).
    { destruct T as [_ [_ [N _]]]; rewrite P, map_app in N; cbn in N; apply NoDup_remove_2 in N; intros ins;
      apply N, in_or_app; now right. }
    assert (A : forall n, get (set (fst (target (snd x))) (Some tt) af) n <> None <-> In n (map (fun x => fst (target
      (snd x))) (x :: ls'))).
    { intros n; cbn; destruct (Pos.eq_dec (fst (target (snd x))) n) as [->|apart].
      - rewrite get_set_same; split; [auto|discriminate].
      - rewrite get_set_other by easy; rewrite I2; split; [auto|intros [E|E]; [contradiction|exact E]]. }
    split; [split; [|split]; [| |exact I1]|split; [exact A|]].
    + intros e ine E; apply in_map_iff in ine; destruct ine as [y [<- iny]]; apply once, in_map_iff; exists y; split;
      auto.
      unfold makes, key_of in E; cbn in E; congruence.
    + intros k e ink ine E; unfold uses in ink; apply in_map_iff in ink; destruct ink as [a [<- ina]]; cbn in ina;
      specialize (F a ina).
      assert (iny : exists y, In y (x :: ls') /\ e = (instance w u down j, snd y)).
      { destruct ine as [<-|ine]; [exists x; cbn; auto|]; apply in_map_iff in ine; destruct ine as [y [<- iny]];
        exists y; cbn; auto. }
      destruct iny as [y [iny ->]].
      destruct (get own (fst a)) as [[| | |]|] eqn:Ga; destruct (snd a) eqn:Sa; try discriminate;
        try (revert E; apply (read_apart x y j j a); [apply inx; now left|now apply inx|exact ina|lia|];
          rewrite Ga, ?Sa; destruct down; auto; discriminate).
      * unfold fresh in F; destruct (get _ (fst a)) eqn:Fa in F; [discriminate|].
        assert (E1 : fst a = fst (target (snd y))) by (unfold makes, key_of in E; cbn in E; congruence).
        apply (proj2 (A (fst a))); [|exact Fa]; rewrite E1; apply in_map_iff; exists y; auto.
    + intros y a [<-|iny] ina; [|now apply (I3 y)]; specialize (F a ina).
      destruct (get own (fst a)) as [[| | |]|]; destruct (snd a); try discriminate; auto; destruct down; auto;
        discriminate.
Qed.

Lemma loop_good after : loop_reads down own ls = Some after -> forall n s, s + n <= layers w u ->
  good (flat_map (fun j => body j ls) (seq s n)).
Proof.
  intros R; induction n as [|n IH]; intros s range; cbn [seq flat_map]; [exact I|].
  destruct (body_good s ls (ex_intro _ [] eq_refl) ltac:(lia) after R) as [B1 [_ B3]].
  apply good_app; auto; [apply IH; lia|]; intros e e' ine ine'; unfold body in ine; apply in_map_iff in ine;
    destruct ine as [x [<- inx]].
  apply in_flat_map in ine'; destruct ine' as [j [inj ine']]; apply in_map_iff in ine'; destruct ine' as [y [<- iny]];
    apply in_seq in inj.
  split; [apply other_instance; auto; lia|]; intros ins; unfold uses in ins; apply in_map_iff in ins;
    destruct ins as [a [E ina]]; cbn in ina, E.
  symmetry in E; revert E; apply (read_apart x y s j a); auto; [lia|]; specialize (B3 x a inx ina).
  destruct (get own (fst a)) as [[| | |]|]; destruct (snd a); auto; lia.
Qed.
End Loop.

Lemma stretch_good s l l' es : stretch_ordered s l = Some l' -> good es -> later es l ->
  good (events s ++ es) /\ later (events s ++ es) l'.
Proof.
  intros O G L; destruct s as [ls|u down ls]; cbn [stretch_ordered events] in *; [now apply (plain_good ls l)|].
  destruct (loop_targets down ls Leaf) as [own|] eqn:Ow; [|discriminate];
    destruct (loop_reads down own ls) as [af|] eqn:R; [|discriminate].
  destruct (forallb _ ls) eqn:F; [|discriminate]; inversion O; subst l'; clear O; rewrite forallb_forall in F.
  assert (of_loop : forall e, In e (flat_map (fun j => map (fun x => (instance w u down j,
    snd x)) ls) (seq 0 (layers w u))) ->
    exists x j, In x ls /\ j < layers w u /\ e = (instance w u down j, snd x)).
  { intros e ine; apply in_flat_map in ine; destruct ine as [j [inj ine]]; apply in_map_iff in ine;
    destruct ine as [x [<- inx]].
    apply in_seq in inj; exists x, j; repeat split; auto; lia. }
  split.
  - apply good_app; auto; [exact (loop_good u down ls own Ow af R (layers w u) 0 (le_n _))|].
    intros e e' ine ine'; destruct (of_loop e ine) as [x [j [inx [sj ->]]]]; specialize (F x inx);
      apply andb_true_iff in F as [F1 F2].
    rewrite forallb_forall in F2; split.
    + apply (unread_later es l (target (snd x)) e' L F1 ine').
    + intros ins; unfold uses in ins; apply in_map_iff in ins; destruct ins as [a [E ina]]; cbn in ina, E.
      symmetry in E; revert E; now apply (unread_later es l a e' L (F2 a ina)).
  - assert (Q : forall n, In n (map (fun x => fst (target (snd x))) ls) ->
    get (fold_right (fun x l => set (fst (target (snd x))) (Some (Some (u, snd (target (snd x))))) l) l ls) n
      = option_map (fun x => Some (u, x)) (get own n)).
    { destruct (targets_own down ls own Ow) as [T1 [_ [N _]]]; clear -T1 N; intros n; induction ls as [|x ls IH]; cbn;
      [tauto|].
      cbn in N; inversion N as [|? ? out N']; subst; intros [<-|inn].
      - rewrite get_set_same, (T1 x) by (now left); reflexivity.
      - rewrite get_set_other by (intros E; apply out; now rewrite E); apply IH; auto; intros y iny; apply T1;
        now right. }
    intros e ine; apply in_app_or in ine as [ine|ine].
    + destruct (of_loop e ine) as [x [j [inx [sj ->]]]]; destruct (targets_own down ls own Ow) as [T1 [T2 _]].
      exists (Some (u, snd (target (snd x)))); cbn [makes key_of fst snd]; rewrite Q by (apply in_map_iff; exists x;
        auto).
      rewrite (T1 x inx); split; auto; exists (instance w u down j); split; [|reflexivity]; unfold instance;
        destruct down; lia.
    + destruct (L e ine) as [d [Gt D]]; exists d; split; auto; rewrite <- Gt.
      generalize (fst (makes e)), Gt; clear -F; intros n Gt.
      induction ls as [|x ls IH]; cbn; auto; rewrite get_set_other.
      * apply IH; intros y iny; apply F; now right.
      * intros E; specialize (F x (or_introl eq_refl)); apply andb_true_iff in F as [F _]; cbn in E;
        unfold fresh in F; now rewrite E, Gt in F.
Qed.

Lemma all_good ss : forall l, all_ordered ss = Some l -> good (flat_map events ss) /\ later (flat_map events ss) l.
Proof.
  induction ss as [|s ss IH]; intros l O; cbn [all_ordered flat_map] in *; [split; [exact I|intros ? []]|].
  destruct (all_ordered ss) as [l1|]; [|discriminate]; destruct (IH l1 eq_refl) as [G L]; now apply (stretch_good s l1).
Qed.

Theorem ordered_solves free : ordered p = true -> solves (truth w p free).
Proof.
  unfold ordered; intros O; destruct (all_ordered (alone p)) as [l|] eqn:A; [|discriminate].
  destruct (all_good (alone p) l A) as [G L]; rewrite forallb_forall in O; split.
  - intros k u x inx t i0 small i.
    assert (E : In (i0, x) (flat_map events (alone p))).
    { unfold lines in inx; apply in_flat_map in inx; destruct inx as [s [ins inx]]; apply in_flat_map; exists s;
      split; auto.
      destruct s as [ls|u' down ls]; cbn in inx; apply in_map_iff in inx; destruct inx as [y [Ey iny]]; inversion Ey;
        subst.
      - cbn in small; replace i0 with 0 by lia; cbn; apply in_map_iff; exists y; auto.
      - cbn in small; apply in_flat_map; exists (if down then layers w u' - S i0 else i0); split.
        + apply in_seq; destruct down; lia.
        + apply in_map_iff; exists y; split; auto; f_equal; unfold instance; destruct down; lia. }
    set (m := match t with 0 => free 0 | S t' => fun n l => match next_of p n with Some k => reference w p free t' k l
      | None => free t n l end end).
    assert (R : forall n l, truth w p free n t l = run_events t (flat_map events (alone p)) m n l).
    { intros n l0; unfold truth, m; destruct t; cbn [reference]; now rewrite run_step_events. }
    assert (S := good_solves t _ G m (i0, x) E); cbn [fst snd] in S; unfold look in S |- *; rewrite R, S; f_equal.
    apply map_ext; intros a; now rewrite R.
  - intros n k N t i0 i; assert (ins : exists k', In (n, k') (states p)).
    { unfold next_of in N; destruct (find _ _) as [q|] eqn:F; [|discriminate]; apply find_some in F as [inq E];
      apply Pos.eqb_eq in E.
      exists (snd q); now destruct q; cbn in E; subst. }
    destruct ins as [k' ins]; unfold truth at 1; cbn [reference]; rewrite run_step_events.
    assert (F : forall e, In e (flat_map events (alone p)) -> makes e <> (n, i0)).
    { intros e ine E; destruct (L e ine) as [d [Gt _]]; rewrite E in Gt; cbn in Gt; specialize (O _ ins);
      unfold fresh in O; cbn in O; now rewrite Gt in O. }
    assert (Q := run_events_other (S t) _ (fun n l => match next_of p n with Some k => reference w p free t k l | None
      => free (S t) n l end) (n, i0) F).
    cbn [fst snd] in Q; rewrite Q, N; reflexivity.
Qed.
End Order.
