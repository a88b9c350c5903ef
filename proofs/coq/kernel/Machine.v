(** What a step program does, on all ranks at once.

    What it backs: the kernel. This file, Syntax.v, Setting.v and Semantics.v are what a reader has to believe; Check.v
    and Sound.v are proved.

    Main statement: [run], the definition. *)

From Coq Require Export Arith.
From Placealg.kernel Require Export Setting.
Open Scope nat_scope.

Section Meaning.
Context {w : world} (p : program).

Definition ok (r : rank) : Prop := forall a, r a < size a.
Definition put (r : rank) (a c : nat) : rank := fun a' => if a' =? a then c else r a'.
Fixpoint peers (along : list nat) (r : rank) : list rank :=
  match along with [] => [r] | a :: l => flat_map (fun c => peers l (put r a c)) (seq 0 (size a)) end.
Definition moved (to : nat -> nat) (along : list nat) (r : rank) : rank :=
  fun a => if existsb (Nat.eqb a) along then to a else r a.
(** The owner of an element along an axis, as a rank has it. *)
Definition owner (s : layout) (r : rank) (a : nat) (i : E) : nat :=
  match s with Shared n => own n 0 a i | Drawn n b => own n (r b) a i end.
Definition sat1 (r : rank) (i : E) (c : clause) : bool :=
  match c with Owner s a => r a =? owner s r a i | First a => r a =? 0 end.
Definition sat (q : place) (r : rank) (i : E) : bool := forallb (sat1 r i) q.

Definition sites_of (g : nat) : list nat := match nth_error (groups p) g with Some d => sites d | None => [] end.
Definition trains (g : nat) : bool := match nth_error (groups p) g with Some d => negb (frozen d) | None => false end.
Definition by_gradient (g : nat) : bool := match nth_error (groups p) g with Some d => graded d | None => false end.
Definition adds_up (g : nat) : bool := match nth_error (groups p) g with Some d => summed d | None => false end.
Definition used (u g : nat) : bool := existsb (Nat.eqb u) (sites_of g).
Definition depth (u : nat) : nat := if nth u (repeated p) false then layers u else 1.
Definition part (g l : nat) : list E := filter (fun i => (group_of i =? g) && (layer_of i =? l)) elements.
Definition needs (u l : nat) : list E := filter (fun i => used u (group_of i) && (layer_of i =? l)) elements.

Definition takes_most (g : nat) : bool := match nth_error (groups p) g with Some d => most d | None => false end.

(** The tokens that a rank has. A token of a loss that the program lacks is one of the first. *)
Definition near (along : list nat) (r : rank) (x : X) : bool := forallb (fun a => r a =? home x a) along.
Definition tokens (t : nat) : list X := flat_map (batch t) (seq 0 micro).
Definition local (t j : nat) (r : rank) : list X := filter (near (data p) r) (batch t j).
Definition its_loss (x : X) : nat := if loss_of x <=? further p then loss_of x else 0.
Definition of_loss (n : nat) (l : list X) : list X := filter (fun x => its_loss x =? n) l.
Definition mine (n t j : nat) (r : rank) : list X := filter (near (data p) r) (of_loss n (batch t j)).
Definition counted (n t j : nat) (each : bool) : list X := of_loss n (if each then batch t j else tokens t).

(** The largest of some magnitudes, 0 of none; their sum. *)
Fixpoint greatest {V : Type} (l : list V) (f : V -> K) : K :=
  match l with [] => 0%ring | v :: l => larger (f v) (greatest l f) end.
Definition join (larger_ : bool) {V : Type} (l : list V) (f : V -> K) : K :=
  if larger_ then greatest l f else sum_list l f.

