(** What happens to one instance of a unit: its weights are read, activations flow, gradients appear.

    What it backs: the kernel.

    Main statements: [on_ok], [forward_ok], [take_ok]; Backwards.v goes on. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Maxima.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
Open Scope nat_scope.

Section Units.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.

Notation val := (val p count_).
Notation holds := (holds p count_).
Notation fits := (fits p count_).
Notation glob := (glob p).

Lemma nth_put_at {V : Type} (n n' : nat) (v d : V) (l : list V) :
  nth n' (put_at n v l) d = if (n' =? n) && (n <? length l) then v else nth n' l d.
Proof.
  revert n n'; induction l as [|x l IH]; intros n n'; cbn [put_at length].
  - now destruct (n' =? n), n', n.
  - destruct n as [|n], n' as [|n']; cbn [nth put_at]; try easy. rewrite IH; reflexivity.
Qed.

Lemma length_put_at {V : Type} (n : nat) (v : V) (l : list V) : length (put_at n v l) = length l.
Proof. revert n; induction l as [|x l IH]; intros [|n]; cbn; congruence. Qed.

Lemma nth_error_put_at {V : Type} (n n' : nat) (v : V) (l : list V) (x : V) :
  nth_error (put_at n v l) n' = Some x -> (n' = n /\ x = v) \/ (n' <> n /\ nth_error l n' = Some x).
Proof.
  revert n n'; induction l as [|y l IH]; intros [|n] [|n']; cbn; try easy; intros found.
  - left; split; [easy|congruence].
  - right; split; easy.
  - right; split; easy.
  - destruct (IH _ _ found) as [[-> ->]|[apart same]]; [now left|right; split; [congruence|easy]].
Qed.

Lemma used_small (u g : nat) : used p u g = true -> g < length (groups p).
Proof.
  unfold used, sites_of. destruct (nth_error (groups p) g) eqn:found; [|easy]. intros _.
  apply nth_error_Some. congruence.
Qed.

Definition log_ok (t : nat) (m : memory) : Prop := forall u l got, In (u, l, got) (reads m) ->
  forall r i, ok r -> In i (needs p u l) -> covers p i -> got r i = Some (inl (weights_at p t i)).

Definition kept_right (t u l : nat) (m : memory) (r : rank) : Prop := exists a,
  kept m u l r = Some (t, ref_view p (weights_at p t) u l, a) /\ forall x, a x = ref_act p t (weights_at p t) x u l.

Record frame (u l : nat) (m m' : memory) : Prop := {
  fr_held : forall y r i, used p u (group_of i) && (layer_of i =? l) = false -> held m' y r i = held m y r i;
  fr_partial : partial m' = partial m;
  fr_count : count m' = count m;
  fr_tally : tally m' = tally m /\ flag m' = flag m;
  fr_scale : scale m' = scale m;
  fr_kept : forall u' l' r, (u' =? u) && (l' =? l) = false -> kept m' u' l' r = kept m u' l' r
}.

