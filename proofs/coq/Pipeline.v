(** Pipeline stages: neither the order of microbatches nor handing on changes a value.

    What it backs: the orders of placealg/step/pipeline.py, and proofs/theorems/pipeline.py. A stage holds a copy of
    its weights, a gradient sum, and of each microbatch what its forward kept for its backward. Hypotheses, as there:
    copies stay (no forward or backward leaves another copy than it found), and forwards add nothing to the sum.

    Main statements: [any_order] (every order with each forward before its backward leaves the sum, the copy and every
    message that one microbatch after the other leaves; so do gpipe, 1f1b and interleaved orders), [freed_too_early]
    (without the first hypothesis it is false) and [handing_on] (layer by layer, on any map of layers to stages, a
    pipeline computes what the single device computes, forwards and, with the layers reversed, backwards). *)

From Coq Require Import Permutation PeanoNat.
From Placealg Require Import Sums.

Section Order.
Variables (K : CRing) (Copy Kept Message : Type).
Add Ring K_ring : (laws K).
Variables (keep : Copy -> nat -> Kept) (out : Copy -> nat -> Message).
Variables (gamma : Copy -> Kept -> nat -> K) (back : Copy -> Kept -> nat -> Message).
Variables (after_forward after_backward : Copy -> nat -> Copy).

Record stage := { copy : Copy; total : K; kept : nat -> Kept; sent : nat -> Message; sent_back : nat -> Message }.

Inductive item := Forward (k : nat) | Backward (k : nat).

Definition at_ {T : Type} (k : nat) (new : T) (old : nat -> T) : nat -> T :=
  fun j => if Nat.eq_dec j k then new else old j.

Definition work (s : stage) (i : item) : stage := match i with
  | Forward k => {| copy := after_forward (copy s) k; total := total s; kept := at_ k (keep (copy s) k) (kept s);
                    sent := at_ k (out (copy s) k) (sent s); sent_back := sent_back s |}
  | Backward k => {| copy := after_backward (copy s) k; total := total s + gamma (copy s) (kept s k) k; kept := kept s;
                     sent := sent s; sent_back := at_ k (back (copy s) (kept s k) k) (sent_back s) |}
  end.

(** Each backward comes after its forward. *)
Fixpoint in_turn (forwarded : list nat) (order : list item) : Prop := match order with
  | [] => True
  | Forward k :: order => in_turn (k :: forwarded) order
  | Backward k :: order => In k forwarded /\ in_turn forwarded order
  end.

Definition backwards (order : list item) : list nat :=
  flat_map (fun i => match i with Backward k => [k] | Forward _ => [] end) order.

Section Stay.
Hypothesis forward_stays : forall c k, after_forward c k = c.
Hypothesis backward_stays : forall c k, after_backward c k = c.

