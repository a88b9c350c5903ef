(** The checker: from what is known before an event, what is known after it; loops by an invariant that is guessed and
    then verified.

    What it backs: the kernel. Nothing here is to be believed: Sound.v proves that what [check] accepts is correct.
      What
    is known of a slot is a lower bound ("on ranks at place q it is this"), and whether it is held nowhere else.

    Main statement: [after_block], the definition; Decide.v goes on with loops. *)

From Coq Require Import Arith.
From Placealg.kernel Require Import Syntax.
From Placealg.kernel Require Export Ratios.

Inductive when := Before | Now | Through.  (* of the current microbatch *)
Record terms := Terms { co : ratio; un : list nat; pt : when; from : list nat }.
Inductive content :=
  | Params (next : bool) | Moment (next : bool) | Zeroed | Sums (s : terms) | Clipped | Averaged (next : bool).
Inductive know := Any | Absent | Holds (c : content) (q : place) (only : bool).

(** Which instance has last computed: none known, all before unit n (of flow backward: n units from the end), all
    before the current one, the current one too. *)
Inductive flow := Lost | Outside (n : nat) | Entered | Left.
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
  tallied : option (list nat);  (* the axes over which the count of tokens has not been summed *)
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
Definition tell_tally (k : counters) (v : option (list nat)) : counters :=
  Counters (step_here k) (stream_here k) (scale_here k) (step_disk k) (stream_disk k) (scale_disk k) v (looked k).
Definition tell_looked (k : counters) (v : list (option place)) : counters :=
  Counters (step_here k) (stream_here k) (scale_here k) (step_disk k) (stream_disk k) (scale_disk k) (tallied k) v.

Record facts := Facts {
  slots : list table; kepts : list bool; acts : flow; cots : flow; factor : option ratio;
  norms : list (option place); counts : counters;
  fine : bool
}.

Definition clause_eq (c d : clause) : {c = d} + {c <> d}. Proof. decide equality; apply Nat.eq_dec. Defined.
Definition place_eq (q r : place) : {q = r} + {q <> r}. Proof. apply list_eq_dec, clause_eq. Defined.
Definition slot_eq (x y : slot) : {x = y} + {x <> y}. Proof. decide equality; decide equality. Defined.
Definition nats_eq (l m : list nat) : {l = m} + {l <> m}. Proof. apply list_eq_dec, Nat.eq_dec. Defined.
Definition terms_eq (s t : terms) : {s = t} + {s <> t}.
Proof. decide equality; [apply nats_eq | decide equality | apply nats_eq | apply ratio_eq]. Defined.
Definition bool_eq (b c : bool) : {b = c} + {b <> c}. Proof. decide equality. Defined.
Definition content_eq (c d : content) : {c = d} + {c <> d}.
Proof. decide equality; [apply bool_eq | apply bool_eq | apply terms_eq | apply bool_eq]. Defined.
Definition flow_eq (f g : flow) : {f = g} + {f <> g}. Proof. decide equality; apply Nat.eq_dec. Defined.

(** ** Places *)

Definition mem (a : nat) (l : list nat) : bool := existsb (Nat.eqb a) l.
Definition has (q : place) (c : clause) : bool := if in_dec clause_eq c q then true else false.
Definition within (q q' : place) : bool := forallb (has q) q'.
Definition union (q q' : place) : place := q ++ filter (fun c => negb (has q c)) q'.
Definition axis_of (c : clause) : nat := match c with Owner _ a => a | First a => a end.
Definition is_owner (c : clause) : bool := match c with Owner _ _ => true | First _ => false end.
Definition owner_of (s : nat) (c : clause) : bool := match c with Owner s' _ => s' =? s | First _ => false end.
Definition off_axes (along : list nat) (q : place) : place := filter (fun c => negb (mem (axis_of c) along)) q.
Definition on_axes (along : list nat) (q : place) : place := filter (fun c => mem (axis_of c) along) q.
Definition owners (s : nat) (along : list nat) : place := map (Owner s) along.

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

Definition added (c d : content) : option content :=
  match c, d with
  | Zeroed, Sums s => Some (Sums s)
  | Sums s, Sums s' => if terms_eq s (Terms (co s') (un s') Before (from s'))
      then match pt s' with Now => Some (Sums (Terms (co s) (un s) Through (from s))) | _ => None end else None
  | _, _ => None
  end.

Definition reduced1 (a : nat) (s : terms) : terms :=
  if mem a (un s) then Terms (co s) (filter (fun b => negb (a =? b)) (un s)) (pt s) (from s)
  else Terms (times1 (Size a) (co s)) (un s) (pt s) (from s).
