"""Figure 10: how long a round's merges take and how fairly they are shared, by scheduler, over random busy devices.

All merges take one unit, in which all times are. A scheduler that plans at the beginning (tree, ring, DQN) knows who is
busy and not for how long; its pairs are carried out in its order, each as soon as both are there. The rule of the chain
is asked whenever a device becomes free, and knows no more; two others are asked so, too, to tell what of its lead is
the asking and what the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks.chain_bound import lower_bound_s
from benchmarks.chain_exact import exact_equal
from benchmarks.chain_links import EqualLinks
from benchmarks.chain_schedule import Energy, Schedule, follow, play, ring, spent_variance, tree
from papers.harness.rows import Row
from papers.mdldroid.busy import LONGEST, Pattern, drawn, idle, name_of, place_of
from papers.mdldroid.decisions import Game, TimedGame, best_return, perfect_pairs, return_of, threshold
from papers.mdldroid.dqn import STRATEGIES, Agent, learn
from papers.mdldroid.pairings import AnyTwo, AskedAgent
from shoal.flock.pairing.pairs import EarliestTwo, Holder
from testbed.results import say

SIZES = tuple(range(3, 17))
PATTERNS = 1_000
ROUNDS = 200
#: How long a device is busy at most, in merges.
LENGTHS = (2.0, 4.0, 8.0, 16.0, 32.0)
#: Of all schedulers but ours, drawn for themselves.
SEED = 20
#: Games that a DQN learns from, for each device: more devices are harder. Its patterns are others than those it is
#: judged on.
GAMES = 120
GAMES_QUICK = 10
#: Up to so many devices, so many patterns are also solved exactly.
EXACT_MOST = 9
EXACT_PATTERNS = 200
_TRAINING_SEED = 21
#: Where a DQN with another reward is looked at, too.
TIMED_SIZES = (4, 8, 12, 16)
#: What a round trains before it merges, as so many merges, for the times that the paper's Eq. 5 adds up.
TRAINING = 10.0

MERGE = EqualLinks(each_s=1.0)
#: §3.3: what is shared is getting and adding; sending costs the radio as much as getting does.
ENERGY = Energy(send_watts=1.0, receive_watts=1.0, add_joules=1.0)

#: Devices in, a round out.
Scheduler = Callable[[Sequence[Holder]], Schedule]


def earliest_two(devices: Sequence[Holder]) -> Schedule:
    return play(EarliestTwo(), devices, links=MERGE, energy=ENERGY)


def in_step_tree(devices: Sequence[Holder]) -> Schedule:
    return tree(devices, links=MERGE, energy=ENERGY, in_step=True)


def plain_tree(devices: Sequence[Holder]) -> Schedule:
    return tree(devices, links=MERGE, energy=ENERGY)


def plain_ring(devices: Sequence[Holder]) -> Schedule:
    return ring(devices, links=MERGE, energy=ENERGY)


def closed_ring(devices: Sequence[Holder]) -> Schedule:
    return ring(devices, links=MERGE, energy=ENERGY, returns=True)


def planned(devices: Sequence[Holder], pairs: Sequence[tuple[int, int]]) -> Schedule:
    names = [(name_of(sender), name_of(receiver)) for sender, receiver in pairs]
    return follow(names, devices, links=MERGE, energy=ENERGY)


def perfect_agent(seed: int) -> Scheduler:
    """What the DQN would do, had it learned all that reward (7) has to teach."""
    generator = np.random.default_rng(seed)
    return lambda devices: planned(devices, perfect_pairs(_busy(devices), generator))


def learned_agent(agent: Agent) -> Scheduler:
    return lambda devices: planned(devices, agent.pairs(_busy(devices))[0])


def asked_agent(agent: Agent) -> Scheduler:
    return lambda devices: play(AskedAgent(agent), devices, links=MERGE, energy=ENERGY)


def any_two(seed: int) -> Scheduler:
    rule = AnyTwo(np.random.default_rng(seed))
    return lambda devices: play(rule, devices, links=MERGE, energy=ENERGY)


def _busy(devices: Sequence[Holder]) -> list[bool]:
    return [each.ready_s > 0 for each in devices]


FIXED: dict[str, Scheduler] = {
    "ours": earliest_two,
    "tree, in step": in_step_tree,
    "tree": plain_tree,
    "ring": plain_ring,
    "ring, N hops": closed_ring,
}


def run(quick: bool) -> list[Row]:
    sizes = (3, 8) if quick else SIZES
    patterns = 100 if quick else PATTERNS
    rows: list[Row] = []
    for size in sizes:
        games = size * (GAMES_QUICK if quick else GAMES)
        taught = {"dqn": taught_agent(size, games=games)}
        if size in TIMED_SIZES:
            taught["dqn, timed"] = taught_agent(size, games=games, timed=True)
        schedulers = {**FIXED, "perfect agent": perfect_agent(size)}
        schedulers |= {name: learned_agent(told["agent"]) for name, told in taught.items()}
        schedulers["dqn, asked again"] = asked_agent(taught["dqn"]["agent"])
        schedulers["any two free"] = any_two(size)
        found = compared(size, schedulers, patterns=patterns, rounds=20 if quick else ROUNDS)
        found[0] |= checked(size, patterns=20 if quick else EXACT_PATTERNS)
        for row in found:
            row |= {key: value for key, value in taught.get(row["scheduler"], {}).items() if key != "agent"}
        rows += found
        say(f"   {size} devices: " + ", ".join(f"{row['scheduler']} {row['makespan']:.2f}" for row in found))
    return rows


def lengths(quick: bool) -> list[Row]:
    """The same, without a DQN, by how long devices are busy."""
    rows: list[Row] = []
    for longest in LENGTHS:
        for size in (3, 8) if quick else SIZES:
            found = compared(size, FIXED, patterns=50 if quick else PATTERNS, rounds=0, longest=longest)
            rows += [{**row, "longest": longest} for row in found]
    return rows


def taught_agent(size: int, *, games: int, timed: bool = False, seed: int = 1) -> Row:
    """A DQN with TDGE that has seen so many rounds of this size; what that took, and how good it became."""

    def deal(number: int) -> Game:
        pattern = drawn(size, seed=_TRAINING_SEED, number=number)
        return TimedGame(pattern.ready) if timed else Game(pattern.busy)

    learned = learn(
        size,
        strategy=STRATEGIES["TDGE"],
        deal=deal,
        threshold=threshold(size),
        games=games,
        seed=seed,
    )
    judged = [drawn(size, seed=SEED, number=number) for number in range(100)]
    reached = [learned.agent.own_return(pattern.busy) for pattern in judged]
    best = [_best(pattern) for pattern in judged]
    ours = [return_of(pattern.busy, _places(earliest_two(pattern.standings()))) for pattern in judged]
    return {
        "agent": learned.agent,
        "games": learned.games,
        "learning_s": learned.seconds,
        "return": fmean(reached),
        "return_best": fmean(best),
        "return_ours": fmean(ours),
        "invalid": fmean(learned.agent.pairs(pattern.busy)[1] for pattern in judged),
    }


def _best(pattern: Pattern) -> float:
    return best_return(tuple(sorted((0, busy) for busy in pattern.busy)), pattern.devices)


def _places(schedule: Schedule) -> list[tuple[int, int]]:
    return [(place_of(sender), place_of(receiver)) for sender, receiver in schedule.pairs]


def compared(
    size: int, schedulers: dict[str, Scheduler], *, patterns: int, rounds: int, longest: float = LONGEST
) -> list[Row]:
    """A row for each scheduler, all on the same rounds."""
    drawn_all = [drawn(size, seed=SEED, number=number, longest=longest) for number in range(patterns)]
    devices = [pattern.standings() for pattern in drawn_all]
    optimum = np.array([earliest_two(each).makespan_s for each in devices])
    bound = np.array([lower_bound_s(pattern.ready, merge_s=1.0) for pattern in drawn_all])
    rows = []
    for name, scheduler in schedulers.items():
        played = [scheduler(each) for each in devices]
        makespan = np.array([each.makespan_s for each in played])
        alone = scheduler(idle(size).standings()).makespan_s
        row: Row = {
            "devices": size,
            "scheduler": name,
            "patterns": patterns,
            "makespan": float(makespan.mean()),
            #: What busy devices add to a round of this scheduler's in which nobody is; and to the best there is.
            "latency": float((makespan - alone).mean()),
            "latency_ideal": float((makespan - math.ceil(math.log2(size))).mean()),
            "over_optimum": float((makespan / optimum).mean()),
            "optimal_share": float((makespan <= optimum + 1e-9).mean()),
            "over_bound_most": float((makespan - bound).max()),
            "variance_round": fmean(spent_variance(each) for each in played),
        }
        if rounds:
            row["variance_rounds"] = over_rounds(scheduler, size, rounds=rounds, longest=longest)
        rows.append(row)
    return rows


def checked(size: int, *, patterns: int) -> Row:
    """In how many rounds ours ended as early as any schedule can, by dynamic programming over who holds what."""
    if size > EXACT_MOST:
        return {}
    equal = 0
    for number in range(patterns):
        pattern = drawn(size, seed=SEED, number=number)
        best = exact_equal(pattern.ready, merge_s=1.0).makespan_s
        equal += abs(earliest_two(pattern.standings()).makespan_s - best) < 1e-9
    return {"exact_tried": patterns, "exact_equal": equal}


def over_rounds(scheduler: Scheduler, size: int, *, rounds: int, longest: float) -> float:
    """The variance of what the devices have spent after so many rounds, each with other busy devices."""
    spent = {name_of(place): 0.0 for place in range(size)}
    last: Schedule | None = None
    for number in range(rounds):
        pattern = drawn(size, seed=SEED + 5, number=number, longest=longest)
        devices = [replace(each, spent_joules=spent[each.name]) for each in pattern.standings()]
        last = scheduler(devices)
        spent = dict(last.spent_joules)
    return 0.0 if last is None else spent_variance(last)
