(** Steps, saves and resumes: what is known behind them is true.

    What it backs: the kernel.

    Main statement: [boundary_ok]: what holds between steps goes on to hold, wherever the run stops and is resumed. *)

From Coq Require Import Lia.
From Placealg.kernel Require Import Semantics.
From Placealg.kernel Require Import Check.
From Placealg.kernel Require Import Decide.
From Placealg.kernel Require Import Algebra Scaling Norms.
From Placealg.kernel Require Import Facts Counting.
From Placealg.kernel Require Import Counters.
From Placealg.kernel Require Import Globals.
From Placealg.kernel Require Import Events.
From Placealg.kernel Require Import Units.
From Placealg.kernel Require Import Loops.
From Placealg.kernel Require Import Tables.
From Placealg.kernel Require Import Bodies.
Open Scope nat_scope.

Section Sound.
Context {w : world} (p : program).
Add Ring K_ring : (laws K).
Variables (count_ : nat -> nat) (count_pos : forall n, 0 < count_ n) (micro_pos : 0 < micro).
Hypothesis counts_equal : equal p = true -> forall n t j r, n <= further p -> j < micro -> ok r ->
  length (mine p n t j r) = count_ n.
Hypothesis well : well_formed p = true.

Notation fits := (fits p count_).
Notation holds := (holds p count_).
Notation glob := (glob p).
Notation between := (between p count_).
Notation blocks := (blocks_ok p count_ count_pos micro_pos counts_equal (data_once p well) (deep p well)).

(** ** Steps *)

Lemma step_ok (t : nat) (f g : facts) (m : memory) : after_step p f = Some g -> between t 0 f m ->
  between t micro g (step p t m) /\ (fine g = true -> log_ok p t (step p t m)).
Proof.
  unfold after_step, step. intros found known.
  set (m0 := begin_step m).
  assert (B0 : between t 0 (refreshed f) m0).
  { destruct known as [a b c d e1 e2 e3 e5 e4]. split; cbn [refreshed slots kepts acts cots factor norms counts fine];
      try easy; try (now intros [|]).
    - destruct a as [A B C Y Z]. split; cbn [refreshed norms counts]; try easy.
      + intros k []; [now destruct k|]. pose proof (A k false) as here. now destruct k.
      + intros n e un no. exact (no_looks _ _ _ no _).
    - now rewrite map_length.
    - intros i cover. rewrite nth_map_table by easy.
      eapply (fits_map p count_ t 0 t 0 (fun x h => if on_disk x then Any else h)); [|now apply d].
      intros [x []] h here; cbn [on_disk on held m0 begin_step]; easy. }
  destruct (well_parts p well) as [_ [_ [_ [prep [_ [out _]]]]]].
  destruct (blocks t 0 false Early ltac:(easy) I _ _ _ prep B0) as [B1 L1].
  destruct (after_loop p _) as [h|] eqn:loop; [|easy]. injection found as <-.
  destruct (loop_ok p count_ count_pos micro_pos counts_equal well t _ h _ loop B1) as [B2 L2].
  destruct (blocks t micro false Late ltac:(easy) eq_refl _ _ _ out B2) as [B3 L3].
  split; [now apply (quiet_between p count_)|]. cbn [quiet fine]. intros fine_.
  destruct (L3 fine_) as [F3 G3]. destruct (L2 F3) as [F2 G2]. destruct (L1 F2) as [F1 G1].
  apply G3, G2, G1. now intros u l got read.
Qed.