Lemma frame_refl u l m : frame u l m m. Proof. now split. Qed.
Lemma frame_trans u l m m' m'' : frame u l m m' -> frame u l m' m'' -> frame u l m m''.
Proof.
  intros [a b c [c1 c2] d e] [a' b' c' [c1' c2'] d' e'].
  split; try congruence; [intros; now rewrite a', a|split; congruence|intros; now rewrite e', e].
Qed.

Lemma event_frame (t j : nat) (here : E -> bool) (e : event) (m : memory) :
  let m' := at_event p t j here e m in
  (forall y r i, here i = false -> held m' y r i = held m y r i) /\ partial m' = partial m /\ (count m' = count m /\
    tally m' = tally m /\ flag m' = flag m) /\
  scale m' = scale m /\ kept m' = kept m /\ act m' = act m /\ cot m' = cot m /\ reads m' = reads m.
Proof.
  destruct e; cbn; repeat split; try easy; intros y' r i out; rewrite out; rewrite ?andb_false_r; easy.
Qed.

Section Instance.
Variables (t j : nat) (start : bool) (now : moment) (u k l : nat).
Hypothesis starts : start = true -> t = 0.
Hypothesis when_ : when_ok now j.
Hypothesis inside : k < depth p u.

Record inst (f : facts) (m : memory) : Prop := {
  in_glob : glob t j f m;
  in_len : length (slots f) = length (groups p);
  in_units : length (kepts f) = length (repeated p);
  in_fit : forall i, used p u (group_of i) = true -> layer_of i = l ->
    fits t j (nth_table (slots f) (group_of i)) m i;
  in_kept : nth u (kepts f) false = true -> forall r, ok r -> kept_right t u l m r;
  in_act : acts f = Entered -> l = k /\ forall r x, ok r -> act m r x = ref_act p t (weights_at p t) x u k;
  in_acted : acts f = Left -> forall r x, ok r -> act m r x = ref_act p t (weights_at p t) x u (S k);
  in_cot : cots f = Entered -> l = depth p u - 1 - k /\
    forall r x, ok r -> cot m r x = ref_cot p t (weights_at p t) x u k;
  in_cotted : cots f = Left -> forall r x, ok r -> cot m r x = ref_cot p t (weights_at p t) x u (S k);
  in_factor : forall n c, nth n (factor f) None = Some c -> forall r, ok r -> scale m n r = mean p count_ t j c
}.

Lemma seen_ok (f : facts) (m : memory) (r : rank) (i : E) : inst f m -> weights_right p u f = true -> ok r ->
  In i (needs p u l) -> held m (At Weight Device) r i = Some (inl (weights_at p t i)).
Proof.
  intros known right good need. unfold needs in need. apply filter_In in need. destruct need as [_ need].
  apply andb_true_iff in need. destruct need as [use layer]. apply Nat.eqb_eq in layer.
  pose proof (used_small _ _ use) as small. unfold weights_right, group_numbers in right.
  rewrite forallb_forall in right. specialize (right (group_of i)). rewrite in_seq in right.
  specialize (right ltac:(lia)). change (uses p u (group_of i)) with (used p u (group_of i)) in right.
  rewrite use in right. cbn [negb orb] in right.
  unfold weight_right in right. pose proof (in_fit _ _ known i use layer (At Weight Device)) as H.
  destruct (get _ _) as [| |[[|]| | | | |] [|] o]; try easy. specialize (H r good). cbn in H. now rewrite H.
Qed.

Lemma view_ok (f : facts) (m : memory) (r : rank) : inst f m -> weights_right p u f = true -> ok r ->
  view p m u l r = ref_view p (weights_at p t) u l.
Proof.
  intros known right good. unfold view, ref_view. apply map_ext_in. intros i need.
  now rewrite (seen_ok f m r i known right good need).
Qed.

Lemma logged (f : facts) (m m' : memory) : inst f m -> weights_right p u f = true ->
  reads m' = (u, l, held m (At Weight Device)) :: reads m -> log_ok t m -> log_ok t m'.
Proof.
  intros known right all log u' l' got read r i good need cover. rewrite all in read.
  destruct read as [[= <- <- <-]|read]; [now apply (seen_ok f m r i known right)|].
  eapply log; eassumption.
Qed.

Definition goes (f f' : facts) (m m' : memory) : Prop :=
  inst f' m' /\ frame u l m m' /\ (fine f' = true -> fine f = true /\ (log_ok t m -> log_ok t m')) /\
  norms f' = norms f /\ counts f' = counts f /\ factor f' = factor f /\
  (forall g, used p u g = false -> nth_table (slots f') g = nth_table (slots f) g) /\
  (forall u', u' <> u -> nth u' (kepts f') false = nth u' (kepts f) false).

Lemma glob_same (f f' : facts) (m m' : memory) : norms f' = norms f -> counts f' = counts f ->
  partial m' = partial m -> count m' = count m -> tally m' = tally m /\ flag m' = flag m -> glob t j f m ->
    glob t j f' m'.
Proof. intros A B C D [E1 F1] [a b c d e]. split; rewrite ?A, ?B, ?C, ?D, ?E1, ?F1; easy. Qed.

Lemma on_ok (f : facts) (m : memory) (g : nat) (e : event) : g < length (groups p) -> used p u g = true -> inst f m ->
  goes f (after_instr p start now u f (On g e)) m (at_instr p t j u l m (On g e)).
Proof.
  intros small use known. cbn [after_instr at_instr].
  set (here := fun i : E => (group_of i =? g) && (layer_of i =? l)).
  destruct (event_frame t j here e m) as [A [B [[C [C1 C2]] [D [E1 [F [G H]]]]]]].
  set (m' := at_event p t j here e m) in *.
  set (new := after_event p start now f g (nth_table (slots f) g) e).
  split; [|repeat split]; cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
  - destruct known as [a b b' c d e1 e2 f1 f2 h].
    split; cbn [with_slots slots kepts acts cots factor norms counts fine].
    + now apply (glob_same f _ m).
    + now rewrite length_put_at.
    + easy.
    + intros i use' layer. unfold nth_table. rewrite nth_put_at.
      destruct (group_of i =? g) eqn:mine; cbn [andb].
      * apply Nat.eqb_eq in mine. replace (g <? length (slots f)) with true by (symmetry; apply Nat.ltb_lt; lia).
        apply event_ok; try easy.
        -- unfold here. rewrite mine, layer, !Nat.eqb_refl. easy.
        -- intros i' gi li. rewrite <- gi. apply c; [now rewrite gi|congruence].
      * apply (fits_same _ _ t j _ m); [|now apply c]. intros x r. apply A. unfold here. now rewrite mine.
    + intros right r good. destruct (d right r good) as [v [v1 v2]]. exists v. now rewrite E1.
    + rewrite F; exact e1.
    + rewrite F; exact e2.
    + rewrite G; exact f1.
    + rewrite G; exact f2.
    + rewrite D; exact h.
  - intros y r i out. apply A. unfold here. destruct (group_of i =? g) eqn:mine; [|easy].
    apply Nat.eqb_eq in mine. rewrite mine, use in out. cbn [andb] in *. easy.
  - intros u' l' r _. now rewrite E1.
  - intros log u' l' got read. rewrite H in read. now apply log.
  - intros g' out. unfold nth_table. rewrite nth_put_at. destruct (g' =? g) eqn:mine; [|easy].
    apply Nat.eqb_eq in mine. congruence.
Qed.

Lemma forward_ok (f : facts) (m : memory) : u < units p -> inst f m ->
  goes f (after_instr p start now u f Forward) m (at_instr p t j u l m Forward).
Proof.
  intros small known. cbn [after_instr at_instr].
  set (seen := weights_right p u f). set (right := seen && _ && _).
  assert (yes : right = true -> forall r, ok r ->
     count m Stream false r = Some t /\ view p m u l r = ref_view p (weights_at p t) u l /\
     l = k /\ forall x, act m r x = ref_act p t (weights_at p t) x u k).
  { intros all r good. unfold right in all. apply andb_true_iff in all. destruct all as [all here].
    apply andb_true_iff in all. destruct all as [see cur].
    destruct (acts f) eqn:flow; try easy. destruct (in_act _ _ known flow) as [same flows].
    split; [exact (current_ok p t j Stream f m r (in_glob _ _ known) cur good)|]. split; [now apply (view_ok f)|].
    split; [easy|]. intros x; now apply flows. }
  split; [|repeat split]; cbn [slots kepts acts cots factor norms counts fine]; try easy.
  - pose proof known as [a b b' c d e1 e2 f1 f2 h]. split; cbn [slots kepts acts cots factor norms counts fine].
    + now apply (glob_same f _ m).
    + easy.
    + now rewrite length_put_at.
    + intros i use layer. apply (fits_same _ _ t j _ m); [easy|]. now apply c.
    + rewrite nth_put_at. rewrite Nat.eqb_refl. replace (u <? length (kepts f)) with true
        by (symmetry; apply Nat.ltb_lt; rewrite b'; exact small). cbn [andb]. intros all r good.
      destruct (yes all r good) as [A [B [C D]]]. exists (act m r). cbn [kept at_forward].
      rewrite !Nat.eqb_refl. cbn [andb]. rewrite A, B. split; [easy|]. intros x. now rewrite D, C.
    + destruct right; easy.
    + destruct right eqn:all; [|easy]. intros _ r x good. destruct (yes eq_refl r good) as [A [B [C D]]].
      cbn [act at_forward]. rewrite A, B, D. unfold ref_act. cbn [iter]. unfold ref_unit at 1. now rewrite C.
    + easy.
    + easy.
    + easy.
  - intros u' l' r out. cbn. now rewrite out.
  - now apply andb_true_iff in H.
  - apply andb_true_iff in H. destruct H as [_ see]. now apply (logged f m).
  - intros u' apart. rewrite nth_put_at. replace (u' =? u) with false by (symmetry; now apply Nat.eqb_neq). easy.
Qed.

Lemma nth_table_map (F : nat -> table) (g : nat) : g < length (groups p) ->
  nth_table (map F (group_numbers p)) g = F g.
Proof.
  intros small. unfold nth_table, group_numbers.
  rewrite nth_indep with (d' := F 0) by (now rewrite map_length, seq_length).
  rewrite map_nth with (d := 0). now rewrite seq_nth.
Qed.

Lemma coef_same (n : ratio) (x : nat * X) : coef p count_ t (map (fun _ => n) (losses p)) x = mean p count_ t (fst x) n.
Proof.
  unfold coef. rewrite nth_error_map. pose proof (its_loss_small p (snd x)) as small.
  destruct (nth_error (losses p) _) as [y|] eqn:found; [easy|]. apply nth_error_None in found.
  unfold losses in found. rewrite seq_length in found. lia.
Qed.

Lemma take_ok (f : facts) (m : memory) (g : nat) (n : ratio) : g < length (groups p) -> used p u g = true -> inst f m ->
  goes f (after_instr p start now u f (Take g n)) m (at_instr p t j u l m (Take g n)).
Proof.
  intros small use known. cbn [after_instr at_instr].
  set (right := nth u (kepts f) false && _).
  set (m' := at_take p t j u l g n m).
  pose proof known as [a b b' c d e1 e2 f1 f2 h].
  split; [|repeat split]; cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
  - split; cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
    + now apply (glob_same f _ m).
    + now rewrite length_put_at.
    + intros i use' layer. unfold nth_table at 1. rewrite nth_put_at.
      destruct (group_of i =? g) eqn:mine_; cbn [andb].
      * pose proof mine_ as same. apply Nat.eqb_eq in same.
        replace (g <? length (slots f)) with true by (symmetry; apply Nat.ltb_lt; lia).
        apply fits_write; [now rewrite mine_, layer, Nat.eqb_refl|rewrite <- same; now apply c|].
        destruct right eqn:all; [|easy]. destruct (said p now f Now n) as [k'|] eqn:is; [|easy]. unfold right in all.
        apply andb_true_iff in all. destruct all as [kept_ no]. apply negb_true_iff in no.
        change (graded_at p g) with (by_gradient p g) in no.
        assert (says : forall r, ok r -> ratio_of p m t j r n = mean p count_ t j k').
        { intros r good. apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f Now m);
            easy || now apply spoken_ok. }
        assert (one_ : forall r, ok r -> exists v, kept m u l r = Some (t, ref_view p (weights_at p t) u l, v) /\
          forall x, (if its_loss p x =? 0 then statistic u l x (t, ref_view p (weights_at p t) u l, v x) i else
            0%ring) =
            given p t [u] x i).
        { intros r good. destruct (d kept_ r good) as [v [V W]]. exists v. split; [exact V|]. intros x.
          unfold given, contribution; cbn [sum_list]. rewrite same, no, layer. unfold ref_kept. rewrite W.
          destruct (its_loss p x =? 0); ring. }
        change (most_at p g) with (takes_most p g).
        destruct (takes_most p g) eqn:most_.
        -- destruct (ratio_eq k' one) as [->|]; [|easy]. intros r good. cbn [sat forallb]. cbn beta.
           destruct (one_ r good) as [v [V W]]. rewrite V, says, mean_one by easy.
           cbn [Facts.val how un pt from covered].
           unfold join. apply f_equal, f_equal. unfold partial_most, items, mine, of_loss.
           rewrite greatest_map, !greatest_filter.
           transitivity (greatest (batch t j) (fun x => if near (data p) r x then given p t [u] x i else 0%ring));
             [|now apply greatest_ext].
           transitivity (greatest (batch t j) (fun x => if its_loss p x =? 0 then if near (data p) r x then
             statistic u l x (t, ref_view p (weights_at p t) u l, v x) i else 0%ring else 0%ring)); [ring|].
           apply greatest_ext; intros x _. rewrite <- W. now destruct (near (data p) r x), (its_loss p x =? 0).
        -- intros r good. cbn [sat forallb]. cbn beta. destruct (one_ r good) as [v [V W]]. rewrite V, says by easy.
           cbn [Facts.val how un pt from covered]. unfold join. apply f_equal, f_equal.
           unfold partial_sum, items, mine, of_loss. rewrite sum_list_map, !sum_filter.
           transitivity (mean p count_ t j k' * sum_list (batch t j) (fun x => if its_loss p x =? 0 then
             if near (data p) r x then statistic u l x (t, ref_view p (weights_at p t) u l, v x) i else 0 else 0))%ring;
             [ring|].
           rewrite <- sum_list_times. apply sum_list_ext; intros x _. rewrite coef_same. cbn [fst snd].
           rewrite <- W. destruct (near (data p) r x), (its_loss p x =? 0); ring.
      * apply (fits_same _ _ t j _ m); [|now apply c]. intros x r. cbn [held m' at_take write]. rewrite mine_.
        cbn [andb]. now rewrite andb_false_r.
  - intros y r i out. cbn [held m' at_take write].
    destruct ((group_of i =? g) && (layer_of i =? l)) eqn:mine_; [|now rewrite andb_false_r].
    apply andb_true_iff in mine_. destruct mine_ as [mine_ layer]. apply Nat.eqb_eq in mine_.
    rewrite mine_, use, layer in out. easy.
  - intros g' out. unfold nth_table. rewrite nth_put_at. destruct (g' =? g) eqn:mine_; [|easy].
    apply Nat.eqb_eq in mine_. congruence.
Qed.
End Instance.
End Units.
