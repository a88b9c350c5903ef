(** What the checker's facts say about memory, and the lemmas about places, contents and slots that each verb needs.

    What it backs: the kernel.

    Main statements: [fits] (what a table says of an element), [sat_moved], [rigid_ok]. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Algebra Scaling Norms Maxima.
Open Scope nat_scope.

Section Facts.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis data_once : forall a l l', data p = l ++ a :: l' -> mem a l' = false.

Definition items (t j : nat) : list (nat * X) := map (pair j) (batch t j).
Definition covered (t j : nat) (x : when) : list (nat * X) :=
  match x with
  | Before => flat_map (items t) (seq 0 j) | Now => items t j | Through => flat_map (items t) (seq 0 (S j)) end.
Definition weights_at (t : nat) : E -> T := fun i => fst (theta p t i).
Definition given (t : nat) (us : list nat) (x : X) (i : E) : K :=
  sum_list us (fun u => contribution p t (weights_at t) u (layer_of i) x i).
Definition grad_at (t : nat) (i : E) : K := gradient p t (weights_at t) i.

Lemma theta_next (t : nat) (i : E) : theta p (S t) i = if left_out p t (weights_at t) then theta p t i
  else if negb (trains p (group_of i)) then theta p t i
  else update 1%ring (updates p t) i (map (weights_at t) (reading p Master i))
         (map (fun j => snd (theta p t j)) (reading p Moments i)) (map (applied p t (weights_at t)) (reading p
           GradSum i)).
Proof.
  unfold weights_at, updates, theta. cbn [reference]. destruct (reference p t) as [n state]. cbn [fst snd].
  now destruct (left_out p t _).
Qed.

Lemma updates_next (t : nat) : updates p (S t) = if left_out p t (weights_at t) then updates p t else S (updates p t).
Proof.
  unfold weights_at, updates, theta. cbn [reference]. destruct (reference p t) as [n state]. cbn [fst snd].
  now destruct (left_out p t _).
Qed.

(** The number that a rank holds. *)
Definition val (t j : nat) (c : content) (r : rank) (i : E) : T + K :=
  match c with
  | Params next => inl (fst (theta p (if next then S t else t) i))
  | Moment next => inl (snd (theta p (if next then S t else t) i))
  | Zeroed => inr 0%ring
  | Sums s => inr (let of_token x := given t (from s) (snd x) i in match how s with
      | Some co => partial_sum snd (covered t j (pt s)) (un s) (fun x => coef p count_ t co x * of_token x) r
      | None => partial_most snd (covered t j (pt s)) (un s) of_token r end)%ring
  | Clipped => inr (clip (norm p t (weights_at t)) (grad_at t i))
  | Averaged next => inl (averaged p (if next then S t else t) i)
  end.

Definition holds (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : Prop :=
  match h with
  | Any => True
  | Absent => forall r, ok r -> f r = None
  | Holds c q o => forall r, ok r -> if sat q r i then f r = Some (val t j c r i) else o = true -> f r = None
  end.

Definition fits (t j : nat) (k : table) (m : memory) (i : E) : Prop :=
  forall x, holds t j (get k x) (fun r => held m x r i) i.

Lemma get_cons (y x : slot) (h : know) (k : table) : get ((y, h) :: k) x = if slot_eq y x then h else get k x.
Proof. unfold get; cbn. now destruct (slot_eq y x). Qed.

Lemma get_set (k : table) (x y : slot) (h : know) : get (set k x h) y = if slot_eq x y then h else get k y.
Proof.
  induction k as [|[z h'] k IH]; cbn [set].
  - rewrite get_cons. now destruct (slot_eq x y).
  - destruct (slot_eq z x) as [->|apart]; rewrite !get_cons.
    + now destruct (slot_eq x y).
    + rewrite IH. destruct (slot_eq z y) as [->|]; [|easy]. now destruct (slot_eq x y) as [->|].
Qed.

Lemma slot_eqb_refl (x : slot) : slot_eqb x x = true.
Proof. now destruct x as [[] []]. Qed.
Lemma slot_eqb_apart (x y : slot) : x <> y -> slot_eqb y x = false.
Proof. destruct x as [[] []], y as [[] []]; cbn; congruence. Qed.

Lemma holds_ext (t j : nat) (h : know) (f g : rank -> option (T + K)) (i : E) :
  (forall r, ok r -> f r = g r) -> holds t j h g i -> holds t j h f i.
Proof.
  intros same. destruct h as [| |c q o]; cbn; auto; intros here r good; rewrite same by easy; now apply here.
Qed.

Lemma fits_write (t j : nat) (k : table) (m : memory) (here : E -> bool) (y : slot) f (h : know) (i : E) :
  here i = true -> fits t j k m i -> holds t j h (fun r => f r i) i -> fits t j (set k y h) (write m here y f) i.
Proof.
  intros inside old new x. rewrite get_set. cbn [held write]. destruct (slot_eq y x) as [<-|apart].
  - eapply holds_ext; [|exact new]. intros r _; cbn. now rewrite slot_eqb_refl, inside.
  - eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite slot_eqb_apart.
Qed.

Lemma fits_set (t j : nat) (k : table) (m m' : memory) (y : slot) (f : rank -> option (T + K)) (h : know) (i : E) :
  (forall x r, held m' x r i = if slot_eqb x y then f r else held m x r i) -> fits t j k m i -> holds t j h f i ->
  fits t j (set k y h) m' i.
Proof.
  intros same old new x. rewrite get_set. destruct (slot_eq y x) as [<-|apart].
  - eapply holds_ext; [|exact new]. intros r _; cbn. now rewrite same, slot_eqb_refl.
  - eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite same, slot_eqb_apart.
Qed.

Lemma fits_same (t j : nat) (k : table) (m m' : memory) (i : E) :
  (forall x r, held m' x r i = held m x r i) -> fits t j k m i -> fits t j k m' i.
Proof. intros same old x. eapply holds_ext; [|exact (old x)]. intros r _; cbn. now rewrite same. Qed.

(** ** Places *)

Lemma has_in (q : place) (c : clause) : has q c = true <-> In c q.
Proof. unfold has; destruct (in_dec clause_eq c q); split; intros; easy. Qed.

Lemma sat_in (q : place) (r : rank) (i : E) : sat q r i = true <-> forall c, In c q -> sat1 r i c = true.
Proof. apply forallb_forall. Qed.

Lemma within_ok (q q' : place) (r : rank) (i : E) : within q q' = true -> sat q r i = true -> sat q' r i = true.
Proof.
  unfold within. rewrite forallb_forall, !sat_in. intros all good c inside. apply good, has_in, all, inside.
Qed.

Lemma sat_app (q q' : place) (r : rank) (i : E) : sat (q ++ q') r i = sat q r i && sat q' r i.
Proof. apply forallb_app. Qed.

Lemma sat_union (q q' : place) (r : rank) (i : E) : sat (union q q') r i = sat q r i && sat q' r i.
Proof.
  unfold union. rewrite sat_app. destruct (sat q r i) eqn:here; [|easy]; cbn [andb].
  apply eq_true_iff_eq. rewrite sat_in in here. rewrite !sat_in. split; intros all c inside.
  - destruct (has q c) eqn:there; [apply here, has_in, there|]. apply all, filter_In. now rewrite there.
  - apply filter_In in inside. now apply all.
Qed.

Lemma sat_owners (s : layout) (along : list nat) (r : rank) (i : E) :
  sat (owners s along) r i = forallb (fun a => r a =? owner s r a i) along.
Proof. unfold sat, owners. induction along as [|a l IH]; cbn; [easy|]. now rewrite IH. Qed.

Lemma moved_ok (to : nat -> nat) (along : list nat) (r : rank) : (forall a, to a < size a) -> ok r -> ok (moved to
  along r).
Proof. intros small good a. unfold moved. destruct (existsb (Nat.eqb a) along); auto. Qed.

Lemma owner_moved (to : nat -> nat) (along : list nat) (s : layout) (r : rank) (a b : nat) (i : E) :
  drawn_by along (Owner s b) = false -> owner s (moved to along r) a i = owner s r a i.
Proof. destruct s as [n|n c]; [easy|]. cbn. unfold moved, mem. now intros ->. Qed.

Lemma sat_moved (to : nat -> nat) (along : list nat) (q : place) (r : rank) (i : E) : still along q = true ->
  (forall d, In d (on_axes along q) -> coordinate d r i = to (axis_of d)) ->
  sat q (moved to along r) i = sat (off_axes along q) r i.
Proof.
  induction q as [|d q IH]; [easy|]. rewrite still_cons. intros same. apply andb_true_iff in same.
  destruct same as [here same]. apply negb_true_iff in here. specialize (IH same).
  unfold on_axes, off_axes in *; cbn [filter] in *. intros all. rewrite sat_cons.
  destruct (mem (axis_of d) along) eqn:inside; cbn [negb].
  - rewrite IH by (intros; apply all; now right).
    specialize (all d (or_introl eq_refl)). unfold mem in inside.
    destruct d as [s a|a]; cbn [sat1 coordinate axis_of] in *; rewrite ?(owner_moved _ _ _ _ _ a) by easy;
      unfold moved; rewrite inside, <- all, Nat.eqb_refl; reflexivity.
  - rewrite IH by easy. rewrite sat_cons. f_equal. unfold mem in inside.
    destruct d as [s a|a]; cbn [sat1 axis_of] in *; rewrite ?(owner_moved _ _ _ _ _ a) by easy; unfold moved;
      now rewrite inside.
Qed.

Lemma sat_peer (along : list nat) (q : place) (r r' : rank) (i : E) : on_axes along q = [] -> still along q = true ->
  In r' (peers along r) -> sat q r' i = sat q r i.
Proof.
  intros out same inside. induction q as [|d q IH]; [easy|]. rewrite still_cons in same.
  apply andb_true_iff in same. destruct same as [here same]. apply negb_true_iff in here.
  unfold on_axes in *; cbn [filter] in out.
  destruct (mem (axis_of d) along) eqn:on; [easy|]. rewrite !sat_cons, IH by easy. f_equal.
  destruct d as [[n|n b] a|a]; cbn in *; now rewrite ?(peers_outside along r r').
Qed.

Lemma outside_none_ok (t j : nat) (h : know) (q : place) (f : rank -> option (T + K)) (i : E) (r : rank) :
  outside_none h q = true -> holds t j h f i -> ok r -> sat q r i = false -> f r = None.
Proof.
  intros none here good out. destruct q as [|d q]; [easy|]. destruct h as [| |c q' o]; cbn [outside_none] in none;
    try easy.
  - now apply here.
  - destruct o; [|easy]. specialize (here r good). destruct (sat q' r i) eqn:in'; [|now apply here].
    now rewrite (within_ok _ _ _ _ none in') in out.
Qed.

Lemma rigid_ok (t j : nat) (c : content) (to : nat -> nat) (along : list nat) (r : rank) (i : E) :
  rigid c along = true -> val t j c (moved to along r) i = val t j c r i.
Proof.
  destruct c as [| | |s| |]; try easy. cbn. rewrite forallb_forall. intros out.
  assert (same : forall x, near (un s) (moved to along r) x = near (un s) r x).
  { intros x. unfold near. induction (un s) as [|a l IH]; [easy|]. cbn. rewrite IH by (intros; apply out; now right).
    f_equal. unfold moved. specialize (out a (or_introl eq_refl)). apply negb_true_iff in out. unfold mem in out.
    now rewrite out. }
  do 2 f_equal. destruct (how s).
  - apply sum_list_ext; intros x _. now rewrite same.
  - apply greatest_ext; intros x _. now rewrite same.
Qed.
End Facts.
