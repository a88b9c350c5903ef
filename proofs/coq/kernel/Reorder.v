(** A program without data races is its printed order: every order of its events that keeps what conflicts, a linear
    extension of a happens-before in which all that conflicts is ordered, leaves in every slot what the printed order
    leaves; and so does every run in which events that are not ordered overlap.

    What it backs: the obligation [race] of placealg/prover/races.py, which shows that of two accesses to one slot, one
    of which writes, that which is printed first has ended before the other begins. What has ended is followed there,
    from streams, waits and the host, over the events of a step; here happens-before is any relation, over the events of
    a program of the kernel.

    An event is an instruction of Machine.v with the moment and the path with which [run] of Meaning.v runs it, or the
    sums behind a microbatch, or a stop; [printed_run] says that their list is that run. There is no clock: junk and
    what is drawn are of the step, the instance and the path, which is the place of an instruction in the printed order,
    so that an event makes the same whenever it runs. What is not held may so be anything, but of the event, not of the
    time. An event is one for all ranks, and the sums behind a microbatch are one: skew of ranks is not spoken of.

    Main statements: [unwritten], [framed], [commute], [linear_extension], [keeps_conflicts], [race_free_printed],
    [race_free_overlapped], [race_free_correct]; [packed_again], [packed_apart] (with a race, and without it). *)

From Coq Require Import Permutation RelationClasses.
From Placealg.kernel Require Import Prelude Machine Meaning Told.
From Placealg.kernel Require Slots.

(** ** Lists: what is kept when neighbours change places. *)
Fixpoint before {A} (l : list A) (x y : A) : Prop :=
  match l with [] => False | z :: l => (z = x /\ In y l) \/ before l x y end.

Lemma before_in {A} (l : list A) x y : before l x y -> In x l /\ In y l.
Proof. induction l as [|z l IH]; cbn; [easy|]; intros [[-> H]|H]; auto; destruct (IH H); auto. Qed.
Lemma before_app {A} (a b : list A) x y : before (a ++ b) x y <-> before a x y \/ before b x y \/ (In x a /\ In y b).
Proof. induction a as [|z a IH]; cbn; [tauto|]; rewrite in_app_iff, IH; intuition. Qed.
Lemma before_trans {A} (l : list A) x y z : NoDup l -> before l x y -> before l y z -> before l x z.
Proof.
  induction 1 as [|u l out once IH]; cbn; [easy|]; intros [[-> H]|H] [[-> G]|G]; auto.
  - left; split; auto; apply (before_in _ _ _ G).
  - apply before_in in H; tauto.
Qed.
Lemma before_seq k n i j : before (seq k n) i j <-> k <= i < j /\ j < k + n.
Proof.
  revert k; induction n as [|n IH]; intros k; cbn; [lia|]; rewrite IH, in_seq; lia.
Qed.

