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
    Mutant("the kernel: a mean is a sum", "kernel/Knowledge", "map (mean_of along) co", "co",
           "kernel/Parts.together_ok"),
    Mutant("the kernel: parts divided early are those of a mean", "kernel/Knowledge",
           "| Some _, Plain | Some _, Premultiplied => scaled k s;| Some co, Mean =>",
           "| Some _, Plain => scaled k s;| Some co, Mean | Some co, Premultiplied =>", "kernel/Parts.together_ok"),
    Mutant("the kernel: a largest is summed", "kernel/Knowledge", "| None, Largest => if", "| None, _ => if",
           "kernel/Parts.together_ok"),
    Mutant("the kernel: a largest is divided", "kernel/Knowledge",
           "| None, Largest => if ratio_eq k one then Some s else None", "| None, Largest => Some s",
           "kernel/Parts.together_ok"),
    Mutant("the kernel: a largest is added up", "kernel/Knowledge", "match pt s', eqb larger (largest_of s) with",
           "match pt s', true with", "kernel/Parts.added_ok"),
    Mutant("the kernel: a sum is the whole of a largest", "kernel/Check", "Some co => negb (most_at g) && weighed g co",
           "Some co => weighed g co", "kernel/Counting.whole_ok"),
    Mutant("the kernel: a sum over replicas counts once", "kernel/Knowledge",
           "option_map (map (times1 (Size a))) (how s)", "how s", "kernel/Scaling.sum_reduced"),
    Mutant("the kernel: a gather asks nothing of its source", "kernel/Check",
           "if rigid c along && still along q' && forallb (owner_of s) (on_axes along q')",
           "if rigid c along && still along q'",
           "kernel/Events.gather_ok"),
    Mutant("the kernel: the owners of one layout are those of another", "kernel/Check",
           "forallb (owner_of s) (on_axes along q')", "forallb is_owner (on_axes along q')", "kernel/Events.gather_ok"),
    Mutant("the kernel: parameters rest at owners of two layouts", "kernel/Decide",
           "Owner s _ :: _ => forallb (owner_of s) q", "Owner s _ :: _ => forallb is_owner q",
           "kernel/Sound.accepted_correct"),
    Mutant("the kernel: a step that is divided", "kernel/Check",
           "(if ratio_eq n one then true else false) &&", "true &&", "kernel/Events.update_ok"),
    Mutant("the kernel: a clip needs no norm", "kernel/Check", "if normed f && whole g c then Holds Clipped",
           "if whole g c then Holds Clipped", "kernel/Events.clip_ok"),
    Mutant("the kernel: an update at any step", "kernel/Check", "current f Step && ready g c", "ready g c",
           "kernel/Events.update_ok"),
    Mutant("the kernel: backward without forward", "kernel/Check", "nth u (kepts f) false && match cots f",
           "match cots f", "kernel/Backwards.backward_ok"),
    Mutant("the kernel: the loss before the last unit", "kernel/Check",
           "if flow_eq (acts f) (Outside units) then", "if true then", "kernel/Loops.block_ok"),
    Mutant("the kernel: one loss is all of them", "kernel/Check", "if inside_of losses l then Outside 0 else Begun l",
           "Outside 0", "kernel/Loops.block_ok"),
    Mutant("the kernel: a loss is weighed as another", "kernel/Check", "ratio_in k (wanted g n) | None",
           "ratio_in k (wanted g 0) | None", "kernel/Counting.whole_ok"),
    Mutant("the kernel: a count of one microbatch is one of the next", "kernel/Knowledge",
           "match n with Some (true, _) => None | n => n end", "n", "kernel/Tables.lasting_ok"),
    Mutant("the kernel: a count of one microbatch scales those before it", "kernel/Check",
           "| [], false, _ | [], true, Now =>", "| [], _, _ =>", "kernel/Counting.meant_ok"),
    Mutant("the kernel: a count of some axes is that of all", "kernel/Check",
           "map Size (filter (fun a => negb (mem a un)) (data p))", "map Size (data p)", "kernel/Counting.meant_ok"),
    Mutant("the kernel: a count is of all ranks before it is summed", "kernel/Check",
           "(put_at n (Some (each, data p)) (tallied (counts f)))",
           "(put_at n (Some (each, [])) (tallied (counts f)))",
           "kernel/Loops.block_ok"),
    Mutant("the kernel: means of microbatches weigh tokens alike", "kernel/Check",
           "| MicrobatchMean, false => [by1 (All n true) (by1 Micro one)] end.",
           "| MicrobatchMean, false => [by1 (All n false) one] end.", "kernel/Counting.wanted_ok"),
    Mutant("the kernel: a count of a microbatch is of the step", "kernel/Check",
           "(put_at n (Some (each, data p)) (tallied (counts f)))",
           "(put_at n (Some (false, data p)) (tallied (counts f)))", "kernel/Loops.block_ok"),
    Mutant("the kernel: a step finds its checkpoint", "kernel/Decide",
           "(fst e, if on_disk (fst e) then Any else snd e))) (slots f)) (kepts f) Lost Lost []",
           "(fst e, snd e))) (slots f)) (kepts f) Lost Lost []", "kernel/Steps.step_ok"),
    Mutant("the kernel: a step finds its counter in the checkpoint", "kernel/Decide",
           "(scale_here (counts f)) Unsaid Unsaid Unsaid",
           "(scale_here (counts f)) (step_disk (counts f)) Unsaid Unsaid",
           "kernel/Steps.step_ok"),
    Mutant("the kernel: ranks that differ in their layout hold the same", "kernel/Check",
           "rigid c along && still along q && forallb (fun c => negb", "rigid c along && forallb (fun c => negb",
           "kernel/Events.broadcast_ok"),
    Mutant("the kernel: a gather from owners that differ", "kernel/Check",
           "rigid c along && still along q' && forallb", "rigid c along && forallb", "kernel/Events.gather_ok"),
    Mutant("the kernel: shards of their own are summed", "kernel/Check",
           "by_ along k s, still along q with", "by_ along k s, true with", "kernel/Events.reduce_ok"),
    Mutant("the kernel: norms of shards of their own add up", "kernel/Knowledge",
           "| [_] => if still [a] q then Some (off_axes [a] q) else None", "| [_] => Some (off_axes [a] q)",
           "kernel/Norms.spread_ok"),
    Mutant("the kernel: the first of replicas has the shards of all", "kernel/Knowledge",
           "Some (map (of_first a) (off_axes [a] q))", "Some (off_axes [a] q)", "kernel/Norms.spread_ok"),
    Mutant("the kernel: flags of shards of their own", "kernel/Check",
           "[] => if still [a] q then Some q else None", "[] => Some q", "kernel/Loops.block_ok"),
    Mutant("the kernel: parameters rest where no rank is", "kernel/Decide",
           "forallb (owner_of s) q && still (map axis_of q) q", "forallb (owner_of s) q",
           "kernel/Sound.accepted_correct"),
    Mutant("the kernel: a sum of one number is that number", "kernel/Knowledge",
           "if ratio_eq k (mean_of along one) then Some s else None", "Some s", "kernel/Parts.same_ok"),
    Mutant("the kernel: the largest of parts is their sum", "kernel/Check",
           "(if rigid c along then put_alike else put_together)", "(if true then put_alike else put_together)",
           "kernel/Events.reduce_ok"),
    Mutant("the kernel: a count is never 0", "kernel/Ratios", "match s with Count _ | All _ _ => false | _ => true end",
           "true", "kernel/Scaling.num_inv"),
    Mutant("the kernel: an average takes in old weights", "kernel/Check",
           "| Holds (Averaged false) q2 o, Holds (Params true) q1 _ =>",
           "| Holds (Averaged false) q2 o, Holds (Params _) q1 _ =>", "kernel/Events.take_in_ok"),
    Mutant("the kernel: an average begins as the parameters of any step", "kernel/Check",
           "if start then Averaged false else c", "if start then c else Averaged false", "kernel/Events.begun_ok"),
    Mutant("the kernel: an average rests anywhere", "kernel/Decide",
           "Holds (Averaged false) q' _ => within q q'", "Holds (Averaged false) q' _ => true",
           "kernel/Sound.accepted_correct"),
    Mutant("the kernel: a loss scale of any step", "kernel/Check", "if current f LossScale then Some [s] else None",
           "Some [s]", "kernel/Counting.meant_ok"),
    Mutant("the kernel: a loss scale goes on without flags", "kernel/Knowledge",
           "if decided || counter_eqb c Stream then",
           "if decided || counter_eqb c Stream || counter_eqb c LossScale then", "kernel/Counters.tick_ok"),
    Mutant("the kernel: an update has the matrix where it has its element", "kernel/Check",
           "negb (whole_of v g) || anywhere q", "negb (whole_of v g) || true",
           "kernel/Events.read_at"),
    Mutant("the kernel: a further term of the loss starts from any divisor", "kernel/Check",
           "if ratio_eq k c then true else false | _, _ => false end) own", "true | _, _ => false end) own",
           "kernel/Backwards.backward_ok"),
    Mutant("the kernel: what a gradient moves is taken as a statistic", "kernel/Check",
           "nth u (kepts f) false && negb (graded_at g) in", "nth u (kepts f) false && true in",
           "kernel/Units.take_ok"),
    Mutant("the kernel: a statistic is taken without forward", "kernel/Check",
           "nth u (kepts f) false && negb (graded_at g) in", "true && negb (graded_at g) in",
           "kernel/Units.take_ok"),
    Mutant("the kernel: a statistic is clipped", "kernel/Check", "if clips p && graded_at g then match c",
           "if clips p then match c", "kernel/Events.ready_ok"),
    Mutant("the kernel: a sum over tokens is weighed as a mean", "kernel/Check", "if summed_at g then [one] else match",
           "match", "kernel/Counting.wanted_ok"),
    Mutant("the kernel: what is frozen is updated", "kernel/Check",
           "if decided f && trained g && local_to", "if decided f && local_to", "kernel/Events.update_ok"),
    Mutant("the kernel: what trains stays as it was", "kernel/Decide", "if frozen d then stay", "if true then stay",
           "kernel/Steps.turned_ok"),
    Mutant("the kernel: a counter of one rank is that of all", "kernel/Check", "Ticks false [] _ => true",
           "Ticks false _ _ => true", "kernel/Globals.current_ok"),
    Mutant("the kernel: what one rank stores all have stored", "kernel/Knowledge", "ticked b (l ++ firsts)",
           "ticked b l", "kernel/Counters.tick_ok"),
    Mutant("the kernel: an update before the flags", "kernel/Check", "if decided f && trained g", "if trained g",
           "kernel/Events.update_ok"),
    Mutant("the kernel: a flag of one rank is that of all", "kernel/Check",
           "match nth g (looked (counts f)) None with Some [] => true",
           "match nth g (looked (counts f)) None with Some _ => true",
           "kernel/Globals.decided_ok"),
    Mutant("the kernel: an invariant that is not verified", "kernel/Decide",
           "entails_facts (begins f g) g && entails_facts (body (inside p) g) g", "entails_facts (begins f g) g",
           "kernel/Bodies.loop_ok"),
    Mutant("the kernel: what holds behind one microbatch holds behind the last of several", "kernel/Decide",
           "entails_facts a r && entails_facts c r", "entails_facts a r", "kernel/Bodies.loop_ok"),
    Mutant("the kernel: what the last microbatch leaves out is not asked", "kernel/Decide",
           "let c := body last g in", "let c := body (inside p) g in", "kernel/Bodies.loop_ok"),
    Mutant("the kernel: a resume that is not checked", "kernel/Decide",
           "entails_facts s g && (negb (resumes p) || entails_facts (after_resume s) g)", "entails_facts s g",
           "kernel/Steps.boundary_ok"),
    Mutant("the kernel: only what has no resume phase is checked for one", "kernel/Decide",
           "(negb (resumes p) || entails_facts (after_resume s) g)", "(resumes p || entails_facts (after_resume s) g)",
           "kernel/Steps.boundary_ok"),
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
