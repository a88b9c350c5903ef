"""Wrong statements for proofs/coq/: each changes a definition or a condition, and some proof has to reject it.

    python tests/coq/coq_mutants.py     says of every mutant which proof rejects it; exits with 1 if one is not rejected

A proof rejects a mutant if Coq stops inside of it, at a step that is no longer right. A file that cannot be read, or a
name that is not there, is no rejection.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

COQ = Path(__file__).resolve().parents[2] / "proofs" / "coq"
NO_REJECTION = re.compile(r"Syntax error|was not found|Unknown|cannot be found|Cannot find a physical path|illegal")
STATEMENT = re.compile(r"^(?:Theorem|Lemma|Example|Definition|Fixpoint)\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one file, and the statement whose proof rejects it."""

    said: str
    file: str
    old: str
    new: str
    rejected_by: str


MUTANTS: tuple[Mutant, ...] = (
    Mutant("all_reduce is a mean", "Moves", "| all_reduce => Σ c', x c' e", "| all_reduce => inv * Σ c', x c' e",
           "Moves.move_sound_at"),
    Mutant("I to P without its scale", "Moves", "| kI, kP | kR, kP => scale", "| kI, kP => none | kR, kP => scale",
           "Moves.move_sound_at"),
    Mutant("reduce_scatter does not sum", "Moves", "| reduce_scatter => if c == after e then Σ c', x c' e",
           "| reduce_scatter => if c == after e then x c e", "Moves.move_sound_at"),
    Mutant("S to S gathers from the new owner", "Moves", "| all_to_all => if c == after e then x (before e) e",
           "| all_to_all => if c == after e then x (after e) e", "Moves.move_sound_at"),
    Mutant("S to S leaves it with the old owner", "Moves", "| all_to_all => if c == after e then",
           "| all_to_all => if c == before e then", "Moves.move_sound_at"),
    Mutant("zero-pad keeps what is not owned", "Moves", "| zero_pad => if c == before e then x c e else 0",
           "| zero_pad => if c == before e then x c e else junk c e", "Moves.move_sound_at"),
    Mutant("R is its own dual, and P", "Moves", "kR => kP | kP => kR;Rep => Part | Part => Rep",
           "kR => kR | kP => kP;Rep => Rep | Part => Part", "Moves.pair_is_value"),
    Mutant("I is dual to R", "Moves", "kI => kI | kR => kP;Inv => Inv | Rep => Part | Part => Rep",
           "kI => kR | kR => kP;Inv => Rep | Rep => Part | Part => Rep", "Moves.dual_kind_dual"),
    Mutant("I pairs on all ranks", "Moves", "  | Inv => Σ e, x root e * g root e\n  | Rep | Part =>",
           "  | Inv | Rep | Part =>", "Moves.pair_is_value"),
    Mutant("1/n is not 1/n", "Moves", "Hypothesis size_inv : size K C * inv = 1.", "Hypothesis size_inv : inv = inv.",
           "Moves.move_sound_at"),
    Mutant("weights of I need not add up to 1", "Axes", "| Inv | Rep => Σ c, r c = 1", "| Inv | Rep => True",
           "Axes.rep_by_readers"),
    Mutant("a summed term loses n", "Rules", "sizes := S (sizes t)", "sizes := sizes t", "Rules.term_summed"),
    Mutant("a sum over owned elements is defined", "Rules", "mask v with Some _ => [SizeOne]",
           "mask v with Some _ => []", "Rules.reduced_sound"),
    Mutant("a gather asks nothing of the mask", "Rules", "Some p => map Coincide (coincide p q)", "Some p => []",
           "Rules.gathered_sound"),
    Mutant("one buffer with the element is enough", "Masks", "element_sum g e) <-> forall b,",
           "element_sum g e) <-> exists b,", "Masks.equal_masks"),
    Mutant("a sum is defined if some rank holds it", "Masks",
           "= Some s <-> (forall c, mask c = true) /\\ s = Σ c, x c.",
           "= Some s <-> (exists c, mask c = true) /\\ s = Σ c, x c.", "Masks.masked_sum"),
    Mutant("a gradient is assigned, not added", "Microbatches", "K := sum + local m.", "K := local m.",
           "Microbatches.added_up"),
    Mutant("a mean of means needs no equal counts", "Microbatches", "<-> size K C * count (home x) = total",
           "<-> total = total", "Microbatches.mean_of_means"),
    Mutant("the ring turns the other way", "Rings", "(c + (n - 1)) mod n", "(c + 1) mod n", "Rings.got_is"),
    Mutant("ranks pass their own block every turn", "Rings", "| S turn => got n (left n c) turn",
           "| S turn => left n c", "Rings.got_is"),
    Mutant("an update of a wrong gradient is right", "Versions", "if good then Next else Garbage else Garbage) held",
           "if good then Next else Next else Garbage) held", "Versions.versions_sound"),
    Mutant("an update reads any version", "Versions", "put b (if forallb is_current (map held (b :: reads)) then",
           "put b (if true then", "Versions.versions_sound"),
    Mutant("a copy of another element is a copy", "Versions",
           "(if at_element from == at_element to then held from else Garbage)", "(held from)",
           "Versions.versions_sound"),
    Mutant("freed memory keeps its version", "Versions", "put b Garbage held", "held", "Versions.versions_sound"),
    Mutant("backwards assign the sum", "Pipeline", "total := total s + gamma", "total := gamma",
           "Pipeline.what_is_left"),
    Mutant("backwards may free the copy", "Pipeline", "backward_stays : forall c k, after_backward c k = c",
           "backward_stays : forall c k, after_backward c k = after_backward c k", "Pipeline.what_is_left"),
    Mutant("no message to the next stage", "Pipeline", "if stage_dec s (own l) then held (own l') else held s",
           "held s", "Pipeline.handing_on"),
    Mutant("GI without locality", "Equivalence",
           "  | used t d i j : live_update p t d i -> near i j -> live_gradient p t d j",
           "  | used t d i j : live_update p t d i -> near i j -> i = j -> live_gradient p t d j",
           "Equivalence.sufficient"),
    Mutant("GI on dead updates", "Equivalence", "(forall t d i x, live_gradient p t d i -> Σ",
           "(forall t d i x, live_gradient p t d i \\/ True -> Σ", "Equivalence.GI_SC_iff_equal"),
    Mutant("GI without the transforms", "Equivalence", "     transforms p t d j = declared /\\ (declared",
           "     transforms p t d j = transforms p t d j /\\ (declared", "Equivalence.sufficient"),
    Mutant("GI without the norm", "Equivalence",
           "(declared <> [] -> forall e, Σ d', counts p t d d' e = 1)).\n\n(** State",
           "(declared = [] -> forall e, Σ d', counts p t d d' e = 1)).\n\n(** State", "Equivalence.sufficient"),
    Mutant("SC without loaded copies", "Equivalence", "live_copy p t d i -> exists d', load p t d i = Made d'.",
           "live_copy p t d i -> exists d', load p t d i = Made d' \\/ load p t d i = Lost d'.",
           "Equivalence.sufficient"),
    Mutant("SC with kept copies", "Equivalence", "live_copy p t d i -> exists d', load p t d i = Made d'.",
           "live_copy p t d i -> exists d', load p t d i = Made d' \\/ load p t d i = Kept.",
           "Equivalence.sufficient"),
    Mutant("SC of dead copies", "Equivalence",
           "forall t d i, live_copy p t d i -> exists d', load p t d i = Made d'.",
           "forall t d i, live_copy p t d i \\/ True -> exists d', load p t d i = Made d'.",
           "Equivalence.necessary_version"),
    Mutant("gradients read nothing", "Equivalence", "weight p t d i x d' <> 0 -> sees x i j ->",
           "weight p t d i x d' <> 0 -> sees x i j -> j = i ->", "Equivalence.right_gradient"),
    Mutant("updates read nothing of their own", "Equivalence", "near_refl : forall i, near i i",
           "near_refl : forall i, near i i -> near i i", "Equivalence.counter"),
    Mutant("ZeRO-3 with a sum for a mean", "Instances", "outside own inv (Shard own) (fun _ i => own i)",
           "outside own 1 (Shard own) (fun _ i => own i)", "Instances.dead_updates_may_be_wrong"),
    Mutant("ZeRO-3 whose ranks all update", "Instances", "(data_parallel inv (Shard own) (fun _ i => own i))",
           "(data_parallel inv (Shard own) (fun d _ => d))", "Instances.zero3_correct"),
    Mutant("ZeRO-1 with partial gradients", "Instances", "(data_parallel inv Inv (fun _ i => own i))",
           "(data_parallel inv Part (fun _ i => own i))", "Instances.zero1_correct"),
    Mutant("experts without the expert ranks in the divisor", "Instances", "(experts (inv_a * inv_b))",
           "(experts inv_a)", "Instances.experts_correct"),
    Mutant("the kernel: a sum over ranks leaves one out", "kernel/Machine",
           "sum_list (seq 0 (size a)) (fun c => x (put r a c) i)",
           "sum_list (seq 1 (size a)) (fun c => x (put r a c) i)", "kernel/Sends.val_summed"),
    Mutant("the kernel: a gather takes the rank's own", "kernel/Machine", "fun r i => x (put r a (home a d i)) i.",
           "fun r i => x (put r a (S (home a d i))) i.", "kernel/Sends.val_taken"),
    Mutant("the kernel: a reduce-scatter leaves all of it everywhere", "kernel/Machine",
           "| ReduceScatter d => if r a =? home a d i then summed a x r i else junk r i",
           "| ReduceScatter d => if r a =? home a d i then x r i else junk r i", "kernel/Sends.send_sound"),
    Mutant("the kernel: a slice keeps what is another's", "kernel/Machine",
           "| Slice d => if r a =? home a d i then x r i else junk r i",
           "| Slice d => if r a =? home a d i then junk r i else x r i", "kernel/Sends.send_sound"),
    Mutant("the kernel: an all-to-all takes from the new owner", "kernel/Machine",
           "| AllToAll d e => if r a =? home a e i then taken a d x r i",
           "| AllToAll d e => if r a =? home a e i then taken a e x r i", "kernel/Sends.send_sound"),
    Mutant("the kernel: an einsum sums what is another's", "kernel/Machine",
           "if has l split over p i r then product", "if negb (has l split over p i r) then product",
           "kernel/Infer.einsum_ext"),
    Mutant("the kernel: an einsum adds its operands", "kernel/Machine", "(k * product l)%ring",
           "(k + product l)%ring", "kernel/Kinds.one_part_product"),
    Mutant("the kernel: a factor's inverse is not one", "kernel/Machine", "power (inverse k) n * value_from",
           "power (inverse k) (S n) * value_from", "kernel/Infer.value_times"),
    Mutant("the kernel: a sum over microbatches forgets what was", "kernel/Machine",
           "(m s l r i + m (fst q) l (put r 0 c) i)%ring", "(m (fst q) l (put r 0 c) i)%ring",
           "kernel/Parts.added_up"),
    Mutant("the kernel: a loop that runs once more", "kernel/Meaning", "(seq 0 (layers w u)) m",
           "(seq 0 (S (layers w u))) m", "kernel/Order.run_stretch_events"),
    Mutant("the kernel: backward runs as forward", "kernel/Machine", "if down then layers w u - S j else j",
           "if down then layers w u - j else j", "kernel/Order.stretch_good"),
    Mutant("the kernel: a write reaches all instances", "kernel/Machine",
           "slot_eqb s' s && (l =? inst s (of_layer e))", "slot_eqb s' s && true", "kernel/Slots.stored_means"),
    Mutant("the kernel: zero is one", "kernel/Machine", "| Zero out => store e out (fun _ _ => 0%ring) m",
           "| Zero out => store e out (fun _ _ => 1%ring) m", "kernel/Slots.instr_true"),
    Mutant("the kernel: what is freed is zero", "kernel/Machine", "| Free out => store e out (junk w path) m",
           "| Free out => m", "kernel/Told.wrong_told"),
    Mutant("the kernel: all have it, and one is asked", "kernel/Meaning",
           "forall c, c < size a -> agree l T x (put r a c) i /\\ val l T x (put r a c) i = val l T x (put r a 0) i",
           "agree l T x (put r a 0) i", "kernel/Kinds.along_value"),
    Mutant("the kernel: parts are not added up", "kernel/Meaning",
           "| Part => sum_list (seq 0 (size a)) (fun c => val l",
           "| Part => sum_list (seq 1 (size a)) (fun c => val l", "kernel/Kinds.one_part_product"),
    Mutant("the kernel: shards are read of rank 0", "kernel/Meaning",
           "| Shard d => val l T x (put r a (home a d i)) i", "| Shard d => val l T x (put r a (S (home a d i))) i",
           "kernel/Kinds.along_value"),
    Mutant("the kernel: the single device adds one operand", "kernel/Meaning",
           "| SAdd => fun i => sum_list vs (fun v => v i)", "| SAdd => fun i => x i", "kernel/Slots.is_line_value"),
    Mutant("the kernel: a next step begins as this one did", "kernel/Meaning", "Some k => reference t' k l",
           "Some k => reference t' n l", "kernel/Order.ordered_solves"),
    Mutant("the kernel: a step leaves what it found", "kernel/Meaning", "| On => m | Saved => m'",
           "| On => run pauses t | Saved => m'", "kernel/Sound.accepted_right"),
    Mutant("the kernel: a stop leaves memory", "kernel/Meaning", "then m s l else junk w (l :: path)",
           "then junk w (l :: path) else m s l", "kernel/Sound.accepted_right"),
    Mutant("the kernel: owners of any index", "kernel/Meaning",
           "(forall e, In e (touches (on p) d) -> i e = j e) -> home w l a d i = home w l a d j;",
           "(forall e, In e (touches (on p) d) -> i e = j e) -> home w l a d i = home w l a d i;",
           "kernel/Infer.rename_sound"),
    Mutant("the kernel: ways that move where none may", "kernel/Meaning",
           "still (on p) d = true -> home w l a d i = home w 0 a d i",
           "still (on p) d = true -> home w l a d i = home w l a d i", "kernel/Moving.means_still"),
    Mutant("the kernel: the next instance where this one is", "kernel/Meaning",
           "home w l a (behind f) i = home w (S l) a (here f) i", "home w l a (behind f) i = home w l a (here f) i",
           "kernel/Moving.means_turning"),
    Mutant("the kernel: a first instance anywhere", "kernel/Meaning",
           "home w 0 a (here f) i = home w 0 a (entry f) i", "home w 0 a (here f) i = home w 0 a (here f) i",
           "kernel/Moving.means_entering"),
    Mutant("the kernel: what follows the last anywhere", "kernel/Meaning",
           "home w (layers w (of_unit f)) a (here f) i = home w 0 a (exit f) i",
           "home w (layers w (of_unit f)) a (here f) i = home w 0 a (here f) i", "kernel/Moving.means_entering"),
    Mutant("the kernel: what is not its own is anything", "kernel/Machine",
           "Only d => if r a =? home a d i then x r i else 0%ring",
           "Only d => if r a =? home a d i then x r i else junk r i", "kernel/Sends.val_only"),
    Mutant("the kernel: what moves is known outside", "kernel/Check",
           "| None => fixed_ix n && all_still (kinds t) end", "| None => fixed_ix n end", "kernel/Slots.instr_static"),
    Mutant("the kernel: a loop hands on where it is", "kernel/Check",
           "let leave := moved u from (if down then here else behind) in",
           "let leave := moved u from (if down then behind else here) in", "kernel/Loops.block_sound"),
    Mutant("the kernel: numbers without an inverse", "kernel/Meaning", "(atom w k * inverse w k)%ring = 1%ring;",
           "inverse w k = inverse w k;", "kernel/Infer.power_inverted"),
    Mutant("the kernel: products that are anything", "kernel/Meaning", "value (atom w) (inverse w) m = 1%ring;",
           "value (atom w) (inverse w) m = value (atom w) (inverse w) m;", "kernel/Infer.value_one"),
    Mutant("the kernel: sizes that are any numbers", "kernel/Meaning",
           "atom w k = sum_list (seq 0 (size w a)) (fun _ => 1%ring);", "atom w k = atom w k;",
           "kernel/Infer.infer_sound"),
    Mutant("the kernel: rows that are read beyond", "kernel/Meaning", "forall d, ~ In d over -> j d = i d",
           "forall d, In d over -> j d = i d", "kernel/Kinds.row_sound"),
    Mutant("the kernel: a rest that is not looked at", "kernel/Check", "| Some k => all_rest (next_of p) k",
           "| Some k => true", "kernel/Sound.accepted_right"),
    Mutant("the kernel: a run may begin as it likes", "kernel/Check",
           "Some k => all_rest (first_of p) k | None => false", "Some k => true | None => false",
           "kernel/Sound.accepted_right"),
    Mutant("the kernel: a save may spoil what it stores", "kernel/Check",
           "Some k => all_rest Some k\n        && match", "Some k => true\n        && match",
           "kernel/Sound.accepted_right"),
    Mutant("the kernel: a sum of what all have is that", "kernel/Check", "mono_times (atom_of (snd q)) (factor t)",
           "factor t", "kernel/Infer.infer_sound"),
    Mutant("the kernel: a gather of any shards", "kernel/Sends",
           "| AllGather d, Shard e => if d =? e then Some Full else None", "| AllGather d, Shard e => Some Full",
           "kernel/Sends.send_sound"),
    Mutant("the kernel: a slice of any shards", "kernel/Sends",
           "| Slice d, Shard e => if d =? e then Some (Shard d) else None", "| Slice d, Shard e => Some (Shard d)",
           "kernel/Sends.send_sound"),
    Mutant("the kernel: a row of a part", "kernel/Kinds", "| None => if forallb is_full ks then Some Full else None",
           "| None => Some Full", "kernel/Kinds.row_sound"),
    Mutant("the kernel: rows by any factor", "kernel/Check", "if forallb (fun t => is_one ones (factor t)) ts",
           "if true", "kernel/Infer.infer_sound"),
    Mutant("the kernel: a claim for any operands", "kernel/Check",
           "if unit_eqb scope u && same_list named_eqb names (reads x)", "if unit_eqb scope u",
           "kernel/Slots.instr_true"),
    Mutant("the kernel: microbatches add up whatever they make", "kernel/Check", "&& is_part (kind_at t 0)",
           "&& true", "kernel/Parts.microbatches_known"),
    Mutant("the kernel: a loop hands on another value", "kernel/Check",
           "named_eqb n (snd c, next) && same_fact t' (snd t)", "same_fact t' (snd t)",
           "kernel/Loops.invariant_step"),
    Mutant("the kernel: a world in which anything is handed", "kernel/World",
           "&& same_list kind_eqb (lying_of true (value_of h)) (lying h))", ")", "kernel/World.world_handed"),
    Mutant("the kernel: two writes alone conflict", "kernel/Reorder",
           "touches_of b s l = true) \\/ (touches_of a s l = true",
           "writes_of b s l = true) \\/ (writes_of a s l = true", "kernel/Reorder.commute"),
    Mutant("the kernel: an op reads nothing", "kernel/Reorder", "existsb (fun s' => is_at e s' s l) args", "false",
           "kernel/Reorder.framed"),
    Mutant("the kernel: a sum does not read what it was", "kernel/Reorder", "slot_eqb s (fst q) || slot_eqb s (snd q)",
           "slot_eqb s (fst q)", "kernel/Reorder.framed"),
    Mutant("the kernel: a stop writes nothing", "kernel/Reorder", "negb (existsb (slot_eqb s) (disk p))", "false",
           "kernel/Reorder.unwritten"),
    Mutant("the kernel: what conflicts is ordered either way", "kernel/Reorder",
           "conflict (numbered i) (numbered j) -> happens_before i j.",
           "conflict (numbered i) (numbered j) -> happens_before i j \\/ happens_before j i.",
           "kernel/Reorder.race_free_printed"),
    Mutant("the kernel: what is ordered begins in order", "kernel/Reorder",
           "happens_before i j -> before halves (Ends i) (Begins j)) ->\n  forall m",
           "happens_before i j -> before halves (Begins i) (Begins j)) ->\n  forall m",
           "kernel/Reorder.race_free_overlapped"),
)