Record memory := Memory {
  held : slot -> rank -> E -> option (T + K);             (* None: not held *)
  partial : nat -> nat -> rank -> option K;               (* group, instance *)
  count : counter -> bool -> rank -> option nat;          (* true: in the checkpoint *)
  act : rank -> X -> A; cot : rank -> X -> B; scale : nat -> rank -> K;  (* of a loss *)
  tally : nat -> rank -> nat;                              (* the count of a loss's tokens *)
  flag : nat -> nat -> rank -> option bool;                (* group, instance: whether a gradient overflows *)
  kept : nat -> nat -> rank -> option (nat * list T * (X -> A));
  reads : list (nat * nat * (rank -> E -> option (T + K)));  (* what units have read as weights: unit, instance,
    view *)
  clock : nat
}.

Definition slot_eqb (x y : slot) : bool :=
  value_eqb (what x) (what y) &&
  match on x, on y with Device, Device | Host, Host | Nvme, Nvme | Disk, Disk => true | _, _ => false end.
(** Memory with one slot written where [here] says. *)
Definition write (m : memory) (here : E -> bool) (y : slot) (f : rank -> E -> option (T + K)) : memory :=
  Memory (fun y' r i => if slot_eqb y' y && here i then f r i else held m y' r i)
         (partial m) (count m) (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m)).

Definition as_state (z : T) (v : T + K) : T := match v with inl x => x | inr _ => z end.
Definition as_number (v : T + K) : K := match v with inl _ => 0%ring | inr k => k end.
Fixpoint product {V : Type} (f : V -> K) (l : list V) : K :=
  match l with [] => 1%ring | n :: l => (f n * product f l)%ring end.
Definition scale_state (m : memory) (r : rank) : nat :=
  match count m LossScale false r with Some n => n | None => junk_stream (clock m) r end.
Definition number_of (m : memory) (t j : nat) (r : rank) (s : symbol) : K :=
  match s with
  | Tokens n => of_nat (length (mine n t j r)) | Count n => of_nat (tally m n r) | Micro => of_nat micro
  | Size a => of_nat (size a) | Scaling => scaling (scale_state m r) | Padding n => padding n
  | All n each => of_nat (length (counted n t j each)) end.
Definition inverse_of (m : memory) (t j : nat) (r : rank) (s : symbol) : K :=
  match s with
  | Tokens n => share (length (mine n t j r)) | Count n => share (tally m n r) | Micro => share micro
  | Size a => share (size a) | Scaling => unscaling (scale_state m r) | Padding n => unpadding n
  | All n each => share (length (counted n t j each)) end.
Definition ratio_of (m : memory) (t j : nat) (r : rank) (k : ratio) : K :=
  (product (number_of m t j r) (over k) * product (inverse_of m t j r) (under k))%ring.

(** How a state of its own goes on. *)
Definition advance (c : counter) (out : bool) (n : nat) : nat := match c with LossScale => grow n out | _ => S n end.

Definition at_first (firsts : list nat) (r : rank) : bool := forallb (fun a => r a =? 0) firsts.
Definition is_some {V : Type} (o : option V) : bool := match o with Some _ => true | None => false end.

(** What ranks have together: nothing if none holds it, junk if only some do. *)
Definition together (larger_ : bool) (l : list (option K)) (j : K) : option K :=
  if forallb is_some l then Some (join larger_ l (fun o => match o with Some k => k | None => 0%ring end))
  else if existsb is_some l then Some j else None.

Definition largest (l : list (option bool)) (j : bool) : option bool :=
  if forallb is_some l then Some (existsb (fun o => match o with Some b => b | None => false end) l)
  else if existsb is_some l then Some j else None.

Definition all_parts : list (nat * nat) :=
  flat_map (fun g => map (pair g) (seq 0 (depth (hd 0 (sites_of g))))) (filter by_gradient (seq 0 (length (groups p)))).
(** A rank leaves out the step if it holds a flag that is set. Where the reference leaves out none there is no flag.
  *)
Definition leaves_out (m : memory) (r : rank) : bool :=
  skips p && existsb (fun gl => match flag m (fst gl) (snd gl) r with Some b => b | None => false end) all_parts.

Definition total (m : memory) (r : rank) : option K :=
  let all := flat_map (fun g => map (fun l => partial m g l r) (seq 0 (depth (hd 0 (sites_of g)))))
                      (filter by_gradient (seq 0 (length (groups p)))) in
  if forallb is_some all then together false all 0%ring else None.

(** The elements of which an update of one reads a value: the element, and all of its matrix where the optimizer
  does. *)
Definition mates (i : E) : list E :=
  filter (fun j => (group_of j =? group_of i) && (layer_of j =? layer_of i) && (matrix_of j =? matrix_of i)) elements.
Definition wholly (v : value) (g : nat) : bool :=
  match nth_error (groups p) g with Some d => existsb (value_eqb v) (whole_reads d) | None => false end.
Definition reading (v : value) (i : E) : list E := i :: if wholly v (group_of i) then mates i else [].
Definition all_some {V : Type} (l : list (option V)) : option (list V) :=
  fold_right (fun o s => match o, s with Some v, Some s => Some (v :: s) | _, _ => None end) (Some []) l.
Definition a_state (v : option (T + K)) : option T := match v with Some (inl x) => Some x | _ => None end.
Definition a_number (v : option (T + K)) : option K := match v with Some (inr x) => Some x | _ => None end.

Definition at_event (t j : nat) (here : E -> bool) (e : event) (m : memory) : memory :=
  let z := junk (clock m) in
  let get := held m in
  match e with
  | Broadcast x along => write m here x (fun r i => get x (moved (fun _ => 0) along r) i)
  | Gather x y s along q => write m here y (fun r i => if sat q r i then
      match get x (moved (fun a => owner s r a i) along r) i with Some v => Some v | None => Some (z r i) end else get
        y r
        i)
  | Initial y q => write m here y (fun r i => if sat q r i then Some (inl (first_moments i)) else get y r i)
  | Copy x y q => write m here y (fun r i => if sat q r i then get x r i else get y r i)
  | Publish x y q => write m here y (fun r i => if sat q r i && is_some (get x r i) then get x r i else get y r i)
  | Keep x s along => write m here x (fun r i => if forallb (fun a => r a =? owner s r a i) along then get x r i else
    None)
  | Free x q => write m here x (fun r i => if sat q r i then None else get x r i)
  | Zero y q => write m here y (fun r i => if sat q r i then Some (inr 0%ring) else get y r i)
  | Accumulate x y larger_ q => write m here y (fun r i => if sat q r i then
      match get y r i, get x r i with
      | None, _ => None
      | Some (inr a), Some (inr b) => Some (inr (if larger_ then larger a b else a + b)%ring)
      | _, _ => Some (z r i) end else get y r i)
  | Scale y k q => write m here y (fun r i => if sat q r i then
      match get y r i with
      | None => None
      | Some (inr a) => Some (inr (a * ratio_of m t j r k)%ring)
      | _ => Some (z r i) end else get y r i)
  | Reduce y along by_ to k => write m here y (fun r i =>
      if match to with Some s => forallb (fun a => r a =? owner s r a i) along | None => true end then
        let early r' v := match by_ with
          | Premultiplied => as_number v * ratio_of m t j r' k | _ => as_number v end%ring in
        let late s := match by_ with
          | Premultiplied => s | Plain | Largest => s * ratio_of m t j r k
          | Mean => s * product share (map size along) * ratio_of m t j r k end%ring in
        option_map (fun s => inr (late s))
          (together match by_ with Largest => true | _ => false end (map (fun r' => option_map (early r') (get y r'
            i)) (peers along r)) (as_number (z r i)))
      else None)
  | Clip y q => write m here y (fun r i => if sat q r i then
      match get y r i, total m r with
      | None, _ => None
      | Some (inr a), Some n => Some (inr (clip n a))
      | _, _ => Some (z r i) end else get y r i)
  | Update k by_ q =>
      let read {V : Type} v (f : option (T + K) -> option V) r i :=
        all_some (map (fun j => f (get (At v k) r j)) (reading v i)) in
      let new r i := match read Master a_state r i, read Moments a_state r i, read GradSum a_number r i,
          count m Step false r with
        | Some x, Some o, Some g, Some n => let (x, o) := update (ratio_of m t j r by_) n i x o g in (inl x, inl o)
        | _, _, _, _ => (z r i, z r i) end in
      let runs r i := negb (leaves_out m r) && sat q r i && is_some (get (At Master k) r i) in
      write (write m here (At Master k) (fun r i => if runs r i then Some (fst (new r i)) else get (At Master k) r i))
            here (At Moments k) (fun r i => if runs r i then Some (snd (new r i)) else get (At Moments k) r i)
  | TakeIn x y q => write m here y (fun r i => if sat q r i then
      match get y r i, get x r i with
      | None, _ => None
      | Some (inl a), Some (inl b) => Some (inl (average i a b))
      | _, _ => Some (z r i) end else get y r i)
  end.

