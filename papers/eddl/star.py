"""A star in the simulator, as the paper's experiments need it: the deployed roles, modelled devices and links.

Nothing is learned here: times alone. ``half_duplex`` makes the leader's two directions share one link, as a radio's do
and as the paper's figures say its own did (README.md): a switch's port has two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from papers.eddl.setting import BATCH_S, LAYOUT, LEASE_S
from shoal.errors import Misuse
from shoal.net.shared_budget import TURN_HOLD_S
from shoal.plan import Plan, Until
from shoal.roles.events import Received
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady, TransferRate, Varying, mbit
from shoal.sim.rng import Rng
from shoal.sim.world import Settings, World
from shoal.topology.saturation import Round
from shoal.wire.messages import Update

#: Where a link's rate changes at random, it does so each second, in a trace of this length.
_STEP_S, _STEPS = 1.0, 997

_LIMIT_S = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The deviations of lognormal factors."""

    #: Drawn for each lease.
    training: float = 0.0
    #: Of the leader's link, drawn for each second.
    link: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Star:
    workers: int
    rate_mbit: float
    pace: str
    #: Updates in a version of the buffered pace.
    buffer: int = 8
    #: Training one batch; one for each worker, or one for all.
    batch_s: tuple[float, ...] = (BATCH_S,)
    half_duplex: bool = False
    #: Zero: models leave side by side, as the paper's do.
    turn_hold_s: float = TURN_HOLD_S
    noise: Noise = Noise()
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.batch_s) not in (1, self.workers):
            raise Misuse(f"{len(self.batch_s)} times of a batch for {self.workers} workers: give one, or one for each")


@dataclass(slots=True)
class Seen:
    """Watches a simulation: when versions came, and the updates that each was made of."""

    versions_s: list[float] = field(default_factory=list)
    #: (when, from whom, how long it trained), in the order of arrival.
    updates: list[tuple[float, str, float]] = field(default_factory=list)
    #: How many updates had come when a version was made.
    counts: list[int] = field(default_factory=list)

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        if isinstance(step.event, Received) and isinstance(step.event.message, Update):
            self.updates.append((step.at_s, step.event.sender, step.event.message.train_s))
        for action in step.actions:
            version = getattr(getattr(action, "message", None), "version", 0)
            if version > len(self.versions_s):
                self.versions_s.append(step.at_s)
                self.counts.append(len(self.updates))

    def mark(self, mark: Mark) -> None:
        pass


def play(star: Star, *, batches: int, epochs: int = 1) -> Seen:
    """Simulate so many batches an epoch."""
    line = _line(star, "leader")
    plan = Plan(
        batch_size=1,
        pace=star.pace,
        buffer=star.buffer,
        momentum=0.0,
        workers_min=star.workers,
        workers_max=star.workers,
        until=Until(epochs=epochs),
        lease_s=LEASE_S,
    )
    seen = Seen()
    settings = Settings(
        seed=star.seed,
        builds=_builds(star),
        home_line=dataclasses.replace(line, medium="leader") if star.half_duplex else line,
        jobs=[system_job(plan, LAYOUT, examples=batches, start_s=0.1)],
        turn_hold_s=star.turn_hold_s,
    )
    world = World(settings, observers=[seen])
    world.begin()
    if not world.run(limit_s=_LIMIT_S):
        raise Misuse(f"the simulation of {star} did not come to an end")
    return seen


def _builds(star: Star) -> list[Build]:
    rate = Steady(mbit(star.rate_mbit))
    times_s = star.batch_s * (star.workers if len(star.batch_s) == 1 else 1)
    return [
        Build(
            kind="board",
            seconds_per_gmac=0.0,
            seconds_per_batch=batch_s,
            jitter=star.noise.training,
            memory_mb=4096,
            line=AccessLink(up=rate, down=rate),
        )
        for batch_s in times_s
    ]


def _line(star: Star, name: str) -> AccessLink:
    chance = Rng(star.seed)
    return AccessLink(up=_rate(star, chance, f"{name} up"), down=_rate(star, chance, f"{name} down"))


def _rate(star: Star, chance: Rng, name: str) -> TransferRate:
    bytes_per_s = mbit(star.rate_mbit)
    if not star.noise.link:
        return Steady(bytes_per_s)
    stream = chance.stream(name)
    return Varying(_STEP_S, tuple(bytes_per_s * stream.lognormal(1.0, star.noise.link) for _ in range(_STEPS)))


# What is read off ------------------------------------------------------------------------------------------


def batch_s(star: Star, *, rounds: int = 8) -> float:
    """What a worker takes from one batch to the next: training and synchronisation (the bars of Figure 6).

    In rounds that is from version to version; without rounds, n workers make n versions in that time.
    """
    seen = play(star, batches=star.workers * rounds)
    if star.pace == "sync":
        return _mean_gap(seen.versions_s[1:-1])
    # The last are made while others have nothing left to do.
    return star.workers * _mean_gap(seen.versions_s[star.workers : -star.workers or None])


def epoch_s(star: Star, *, batches: int) -> float:
    """From the end of one epoch to the end of the next, the last round of which may be smaller."""
    versions = math.ceil(batches / {"sync": star.workers, "async": 1, "buffered": star.buffer}[star.pace])
    seen = play(star, batches=batches, epochs=3)
    return seen.versions_s[2 * versions - 1] - seen.versions_s[versions - 1]


def rounds(star: Star, *, count: int) -> list[Round]:
    """The rounds of a run as a leader judges them, after two in which the crew finds its step.

    Without rounds, one is n updates in a row.
    """
    seen = play(star, batches=star.workers * (count + 4))
    starts = seen.versions_s if star.pace == "sync" else seen.versions_s[star.workers - 1 :: star.workers]
    counts = seen.counts if star.pace == "sync" else seen.counts[star.workers - 1 :: star.workers]
    found = []
    for place in range(2, count + 2):
        took_s = starts[place] - starts[place - 1]
        trained_s = [update[2] for update in seen.updates[counts[place - 1] : counts[place]]]
        found.append(round_of(star.workers, took_s, trained_s, waits=star.pace == "sync"))
    return found


def round_of(workers: int, took_s: float, trained_s: Sequence[float], *, waits: bool) -> Round:
    """Synchronisation is what is not the mean training; waiting, where all wait for all, what the slowest took more."""
    mean_s = min(sum(trained_s) / len(trained_s), took_s)
    sync_s = took_s - mean_s
    wait_s = min(max(trained_s) - mean_s, sync_s) if waits else 0.0
    return Round(workers=workers, batch_s=took_s, sync_s=sync_s, wait_s=max(0.0, wait_s))


def _mean_gap(moments_s: Sequence[float]) -> float:
    return (moments_s[-1] - moments_s[0]) / (len(moments_s) - 1)
