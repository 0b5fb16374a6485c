"""Figure 9: learning again once devices changed between busy and free: games and processor time, by how it explores.

An agent learns one pattern until it is good enough, and then another, with its network and its memory kept and its
exploration begun anew. The threshold is the paper's T(N). Battery is not measured: the processor's time stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from papers.harness import parts
from papers.harness.rows import Row
from papers.mdldroid.busy import Pattern, drawn
from papers.mdldroid.decisions import Game
from papers.mdldroid.dqn import STRATEGIES, Agent, Strategy, learn
from papers.mdldroid.exploring import GAMES_MOST, LOOK_EVERY, STRAY, bar_of
from papers.mdldroid.paper import RELEARNING
from testbed.results import say

SIZES = (5, 7, 9)
RUNS = 10
BAR = "T(N)"
_SEED = 47


def run(quick: bool) -> list[Row]:
    if quick:
        return [row_of(5, "TDGE", [one_run(5, STRATEGIES["TDGE"], number=0)])]
    done = parts.of("mdldroid", "relearn", about=len(SIZES) * len(RELEARNING))
    return [
        done.part({"devices": size, "strategy": name}, lambda s=size, n=name: of_size(s, n))  # type: ignore[misc]
        for size in SIZES
        for name in RELEARNING
    ]


def of_size(size: int, name: str) -> Row:
    return row_of(size, name, [one_run(size, STRATEGIES[name], number=number) for number in range(RUNS)])


def one_run(size: int, strategy: Strategy, *, number: int) -> tuple[int, float]:
    """Return the games and the seconds of learning the second pattern."""
    agent, games, seconds = Agent(size, seed=number, stray=STRAY), 0, 0.0
    for pattern in patterns(size, number):
        wanted = bar_of(pattern, BAR)
        learned = learn(
            size,
            strategy=strategy,
            deal=lambda _, busy=pattern.busy: Game(busy),  # type: ignore[misc]
            threshold=wanted,
            games=GAMES_MOST,
            seed=number,
            is_enough=lambda agent, busy=pattern.busy, wanted=wanted: agent.own_return(busy) >= wanted,  # type: ignore[misc]
            look_every=LOOK_EVERY,
            agent=agent,
        )
        games, seconds = learned.games, learned.seconds
    return games, seconds


def patterns(size: int, number: int) -> list[Pattern]:
    """Two patterns of busy devices that differ."""
    first = drawn(size, seed=_SEED, number=2 * number)
    others = (drawn(size, seed=_SEED + 1, number=each) for each in range(2 * number, 2 * number + 100))
    return [first, next(other for other in others if other.busy != first.busy)]


def row_of(size: int, name: str, runs: Sequence[tuple[int, float]]) -> Row:
    games, seconds = [found for found, _ in runs], [took for _, took in runs]
    row: Row = {
        "devices": size,
        "strategy": name,
        "games": fmean(games),
        "seconds": fmean(seconds),
        "seconds_deviation": stdev(seconds) if len(runs) > 1 else 0.0,
        "not_reached": sum(count >= GAMES_MOST for count in games),
        "runs": len(runs),
    }
    say(f"   {size} devices, {name}: {row['games']:.0f} games, {row['seconds']:.2f} s")
    return row
