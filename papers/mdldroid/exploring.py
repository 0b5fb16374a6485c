"""Figures 6 and 8: how many games, and how long, until a DQN is good enough, by how it explores.

One pattern of busy devices each, as the paper learns anew whenever the pattern changes (§3.3.3). Two thresholds: the
paper's T(N) with Φ = 0, and a strict one, 0.1 below the best that there is. A DQN is there when its own choices, with
no exploration, bring as much. Strategies that wait for a threshold wait for the same; or, as "strict, Φ set", for what
one random game in twenty brings, so that they need not wait long: the paper found its Φ by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import numpy as np

from papers.harness.rows import Row
from papers.mdldroid.busy import Pattern, drawn
from papers.mdldroid.decisions import Game, best_return, threshold
from papers.mdldroid.dqn import STRATEGIES, Agent, Strategy, learn
from testbed.results import say

SIZES = (3, 5, 7, 9)
RUNS = 5
GAMES_MOST = 1_000
STRICT = 0.1
#: Of random choices, so many fall on any device: who waits for a threshold learns what is invalid, too.
STRAY = 0.1
PHI_SET = "strict, Φ set"
#: Random games that are looked at to set Φ, and how rare one is that passes.
LOOKED_AT, LUCK = 400, 0.05
_SEED = 31
LOOK_EVERY = 5


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for size in (4,) if quick else SIZES:
        for bar in ("T(N)", "strict"):
            rows += of_all(size, bar=bar, runs=2 if quick else RUNS)
    return rows


def offset(quick: bool) -> list[Row]:
    """The same with a Φ that suits each pattern."""
    return [row for size in SIZES for row in of_all(size, bar=PHI_SET, runs=RUNS)]


def of_all(size: int, *, bar: str, runs: int) -> list[Row]:
    rows = [measured(size, strategy, bar=bar, runs=runs) for strategy in STRATEGIES.values()]
    say(f"   {size} devices, {bar}: " + ", ".join(f"{row['strategy']} {row['games']:.0f}" for row in rows))
    return rows


def measured(size: int, strategy: Strategy, *, bar: str, runs: int) -> Row:
    games, seconds = [], []
    for number in range(runs):
        pattern = drawn(size, seed=_SEED, number=number)
        wanted = bar_of(pattern, bar)
        learned = learn(
            size,
            strategy=strategy,
            deal=_always(pattern.busy),
            threshold=lucky_return(pattern) if bar == PHI_SET else wanted,
            games=GAMES_MOST,
            seed=number,
            stray=STRAY,
            is_enough=_reaches(pattern.busy, wanted),
            look_every=LOOK_EVERY,
        )
        games.append(learned.games)
        seconds.append(learned.seconds)
    return {
        "devices": size,
        "bar": bar,
        "strategy": strategy.name,
        "games": fmean(games),
        "seconds": fmean(seconds),
        "games_deviation": stdev(games),
        "seconds_deviation": stdev(seconds),
        "not_reached": sum(count >= GAMES_MOST for count in games),
        "runs": runs,
    }


def bar_of(pattern: Pattern, bar: str) -> float:
    """Never more than there is: with many busy devices T(N) alone is out of reach."""
    best = best_return(tuple(sorted((0, busy) for busy in pattern.busy)), pattern.devices)
    return min(threshold(pattern.devices), best - STRICT) if bar == "T(N)" else best - STRICT


def lucky_return(pattern: Pattern) -> float:
    """What one random game in twenty brings at least."""
    generator = np.random.default_rng([_SEED, pattern.devices])
    returns = []
    for _ in range(LOOKED_AT):
        game, total = Game(pattern.busy), 0.0
        while not game.over:
            total += game.choose(int(generator.choice(game.valid())))
        returns.append(total)
    return float(np.quantile(returns, 1 - LUCK))


def _always(busy: Sequence[bool]) -> Callable[[int], Game]:
    return lambda _: Game(busy)


def _reaches(busy: Sequence[bool], wanted: float) -> Callable[[Agent], bool]:
    return lambda agent: agent.own_return(busy) >= wanted