(** A message is the one that its microbatch sends, or was there before. *)
Lemma what_is_left order : forall forwarded s, in_turn forwarded order ->
  (forall k, In k forwarded -> kept s k = keep (copy s) k) ->
  let s' := fold_left work order s in
  copy s' = copy s /\
  total s' = total s + sum_list (backwards order) (fun k => gamma (copy s) (keep (copy s) k) k) /\
  (forall k, (In (Forward k) order /\ sent s' k = out (copy s) k) \/
             (~ In (Forward k) order /\ sent s' k = sent s k)) /\
  (forall k, (In (Backward k) order /\ sent_back s' k = back (copy s) (keep (copy s) k) k) \/
             (~ In (Backward k) order /\ sent_back s' k = sent_back s k)).
Proof.
  induction order as [|i order IH]; intros forwarded s turn ready s'.
  { cbn in s'; subst s'; cbn; split; [easy|split; [ring|split; right; easy]]. }
  assert (stays : copy (work s i) = copy s) by (destruct i; cbn; auto).
  assert (next : exists forwarded', in_turn forwarded' order /\
    forall k, In k forwarded' -> kept (work s i) k = keep (copy (work s i)) k).
  { rewrite stays; destruct i as [j|j]; cbn in turn.
    - exists (j :: forwarded); split; [easy|]; intros k before; cbn; unfold at_.
      destruct (Nat.eq_dec k j) as [->|]; [easy|]; destruct before; [congruence|auto].
    - exists forwarded; split; [easy|exact ready]. }
  destruct next as [forwarded' [turn' ready']].
  destruct (IH forwarded' (work s i) turn' ready') as [same [added [there back_there]]].
  change (fold_left work order (work s i)) with s' in *; rewrite stays in *.
  split; [exact same|split; [|split]].
  - rewrite added; destruct i as [j|j]; [reflexivity|].
    change (backwards (Backward j :: order)) with (j :: backwards order); cbn [sum_list total work].
    rewrite (ready j) by apply turn; ring.
  - intros k; destruct (there k) as [[inside is]|[outside is]]; [left; split; [now right|exact is]|].
    rewrite is; destruct i as [j|j]; cbn; unfold at_; [destruct (Nat.eq_dec k j) as [->|]; [now left; auto|]|];
      right; split; auto; intros [[=]|inside]; auto.
  - intros k; destruct (back_there k) as [[inside is]|[outside is]]; [left; split; [now right|exact is]|].
    rewrite is; destruct i as [j|j]; cbn; unfold at_.
    + right; split; auto; intros [[=]|inside]; auto.
    + cbn in turn; destruct (Nat.eq_dec k j) as [->|]; [left; split; [auto|now rewrite (ready j)]|].
      right; split; auto; intros [[=]|inside]; auto.
Qed.

Lemma same_sum (l l' : list nat) (f : nat -> K) : Permutation l l' -> sum_list l f = sum_list l' f.
Proof. induction 1; cbn; [ring|congruence|ring|congruence]. Qed.

Theorem any_order order order' s : Permutation order order' -> in_turn [] order -> in_turn [] order' ->
  let one := fold_left work order s in let two := fold_left work order' s in
  copy one = copy two /\ total one = total two /\
  forall k, sent one k = sent two k /\ sent_back one k = sent_back two k.
Proof.
  intros same turn turn' one two.
  destruct (what_is_left order [] s turn) as [c [t [f b]]]; [easy|].
  destruct (what_is_left order' [] s turn') as [c' [t' [f' b']]]; [easy|].
  fold one in c, t, f, b; fold two in c', t', f', b'.
  assert (both : forall i, In i order <-> In i order').
  { intros i; split; apply Permutation_in; [exact same|now symmetry]. }
  split; [congruence|split].
  - rewrite t, t'; f_equal; apply same_sum; unfold backwards; now rewrite same.
  - intros k; specialize (f k); specialize (f' k); specialize (b k); specialize (b' k).
    rewrite (both (Forward k)) in f; rewrite (both (Backward k)) in b; split;
      [destruct f as [[]|[]], f' as [[]|[]]|destruct b as [[]|[]], b' as [[]|[]]]; easy || congruence.
Qed.

End Stay.

End Order.

(** Without the first hypothesis it is false: each forward gathers the copy, each backward frees it, and adds 1 if it
    finds one. The second of two backwards in a row reads what is gone. *)
Section Freed.
Variable K : CRing.
Add Ring K_ring' : (laws K).

Definition finds_one (held : bool) (_ : unit) (_ : nat) : K := if held then 1 else 0.
Definition train (order : list item) : K :=
  total _ _ _ _ (fold_left (work K bool unit unit (fun _ _ => tt) (fun _ _ => tt) finds_one (fun _ _ _ => tt)
    (fun _ _ => true) (fun _ _ => false)) order
    {| copy := false; total := 0; kept _ := tt; sent _ := tt; sent_back _ := tt |}).

Theorem freed_too_early : (1 : K) <> 0 ->
  train [Forward 0; Backward 0; Forward 1; Backward 1] <> train [Forward 0; Forward 1; Backward 0; Backward 1].
Proof.
  intros apart equal; apply apart; cbn in equal.
  transitivity (0 + 1 + 1 - (0 + 1 + 0) : K); [ring|rewrite equal; ring].
Qed.

End Freed.

(** ** Handing on. *)

Section Handing.
Variables (Stage Message Weight : Type) (stage_dec : forall a b : Stage, {a = b} + {a <> b}).
Variables (own : nat -> Stage) (layer : Weight -> Message -> Message).
Variables (true_weight : nat -> Weight) (weight : Stage -> nat -> Weight).

(** Every stage has the weights of the layers it owns. *)
Hypothesis placed : forall l, weight (own l) l = true_weight l.

(** The single device: what leaves layer [l]. *)
Fixpoint single (input : Message) (l : nat) : Message :=
  layer (true_weight l) (match l with O => input | S l => single input l end).

(** What stages hold after layer [l]; [input] lies on the stage of layer 0, and [idle] on the others. *)
Fixpoint stages (input : Message) (idle : Stage -> Message) (l : nat) : Stage -> Message :=
  let before := match l with
    | O => fun s => if stage_dec s (own 0) then input else idle s
    | S l' => let held := stages input idle l' in
        (* a message to the stage of the next layer, if that is another one *)
        fun s => if stage_dec (own l') (own l) then held s else if stage_dec s (own l) then held (own l') else held s
    end in
  fun s => if stage_dec s (own l) then layer (weight s l) (before s) else before s.

Theorem handing_on input idle l : stages input idle l (own l) = single input l.
Proof.
  induction l as [|l IH]; cbn [stages single].
  - destruct (stage_dec (own 0) (own 0)); [now rewrite placed|easy].
  - destruct (stage_dec (own (S l)) (own (S l))); [|easy]; rewrite placed; f_equal; rewrite <- IH.
    destruct (stage_dec (own l) (own (S l))) as [->|]; reflexivity.
Qed.

End Handing.
