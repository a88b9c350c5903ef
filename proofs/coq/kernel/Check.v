(** The checker: from what is known before an event, what is known after it; loops by an invariant that is guessed and
    then verified.

    What it backs: the kernel. Nothing here is to be believed: Sound.v proves that what [check] accepts is correct.

    Main statement: [after_block], the definition; Decide.v goes on with loops. *)

From Coq Require Import Arith.
From Placealg.kernel Require Import Syntax.
From Placealg.kernel Require Export Knowledge.

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
Definition most_at (g : nat) : bool := match nth_error (groups p) g with Some d => most d | None => false end.
Definition losses : list nat := seq 0 (S (further p)).
(** How the reference weighs the tokens of a loss. *)
Definition means (n : nat) : ratio := fold_right by1 (by1 (Tokens n) (by1 Micro one)) (map Size (data p)).
Definition wanted (g n : nat) : list ratio :=
  if summed_at g then [one] else match weighs p, equal p with
  | Sum, _ => [one]
  | _, true => [means n]
  | TokenMean, false => [by1 (All n false) one]
  | MicrobatchMean, false => [by1 (All n true) (by1 Micro one)] end.
Definition ratio_in (k : ratio) (l : list ratio) : bool := existsb (fun k' => if ratio_eq k k' then true else false) l.
Definition weighed (g : nat) (co : list ratio) : bool :=
  forallb (fun n => (negb (graded_at g) && (0 <? n)) ||
    match nth_error co n with Some k => ratio_in k (wanted g n) | None => false end) losses.