Definition reduced (along : list nat) (s : terms) : terms := fold_right reduced1 s along.
Definition mean_of (along : list nat) (k : ratio) : ratio := fold_right (fun a => by1 (Size a)) k along.
Definition scaled (k : ratio) (s : terms) : terms := Terms (times k (co s)) (un s) (pt s) (from s).

Definition get (k : table) (x : slot) : know :=
  match find (fun e => if slot_eq (fst e) x then true else false) k with Some (_, h) => h | None => Any end.
Fixpoint set (k : table) (x : slot) (h : know) : table :=
  match k with [] => [(x, h)] | (y, h') :: k => if slot_eq y x then (x, h) :: k else (y, h') :: set k x h end.

Definition nth_table (l : list table) (g : nat) : table := nth g l [].
Fixpoint put_at {V : Type} (n : nat) (v : V) (l : list V) : list V :=
  match l, n with [], _ => [] | _ :: l, O => v :: l | x :: l, S n => x :: put_at n v l end.

(** The same for all elements: no owner is asked for. *)
Definition anywhere (q : place) : bool := forallb (fun c => negb (is_owner c)) q.

Section Check.
Variable p : program.
Variables (start : bool) (now : moment).

Definition sites_at (g : nat) : list nat := match nth_error (groups p) g with Some d => sites d | None => [] end.
Definition trained (g : nat) : bool := match nth_error (groups p) g with Some d => negb (frozen d) | None => false end.
Definition graded_at (g : nat) : bool := match nth_error (groups p) g with Some d => graded d | None => false end.
Definition summed_at (g : nat) : bool := match nth_error (groups p) g with Some d => summed d | None => false end.
Definition whole_of (v : value) (g : nat) : bool :=
  match nth_error (groups p) g with Some d => existsb (value_eqb v) (whole_reads d) | None => false end.
Definition local_to (v : value) (g : nat) (q : place) : bool := negb (whole_of v g) || anywhere q.
Definition uses (u g : nat) : bool := mem u (sites_at g).
Definition units : nat := length (repeated p).
Definition wanted (g : nat) : list ratio :=
  if summed_at g then [one] else match weighs p with
  | TokenMean => [by1 Count one] | MicrobatchMean => if equal p then [by1 Count one] else [] | Sum => [one] end ++
  match weighs p with
  | Sum => [] | _ => if equal p then [fold_right by1 (by1 Tokens (by1 Micro one)) (map Size (data p))] else [] end.

