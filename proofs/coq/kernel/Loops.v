(** Blocks: the loop over a unit's instances, the loss, norms, counters.

    What it backs: the kernel.

    Main statement: [blocks_ok]: behind a list of blocks, what the checker says is true. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Norms.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units Backwards.
From Placealg.kernel Require Import Flags.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Apart.
Open Scope nat_scope.

Section Loops.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.
Hypothesis deep : forall u g, used p u g = true -> depth p u = depth p (hd 0 (sites_of p g)).

Notation fits := (fits p count_).
Notation glob := (glob p).

Record between (t j : nat) (f : facts) (m : memory) : Prop := {
  bt_glob : glob t j f m;
  bt_len : length (slots f) = length (groups p);
  bt_units : length (kepts f) = length (repeated p);
  bt_fit : forall i, covers p i -> fits t j (nth_table (slots f) (group_of i)) m i;
  bt_kept : forall u l, nth u (kepts f) false = true -> l < depth p u -> forall r, ok r -> kept_right p t u l m r;
  bt_act : forall n, acts f = Outside n -> forall r x, ok r -> act m r x = ref_enter p t (weights_at p t) x n;
  bt_cot : forall n, cots f = Outside n -> forall r x, ok r -> cot m r x = ref_leave p t (weights_at p t) x n;
  bt_begun : forall l, cots f = Begun l -> forall r x, ok r -> mem (its_loss p x) l = true ->
    cot m r x = ref_leave p t (weights_at p t) x 0;
  bt_factor : forall n c, nth n (factor f) None = Some c -> forall r, ok r -> scale m n r = mean p count_ t j c
}.

Section Block.
Variables (t j : nat) (start : bool) (now : moment).
Hypothesis starts : start = true -> t = 0.
Hypothesis when_ : when_ok now j.

Definition goes_on (f f' : facts) (m m' : memory) : Prop :=
  between t j f' m' /\ (fine f' = true -> fine f = true /\ (log_ok p t m -> log_ok p t m')).

Section Each.
Variables (u : nat) (reversed : bool) (body : list instr) (f : facts) (m : memory) (a c : flow).
Hypothesis small : u < units p.
Hypothesis good : forallb (good_instr p u) body = true.
Hypothesis known : between t j f m.
Hypothesis a_is : a = Lost \/ a = Entered /\ reversed = false /\ forall r x, ok r -> act m r x = ref_enter p t
  (weights_at p t) x u.
Hypothesis c_is : c = Lost \/ c = Entered /\ reversed = true /\
  forall r x, ok r -> cot m r x = ref_leave p t (weights_at p t) x (units p - 1 - u).
Let f1 := fold_left (after_instr p start now u) body (with_flows f a c).
Hypothesis a_up : kept_up a (acts f1) = true.
Hypothesis c_up : kept_up c (cots f1) = true.

Definition index (l : nat) : nat := if reversed then depth p u - 1 - l else l.
Definition after_n (n : nat) : memory :=
  fold_left (fun m k => fold_left (at_instr p t j u (instance p u reversed k)) body m) (seq 0 n) m.

Record so_far (n : nat) (m' : memory) : Prop := {
  sf_glob : glob t j f m';
  sf_fit : forall i, covers p i -> fits t j (nth_table (slots
    (if used p u (group_of i) && (index (layer_of i) <? n) then f1 else f)) (group_of i)) m' i;
  sf_kept : forall u' l, l < depth p u' -> nth u' (kepts (if (u' =? u) && (index l <? n) then f1 else f)) false =
    true ->
    forall r, ok r -> kept_right p t u' l m' r;
  sf_act : a = Entered -> forall r x, ok r -> act m' r x = ref_act p t (weights_at p t) x u n;
  sf_cot : c = Entered -> forall r x, ok r -> cot m' r x = ref_cot p t (weights_at p t) x u n;
  sf_acts : has_forward body = false -> act m' = act m;
  sf_cots : has_backward body = false -> cot m' = cot m;
  sf_factor : forall n c, nth n (factor f) None = Some c -> forall r, ok r -> scale m' n r = mean p count_ t j c;
  sf_log : fine f1 = true -> log_ok p t m -> log_ok p t m'
}.

