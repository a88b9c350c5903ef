(** What happens to one instance of a unit: its weights are read, activations flow, gradients appear.

    What it backs: the kernel.

    Main statement: [body_ok]: behind the events of one instance, what the checker says of it is true. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling.
From Placealg.kernel Require Import Facts.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
Open Scope nat_scope.

Section Units.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat) (count_pos : 0 < count_) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall t j r, j < micro -> ok r -> length (local p t j r) = count_.
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
  in_glob : glob t f m;
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
  in_factor : forall c, factor f = Some c -> forall r, ok r -> scale m r = mean p count_ t c
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
  partial m' = partial m -> count m' = count m -> tally m' = tally m /\ flag m' = flag m -> glob t f m -> glob t f' m'.
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
    split; [exact (current_ok p t Stream f m r (in_glob _ _ known) cur good)|]. split; [now apply (view_ok f)|].
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

Lemma take_ok (f : facts) (m : memory) (g : nat) (n : ratio) : g < length (groups p) -> used p u g = true -> inst f m ->
  goes f (after_instr p start now u f (Take g n)) m (at_instr p t j u l m (Take g n)).
Proof.
  intros small use known. cbn [after_instr at_instr].
  set (right := nth u (kepts f) false && _ && _).
  set (m' := at_take p t j u l g n m).
  pose proof known as [a b b' c d e1 e2 f1 f2 h].
  split; [|repeat split]; cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
  - split; cbn [with_slots slots kepts acts cots factor norms counts fine]; try easy.
    + now apply (glob_same f _ m).
    + now rewrite length_put_at.
    + intros i use' layer. unfold nth_table at 1. rewrite nth_put_at.
      destruct (group_of i =? g) eqn:mine; cbn [andb].
      * pose proof mine as same. apply Nat.eqb_eq in same.
        replace (g <? length (slots f)) with true by (symmetry; apply Nat.ltb_lt; lia).
        apply fits_write; [now rewrite mine, layer, Nat.eqb_refl|rewrite <- same; now apply c|].
        destruct right eqn:all; [|easy]. unfold right in all. apply andb_true_iff in all. destruct all as [all said].
        apply andb_true_iff in all. destruct all as [kept_ no]. apply negb_true_iff in no.
        change (graded_at p g) with (by_gradient p g) in no.
        intros r good. cbn [sat forallb]. cbn beta.
        destruct (d kept_ r good) as [v [V W]]. rewrite V. cbn [Facts.val co un pt from covered].
        rewrite times_ok, mean_one by easy.
        rewrite (ratio_ok p count_ counts_equal t j now f m r n) by (easy || now apply spoken_ok).
        apply f_equal, f_equal. unfold given; cbn [sum_list].
        transitivity (mean p count_ t n * sum_list (local p t j r)
          (fun x => statistic u l x (t, ref_view p (weights_at p t) u l, v x) i))%ring; [ring|].
        transitivity (mean p count_ t n * partial_sum (batch t j) (data p)
          (fun x => (contribution p t (weights_at p t) u (layer_of i) x i + 0)%ring) r)%ring; [|ring].
        f_equal. unfold partial_sum, local. rewrite sum_filter. apply sum_list_ext; intros x _.
        destruct (near (data p) r x); [|easy]. unfold contribution. rewrite same, no, layer. unfold ref_kept.
        rewrite W. ring.
      * apply (fits_same _ _ t j _ m); [|now apply c]. intros x r. cbn [held m' at_take write]. rewrite mine.
        cbn [andb]. now rewrite andb_false_r.
  - intros y r i out. cbn [held m' at_take write].
    destruct ((group_of i =? g) && (layer_of i =? l)) eqn:mine; [|now rewrite andb_false_r].
    apply andb_true_iff in mine. destruct mine as [mine layer]. apply Nat.eqb_eq in mine. rewrite mine, use, layer in
      out. easy.
  - intros g' out. unfold nth_table. rewrite nth_put_at. destruct (g' =? g) eqn:mine; [|easy].
    apply Nat.eqb_eq in mine. congruence.
Qed.

Lemma backward_ok (own : list ratio) (f : facts) (m : memory) : u < units p -> inst f m ->
  goes f (after_instr p start now u f (Backward own)) m (at_instr p t j u l m (Backward own)).
Proof.
  intros small known. cbn [after_instr at_instr].
  set (seen := weights_right p u f). set (right := seen && _ && _ && _).
  set (y := At Grad Device). set (m' := at_backward p t j u l own m).
  assert (same_ : right = true -> forall r, ok r -> forallb (fun k => if number_dec (ratio_of p m t j r k) (scale m r)
    then true else false) own = true).
  { intros all r good. unfold right in all. repeat (apply andb_true_iff in all; destruct all as [all ?]).
    unfold own_right in *. rewrite forallb_forall in *. intros n inside_. specialize (H1 n inside_).
    destruct (factor f) as [s|] eqn:found; [|easy]. apply andb_true_iff in H1. destruct H1 as [said same].
    destruct (ratio_eq (times n one) s) as [<-|]; [|easy]. destruct (number_dec _ _) as [|apart_]; [easy|].
    exfalso. apply apart_. rewrite (in_factor _ _ known _ found r good), times_ok, mean_one by easy.
    rewrite (ratio_ok p count_ counts_equal t j now f m r n) by (easy || apply spoken_ok, known). ring. }
  assert (yes : right = true -> forall r, ok r ->
     view p m u l r = ref_view p (weights_at p t) u l /\ kept_right t u l m r /\
     l = depth p u - 1 - k /\ forall x, cot m r x = ref_cot p t (weights_at p t) x u k).
  { intros all r good. unfold right in all. apply andb_true_iff in all. destruct all as [all here].
    apply andb_true_iff in all. destruct all as [see kept_]. apply andb_true_iff in see. destruct see as [see _].
    destruct (cots f) eqn:flow; try easy. destruct (in_cot _ _ known flow) as [same flows].
    split; [now apply (view_ok f)|]. split; [now apply (in_kept _ _ known)|].
    split; [easy|]. intros x; now apply flows. }
  assert (late : l = depth p u - 1 - k -> depth p u - 1 - l = k) by lia.
  split; [|repeat split]; cbn [slots kepts acts cots factor norms counts fine]; try easy.
  - pose proof known as [a b b' c d e1 e2 f1 f2 h]. split; cbn [slots kepts acts cots factor norms counts fine].
    + now apply (glob_same f _ m).
    + unfold group_numbers. now rewrite map_length, seq_length.
    + easy.
    + intros i use layer. rewrite nth_table_map by now apply (used_small u).
      change (uses p u (group_of i)) with (used p u (group_of i)). rewrite use.
      change (graded_at p (group_of i)) with (by_gradient p (group_of i)). cbn [andb].
      destruct (by_gradient p (group_of i)) eqn:learns.
      2: { apply (fits_same _ _ t j _ m); [|now apply c]. intros x r. cbn [held m' at_backward].
           now rewrite learns, !andb_false_r. }
      eapply fits_set; [|now apply c|].
      { intros x r. cbn [held m' at_backward]. rewrite use, layer, learns, Nat.eqb_refl. cbn [andb]. rewrite
        andb_true_r.
        reflexivity. }
      unfold deposited. destruct right eqn:all; [|easy]. destruct (factor f) as [s|] eqn:sc; [|easy].
      assert (found : forall r, ok r -> exists v, kept m u l r = Some v /\
        (scale m r * sum_list (local p t j r) (fun x => gamma u l x
           (let from := match v with (n, s, a) => (n, s, a x) end in from) (view p m u l r) (cot m r x) i))%ring
        = (mean p count_ t s * partial_sum (batch t j) (data p) (fun x => contribution p t (weights_at p t) u l x i)
          r)%ring).
      { intros r good. destruct (yes eq_refl r good) as [A [[v [B1 B2]] [C D]]]. eexists; split; [exact B1|].
        rewrite (h s eq_refl r good). f_equal. unfold partial_sum, local. rewrite sum_filter. apply sum_list_ext;
          intros x _.
        destruct (near (data p) r x); [|easy]. unfold contribution, ref_kept. rewrite learns. cbn zeta.
        now rewrite A, B2, D, late. }
      destruct (last (sites_at p (group_of i)) 0 =? u) eqn:first.
      * intros r good. cbn [sat forallb]. change (sites_at p) with (sites_of p) in first. cbn beta.
        rewrite first, (same_ eq_refl r good). destruct (found r good) as [[[n s'] v] [B1 B2]]. rewrite B1.
        cbn [Facts.val co un pt from covered]. apply f_equal, f_equal. cbn zeta in B2. unfold given; cbn [sum_list].
        transitivity (scale m r * sum_list (local p t j r) (fun x => gamma u l x (n, s', v x) (view p m u l r) (cot
          m r x) i))%ring.
        { reflexivity. }
        rewrite B2. f_equal. unfold partial_sum. apply sum_list_ext; intros x _. destruct (near (data p) r x);
          [|easy].
        rewrite layer. ring.
      * pose proof (c i use layer y) as old. fold y.
        destruct (get (nth_table (slots f) (group_of i)) y) as [| |[| | |s0| |] [|] o]; try easy.
        destruct (terms_eq s0 _) as [same|]; [|easy].
        intros r good. cbn [sat forallb]. change (sites_at p) with (sites_of p) in first. cbn beta.
        specialize (old r good). cbn [sat forallb] in old. cbn beta in old.
        rewrite first, (same_ eq_refl r good). destruct (found r good) as [[[n s'] v] [B1 B2]]. rewrite B1, old.
        cbn [Facts.val].
        rewrite same. cbn [co un pt from covered].
        apply f_equal, f_equal. cbn zeta in B2.
        transitivity (mean p count_ t s * partial_sum (batch t j) (data p) (fun x => given p t (from s0) x i) r +
          scale m r * sum_list (local p t j r) (fun x => gamma u l x (n, s', v x) (view p m u l r) (cot m r x)
            i))%ring;
          [reflexivity|].
        rewrite B2. transitivity (mean p count_ t s * (partial_sum (batch t j) (data p) (fun x => given p t (from s0) x
          i) r +
          partial_sum (batch t j) (data p) (fun x => contribution p t (weights_at p t) u l x i) r))%ring; [ring|].
        f_equal. unfold partial_sum. rewrite <- sum_list_plus. apply sum_list_ext; intros x _.
        destruct (near (data p) r x); [|ring]. unfold given; cbn [sum_list]. rewrite layer. ring.
    + intros all r good. destruct (d all r good) as [v V]. now exists v.
    + exact e1.
    + exact e2.
    + destruct right; easy.
    + destruct right eqn:all; [|easy]. intros _ r x good. destruct (yes eq_refl r good) as [A [[v [B1 B2]] [C D]]].
      cbn [cot m' at_backward]. rewrite (same_ eq_refl r good), A, B1, B2, D. unfold ref_cot. cbn [iter].
      unfold ref_back at 2. unfold ref_kept.
      now rewrite <- C.
    + easy.
  - intros y' r i out. cbn [held m' at_backward]. rewrite out. cbn [andb]. now rewrite andb_false_r.
  - now apply andb_true_iff in H.
  - apply andb_true_iff in H. destruct H as [_ see]. now apply (logged f m).
  - intros g out. destruct (lt_dec g (length (groups p))) as [in_|out'].
    + rewrite nth_table_map by easy. change (uses p u g) with (used p u g). now rewrite out.
    + unfold nth_table. rewrite !nth_overflow; [easy| |].
      * pose proof (in_len _ _ known). lia.
      * unfold group_numbers. rewrite map_length, seq_length. lia.
Qed.

Lemma goes_trans f f' f'' m m' m'' : goes f f' m m' -> goes f' f'' m' m'' -> goes f f'' m m''.
Proof.
  intros [a [b [c [d [e [g [h i]]]]]]] [a' [b' [c' [d' [e' [g' [h' i']]]]]]].
  split; [easy|]. split; [eapply frame_trans; eassumption|]. split.
  - intros fine_. destruct (c' fine_) as [F L]. destruct (c F) as [F' L']. auto.
  - repeat split; try congruence; intros; [rewrite h', h|rewrite i', i]; easy.
Qed.

Lemma body_ok (body : list instr) (f : facts) (m : memory) : u < units p -> forallb (good_instr p u) body = true ->
  inst f m ->
  goes f (fold_left (after_instr p start now u) body f) m (fold_left (at_instr p t j u l) body m).
Proof.
  intros small. revert f m; induction body as [|e body IH]; intros f m good known.
  - cbn. split; [easy|]. split; [apply frame_refl|]. easy.
  - cbn [fold_left]. cbn [forallb] in good. apply andb_true_iff in good. destruct good as [this rest].
    assert (step : goes f (after_instr p start now u f e) m (at_instr p t j u l m e)).
    { destruct e as [g e| |own|g n]; [|now apply forward_ok|now apply backward_ok|];
        cbn [good_instr] in this; apply andb_true_iff in this; destruct this as [in_ use]; apply Nat.ltb_lt in in_;
        [now apply on_ok|now apply take_ok]. }
    eapply goes_trans; [exact step|]. apply IH; [easy|]. apply step.
Qed.

(** Without a forward activations stay, without a backward what flows back stays. *)
Lemma body_act (body : list instr) (m : memory) : has_forward body = false ->
  act (fold_left (at_instr p t j u l) body m) = act m.
Proof.
  revert m; induction body as [|e body IH]; intros m none; [easy|]. cbn [fold_left]. unfold has_forward in *.
  cbn [existsb] in none. apply orb_false_iff in none. destruct none as [this rest]. rewrite IH by easy.
  destruct e as [g e| |own|g n]; try easy. apply event_frame.
Qed.
Lemma body_cot (body : list instr) (m : memory) : has_backward body = false ->
  cot (fold_left (at_instr p t j u l) body m) = cot m.
Proof.
  revert m; induction body as [|e body IH]; intros m none; [easy|]. cbn [fold_left]. unfold has_backward in *.
  cbn [existsb] in none. apply orb_false_iff in none. destruct none as [this rest]. rewrite IH by easy.
  destruct e as [g e| |own|g n]; try easy. apply event_frame.
Qed.
End Instance.
End Units.
