"""No hypothesis of the equivalence theorem can be dropped: for each, what goes wrong without it.

The theorem quantifies over all updates U and all models, counts only live updates and reads, and names its hypotheses.
Below, each is dropped in turn. Where it restricts the *theorem* (quantifiers, liveness) a program that breaks gradient
integrity trains exactly as the single device does, so that "only if" would be false. Where it restricts the *model*
(a loss additive over units, units that every rank computes alike) all weights and views are right and the run differs.
Where it restricts the *program* (locality of the update, random streams, equal counts, divisors that are not zero) a
program without it is refuted, or its run undefined. `never_resumed` restricts what is claimed: a resumed run is another
run, and one from a wrong checkpoint differs. Small runs are exact, on fractions: two ranks, one parameter, one unit of
data each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import z3
from telling import Account, Twin, run_equals, step_of, verdict

from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.transformer import mlp
from placealg.prover.examine import hypotheses
from placealg.simulator import Setting, simulate
from placealg.step.program import Step

Update = Callable[[Fraction, Fraction], Fraction]
Combine = Callable[[list[Fraction]], list[Fraction]]
HALF = Fraction(1, 2)


def train(update: Update, combine: Combine, steps: int = 4) -> list[list[Fraction]]:
    """The parameter on each of two ranks after every step: unit c has gradient theta - c - 1, then `combine` acts."""
    theta = [Fraction(5), Fraction(5)]
    path = [theta]
    for _ in range(steps):
        gradients = combine([value - c - 1 for c, value in enumerate(theta)])
        theta = [update(value, g) for value, g in zip(theta, gradients, strict=True)]
        path.append(theta)
    return path


def mean(gradients: list[Fraction]) -> list[Fraction]:
    """all_reduce with a mean: what the single device has."""
    return [sum(gradients, Fraction(0)) / len(gradients)] * len(gradients)


def total(gradients: list[Fraction]) -> list[Fraction]:
    """all_reduce with a sum of local means: n times too large."""
    return [sum(gradients, Fraction(0))] * len(gradients)


def local(gradients: list[Fraction]) -> list[Fraction]:
    """No reduction at all."""
    return gradients


def sgd(rate: Fraction) -> Update:
    """theta - rate g."""
    return lambda theta, g: theta - rate * g


def sign_descent(theta: Fraction, g: Fraction) -> Fraction:
    """Adam with both decays and epsilon at 0: theta - g / sqrt(g**2) / 4."""
    return theta - (g / abs(g) if g else Fraction(0)) / 4


def package(text: str) -> Step:
    """The step of a strategy file's text on the abstract model, not clipped unless it says so."""
    return step_of(text if "[optimizer]" in text else f'{text}[optimizer]\nclip = "none"\n', abstract())


def edit(line: str) -> str:
    """An [[edit]] table."""
    return f"[[edit]]\n{line}\n"


def names(step: Step, hypothesis: str) -> bool:
    """Whether placealg's verdict on a step rests on a hypothesis."""
    return any(said.name == hypothesis for said in hypotheses(step))


def all_updates(account: Account) -> None:
    """Quantify over U: with one U in particular, broken gradients need not show."""
    account.say("For all U, the rate not 0. At rate 0 nothing is learned, and nothing shows.")
    account.run("no reduction, rate 0: equal to the single device in every step",
                train(sgd(Fraction(0)), local) == train(sgd(Fraction(0)), mean))
    account.run("no reduction, rate 1/2: it differs", train(sgd(HALF), local) != train(sgd(HALF), mean))
    dropped = package('base = "dp"\n' + edit('drop = "reduce.*.reduce[dp]"'))
    account.run("placealg refutes it for the rates that are not 0", "gradient" in verdict(dropped)[1])

    account.say("For all U, not Adam alone. Adam divides by the size of its gradients, so that a wrong scale is lost.")
    g, m, v, beta, gamma, s, r, scale, eps = z3.Reals("g m v beta gamma s r scale eps")
    moment, square = beta * m + (1 - beta) * g, gamma * v + (1 - gamma) * g * g
    scaled, scaled_square = (beta * scale * m + (1 - beta) * scale * g,
                             gamma * scale * scale * v + (1 - gamma) * scale * g * scale * g)
    account.theorem("gradients times k: in every step Adam's m is times k and its v times k**2 (base 0, step)",
                    z3.And(scaled == scale * moment, scaled_square == scale * scale * square), [scale > 0],
                    twin=Twin("  v times k", scaled_square == scale * square))
    roots = [scale > 0, s >= 0, s * s == v, r >= 0, r * r == scale * scale * v]
    account.theorem("so sqrt(v) is times k, and m/sqrt(v) is what it was: m k sqrt(v) = m sqrt(k**2 v)",
                    scale * m * s == m * r, roots,
                    twin=Twin("  with an epsilon beside the root", scale * m * (s + eps) == m * (r + eps),
                              [*roots, eps > 0]))
    account.run("sum for mean, Adam without epsilon: equal to the single device in every step",
                train(sign_descent, total) == train(sign_descent, mean))
    account.run("sum for mean, SGD: it differs", train(sgd(HALF), total) != train(sgd(HALF), mean))
    scaled_dp = package('base = "dp"\n' + edit('set = "*.grad_sum.reduce[dp]"\nop = "sum"'))
    account.run("placealg refutes it, for U is any update", verdict(scaled_dp)[0] == "REFUTED")


