(** A world over residues modulo a prime: any sizes, any numbers for atoms, each function of rows a polynomial of what
    it reads. So the hypotheses of [correct] can be met by every program, and one that is wrong can be seen to be.

    What it backs: [refuted_by_coqc] of placealg/prover/kernel/coq.py: the refutations that `placealg prove --coq`
    prints.

    Main statements: [world_valid], [world_handed] (the hypotheses hold in this world), [tells_wrong] (where a run
    differs there, the program is not correct). *)

From Coq Require Import ZArith Eqdep_dec.
From Placealg.kernel Require Import Prelude Machine Meaning Trie Check Order.
Open Scope nat_scope.

(** ** Residues. *)
Definition prime : Z := 10007.
Record residue := Residue { number_of : Z; in_range : (number_of mod prime =? number_of)%Z = true }.
Lemma range_of (z : Z) : ((z mod prime) mod prime =? z mod prime)%Z = true.
Proof. apply Z.eqb_eq, Z.mod_mod; discriminate. Qed.
Definition of_Z (z : Z) : residue := Residue (z mod prime) (range_of z).
Lemma residue_eq (a b : residue) : number_of a = number_of b -> a = b.
Proof. destruct a as [x X], b as [y Y]; cbn; intros ->; now rewrite (UIP_dec bool_dec X Y). Qed.
Lemma of_number (a : residue) : of_Z (number_of a) = a.
Proof. apply residue_eq; cbn; apply Z.eqb_eq, in_range. Qed.
Definition residue_dec (a b : residue) : {a = b} + {a <> b}.
Proof. destruct (Z.eq_dec (number_of a) (number_of b)); [left; now apply residue_eq|right; congruence]. Defined.
Definition add_ a b := of_Z (number_of a + number_of b).
Definition mul_ a b := of_Z (number_of a * number_of b).
Definition opp_ a := of_Z (- number_of a).
Definition sub_ a b := of_Z (number_of a - number_of b).
Ltac residues := intros; apply residue_eq; unfold add_, mul_, opp_, sub_; cbn [number_of of_Z];
  rewrite ?Zplus_mod_idemp_l, ?Zplus_mod_idemp_r, ?Zmult_mod_idemp_l, ?Zmult_mod_idemp_r, ?Zplus_mod_idemp_l,
    ?Zplus_mod_idemp_r.
Lemma residue_ring : ring_theory (of_Z 0) (of_Z 1) add_ mul_ sub_ opp_ eq.
Proof.
  split; residues; try (f_equal; ring).
  - rewrite Z.add_0_l; apply Z.eqb_eq, in_range.
  - rewrite Z.mul_1_l; apply Z.eqb_eq, in_range.
Qed.
Definition Residues : CRing := {|
  number := residue; zero := of_Z 0; one := of_Z 1; plus := add_; times := mul_; minus := sub_; opposite := opp_;
  laws := residue_ring; number_dec := residue_dec |}.
Definition same_residue (a b : Residues) : bool := (number_of a =? number_of b)%Z.
Lemma same_residue_refl a : same_residue a a = true.
Proof. apply Z.eqb_refl. Qed.

Lemma ones_are n : sum_list (seq 0 n) (fun _ => one : Residues) = of_Z (Z.of_nat n).
Proof.
  generalize 0; induction n as [|n IH]; intros s; cbn [seq sum_list]; [reflexivity|]; rewrite IH.
  apply residue_eq; cbn [plus one Residues add_ number_of of_Z]; unfold add_; cbn [number_of of_Z].
  rewrite Zplus_mod_idemp_l, Zplus_mod_idemp_r; f_equal; lia.
Qed.

(** ** The world. *)
Section World.
Variables (p : program) (sizes : list nat) (many deep : nat) (atoms : list (Z * Z)).

Definition Z_of (n : nat) : Z := Z.of_nat n.
(** Positions of a few dims, by which functions and numbers tell places apart. *)
Definition place (i : index) : nat := fold_right (fun d n => n + (d + 2) * i d) 0 (seq 0 12).
Lemma place_ext i i' : (forall d, i d = i' d) -> place i = place i'.
Proof. intros same; unfold place; induction (seq 0 12) as [|d l IH]; cbn; [easy|]; now rewrite IH, same. Qed.

