"""What is compared, as rows of the bench and as the tables of a page."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from bench.report import Result
from bench.routing.policies import LeastLoaded, Ours, Policy, RoundRobin
from bench.routing.replica import BLOCK
from bench.routing.running import NO_HINTS, Hints, Outcome, Setup, Simulation

SEEDS = (1, 2, 3)
AGENTS = (24, 40, 48, 56, 64)  # at once
USUAL = 48  # what they keep is just what the replicas have room for
HOST_BLOCKS = 4 * Setup().blocks
MISSED, TURNS = 0.05, 1.3  # the targets: of an endless cache's hits, and times round robin


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy with hints, by its name in the tables."""

    name: str
    policy: Callable[[], Policy]
    hints: Hints = NO_HINTS


ROUND_ROBIN, OURS = Variant("round robin", RoundRobin), Variant("respsite", Ours)
COMPARED = (  # also with other numbers of agents than the usual one
    ROUND_ROBIN,
    Variant("least loaded", LeastLoaded),
    OURS,
    Variant("respsite, 3 workers", lambda: Ours(3)),
    Variant("respsite, hint `over`", Ours, Hints(over=True)),
)
VARIANTS = (
    *COMPARED,
    Variant("respsite, hints `over` and `waits`", Ours, Hints(over=True, waits=True)),
    Variant("respsite, all three hints", Ours, Hints(over=True, waits=True, keep=True)),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The means over all seeds."""

    share: float  # of what an endless cache would have hit
    twice: float  # tokens that were computed twice
    turns: float  # done
    balance: float  # turns of the busiest replica, in means
    first: float  # seconds to the first token, in the median
    late_first: float  # the same, at the 95th percentile
    living: float  # what all sessions that go on keep, in memories of all replicas


def figures(setup: Setup, variant: Variant) -> Figures:
    """Simulate a variant with every seed."""
    found = [Simulation(replace(setup, seed=seed), variant.policy(), hints=variant.hints).run() for seed in SEEDS]

    def over(what: Callable[[Outcome], float]) -> float:
        return mean(what(each) for each in found)

    return Figures(
        share=over(lambda each: each.share),
        twice=over(lambda each: each.twice),
        turns=over(lambda each: each.turns),
        balance=over(lambda each: each.balance),
        first=over(lambda each: each.first),
        late_first=over(lambda each: each.late_first),
        living=over(lambda each: each.mean_living) / (setup.replicas * setup.blocks * BLOCK),
    )


def routing(bench: object) -> Iterator[Result]:
    """How much of an endless cache's hits we find, and how many turns get done by that."""
    setup = Setup(agents=USUAL)
    measured = {variant: figures(setup, variant) for variant in VARIANTS}
    ours, by_turns = measured[OURS], measured[ROUND_ROBIN]
    where = f"{USUAL} agents on {setup.replicas} replicas, simulated"
    yield Result(
        what=f"of an endless cache's hits, missed; {where}",
        measured=1 - ours.share,
        target=MISSED,
        details={f"{variant.name} missed": 1 - each.share for variant, each in measured.items()},
    )
    yield Result(
        what=f"turns done by round robin / ours; {where}",
        measured=by_turns.turns / ours.turns,
        target=1 / TURNS,
        holds=ours.balance <= 1.25,
        details={
            **{f"{variant.name} turns": each.turns for variant, each in measured.items()},
            **{f"{variant.name} busiest replica": each.balance for variant, each in measured.items()},
        },
    )


def page() -> str:
    """Return the tables of `docs/explanation/routing.md`, and that of offloading in `docs/how-to/tuning-vllm.md`."""
    return "\n\n".join([_by_variants(Setup(agents=USUAL)), _by_agents(), _by_tiers()])


def _by_variants(setup: Setup) -> str:
    rows = []
    most = figures(setup, ROUND_ROBIN).turns
    for variant in VARIANTS:
        each = figures(setup, variant)
        rows.append(
            (
                *(variant.name, _percent(each.share), f"{each.twice / 1e6:.0f} million"),
                f"{each.turns:,.0f} ({each.turns / most:.2f})",
                *(f"{each.balance:.2f}", f"{each.first:.2f} s", f"{each.late_first:.1f} s"),
            )
        )
    head = ("policy", "hits", "computed twice", "turns", "busiest", "first token", "p95")
    return _table(head, rows)


def _by_agents() -> str:
    rows = []
    for agents in AGENTS:
        setup = Setup(agents=agents)
        measured = {variant: figures(setup, variant) for variant in COMPARED}
        most = measured[ROUND_ROBIN].turns
        rows.append(
            (
                *(f"{agents}", f"{measured[OURS].living:.2f}"),
                *(f"{_percent(each.share)}, {each.turns / most:.2f}" for each in measured.values()),
            )
        )
    return _table(("agents", "needed", *(variant.name for variant in COMPARED)), rows)


def _by_tiers() -> str:
    rows = []
    for agents in AGENTS[2:]:
        for variant in (ROUND_ROBIN, OURS):
            alone, tiered = (figures(Setup(agents=agents, host_blocks=host), variant) for host in (0, HOST_BLOCKS))
            rows.append(
                (
                    *(f"{agents}", variant.name),
                    *(f"{each.twice / 1e6:.0f} million" for each in (alone, tiered)),
                    *(f"{each.turns:,.0f}" for each in (alone, tiered)),
                )
            )
    head = ("agents", "policy", "computed twice", "with offloading", "turns", "with offloading")
    return _table(head, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line = "|" + "|".join("---" if not place else "---:" for place, _ in enumerate(head)) + "|"
    return "\n".join([f"| {' | '.join(head)} |", line, *(f"| {' | '.join(row)} |" for row in rows)])
