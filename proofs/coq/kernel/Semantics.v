(** The single device, and what it means that a step program is correct.

    What it backs: the kernel. A reader has to believe this file, as Syntax.v, Setting.v and Machine.v.

    Main statement: [correct], the definition. *)

From Placealg.kernel Require Export Machine.
Open Scope nat_scope.

Section Single.
Context {w : world} (p : program).
Local Notation needs := (needs p).
Local Notation depth := (depth p).
Local Notation sites_of := (sites_of p).
Local Notation by_gradient := (by_gradient p).
Local Notation adds_up := (adds_up p).
Local Notation takes_most := (takes_most p).
Local Notation its_loss := (its_loss p).
Local Notation of_loss := (of_loss p).
Local Notation mine := (mine p).
Local Notation trains := (trains p).
Local Notation all_parts := (all_parts p).
Local Notation reading := (reading p).
Local Notation run := (run p).
Local Notation step := (step p).

(** The single device. It has every token, and weighs them as the program's reference says. *)
Fixpoint iter {V : Type} (n : nat) (f : nat -> V -> V) (v : V) : V :=
  match n with O => v | S n => f n (iter n f v) end.

Section Reference.
Variables (t : nat) (weights : E -> T).
Definition ref_view (u l : nat) : list T := map weights (needs u l).
Definition ref_unit (x : X) (u l : nat) (a : A) : A := forward u l t x (ref_view u l) a.
Fixpoint ref_enter (x : X) (u : nat) : A :=  (* what enters unit u *)
  match u with O => input x | S u => iter (depth u) (ref_unit x u) (ref_enter x u) end.
Definition ref_act (x : X) (u l : nat) : A := iter l (ref_unit x u) (ref_enter x u).
Definition ref_kept (x : X) (u l : nat) : nat * list T * A := (t, ref_view u l, ref_act x u l).
Definition ref_back (x : X) (u k : nat) (b : B) : B :=  (* instances from last to first *)
  let l := depth u - 1 - k in backward u l x (ref_kept x u l) (ref_view u l) b.
Fixpoint ref_leave (x : X) (d : nat) : B :=  (* what d units from the end have handed back *)
  match d with
  | O => seed x (ref_enter x (length (repeated p)))
  | S d => let u := length (repeated p) - 1 - d in iter (depth u) (ref_back x u) (ref_leave x d)
  end.
Definition ref_cot (x : X) (u k : nat) : B := iter k (ref_back x u) (ref_leave x (length (repeated p) - 1 - u)).
Definition contribution (u l : nat) (x : X) (i : E) : K :=
  if by_gradient (group_of i) then gamma u l x (ref_kept x u l) (ref_view u l) (ref_cot x u (depth u - 1 - l)) i
  else if its_loss x =? 0 then statistic u l x (ref_kept x u l) i else 0%ring.
Definition weight (g n j : nat) : K :=
  if adds_up g then 1%ring else match weighs p with
  | TokenMean => share (length (of_loss n (tokens t)))
  | MicrobatchMean => share micro * share (length (of_loss n (batch t j)))
  | Sum => 1 end%ring.
Definition given_by (x : X) (i : E) : K :=
  sum_list (sites_of (group_of i)) (fun u => contribution u (layer_of i) x i).
Definition gradient (i : E) : K :=
  if takes_most (group_of i) then greatest (seq 0 micro) (fun j => greatest (batch t j) (fun x => given_by x i))
  else sum_list (seq 0 micro) (fun j => sum_list (batch t j) (fun x =>
    weight (group_of i) (its_loss x) j * given_by x i))%ring.
Definition norm : K := sum_list all_parts (fun gl => sum_list (part (fst gl) (snd gl)) (fun i => measure i
  (gradient i))).
Definition applied (i : E) : K := if clips p && by_gradient (group_of i) then clip norm (gradient i) else gradient i.
End Reference.

(** Whether a gradient of the step overflows; the number of updates so far, and parameters and moments. *)
Definition left_out (t : nat) (weights : E -> T) : bool :=
  skips p && existsb (fun gl => existsb (fun i => overflows i (gradient t weights i)) (part (fst gl) (snd gl)))
    all_parts.
Fixpoint reference (t : nat) : nat * (E -> T * T) :=
  match t with
  | O => (0, fun i => (first_weight i, first_moments i))
  | S t => let (n, state) := reference t in let weights i := fst (state i) in
      if left_out t weights then (n, state)
      else (S n, fun i => if negb (trains (group_of i)) then state i
        else update 1%ring n i (map weights (reading Master i)) (map (fun j => snd (state j)) (reading Moments i))
               (map (applied t weights) (reading GradSum i)))
  end.
Definition updates (t : nat) : nat := fst (reference t).
Definition theta (t : nat) (i : E) : T * T := snd (reference t) i.
Fixpoint loss_scale (t : nat) : nat :=
  match t with O => 0 | S t => grow (loss_scale t) (left_out t (fun i => fst (theta t i))) end.
Definition ticks_of (c : counter) (t : nat) : nat :=
  match c with Step => updates t | Stream => t | LossScale => loss_scale t end.

(** The average of a parameter, which begins as the first one, and takes in that of every step, left out or not. *)
Fixpoint averaged (t : nat) (i : E) : T :=
  match t with O => first_weight i | S t => average i (averaged t i) (fst (theta (S t) i)) end.

Definition truth (x : value) (t : nat) (i : E) : T + K :=
  match x with Moments => inl (snd (theta t i)) | Average => inl (averaged t i) | _ => inl (fst (theta t i)) end.

(** The elements that the program is about. *)
Definition covers (i : E) : Prop :=
  group_of i < length (groups p) /\ layer_of i < depth (hd 0 (sites_of (group_of i))).
Definition group_at (i : E) : group := nth (group_of i) (groups p) (Group [] [] Device [] Gradient NoAverage).

(** Every rank holds equally many tokens of a loss in every microbatch of every step. *)
Definition equal_counts : Prop := exists c : nat -> nat, forall n, n <= further p -> 0 < c n /\
  forall t j r, j < micro -> ok r -> length (mine n t j r) = c n.

Definition correct_in : Prop := (equal p = true -> equal_counts) -> 0 < micro -> forall (stops : nat -> bool) (t :
  nat),
  (resumes p = false -> forall t, stops t = false) ->
  (* parameters rest where the strategy says, and are the reference's; some rank holds each element *)
  (forall r i, ok r -> covers i -> sat (rests (group_at i)) r i = true ->
     held (run stops t) (At Weight (lies (group_at i))) r i = Some (truth Weight t i)) /\
  (forall i, exists r, ok r /\ sat (rests (group_at i)) r i = true) /\
  (* so do averages of them *)
  (forall i q k, average_rests (group_at i) = AverageAt q k -> (exists r, ok r /\ sat q r i = true) /\
     forall r, ok r -> covers i -> sat q r i = true ->
     held (run stops t) (At Average k) r i = Some (truth Average t i)) /\
  (* every forward and backward reads the reference's parameters *)
  (forall u l got, In (u, l, got) (reads (step t (run stops t))) -> forall r i, ok r -> In i (needs u l) -> covers
    i ->
     got r i = Some (truth Weight t i)) /\
  (* a checkpoint holds nothing but what the reference has *)
  (forall x r i v, x = Weight \/ x = Moments \/ x = Average /\ average_rests (group_at i) <> NoAverage ->
     ok r -> covers i ->
     held (run stops t) (At x Disk) r i = Some v -> v = truth x t i) /\
  (resumes p = true -> forall c, carried p c = true -> count (run stops t) c true (fun _ => 0) = Some (ticks_of c t) /\
     forall r n, ok r -> count (run stops t) c true r = Some n -> n = ticks_of c t).
End Single.

Definition correct (p : program) : Prop := forall w : world, @correct_in w p.
