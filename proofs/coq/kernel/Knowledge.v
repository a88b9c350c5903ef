(** What the checker knows: of a slot a lower bound ("on ranks at place q it is this"), and whether it is held nowhere
    else; of counters; what flows; and how each changes.

    What it backs: the kernel. Nothing here is to be believed: Sound.v proves that what [check] accepts is correct.

    Main statement: [facts], the definition. *)

From Coq Require Import Arith.
From Placealg.kernel Require Import Syntax.
From Placealg.kernel Require Export Ratios.

Inductive when := Before | Now | Through.  (* of the current microbatch *)
(** What the tokens of units [from] have given, on each rank those of its own along axes [un]: their sum,
    by coefficients
    of which each loss has one, or the largest. *)
Record terms := Terms { how : option (list ratio); un : list nat; pt : when; from : list nat }.
Inductive content :=
  | Params (next : bool) | Moment (next : bool) | Zeroed | Sums (s : terms) | Clipped | Averaged (next : bool).
Inductive know := Any | Absent | Holds (c : content) (q : place) (only : bool).

(** Which instance has last computed: none known, all before unit n (of flow backward: n units from the end), all
    before the current one, the current one too; or some losses have begun to flow backward. *)
Inductive flow := Lost | Outside (n : nat) | Entered | Left | Begun (losses : list nat).
Inductive moment := Early | Amid | Late.  (* before, in, after the loop over microbatches *)

Definition table := list (slot * know).
(** What is known of a counter: that at coordinate 0 of some axes it is that of the step, or of the next one, and
  whether
    no other rank has it. *)
Inductive ticks := Unsaid | Unheld | Ticks (next : bool) (firsts : list nat) (only : bool).
(** Of each counter, and of its copy in the checkpoint. *)
Record counters := Counters {
  step_here : ticks; stream_here : ticks; scale_here : ticks;
  step_disk : ticks; stream_disk : ticks; scale_disk : ticks;
  (* of each loss: whether its tokens are counted of one microbatch, and the axes over which the count is not summed *)
  tallied : list (option (bool * list nat));
  looked : list (option place)  (* of each group: the place whose elements its flags are about *)
}.
Definition told (k : counters) (c : counter) (disk : bool) : ticks :=
  match c, disk with
  | Step, false => step_here k | Stream, false => stream_here k | LossScale, false => scale_here k
  | Step, true => step_disk k | Stream, true => stream_disk k | LossScale, true => scale_disk k end.
Definition tell (k : counters) (c : counter) (disk : bool) (v : ticks) : counters :=
  match k, c, disk with
  | Counters a b s c d z e f, Step, false => Counters v b s c d z e f
  | Counters a b s c d z e f, Stream, false => Counters a v s c d z e f
  | Counters a b s c d z e f, LossScale, false => Counters a b v c d z e f
  | Counters a b s c d z e f, Step, true => Counters a b s v d z e f
  | Counters a b s c d z e f, Stream, true => Counters a b s c v z e f
  | Counters a b s c d z e f, LossScale, true => Counters a b s c d v e f end.
Definition tell_tally (k : counters) (v : list (option (bool * list nat))) : counters :=
  Counters (step_here k) (stream_here k) (scale_here k) (step_disk k) (stream_disk k) (scale_disk k) v (looked k).
Definition tell_looked (k : counters) (v : list (option place)) : counters :=
  Counters (step_here k) (stream_here k) (scale_here k) (step_disk k) (stream_disk k) (scale_disk k) (tallied k) v.

Record facts := Facts {
  slots : list table; kepts : list bool; acts : flow; cots : flow; factor : list (option ratio);  (* of each loss *)
 
  norms : list (option place); counts : counters;
  fine : bool
}.