Definition along_axis (a : nat) : nat := S (nth a sizes 0).
Definition spread (way : nat) (i : index) : nat := fold_right (fun e n => i e + n) 0 (touches (on p) way).
(** Ways that move: from which place on, counted over the instances of one unit after the other's. *)
Fixpoint places_from (k : nat) (fs : list moves) : list (nat * (bool * nat)) :=
  match fs with
  | [] => []
  | f :: fs => (entry f, (false, k)) :: (here f, (true, k)) :: (behind f, (true, S k)) :: (exit f, (false, deep + k))
      :: places_from (deep + k) fs
  end.
Definition places := places_from 0 (moving (on p)).
Definition place_of (way : nat) : option (bool * nat) := option_map snd (find (fun q => fst q =? way) places).
Definition owner (l a way : nat) (i : index) : nat :=
  match place_of way with
  | Some (moves_, k) => ((if moves_ then l else 0) + k) mod along_axis a
  | None => (spread way i / S a) mod along_axis a end.
Definition atom_ (k : nat) : Residues := of_Z (fst (nth k atoms (1, 1)%Z)).
Definition inverse_ (k : nat) : Residues := of_Z (snd (nth k atoms (1, 1)%Z)).

(** A function of rows reads two positions of each operand: the result's, and the next along what it reads whole. *)
Definition whole_of (f : nat) : list nat :=
  fold_right (fun x l => match made (snd (snd x)) with SRow g over => if g =? f then over else l | _ => l end) []
    (lines p).
Definition next_along (over : list nat) (i : index) : index := fun d =>
  if existsb (Nat.eqb d) over then S (i d) mod many else i d.
Fixpoint mixed (k : nat) (xs : list (Z * Z)) (acc : Z) : Z :=
  match xs with
  | [] => acc
  | (x, y) :: xs => mixed (S k) xs (3 * acc + (x + Z_of k) * (2 * y + 5 + Z_of k) + x)%Z end.
Definition read_at (over : list nat) (i : index) (v : @logical Residues) : Z * Z :=
  let x := number_of (v i) in (x, match over with [] => x | _ => number_of (v (next_along over i)) end).
Definition fn_ (f t l : nat) (i : index) (vs : list (@logical Residues)) : Residues :=
  of_Z (mixed 1 (map (read_at (whole_of f) i) vs) (Z_of (7 * f + 3 * t + 2 * l)%nat + Z_of (place i))%Z).

Definition free_ (t : nat) (n : positive) (l : nat) (i : index) : Residues :=
  let n := if t =? 0 then match find (fun q => (fst q =? n)%positive) (begins p) with Some q => snd q | None => n end
    else n in
  of_Z (Z_of (place i * 5 + 17 * t + 11 * l)%nat + 31 * Zpos n)%Z.
Definition world_with (given_ : bool -> positive -> nat -> nat -> @tensor Residues) : world Residues := World Residues
  along_axis (fun _ => many) owner (fun _ => deep) atom_ inverse_ fn_ given_
  (fun path r i => of_Z (1009 + Z_of (fold_right (fun a n => 7 * n + a) (length path) path)%nat)%Z).
Definition v_ : @values Residues := truth (world_with (fun _ _ _ _ _ _ => zero)) p free_.
(** What comes from outside, a rank has where it is its own. *)
Definition has_own (at_ : nat) (ks : list kind) (l : list nat) (r : rank) (i : index) : bool := forallb (fun a =>
  match kind_in ks a with Shard d => r a =? owner at_ a d i | _ => true end) l.
Definition lying_of (start : bool) (n : positive) : list kind :=
  match find (fun h => (value_of h =? n)%positive) (if start then given p else data p) with
  | Some h => lying h | None => [] end.
Definition input_ (start : bool) (n : positive) (t l : nat) : @tensor Residues := fun r i =>
  if has_own l (lying_of start n) (seq 0 (axes (on p))) r i then v_ n t l i else of_Z (Z_of (place i + 401 * S (r 0))).
Definition w_ : world Residues := world_with input_.
Lemma v_is : truth w_ p free_ = v_.
Proof. reflexivity. Qed.

(** ** What it takes. *)
Definition one_whole : bool := forallb (fun x => match made (snd (snd x)) with
  | SRow f over => same_list Nat.eqb over (whole_of f) | _ => true end) (lines p).
Definition no_part (h : held) : bool := forallb (fun k => match k with Part => false | _ => true end) (lying h).
Definition unmade (n : positive) : bool := forallb (fun x => negb (fst (target (snd (snd x))) =? n)%positive) (lines p).
Definition placed : bool := forallb (fun q => match place_of (fst q), touches (on p) (fst q) with
  | Some (m, k), [] => Bool.eqb m (fst (snd q)) && (k =? snd (snd q)) | _, _ => false end) places.
Definition fits_ : bool :=
  one_whole && forallb (fun q => ((fst q * snd q) mod prime =? 1)%Z) atoms && negb (many =? 0)
  && forallb (fun m => same_residue (value atom_ inverse_ m) one) (ones p)
  && forallb (fun q => same_residue (atom_ (snd q)) (of_Z (Z_of (along_axis (fst q))))) (sized (on p))
  && forallb (fun h => no_part h && unmade (value_of h) && same_list kind_eqb (lying_of true (value_of h)) (lying h))
    (given p)
  && forallb (fun h => no_part h && unmade (value_of h) && same_list kind_eqb (lying_of false (value_of h)) (lying h)
    && match next_of p (value_of h) with None => true | _ => false end) (data p)
  && forallb (fun q => unmade (fst q) && unmade (snd q)
    && match find (fun q' => (fst q' =? fst q)%positive) (begins p) with
       | Some q' => (snd q' =? snd q)%positive | None => false end
    && match find (fun q' => (fst q' =? snd q)%positive) (begins p) with None => true | _ => false end) (begins p)
  && placed.