def live_updates(account: Account) -> None:
    """Count live updates only: one that is overwritten may be wrong."""
    account.say("Live updates. Each rank updates all parameters, but gets whole gradients for its own ones only; the\n"
                "publish from owners overwrites the wrong updates, and the wrong copies of the rest are never read.")
    dead = ('base = "dp"\n' + edit('set = "reduce.*.grad_sum.reduce[dp]"\nto = "S"')
            + edit('set = "save.*.moments.store"\nwhere = "owner(dp)"'))
    published = dead + edit('set = "publish.*"\naxes = ["dp"]')
    made, copy = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("made", "copy"))
    c, owner, right = z3.Ints("c owner right")
    account.theorem("for every U: what rank c reads after the publish is right, whatever its own dead update made",
                    copy(c) == right, [made(owner) == right, copy(c) == made(owner)],
                    twin=Twin("  without the publish", copy(c) == right, [made(owner) == right, copy(c) == made(c)]))
    account.run("placealg proves it, and a run on 3 ranks agrees: integrity at every update would be a false alarm",
                verdict(package(published)) == ("PROVED", ()) and run_equals(package(published), {"dp": 3}))
    account.run("without the publish the updates are live: refuted, and a run on 3 ranks differs",
                verdict(package(dead))[0] == "REFUTED" and not run_equals(package(dead), {"dp": 3}))


def named(account: Account) -> None:
    """Locality, streams and counts: each pair is one program with the hypothesis, and one without."""
    account.say("The program's side: with the hypothesis proved and equal, without it refuted and different.")
    gather = edit('drop = "update.*.grad_sum.all_gather[dp]"')
    muon = 'base = "zero1"\n[optimizer]\nname = "muon"\nclip = "none"\n'
    pairs = (
        ("an update per matrix runs where the whole matrix is; on a shard it makes another matrix", muon, muon + gather,
         "update"),
        ("random streams are keyed by logical coordinates; keyed by rank, runs agree in distribution only",
         'base = "dp"\n', 'base = "dp"\n[random]\ndropout = ["rank(dp)"]\n', "random"),
    )
    for said, good, bad, obligation in pairs:
        account.run(said, verdict(package(good)) == ("PROVED", ()) and run_equals(package(good), {"dp": 2})
                    and obligation in verdict(package(bad))[1] and not run_equals(package(bad), {"dp": 2}))
    shard = package('base = "zero1"\n')
    gathers = [event for event in shard.events if (event.verb, event.value) == ("all_gather", "grad_sum")]
    account.run("an elementwise update needs no gather: its shard is enough",
                verdict(shard) == ("PROVED", ()) and not gathers)

    means = package('base = "dp"\n[loss]\nassume = []\n')
    account.run("a mean of local means needs equal counts: not assumed, it is refuted",
                "normalizer" in verdict(means)[1])
    account.run("its run is equal where the counts are equal", run_equals(means, {"dp": 2}))
    account.run("and differs where they are not", not run_equals(means, {"dp": 2}, unequal=True))
    tokens = package('base = "dp"\n[loss]\npreset = "token_mean"\n')
    account.run("a token mean does without: proved, and equal for unequal counts",
                verdict(tokens) == ("PROVED", ()) and run_equals(tokens, {"dp": 2}, unequal=True))


