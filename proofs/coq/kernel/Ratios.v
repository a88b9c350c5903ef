(** Ratios of products of symbols: each two sorted lists, cancelled when a symbol enters.

    What it backs: the kernel. Nothing here is to be believed: Scaling.v proves what they mean.

    Main statement: [times], the definition. *)

From Coq Require Import Arith.
From Placealg.kernel Require Import Syntax.

Definition symbol_eq (s t : symbol) : {s = t} + {s <> t}. Proof. decide equality; apply Nat.eq_dec || apply
  Bool.bool_dec. Defined.
Definition ratio_eq (k l : ratio) : {k = l} + {k <> l}. Proof. decide equality; apply list_eq_dec, symbol_eq. Defined.

Definition before (s t : symbol) : bool :=
  match s, t with
  | Tokens a, Tokens b => a <=? b | Tokens _, _ => true | _, Tokens _ => false
  | Count a, Count b => a <=? b | Count _, _ => true | _, Count _ => false
  | Scaling, _ => true | _, Scaling => false | Micro, _ => true | _, Micro => false
  | Padding a, Padding b => a <=? b | Padding _, _ => true | _, Padding _ => false
  | All a c, All b d => if a =? b then implb c d else a <=? b | All _ _, _ => true | _, All _ _ => false
  | Size a, Size b => a <=? b end.
Fixpoint insert (s : symbol) (l : list symbol) : list symbol :=
  match l with [] => [s] | t :: l' => if before s t then s :: l else t :: insert s l' end.
Fixpoint take (s : symbol) (l : list symbol) : option (list symbol) :=
  match l with
  | [] => None
  | t :: l => if symbol_eq s t then Some l else match take s l with Some l => Some (t :: l) | None => None end
  end.
(** Nothing says that the step has a token. *)
Definition cancels (s : symbol) : bool := match s with Count _ | All _ _ => false | _ => true end.
Definition times1 (s : symbol) (k : ratio) : ratio :=
  match (if cancels s then take s (under k) else None) with Some l => Ratio (over k) l | None => Ratio (insert s
    (over k)) (under k) end.
Definition by1 (s : symbol) (k : ratio) : ratio :=
  match (if cancels s then take s (over k) else None) with Some l => Ratio l (under k) | None => Ratio (over k)
    (insert s (under k)) end.
Definition one : ratio := Ratio [] [].
Definition times (k l : ratio) : ratio := fold_right by1 (fold_right times1 l (over k)) (under k).
