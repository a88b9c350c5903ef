(** A checker of programs of ops.

    What it backs: [check] of placealg/prover/kernel/extraction.py, which Coq extracts from here.

    Main statement: [check]; that what it accepts is correct stands in Sound.v. *)

From Placealg.kernel Require Import Prelude Machine Meaning Trie Kinds Sends.

(** ** Factors. *)
Fixpoint mono_times (m m' : mono) : mono :=
  match m, m' with
  | [], _ => m' | _, [] => m
  | (p, n) :: m, (p', n') :: m' => (p + p', n + n') :: mono_times m m' end.
Definition mono_over (m m' : mono) : mono := mono_times m (map (fun e => (snd e, fst e)) m').
Fixpoint cancels (m : mono) : bool := match m with [] => true | (p, n) :: m => (p =? n) && cancels m end.
Definition mono_same (m m' : mono) : bool := cancels (mono_over m m').
Definition is_one (ones : list mono) (m : mono) : bool :=
  cancels m || existsb (fun o => mono_same m o || cancels (mono_times m o)) ones.

(** A factor that is 1, as none. *)
Definition reduced (ones : list mono) (m : mono) : mono := if is_one ones m then [] else m.

(** ** What is known of one tensor: how it lies, and by which factor it is not what it means. *)
Record fact := Fact { kinds : list kind; factor : mono }.
Definition kind_at (t : fact) (a : nat) : kind := nth a (kinds t) Full.

Fixpoint sequence {A : Type} (l : list (option A)) : option (list A) :=
  match l with
  | [] => Some []
  | Some x :: l => match sequence l with Some l => Some (x :: l) | None => None end
  | None :: _ => None end.
Definition add_kind (split : option nat) (ks : list kind) : option kind :=
  match split with
  | Some d => if forallb (along d) ks then Some (Shard d) else None
  | None => if forallb is_full ks then Some Full else if forallb is_part ks then Some Part else None
  end.

Definition atom_of (k : nat) : mono := repeat (0, 0) k ++ [(1, 0)].

Section Checker.
Variables (g : mesh) (ones : list mono).
Definition per_axis (rule : nat -> option kind) : option (list kind) := sequence (map rule (seq 0 (axes g))).
Definition rename_kind (p : renaming) (k : kind) : option kind :=
  match k with
  | Shard d => if forallb (fun e => renamed p e =? e) (touches g d) then Some (Shard d)
      else if (likeness g (renamed p d) =? likeness g d) && plain g d && plain g (renamed p d)
      then Some (Shard (renamed p d)) else None
  | k => Some k end.
Definition with_factor (m : mono) (ks : option (list kind)) : option fact :=
  match ks with Some ks => Some (Fact ks m) | None => None end.

(** What an op makes of what is known of its operands. Nothing is sent along axis 0. *)
Definition infer (o : op) (ts : list fact) : option fact :=
  match o with
  | Einsum s over => with_factor (fold_right (fun t m => mono_times (factor t) m) [] ts)
      (per_axis (fun a => einsum_kind (touches g) over (at_axis s a) (map (fun t => kind_at t a) ts)))
  | Row f over s => if forallb (fun t => is_one ones (factor t)) ts
      then with_factor [] (per_axis (fun a => row_kind (touches g) over (at_axis s a) (map (fun t => kind_at t a) ts)))
      else None
  | Add s => match ts with
    | t :: _ => if forallb (fun t' => mono_same (factor t') (factor t)) ts
        then with_factor (factor t) (per_axis (fun a => add_kind (at_axis s a) (map (fun t => kind_at t a) ts)))
          else None
    | [] => None end
  | Scale m => match ts with [t] => Some (Fact (kinds t) (reduced ones (mono_times m (factor t)))) | _ => None end
  | Rename p => match ts with [t] => with_factor (factor t) (per_axis (fun a => rename_kind p (kind_at t a))) | _ =>
    None end
  | Send a s => match ts with
    | [t] => if (a <? axes g) && negb (a =? 0) then match s, kind_at t a, find (fun q => fst q =? a) (sized g) with
        | AllReduce, Full, Some q => Some (Fact (kinds t) (reduced ones (mono_times (atom_of (snd q)) (factor t))))
        | _, _, _ => with_factor (factor t)
            (per_axis (fun b => if b =? a then sent_kind s (kind_at t a) else Some (kind_at t b))) end else None
    | _ => None end
  end.

