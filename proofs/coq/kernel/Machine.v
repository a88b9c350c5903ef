(** Programs of ops on tensors that lie on a mesh, and what a rank computes. To be believed: it is what programs mean.

    What it backs: placealg/prover/kernel/program.py, whose constructors are these types.

    Main statements: [run_instr], [run_block], [run_part] (what memory holds behind a piece of a program). Everything is
    for any ring of numbers, any sizes, any ways of splitting, any functions of rows, and any junk: what a rank has of a
    tensor that it does not hold. *)

From Placealg.kernel Require Import Prelude.

(** A rank is a coordinate for each axis of the mesh, an index one for each dim. Axis 0 is no axis of the mesh: it
  counts
    the microbatches of a step, and a rank is at coordinate [c] of it while it runs microbatch [c]. *)
Definition rank := nat -> nat.
Definition index := nat -> nat.
Definition put (r : rank) (a c : nat) : rank := fun b => if b =? a then c else r b.

(** ** The language. *)

(** How a tensor lies along an axis: every rank has all of it, or it is split, or ranks have parts of a sum. A way of
    splitting is a number: the dim of that number, or a way that reads other dims, such as owners of elements. *)
Inductive kind := Full | Shard (way : nat) | Part.

(** Per axis the way by which an op is split along it: a rank computes the positions that are its own. *)
Definition layout := list (nat * nat).
(** A dim of the operand -> the dim of the result at which it is read. *)
Definition renaming := list (nat * nat).
(** A monomial: per atom its exponents above and below the line. *)
Definition mono := list (nat * nat).
Inductive sent := AllReduce | ReduceScatter (way : nat) | AllGather (way : nat) | Slice (way :
  nat) | AllToAll (from to : nat) | Only (way : nat).

Inductive op :=
| Einsum (s : layout) (over : list nat)
| Row (f : nat) (over : list nat) (s : layout)
| Add (s : layout)
| Scale (by_ : mono)
| Rename (p : renaming)
| Send (a : nat) (s : sent).

(** Where a tensor is kept: one for all, or one for each instance of a unit that is run several times. *)
Inductive slot := Shared (n : positive) | Each (n : positive).

(** [claim]: the line of the single device's program whose result it is said to mean; none: that of its operand. The
    machine does not look at it. *)
Inductive instr :=
| Do (o : op) (args : list slot) (out : slot) (claim : option positive)
| Read (n : positive) (out : slot)
| Zero (out : slot)
| Free (out : slot).

(** [carried]: what a loop over instances hands from one to the next, and which value of the single device that is. *)
Inductive block :=
| Run (is : list instr)
| Layers (unit : nat) (down : bool) (carried : list (positive * positive)) (is : list instr).

(** [sums]: behind each microbatch the first slot is added to the second. *)
Inductive part :=
| Once (bs : list block)
| Microbatches (sums : list (slot * slot)) (bs : list block).