Lemma index_instance (l n : nat) : l < depth p u -> n < depth p u -> (index l = n <-> l = instance p u reversed n).
Proof. unfold index, instance. destruct reversed; lia. Qed.

Lemma so_far_ok (n : nat) : n <= depth p u -> so_far n (after_n n).
Proof.
  pose proof known as [g len lenu fit kept_ act_ cot_ begun_ fac].
  induction n as [|n IH]; intros low.
  - cbn. split; try easy.
    + intros i cover. rewrite andb_false_r. now apply fit.
    + intros u' l deep_. rewrite andb_false_r. intros; now apply kept_.
    + intros e r x ok_. destruct a_is as [->|[_ [_ A]]]; [easy|]. now apply A.
    + intros e r x ok_. destruct c_is as [->|[_ [_ A]]]; [easy|]. unfold ref_cot. cbn [iter]. now apply A.
  - specialize (IH ltac:(lia)). unfold after_n in *. rewrite seq_S, fold_left_app. cbn [fold_left Nat.add].
    set (m1 := fold_left _ (seq 0 n) m) in *. set (l := instance p u reversed n).
    assert (l_small : l < depth p u) by (unfold l, instance; destruct reversed; lia).
    assert (l_index : index l = n) by (apply index_instance; [easy|lia|easy]).
    destruct IH as [g' fit' kept' act' cot' acts' cots' fac' log'].
    assert (start_inst : inst p count_ t j u n l (with_flows f a c) m1).
    { split; cbn [with_flows slots kepts acts cots factor norms counts fine].
      - now apply (glob_same p t j f _ m1).
      - easy.
      - easy.
      - intros i use layer. assert (cover : covers p i).
        { split; [now apply (used_small p u)|]. rewrite <- (deep u) by easy. rewrite layer. easy. }
        specialize (fit' i cover). rewrite layer, l_index, Nat.ltb_irrefl, andb_false_r in fit'. exact fit'.
      - intros K1 r ok_. apply (kept' u l l_small); [|easy]. rewrite l_index, Nat.ltb_irrefl, andb_false_r. easy.
      - intros e. destruct a_is as [->|[_ [rev _]]]; [easy|]. split; [unfold l, instance; now rewrite rev|]. now
        apply act'.
      - intros e. destruct a_is as [->|[-> _]]; easy.
      - intros e. destruct c_is as [->|[_ [rev _]]]; [easy|]. split; [unfold l, instance; now rewrite rev|]. now
        apply cot'.
      - intros e. destruct c_is as [->|[-> _]]; easy.
      - exact fac'. }
    destruct (body_ok p count_ count_pos micro_pos counts_equal data_once t j start now u n l starts when_ ltac:(lia)
      body _ m1 small good start_inst) as [new [fr [fin [N [C [F [T U]]]]]]].
    fold f1 in new, fin, N, C, F, T, U. cbn [with_flows slots kepts acts cots factor norms counts fine] in *.
    set (m2 := fold_left _ body m1) in *.
    destruct new as [ng nlen nlenu nfit nkept nact nacted ncot ncotted nfac].
    split.
    + now apply (glob_same p t j f1 f m2).
    + intros i cover. destruct (used p u (group_of i)) eqn:use; cbn [andb].
      * assert (layer_small : layer_of i < depth p u) by (rewrite (deep u _ use); apply cover).
        destruct (layer_of i =? l) eqn:layer.
        -- apply Nat.eqb_eq in layer. rewrite layer, l_index. replace (n <? S n) with true by (symmetry; apply
          Nat.ltb_lt; lia).
           now apply nfit.
        -- assert (same : (index (layer_of i) <? S n) = (index (layer_of i) <? n)).
           { apply Nat.eqb_neq in layer. pose proof (index_instance (layer_of i) n layer_small ltac:(lia)) as eqv.
             fold l in eqv.
             apply eq_true_iff_eq. rewrite !Nat.ltb_lt. split; intros; [|lia].
             destruct (Nat.eq_dec (index (layer_of i)) n); [tauto|lia]. }
           rewrite same. specialize (fit' i cover). rewrite use in fit'. cbn [andb] in fit'.
           eapply fits_same; [|exact fit']. intros x r. apply fr. now rewrite use, layer.
      * specialize (fit' i cover). rewrite use in fit'. cbn [andb] in fit'.
        eapply fits_same; [|exact fit']. intros x r. apply fr. now rewrite use.
    + intros u' l' small' K1 r ok_. destruct (u' =? u) eqn:mine; cbn [andb] in K1.
      * apply Nat.eqb_eq in mine. subst u'. destruct (l' =? l) eqn:layer.
        -- apply Nat.eqb_eq in layer. subst l'. rewrite l_index in K1.
           replace (n <? S n) with true in K1 by (symmetry; apply Nat.ltb_lt; lia). now apply nkept.
        -- assert (same : (index l' <? S n) = (index l' <? n)).
           { apply Nat.eqb_neq in layer. pose proof (index_instance l' n small' ltac:(lia)) as eqv. fold l in eqv.
             apply eq_true_iff_eq. rewrite !Nat.ltb_lt. split; intros; [|lia].
             destruct (Nat.eq_dec (index l') n); [tauto|lia]. }
           rewrite same in K1. specialize (kept' u l' small'). rewrite Nat.eqb_refl in kept'. cbn [andb] in kept'.
           destruct (kept' K1 r ok_) as [v V]. exists v. rewrite (fr_kept _ _ _ _ _ fr); [easy|]. now rewrite
             layer, andb_false_r.
      * specialize (kept' u' l' small'). rewrite mine in kept'. cbn [andb] in kept'.
        destruct (kept' K1 r ok_) as [v V]. exists v. rewrite (fr_kept _ _ _ _ _ fr); [easy|]. now rewrite mine.
    + intros e r x ok_. apply nacted; [|easy]. rewrite e in a_up. cbn in a_up. destruct (acts f1); easy.
    + intros e r x ok_. apply ncotted; [|easy]. rewrite e in c_up. cbn in c_up. destruct (cots f1); easy.
    + intros none. unfold m2. rewrite body_act by easy. now apply acts'.
    + intros none. unfold m2. rewrite body_cot by easy. now apply cots'.
    + intros n' s found r ok_. rewrite (fr_scale _ _ _ _ _ fr). now apply fac'.
    + intros fine_ log. apply fin; [easy|]. now apply log'.
Qed.

Lemma each_ok : goes_on f
  (with_flows f1 (if has_forward body then leaving a (Outside (S u)) else acts f)
                 (if has_backward body then leaving c (Outside (units p - u)) else cots f))
  m (after_n (depth p u)).
Proof.
  destruct (body_apart p start now u body (with_flows f a c) good) as [A [B [C [D [E1 [F [G H]]]]]]].
  fold f1 in A, B, C, D, E1, F, G, H. cbn [with_flows slots kepts acts cots factor norms counts fine] in *.
  pose proof known as [g len lenu fit kept_ act_ cot_ begun_ fac].
  destruct (so_far_ok (depth p u) (Nat.le_refl _)) as [g' fit' kept' act' cot' acts' cots' fac' log'].
  split; [split|]; cbn [with_flows slots kepts acts cots factor norms counts fine].
  - now apply (glob_same p t j f _ (after_n (depth p u))).
  - auto.
  - congruence.
  - intros i cover. specialize (fit' i cover). destruct (used p u (group_of i)) eqn:use; cbn [andb] in fit'.
    + assert (layer_small : layer_of i < depth p u) by (rewrite (deep u _ use); apply cover).
      replace (index (layer_of i) <? depth p u) with true in fit'; [exact fit'|].
      symmetry. apply Nat.ltb_lt. unfold index. destruct reversed; lia.
    + rewrite H; [exact fit'|exact len|exact use].
  - intros u' l K1 small' r ok_. apply kept'; [easy| |easy]. destruct (u' =? u) eqn:mine; cbn [andb].
    + apply Nat.eqb_eq in mine. subst u'. replace (index l <? depth p u) with true; [exact K1|].
      symmetry. apply Nat.ltb_lt. unfold index. destruct reversed; lia.
    + rewrite G in K1; [exact K1|]. now apply Nat.eqb_neq.
  - intros n. destruct (has_forward body) eqn:fw.
    + destruct a; try easy. cbn [leaving]. intros [= <-] r x ok_. cbn [ref_enter]. now rewrite act'.
    + intros e r x ok_. rewrite acts' by easy. now apply act_.
  - intros n. destruct (has_backward body) eqn:bw.
    + destruct c; try easy. cbn [leaving]. intros [= <-] r x ok_. rewrite cot' by easy. unfold ref_cot.
      unfold units in *. replace (length (repeated p) - u) with (S (length (repeated p) - 1 - u)) by lia. cbn
        [ref_leave].
      replace (length (repeated p) - 1 - (length (repeated p) - 1 - u)) with u by lia. easy.
    + intros e r x ok_. rewrite cots' by easy. now apply cot_.
  - intros l0. destruct (has_backward body) eqn:bw.
    + now destruct c.
    + intros e r x ok_. rewrite cots' by easy. now apply begun_.
  - intros n s found. apply fac'. now rewrite C in found.
  - intros fine_. split; [auto|]. now apply log'.
Qed.
End Each.

Lemma flows_lost (f : facts) (m : memory) : between t j f m -> between t j (with_flows f Lost Lost) m.
Proof. intros [a b c d e g h h' i]. split; cbn; try easy. destruct a; now split. Qed.

Lemma loss_begun (n : nat) (f : facts) (m : memory) : between t j f m -> acts f = Outside (units p) ->
  forall r x, ok r ->
  mem (its_loss p x) (n :: match cots f with Begun l => l | Outside 0 => losses p | _ => [] end) = true ->
  (if its_loss p x =? n then seed x (act m r x) else cot m r x) = ref_leave p t (weights_at p t) x 0.
Proof.
  intros known flow r x ok_ inside. destruct (its_loss p x =? n) eqn:same.
  - cbn [ref_leave]. now rewrite (bt_act _ _ _ _ known _ flow r x ok_).
  - unfold mem in inside. cbn [existsb] in inside. rewrite same in inside. cbn [orb] in inside.
    destruct (cots f) as [|[|d]| | |l] eqn:old; try easy.
    + now apply (bt_cot _ _ _ _ known _ old).
    + now apply (bt_begun _ _ _ _ known _ old).
Qed.

Lemma block_ok (b : block) (f : facts) (m : memory) : good_block p b = true -> between t j f m ->
  goes_on f (after_block p start now f b) m (at_block p t j m b).
Proof.
  intros good known. pose proof known as [g len lenu fit kept_ act_ cot_ begun_ fac].
  destruct b as [u reversed body|n k|n k|n x q|along|n x q|along|n each|n along|c d firsts|c along];
    cbn [after_block at_block good_block] in *.
  - apply andb_true_iff in good. destruct good as [small good]. apply Nat.ltb_lt in small.
    set (a := if has_forward body && negb reversed then _ else Lost).
    set (c := if has_backward body && reversed then _ else Lost).
    assert (a_is : a = Lost \/ a = Entered /\ reversed = false /\
      forall r x, ok r -> act m r x = ref_enter p t (weights_at p t) x u).
    { unfold a, entering. destruct (has_forward body); [|now left]. destruct reversed; [now left|]. cbn [andb negb].
      destruct (flow_eq (acts f) (Outside u)) as [e|]; [|now left]. right. split; [easy|]. split; [easy|]. now
        apply act_. }
    assert (c_is : c = Lost \/ c = Entered /\ reversed = true /\
      forall r x, ok r -> cot m r x = ref_leave p t (weights_at p t) x (units p - 1 - u)).
    { unfold c, entering. destruct (has_backward body); [|now left]. destruct reversed; [|now left]. cbn [andb].
      destruct (flow_eq (cots f) (Outside (units p - 1 - u))) as [e|]; [|now left]. right. split; [easy|]. split;
        [easy|].
      now apply cot_. }
    destruct (kept_up a _ && kept_up c _) eqn:up.
    + apply andb_true_iff in up. destruct up as [a_up c_up].
      exact (each_ok u reversed body f m a c small good known a_is c_is a_up c_up).
    + assert (L : Lost = Lost \/ Lost = Entered /\ reversed = false /\
        forall r x, ok r -> act m r x = ref_enter p t (weights_at p t) x u) by now left.
      assert (L' : Lost = Lost \/ Lost = Entered /\ reversed = true /\
        forall r x, ok r -> cot m r x = ref_leave p t (weights_at p t) x (units p - 1 - u)) by now left.
      pose proof (each_ok u reversed body f m Lost Lost small good known L L' eq_refl eq_refl) as R.
      cbn [leaving] in R. exact R.
  - destruct now eqn:when; split; try (split; [easy|]; intros log u l got read; now apply log);
      split; cbn [slots kepts acts cots factor norms counts fine]; try easy; try (now destruct g; split);
      try (intros n' s found r ok_; cbn [scale];
        apply (factor_put n n' s None (factor f) (fun n => scale m n r) _ _ found); [intros is; now apply fac|easy]).
    + intros n' e r x ok_. unfold after_loss in e. destruct (flow_eq _ _) as [flow|]; [|easy].
      destruct (inside_of (losses p) _) eqn:all; [|easy]. injection e as <-.
      apply (loss_begun n f m known flow); [easy|]. unfold inside_of in all. rewrite forallb_forall in all.
      apply all. unfold losses. apply in_seq. pose proof (its_loss_small p x). lia.
    + intros l0 e r x ok_ inside. unfold after_loss in e. destruct (flow_eq _ _) as [flow|]; [|easy].
      destruct (inside_of (losses p) _) eqn:all; [easy|]. injection e as <-.
      now apply (loss_begun n f m known flow).
    + intros n' s found r ok_. cbn [scale].
      apply (factor_put n n' s _ (factor f) (fun n => scale m n r) _ _ found); [intros is; now apply fac|]. intros is.
      apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j Amid f Now m); try easy.
      now apply spoken_ok.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy; try (now destruct g; split).
    intros n' s found r ok_. cbn [scale].
    apply (factor_put n n' s _ (factor f) (fun n => scale m n r) _ _ found); [intros is; now apply fac|]. intros is.
    destruct (nth n (factor f) None) as [s0|] eqn:old; [|easy]. destruct (said p now f Now k) as [k'|] eqn:is'; [|easy].
    injection is as <-. rewrite times_ok by easy. rewrite (fac n s0 old r ok_).
    rewrite (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f Now m r k k');
      easy || (now apply spoken_ok) || ring.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine partial count]; try easy.
    + now rewrite length_put_at.
    + intros g' q1 found l r small ok_. apply nth_error_put_at in found. destruct found as [[-> new]|[apart_ old]].
      * rewrite Nat.eqb_refl. destruct (get (nth_table (slots f) n) x) as [| |co_ q' o] eqn:K1; try easy.
        destruct (whole p now n co_ && (o || within q q')) eqn:can; [|easy]. injection new as ->.
        apply andb_true_iff in can. destruct can as [right either].
        f_equal. unfold norm_sum. apply sum_list_ext. intros i inside. unfold part in inside. apply filter_In in
          inside.
        destruct inside as [_ inside]. apply andb_true_iff in inside. destruct inside as [gi li].
        apply Nat.eqb_eq in gi, li.
        assert (cover : covers p i).
        { split; [rewrite gi; now apply Nat.ltb_lt|]. now rewrite gi, li. }
        pose proof (fit i cover x) as H. rewrite gi, K1 in H. specialize (H r ok_). cbn beta in H. rewrite sat_union.
        destruct (sat q r i) eqn:inq; cbn [andb]; [|easy].
        destruct (sat q' r i) eqn:in'.
        -- rewrite H, (whole_ok p count_ count_pos micro_pos counts_equal data_once t j now n) by easy. reflexivity.
        -- apply orb_true_iff in either. destruct either as [->|in_]; [now rewrite H|].
           now rewrite (within_ok _ _ _ _ in_ inq) in in'.
      * replace (g' =? n) with false by (symmetry; now apply Nat.eqb_neq). now apply N.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine partial count]; try easy.
    + now rewrite map_length.
    + intros g' q1 found l r small ok_. rewrite nth_error_map in found.
      destruct (nth_error (norms f) g') as [[q0|]|] eqn:old; cbn [option_map] in found; try easy.
      * injection found as found. change (fold_right norm_step (Some q0) along = Some q1) in found.
        rewrite (together_all _ _ _ (norm_sum (part g' l) q0 (fun i => measure i (grad_at p t i)))).
        -- f_equal. unfold join. now apply sum_norm.
        -- intros r' peer. apply N; [easy|easy|]. eapply peers_ok; eassumption.
      * injection found as found. exfalso. clear - found. revert q1 found.
        induction along as [|b l0 IH]; intros q1; cbn [fold_right]; [easy|].
        fold norm_step. destruct (fold_right norm_step None l0) as [q2|] eqn:rest; [|easy]. now specialize (IH q2).
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine flag]; try easy.
    intros g' q1 found l r small ok_. cbn [tell_looked looked] in found. rewrite nth_put_at in found.
    destruct (g' =? n) eqn:mine; cbn [andb] in found; [|now apply Z]. apply Nat.eqb_eq in mine. subst g'.
    destruct (n <? length (looked (counts f))) eqn:in_; [|now rewrite nth_overflow in found by (now apply
      Nat.ltb_ge)].
    destruct (get (nth_table (slots f) n) x) as [| |co_ q' o] eqn:K1; try easy.
    destruct (whole p now n co_ && (o || within q q')) eqn:can; [|easy]. injection found as <-.
    apply andb_true_iff in can. destruct can as [right either].
    f_equal. apply existsb_same. intros i inside. unfold part in inside. apply filter_In in inside.
    destruct inside as [_ inside]. apply andb_true_iff in inside. destruct inside as [gi li].
    apply Nat.eqb_eq in gi, li.
    assert (cover : covers p i).
    { split; [rewrite gi; now apply Nat.ltb_lt|]. now rewrite gi, li. }
    pose proof (fit i cover x) as H. rewrite gi, K1 in H. specialize (H r ok_). cbn beta in H. rewrite sat_union.
    destruct (sat q r i) eqn:inq; cbn [andb]; [|easy].
    destruct (sat q' r i) eqn:in'.
    + rewrite H, (whole_ok p count_ count_pos micro_pos counts_equal data_once t j now n) by easy. reflexivity.
    + apply orb_true_iff in either. destruct either as [->|within_]; [now rewrite H|].
      now rewrite (within_ok _ _ _ _ within_ inq) in in'.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine flag]; try easy.
    intros g' q1 found l r small ok_. cbn [tell_looked looked] in found.
    change (nth g' (map (fun n => fold_right look_step n along) (looked (counts f))) None = Some q1) in found.
    destruct (nth g' (looked (counts f)) None) as [q0|] eqn:old.
    + assert (step_ : fold_right look_step (Some q0) along = Some q1).
      { destruct (lt_dec g' (length (looked (counts f)))) as [in_|out].
        - rewrite nth_indep with (d' := fold_right look_step None along) in found by now rewrite map_length.
          rewrite (map_nth (fun n => fold_right look_step n along)) in found. now rewrite old in found.
        - rewrite nth_overflow in old by lia. easy. }
      rewrite (largest_all _ _ (fun r => existsb (fun i => sat q0 r i && overflows i (grad_at p t i)) (part g' l))).
      * f_equal. now apply look_max.
      * intros r' peer. apply Z; [easy|easy|]. eapply peers_ok; eassumption.
    + exfalso. assert (none : fold_right look_step None along = None).
      { clear. induction along as [|b l0 IH]; [easy|]. cbn [fold_right]. now rewrite IH. }
      destruct (lt_dec g' (length (looked (counts f)))) as [in_|out].
      * rewrite nth_indep with (d' := fold_right look_step None along) in found by now rewrite map_length.
        rewrite (map_nth (fun n => fold_right look_step n along)), old, none in found. easy.
      * rewrite nth_overflow in found by (rewrite map_length; lia). easy.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine partial count tally]; try
      easy.
    intros n' e un found r ok_. cbn [tell_tally tallied] in found.
      apply (told_put n n' (e, un) _ (tallied (counts f)) (fun n => tally m n r)
        (fun n => length (filter (near un r) (counted p n t j e))) _ found).
    + intros is. now apply Y.
    + now intros [= <- <-].
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine partial count tally]; try
      easy.
    intros n' e un found r ok_. cbn [tell_tally tallied] in found.
      apply (told_put n n' (e, un) _ (tallied (counts f)) (fun n => tally m n r)
        (fun n => length (filter (near un r) (counted p n t j e))) _ found).
    { intros is. now apply Y. }
    clear found. intros found.
    change (fold_right tally_step (nth n (tallied (counts f)) None) along = Some (e, un)) in found.
    destruct (nth n (tallied (counts f)) None) as [[e0 un0]|] eqn:known_.
    + destruct (count_summed (counted p n t j e) along un0 un e0 e r found) as [-> <-].
      f_equal. apply map_ext_in. intros r' peer.
      apply Y; [easy|]. eapply peers_ok; eassumption.
    + exfalso. clear - found. revert e un found.
      induction along as [|b l0 IH]; intros e un; cbn [fold_right]; [easy|].
      destruct (fold_right tally_step None l0) as [[e1 q]|]; [|easy]. now specialize (IH e1 q).
  - split; [|split; [now destruct d, firsts|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    pose proof g as of_all. destruct g as [C L N Y Z].
    split; cbn [slots kepts acts cots factor norms counts fine partial count]; try easy.
    + intros c' disk. apply tick_ok; [exact C|easy|now destruct c|].
      intros sure r ok_. destruct c; [|easy|]; cbn [counter_eqb] in *; rewrite orb_false_r in sure;
        rewrite (decided_ok p t j f m r of_all sure ok_); [|reflexivity].
      cbn [andb ticks_of advance]. rewrite updates_next. now destruct (left_out p t _).
    + intros n e un found. apply Y. destruct (counts f), c, d, firsts; exact found.
    + intros n q found. apply Z. destruct (counts f), c, d, firsts; exact found.
  - split; [|split; [easy|]; intros log u l got read; now apply log].
    split; cbn [slots kepts acts cots factor norms counts fine]; try easy.
    destruct g as [C L N Y Z]. split; cbn [slots kepts acts cots factor norms counts fine partial count]; try easy.
    + intros c' disk. now apply share_ok.
    + intros n e un found. apply Y. destruct (counts f), c; exact found.
    + intros n q found. apply Z. destruct (counts f), c; exact found.
Qed.

Lemma blocks_ok (l : list block) (f : facts) (m : memory) : forallb (good_block p) l = true -> between t j f m ->
  goes_on f (after p start now l f) m (run_blocks p t j l m).
Proof.
  revert f m; induction l as [|b l IH]; intros f m good known; [now split|]. cbn [forallb] in good.
  apply andb_true_iff in good. destruct good as [this rest]. unfold after, run_blocks. cbn [fold_left].
  destruct (block_ok b f m this known) as [B1 B2].
  destruct (IH _ _ rest B1) as [C1 C2]. split; [exact C1|]. intros fine_. destruct (C2 fine_) as [F L].
  destruct (B2 F) as [F' L']. auto.
Qed.
End Block.
End Loops.