def of_the_model(account: Account) -> None:
    """Additive losses and units computed alike: without them right weights of right views are not enough."""
    account.say("The model's side: every weight and every view is right, and the run differs.")
    x, y, theta = z3.Reals("x y theta")

    def slope(*units: z3.ArithRef) -> z3.ArithRef:
        """The gradient of the square of a batch's sum, (theta (x + y))**2, on the units that a rank holds."""
        return 2 * sum(units) * sum(units) * theta

    account.theorem("an additive loss, (theta x)**2 + (theta y)**2: the ranks' gradients add up to the whole batch's",
                    slope(x) + slope(y) == 2 * x * x * theta + 2 * y * y * theta, [theta != 0],
                    twin=Twin("  the square of the batch's sum: rank by rank it is another loss",
                              slope(x) + slope(y) == slope(x, y), [theta != 0]))
    small = Fraction(1, 20)
    whole, apart = ([Fraction(1)] for _ in range(2))
    for _ in range(3):
        whole.append(whole[-1] - small * 2 * (1 + 2) ** 2 * whole[-1])
        apart.append(apart[-1] - small * (2 * 1**2 + 2 * 2**2) * apart[-1])
    account.run(f"run with units 1 and 2: after a step {apart[1]}, the single device {whole[1]}", apart[1] != whole[1])
    statistics = resolve_model("statistics")
    kept, alone = (step_of(f'base = "dp"\n{change}', statistics) for change in (
        "", edit('drop = "reduce.layer.running.grad_sum.reduce[dp]"')))
    account.run("a batch's statistics as a state of its own, reduced: placealg proves it; each rank's own are refuted",
                verdict(kept) == ("PROVED", ()) and run_equals(kept, {"dp": 2})
                and verdict(alone)[0] == "REFUTED" and not run_equals(alone, {"dp": 2}))

    account.run("units_independent: one rank computes twice its unit's gradient, and the mean of both differs",
                train(sgd(HALF), lambda gs: mean([gs[0], 2 * gs[1]])) != train(sgd(HALF), mean))
    split = '[mesh]\ntp = "symbolic"\n[dims]\ntp = ["ffn"]\n[optimizer]\nclip = "none"\n'
    whole_mlp, torn = (step_of(split + change, mlp()) for change in (
        "", edit('drop = "forward.layer.mlp.down.all_reduce[tp]"')))
    account.run("on a model without ops a verdict names it; with ops the obligation `forward` takes its place,\n"
                "           and where a rank computes something else it is refuted, and the run differs",
                names(package('base = "dp"\n'), "units_independent") and not names(whole_mlp, "units_independent")
                and verdict(whole_mlp) == ("PROVED", ()) and "forward" in verdict(torn)[1]
                and not run_equals(torn, {"tp": 2}))


def of_the_run(account: Account) -> None:
    """Divisors that are not zero; runs that are not resumed."""
    account.say("The run's side: what is divided by, and where it starts.")
    q, r, s, n = z3.Reals("q r s n")
    account.theorem("nonzero_divisors: s / n, the number q with q n = s, is one number where n is not 0", q == r,
                    [q * n == s, r * n == s, n != 0],
                    twin=Twin("  where n = 0 it is any number, or none", q == r, [q * n == s, r * n == s]))
    means = package('base = "dp"\n[loss]\nassume = []\n')
    cells = Setting.equal(means.reference, {"dp": 2}, 1)
    empty = replace(cells, counts={**cells.counts, next(iter(cells.counts)): 0})
    account.run("a mean of local means names it; with a token on every rank its run is defined, and equal for equal\n"
                "           counts; a rank without tokens divides by zero, and it is not",
                names(means, "nonzero_divisors") and simulate(means, cells).equal and not simulate(means, empty).equal)
    tokens = package('base = "dp"\n[loss]\npreset = "token_mean"\n')
    account.run("a token mean over all ranks does without: with the same empty rank it is equal",
                not names(tokens, "nonzero_divisors") and simulate(tokens, empty).equal)

    never, stale = (package(f'base = "dp"\n{edit(change)}') for change in (
        'drop = "resume.*"', 'drop = "resume.*.master.*"'))
    account.run("never_resumed: without a resume phase a program is proved, the verdict names it, and the run is equal",
                verdict(never) == ("PROVED", ()) and names(never, "never_resumed") and run_equals(never, {"dp": 2}))
    account.run("resumed with the master copy left as it was, the same training step is refuted, and the run differs",
                verdict(stale) == ("REFUTED", ("init",)) and not run_equals(stale, {"dp": 2}))


def main() -> Account:
    """Drop each hypothesis in turn."""
    account = Account("Every hypothesis of the equivalence theorem is needed")
    for drop in (all_updates, live_updates, named, of_the_model, of_the_run):
        drop(account)
    return account.close()


if __name__ == "__main__":
    main()
