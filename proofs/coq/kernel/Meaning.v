(** What it means that a program is correct: whatever is kept between steps is the single device's, where a run saves
    and goes on, or stops and is resumed. To be believed, with Machine.v.

    What it backs: placealg/prover/kernel/program.py, and the words "accepted by the kernel of ops".

    Main statements: [den] (what a tensor that lies so means), [truth] (what the single device computes), [valid] (what
    is assumed of a world), [correct]. *)

From Placealg.kernel Require Import Prelude Machine.

(** ** How tensors lie, and what they mean. *)
Definition type := nat -> kind.
Section Lies.
Context {K : CRing}.
Variables (size : nat -> nat) (home : nat -> nat -> index -> nat).
(** On the axes of a list: what a rank reads of a tensor of that type, and that all who may be asked agree. *)
Fixpoint val (l : list nat) (T : type) (x : @tensor K) (r : rank) (i : index) : K :=
  match l with
  | [] => x r i
  | a :: l => match T a with
    | Full => val l T x (put r a 0) i
    | Shard d => val l T x (put r a (home a d i)) i
    | Part => sum_list (seq 0 (size a)) (fun c => val l T x (put r a c) i)
    end
  end.
Fixpoint agree (l : list nat) (T : type) (x : @tensor K) (r : rank) (i : index) : Prop :=
  match l with
  | [] => True
  | a :: l => match T a with
    | Full => forall c, c < size a -> agree l T x (put r a c) i /\ val l T x (put r a c) i = val l T x (put r a 0) i
    | Shard d => agree l T x (put r a (home a d i)) i
    | Part => forall c, c < size a -> agree l T x (put r a c) i
    end
  end.
Definition den l T x r i (k : K) := agree l T x r i /\ val l T x r i = k.
(** It depends on nothing but coordinates and positions. *)
Definition ext (x : @tensor K) := forall r r' i i', (forall a, r a = r' a) -> (forall d, i d = i' d) -> x r i = x r' i'.
Definition kind_in (ks : list kind) : type := fun a => nth a ks Full.
Definition lies (axes : nat) (x : @tensor K) (v : @logical K) (ks : list kind) : Prop :=
  ext x /\ forall r i, den (seq 0 axes) (kind_in ks) x r i (v i).
End Lies.

(** ** The single device. *)

(** A value is named by a number, and by the instance that makes it where a unit is run several times. *)
Inductive ix := First | This | Next | Last (unit : nat).
Definition named := (positive * ix)%type.
Inductive single :=
| SEinsum (over : list nat)
| SRow (f : nat) (over : list nat)
| SAdd
| SScale (by_ : mono)
| SRename (p : renaming).
Record line := Line { target : named; made : single; reads : list named }.
(** Its step: numbered lines that run once, or in each instance of a unit, from the first or from the last. *)
Inductive stretch := Plain (ls : list (positive * line)) | Repeat (unit : nat) (down : bool) (ls :
  list (positive * line)).

(** What comes from outside, or is kept between steps: how it lies there, and which value it is. *)
Record held := Held { value_of : positive; per : option nat; lying : list kind }.