Definition layout_eq (s s' : layout) : {s = s'} + {s <> s'}. Proof. decide equality; apply Nat.eq_dec. Defined.
Definition clause_eq (c d : clause) : {c = d} + {c <> d}.
Proof. decide equality; apply Nat.eq_dec || apply layout_eq. Defined.
Definition place_eq (q r : place) : {q = r} + {q <> r}. Proof. apply list_eq_dec, clause_eq. Defined.
Definition slot_eq (x y : slot) : {x = y} + {x <> y}. Proof. decide equality; decide equality. Defined.
Definition nats_eq (l m : list nat) : {l = m} + {l <> m}. Proof. apply list_eq_dec, Nat.eq_dec. Defined.
Definition terms_eq (s t : terms) : {s = t} + {s <> t}.
Proof.
  decide equality; [apply nats_eq | decide equality | apply nats_eq|]. decide equality. apply list_eq_dec, ratio_eq.
Defined.
Definition bool_eq (b c : bool) : {b = c} + {b <> c}. Proof. decide equality. Defined.
Definition content_eq (c d : content) : {c = d} + {c <> d}.
Proof. decide equality; [apply bool_eq | apply bool_eq | apply terms_eq | apply bool_eq]. Defined.
Definition flow_eq (f g : flow) : {f = g} + {f <> g}.
Proof. decide equality; [apply Nat.eq_dec | apply nats_eq]. Defined.

(** ** Places *)

Definition mem (a : nat) (l : list nat) : bool := existsb (Nat.eqb a) l.
Definition has (q : place) (c : clause) : bool := if in_dec clause_eq c q then true else false.
Definition within (q q' : place) : bool := forallb (has q) q'.
Definition union (q q' : place) : place := q ++ filter (fun c => negb (has q c)) q'.
Definition axis_of (c : clause) : nat := match c with Owner _ a => a | First a => a end.
Definition is_owner (c : clause) : bool := match c with Owner _ _ => true | First _ => false end.
Definition owner_of (s : layout) (c : clause) : bool :=
  match c with Owner s' _ => if layout_eq s' s then true else false | First _ => false end.
(** Whether no layout of a place differs along axes. *)
Definition drawn_by (along : list nat) (c : clause) : bool :=
  match c with Owner (Drawn _ b) _ => mem b along | _ => false end.
Definition still (along : list nat) (q : place) : bool := forallb (fun c => negb (drawn_by along c)) q.
Definition off_axes (along : list nat) (q : place) : place := filter (fun c => negb (mem (axis_of c) along)) q.
Definition on_axes (along : list nat) (q : place) : place := filter (fun c => mem (axis_of c) along) q.
Definition owners (s : layout) (along : list nat) : place := map (Owner s) along.
(** What coordinate 0 of an axis has of a layout that differs along it. *)
Definition of_first (a : nat) (c : clause) : clause :=
  match c with Owner (Drawn n b) a' => if b =? a then Owner (Shared n) a' else c | _ => c end.
(** The place of which ranks along an axis have the elements together, each of them on one rank. *)
Definition spread (a : nat) (q : place) : option place :=
  match on_axes [a] q with
  | [First _] => Some (map (of_first a) (off_axes [a] q))
  | [_] => if still [a] q then Some (off_axes [a] q) else None
  | _ => None end.

(** Where every rank is meant, no other is left. *)
Definition ticked (next : bool) (l : list nat) (only : bool) : ticks :=
  Ticks next l (only || match l with [] => true | _ => false end).

Definition after_tick (start decided : bool) (k : counters) (c : counter) (d : tick) (firsts : list nat) : counters :=
  let here := told k c false in
  match d, firsts with
  | Start, [] => tell k c false (if start then Ticks false [] true else Unsaid)
  | Advance, [] => tell k c false match here with
      | Ticks false l _ => if decided || counter_eqb c Stream then ticked true l false else Unsaid
      | _ => Unsaid end
  | Load, [] => tell k c false (told k c true)
  | Store, _ => tell k c true match here with
      | Ticks b l o => ticked b (l ++ firsts) (o && match told k c true with Unheld => true | _ => false end)
      | _ => Unsaid end
  | _, _ => tell k c false Unsaid end.
Definition after_share (k : counters) (c : counter) (along : list nat) : counters :=
  tell k c false match told k c false with
    | Ticks b l o => ticked b (filter (fun a => negb (mem a along)) l) o | h => h end.

(** ** What is known of one slot *)

Definition entails (h h' : know) : bool :=
  match h, h' with
  | _, Any => true
  | Absent, Absent => true
  | Holds c q o, Holds c' q' o' =>
      (if content_eq c c' then true else false) && within q' q && (negb o' || (o && within q q'))
  | _, _ => false
  end.
Definition vague (h : know) : know := match h with Holds c q _ => Holds c q false | _ => Any end.
Definition merge (h h' : know) : know :=
  if entails h h' then h' else if entails h' h then h
  else if entails h (vague h') then vague h' else if entails h' (vague h) then vague h else Any.

(** Held nowhere outside of q. *)
Definition outside_none (h : know) (q : place) : bool :=
  match q, h with [], _ => true | _, Absent => true | _, Holds _ q' true => within q' q | _, _ => false end.

Definition rigid (c : content) (along : list nat) : bool :=
  match c with Sums s => forallb (fun a => negb (mem a along)) (un s) | _ => true end.

Definition largest_of (s : terms) : bool := match how s with None => true | Some _ => false end.
Definition added (larger : bool) (c d : content) : option content :=
  match c, d with
  | Zeroed, Sums s => Some (Sums s)
  | Sums s, Sums s' => if terms_eq s (Terms (how s') (un s') Before (from s'))
      then match pt s', eqb larger (largest_of s) with
        | Now, true => Some (Sums (Terms (how s) (un s) Through (from s))) | _, _ => None end
      else if larger && (if terms_eq s (Terms None (un s') (pt s) (from s')) then true else false) then
        match pt s, pt s', how s' with  (* the larger of it and a part of it *)
        | Through, Now, None | Now, Now, None => Some (Sums s) | _, _, _ => None end
      else None
  | _, _ => None
  end.

Definition reduced1 (a : nat) (s : terms) : terms :=
  if mem a (un s) then Terms (how s) (filter (fun b => negb (a =? b)) (un s)) (pt s) (from s)
  else Terms (option_map (map (times1 (Size a))) (how s)) (un s) (pt s) (from s).
Definition reduced (along : list nat) (s : terms) : terms := fold_right reduced1 s along.
Definition mean_of (along : list nat) (k : ratio) : ratio := fold_right (fun a => by1 (Size a)) k along.
Definition scaled (k : ratio) (s : terms) : option terms :=
  match how s with Some co => Some (Terms (Some (map (times k) co)) (un s) (pt s) (from s)) | None => None end.
(** A reduction over axes, by an operator, divided. *)
Definition put_together (by_ : operator) (along : list nat) (k : ratio) (s : terms) : option terms :=
  let s := reduced along s in
  match how s, by_ with
  | Some _, Plain | Some _, Premultiplied => scaled k s
  | Some co, Mean => scaled k (Terms (Some (map (mean_of along) co)) (un s) (pt s) (from s))
  | None, Largest => if ratio_eq k one then Some s else None
  | _, _ => None end.
(** The same, where all ranks along the axes have one number. *)
Definition put_alike (by_ : operator) (along : list nat) (k : ratio) (s : terms) : option terms :=
  match how s, by_ with
  | Some _, Largest => scaled k s
  | None, Mean => if ratio_eq k one then Some s else None
  | None, Plain | None, Premultiplied => if ratio_eq k (mean_of along one) then Some s else None
  | _, _ => put_together by_ along k s end.

Definition get (k : table) (x : slot) : know :=
  match find (fun e => if slot_eq (fst e) x then true else false) k with Some (_, h) => h | None => Any end.
Fixpoint set (k : table) (x : slot) (h : know) : table :=
  match k with [] => [(x, h)] | (y, h') :: k => if slot_eq y x then (x, h) :: k else (y, h') :: set k x h end.

Definition nth_table (l : list table) (g : nat) : table := nth g l [].
Fixpoint put_at {V : Type} (n : nat) (v : V) (l : list V) : list V :=
  match l, n with [], _ => [] | _ :: l, O => v :: l | x :: l, S n => x :: put_at n v l end.

(** All of a list, where each is there. *)
Fixpoint everything {V : Type} (l : list (option V)) : option (list V) :=
  match l with
  | [] => Some []
  | Some v :: l => option_map (cons v) (everything l)
  | None :: _ => None end.
Definition forgotten (k : counters) : list (option (bool * list nat)) := map (fun _ => None) (tallied k).
(** A count of one microbatch is none of the next. *)
Definition lasting (k : counters) : list (option (bool * list nat)) :=
  map (fun n => match n with Some (true, _) => None | n => n end) (tallied k).
Definition inside_of (l m : list nat) : bool := forallb (fun a => mem a m) l.

(** The same for all elements: no owner is asked for. *)
Definition anywhere (q : place) : bool := forallb (fun c => negb (is_owner c)) q.
