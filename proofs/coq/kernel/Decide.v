(** The checker, continued: the loops over microbatches and steps, by invariants that are guessed and then verified.

    What it backs: the kernel. Nothing here is to be believed: Sound.v proves that what [check] accepts is correct.

    Main statement: [check], the definition; it is extracted and runs without Coq. *)

From Coq Require Import Arith.
From Placealg.kernel Require Import Syntax.
From Placealg.kernel Require Import Check.

Section Decide.
Variable p : program.

Definition after (start : bool) (now : moment) (l : list block) (f : facts) : facts :=
  fold_left (after_block p start now) l f.

(** ** Facts, compared *)

Definition entails_table (k k' : table) : bool := forallb (fun e => entails (get k (fst e)) (snd e)) k'.
Definition merge_table (k k' : table) : table := map (fun e => (fst e, merge (snd e) (get k' (fst e)))) k.
Definition norm_entails (n n' : option place) : bool :=
  match n, n' with _, None => true | Some q, Some q' => if place_eq q q' then true else false | _, _ => false end.
Definition count_entails (n n' : ticks) : bool :=
  match n, n' with
  | _, Unsaid => true | Unheld, Unheld => true
  | Ticks b l o, Ticks b' l' o' =>
      (if bool_eq b b' then true else false) && inside_of l l' && (negb o' || (o && inside_of l' l))
  | _, _ => false end.
Definition on_counts (g : ticks -> ticks -> ticks) (k l : counters) : counters :=
  Counters (g (step_here k) (step_here l)) (g (stream_here k) (stream_here l)) (g (scale_here k) (scale_here l))
           (g (step_disk k) (step_disk l)) (g (stream_disk k) (stream_disk l)) (g (scale_disk k) (scale_disk l))
           (forgotten k)
           (map (fun _ => None) (looked k)).
Definition tally_entails (n n' : option (bool * list nat)) : bool :=
  match n, n' with
  | _, None => true | Some (e, q), Some (e', q') => eqb e e' && if nats_eq q q' then true else false | _, _ => false
    end.
Fixpoint all2 {V : Type} (f : V -> V -> bool) (l m : list V) : bool :=
  match l, m with [], [] => true | x :: l, y :: m => f x y && all2 f l m | _, _ => false end.
Definition counts_entail (k l : counters) : bool :=
  count_entails (step_here k) (step_here l) && count_entails (stream_here k) (stream_here l) &&
  count_entails (scale_here k) (scale_here l) && count_entails (step_disk k) (step_disk l) &&
  count_entails (stream_disk k) (stream_disk l) && count_entails (scale_disk k) (scale_disk l) &&
  all2 tally_entails (tallied k) (tallied l) && all2 norm_entails (looked k) (looked l).
Fixpoint zip {V W U : Type} (f : V -> W -> U) (l : list V) (m : list W) : list U :=
  match l, m with x :: l, y :: m => f x y :: zip f l m | _, _ => [] end.
(** Without the activations of a microbatch. *)
Definition quiet (f : facts) : facts :=
  Facts (slots f) (map (fun _ => false) (kepts f)) Lost Lost [] (norms f) (counts f) (fine f).
Definition entails_facts (f f' : facts) : bool :=
  all2 entails_table (slots f) (slots f') && all2 norm_entails (norms f) (norms f') &&
  counts_entail (counts f) (counts f') && (negb (fine f') || fine f).
Definition merge_facts (f f' : facts) : facts :=
  Facts (zip merge_table (slots f) (slots f')) (kepts f) Lost Lost []
        (zip (fun n n' => if norm_entails n n' then n' else None) (norms f) (norms f'))
        (tell_tally (on_counts (fun n n' => if count_entails n n' then n' else Unsaid) (counts f) (counts f'))
          (zip (fun q q' => if tally_entails q q' then q' else None) (tallied (counts f)) (tallied (counts f'))))
        (fine f && fine f').
Definition map_slots (s : know -> know) (f : facts) : facts :=
  Facts (map (map (fun e => (fst e, s (snd e)))) (slots f)) (kepts f) (acts f) (cots f) (factor f) (norms f)
    (counts f) (fine f).

(** ** The loop over microbatches *)

(** What a fact about microbatch j is about microbatch j + 1, at the end of the body. *)
Definition pass (h : know) : know :=
  match h with
  | Holds (Sums s) q o => match pt s with
      | Through => Holds (Sums (Terms (how s) (un s) Before (from s))) q o | _ => Any end
  | h => h end.
(** Before the first microbatch a sum over those before is 0. *)
Definition begin_sums (h h' : know) : know :=
  match h, h' with
  | Holds Zeroed q o, Holds (Sums s) _ _ => match pt s with
      | Before => Holds (Sums s) q o | _ => h end
  | _, _ => h end.
Definition guess (h h' : know) : know :=
  match h, h' with
  | Holds Zeroed q o, Holds (Sums s) _ _ => Holds (Sums (Terms (how s) (un s) Before (from s))) q o
  | _, _ => merge h (pass h') end.
Definition guess_table (k k' : table) : table := map (fun e => (fst e, guess (snd e) (get k' (fst e)))) k.
Definition begin_table (k k' : table) : table := map (fun e => (fst e, begin_sums (snd e) (get k' (fst e)))) k.

Definition entered (f : facts) : facts :=
  Facts (slots f) (map (fun _ => false) (kepts f)) (Outside 0) Lost (map (fun _ => None) (losses p)) (norms f)
    (counts f) (fine f).
Definition passing (f : facts) : facts :=
  let f := map_slots pass f in
  Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f) (tell_tally (counts f) (lasting (counts f))) (fine
    f).
Definition body (b : list block) (f : facts) : facts := quiet (passing (after false Amid b (entered f))).
Definition invariant (b : list block) (f : facts) : facts :=
  let f' := after false Amid b (entered f) in
  let g := merge_facts f (quiet (passing f')) in
  quiet (Facts (zip guess_table (slots f) (slots f')) (kepts f) Lost Lost [] (norms g) (counts g) (fine g)).
Definition begins (f g : facts) : facts :=
  Facts (zip begin_table (slots f) (slots g)) (kepts f) Lost Lost [] (norms f) (counts f) (fine f).

Definition sized (f : facts) : bool :=
  (length (slots f) =? length (groups p)) && (length (kepts f) =? length (repeated p)).

(** What is known behind the loop, if the guess holds. Where the ends are apart, it holds behind one microbatch, and
    behind the last of several; the middle ones begin with a guess of their own. *)
Definition after_loop (f : facts) : option facts :=
  match at_ends p with
  | Alike =>
      let g := invariant (inside p) f in
      if sized g && entails_facts (begins f g) g && entails_facts (body (inside p) g) g then Some g else None
  | Apart alone first last =>
      let f0 := begins f (invariant first f) in
      let f1 := body first f0 in
      let g := quiet (merge_facts f1 (body (inside p) f1)) in
      let a := body alone f0 in
      let c := body last g in
      let r := quiet (merge_facts a c) in
      if sized (invariant first f) && sized g && sized r && entails_facts f1 g && entails_facts (body (inside p) g) g &&
         entails_facts a r && entails_facts c r then Some r else None
  end.

Definition on_disk (x : slot) : bool := match on x with Disk => true | _ => false end.
Definition refreshed (f : facts) : facts :=
  Facts (map (map (fun e => (fst e, if on_disk (fst e) then Any else snd e))) (slots f)) (kepts f) Lost Lost []
    (norms f) (Counters (step_here (counts f)) (stream_here (counts f)) (scale_here (counts f)) Unsaid Unsaid Unsaid
      (forgotten (counts f)) (looked (counts f))) true.
Definition after_step (f : facts) : option facts :=
  match after_loop (after false Early (prepare p) (refreshed f)) with
  | Some f => Some (quiet (after false Late (outside p) f))
  | None => None end.

(** ** Steps, saves, resumes *)

(** What a fact of step t is about step t + 1, behind step t. *)
Definition turn (h : know) : know :=
  match h with
  | Holds (Params true) q o => Holds (Params false) q o
  | Holds (Moment true) q o => Holds (Moment false) q o
  | Holds (Averaged true) q o => Holds (Averaged false) q o
  | Holds Zeroed q o => Holds Zeroed q o
  | Absent => Absent
  | _ => Any end.
(** What is frozen is in the next step what it was. *)
Definition stay (h : know) : know :=
  match h with Holds (Params true) _ _ => Any | Holds (Params false) _ _ => h | _ => turn h end.
Definition turn_group (d : group) (k : table) : table :=
  map (fun e => (fst e, if frozen d then stay (snd e) else turn (snd e))) k.
Definition turned (f : facts) : facts :=
  Facts (zip turn_group (groups p) (slots f)) (map (fun _ => false) (kepts f)) Lost Lost [] (map (fun _ => None)
    (norms f))
        (on_counts (fun n _ => match n with Ticks true l o => Ticks false l o | Unheld => Unheld | _ => Unsaid end)
          (counts f) (counts f)) (fine f).

Definition after_save (f : facts) : facts :=
  let f := Facts (map (map (fun e => (fst e, if on_disk (fst e) then Absent else snd e))) (slots f)) (kepts f) Lost
    Lost []
                 (norms f) (Counters (step_here (counts f)) (stream_here (counts f)) (scale_here (counts f))
                   Unheld Unheld Unheld (forgotten (counts f))
                   (map (fun _ => None) (groups p))) (fine f) in
  quiet (after false Early (save p) f).
Definition after_off (f : facts) : facts :=
  Facts (map (map (fun e => (fst e, if on_disk (fst e) then snd e
                                   else if slot_eq (fst e) (At Weight Device) then Any else Absent))) (slots f))
        (kepts f) Lost Lost [] (map (fun _ => None) (norms f)) (Counters Unheld Unheld Unheld (step_disk (counts f))
          (stream_disk (counts f)) (scale_disk (counts f)) (forgotten (counts f)) (map (fun _ => None) (looked (counts
            f)))) true.
Definition after_resume (f : facts) : facts := quiet (after false Early (resume p) (after_off f)).

(** The slots that matter: those of the device, of the checkpoint, and of the tiers that events name. *)
Definition slots_of (e : event) : list slot :=
  match e with
  | Broadcast x _ | Keep x _ _ | Free x _ | Initial x _ | Zero x _ | Scale x _ _ | Reduce x _ _ _ _ | Clip x _ => [x]
  | Gather x y _ _ _ | Copy x y _ | Publish x y _ | Accumulate x y _ _ | TakeIn x y _ => [x; y]
  | Update t _ _ => [At Master t] end.
Definition of_tier (k : tier) : list slot := [At Weight k; At Master k; At Moments k; At Grad k; At GradSum k].
Definition names (is : tier -> bool) (b : block) : bool :=
  match b with
  | Each _ _ l => existsb (fun e => match e with On _ e => existsb (fun x => is (on x)) (slots_of e) | _ => false
    end) l
  | Norm _ x _ | Look _ x _ => is (on x)
  | _ => false end.
Definition on_tier (is : tier -> bool) : bool :=
  existsb (existsb (names is)) [prepare p; bodies p; outside p; init p; save p; resume p].
Definition averages (d : group) : bool := match average_rests d with NoAverage => false | _ => true end.
Definition named : list slot :=
  (if existsb averages (groups p) then map (At Average) [Device; Host; Nvme; Disk] else []) ++
  of_tier Device ++ [At Weight Disk; At Moments Disk] ++
  (if on_tier (fun k => match k with Host => true | _ => false end) then of_tier Host else []) ++
  (if on_tier (fun k => match k with Nvme => true | _ => false end) then of_tier Nvme else []).
Definition at_power_on : facts :=
  let first := Holds (Params false) (map First (axes p)) false in
  let k := map (fun x => (x, if slot_eq x (At Weight Device) then first else if on_disk x then Any else Absent))
    named in
  Facts (map (fun _ => k) (groups p)) (map (fun _ => false) (repeated p)) Lost Lost [] (map (fun _ => None)
    (groups p))
        (Counters Unheld Unheld Unheld Unsaid Unsaid Unsaid (map (fun _ => None) (losses p))
          (map (fun _ => None) (groups p))) true.
Definition initialised : facts := quiet (after true Early (init p) at_power_on).

(** Facts that hold between steps: whatever was saved, and wherever the run was resumed. The first guess is what holds
    before the first step, but for gradients; the second what holds before it and the next. *)
Definition next (f : facts) : option facts := option_map turned (after_step f).
Definition holds_between (f g : facts) : bool :=
  let s := after_save f in entails_facts s g && (negb (resumes p) || entails_facts (after_resume s) g).
Definition gradient_slot (x : slot) : bool := match what x with Grad | GradSum => true | _ => false end.
Definition without_gradients (f : facts) : facts :=
  quiet (Facts (map (map (fun e => (fst e, if gradient_slot (fst e) then Any else snd e))) (slots f)) (kepts f)
    Lost Lost
    [] (norms f) (counts f) (fine f)).
Definition first_guess : facts :=
  let s := after_save initialised in
  without_gradients (if resumes p then merge_facts s (after_resume s) else s).
Definition second_guess (f f' : facts) : facts :=
  let s := after_save f' in let g := merge_facts f s in quiet (if resumes p then merge_facts g (after_resume s) else
    g).

(** ** What a program has to be like, and the verdict *)

Definition good_instr (u : nat) (e : instr) : bool :=
  match e with On g _ | Take g _ => (g <? length (groups p)) && uses p u g | _ => true end.
Definition good_block (b : block) : bool :=
  match b with
  | Each u _ l => (u <? units p) && forallb (good_instr u) l
  | Norm g _ _ | Look g _ _ => g <? length (groups p)
  | _ => true end.
(** Some rank is at such a place. *)
Definition one_layout (q : place) : bool :=
  match q with Owner s _ :: _ => forallb (owner_of s) q && still (map axis_of q) q | [] => true | _ => false end.
(** Groups with several uses belong to units that are not repeated. *)
Definition good_group (d : group) : bool :=
  match sites d with
  | [] => false
  | [u] => u <? units p
  | l => forallb (fun u => (u <? units p) && negb (nth u (repeated p) false)) l end &&
  (one_layout (rests d) && match average_rests d with AverageAt q _ => one_layout q | NoAverage => true end).
Fixpoint once (l : list nat) : bool := match l with [] => true | a :: l => negb (mem a l) && once l end.
Definition well_formed : bool :=
  once (data p) && forallb good_group (groups p) &&
  forallb good_block (init p ++ prepare p ++ bodies p ++ outside p ++ save p ++ resume p).

Definition rested (f : facts) (n : nat) : bool :=
  match nth_error (groups p) n, nth_error (slots f) n with
  | Some d, Some k =>
    match get k (At Weight (lies d)) with Holds (Params false) q _ => within (rests d) q | _ => false end &&
    match get k (At Weight Disk) with Absent => true | Holds (Params false) _ true => true | _ => false end &&
    match get k (At Moments Disk) with Absent => true | Holds (Moment false) _ true => true | _ => false end &&
    match average_rests d with
    | AverageAt q t =>
        match get k (At Average t) with Holds (Averaged false) q' _ => within q q' | _ => false end &&
        match get k (At Average Disk) with Absent => true | Holds (Averaged false) _ true => true | _ => false end
    | NoAverage => true end
  | _, _ => false end.

(** [f'] is what holds behind a step that begins with [f]. *)
Definition settled (f f' : facts) : bool :=
  sized f && holds_between initialised f && fine f' && holds_between f' f &&
  forallb (rested f) (seq 0 (length (groups p))) &&
  (negb (resumes p) || forallb (fun c => negb (carried p c) ||
     match told (counts f) c true with Ticks false _ true => true | _ => false end) [Step; Stream; LossScale]).

Definition check : bool :=
  well_formed &&
  let f := first_guess in
  match next f with
  | None => false
  | Some f' =>
    settled f f' ||
    let g := second_guess f f' in
    match next g with Some g' => settled g g' | None => false end
  end.
End Decide.
