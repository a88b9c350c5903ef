(** Versions inside a step: following symbols instead of values is sound, and loses nothing.

    What it backs: [CURRENT], [NEXT] and [GARBAGE] of placealg/prover/calculus/versions.py, and state consistency at
    reads in the middle of a step: gather, use, free, update, publish, offload and fetch. Buffers are any set; each
    holds the copy of one element. An update makes the next version iff what it reads is current and its gradient is
    right ([good]); a copy of another element's buffer is garbage.

    Main statements: [versions_sound] (a buffer whose symbol is a version holds that version, for every model and every
    junk), [versions_exact] (where the symbol is garbage, some model tells) and [steps_sound] (a step that leaves every
    buffer it began with at the next version can be repeated for ever). *)

From Placealg Require Import Sums.

Inductive version := Current | Next | Garbage.

Section Versions.
Variables (B E : Finite) (at_element : B -> E).

(** Buffer [to] gets what [from] holds; it is freed; the update of [b] reads buffers [reads] and gets a gradient. *)
Inductive event := Copy (from to : B) | Free (b : B) | Update (b : B) (reads : list B) (good : bool).

Definition put {T : Type} (b : B) (new : T) (held : B -> T) : B -> T := fun b' => if b' == b then new else held b'.

Definition is_current (v : version) : bool := match v with Current => true | _ => false end.

Definition follow (held : B -> version) (ev : event) : B -> version := match ev with
  | Copy from to => put to (if at_element from == at_element to then held from else Garbage) held
  | Free b => put b Garbage held
  | Update b reads good =>
      put b (if forallb is_current (map held (b :: reads)) then if good then Next else Garbage else Garbage) held
  end.

(** A model of one element at a time: what an update makes of the element's value and of the values it reads, given the
    right gradient or another. *)
Record model := {
  value : Type;
  start : E -> value;
  update : bool -> E -> value -> list value -> value
}.

(** [reads e]: the other elements that the update of [e] reads. *)
Variable reads : E -> list E.

(** The single device, at step [t]. *)
Fixpoint theta (m : model) (t : nat) : E -> value m := match t with
  | O => start m
  | S t => fun e => update m true e (theta m t e) (map (theta m t) (reads e))
  end.

(** Value [x] is what a buffer of element [e] with symbol [v] holds in step [t]. *)
Definition is_version (m : model) (t : nat) (v : version) (e : E) (x : value m) : Prop := match v with
  | Current => x = theta m t e
  | Next => x = theta m (S t) e
  | Garbage => True
  end.

(** What memory holds: freed buffers, and nothing else, hold junk. *)
Definition execute (m : model) (junk : B -> value m) (held : B -> value m) (ev : event) : B -> value m := match ev with
  | Copy from to => put to (held from) held
  | Free b => put b (junk b) held
  | Update b reads good => put b (update m good (at_element b) (held b) (map held reads)) held
  end.

(** Updates read, of each element that the reference's update reads, a buffer that is meant for it. *)
Definition declared (ev : event) : Prop := match ev with
  | Update b from _ => map at_element from = reads (at_element b)
  | _ => True
  end.

Theorem versions_sound m junk t program : Forall declared program -> forall symbols values,
  (forall b, is_version m t (symbols b) (at_element b) (values b)) ->
  forall b, is_version m t (fold_left follow program symbols b) (at_element b)
    (fold_left (execute m junk) program values b).
Proof.
  induction 1 as [|ev program well _ IH]; intros symbols values holds; [exact holds|]; cbn; apply IH; clear IH program.
  intros b; destruct ev as [from to|b'|b' from good]; cbn; unfold put; destruct (b == _) as [->|]; auto.
  - destruct (at_element from == at_element to) as [<-|]; [apply holds|exact I].
  - destruct (is_current (symbols b')) eqn:current; cbn [andb]; [|easy].
    destruct (forallb is_current (map symbols from)) eqn:all; [|easy]; destruct good; [|easy]; cbn.
    rewrite <- well, map_map; f_equal.
    + specialize (holds b'); now destruct (symbols b').
    + rewrite forallb_forall in all; apply map_ext_in; intros b inside; specialize (all _ (in_map symbols _ _ inside)).
      specialize (holds b); now destruct (symbols b).
Qed.

(** The model whose values are the symbols themselves. *)
Definition symbolic : model := {|
  value := version * E;
  start e := (Current, e);
  update good e x reads :=
    (if forallb is_current (fst x :: map fst reads) then if good then Next else Garbage else Garbage, e)
|}.

Theorem versions_exact program symbols b :
  (forall from to, In (Copy from to) program -> at_element from = at_element to) ->
  fold_left (execute symbolic (fun b => (Garbage, at_element b))) program (fun b => (symbols b, at_element b)) b
  = (fold_left follow program symbols b, at_element b).
Proof.
  intros own.
  assert (agree : forall program symbols (values : B -> version * E),
    (forall from to, In (Copy from to) program -> at_element from = at_element to) ->
    (forall b, values b = (symbols b, at_element b)) ->
    fold_left (execute symbolic (fun b => (Garbage, at_element b))) program values b
    = (fold_left follow program symbols b, at_element b)).
  { clear; induction program as [|ev program IH]; intros symbols values own holds; [apply holds|]; cbn; apply IH;
      [intros; apply own; now right|]; clear IH.
    intros c; destruct ev as [from to|b'|b' from good]; cbn; unfold put; destruct (c == _) as [->|]; auto.
    - rewrite holds, (own from to) by now left.
      destruct (at_element to == at_element to); congruence.
    - rewrite holds, map_map; cbn; f_equal.
      now rewrite (map_ext (fun b => fst (values b)) symbols) by (intros; now rewrite holds). }
  now apply agree.
Qed.

(** Many steps; in each of them memory may hold other junk. *)
Fixpoint train (m : model) (junk : nat -> B -> value m) (program : list event) (t : nat) (values : B -> value m) :
    B -> value m := match t with
  | O => values
  | S t => fold_left (execute m (junk t)) program (train m junk program t values)
  end.

Theorem steps_sound m junk program (at_rest : B -> bool) values : Forall declared program ->
  (forall b, at_rest b = true ->
     fold_left follow program (fun b => if at_rest b then Current else Garbage) b = Next) ->
  (forall b, at_rest b = true -> values b = start m (at_element b)) ->
  forall t b, at_rest b = true -> train m junk program t values b = theta m t (at_element b).
Proof.
  intros well next first; induction t as [|t IH]; intros b rests; [now apply first|].
  cbn [train]; assert (sound := versions_sound m (junk t) t program well
    (fun b => if at_rest b then Current else Garbage) (train m junk program t values)).
  specialize (fun holds => sound holds b); rewrite next in sound by easy; apply sound.
  intros b'; destruct (at_rest b') eqn:rests'; cbn; auto.
Qed.

End Versions.