(** The reference's gradient, before clipping. *)
Definition whole (g : nat) (c : content) : bool :=
  match c, now with
  | Sums s, Late => existsb (fun k => if terms_eq s (Terms k [] Before (sites_at g)) then true else false) (wanted g)
  | _, _ => false
  end.
Definition ready (g : nat) (c : content) : bool :=
  if clips p && graded_at g then match c with Clipped => true | _ => false end else whole g c.
(** Every rank knows whether the step is left out. *)
Definition decided (f : facts) : bool := negb (skips p) ||
  forallb (fun g => negb (graded_at g) || match nth g (looked (counts f)) None with Some [] => true | _ => false end)
    (seq 0 (length (groups p))).
Definition normed (f : facts) : bool :=
  forallb (fun g => negb (graded_at g) || match nth g (norms f) None with Some [] => true | _ => false end)
    (seq 0 (length (groups p))).
Definition current (f : facts) (c : counter) : bool :=
  match told (counts f) c false with Ticks false [] _ => true | _ => false end.
Definition sayable1 (f : facts) (s : symbol) : bool :=
  match s with
  | Tokens => equal p && match now with Amid => true | _ => false end
  | Count => match tallied (counts f) with Some [] => true | _ => false end
  | Scaling => current f LossScale
  | _ => true end.
Definition sayable (f : facts) (k : ratio) : bool := forallb (sayable1 f) (over k ++ under k).

(** An average begins as the parameters do. *)
Definition begun (y : slot) (c : content) : content :=
  match what y, c with Average, Params false => if start then Averaged false else c | _, _ => c end.

Definition after_event (f : facts) (g : nat) (k : table) (e : event) : table :=
  match e with
  | Broadcast x along => set k x match get k x with
      | Holds c q o => if rigid c along && forallb (fun c => negb (is_owner c)) (on_axes along q)
          then Holds c (off_axes along q) o else Any
      | h => h end
  | Gather x y s along q => set k y match get k x with
      | Holds c q' _ => if rigid c along && forallb (owner_of s) (on_axes along q')
          then Holds c (union q (off_axes along q')) (outside_none (get k y) q && within q (off_axes along q'))
          else Any
      | _ => Any end
  | Initial y q => set k y (if start then Holds (Moment false) q (outside_none (get k y) q) else Any)
  | Copy x y q => set k y match get k x with
      | Holds c q' o => Holds (begun y c) (union q q') (outside_none (get k y) q && (o || within q q'))
      | Absent => if outside_none (get k y) q then Absent else Any
      | Any => Any end
  | Publish x y q => match get k x with
      | Holds c q' o => set k y (Holds c (union q q') (outside_none (get k y) (union q q') && (o || within q q')))
      | Absent => k
      | Any => set k y Any end
  | Keep x s along => set k x match get k x with
      | Holds c q o => Holds c (union q (owners s along)) (o || within (owners s along) q)
      | h => h end
  | Free x q => set k x match get k x with Absent => Absent | _ => match q with [] => Absent | _ => Any end end
  | Zero y q => set k y (Holds Zeroed q (outside_none (get k y) q))
  | Accumulate x y q => set k y match get k y, get k x with
      | Absent, _ => Absent
      | Holds c q2 o, Holds d q1 _ => match added c d with
          | Some c => Holds c (union q2 (union q q1)) (o && within q2 q && within q2 q1)
          | None => Any end
      | _, _ => Any end
  | Scale y r q => set k y match get k y with
      | Absent => Absent
      | Holds (Sums s) q' o => if sayable f r then Holds (Sums (scaled r s)) (union q q') (o && within q' q) else Any
      | _ => Any end
  | Reduce y along by_ to r => set k y match get k y with
      | Absent => Absent
      | Holds (Sums s) q o =>
          let at_ := match to with Some s => owners s along | None => [] end in
          if sayable f r && match on_axes along q with [] => true | _ => false end then
            let s := reduced along s in
            let s := match by_ with Mean => Terms (mean_of along (co s)) (un s) (pt s) (from s) | _ => s end in
            Holds (Sums (scaled r s)) (union q at_) (o || within at_ q)
          else Any
      | _ => Any end
  | Clip y q => set k y match get k y with
      | Absent => Absent
      | Holds c q' o => if normed f && whole g c then Holds Clipped (union q q') (o && within q' q) else Any
      | Any => Any end
  | Update t n q =>
      let x := At Master t in let o := At Moments t in
      match get k x, get k o, get k (At GradSum t) with
      | Holds (Params false) q1 o1, Holds (Moment false) q2 o2, Holds c q3 _ =>
          let q' := union q q1 in
          if decided f && trained g && local_to Master g q1 && local_to Moments g q2 && local_to GradSum g q3 &&
             current f Step && ready g c && (if ratio_eq n one then true else false) &&
             within q' q2 && within q' q3 then
            set (set k x (Holds (Params true) q' (o1 && within q1 q)))
                o (Holds (Moment true) q' (o2 && o1 && within q2 q'))
          else set (set k x Any) o Any
      | _, _, _ => set (set k x Any) o Any end
  | TakeIn x y q => set k y match get k y, get k x with
      | Absent, _ => Absent
      | Holds (Averaged false) q2 o, Holds (Params true) q1 _ =>
          Holds (Averaged true) (union q2 (union q q1)) (o && within q2 q && within q2 q1)
      | _, _ => Any end
  end.

Definition weight_right (k : table) : bool :=
  match get k (At Weight Device) with Holds (Params false) [] _ => true | _ => false end.
Definition group_numbers : list nat := seq 0 (length (groups p)).
Definition weights_right (u : nat) (f : facts) : bool :=
  forallb (fun g => negb (uses u g) || weight_right (nth_table (slots f) g)) group_numbers.

Definition with_slots (f : facts) (l : list table) : facts :=
  Facts l (kepts f) (acts f) (cots f) (factor f) (norms f) (counts f) (fine f).
Definition with_flows (f : facts) (a c : flow) : facts :=
  Facts (slots f) (kepts f) a c (factor f) (norms f) (counts f) (fine f).

(** What backward leaves in the gradient of a group that the unit uses. *)
Definition deposited (f : facts) (u g : nat) (right : bool) (k : table) : know :=
  match right, factor f with
  | true, Some c =>
      if last (sites_at g) 0 =? u then Holds (Sums (Terms c (data p) Now [u])) [] true
      else match get k (At Grad Device) with
        | Holds (Sums s) [] _ => if terms_eq s (Terms c (data p) Now (from s))
            then Holds (Sums (Terms c (data p) Now (u :: from s))) [] true else Any
        | _ => Any end
  | _, _ => Any
  end.

(** Further terms of the loss that a unit has start as the loss does. *)
Definition own_right (f : facts) (own : list ratio) : bool :=
  forallb (fun k => match factor f with
    | Some c => sayable f k && (if ratio_eq (times k one) c then true else false) | None => false end) own.

Definition after_instr (u : nat) (f : facts) (e : instr) : facts :=
  match e with
  | On g e => with_slots f (put_at g (after_event f g (nth_table (slots f) g) e) (slots f))
  | Forward =>
      let seen := weights_right u f in
      let right := seen && current f Stream && match acts f with Entered => true | _ => false end in
      Facts (slots f) (put_at u right (kepts f)) (if right then Left else Lost) (cots f) (factor f) (norms f)
        (counts f) (fine f && seen)
  | Backward own =>
      let seen := weights_right u f in
      let right := seen && own_right f own && nth u (kepts f) false && match cots f, now with
        | Entered, Amid => true | _, _ => false end in
      Facts (map (fun g => let k := nth_table (slots f) g in
                    if uses u g && graded_at g then set k (At Grad Device) (deposited f u g right k) else k)
                      group_numbers)
            (kepts f) (acts f) (if right then Left else Lost) (factor f) (norms f) (counts f) (fine f && seen)
  | Take g k =>
      let right := nth u (kepts f) false && negb (graded_at g) && sayable f k in
      with_slots f (put_at g (set (nth_table (slots f) g) (At Grad Device)
        (if right then Holds (Sums (Terms (times k one) (data p) Now [u])) [] true else Any)) (slots f))
  end.

Definition has_forward (l : list instr) : bool := existsb (fun e => match e with Forward => true | _ => false end) l.
Definition has_backward (l : list instr) : bool :=
  existsb (fun e => match e with Backward _ => true | _ => false end) l.
Definition entering (f g : flow) : flow := if flow_eq f g then Entered else Lost.
(** What enters the next instance is what has left this one. *)
Definition kept_up (f f' : flow) : bool :=
  match f, f' with Entered, Left => true | Entered, _ => false | _, _ => true end.
Definition leaving (f g : flow) : flow := match f with Entered => g | _ => Lost end.

Definition after_block (f : facts) (b : block) : facts :=
  match b with
  | Each u reversed body =>
      let fw := has_forward body in let bw := has_backward body in
      let a := if fw && negb reversed then entering (acts f) (Outside u) else Lost in
      let c := if bw && reversed then entering (cots f) (Outside (units - 1 - u)) else Lost in
      let f1 := fold_left (after_instr u) body (with_flows f a c) in
      let goes := kept_up a (acts f1) && kept_up c (cots f1) in
      let f1 := if goes then f1 else fold_left (after_instr u) body (with_flows f Lost Lost) in
      with_flows f1 (if fw then if goes then leaving a (Outside (S u)) else Lost else acts f)
                    (if bw then if goes then leaving c (Outside (units - u)) else Lost else cots f)
  | Loss k => match now with
      | Amid => Facts (slots f) (kepts f) (acts f)
          (if flow_eq (acts f) (Outside units) then Outside 0 else Lost)
          (if sayable f k then Some (times k one) else None) (norms f) (counts f) (fine f)
      | _ => Facts (slots f) (kepts f) (acts f) Lost None (norms f) (counts f) (fine f) end
  | ScaleLoss k => Facts (slots f) (kepts f) (acts f) (cots f)
      match factor f with Some c => if sayable f k then Some (times k c) else None | None => None end
      (norms f) (counts f) (fine f)
  | Norm g x q => Facts (slots f) (kepts f) (acts f) (cots f) (factor f)
      (put_at g match get (nth_table (slots f) g) x with
         | Holds c q' o => if whole g c && (o || within q q') then Some (union q q') else None
         | _ => None end (norms f)) (counts f) (fine f)
  | NormSum along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f)
      (map (fun n => fold_right (fun a n => match n with
         | Some q => match on_axes [a] q with [_] => Some (off_axes [a] q) | _ => None end
         | None => None end) n along) (norms f)) (counts f) (fine f)
  | Look g x q => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_looked (counts f) (put_at g match get (nth_table (slots f) g) x with
         | Holds c q' o => if whole g c && (o || within q q') then Some (union q q') else None
         | _ => None end (looked (counts f)))) (fine f)
  | LookMax along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_looked (counts f) (map (fun n => fold_right (fun a n => match n with
         | Some q => match on_axes [a] q with [_] => Some (off_axes [a] q) | [] => Some q | _ => None end
         | None => None end) n along) (looked (counts f)))) (fine f)
  | CountTokens => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_tally (counts f) (Some (data p))) (fine f)
  | CountSum along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_tally (counts f) (fold_right (fun a n => match n with
         | Some un => if mem a un then Some (filter (fun b => negb (a =? b)) un) else None
         | None => None end) (tallied (counts f)) along)) (fine f)
  | Tick c d firsts => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (after_tick start (decided f) (counts f) c d firsts) (fine f)
  | ShareTick c along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (after_share (counts f) c along) (fine f)
  end.
End Check.