(** ** Whether an op is a line of the single device, and by which factor it falls short of it. *)
Fixpoint same_list {A : Type} (same : A -> A -> bool) (l l' : list A) : bool :=
  match l, l' with [], [] => true | a :: l, a' :: l' => same a a' && same_list same l l' | _, _ => false end.
Definition same_pair (q q' : nat * nat) : bool := (fst q =? fst q') && (snd q =? snd q').
Definition is_line (o : op) (s : single) : option mono :=
  match o, s with
  | Einsum _ over, SEinsum over' => if same_list Nat.eqb over over' then Some [] else None
  | Row f over _, SRow f' over' => if (f =? f') && same_list Nat.eqb over over' then Some [] else None
  | Add _, SAdd => Some []
  | Scale _, SScale m => Some m
  | Rename p, SRename p' => if same_list same_pair p p' then Some [] else None
  | _, _ => None end.
(** What leaves a value as it is, up to a factor. *)
Definition keeps (o : op) : bool := match o with Scale _ | Send _ _ => true | _ => false end.

(** ** Ways that move with the instances of a unit. *)
Definition all_still (ks : list kind) : bool := forallb (fun k => match k with Shard d => still g d | _ => true end) ks.
Definition move_kind (from to : nat) (k : kind) : kind :=
  match k with Shard d => if d =? from then Shard to else k | _ => k end.
Definition moved (u : nat) (from to : moves -> nat) (t : fact) : fact :=
  match find (fun f => of_unit f =? u) (moving g) with
  | Some f => Fact (map (move_kind (from f) (to f)) (kinds t)) (factor t)
  | None => t end.

(** ** What is known of slots. *)
Definition ix_eqb (x y : ix) : bool :=
  match x, y with First, First => true | This, This => true | Next, Next => true | Last u, Last u' => u =? u' | _,
    _ => false end.
Definition named_eqb (n n' : named) : bool := (fst n =? fst n')%positive && ix_eqb (snd n) (snd n').
Definition unit_eqb (u u' : option nat) : bool :=
  match u, u' with None, None => true | Some a, Some b => a =? b | _, _ => false end.
(** In the instances of a unit, or in the one: zero, or what is known of it and which value it is. *)
Record item := Item { instances : option nat; what : option (fact * named) }.
Record known := Known { shared : trie item; each : trie item }.
Definition find_slot (k : known) (s : slot) : option item :=
  match s with Shared n => get (shared k) n | Each n => get (each k) n end.
Definition put_slot (s : slot) (x : option item) (k : known) : known :=
  match s with Shared n => Known (set n x (shared k)) (each k) | Each n => Known (shared k) (set n x (each k)) end.
Definition forget (l : list slot) (k : known) : known := fold_right (fun s k => put_slot s None k) k l.
Definition nothing : known := Known Leaf Leaf.

Definition out_of (x : instr) : slot := match x with Do _ _ out _ => out | Read _ out => out | Zero out => out | Free
  out => out end.
Definition written (b : block) : list slot := match b with Run is => map out_of is | Layers _ _ _ is => map out_of is
  end.

Variables (table : trie (option nat * line)) (inputs : list held).
Section Scope.
(** In the instances of which unit, and whether in a microbatch. *)
Variables (u : option nat) (inside : bool).
Definition scope_of (s : slot) : option (option nat) :=
  match s, u with Shared _, _ => Some None | Each _, Some u => Some (Some u) | Each _, None => None end.
Definition arg (k : known) (s : slot) : option (fact * named) :=
  match find_slot k s, scope_of s with
  | Some x, Some v => if unit_eqb (instances x) v then what x else None
  | _, _ => None end.
Definition fixed_ix (n : named) : bool := match snd n with First | Last _ => true | _ => false end.
(** Outside of microbatches nothing depends on one; outside of instances no value does, and no way. *)
Definition fits (t : fact) (n : named) : bool :=
  (inside || is_full (kind_at t 0)) && (match u with Some _ => true | None => fixed_ix n && all_still (kinds t) end).
Definition write (s : slot) (x : option (fact * named)) (k : known) : option known :=
  match scope_of s with Some v => Some (put_slot s (Some (Item v x)) k) | None => None end.

Definition claimed (o : op) (claim : option positive) (names : list named) (t : fact) : option (fact * named) :=
  match claim with
  | None => match names with [n] => if keeps o then Some (t, n) else None | _ => None end
  | Some c => match get table c with
    | Some (scope, x) => match is_line o (made x) with
      | Some m => if unit_eqb scope u && same_list named_eqb names (reads x)
          then Some (Fact (kinds t) (reduced ones (mono_over (factor t) m)), target x) else None
      | None => None end
    | None => None end
  end.
Definition check_instr (x : instr) (k : known) : option known :=
  match x with
  | Do o args out claim => match sequence (map (arg k) args) with
    | Some os => match infer o (map fst os) with
      | Some t => match claimed o claim (map snd os) t with
        | Some (t, n) => if fits t n then write out (Some (t, n)) k else None
        | None => None end
      | None => None end
    | None => None end
  | Read n out => match find (fun h => (value_of h =? n)%positive && unit_eqb (per h) u) inputs with
    | Some h => let n := (n, match u with Some _ => This | None => First end) in
        if fits (Fact (lying h) []) n then write out (Some (Fact (lying h) [], n)) k else None
    | None => None end
  | Zero out => write out None k
  | Free out => Some (put_slot out None k)
  end.
Fixpoint check_instrs (is : list instr) (k : known) : option known :=
  match is with [] => Some k | x :: is => match check_instr x k with Some k => check_instrs is k | None => None end end.
End Scope.

Definition kind_eqb (k k' : kind) : bool :=
  match k, k' with Full, Full => true | Part, Part => true | Shard d, Shard e => d =? e | _, _ => false end.
Definition same_fact (t t' : fact) : bool :=
  forallb (fun a => kind_eqb (kind_at t a) (kind_at t' a)) (seq 0 (axes g)) && mono_same (factor t) (factor t').
(** What is carried: as it is in the beginning, it has to be in the end of each instance. *)
Definition carried_from (k : known) (start : ix) (c : positive * positive) : option (positive * fact) :=
  match get (shared k) (fst c) with
  | Some (Item None (Some (t, n))) => if named_eqb n (snd c, start) then Some (fst c, t) else None
  | _ => None end.
Definition carried_to (k : known) (next : ix) (c : positive * positive) (t : positive * fact) : bool :=
  match get (shared k) (fst c) with
  | Some (Item None (Some (t', n))) => named_eqb n (snd c, next) && same_fact t' (snd t)
  | _ => false end.
Definition put_carried (at_ : ix) (cs : list ((positive * positive) * (positive * fact))) (k : trie item) : trie item :=
  fold_right (fun c k => set (fst (fst c)) (Some (Item None (Some (snd (snd c), (snd (fst c), at_))))) k) k cs.
Definition shared_of (l : list slot) : list positive := flat_map (fun s => match s with Shared n => [n] | Each _ => []
  end) l.
Definition forget_shared (l : list slot) (k : trie item) : trie item := fold_right (fun n k => set n None k) k
  (shared_of l).
Definition each_carried (f : fact -> fact) (cs : list ((positive * positive) * (positive * fact))) :=
  map (fun c => (fst c, (fst (snd c), f (snd (snd c))))) cs.
Fixpoint distinct (l : list positive) : bool :=
  match l with [] => true | n :: l => negb (existsb (Pos.eqb n) l) && distinct l end.

Definition check_block (inside : bool) (b : block) (k : known) : option known :=
  match b with
  | Run is => check_instrs None inside is k
  | Layers u down carried is =>
    let at_ := if down then Next else This in
    let next := if down then This else Next in
    let start := if down then Last u else First in
    let end_ := if down then First else Last u in
    let from := if down then exit else entry in
    let enter := moved u from (if down then behind else here) in
    let leave := moved u from (if down then here else behind) in
    let end_up := moved u from (if down then entry else exit) in
    match sequence (map (carried_from k start) carried) with
    | Some ts =>
      let outer := forget_shared (map out_of is) (shared k) in
      let cts := combine carried ts in
      match check_instrs (Some u) inside is (Known (put_carried at_ (each_carried enter cts) outer) (each k)) with
      | Some k' =>
        if forallb (fun c => carried_to k' next (fst c) (snd c)) (each_carried leave cts) && distinct (map fst carried)
           && forallb (fun c => existsb (Pos.eqb (fst c)) (shared_of (map out_of is))) carried
           && forallb (fun c => all_still (kinds (snd (snd c)))) (each_carried end_up cts)
        then Some (Known (put_carried end_ (each_carried end_up cts) outer) (each k')) else None
      | None => None end
    | None => None end
  end.
Fixpoint check_blocks (inside : bool) (bs : list block) (k : known) : option known :=
  match bs with [] => Some k | b :: bs => match check_block inside b k with Some k => check_blocks inside bs k | None
    => None end end.

(** A sum over microbatches begins at zero, where nothing else is written, and is of what is a part for each. *)
Definition full_at_0 (t : fact) : fact := Fact (Full :: tl (kinds t)) (factor t).
Definition summed_up (before after : known) (q : slot * slot) : option (slot * item) :=
  match find_slot before (snd q), find_slot after (fst q) with
  | Some (Item u None), Some (Item u' (Some (t, n))) =>
    if unit_eqb u u' && match snd q, fst q with Shared _, Shared _ => true | Each _, Each _ => true | _, _ => false end
       && is_part (kind_at t 0) && negb (axes g =? 0) then Some (snd q, Item u (Some (full_at_0 t, n))) else None
  | _, _ => None end.
Fixpoint apart (l : list slot) : bool :=
  match l with [] => true | s :: l => negb (existsb (slot_eqb s) l) && apart l end.
Definition check_part (p : part) (k : known) : option known :=
  match p with
  | Once bs => check_blocks false bs k
  | Microbatches sums bs =>
    let changed := flat_map written bs in
    let k0 := forget (map snd sums ++ changed) k in
    match check_blocks true bs k0 with
    | Some k' => match sequence (map (summed_up k k') sums) with
      | Some new => if forallb (fun s => negb (existsb (slot_eqb s) changed)) (map snd sums) && apart (map snd sums)
          then Some (fold_right (fun q k => put_slot (fst q) (Some (snd q)) k) k0 new) else None
      | None => None end
    | None => None end
  end.
Fixpoint check_parts (ps : list part) (k : known) : option known :=
  match ps with [] => Some k | p :: ps => match check_part p k with Some k => check_parts ps k | None => None end end.

(** ** Between steps. *)
Definition ix_of (u : option nat) : ix := match u with Some _ => This | None => First end.
Definition resting (rest : list (slot * held)) : known :=
  fold_right (fun q k => put_slot (fst q) (Some (Item (per (snd q))
    (Some (Fact (lying (snd q)) [], (value_of (snd q), ix_of (per (snd q))))))) k) nothing rest.
(** [next]: which value it has to be: that of the single device in the next step is another one's in this. *)
Definition rests (next : positive -> option positive) (k : known) (q : slot * held) : bool :=
  match find_slot k (fst q), next (value_of (snd q)) with
  | Some (Item u (Some (t, n))), Some v => unit_eqb u (per (snd q)) && named_eqb n (v, ix_of u)
      && forallb (fun a => kind_eqb (kind_at t a) (kind_in (lying (snd q)) a)) (seq 0 (axes g)) && is_one ones (factor
        t)
  | _, _ => false end.
End Checker.

Definition well_kept (g : mesh) (q : slot * held) : bool :=
  match fst q, per (snd q) with Shared _, None => is_full (kind_in (lying (snd q)) 0) && all_still g (lying (snd q))
  | Each _, Some _ => is_full (kind_in (lying (snd q)) 0) | _, _ => false end.
Definition keep_disk (disk : list slot) (k : known) : known :=
  fold_right (fun s k' => put_slot s (find_slot k s) k') nothing disk.

(** ** Whether the single device's lines run in order: nothing is made twice, or read before it is made. *)

(** What later lines make: once, or in the instances of a unit. *)
Definition made_later := trie (option (nat * ix)).
Definition beside (n : named) (l : made_later) : bool :=
  match get l (fst n), snd n with
  | None, First | None, Last _ | Some (Some (_, Next)), First => true
  | Some (Some (u, This)), Last u' => u =? u'
  | _, _ => false end.
Definition unread (l : made_later) (a : named) : bool := match get l (fst a) with None => true | Some _ => false end.
Fixpoint plain_ordered (ls : list (positive * line)) (l : made_later) : option made_later :=
  match ls with
  | [] => Some l
  | x :: ls => match plain_ordered ls l with
    | Some l => let n := target (snd x) in
      if beside n l && forallb (fun a => unread l a && negb (fst a =? fst n)%positive) (reads (snd x))
      then Some (set (fst n) (Some None) l) else None
    | None => None end
  end.
Definition fresh {A : Type} (t : trie A) (n : positive) : bool := match get t n with None => true | Some _ => false end.
Fixpoint loop_targets (down : bool) (ls : list (positive * line)) (own : trie ix) : option (trie ix) :=
  match ls with
  | [] => Some own
  | x :: ls => match loop_targets down ls own, snd (target (snd x)) with
    | Some own, This => if fresh own (fst (target (snd x))) then Some (set (fst (target (snd x))) (Some This) own)
      else None
    | Some own, Next => if fresh own (fst (target (snd x))) && negb down
        then Some (set (fst (target (snd x))) (Some Next) own) else None
    | _, _ => None end
  end.
(** [own]: what the loop makes; [after]: what it makes from here on in each instance. *)
Fixpoint loop_reads (down : bool) (own : trie ix) (ls : list (positive * line)) : option (trie unit) :=
  match ls with
  | [] => Some Leaf
  | x :: ls => match loop_reads down own ls with
    | Some after => let after := set (fst (target (snd x))) (Some tt) after in
      if forallb (fun a => match get own (fst a), snd a with
        | None, _ => true
        | Some This, This => fresh after (fst a)
        | Some This, Next => down
        | Some Next, This => negb down
        | _, _ => false end) (reads (snd x)) then Some after else None
    | None => None end
  end.
Definition stretch_ordered (s : stretch) (l : made_later) : option made_later :=
  match s with
  | Plain ls => plain_ordered ls l
  | Repeat u down ls => match loop_targets down ls Leaf with
    | Some own => match loop_reads down own ls with
      | Some _ => if forallb (fun x => fresh l (fst (target (snd x))) && forallb (unread l) (reads (snd x))) ls
          then Some (fold_right (fun x l => set (fst (target (snd x))) (Some (Some (u,
            snd (target (snd x))))) l) l ls) else None
      | None => None end
    | None => None end
  end.
Fixpoint all_ordered (ss : list stretch) : option made_later :=
  match ss with [] => Some Leaf | s :: ss => match all_ordered ss with Some l => stretch_ordered s l | None => None
    end end.
Definition ordered (p : program) : bool :=
  match all_ordered (alone p) with Some l => forallb (fun q => fresh l (fst q)) (states p) | None => false end.

(** What a state is in the beginning: as another, or itself. *)
Definition first_of (p : program) (n : positive) : option positive :=
  match find (fun q => (fst q =? n)%positive) (begins p) with Some q => Some (snd q) | None => Some n end.

Definition check (p : program) : bool :=
  let table := of_list (lines p) in
  let blocks := check_blocks (on p) (ones p) table in
  let all_rest next k := forallb (rests (on p) (ones p) next k) (rest p) in
  forallb (fun q => existsb (fun r => (value_of (snd r) =? fst q)%positive) (rest p)) (states p)
  && forallb (well_kept (on p)) (rest p) && ordered p
  && match blocks (given p) false (init p) nothing with Some k => all_rest (first_of p) k | None => false end
  && match check_parts (on p) (ones p) table (data p) (step p) (resting (rest p)) with
    | Some k => all_rest (next_of p) k
    | None => false end
  && match blocks [] false (save p) (resting (rest p)) with
    | Some k => all_rest Some k
        && match blocks [] false (resume p) (keep_disk (disk p) k) with Some k => all_rest Some k | None => false end
    | None => false end.