(** The reference's gradient, before clipping. *)
Definition whole (g : nat) (c : content) : bool :=
  match c, now with
  | Sums s, Late => (if terms_eq s (Terms (how s) [] Before (sites_at g)) then true else false) &&
      match how s with None => most_at g | Some co => negb (most_at g) && weighed g co end
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
Definition amid : bool := match now with Amid => true | _ => false end.
(** A symbol of a program, in symbols whose meaning is known: where counts are equal, a count is a product. What is
    scaled is of microbatches up to some: a count of one is no number of others. *)
Definition meant (f : facts) (w : when) (s : symbol) : option (list symbol) :=
  match s with
  | Tokens n => if equal p && (n <=? further p) && amid then Some [s] else None
  | Count n =>
      match nth n (tallied (counts f)) None with
      | Some (each, un) =>
          if negb each || amid then
            if equal p then
              if (n <=? further p) && inside_of un (data p) then
                Some (Tokens n :: (if each then [] else [Micro]) ++
                      map Size (filter (fun a => negb (mem a un)) (data p)))
              else None
            else match un, each, w with
              | [], false, _ | [], true, Now => Some [All n each] | _, _, _ => None end
          else None
      | None => None end
  | Scaling => if current f LossScale then Some [s] else None
  | All _ _ => None
  | _ => Some [s] end.
Definition said (f : facts) (w : when) (k : ratio) : option ratio :=
  match everything (map (meant f w) (over k)), everything (map (meant f w) (under k)) with
  | Some o, Some u => Some (times (Ratio (concat o) (concat u)) one) | _, _ => None end.

(** An average begins as the parameters do. *)
Definition begun (y : slot) (c : content) : content :=
  match what y, c with Average, Params false => if start then Averaged false else c | _, _ => c end.

Definition after_event (f : facts) (g : nat) (k : table) (e : event) : table :=
  match e with
  | Broadcast x along => set k x match get k x with
      | Holds c q o => if rigid c along && still along q && forallb (fun c => negb (is_owner c)) (on_axes along q)
          then Holds c (off_axes along q) o else Any
      | h => h end
  | Gather x y s along q => set k y match get k x with
      | Holds c q' _ => if rigid c along && still along q' && forallb (owner_of s) (on_axes along q')
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
  | Accumulate x y larger q => set k y match get k y, get k x with
      | Absent, _ => Absent
      | Holds c q2 o, Holds d q1 _ => match added larger c d with
          | Some c => Holds c (union q2 (union q q1)) (o && within q2 q && within q2 q1)
          | None => Any end
      | _, _ => Any end
  | Scale y r q => set k y match get k y with
      | Absent => Absent
      | Holds (Sums s) q' o => match said f (pt s) r with
          | Some k => match scaled k s with
              | Some s => Holds (Sums s) (union q q') (o && within q' q) | None => Any end
          | None => Any end
      | _ => Any end
  | Reduce y along by_ to r => set k y match get k y with
      | Absent => Absent
      | Holds (Sums s as c) q o =>
          let at_ := match to with Some s => owners s along | None => [] end in
          match on_axes along q, said f (pt s) r with
          | [], Some k => match (if rigid c along then put_alike else put_together) by_ along k s, still along q with
              | Some s, true => Holds (Sums s) (union q at_) (o || within at_ q) | _, _ => Any end
          | _, _ => Any end
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
  match right && (length (factor f) =? S (further p)), everything (factor f) with
  | true, Some c =>
      if last (sites_at g) 0 =? u then Holds (Sums (Terms (Some c) (data p) Now [u])) [] true
      else match get k (At Grad Device) with
        | Holds (Sums s) [] _ => if terms_eq s (Terms (Some c) (data p) Now (from s))
            then Holds (Sums (Terms (Some c) (data p) Now (u :: from s))) [] true else Any
        | _ => Any end
  | _, _ => Any
  end.

(** Further terms of the loss that a unit has start as the first loss does. *)
Definition own_right (f : facts) (own : list ratio) : bool :=
  forallb (fun k => match nth 0 (factor f) None, said f Now k with
    | Some c, Some k => if ratio_eq k c then true else false | _, _ => false end) own.

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
      let right := nth u (kepts f) false && negb (graded_at g) in
      with_slots f (put_at g (set (nth_table (slots f) g) (At Grad Device)
        match right, said f Now k with
        | true, Some k =>
            if most_at g then if ratio_eq k one then Holds (Sums (Terms None (data p) Now [u])) [] true else Any
            else Holds (Sums (Terms (Some (map (fun _ => k) losses)) (data p) Now [u])) [] true
        | _, _ => Any end) (slots f))
  end.

Definition has_forward (l : list instr) : bool := existsb (fun e => match e with Forward => true | _ => false end) l.
Definition has_backward (l : list instr) : bool :=
  existsb (fun e => match e with Backward _ => true | _ => false end) l.
Definition entering (f g : flow) : flow := if flow_eq f g then Entered else Lost.
(** What enters the next instance is what has left this one. *)
Definition kept_up (f f' : flow) : bool :=
  match f, f' with Entered, Left => true | Entered, _ => false | _, _ => true end.
Definition leaving (f g : flow) : flow := match f with Entered => g | _ => Lost end.

(** The losses that flow backward, once this one does, too. *)
Definition after_loss (f : facts) (n : nat) : flow :=
  if flow_eq (acts f) (Outside units) then
    let l := n :: match cots f with Begun l => l | Outside 0 => losses | _ => [] end in
    if inside_of losses l then Outside 0 else Begun l
  else Lost.

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
  | Loss n k => match now with
      | Amid => Facts (slots f) (kepts f) (acts f) (after_loss f n) (put_at n (said f Now k) (factor f))
          (norms f) (counts f) (fine f)
      | _ => Facts (slots f) (kepts f) (acts f) Lost (put_at n None (factor f)) (norms f) (counts f) (fine f) end
  | ScaleLoss n k => Facts (slots f) (kepts f) (acts f) (cots f)
      (put_at n match nth n (factor f) None, said f Now k with
         | Some c, Some k => Some (times k c) | _, _ => None end (factor f))
      (norms f) (counts f) (fine f)
  | Norm g x q => Facts (slots f) (kepts f) (acts f) (cots f) (factor f)
      (put_at g match get (nth_table (slots f) g) x with
         | Holds c q' o => if whole g c && (o || within q q') then Some (union q q') else None
         | _ => None end (norms f)) (counts f) (fine f)
  | NormSum along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f)
      (map (fun n => fold_right (fun a n => match n with
         | Some q => spread a q
         | None => None end) n along) (norms f)) (counts f) (fine f)
  | Look g x q => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_looked (counts f) (put_at g match get (nth_table (slots f) g) x with
         | Holds c q' o => if whole g c && (o || within q q') then Some (union q q') else None
         | _ => None end (looked (counts f)))) (fine f)
  | LookMax along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_looked (counts f) (map (fun n => fold_right (fun a n => match n with
         | Some q => match on_axes [a] q with [] => if still [a] q then Some q else None | _ => spread a q end
         | None => None end) n along) (looked (counts f)))) (fine f)
  | CountTokens n each => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_tally (counts f) (put_at n (Some (each, data p)) (tallied (counts f)))) (fine f)
  | CountSum n along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (tell_tally (counts f) (put_at n (fold_right (fun a n => match n with
         | Some (e, un) => if mem a un then Some (e, filter (fun b => negb (a =? b)) un) else None
         | None => None end) (nth n (tallied (counts f)) None) along) (tallied (counts f)))) (fine f)
  | Tick c d firsts => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (after_tick start (decided f) (counts f) c d firsts) (fine f)
  | ShareTick c along => Facts (slots f) (kepts f) (acts f) (cots f) (factor f) (norms f)
      (after_share (counts f) c along) (fine f)
  end.
End Check.