Section Extensions.
Context {A M : Type} (act : A -> M -> M) (same : M -> M -> Prop) {E : Equivalence same} (conflict : A -> A -> Prop).
Definition acted (l : list A) (m : M) : M := fold_left (fun m x => act x m) l m.
Hypothesis act_same : forall x m m', same m m' -> same (act x m) (act x m').
Hypothesis commute : forall x y m, ~ conflict x y -> same (act y (act x m)) (act x (act y m)).

Lemma acted_app a b m : acted (a ++ b) m = acted b (acted a m).
Proof. apply fold_left_app. Qed.
Lemma acted_same l : forall m m', same m m' -> same (acted l m) (acted l m').
Proof. induction l; cbn; auto. Qed.
Lemma to_front x a : (forall y, In y a -> ~ conflict x y) -> forall m, same (act x (acted a m)) (acted a (act x m)).
Proof.
  induction a as [|y a IH]; cbn; intros apart m; [reflexivity|].
  rewrite IH by auto; apply acted_same; symmetry; auto.
Qed.
(** What is first is exchanged with all that stand before it in the other order, and so on. *)
Theorem linear_extension l l' : NoDup l -> Permutation l l' ->
  (forall x y, before l x y -> conflict x y -> before l' x y) -> forall m, same (acted l' m) (acted l m).
Proof.
  intros once; revert l'; induction once as [|x l out once IH]; intros l' P keeps m.
  { apply Permutation_nil in P; subst; reflexivity. }
  destruct (in_split x l' (Permutation_in _ P (or_introl eq_refl))) as [a [b ->]].
  assert (once' : NoDup (a ++ x :: b)) by (apply (Permutation_NoDup P); now constructor).
  apply NoDup_remove in once'; destruct once' as [once' out']; rewrite in_app_iff in out'.
  apply Permutation_cons_app_inv in P.
  assert (there : forall y, In y l <-> In y a \/ In y b)
    by (intros y; rewrite <- in_app_iff; split; apply Permutation_in; [|symmetry]; auto).
  rewrite acted_app; change (same (acted b (act x (acted a m))) (acted l (act x m))).
  rewrite <- (IH (a ++ b) P); [rewrite acted_app|].
  - apply acted_same, to_front; intros y ins C; assert (B : before (a ++ x :: b) x y).
    { apply keeps; auto; cbn; left; rewrite there; auto. }
    rewrite before_app in B; cbn in B; destruct B as [B|[[[_ B]|B]|[B _]]]; try apply before_in in B; try tauto.
    clear -once' ins B; induction a as [|z a IH]; cbn in *; [easy|]; inversion once'; subst.
    rewrite in_app_iff in *; destruct ins; subst; tauto.
  - intros y z B C; destruct (before_in _ _ _ B) as [iny inz]; specialize (keeps y z (or_intror B) C).
    rewrite before_app in *; cbn in keeps; assert (y <> x /\ z <> x) by (split; intros ->; tauto).
    intuition (subst; tauto).
Qed.
End Extensions.

(** ** Events, and the slots that they read and write. *)
Inductive event :=
| Instr (e : moment) (path : list nat) (x : instr)
| Sums (c : nat) (sums : list (slot * slot))
| Stop (path : list nat).

Section Reorder.
Context {K : CRing}.
Variables (w : world K) (p : program).
Local Notation memory := (@memory K).
Definition does (v : event) (m : memory) : memory :=
  match v with
  | Instr e path x => run_instr (on p) w e path x m
  | Sums c sums => accumulate c sums m
  | Stop path => stopped w p path m
  end.

(** Whether a slot is that of instance [l] which an instruction means where it names [s']. *)
Definition is_at (e : moment) (s' s : slot) (l : nat) : bool := slot_eqb s s' && (l =? inst s' (of_layer e)).
Definition reads_of (v : event) (s : slot) (l : nat) : bool :=
  match v with
  | Instr e _ (Do _ args _ _) => existsb (fun s' => is_at e s' s l) args
  | Instr _ _ (Read _ _ | Zero _ | Free _) => false
  | Sums _ sums => existsb (fun q => slot_eqb s (fst q) || slot_eqb s (snd q)) sums
  | Stop _ => false
  end.
Definition writes_of (v : event) (s : slot) (l : nat) : bool :=
  match v with
  | Instr e _ (Do _ _ out _ | Read _ out | Zero out | Free out) => is_at e out s l
  | Sums _ sums => existsb (fun q => slot_eqb s (snd q)) sums
  | Stop _ => negb (existsb (slot_eqb s) (disk p))
  end.
Definition touches_of (v : event) (s : slot) (l : nat) : bool := reads_of v s l || writes_of v s l.
(** Two accesses to one slot, one of which writes. *)
Definition conflict (a b : event) : Prop := exists s l,
  (writes_of a s l = true /\ touches_of b s l = true) \/ (touches_of a s l = true /\ writes_of b s l = true).

(** What an event does not write stays. *)
Lemma unwritten v m s l : writes_of v s l = false -> does v m s l = m s l.
Proof.
  destruct v as [e path [o args out k|n out|out|out]|c sums|path]; cbn; unfold is_at; intros out_;
    try (now unfold store; rewrite out_).
  - unfold accumulate; destruct (find _ sums) as [q|] eqn:F; auto.
    apply find_some in F; enough (existsb (fun q => slot_eqb s (snd q)) sums = true) by congruence.
    apply existsb_exists; eauto.
  - unfold stopped; now rewrite (proj1 (negb_false_iff _) out_).
Qed.

(** What it writes depends on nothing but what it reads. *)
Lemma framed v m m' : (forall s l, reads_of v s l = true -> m s l = m' s l) ->
  forall s l, writes_of v s l = true -> does v m s l = does v m' s l.
Proof.
  destruct v as [e path [o args out k|n out|out|out]|c sums|path]; cbn; unfold is_at; intros same s l W;
    try (now unfold store; rewrite W).
  - unfold store; rewrite W; replace (map (load e m) args) with (map (load e m') args); auto.
    apply map_ext_in; intros s' ins; unfold load; symmetry; apply same, existsb_exists; exists s'; split; auto.
    now rewrite Nat.eqb_refl, (proj2 (Slots.slot_eqb_eq s' s') eq_refl).
  - unfold accumulate; destruct (find _ sums) as [q|] eqn:F.
    + apply find_some in F as [ins F]; rewrite (same s l), (same (fst q) l); auto; apply existsb_exists; exists q;
        split; auto; [|rewrite F; apply orb_true_r].
      now rewrite (proj2 (Slots.slot_eqb_eq (fst q) (fst q)) eq_refl).
    + apply existsb_exists in W as [q [ins W]]; apply find_none with (x := q) in F; congruence.
  - unfold stopped; apply negb_true_iff in W; now rewrite W.
Qed.

Definition same (m m' : memory) : Prop := forall s l, m s l = m' s l.
Local Instance same_equivalence : Equivalence same.
Proof. split; unfold same; [easy|now intros ? ? H ? ?|intros a b c H G s l; now rewrite H]. Qed.
Lemma does_same v m m' : same m m' -> same (does v m) (does v m').
Proof.
  intros S s l; destruct (writes_of v s l) eqn:W; [apply framed; auto|]; now rewrite !unwritten, S by easy.
Qed.

(** Neighbours of which none writes what the other touches may change places. *)
Theorem commute a b m : ~ conflict a b -> same (does b (does a m)) (does a (does b m)).
Proof.
  intros apart s l; unfold conflict, touches_of in apart.
  destruct (writes_of a s l) eqn:A, (writes_of b s l) eqn:B.
  - destruct apart; exists s, l; left; split; auto; rewrite B; apply orb_true_r.
  - rewrite (unwritten b) by easy; apply framed; auto; intros s' l' R; symmetry; apply unwritten.
    apply not_true_is_false; intros W; apply apart; exists s', l'; right; now rewrite R.
  - rewrite (unwritten a) by easy; apply framed; auto; intros s' l' R; apply unwritten.
    apply not_true_is_false; intros W; apply apart; exists s', l'; left; now rewrite R.
  - now rewrite !unwritten by easy.
Qed.

(** ** Orders of a printed list: each event is known by its number in it. *)
Definition runs (l : list event) (m : memory) : memory := acted does l m.

Section Printed.
Variable printed : list event.
Local Notation n := (length printed).
Definition numbered (i : nat) : event := nth i printed (Stop []).

Lemma printed_numbers : map numbered (seq 0 n) = printed.
Proof.
  unfold numbered; generalize printed; intros l; induction l as [|v l IH]; cbn; auto; f_equal.
  rewrite <- seq_shift, map_map; exact IH.
Qed.
Lemma in_turn m : runs (map numbered (seq 0 n)) m = runs printed m.
Proof. now rewrite printed_numbers. Qed.
Lemma acted_numbers l m : acted (fun i => does (numbered i)) l m = runs (map numbered l) m.
Proof. revert m; induction l as [|i l IH]; intros m; [easy|apply IH]. Qed.

Theorem keeps_conflicts order : Permutation (seq 0 n) order ->
  (forall i j, i < j < n -> conflict (numbered i) (numbered j) -> before order i j) ->
  forall m, same (runs (map numbered order) m) (runs printed m).
Proof.
  intros P keeps m; rewrite <- in_turn, <- !acted_numbers.
  apply (linear_extension _ same (fun i j => conflict (numbered i) (numbered j))); auto using does_same, seq_NoDup.
  - intros i j m'; apply commute.
  - intros i j B; apply before_seq in B; apply keeps; lia.
Qed.

(** A happens-before is any relation of these numbers. *)
Variable happens_before : nat -> nat -> Prop.
Definition race_free : Prop :=
  forall i j, i < j < n -> conflict (numbered i) (numbered j) -> happens_before i j.
Definition respects (order : list nat) : Prop :=
  forall i j, i < n -> j < n -> happens_before i j -> before order i j.

Theorem race_free_printed order : race_free -> Permutation (seq 0 n) order -> respects order ->
  forall m, same (runs (map numbered order) m) (runs printed m).
Proof. intros free P R; apply keeps_conflicts; auto; intros i j small C; apply R; [lia|lia|]; auto. Qed.

(** ** Events that overlap in time. An event reads as it begins, and writes as it ends; in between others run. *)
Inductive half := Begins (i : nat) | Ends (i : nat).
Definition number_of (h : half) : nat := match h with Begins i | Ends i => i end.
(** Beside memory: what memory was as each event began. *)
Definition state := (memory * (nat -> memory))%type.
Definition halfway (h : half) (st : state) : state :=
  match h with
  | Begins i => (fst st, fun j => if j =? i then fst st else snd st j)
  | Ends i => (fun s l => if writes_of (numbered i) s l then does (numbered i) (snd st i) s l else fst st s l, snd st)
  end.
Definition overlapped (hs : list half) (m : memory) : memory := fst (acted halfway hs (m, fun _ => m)).
Definition one_by_one (is : list nat) : list half := flat_map (fun i => [Begins i; Ends i]) is.

Definition alike (a b : state) : Prop := same (fst a) (fst b) /\
  forall i s l, reads_of (numbered i) s l = true -> snd a i s l = snd b i s l.
Local Instance alike_equivalence : Equivalence alike.
Proof.
  split; unfold alike, same; [easy|intros a b [H G]; split; intros; symmetry; auto|].
  intros a b c [H G] [H' G']; split; intros; [now rewrite H|now rewrite G, G'].
Qed.
Definition clash (a b : half) : Prop :=
  match a, b with
  | Begins i, Begins j => i = j
  | Ends i, Ends j => exists s l, writes_of (numbered i) s l = true /\ writes_of (numbered j) s l = true
  | Begins i, Ends j | Ends j, Begins i =>
      i = j \/ exists s l, reads_of (numbered i) s l = true /\ writes_of (numbered j) s l = true
  end.

Lemma halfway_alike h a b : alike a b -> alike (halfway h a) (halfway h b).
Proof.
  intros [H G]; destruct h as [i|i]; split; cbn; auto.
  - intros j s l R; destruct (j =? i); auto.
  - intros s l; destruct (writes_of (numbered i) s l) eqn:W; auto; apply framed; auto.
Qed.
Lemma begins_ends i j st : ~ clash (Begins i) (Ends j) ->
  alike (halfway (Ends j) (halfway (Begins i) st)) (halfway (Begins i) (halfway (Ends j) st)).
Proof.
  cbn; intros apart; split; cbn.
  - intros s l; destruct (Nat.eqb_spec j i); [subst; tauto|easy].
  - intros k s l R; destruct (Nat.eqb_spec k i) as [->|]; auto.
    destruct (writes_of (numbered j) s l) eqn:W; auto; destruct apart; eauto.
Qed.
Lemma halves_commute a b st : ~ clash a b -> alike (halfway b (halfway a st)) (halfway a (halfway b st)).
Proof.
  destruct a as [i|i], b as [j|j]; intros apart.
  - cbn in apart; split; cbn; [easy|]; intros k s l _; destruct (Nat.eqb_spec k i), (Nat.eqb_spec k j); congruence.
  - now apply begins_ends.
  - symmetry; now apply begins_ends.
  - split; cbn; [|easy]; intros s l; destruct (writes_of (numbered i) s l) eqn:A, (writes_of (numbered j) s l) eqn:B;
      auto; destruct apart; cbn; eauto.
Qed.

Lemma one_by_one_before k c x y : before (one_by_one (seq k c)) x y ->
  (number_of x < number_of y \/ exists i, x = Begins i /\ y = Ends i) /\ number_of y < k + c.
Proof.
  assert (there : forall k c h, In h (one_by_one (seq k c)) -> k <= number_of h < k + c).
  { clear; intros k c h ins; apply in_flat_map in ins; destruct ins as [i [ins H]]; apply in_seq in ins.
    destruct H as [<-|[<-|[]]]; cbn; lia. }
  revert k; induction c as [|c IH]; intros k; cbn; [easy|].
  intros [[<- [<-|ins]]|[[<- ins]|B]]; cbn; try (apply there in ins; lia).
  - split; [right; eauto|lia].
  - apply IH in B; split; [apply B|lia].
Qed.
Lemma one_by_one_once k c : NoDup (one_by_one (seq k c)).
Proof.
  revert k; induction c as [|c IH]; intros k; [constructor|]; change (one_by_one (seq k (S c))) with
    (Begins k :: Ends k :: one_by_one (seq (S k) c)).
  assert (later : forall h, In h (one_by_one (seq (S k) c)) -> number_of h <> k).
  { intros h H; apply in_flat_map in H; destruct H as [i [ins H]]; apply in_seq in ins.
    destruct H as [<-|[<-|[]]]; cbn; lia. }
  repeat constructor; auto; [intros [H|H]; [discriminate|]|intros H]; now apply later in H.
Qed.
Lemma one_by_one_runs is st : same (fst (acted halfway (one_by_one is) st)) (runs (map numbered is) (fst st)).
Proof.
  revert st; induction is as [|i is IH]; intros st; [easy|]; cbn.
  intros s l; etransitivity; [apply IH|]; apply (acted_same does same does_same); cbn; rewrite Nat.eqb_refl.
  intros s' l'; destruct (writes_of (numbered i) s' l') eqn:W; auto; symmetry; now apply unwritten.
Qed.

(** Of what is ordered the one has ended before the other begins; all else may overlap. *)
Theorem race_free_overlapped halves : race_free -> Permutation (one_by_one (seq 0 n)) halves ->
  (forall i, i < n -> before halves (Begins i) (Ends i)) ->
  (forall i j, i < n -> j < n -> happens_before i j -> before halves (Ends i) (Begins j)) ->
  forall m, same (overlapped halves m) (runs printed m).
Proof.
  intros free P lasts ends m; rewrite <- in_turn.
  enough (A : alike (acted halfway halves (m, fun _ => m)) (acted halfway (one_by_one (seq 0 n)) (m, fun _ => m))).
  { intros s l; unfold overlapped; rewrite (proj1 A); apply one_by_one_runs. }
  apply (linear_extension halfway alike clash halfway_alike halves_commute); auto using one_by_one_once.
  assert (once : NoDup halves) by (apply (Permutation_NoDup P), one_by_one_once).
  assert (far : forall i j, i < j < n -> conflict (numbered i) (numbered j) -> before halves (Ends i) (Begins j))
    by (intros; apply ends; try lia; auto).
  intros x y B; apply one_by_one_before in B; cbn in B; destruct B as [[less|[i [-> ->]]] small];
    [|intros _; apply lasts; apply small].
  unfold conflict, touches_of in far; destruct x as [i|i], y as [j|j]; cbn in *; intros C.
  - lia.
  - destruct C as [->|[s [l [R W]]]]; [lia|].
    assert (F : before halves (Ends i) (Begins j)) by (apply far; [lia|]; exists s, l; right; now rewrite R).
    apply (before_trans _ _ (Ends i)); auto; [apply lasts; lia|].
    apply (before_trans _ _ (Begins j)); auto; apply lasts; lia.
  - destruct C as [->|[s [l [R W]]]]; [lia|]; apply far; [lia|]; exists s, l; left; now rewrite R.
  - destruct C as [s [l [A B]]]; apply (before_trans _ _ (Begins j)); auto.
    apply far; [lia|]; exists s, l; left; rewrite B, orb_true_r; auto.
Qed.
End Printed.

(** ** The printed list of a program: its instructions, each with the moment and the path with which [run] runs it. *)
Fixpoint of_instrs (e : moment) (path : list nat) (k : nat) (is : list instr) : list event :=
  match is with [] => [] | x :: is => Instr e (k :: path) x :: of_instrs e path (S k) is end.
Definition of_block (e : moment) (path : list nat) (b : block) : list event :=
  match b with
  | Run is => of_instrs e path 0 is
  | Layers u down _ is =>
      flat_map (fun j => of_instrs (at_layer e (instance w u down j)) (j :: path) 0 is) (seq 0 (layers w u))
  end.
Fixpoint of_blocks (e : moment) (path : list nat) (k : nat) (bs : list block) : list event :=
  match bs with [] => [] | b :: bs => of_block e (k :: path) b ++ of_blocks e path (S k) bs end.
Definition of_part (e : moment) (path : list nat) (x : part) : list event :=
  match x with
  | Once bs => of_blocks e path 0 bs
  | Microbatches sums bs =>
      flat_map (fun c => of_blocks (at_micro e c) (c :: path) 0 bs ++ [Sums c sums]) (seq 0 (size w 0))
  end.
Fixpoint of_parts (e : moment) (path : list nat) (k : nat) (ps : list part) : list event :=
  match ps with [] => [] | x :: ps => of_part e (k :: path) x ++ of_parts e path (S k) ps end.
Fixpoint printed_list (pauses : nat -> pause) (t : nat) : list event :=
  match t with
  | 0 => of_blocks (Moment 0 0 0 true) [0] 0 (init p)
  | S t => let e := Moment (S t) 0 0 false in
    printed_list pauses t ++ of_parts (Moment t 0 0 false) [1; t] 0 (step p) ++
    match pauses t with
    | On => []
    | Saved => of_blocks e [4; t] 0 (save p)
    | Stopped => of_blocks e [4; t] 0 (save p) ++ Stop [2; t] :: of_blocks e [3; t] 0 (resume p)
    end
  end.

Lemma runs_app a b m : runs (a ++ b) m = runs b (runs a m).
Proof. apply fold_left_app. Qed.
Lemma runs_loop c (body : nat -> list event) f m : (forall j m, runs (body j) m = f j m) ->
  runs (flat_map body (seq 0 c)) m = loop c f m.
Proof.
  intros H; induction c as [|c IH]; [easy|]; rewrite seq_S, flat_map_app, runs_app, IH; cbn; now rewrite app_nil_r.
Qed.
Lemma runs_instrs e path k is m : runs (of_instrs e path k is) m = run_instrs (on p) w e path k is m.
Proof. revert k m; induction is as [|x is IH]; intros k m; [easy|apply IH]. Qed.
Lemma runs_blocks e path k bs m : runs (of_blocks e path k bs) m = run_blocks (on p) w e path k bs m.
Proof.
  revert k m; induction bs as [|b bs IH]; intros k m; [easy|]; cbn; rewrite runs_app, IH; f_equal.
  destruct b; [apply runs_instrs|]; apply runs_loop; intros; apply runs_instrs.
Qed.
Lemma runs_parts e path k ps m : runs (of_parts e path k ps) m = run_parts (on p) w e path k ps m.
Proof.
  revert k m; induction ps as [|x ps IH]; intros k m; [easy|]; cbn; rewrite runs_app, IH; f_equal.
  destruct x as [bs|sums bs]; [apply runs_blocks|]; apply runs_loop; intros c m'; rewrite runs_app, runs_blocks; easy.
Qed.
Theorem printed_run pauses t : runs (printed_list pauses t) (fun _ l => junk w [l]) = run w p pauses t.
Proof.
  induction t as [|t IH]; cbn [printed_list run]; [apply runs_blocks|]; rewrite !runs_app, IH, runs_parts.
  destruct (pauses t); [easy|apply runs_blocks|]; rewrite runs_app, runs_blocks; apply runs_blocks.
Qed.
End Reorder.

(** What is correct in printed order is correct in every run that keeps a happens-before without races. *)
Theorem race_free_correct p : correct p ->
  forall (K : CRing) (w : world K) free, valid w p -> handed w p (truth w p free) -> forall pauses t,
  let printed := printed_list w p pauses t in let n := length printed in
  forall happens_before halves, race_free p printed happens_before -> Permutation (one_by_one (seq 0 n)) halves ->
  (forall i, i < n -> before halves (Begins i) (Ends i)) ->
  (forall i j, i < n -> j < n -> happens_before i j -> before halves (Ends i) (Begins j)) ->
  right w p (truth w p free) t (overlapped w p printed halves (fun _ l => junk w [l])).
Proof.
  intros [_ C] K w free ok given_ pauses t printed n happens_before halves free_ P lasts ends s h ins l small.
  rewrite (race_free_overlapped w p printed happens_before halves free_ P lasts ends); unfold printed.
  rewrite printed_run; now apply C.
Qed.

(** ** A race: two gradients are packed, one after the other, into the input of a reduction. Where the second is packed
    before the first has been read, the first reduction finds the second. With an input of its own nothing differs. *)
Definition packed (input : slot) : list event := of_instrs (Moment 0 0 0 false) [] 0 [
  Do (Rename []) [Shared 1] (Shared 3) None; Do (Send 1 AllReduce) [Shared 3] (Shared 4) None;
  Do (Rename []) [Shared 2] input None; Do (Send 1 AllReduce) [input] (Shared 5) None]%positive.
Definition early := [0; 2; 1; 3].
Definition gradients : @memory Rationals.Rational := fun s _ _ _ =>
  match s with Shared n | Each n => Q (Pos.to_nat n) end.
Definition reduced (events : list event) : Qcanon.Qc :=
  runs world_ (with_step []) events gradients (Shared 4) 0 (fun _ => 0) (fun _ => 0).
Local Notation its := (with_step []).

Lemma early_order : Permutation (seq 0 4) early.
Proof. cbn; constructor; apply perm_swap. Qed.
Lemma early_keeps i j : i < j < 4 -> (i, j) = (1, 2) \/ before early i j.
Proof.
  intros small; do 4 (destruct i as [|i]; [do 4 (destruct j as [|j]; [cbn; auto; lia|]); lia|]); lia.
Qed.

(** All that conflicts is kept but for one pair, and memory differs: that pair cannot be left out. *)
Theorem packed_again : let printed := packed (Shared 3) in
  conflict its (numbered printed 1) (numbered printed 2) /\ Permutation (seq 0 4) early /\
  (forall i j, i < j < 4 -> (i, j) = (1, 2) \/ before early i j) /\
  reduced printed = Q 2 /\ reduced (map (numbered printed) early) = Q 4.
Proof.
  split; [exists (Shared 3), 0; right; split; reflexivity|]; split; [apply early_order|]; split; [apply early_keeps|].
  split; apply Qcanon.Qc_is_canon; vm_compute; reflexivity.
Qed.
Example packed_apart m : let printed := packed (Shared 6) in
  same (runs world_ its (map (numbered printed) early) m) (runs world_ its printed m).
Proof.
  apply keeps_conflicts; [apply early_order|]; intros i j small C.
  destruct (early_keeps i j small) as [E|]; [injection E as -> ->|easy]; destruct C as [s [l C]]; exfalso.
  unfold touches_of in C; cbn -[Pos.eqb] in C; unfold is_at in C; destruct s as [n|n]; cbn -[Pos.eqb] in C.
  - destruct (Pos.eqb_spec n 3), (Pos.eqb_spec n 4), (Pos.eqb_spec n 6), (Pos.eqb_spec n 2); subst; try easy;
      destruct (l =? 0); now destruct C as [[? ?]|[? ?]].
  - now destruct C as [[? ?]|[? ?]].
Qed.
