(** Step programs as data: what the kernel's checker reads, and what its semantics runs.

    What it backs: the kernel, the checker of step programs that is proved sound (README.md). The words are those of
    `placealg/step/verbs.py`: a program has parameter groups, units in forward order, and for each phase a list of
    blocks. Axes, groups and units are numbers, in the order in which the program's reference lists them.

    Main statement: none; these are the types that Semantics.v gives a meaning and Check.v decides. *)

From Coq Require Export List Bool.
Export ListNotations.

(** Where numbers are stored. [Disk] is the checkpoint. *)
Inductive tier := Device | Host | Nvme | Disk.
Inductive value := Weight | Master | Moments | Grad | GradSum | Average.
Definition value_eqb (v w : value) : bool :=
  match v, w with
  | Weight, Weight | Master, Master | Moments, Moments | Grad, Grad | GradSum, GradSum
  | Average, Average => true | _, _ => false end.
Record slot := At { what : value; on : tier }.

(** A layout, by its number: the same on all ranks, or one that every coordinate along an axis has for itself. *)
Inductive layout := Shared (n : nat) | Drawn (n along : nat).

(** `where`: owner(axis) under a layout, and rank(axis) = 0. A place is their conjunction, the empty one everywhere. *)
Inductive clause := Owner (s : layout) (a : nat) | First (a : nat).
Definition place := list clause.

