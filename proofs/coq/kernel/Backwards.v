(** What happens to one instance of a unit, continued: backward, and all events of an instance.

    What it backs: the kernel.

    Main statement: [body_ok]: behind the events of one instance, what the checker says of it is true. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Maxima.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units.
Open Scope nat_scope.

Section Backwards.
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

Lemma everything_nth {V : Type} (l : list (option V)) (c : list V) : everything l = Some c -> forall n, n < length l ->
  exists k, nth_error c n = Some k /\ nth n l None = Some k.
Proof.
  revert c; induction l as [|[v|] l IH]; intros c all n small; cbn in *; [lia| |easy].
  destruct (everything l) as [c'|]; [|easy]. injection all as <-. destruct n as [|n]; [now exists v|].
  apply (IH c' eq_refl). lia.
Qed.

Lemma put_read {V : Type} (n n' : nat) (v : option V) (l : list (option V)) (x : V) :
  nth n' (put_at n v l) None = Some x -> (n' = n /\ v = Some x) \/ (n' <> n /\ nth n' l None = Some x).
Proof.
  rewrite nth_put_at. destruct (n' =? n) eqn:same; cbn [andb].
  - apply Nat.eqb_eq in same. subst. destruct (n <? length l) eqn:in_; [now left|].
    rewrite nth_overflow by (now apply Nat.ltb_ge). easy.
  - apply Nat.eqb_neq in same. now right.
Qed.

Lemma factor_put (n n' : nat) (c : ratio) (v : option ratio) (l : list (option ratio)) (f : nat -> K) (k a : K) :
  nth n' (put_at n v l) None = Some c -> (nth n' l None = Some c -> f n' = k) -> (v = Some c -> a = k) ->
  (if n' =? n then a else f n') = k.
Proof.
  intros found old new. apply put_read in found. destruct found as [[-> is]|[apart_ is]].
  - rewrite Nat.eqb_refl. auto.
  - replace (n' =? n) with false by (symmetry; now apply Nat.eqb_neq). auto.
Qed.

Lemma told_put {V : Type} (n n' : nat) (un : V) (v : option V) (l : list (option V))
    (P : nat -> nat) (F : nat -> nat) (a : nat) :
  nth n' (put_at n v l) None = Some un -> (nth n' l None = Some un -> P n' = F n') -> (v = Some un -> a = F n) ->
  (if n' =? n then a else P n') = F n'.
Proof.
  intros found old new. apply put_read in found. destruct found as [[-> is]|[apart_ is]].
  - rewrite Nat.eqb_refl. auto.
  - replace (n' =? n) with false by (symmetry; now apply Nat.eqb_neq). auto.
Qed.

Section Instance.
Variables (t j : nat) (start : bool) (now : moment) (u k l : nat).
Hypothesis starts : start = true -> t = 0.
Hypothesis when_ : when_ok now j.
Hypothesis inside : k < depth p u.

Notation inst := (inst p count_ t j u k l).
Notation goes := (goes p count_ t j u k l).
Notation kept_right := (kept_right p).
Notation log_ok := (log_ok p).

Lemma backward_ok (own : list ratio) (f : facts) (m : memory) : u < units p -> inst f m ->
  goes f (after_instr p start now u f (Backward own)) m (at_instr p t j u l m (Backward own)).
Proof.
  intros small known. cbn [after_instr at_instr].
  set (seen := weights_right p u f). set (right := seen && _ && _ && _).
  set (y := At Grad Device). set (m' := at_backward p t j u l own m).
  assert (same_ : right = true -> forall r, ok r -> forallb (fun k => if number_dec (ratio_of p m t j r k) (scale m 0 r)
    then true else false) own = true).
  { intros all r good. unfold right in all. repeat (apply andb_true_iff in all; destruct all as [all ?]).
    unfold own_right in *. rewrite forallb_forall in *. intros n inside_. specialize (H1 n inside_).
    destruct (nth 0 (factor f) None) as [s|] eqn:found; [|easy]. destruct (said p now f Now n) as [n'|] eqn:is; [|easy].
    destruct (ratio_eq n' s) as [->|]; [|easy]. destruct (number_dec _ _) as [|apart_]; [easy|].
    exfalso. apply apart_. rewrite (in_factor _ _ _ _ _ _ _ _ _ known _ _ found r good).
    apply (ratio_ok p count_ count_pos micro_pos counts_equal data_once t j j now f Now m); try easy.
    apply spoken_ok, known. }
  assert (yes : right = true -> forall r, ok r ->
     view p m u l r = ref_view p (weights_at p t) u l /\ kept_right t u l m r /\
     l = depth p u - 1 - k /\ forall x, cot m r x = ref_cot p t (weights_at p t) x u k).
  { intros all r good. unfold right in all. apply andb_true_iff in all. destruct all as [all here].
    apply andb_true_iff in all. destruct all as [see kept_]. apply andb_true_iff in see. destruct see as [see _].
    destruct (cots f) eqn:flow; try easy. destruct (in_cot _ _ _ _ _ _ _ _ _ known flow) as [same flows].
    split; [now apply (view_ok p count_ micro_pos t j start u k l starts inside f)|].
      split; [now apply (in_kept _ _ _ _ _ _ _ _ _ known)|].
    split; [easy|]. intros x; now apply flows. }
  assert (late : l = depth p u - 1 - k -> depth p u - 1 - l = k) by lia.
  split; [|repeat split]; cbn [slots kepts acts cots factor norms counts fine]; try easy.
  - pose proof known as [a b b' c d e1 e2 f1 f2 h]. split; cbn [slots kepts acts cots factor norms counts fine].
    + now apply (glob_same p t j f _ m).
    + unfold group_numbers. now rewrite map_length, seq_length.
    + easy.
    + intros i use layer. rewrite nth_table_map by now apply (used_small p u).
      change (uses p u (group_of i)) with (used p u (group_of i)). rewrite use.
      change (graded_at p (group_of i)) with (by_gradient p (group_of i)). cbn [andb].
      destruct (by_gradient p (group_of i)) eqn:learns.
      2: { apply (fits_same _ _ t j _ m); [|now apply c]. intros x r. cbn [held m' at_backward].
           now rewrite learns, !andb_false_r. }
      eapply fits_set; [|now apply c|].
      { intros x r. cbn [held m' at_backward]. rewrite use, layer, learns, Nat.eqb_refl. cbn [andb]. rewrite
        andb_true_r.
        reflexivity. }
      unfold deposited. destruct right eqn:all; [|easy]. destruct (length (factor f) =? _) eqn:full; [|easy].
      cbn [andb]. apply Nat.eqb_eq in full. destruct (everything (factor f)) as [s|] eqn:sc; [|easy].
      set (part_ := partial_sum snd (items t j) (data p)).
      assert (found : forall r, ok r -> exists v, kept m u l r = Some v /\
        sum_list (local p t j r) (fun x => scale m (its_loss p x) r * gamma u l x
           (let from := match v with (n, s, a) => (n, s, a x) end in from) (view p m u l r) (cot m r x) i)%ring
        = part_ (fun x => coef p count_ t s x * contribution p t (weights_at p t) u l (snd x) i)%ring r).
      { intros r good. destruct (yes eq_refl r good) as [A [[v [B1 B2]] [C D]]]. eexists; split; [exact B1|].
        unfold part_, partial_sum, local, items. rewrite sum_filter, sum_list_map. apply sum_list_ext; intros x _.
        cbn [snd]. destruct (near (data p) r x); [|easy]. unfold contribution, ref_kept. rewrite learns. cbn zeta.
        rewrite A, B2, D, (late C). f_equal. unfold coef. cbn [fst snd].
        destruct (everything_nth _ _ sc (its_loss p x)) as [n' [N1 N2]];
          [rewrite full; pose proof (its_loss_small p x); lia|].
        rewrite N1. now apply (h _ _ N2). }
      destruct (last (sites_at p (group_of i)) 0 =? u) eqn:first.
      * intros r good. cbn [sat forallb]. change (sites_at p) with (sites_of p) in first. cbn beta.
        rewrite first, (same_ eq_refl r good). destruct (found r good) as [[[n s'] v] [B1 B2]]. rewrite B1.
        cbn [Facts.val how un pt from covered]. apply f_equal, f_equal. cbn zeta in B2.
        etransitivity; [exact B2|]. unfold part_, partial_sum. apply sum_list_ext; intros x _.
        destruct (near (data p) r (snd x)); [|easy]. unfold given; cbn [sum_list]. rewrite layer. ring.
      * pose proof (c i use layer y) as old. fold y.
        destruct (get (nth_table (slots f) (group_of i)) y) as [| |[| | |s0| |] [|] o]; try easy.
        destruct (terms_eq s0 _) as [same|]; [|easy].
        intros r good. cbn [sat forallb]. change (sites_at p) with (sites_of p) in first. cbn beta.
        specialize (old r good). cbn [sat forallb] in old. cbn beta in old.
        rewrite first, (same_ eq_refl r good). destruct (found r good) as [[[n s'] v] [B1 B2]]. rewrite B1, old.
        cbn [Facts.val]. rewrite same. cbn [how un pt from covered]. apply f_equal, f_equal. cbn zeta in B2.
        etransitivity; [apply f_equal; exact B2|]. unfold part_, partial_sum. rewrite <- sum_list_plus.
        apply sum_list_ext; intros x _. destruct (near (data p) r (snd x)); [|ring]. unfold given; cbn [sum_list].
        rewrite layer. ring.
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
  - apply andb_true_iff in H. destruct H as [_ see]. now apply (logged p count_ micro_pos t j start u k l starts
    inside f m).
  - intros g out. destruct (lt_dec g (length (groups p))) as [in_|out'].
    + rewrite nth_table_map by easy. change (uses p u g) with (used p u g). now rewrite out.
    + unfold nth_table. rewrite !nth_overflow; [easy| |].
      * pose proof (in_len _ _ _ _ _ _ _ _ _ known). lia.
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
End Backwards.