Lemma same_list_eq l l' : same_list Nat.eqb l l' = true -> l = l'.
Proof.
  revert l'; induction l as [|a l IH]; intros [|b l'] H; cbn in H; try discriminate; auto.
  apply andb_true_iff in H as [H1 H2]; apply Nat.eqb_eq in H1; subst; f_equal; auto.
Qed.

Hypothesis fits : fits_ = true.

Lemma placed_in q : In q places -> place_of (fst q) = Some (snd q) /\ touches (on p) (fst q) = [].
Proof.
  intros inq; assert (F := fits); unfold fits_ in F; apply andb_true_iff in F as [_ F]; unfold placed in F.
  rewrite forallb_forall in F; specialize (F q inq); destruct (place_of (fst q)) as [[m k]|]; [|discriminate].
  destruct (touches (on p) (fst q)); [|discriminate]; apply andb_true_iff in F as [F1 F2].
  apply Bool.eqb_prop in F1; apply Nat.eqb_eq in F2; subst; split; auto; now destruct q as [? [? ?]].
Qed.
Lemma place_in way x : place_of way = Some x -> In (way, x) places.
Proof.
  unfold place_of; destruct (find _ places) as [q|] eqn:F; [|discriminate]; apply find_some in F as [inq E].
  apply Nat.eqb_eq in E; subst; cbn; intros X; inversion X; now destruct q.
Qed.
Lemma places_moves fs way k : forall k0, In (way, (true, k)) (places_from k0 fs) ->
  exists f, In f fs /\ (here f = way \/ behind f = way).