def compiled(build: Path) -> None:
    """Compile everything, as it stands, in `build`."""
    subprocess.run([COQ / "check.sh", build], check=True, capture_output=True)


def files() -> list[str]:
    """The files in the order in which they are compiled."""
    return re.findall(r"^([\w/]+)\.v$", (COQ / "_CoqProject").read_text(encoding="utf-8"), re.MULTILINE)


def changed(mutant: Mutant) -> str:
    """The text of the file with the change made; changes are separated by semicolons where there are several."""
    text = (COQ / f"{mutant.file}.v").read_text(encoding="utf-8")
    old, new = ([mutant.old], [mutant.new]) if mutant.old in text else (mutant.old.split(";"), mutant.new.split(";"))
    for before, after in zip(old, new, strict=True):
        if before not in text:
            raise ValueError(f"{mutant.said}: {mutant.file}.v has no '{before}'")
        text = text.replace(before, after)
    return text


def rejection(mutant: Mutant, build: Path) -> str | None:
    """The statement whose proof rejects the mutant, as `File.name`; None if everything compiles.

    `build` holds the compiled files. Raises ValueError where Coq stops for another reason than a wrong step.
    """
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory) / "coq"
        shutil.copytree(build, there)
        (there / f"{mutant.file}.v").write_text(changed(mutant), encoding="utf-8")
        for file in files()[files().index(mutant.file):]:
            done = subprocess.run(["coqc", "-q", "-R", ".", "Placealg", f"{file}.v"], cwd=there, capture_output=True,
                                  text=True, check=False)
            if done.returncode != 0:
                return f"{file}.{stopped(mutant, (there / f'{file}.v').read_text(encoding='utf-8'), done.stderr)}"
    return None


def stopped(mutant: Mutant, text: str, error: str) -> str:
    """The name of the statement in which Coq stopped."""
    found = re.search(r"line (\d+), characters [\d-]+:\nError", error)
    if found is None or NO_REJECTION.search(error):
        raise ValueError(f"{mutant.said}: no proof rejects it, but\n{error}")
    above = "\n".join(text.splitlines()[:int(found[1])])
    *_, name = STATEMENT.findall(above)
    if "Proof." not in above[above.rindex(name):]:
        raise ValueError(f"{mutant.said}: {name} cannot be stated\n{error}")
    return str(name)


def main() -> int:
    """Say of every mutant which proof rejects it."""
    kept = []
    with tempfile.TemporaryDirectory() as directory:
        build = Path(directory) / "build"
        compiled(build)
        for mutant in MUTANTS:
            by = rejection(mutant, build)
            print(f"{mutant.said:50} {by or 'NOT REJECTED'}")
            kept += [mutant] if by != mutant.rejected_by else []
    return 1 if kept else 0


if __name__ == "__main__":
    sys.exit(main())