Lemma turn_ok (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : holds t j h f i -> holds (S t) 0 (turn
  h) f i.
Proof. destruct h as [| |[[]|[]| | | |[]] q o]; try easy. Qed.

Lemma stay_ok (t j : nat) (h : know) (f : rank -> option (T + K)) (i : E) : trains p (group_of i) = false ->
  holds t j h f i -> holds (S t) 0 (stay h) f i.
Proof.
  intros still. destruct h as [| |[[]|[]| | | |[]] q o]; try easy. intros here r good. specialize (here r good).
  cbn beta in *.
  destruct (sat q r i); [|exact here]. rewrite here. cbn [val]. rewrite theta_next, still.
  now destruct (left_out p t _).
Qed.

Lemma turned_ok (t j : nat) (f : facts) (m : memory) : between t j f m -> between (S t) 0 (turned p f) m.
Proof.
  intros [a b c d e1 e2 e3 e5 e4]. split; cbn [turned slots kepts acts cots factor norms counts fine];
    try easy; try (now intros [|]).
  - destruct a as [A B C Y Z]. split; cbn [turned norms counts].
    + intros k disk. pose proof (A k disk) as here.
      assert (told (on_counts (fun n _ => match n with Ticks true l o => Ticks false l o | Unheld => Unheld
        | _ => Unsaid end) (counts f) (counts f)) k disk = match told (counts f) k disk with
        | Ticks true l o => Ticks false l o | Unheld => Unheld | _ => Unsaid end) as -> by now destruct k, disk.
      destruct (told (counts f) k disk) as [| |[] l o]; try easy.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (norms f) g); easy.
    + intros n e un found. exact (no_looks _ _ _ found _).
    + intros n q found. exact (no_looks _ _ _ found _).
  - rewrite length_zip; [easy|]. easy.
  - now rewrite map_length.
  - intros i cover. destruct (nth_table_zipped turn_group (groups p) (slots f) (group_of i)) as [-> | [g [found ->]]];
      [easy|]. unfold turn_group.
    eapply (fits_map p count_ t j (S t) 0 (fun _ h => if frozen g then stay h else turn h)); [|now apply d].
    intros x h. destruct (frozen g) eqn:still; [|apply turn_ok]. apply stay_ok.
    unfold trains. rewrite found. now rewrite still.
  - intros u l no. exfalso. clear - no. revert u no. induction (kepts f) as [|x l' IH]; intros [|u] no; cbn in no;
    try easy.
    now apply (IH u).
Qed.

Lemma next_ok (t : nat) (f g : facts) (m : memory) : next p f = Some g -> between t 0 f m ->
  between (S t) 0 g (step p t m) /\ (fine g = true -> log_ok p t (step p t m)).
Proof.
  unfold next. destruct (after_step p f) as [h|] eqn:found; [|easy]. intros [= <-] known.
  destruct (step_ok t f h m found known) as [B L]. split; [|exact L]. eapply turned_ok; exact B.
Qed.

(** ** Saves and resumes *)

Lemma save_ok (t : nat) (f : facts) (m : memory) : between t 0 f m -> between t 0 (after_save p f) (saved p t m).
Proof.
  intros [a b c d e1 e2 e3 e5 e4]. unfold after_save, saved.
  destruct (well_parts p well) as [_ [_ [_ [_ [_ [_ [good _]]]]]]].
  apply (quiet_between p count_). apply (blocks t 0 false Early ltac:(easy) I); [easy|].
  split; cbn [slots kepts acts cots factor norms counts fine];
    try easy; try (now intros [|]).
  - destruct a as [A B C Y Z]. split; cbn [norms counts count partial]; try easy.
    + intros k []; [now destruct k|]. pose proof (A k false) as here. now destruct k.
    + intros n e un found. exact (no_looks _ _ _ found _).
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - intros i cover. rewrite nth_map_table by easy.
    eapply (fits_map p count_ t 0 t 0 (fun x h => if on_disk x then Absent else h)); [|now apply d].
    intros [x []] h here; cbn [on_disk on held]; easy.
Qed.

Lemma off_ok (t : nat) (f : facts) (m : memory) : between t 0 f m -> between t 0 (after_off f) (off m).
Proof.
  intros [a b c d e1 e2 e3 e5 e4]. split; cbn [after_off slots kepts acts cots factor norms counts fine];
    try easy; try (now intros [|]).
  - destruct a as [A B C Y Z]. split; cbn [after_off off norms counts count partial].
    + intros k []; [|now destruct k]. pose proof (A k true) as here. now destruct k.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (norms f) g); easy.
    + intros n e un found. exact (no_looks _ _ _ found _).
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - intros i cover. rewrite nth_map_table by easy.
    eapply (fits_map p count_ t 0 t 0 (fun x h => if on_disk x then h else if slot_eq x (At Weight Device) then Any else
      Absent));
      [|now apply d].
    intros x h here. destruct (slot_eq x (At Weight Device)) as [->|apart_]; [easy|].
    destruct x as [[] []]; cbn [on_disk on held off]; easy.
Qed.

Lemma resume_ok (t : nat) (f : facts) (m : memory) : between t 0 f m ->
  between t 0 (after_resume p f) (run_blocks p t 0 (resume p) (off m)).
Proof.
  intros known. unfold after_resume. destruct (well_parts p well) as [_ [_ [_ [_ [_ [_ [_ good]]]]]]].
  apply (quiet_between p count_). apply (blocks t 0 false Early ltac:(easy) I); [easy|]. now apply off_ok.
Qed.

Lemma boundary_ok (t : nat) (f g : facts) (m : memory) (stop : bool) : (resumes p = false -> stop = false) ->
  length (kepts g) = length (repeated p) ->
  holds_between p f (quiet g) = true -> between t 0 f m ->
  between t 0 (quiet g) (if stop then run_blocks p t 0 (resume p) (off (saved p t m)) else saved p t m).
Proof.
  unfold holds_between. intros never len both known. apply andb_true_iff in both. destruct both as [stay back].
  pose proof (save_ok t f m known) as S1. destruct stop.
  - destruct (resumes p); [|now specialize (never eq_refl)].
    eapply (entails_facts_ok p count_ micro_pos); [easy|exact back|]. now apply resume_ok.
  - eapply (entails_facts_ok p count_ micro_pos); [easy|exact stay|easy].
Qed.

Lemma power_on_ok : between 0 0 (at_power_on p) (power_on p).
Proof.
  split; cbn [at_power_on slots kepts acts cots factor norms counts fine];
    try easy; try (now intros [|]).
  - split; cbn [at_power_on norms counts].
    + intros k disk. now destruct k, disk.
    + now rewrite map_length.
    + intros g q found. exfalso. rewrite nth_error_map in found. destruct (nth_error (groups p) g); easy.
    + intros n e un found. exact (no_looks _ _ _ found _).
    + intros n q found. exact (no_looks _ _ _ found _).
  - now rewrite map_length.
  - now rewrite map_length.
  - intros i [small _] x. rewrite nth_table_const by easy.
    induction (named p) as [|y l IH]; [easy|]. cbn [map]. rewrite get_cons.
    destruct (slot_eq y x) as [->|]; [|exact IH]. destruct (slot_eq x (At Weight Device)) as [->|apart_].
    + intros r good. cbn [held power_on]. replace (sat (map First (axes p)) r i) with (forallb (fun a => r a =? 0)
      (axes p)).
      * now destruct (forallb _ (axes p)).
      * clear. unfold sat. induction (axes p) as [|a l IH]; [easy|]. cbn. now rewrite IH.
    + destruct x as [[] []]; cbn [on_disk on]; try easy; intros r good; cbn [held power_on]; congruence.
  - intros u l no. exfalso. clear - no. revert u no. induction (repeated p) as [|x l' IH]; intros [|u] no; cbn in
    no; try easy.
    now apply (IH u).
Qed.

End Sound.