Proof.
  induction fs as [|f fs IH]; cbn; [tauto|]; intros k0 [E|[E|[E|[E|ins]]]]; try (inversion E; exists f; auto; fail).
  destruct (IH _ ins) as [f' [inf H]]; exists f'; auto.
Qed.
Lemma places_of f fs : In f fs -> forall k0, exists k, In (entry f, (false, k)) (places_from k0 fs)
  /\ In (here f, (true, k)) (places_from k0 fs) /\ In (behind f, (true, S k)) (places_from k0 fs)
  /\ In (exit f, (false, deep + k)) (places_from k0 fs).
Proof.
  induction fs as [|f0 fs IH]; [easy|]; intros [<-|inf] k0; cbn [places_from]; [exists k0; cbn; tauto|].
  destruct (IH inf (deep + k0)) as [k [A [B [C D]]]]; exists k; cbn; tauto.
Qed.

Lemma world_valid given_ : valid (world_with given_) p.
Proof.
  assert (F := fits); unfold fits_ in F; repeat rewrite andb_true_iff in F.
  destruct F as [[[[[[[[F1 F2] F3] F4] F5] _] _] _] _].
  split; cbn [size home world_with extent atom inverse fn junk].
  - intros a; unfold along_axis; lia.
  - intros l a d i; unfold owner; destruct (place_of d) as [[m k]|]; apply Nat.mod_upper_bound; unfold along_axis; lia.
  - intros l a d i j same; unfold owner; destruct (place_of d) as [[m k]|]; [easy|]; unfold spread; f_equal; f_equal.
    induction (touches (on p) d) as [|e es IH]; cbn; [easy|]; rewrite IH, same by (cbn in *; auto); easy.
  - intros l a d i S; unfold owner; destruct (place_of d) as [[m k]|] eqn:P; [|easy]; destruct m; [|easy]; exfalso.
    destruct (places_moves _ _ _ 0 (place_in d _ P)) as [f [inf H]]; unfold still in S; rewrite forallb_forall in S.
    specialize (S f inf); apply negb_true_iff, orb_false_iff in S as [S1 S2]; apply Nat.eqb_neq in S1, S2; tauto.
  - intros f inf a i; destruct (places_of f _ inf 0) as [k [A [B [C D]]]]; apply placed_in in A, B, C, D.
    cbn [fst snd] in A, B, C, D; unfold owner; rewrite (proj1 A), (proj1 B), (proj1 C), (proj1 D).
    repeat split; intros; f_equal; lia.
  - intros l a d e i j Pd Pe _ E.
    assert (N : forall d, plain (on p) d = true -> place_of d = None).
    { intros d' Q; destruct (place_of d') as [x|] eqn:P; [|easy]; apply place_in in P; apply placed_in in P.
      cbn in P; unfold plain in Q; rewrite (proj2 P) in Q; discriminate. }
    unfold owner; rewrite (N d Pd), (N e Pe); unfold spread; f_equal; f_equal.
    unfold plain in Pd, Pe; destruct (touches (on p) d) as [|d' [|]]; try discriminate;
      destruct (touches (on p) e) as [|e' [|]]; try discriminate.
    apply Nat.eqb_eq in Pd, Pe; subst; cbn; now rewrite E.
  - intros k; unfold atom_, inverse_; apply residue_eq; cbn [times Residues one].
    destruct (Nat.lt_ge_cases k (length atoms)) as [small|large].
    + rewrite forallb_forall in F2; specialize (F2 _ (nth_In _ (1, 1)%Z small)); apply Z.eqb_eq in F2.
      unfold mul_; cbn [number_of of_Z]; rewrite Zmult_mod_idemp_l, Zmult_mod_idemp_r; exact F2.
    + rewrite nth_overflow by easy; reflexivity.
  - intros m inm; rewrite forallb_forall in F4; specialize (F4 _ inm); apply Z.eqb_eq in F4; now apply residue_eq.
  - intros a k inq; rewrite forallb_forall in F5; specialize (F5 _ inq); cbn [fst snd] in F5; apply Z.eqb_eq in F5.
    rewrite ones_are; now apply residue_eq.
  - intros k u x f over ins made_ t l i i' vs ws same V; unfold fn_.
    unfold one_whole in F1; rewrite forallb_forall in F1; specialize (F1 _ ins); cbn [snd] in F1.
    rewrite made_ in F1; apply same_list_eq in F1; rewrite <- F1.
    assert (M : map (read_at over i) vs = map (read_at over i') ws).
    { induction V as [|v w vs ws E V IH]; cbn; [easy|]; rewrite IH; f_equal; unfold read_at.
      assert (H : v i = w i') by (apply E; auto; intros d _; easy).
      assert (N : v (next_along over i) = w (next_along over i')).
      { apply E.
        - intros d out; unfold next_along; destruct (existsb (Nat.eqb d) over) eqn:X; [|easy].
          apply existsb_exists in X as [e [ine X]]; apply Nat.eqb_eq in X; subst; tauto.
        - intros d; unfold next_along; now rewrite same. }
      now rewrite H, N. }
    rewrite (place_ext _ _ same); f_equal; f_equal; exact M.
  - intros path r r' i i' _ _; reflexivity.
Qed.

Lemma owner_ext l a d i i' : (forall d, i d = i' d) -> owner l a d i = owner l a d i'.
Proof.
  intros same; unfold owner; destruct (place_of d) as [[m k]|]; [easy|]; unfold spread; f_equal; f_equal.
  induction (touches (on p) d) as [|e es IH]; cbn; [easy|].
  now rewrite IH, same.
Qed.
Lemma same_kinds ks ks' : same_list kind_eqb ks ks' = true -> ks = ks'.
Proof.
  revert ks'; induction ks as [|k ks IH]; intros [|k' ks'] H; cbn in H; try discriminate; auto.
  apply andb_true_iff in H as [H1 H2]; f_equal; auto; destruct k, k'; cbn in H1; try discriminate; auto.
  apply Nat.eqb_eq in H1; now subst.
Qed.
Lemma has_own_put at_ ks l a c r i : ~ In a l -> has_own at_ ks l (put r a c) i = has_own at_ ks l r i.
Proof.
  unfold has_own; induction l as [|b l IH]; intros out; [easy|]; cbn [forallb]; f_equal.
  - unfold put; destruct (Nat.eqb_spec b a); [subst; cbn in out; tauto|easy].
  - apply IH; intros ina; apply out; now right.
Qed.
Lemma den_own at_ ks (x : @logical Residues) (y : @tensor Residues) (i : index) : (forall a, kind_in ks a <> Part) ->
  forall l done r, NoDup (done ++ l) -> has_own at_ ks done r i = true ->
  (forall r, has_own at_ ks (done ++ l) r i = true -> y r i = x i) ->
  den along_axis (owner at_) l (kind_in ks) y r i (x i).
Proof.
  intros N; unfold den; induction l as [|a l IH]; intros done r once own same.
  - cbn; split; [easy|]; apply same; now rewrite app_nil_r.
  - assert (out : ~ In a done) by (intros ina; apply NoDup_remove_2 in once; apply once, in_or_app; now left).
    assert (S : forall c, (match kind_in ks a with Shard d => c =? owner at_ a d i | _ => true end) = true ->
      agree along_axis (owner at_) l (kind_in ks) y (put r a c) i /\
      val along_axis (owner at_) l (kind_in ks) y (put r a c) i = x i).
    { intros c fit; apply (IH (done ++ [a])).
      - now rewrite <- app_assoc.
      - unfold has_own in *; rewrite forallb_app; apply andb_true_iff; split.
        + pose proof (has_own_put at_ ks done a c r i out) as H; unfold has_own in H; now rewrite H.
        + cbn; rewrite andb_true_r; unfold put; rewrite Nat.eqb_refl; exact fit.
      - intros r' H; apply same; now rewrite <- app_assoc in H. }
    specialize (N a); cbn [agree val]; destruct (kind_in ks a) as [|d|]; try easy.
    + split; [|apply S; easy]; intros c _; split; [apply S; easy|]; now rewrite !(proj2 (S _ eq_refl)).
    + apply S, Nat.eqb_refl.
Qed.
Lemma lies_own start n t l ks : lying_of start n = ks ->
  (forall i i', (forall d, i d = i' d) -> v_ n t l i = v_ n t l i') ->
  forallb (fun k => match k with Part => false | _ => true end) ks = true ->
  lies (size w_) (home w_ l) (axes (on p)) (input w_ start n t l) (v_ n t l) ks.
Proof.
  intros is E no; rewrite forallb_forall in no; split.
  - intros r r' i i' samer samei; unfold w_, world_with, input, input_.
    assert (has_own l (lying_of start n) (seq 0 (axes (on p))) r i =
            has_own l (lying_of start n) (seq 0 (axes (on p))) r' i')
      as ->.
    { unfold has_own; induction (seq 0 (axes (on p))) as [|a al IH]; [easy|]; cbn [forallb]; f_equal; [|exact IH].
      destruct (kind_in _ a); auto; now rewrite samer, (owner_ext l a way i i' samei). }
    rewrite (E i i' samei), (place_ext _ _ samei), samer; reflexivity.
  - intros r i; apply (den_own l ks (v_ n t l) (input w_ start n t l) i) with (done := []).
    + intros a P; unfold kind_in in P; destruct (Nat.lt_ge_cases a (length ks)) as [small|large].
      * specialize (no _ (nth_In _ Full small)); rewrite P in no; discriminate.
      * rewrite nth_overflow in P by easy; discriminate.
    + apply seq_NoDup.
    + reflexivity.
    + intros r' H; unfold w_, world_with, input, input_; rewrite is; cbn [app] in H; now rewrite H.
Qed.

Lemma of_unmade n l (w : world Residues) free t : unmade n = true -> truth w p free n t l =
  match t with 0 => free 0 n l | S t' => match next_of p n with Some k => truth w p free k t' l | None => free t n l end
    end.
Proof.
  intros out; unfold unmade in out; rewrite forallb_forall in out.
  assert (N : forall e, In e (flat_map (events w) (alone p)) -> makes w e <> (n, l)).
  { intros e ine made_; apply in_flat_map in ine as [s [ins ine]].
    assert (L : exists k u, In (k, (u, snd e)) (lines p)).
    { unfold lines; destruct s as [ls|u down ls]; cbn [events] in ine.
      - apply in_map_iff in ine as [[k x] [<- inx]]; exists k, None; apply in_flat_map; exists (Plain ls); split; auto.
        cbn; apply in_map_iff; exists (k, x); auto.
      - apply in_flat_map in ine as [j [_ ine]]; apply in_map_iff in ine as [[k x] [<- inx]]; exists k, (Some u).
        apply in_flat_map; exists (Repeat u down ls); split; auto; cbn; apply in_map_iff; exists (k, x); auto. }
    destruct L as [k [u L]]; specialize (out _ L); cbn [snd] in out; apply negb_true_iff, Pos.eqb_neq in out.
    unfold makes, key_of in made_; inversion made_; congruence. }
  unfold truth; destruct t as [|t]; cbn [reference]; rewrite run_step_events.
  - exact (run_events_other w 0 _ (free 0) (n, l) N).
  - assert (Q := run_events_other w (S t) _ (fun n l => match next_of p n with Some k => reference w p free t k l
      | None => free (S t) n l end) (n, l) N).
    exact Q.
Qed.

Lemma free_ext t n l i i' : (forall d, i d = i' d) -> free_ t n l i = free_ t n l i'.
Proof. intros same; unfold free_; now rewrite (place_ext _ _ same). Qed.

Lemma world_handed : handed w_ p (truth w_ p free_).
Proof.
  assert (F := fits); unfold fits_ in F; repeat rewrite andb_true_iff in F; destruct F as [[[[_ G] D] B] _].
  rewrite forallb_forall in G, D, B; rewrite v_is; split; [|split].
  - intros h ins l _; specialize (G _ ins); repeat rewrite andb_true_iff in G; destruct G as [[G1 G2] G3].
    apply lies_own; [now apply same_kinds| |exact G1].
    intros i i' same; unfold v_; rewrite (of_unmade _ _ _ _ 0 G2); now apply free_ext.
  - intros h ins t l _; specialize (D _ ins); repeat rewrite andb_true_iff in D; destruct D as [[[D1 D2] D3] D4].
    apply lies_own; [now apply same_kinds| |exact D1].
    intros i i' same; unfold v_; rewrite (of_unmade _ _ _ _ t D2); destruct t; [now apply free_ext|].
    destruct (next_of p (value_of h)); [discriminate|now apply free_ext].
  - intros n k ins l i; specialize (B _ ins); cbn [fst snd] in B; repeat rewrite andb_true_iff in B.
    destruct B as [[[B1 B2] B3] B4]; unfold v_.
    rewrite (of_unmade _ _ _ _ 0 B1), (of_unmade _ _ _ _ 0 B2); unfold free_; cbn [Nat.eqb].
    destruct (find _ (begins p)) as [q|] in B3 |- *; [|discriminate]; apply Pos.eqb_eq in B3; rewrite B3.
    destruct (find (fun q' => (fst q' =? k)%positive) (begins p)); [discriminate|reflexivity].
Qed.

(** ** Where the run differs. *)
Fixpoint agree_ (at_ : nat) (l : list nat) (T : type) (x : @tensor Residues) (r : rank) (i : index) : bool :=
  match l with
  | [] => true
  | a :: l => match T a with
    | Full => let first := val along_axis (owner at_) l T x (put r a 0) i in
        forallb (fun c => agree_ at_ l T x (put r a c) i
          && same_residue (val along_axis (owner at_) l T x (put r a c) i) first) (seq 0 (along_axis a))
    | Shard d => agree_ at_ l T x (put r a (owner at_ a d i)) i
    | Part => forallb (fun c => agree_ at_ l T x (put r a c) i) (seq 0 (along_axis a))
    end
  end.
Lemma agree_is at_ l T x r i : agree along_axis (owner at_) l T x r i -> agree_ at_ l T x r i = true.
Proof.
  revert r; induction l as [|a l IH]; intros r A; cbn [agree agree_] in *; [easy|]; destruct (T a); auto;
    apply forallb_forall; intros c ins; apply in_seq in ins.
  - destruct (A c ltac:(lia)) as [A1 A2]; rewrite A2, same_residue_refl, andb_true_r; auto.
  - apply IH, A; lia.
Qed.
Definition right_at (m : @memory Residues) (t : nat) (q : slot * held) (l : nat) (i : index) : bool :=
  let x := m (fst q) (inst (fst q) l) in let T := kind_in (lying (snd q)) in let all := seq 0 (axes (on p)) in
  agree_ l all T x (fun _ => 0) i
  && same_residue (val along_axis (owner l) all T x (fun _ => 0) i) (v_ (value_of (snd q)) t l i).
Definition tells (stops : bool) (t : nat) (at_ : list (list nat)) : bool :=
  let m := run w_ p (fun _ => if stops then Stopped else On) t in
  fits_ && existsb (fun q => existsb (fun l => existsb (fun i => negb (right_at m t q l (fun d => nth d i 0))) at_)
    (seq 0 (match per (snd q) with Some _ => deep | None => 1 end))) (rest p).
End World.

Theorem tells_wrong p sizes many deep atoms stops t at_ :
  tells p sizes many deep atoms stops t at_ = true -> ~ correct p.
Proof.
  unfold tells; intros T [_ C]; apply andb_true_iff in T as [F T].
  assert (X := C Residues (w_ p sizes many deep atoms) (free_ p) (world_valid p sizes many deep atoms F _)
    (world_handed p sizes many deep atoms F) (fun _ => if stops then Stopped else On) t).
  apply existsb_exists in T as [[s h] [ins T]]; apply existsb_exists in T as [l [inl T]].
  apply existsb_exists in T as [i [_ T]]; apply in_seq in inl; cbn [snd] in inl.
  assert (small : l < count (w_ p sizes many deep atoms) (per h)) by (unfold count; cbn; destruct (per h); lia).
  destruct (X s h ins l small) as [_ D]; destruct (D (fun _ => 0) (fun d => nth d i 0)) as [A V].
  apply negb_true_iff in T; rewrite <- not_true_iff_false in T; apply T; unfold right_at; cbn [fst snd].
  apply andb_true_iff; split; [exact (agree_is p sizes _ _ _ _ _ _ _ A)|].
  apply Z.eqb_eq; exact (f_equal number_of V).
Qed.
