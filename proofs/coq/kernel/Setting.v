(** What a program may meet: a model, a batch, an optimizer, sizes of axes, owner functions, and the junk in memory that
    nothing defined. Nothing is assumed of the model's functions.

    What it backs: the kernel. A reader has to believe this file, as Syntax.v and Semantics.v.

    Main statement: [world], the definition. *)

From Placealg Require Export Sums.
From Placealg.kernel Require Export Syntax.
Open Scope nat_scope.

Fixpoint of_nat {K : CRing} (n : nat) : K := match n with O => 0%ring | S n => (1 + of_nat n)%ring end.

Definition rank := nat -> nat.  (* axis -> coordinate *)

Class world := {
  (* the mesh: sizes of axes; the owner of each element, under a layout as a coordinate has it, along an axis *)
  size : nat -> nat; size_pos : forall a, 0 < size a;
  E : Type; elements : list E; group_of : E -> nat; layer_of : E -> nat; matrix_of : E -> nat;
  own : nat -> nat -> nat -> E -> nat; own_ok : forall s c a i, own s c a i < size a;
  (* the batch of every step and microbatch, and at which coordinate of an axis a token stands; whose loss it is of: a
     token that several losses have is there for each *)
  X : Type; micro : nat; batch : nat -> nat -> list X; loss_of : X -> nat; home : X -> nat -> nat;
    home_ok : forall x a, home x a <
    size a;
  (* numbers: a ring in which every number of things other than none has an inverse *)
  K : CRing; share : nat -> K; share_ok : forall n, n <> 0 -> (of_nat n * share n)%ring = 1%ring;
  (* the larger of two magnitudes *)
  larger : K -> K -> K; larger_sym : forall a b, larger a b = larger b a;
  larger_of_three : forall a b c, larger a (larger b c) = larger (larger a b) c;
  larger_same : forall a, larger a a = a; larger_zero : forall a, larger 0%ring a = a;
  (* the model: units with any number of instances; A flows forward, B backward, T are the states' values *)
  T : Type; A : Type; B : Type; layers : nat -> nat;
  first_weight : E -> T; first_moments : E -> T;
  input : X -> A;
  forward : nat -> nat -> nat -> X -> list T -> A -> A;             (* unit, instance, stream, token, weights *)
  seed : X -> A -> B;
  backward : nat -> nat -> X -> nat * list T * A -> list T -> B -> B;  (* what forward kept, weights *)
  gamma : nat -> nat -> X -> nat * list T * A -> list T -> B -> E -> K;
  statistic : nat -> nat -> X -> nat * list T * A -> E -> K;  (* a token's part of a statistic, of what forward kept *)
  (* how large padded shards are *)
  padding : nat -> K; unpadding : nat -> K; padding_ok : forall n, (padding n * unpadding n)%ring = 1%ring;
  (* the loss scale: its state is a number, 0 at first; by what it multiplies; how it goes on, by whether a step was
     left out *)
  scaling : nat -> K; unscaling : nat -> K; scaling_ok : forall n, (scaling n * unscaling n)%ring = 1%ring;
  grow : nat -> bool -> nat;
  (* the optimizer *)
  measure : E -> K -> K; overflows : E -> K -> bool; clip : K -> K -> K;
  update : K -> nat -> E -> list T -> list T -> list K -> T * T;  (* by what its step is multiplied *)
  average : E -> T -> T -> T;  (* an average, and the parameter that it takes in *)
  (* what nothing defined: any numbers, others at every event *)
  junk : nat -> rank -> E -> T + K; junk_stream : nat -> rank -> nat; junk_norm : nat -> nat -> rank -> K; junk_flag
    : nat -> nat -> rank -> bool;
  junk_scale : nat -> rank -> K; junk_tally : nat -> nat -> rank -> nat; junk_flow : rank -> X -> B
}.
