"""Jobs that not every device can prepare, and more jobs than devices: who gets a device, and when a job fails because
it gets none. Looks at what devices do, and shares no code with the roles.
"""

from __future__ import annotations

from dataclasses import replace

from dst.case import FuzzCase, case
from dst.fault_draw import draw
from dst.run import FuzzRun
from dst.toy_task import FIRST_MODEL, LAYOUT, Toy
from shoal.plan import Plan, Until
from shoal.sim.invariants import Violation
from shoal.sim.jobs import SimulatedJob, bare_spec
from shoal.sim.rng import Rng, Stream
from shoal.states import JobState

#: An operator stops what has not ended by then.
STOPPED_S = 1500.0

#: A job that lost a device keeps the others for a minute. A device that is called back finishes its lease first, and a
#: manager that starts again waits for leaders.
HELD_MAX_S = 120.0

#: A job that waited this long may hold devices, for as long again.
PATIENT_S = 550.0

_LOOK_EVERY_S = 2.0
_FAULTS_UNTIL_S = 60.0
_FAULTS = ("crash", "cut")

#: What a job says that failed because no device could prepare it.
HOPELESS = "no device can prepare it"


def staffing_case(seed: int) -> FuzzCase:
    """Draw some jobs with least numbers of their own, which all, some or none of the devices can prepare."""
    stream = Rng(seed).stream("staffing")
    drawn = case("plain", seed, has_cuts=False)
    builds = tuple(drawn.builds[number % len(drawn.builds)] for number in range(3 + stream.below(4)))
    names = [f"w{number}" for number in range(1, len(builds) + 1)]
    jobs = tuple(_job(f"job-{number}", names, stream) for number in range(2 + stream.below(3)))
    return replace(
        drawn,
        jobs=jobs,
        builds=builds,
        faults=draw(
            stream, workers=len(builds), until_s=_FAULTS_UNTIL_S, count=stream.below(4), kinds=("crash", "cut")
        ),
        stops={job.spec.job: STOPPED_S for job in jobs},
        strike_at="",
        targeted=(),
        has_flaws=False,
        check_in_s=0.0,
        has_two_managers=False,
        outages=(),
    )


def _job(name: str, names: list[str], stream: Stream) -> SimulatedJob:
    least = 1 + stream.below(len(names))
    plan = Plan(
        batch_size=100,
        workers_min=least,
        workers_max=least + stream.below(3),
        lease_s=3.0,
        until=Until(epochs=1 + stream.below(3)),
    )
    unable = stream.pick(((), (), names, [each for each in names if stream.happens(0.5)]))
    return SimulatedJob(
        spec=bare_spec(name, plan, examples=100 * (4 + stream.below(12))),
        layout=LAYOUT,
        model=FIRST_MODEL,
        training=Toy(),
        gmacs_per_example=0.001,
        fetch_bytes=20_000,
        start_s=stream.between(0.1, 1.5),
        submit_s=stream.between(0.0, 20.0),
        unable=frozenset(unable),
    )


class StaffingRun(FuzzRun):
    """A case under way. No job fails that a device could prepare, and no job that cannot begin holds devices which
    another could begin with."""

    def __init__(self, what: FuzzCase) -> None:
        super().__init__(what)
        self._jobs = {job.spec.job: job for job in what.jobs}
        #: Job that holds devices below its least, and job that could begin with them -> since when.
        self._held_s: dict[tuple[str, str], float] = {}
        #: Job -> since when it waits for its least.
        self._waits_s: dict[str, float] = {}
        self._states: dict[str, str] = {}

    def begin(self) -> None:
        super().begin()
        self.world.kernel.after(_LOOK_EVERY_S, self._look)

    def on_end(self) -> None:
        self._look_at_ends()
        for name, job in self._jobs.items():
            record, able = self.world.disk.jobs[name], len(self.what.builds) - len(job.unable)
            if record.state is JobState.FAILED and HOPELESS not in (record.reason or ""):
                raise Violation(f"{name} failed: {record.reason}")
            if able == 0 and record.state is not JobState.FAILED and not self._has_idlers():
                raise Violation(f"no device can prepare {name}, and it is {record.state}: {record.reason}")
            if able >= job.spec.plan.workers_least and record.state is not JobState.FINISHED:
                raise Violation(f"{able} devices can prepare {name}, and it is {record.state}: {record.reason}")

    def _has_idlers(self) -> bool:
        """Some devices wait in a job for others that cannot prepare it: no other job may have tried them."""
        count = len(self.what.builds)
        return any(0 < count - len(job.unable) < job.spec.plan.workers_least for job in self.what.jobs)

    def _look(self) -> None:
        self.world.kernel.after(_LOOK_EVERY_S, self._look)
        self._look_at_ends()
        self._look_at_devices()

    def _look_at_ends(self) -> None:
        for name, record in self.world.disk.jobs.items():
            before, self._states[name] = self._states.get(name), record.state
            if record.state is not JobState.FAILED or before == record.state or HOPELESS not in (record.reason or ""):
                continue
            if able := sorted(set(self.world.agents) - self._jobs[name].unable):
                raise Violation(f"{name} failed although {able[0]} can prepare it: {record.reason}")
            if ".py:" not in (record.reason or ""):
                raise Violation(f"{name} failed, and nobody is told where: {record.reason}")

    def _look_at_devices(self) -> None:
        now_s, held, free = self.world.kernel.now_s, dict[str, set[str]](), set[str]()
        for name, agent in self.world.agents.items():
            if agent is None:
                continue
            for job in agent.jobs:
                held.setdefault(job, set()).add(name)
            if not agent.jobs:
                free.add(name)
        is_open = [name for name, record in self.world.disk.jobs.items() if record.state.is_open]
        short = [name for name in is_open if len(held.get(name, ())) < self._least(name)]
        for name in [name for name in self._waits_s if name not in short]:
            del self._waits_s[name]
        for name in short:
            self._waits_s.setdefault(name, now_s)
        pairs = {
            (holder, waiting)
            for holder in short
            for waiting in short
            if holder != waiting and held.get(holder) and self._could_begin(waiting, held, free | held[holder])
        }
        for pair in [pair for pair in self._held_s if pair not in pairs]:
            del self._held_s[pair]
        for holder, waiting in pairs:
            since_s = self._held_s.setdefault((holder, waiting), now_s)
            if now_s - since_s > HELD_MAX_S and now_s - self._waits_s[holder] < PATIENT_S:
                names = ", ".join(sorted(held[holder]))
                raise Violation(
                    f"at {now_s:.0f} s: {holder} cannot begin and holds {names}, with which {waiting} could"
                )

    def _least(self, name: str) -> int:
        return self._jobs[name].spec.plan.workers_least

    def _could_begin(self, name: str, held: dict[str, set[str]], others: set[str]) -> bool:
        able = (held.get(name, set()) | others) - self._jobs[name].unable
        return len(able) >= self._least(name)


def play_staffing(seed: int) -> None:
    """Play a seed; raises a Violation where a job fails wrongly or holds devices that it cannot begin with."""
    StaffingRun(staffing_case(seed)).run()