Definition view (m : memory) (u l : nat) (r : rank) : list T :=
  map (fun i => match held m (At Weight Device) r i with
                | Some v => as_state (as_state (first_weight i) (junk (clock m) r i)) v
                | None => as_state (first_weight i) (junk (clock m) r i) end) (needs u l).

Definition at_forward (u l : nat) (m : memory) : memory :=
  let n r := match count m Stream false r with Some n => n | None => junk_stream (clock m) r end in
  Memory (held m) (partial m) (count m)
    (fun r x => forward u l (n r) x (view m u l r) (act m r x)) (cot m) (scale m) (tally m) (flag m)
    (fun u' l' r => if (u' =? u) && (l' =? l) then Some (n r, view m u l r, act m r) else kept m u' l' r)
    ((u, l, held m (At Weight Device)) :: reads m) (S (clock m)).

(** The first use of a parameter in backward order sets its gradient, later ones add to it. What a unit hands back, and
    its gradients, are scaled as the loss is; further terms of the loss that it has itself have to be, too: [gamma] and
    [backward] are of the loss with them. *)
Definition at_backward (t j u l : nat) (own : list ratio) (m : memory) : memory :=
  let same r := forallb (fun k => if number_dec (ratio_of m t j r k) (scale m 0 r) then true else false) own in
  let from r x := match kept m u l r with Some (n, s, a) => (n, s, a x) | None => (0, [], act m r x) end in
  let found r i := sum_list (local t j r) (fun x =>
    scale m (its_loss x) r * gamma u l x (from r x) (view m u l r) (cot m r x) i)%ring in
  let y := At Grad Device in
  let here i := used u (group_of i) && (layer_of i =? l) && by_gradient (group_of i) in
  Memory (fun y' r i => if slot_eqb y' y && here i then
            match kept m u l r, same r with
            | None, _ | _, false => Some (junk (clock m) r i)
            | Some _, true =>
              if last (sites_of (group_of i)) 0 =? u then Some (inr (found r i))
              else match held m y r i with
                   | Some (inr b) => Some (inr (b + found r i)%ring)
                   | _ => Some (junk (clock m) r i) end
            end else held m y' r i)
    (partial m) (count m) (act m)
    (fun r x => if same r then backward u l x (from r x) (view m u l r) (cot m r x) else junk_flow r x)
    (scale m) (tally m) (flag m) (kept m) ((u, l, held m (At Weight Device)) :: reads m) (S (clock m)).

Definition at_take (t j u l g : nat) (k : ratio) (m : memory) : memory :=
  write m (fun i => (group_of i =? g) && (layer_of i =? l)) (At Grad Device) (fun r i =>
    match kept m u l r with
    | None => Some (junk (clock m) r i)
    | Some (n, s, a) => Some (inr (join (takes_most g) (mine 0 t j r) (fun x => statistic u l x (n, s, a x) i) *
        ratio_of m t j r k)%ring) end).

Definition at_instr (t j u l : nat) (m : memory) (e : instr) : memory :=
  match e with
  | On g e => at_event t j (fun i => (group_of i =? g) && (layer_of i =? l)) e m
  | Forward => at_forward u l m
  | Backward own => at_backward t j u l own m
  | Take g k => at_take t j u l g k m
  end.

Definition instance (u : nat) (reversed : bool) (k : nat) : nat := if reversed then depth u - 1 - k else k.

Definition at_block (t j : nat) (m : memory) (b : block) : memory :=
  match b with
  | Each u reversed body =>
      fold_left (fun m k => fold_left (at_instr t j u (instance u reversed k)) body m) (seq 0 (depth u)) m
  | Loss n k => Memory (held m) (partial m) (count m) (act m)
      (fun r x => if its_loss x =? n then seed x (act m r x) else cot m r x)
      (fun n' r => if n' =? n then ratio_of m t j r k else scale m n' r) (tally m) (flag m) (kept m) (reads m) (S
        (clock m))
  | ScaleLoss n k => Memory (held m) (partial m) (count m) (act m) (cot m)
      (fun n' r => if n' =? n then (scale m n r * ratio_of m t j r k)%ring else scale m n' r) (tally m) (flag m) (kept
        m) (reads m) (S (clock m))
  | Norm g x q => Memory (held m)
      (fun g' l r => if g' =? g then Some (sum_list (part g l) (fun i => if sat q r i then
           match held m x r i with Some v => measure i (as_number v) | None => 0%ring end else 0%ring))
         else partial m g' l r)
      (count m) (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m))
  | NormSum along => Memory (held m)
      (fun g l r => together false (map (partial m g l) (peers along r)) (junk_norm (clock m) g r))
      (count m) (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m))
  | Look g x q => Memory (held m) (partial m) (count m) (act m) (cot m) (scale m) (tally m)
      (fun g' l r => if g' =? g then Some (existsb (fun i => sat q r i &&
           match held m x r i with Some v => overflows i (as_number v) | None => false end) (part g l))
         else flag m g' l r) (kept m) (reads m) (S (clock m))
  | LookMax along => Memory (held m) (partial m) (count m) (act m) (cot m) (scale m) (tally m)
      (fun g l r => largest (map (flag m g l) (peers along r)) (junk_flag (clock m) g r)) (kept m) (reads m)
      (S (clock m))
  | CountTokens n each => Memory (held m) (partial m) (count m) (act m) (cot m) (scale m)
      (fun n' r => if n' =? n then length (filter (near (data p) r) (counted n t j each)) else tally m n' r) (flag m)
      (kept m) (reads m) (S (clock m))
  | CountSum n along => Memory (held m) (partial m) (count m) (act m) (cot m) (scale m)
      (fun n' r => if n' =? n then list_sum (map (tally m n) (peers along r)) else tally m n' r) (flag m) (kept m)
        (reads m) (S (clock m))
  | Tick c d firsts => Memory (held m) (partial m)
      (fun c' disk r => if counter_eqb c' c && at_first firsts r then
         match d, disk with
         | Start, false => Some 0
         | Advance, false => if counter_eqb c Step && leaves_out m r then count m c false r
           else match count m c false r with Some n => Some (advance c (leaves_out m r) n)
           | None => Some (junk_stream (clock m) r) end
         | Load, false => count m c true r
         | Store, true => match count m c false r with Some n => Some n | None => count m c true r end
         | _, _ => count m c' disk r end else count m c' disk r)
      (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m))
  | ShareTick c along => Memory (held m) (partial m)
      (fun c' disk r => if counter_eqb c' c && negb disk then count m c false (moved (fun _ => 0) along r)
         else count m c' disk r)
      (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m))
  end.

Definition run_blocks (t j : nat) (l : list block) (m : memory) : memory := fold_left (at_block t j) l m.

(** A microbatch begins with its data, and without activations of another. *)
Definition enter (m : memory) : memory :=
  Memory (held m) (partial m) (count m) (fun _ => input) junk_flow junk_scale (tally m) (flag m)
    (fun _ _ _ => None) (reads m) (S (clock m)).

(** Not every step begins with a save: what it finds in the checkpoint is anything. *)
Definition begin_step (m : memory) : memory :=
  Memory (fun y r i => match on y with Disk => Some (junk (clock m) r i) | _ => held m y r i end) (partial m)
    (fun c disk r => if disk then Some (junk_stream (clock m) r) else count m c disk r) (act m) (cot m) (scale m)
    (junk_tally (clock m)) (flag m) (kept m) [] (S (clock m)).

Definition step (t : nat) (m : memory) : memory :=
  let m := begin_step m in
  let m := run_blocks t 0 (prepare p) m in
  let m := fold_left (fun m j => run_blocks t j (body_at p micro j) (enter m)) (seq 0 micro) m in
  run_blocks t micro (outside p) m.

(** A checkpoint is new at every save. Where a run stops, all but the checkpoint is lost. *)
Definition saved (t : nat) (m : memory) : memory :=
  run_blocks t 0 (save p) (Memory (fun y r i => match on y with Disk => None | _ => held m y r i end)
    (partial m) (fun c disk r => if disk then None else count m c disk r)
    (act m) (cot m) (scale m) (tally m) (flag m) (kept m) (reads m) (S (clock m))).
Definition off (m : memory) : memory :=
  Memory (fun y r i => match y with
            | At _ Disk => held m y r i | At Weight Device => Some (junk (clock m) r i) | _ => None end)
    (fun _ _ _ => None) (fun c disk r => if disk then count m c disk r else None)
    (act m) (cot m) (scale m) (junk_tally (clock m)) (fun _ _ _ => None) (kept m) [] (S (clock m)).
Definition power_on : memory :=
  Memory (fun y r i => match y with
            | At Weight Device => Some (if forallb (fun a => r a =? 0) (axes p) then inl (first_weight i) else junk
              0 r i)
            | At _ Disk => Some (junk 0 r i)
            | _ => None end)
    (fun _ _ _ => None) (fun _ disk r => if disk then Some (junk_stream 0 r) else None) (fun _ => input) junk_flow
      junk_scale
    (junk_tally 0) (fun _ _ _ => None) (fun _ _ _ => None) [] 1.

Fixpoint run (stops : nat -> bool) (t : nat) : memory :=
  let m := saved t match t with O => run_blocks 0 0 (init p) power_on | S t => step t (run stops t) end in
  if stops t then run_blocks t 0 (resume p) (off m) else m.
End Meaning.