Record program := Program {
  on : mesh;
  ones : list mono; (* products of sizes and counts that are 1, such as all tokens over those of all ranks *)
  alone : list stretch; (* the single device's step *)
  states : list (positive * positive); (* what it keeps: in the next step the first is what the second was *)
  begins : list (positive * positive); (* what it keeps and begins with: the first is as the second, as averages are *)
  given : list held; (* what a run begins with *)
  data : list held; (* what each step reads *)
  init : list block; step : list part; save : list block; resume : list block;
  disk : list slot; (* what is left of a run that stopped *)
  rest : list (slot * held) (* where it is between steps *)
}.

Section Meaning.
Context {K : CRing}.
Variables (w : world K) (p : program).

Definition at_ (l : nat) (x : ix) : nat := match x with First => 0 | This => l | Next => S l | Last u => layers w u end.
Definition count (u : option nat) : nat := match u with Some u => layers w u | None => 1 end.
(** Values of a single device: of a number, in a step, of an instance. *)
Definition values := positive -> nat -> nat -> @logical K.
Definition look (v : values) (t l : nat) (n : named) : @logical K := v (fst n) t (at_ l (snd n)).
Definition computed (s : single) (t l : nat) (vs : list (@logical K)) : @logical K :=
  let x := nth 0 vs (fun _ => 0%ring) in
  match s with
  | SEinsum over => einsum_ref (extent w) over vs
  | SRow f _ => fun i => fn w f t l i vs
  | SAdd => fun i => sum_list vs (fun v => v i)
  | SScale m => fun i => (value (atom w) (inverse w) m * x i)%ring
  | SRename q => fun i => x (fun d => i (renamed q d))
  end.
(** A line changes one value, and a step runs its lines in order. [free]: what comes from outside, or is kept from the
    beginning. A value that nothing makes stays what it was. *)
Definition made_now := positive -> nat -> @logical K.
Definition run_line (t l : nat) (x : line) (m : made_now) : made_now := fun n i =>
  if (n =? fst (target x))%positive && (i =? at_ l (snd (target x)))
  then computed (made x) t l (map (fun a => m (fst a) (at_ l (snd a))) (reads x)) else m n i.
Definition run_lines (t l : nat) (ls : list (positive * line)) (m : made_now) : made_now :=
  fold_left (fun m x => run_line t l (snd x) m) ls m.
Definition run_stretch (t : nat) (s : stretch) (m : made_now) : made_now :=
  match s with
  | Plain ls => run_lines t 0 ls m
  | Repeat u down ls => fold_left (fun m j => run_lines t (instance w u down j) ls m) (seq 0 (layers w u)) m
  end.
Definition next_of (n : positive) : option positive := option_map snd (find (fun q => (fst q =? n)%positive) (states
  p)).
Variable free : nat -> made_now.
Fixpoint reference (t : nat) : made_now :=
  fold_left (fun m s => run_stretch t s m) (alone p)
    (match t with 0 => free 0 | S t' => fun n l => match next_of n with Some k => reference t' k l | None => free t n
      l end end).
Definition truth : values := fun n t => reference t n.
End Meaning.

Section Correct.
Context {K : CRing}.
Variables (w : world K) (p : program).
Definition scoped (s : stretch) : list (positive * (option nat * line)) :=
  match s with Plain ls => map (fun x => (fst x, (None, snd x))) ls | Repeat u _ ls => map (fun x => (fst x, (Some u,
    snd x))) ls end.
Definition lines : list (positive * (option nat * line)) := flat_map scoped (alone p).

(** A function of rows reads its operands where they have the positions of its result, in all positions of [over]. *)
Definition outside (over : list nat) (i j : index) : Prop := forall d, ~ In d over -> j d = i d.
Definition whole_rows (over : list nat) (f : index -> list (@logical K) -> K) : Prop := forall i i' vs ws,
  (forall d, i d = i' d) ->
  Forall2 (fun v w => forall j j', outside over i j -> (forall d, j d = j' d) -> v j = w j') vs ws -> f i vs = f i' ws.
Definition plain (g : mesh) (d : nat) : bool := match touches g d with [e] => e =? d | _ => false end.
(** Whether a way is the same in all instances. *)
Definition still (g : mesh) (d : nat) : bool := forallb (fun f => negb ((here f =? d) || (behind f =? d))) (moving g).
Definition likeness (g : mesh) (d : nat) : nat := nth d (like g) d.

(** What is assumed of a world. *)
Record valid : Prop := Valid {
  size_pos : forall a, 0 < size w a;
  home_ok : forall l a d i, home w l a d i < size w a;
  home_touches : forall l a d i j, (forall e, In e (touches (on p) d) -> i e = j e) -> home w l a d i = home w l a d j;
  home_still : forall l a d i, still (on p) d = true -> home w l a d i = home w 0 a d i;
  home_moves : forall f, In f (moving (on p)) -> forall a i, home w 0 a (here f) i = home w 0 a (entry f) i
    /\ home w (layers w (of_unit f)) a (here f) i = home w 0 a (exit f) i
    /\ forall l, home w l a (behind f) i = home w (S l) a (here f) i;
  home_like : forall l a d e i j, plain (on p) d = true -> plain (on p) e = true ->
    likeness (on p) d = likeness (on p) e ->
    i d = j e -> home w l a d i = home w l a e j;
  inverted : forall k, (atom w k * inverse w k)%ring = 1%ring;
  ones_ok : forall m, In m (ones p) -> value (atom w) (inverse w) m = 1%ring;
  sized_ok : forall a k, In (a, k) (sized (on p)) -> atom w k = sum_list (seq 0 (size w a)) (fun _ => 1%ring);
  rows_ok : forall k u x f over, In (k, (u, x)) lines -> made x = SRow f over ->
    forall t l, whole_rows over (fn w f t l);
  junk_ext : forall path, ext (junk w path)
}.
(** What comes from outside is the single device's, and lies as the program says. *)
Definition handed (v : @values K) : Prop :=
  (forall h, In h (given p) -> forall l, l < count w (per h) ->
    lies (size w) (home w l) (axes (on p)) (input w true (value_of h) 0 l) (v (value_of h) 0 l) (lying h)) /\
  (forall h, In h (data p) -> forall t l, l < count w (per h) ->
    lies (size w) (home w l) (axes (on p)) (input w false (value_of h) t l) (v (value_of h) t l) (lying h)) /\
  (forall n k, In (n, k) (begins p) -> forall l i, v n 0 l i = v k 0 l i).

(** ** A run: behind each step it goes on, or saves and goes on, or saves, is stopped, and goes on from that. *)
Inductive pause := On | Saved | Stopped.
Definition stopped (path : list nat) (m : @memory K) : @memory K := fun s l =>
  if existsb (slot_eqb s) (disk p) then m s l else junk w (l :: path).
Fixpoint run (pauses : nat -> pause) (t : nat) : @memory K :=
  match t with
  | 0 => run_blocks (on p) w (Moment 0 0 0 true) [0] 0 (init p) (fun _ l => junk w [l])
  | S t => let e := Moment (S t) 0 0 false in
    let m := run_parts (on p) w (Moment t 0 0 false) [1; t] 0 (step p) (run pauses t) in
    let m' := run_blocks (on p) w e [4; t] 0 (save p) m in
    match pauses t with
    | On => m | Saved => m'
    | Stopped => run_blocks (on p) w e [3; t] 0 (resume p) (stopped [2; t] m')
    end
  end.
Definition right (v : @values K) (t : nat) (m : @memory K) : Prop :=
  forall s h, In (s, h) (rest p) -> forall l, l < count w (per h) ->
    lies (size w) (home w l) (axes (on p)) (m s (inst s l)) (v (value_of h) t l) (lying h).
End Correct.

(** All that the single device keeps is kept, and between any two steps it is the single device's, at every rank. *)
Definition correct (p : program) : Prop :=
  (forall n k, In (n, k) (states p) -> exists s h, In (s, h) (rest p) /\ value_of h = n) /\
  forall (K : CRing) (w : world K) free, valid w p -> handed w p (truth w p free) ->
  forall pauses t, right w p (truth w p free) t (run w p pauses t).
