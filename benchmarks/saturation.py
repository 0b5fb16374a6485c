"""Does a leader notice that more workers bring nothing? EDDL's star with workers that join one by one, simulated.

Devices train l = 1.0 s a batch, give or take (lognormal, 5 %), and exchange PerNet (S = 2.88 MB) with one leader over
its link of 100 or 1000 Mb/s. Another joins after every 40 rounds (160 in the asynchronous pace, whose rounds differ
more from one to the next), until the leader says that it is saturated or sixteen are there. Apart from that, each size
is measured alone and for longer: where its throughput stops being worth one more worker
(``topology.saturation.gain_wanted``) is the knee that the leader should have found.

    python -m benchmarks.saturation [--quick] --json

The seeded runs take a twentieth of both the model and the link, which is as long in simulated time and less in real
time; without --quick, one run of each kind is with both as they are.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median_low

from benchmarks.common import PERNET
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.sim.devices import Build, Presence
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import Settings, World
from shoal.topology.saturation import SATURATED, gain_wanted
from shoal.wire.messages import Progress
from testbed.results import finish, say

BATCH_S = 1.0
JITTER = 0.05
TOP = 16
ROUNDS = {"sync": 40, "async": 160}
KNEE_ROUNDS, QUICK_KNEE_ROUNDS = {"sync": 400, "async": 800}, {"sync": 100, "async": 200}
KNEE_TOP = 11
SEEDS, QUICK_SEEDS = 100, 4
#: Of the asynchronous pace, which takes several times as long to simulate.
ASYNC_SEEDS, QUICK_ASYNC_SEEDS = 20, 1
ASYNC_FAST_SEEDS = 4
#: What models and links are divided by in the seeded runs.
SMALLER = 20
SLOW_MBIT, FAST_MBIT = 100.0, 1000.0

_NEVER = Presence(spans=((False, 10**9),))


@dataclass
class Watch:
    """Watches the leader: its versions, its verdict. Calls the next worker when a size has had its rounds."""

    world: World | None = None
    pace: str = "sync"
    rounds: int = 0
    top: int = TOP
    here: int = 1
    version: int = 0
    #: The version at which the last worker was called.
    since: int = 0
    made_s: list[float] = field(default_factory=list)
    #: What the leader recorded of it.
    told: list[str] = field(default_factory=list)
    progress: Progress | None = None

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        for action in step.actions:
            if isinstance(action, Record) and action.kind == "saturation.estimated":
                self.told.append(action.reason)
            if isinstance(action, Send) and isinstance(action.message, Progress):
                self.progress = action.message
            version = getattr(getattr(action, "message", None), "version", 0)
            if version > self.version:
                self.version = version
                self.made_s.append(step.at_s)
        if self._has_had_its_rounds and self.here < self.top and self.world is not None:
            self.here += 1
            self.since = self.version
            self.world.kernel.after(0.0, self.world.start, f"w{self.here}")

    def mark(self, mark: Mark) -> None:
        pass

    @property
    def is_saturated(self) -> bool:
        return self.progress is not None and self.progress.saturation == SATURATED

    @property
    def is_through(self) -> bool:
        return self.here == self.top and self._has_had_its_rounds

    @property
    def _has_had_its_rounds(self) -> bool:
        return self.version - self.since >= self.rounds * (1 if self.pace == "sync" else self.here)

    @property
    def detected(self) -> int | None:
        return self.progress.saturated_at if self.progress is not None and self.is_saturated else None


def grow(
    *,
    pace: str,
    rate_mbit: float,
    seed: int,
    smaller: int = 1,
    first: int = 1,
    top: int = TOP,
    rounds: int = 0,
    slow_from: int = 0,
    stops: bool = True,
) -> Watch:
    """Begin with ``first`` workers; another after so many rounds, up to ``top``, or until the leader is saturated.

    Those from ``slow_from`` on train four times as long.
    """
    rounds = rounds or ROUNDS[pace]
    rate = Steady(mbit(rate_mbit / smaller))
    line = AccessLink(up=rate, down=rate)

    def build(number: int) -> Build:
        return Build(
            kind="even",
            seconds_per_gmac=0.0,
            seconds_per_batch=BATCH_S if number < (slow_from or top + 1) else 4 * BATCH_S,
            jitter=JITTER,
            memory_mb=4096,
            line=line,
            presence=None if number <= first else _NEVER,
        )

    plan = Plan(
        pace=pace,
        batch_size=1,
        workers_min=first,
        workers_max=top,
        until=Until(epochs=1),
        lease_s=60.0,
        momentum=0.0,
        checkpoint_every_s=60.0,
    )
    layout = Layout.of([("flat", (PERNET // smaller,), "parameter")])
    job = system_job(plan, layout, examples=4 * top * top * rounds, start_s=0.1)
    watch = Watch(pace=pace, rounds=rounds, top=top, here=first)
    builds = [build(number) for number in range(1, top + 1)]
    settings = Settings(seed=seed, builds=builds, home_line=line, jobs=[job], arrive_within_s=0.0)
    world = watch.world = World(settings, observers=[watch])
    world.begin()
    if not world.kernel.run(lambda: watch.is_through or (stops and watch.is_saturated), limit_s=1e6):
        raise SystemExit(f"{pace} at {rate_mbit:g} Mb/s did not come to an end")
    return watch


def throughput(workers: int, *, pace: str, rate_mbit: float, rounds: int, smaller: int = SMALLER) -> float:
    """Leases a second of a crew that stays as it is, without its first rounds."""
    watch = grow(
        pace=pace, rate_mbit=rate_mbit, seed=0, smaller=smaller, first=workers, top=workers, rounds=rounds, stops=False
    )
    a_version = workers if pace == "sync" else 1
    # They begin in one step, and where nobody waits it takes a while until they do not walk in it any more.
    skip = rounds // 5 * workers // a_version
    return a_version * (len(watch.made_s) - 1 - skip) / (watch.made_s[-1] - watch.made_s[skip])


def knee(pool: Executor, *, pace: str, rate_mbit: float, rounds: int, smaller: int = SMALLER) -> int | None:
    """The size to which one more is not worth adding, by what was measured of each size alone."""
    measure = partial(throughput, pace=pace, rate_mbit=rate_mbit, rounds=rounds, smaller=smaller)
    rates = list(pool.map(measure, range(1, KNEE_TOP + 1)))
    say(f"{pace} at {rate_mbit:g} Mb/s, leases/s of 1, 2, ... workers: {' '.join(f'{rate:.2f}' for rate in rates)}")
    for workers, (fewer, more) in enumerate(pairwise(rates), start=1):
        if more / fewer - 1 < gain_wanted(workers):
            return workers
    return None


def detected(pace: str, rate_mbit: float, seed: int, smaller: int = SMALLER) -> int | None:
    """The size at which the leader said that it is saturated; None if it never did."""
    return grow(pace=pace, rate_mbit=rate_mbit, seed=seed, smaller=smaller).detected


def seeded(pool: Executor, pace: str, rate_mbit: float, count: int) -> list[int | None]:
    found = list(pool.map(detected, [pace] * count, [rate_mbit] * count, range(1, count + 1)))
    say(f"{pace} at {rate_mbit:g} Mb/s, {count} seeds: {dict(sorted(Counter(map(str, found)).items()))}")
    return found


def at_full_size(pool: Executor) -> dict[str, int | None]:
    """One run of each kind with models and links as they are, and the knee of the asynchronous pace, which differs: a
    model is several chunks then, and chunks of several models take turns."""
    runs = {
        "detected_full_size_sync": pool.submit(detected, "sync", SLOW_MBIT, 0, 1),
        "detected_full_size_async": pool.submit(detected, "async", SLOW_MBIT, 0, 1),
        "detected_full_size_1000": pool.submit(detected, "sync", FAST_MBIT, 0, 1),
    }
    size = knee(pool, pace="async", rate_mbit=SLOW_MBIT, rounds=QUICK_KNEE_ROUNDS["async"], smaller=1)
    return {"knee_full_size_async": size, **{name: run.result() for name, run in runs.items()}}


def typical(found: Sequence[int | None]) -> int | None:
    """The median; none counts as more than any size."""
    middle = median_low([math.inf if one is None else one for one in found])
    return None if middle == math.inf else int(middle)


def share_near(found: Sequence[int | None], size: int | None) -> float:
    return sum(one is not None and size is not None and abs(one - size) <= 1 for one in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_SEEDS} seeds instead of {SEEDS}, shorter measures"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    quick = parser.parse_args().quick
    knee_rounds = QUICK_KNEE_ROUNDS if quick else KNEE_ROUNDS
    with ProcessPoolExecutor() as pool:
        knees = {pace: knee(pool, pace=pace, rate_mbit=SLOW_MBIT, rounds=knee_rounds[pace]) for pace in ROUNDS}
        full_size = {} if quick else at_full_size(pool)
        slow, fast = (seeded(pool, "sync", rate, QUICK_SEEDS if quick else SEEDS) for rate in (SLOW_MBIT, FAST_MBIT))
        async_slow = seeded(pool, "async", SLOW_MBIT, QUICK_ASYNC_SEEDS if quick else ASYNC_SEEDS)
        async_fast = seeded(pool, "async", FAST_MBIT, QUICK_ASYNC_SEEDS if quick else ASYNC_FAST_SEEDS)
    alarms = [size for size in (*fast, *async_fast) if size is not None]
    finish(
        {
            "knee": knees["sync"],
            "knee_async": knees["async"],
            "detected_sync": typical(slow),
            "detected_async": typical(async_slow),
            "detected_1000": typical(fast),
            "runs": len(slow) + len(fast) + len(async_slow) + len(async_fast),
            "false_alarm_share": len(alarms) / (len(fast) + len(async_fast)),
            "within_one_share": share_near(slow, knees["sync"]),
            "within_one_share_async": share_near(async_slow, knees["async"]),
            "missed": (*slow, *async_slow).count(None),
            **full_size,
        }
    )


if __name__ == "__main__":
    main()