(** A divisor or a scale: a quotient of products. [Tokens] is the rank's number of a loss's tokens in the microbatch,
    [Count] the number of them that it has counted, [Scaling] what the loss scale multiplies by, [Padding] the size of
    shards that are all as large as the largest, over what they hold; which shards of which group, is a number. [All] is
    the number of a loss's tokens on all ranks, in the microbatch or in the step: what the checker knows of a count. *)
Inductive symbol := Tokens (n : nat) | Count (n : nat) | Micro | Size (a : nat) | Scaling | Padding (shards : nat)
  | All (n : nat) (each : bool).
Record ratio := Ratio { over : list symbol; under : list symbol }.

(** How a reduction puts the parts of its ranks together: their sum or mean, divided behind it, the sum of parts that
    each rank has divided before, or the largest of them. *)
Inductive operator := Plain | Mean | Premultiplied | Largest.

(** What happens to one instance of one group, on all ranks at once; [x] is read, [y] is written. *)
Inductive event :=
| Broadcast (x : slot) (along : list nat)              (* broadcast, root 0 *)
| Gather (x y : slot) (s : layout) (along : list nat) (q : place)  (* gather, all_gather; publish with axes *)
| Initial (y : slot) (q : place)                       (* assign of moments *)
| Copy (x y : slot) (q : place)                        (* assign, offload, fetch, store, load *)
| Publish (x y : slot) (q : place)                     (* publish without axes: where it is held *)
| Keep (x : slot) (s : layout) (along : list nat)    (* slice; free with axes *)
| Free (x : slot) (q : place)                          (* free without axes *)
| Zero (y : slot) (q : place)
| Accumulate (x y : slot) (larger : bool) (q : place)    (* the sum, or the larger of the two *)
| Scale (y : slot) (k : ratio) (q : place)
| Reduce (y : slot) (along : list nat) (by_ : operator) (to : option layout) (k : ratio)  (* to owners under a layout *)
| Clip (y : slot) (q : place)
| Update (k : tier) (by_ : ratio) (q : place)             (* its step divided, as [Scale] multiplies *)
| TakeIn (x y : slot) (q : place)                       (* update of an average: y takes in x *)
.

(** What happens to one instance of a unit. [own] are the divisors of which further terms of the loss start that the
    unit has itself; [Take] is the statistic of a group, of what forward kept, on the rank's tokens. *)
Inductive instr := On (g : nat) (e : event) | Forward | Backward (own : list ratio) | Take (g : nat) (k : ratio).

(** The step counter, the random stream and the loss scale: states of their own, one number a rank. *)
Inductive counter := Step | Stream | LossScale.
Definition counter_eqb (c d : counter) : bool :=
  match c, d with Step, Step | Stream, Stream | LossScale, LossScale => true | _, _ => false end.
Inductive tick := Start | Advance | Store | Load.

Inductive block :=
| Each (u : nat) (reversed : bool) (body : list instr)  (* the loop over a unit's instances *)
| Loss (n : nat) (k : ratio)                            (* loss.compute, of loss n *)
| ScaleLoss (n : nat) (k : ratio)                       (* loss.scale *)
| Norm (g : nat) (x : slot) (q : place)                 (* the partial norm of every instance of a group *)
| NormSum (along : list nat)                            (* norm.all_reduce *)
| Look (g : nat) (x : slot) (q : place)                 (* skip.compute: the flag of every instance of a group *)
| LookMax (along : list nat)                            (* skip.all_reduce, op max *)
| CountTokens (n : nat) (each : bool)                   (* count.compute, of loss n: of the microbatch, or the step *)
| CountSum (n : nat) (along : list nat)                 (* count.all_reduce *)
| Tick (c : counter) (d : tick) (firsts : list nat)      (* at coordinate 0 of these axes *)
| ShareTick (c : counter) (along : list nat)            (* broadcast, root 0 *)
.

(** Where the strategy says that an average of the weights rests, and on which tier, if a group has one. *)
Inductive average_place := NoAverage | AverageAt (q : place) (k : tier).

(** What moves a group: a gradient; nothing, so that it is frozen; or a statistic of the first loss's tokens, weighed as
    their gradients are, or summed, or the largest of theirs. A statistic is neither clipped nor counted in the norm,
    and no flag looks at it. *)
Inductive mover := Gradient | Nothing | MeanTaken | SumTaken | MostTaken.

(** A group of parameters: the units that use it, in forward order; where, and on which tier, the strategy says that it
    rests; the values of which the update of an element reads its whole matrix; what moves it; where its average
    rests. *)
Record group := Group { sites : list nat; rests : place; lies : tier; whole_reads : list value;
  moved : mover; average_rests : average_place }.
Definition frozen (d : group) : bool := match moved d with Nothing => true | _ => false end.
Definition graded (d : group) : bool := match moved d with Gradient => true | _ => false end.
Definition summed (d : group) : bool := match moved d with SumTaken => true | _ => false end.
Definition most (d : group) : bool := match moved d with MostTaken => true | _ => false end.

(** How the reference weighs a token: by one over all tokens of the step; by one over those of its microbatch and over
    the number of microbatches; by 1. *)
Inductive weighting := TokenMean | MicrobatchMean | Sum.

(** Microbatches whose events are others than those of the middle ones: where there is one alone, the first of several,
    the last. *)
Inductive ends := Alike | Apart (alone first last : list block).

(** [repeated] says of every unit whether it stands in the loop over layers; [data] are the axes that split the batch;
    [clips] says whether the reference clips by the global norm; [skips] whether it leaves out a step in which a
    gradient overflows; [scales] whether a loss scale is carried along; [equal] whether equal counts are assumed;
    [further] how many losses there are besides the first, each with tokens of its own. The rest is the program. *)
Record program := Program {
  axes : list nat; data : list nat; weighs : weighting; equal : bool; clips : bool; skips : bool; scales : bool;
  further : nat;
  repeated : list bool;
  groups : list group;
  init : list block; prepare : list block; inside : list block; at_ends : ends; outside : list block;
  save : list block; resume : list block
}.

(** A program without a resume is never resumed. *)
Definition resumes (p : program) : bool := match resume p with [] => false | _ => true end.
(** The blocks of a microbatch of so many. *)
Definition body_at (p : program) (micro j : nat) : list block :=
  match at_ends p with
  | Alike => inside p
  | Apart alone first last => match micro, j with
      | 1, _ => alone | _, 0 => first | _, _ => if Nat.eqb (S j) micro then last else inside p end end.
Definition bodies (p : program) : list block :=
  inside p ++ match at_ends p with Alike => [] | Apart alone first last => alone ++ first ++ last end.
(** Without a loss scale there is none to carry along. *)
Definition carried (p : program) (c : counter) : bool := match c with LossScale => scales p | _ => true end.