Definition slot_eqb (s s' : slot) : bool :=
  match s, s' with Shared n, Shared n' => (n =? n')%positive | Each n, Each n' => (n =? n')%positive | _,
    _ => false end.
Definition at_axis (s : layout) (a : nat) : option nat := option_map snd (find (fun p => fst p =? a) s).
Definition renamed (p : renaming) (d : nat) : nat := match find (fun q => fst q =? d) p with Some q => snd q | None =>
  d end.

(** ** What ops compute. *)
Section Ops.
Context {K : CRing}.
Definition tensor := rank -> index -> K.
Definition logical := index -> K.
Variables (touches : nat -> list nat) (size extent : nat -> nat) (home : nat -> nat -> index -> nat).

Fixpoint overlay (over p : list nat) (i : index) : index :=
  match over, p with d :: over, n :: p => fun d' => if d' =? d then n else overlay over p i d' | _, _ => i end.
Fixpoint grid (over : list nat) : list (list nat) :=
  match over with [] => [[]] | d :: over => flat_map (fun n => map (cons n) (grid over)) (seq 0 (extent d)) end.
Fixpoint product (l : list K) : K := match l with [] => 1%ring | k :: l => (k * product l)%ring end.

(** An einsum: on a rank over those positions of the dims that are summed that are its own. *)
Definition meets (way : nat) (over : list nat) : bool := existsb (fun e => existsb (Nat.eqb e) over) (touches way).
Definition has (l : list nat) (split : nat -> option nat) (over p : list nat) (i : index) (r : rank) : bool :=
  forallb (fun a => match split a with
    | Some d => if meets d over then home a d (overlay over p i) =? r a else true | None => true end) l.
Definition einsum (l : list nat) (split : nat -> option nat) (over : list nat) (xs : list tensor) : tensor := fun r i =>
  sum_list (grid over) (fun p => if has l split over p i r then product (map (fun x => x r (overlay over p i)) xs)
    else 0%ring).
Definition einsum_ref (over : list nat) (vs : list logical) : logical := fun i =>
  sum_list (grid over) (fun p => product (map (fun v => v (overlay over p i)) vs)).

Definition row (f : index -> list logical -> K) (xs : list tensor) : tensor := fun r i => f i (map (fun x => x r) xs).
Definition added (xs : list tensor) : tensor := fun r i => sum_list xs (fun x => x r i).

(** What is sent along axis [a]. *)
Definition summed (a : nat) (x : tensor) : tensor := fun r i => sum_list (seq 0 (size a)) (fun c => x (put r a c) i).
Definition taken (a d : nat) (x : tensor) : tensor := fun r i => x (put r a (home a d i)) i.
Definition send (junk : tensor) (a : nat) (s : sent) (x : tensor) : tensor := fun r i =>
  match s with
  | AllReduce => summed a x r i
  | ReduceScatter d => if r a =? home a d i then summed a x r i else junk r i
  | AllGather d => taken a d x r i
  | Slice d => if r a =? home a d i then x r i else junk r i
  | AllToAll d e => if r a =? home a e i then taken a d x r i else junk r i
  | Only d => if r a =? home a d i then x r i else 0%ring
  end.
End Ops.

(** Numbers that factors speak of: sizes, counts, constants. *)
Section Factors.
Context {K : CRing}.
Variables atom inverse : nat -> K.
Fixpoint power (x : K) (n : nat) : K := match n with 0 => 1%ring | S n => (x * power x n)%ring end.
Fixpoint value_from (k : nat) (m : mono) : K :=
  match m with [] => 1%ring | (p, n) :: m => (power (atom k) p * power (inverse k) n * value_from (S k) m)%ring end.
Definition value := value_from 0.
End Factors.

(** ** The world in which a program runs. *)
Record world (K : CRing) := World {
  size : nat -> nat; (* ranks along an axis; along axis 0, microbatches *)
  extent : nat -> nat; (* positions of a dim *)
  home : nat -> nat -> nat -> index -> nat; (* in an instance, along an axis, by a way of splitting, whose an index
    is *)
  layers : nat -> nat; (* instances of a unit *)
  atom : nat -> K; inverse : nat -> K;
  fn : nat -> nat -> nat -> index -> list (@logical K) -> K; (* of number f, in a step, of an instance *)
  input : bool -> positive -> nat -> nat -> @tensor K; (* what is read: in the beginning or not, in a step,
    of an instance *)
  junk : list nat -> @tensor K (* wherever something is not held, by when and where *)
}.
Arguments size {K}. Arguments extent {K}. Arguments home {K}. Arguments layers {K}. Arguments atom {K}.
Arguments inverse {K}. Arguments fn {K}. Arguments input {K}. Arguments junk {K}.

(** Ways that move with the instances of a unit, as stages of a pipeline do: by [here] all is of the rank to which the
    instance belongs, by [behind] of that of the instance behind it; by [entry] of the first one's, by [exit] of that of
    what follows the last. *)
Record moves := Moves { of_unit : nat; entry : nat; here : nat; behind : nat; exit : nat }.
(** Mesh and ways of splitting of a program: how many axes, axis 0 included; which dims are alike (a way along one is
    the way along the other); which dims a way reads, the dim of its number if there is none; axes, and the atom that is
    the number of ranks along each; ways that move. *)
Record mesh := Mesh { axes : nat; like : list nat; touch : list (list nat); sized : list (nat * nat);
  moving : list moves }.
Definition touches (g : mesh) (way : nat) : list nat := nth way (touch g) [way].

(** ** Memory, and how a program changes it. *)
Section Run.
Context {K : CRing}.
Variables (g : mesh) (w : world K).
Definition memory := slot -> nat -> @tensor K.
Record moment := Moment { of_step : nat; of_micro : nat; of_layer : nat; beginning : bool }.

Definition apply (e : moment) (spare : @tensor K) (o : op) (xs : list (@tensor K)) : @tensor K :=
  let x := nth 0 xs (fun _ _ => 0%ring) in
  match o with
  | Einsum s over => einsum (touches g) (extent w) (home w (of_layer e)) (seq 0 (axes g)) (at_axis s) over xs
  | Row f _ _ => row (fn w f (of_step e) (of_layer e)) xs
  | Add _ => added xs
  | Scale m => fun r i => (value (atom w) (inverse w) m * x r i)%ring
  | Rename p => fun r i => x r (fun d => i (renamed p d))
  | Send a s => send (size w) (home w (of_layer e)) spare a s x
  end.

Definition inst (s : slot) (l : nat) : nat := match s with Shared _ => 0 | Each _ => l end.
Definition store (e : moment) (s : slot) (x : @tensor K) (m : memory) : memory := fun s' l =>
  if slot_eqb s' s && (l =? inst s (of_layer e)) then fun r i => x (put r 0 (of_micro e)) i else m s' l.
Definition load (e : moment) (m : memory) (s : slot) : @tensor K := m s (inst s (of_layer e)).

Definition run_instr (e : moment) (path : list nat) (x : instr) (m : memory) : memory :=
  match x with
  | Do o args out _ => store e out (apply e (junk w path) o (map (load e m) args)) m
  | Read n out => store e out (input w (beginning e) n (of_step e) (of_layer e)) m
  | Zero out => store e out (fun _ _ => 0%ring) m
  | Free out => store e out (junk w path) m
  end.
Fixpoint run_instrs (e : moment) (path : list nat) (k : nat) (is : list instr) (m : memory) : memory :=
  match is with [] => m | x :: is => run_instrs e path (S k) is (run_instr e (k :: path) x m) end.

Fixpoint loop (n : nat) (body : nat -> memory -> memory) (m : memory) : memory :=
  match n with 0 => m | S n => body n (loop n body m) end.
Definition instance (u : nat) (down : bool) (j : nat) : nat := if down then layers w u - S j else j.
Definition at_layer (e : moment) (l : nat) : moment := Moment (of_step e) (of_micro e) l (beginning e).
Definition run_block (e : moment) (path : list nat) (b : block) (m : memory) : memory :=
  match b with
  | Run is => run_instrs e path 0 is m
  | Layers u down _ is => loop (layers w u) (fun j => run_instrs (at_layer e (instance u down j)) (j :: path) 0 is) m
  end.
Fixpoint run_blocks (e : moment) (path : list nat) (k : nat) (bs : list block) (m : memory) : memory :=
  match bs with [] => m | b :: bs => run_blocks e path (S k) bs (run_block e (k :: path) b m) end.

Definition accumulate (c : nat) (sums : list (slot * slot)) (m : memory) : memory := fun s l =>
  match find (fun q => slot_eqb s (snd q)) sums with
  | Some q => fun r i => (m s l r i + m (fst q) l (put r 0 c) i)%ring
  | None => m s l end.
Definition at_micro (e : moment) (c : nat) : moment := Moment (of_step e) c (of_layer e) (beginning e).
Definition run_part (e : moment) (path : list nat) (p : part) (m : memory) : memory :=
  match p with
  | Once bs => run_blocks e path 0 bs m
  | Microbatches sums bs => loop (size w 0) (fun c m => accumulate c sums (run_blocks (at_micro e c) (c :: path) 0 bs
    m)) m
  end.
Fixpoint run_parts (e : moment) (path : list nat) (k : nat) (ps : list part) (m : memory) : memory :=
  match ps with [] => m | p :: ps => run_parts e path (S k) ps (run_part e (k :: path) p m) end.
End Run.
