"""The contest of profilers inside a real leader: each request is sized by one of them in turn. Starts no processes.

It takes the place of a leader's profiler. What a device says of itself, and how much processor it has for a request, is
drawn (``slo_fleet``); what its task takes is what its agent reports. First every device borrows the names of some of
the offline set and does ever larger tasks, which all profilers learn from; then it asks each of them in each round.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.slo_fleet import Member
from benchmarks.slo_loop import RAMP_BUDGETS, RAMP_MOST, Task
from benchmarks.slo_trainers import CORES, CORES_LEAST, CORES_MOST
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, Sizing

#: A task that is there to be waited with, or to load what is loaded once.
IDLE_EXAMPLES = 320

#: Devices that also do the same task over and over on the same quota: what differs is the machine's doing.
STEADY = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What a device does next."""

    #: ``warm``, ``teach``, ``steady``, ``over``, or the name of the profiler that is asked.
    kind: str
    cores: float
    member: Member | None = None
    request: int = 0
    #: Of a task that no profiler sizes.
    examples: int = IDLE_EXAMPLES


def cores_of(member: Member, request: int) -> float:
    return min(CORES_MOST, max(CORES_LEAST, CORES * member.moments[request].speed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    members: Sequence[Member]
    teachers: Sequence[Member]
    requests: int
    budget: float
    #: Where the offline set begins, and the size of the steady tasks.
    first: int
    steady: int


class Contest(Profiler):
    def __init__(
        self,
        setting: Setting,
        profilers: Mapping[str, Profiler],
        *,
        tell: Callable[[str, Turn], None],
        record: Callable[[str, Task], None],
    ) -> None:
        """``tell``: what a device is to do, before it is lent. ``record``: a task is done; empty for the steady."""
        super().__init__(unit="s")
        self._setting = setting
        self._profilers = profilers
        self._tell, self._record = tell, record
        names = [member.name for member in setting.members]
        self._places = {name: place for place, name in enumerate(names)}
        self._pupils: dict[str, deque[Member]] = {name: deque() for name in names}
        for place, teacher in enumerate(setting.teachers):
            self._pupils[names[place % len(names)]].append(teacher)
        #: Device -> what it is at; tasks of its present teacher; requests that are over, with which profiler is next.
        self._at: dict[str, Turn] = {}
        self._warmed: set[str] = set()
        self._ramps: dict[str, int] = dict.fromkeys(names, 0)
        self._turns: dict[str, deque[Turn]] = {}
        self._rows: list[tuple[Features, int, float]] = []
        self._reasons: dict[str, str] = {}
        self.taught = 0

    @property
    def is_over(self) -> bool:
        return len(self._turns) == len(self._places) and not any(self._turns.values())

    def predict(self, features: Features) -> CostPrediction | None:
        return None

    def decide(self, features: Features, budget: float) -> Sizing:
        device = features.device
        turn = self._at[device] = self._next(device)
        self._tell(device, turn)
        profiler = self._profilers.get(turn.kind)
        if profiler is None or turn.member is None:
            return Sizing(examples=turn.examples, reason=turn.kind)
        sizing = profiler.decide(turn.member.features(turn.request), self._setting.budget)
        self._reasons[device] = sizing.reason
        return sizing

    def observed(self, features: Features, examples: int, spent: float) -> None:
        device = features.device
        turn = self._at.pop(device, None)
        if turn is None:
            return
        if turn.kind == "teach" and turn.member is not None:
            self._rows.append((turn.member.features(turn.request), examples, spent))
            self._taught_by(device, spent)
        elif turn.kind == "warm":
            self._warmed.add(device)
        elif turn.kind != "over":
            self._turns[device].popleft()
            self._done(device, turn, examples, spent)

    def _done(self, device: str, turn: Turn, examples: int, spent: float) -> None:
        profiler, member = self._profilers.get(turn.kind), turn.member
        if profiler is not None and member is not None:
            profiler.observed(member.features(turn.request), examples, spent)
        task = Task(
            device=device,
            request=turn.request,
            examples=examples,
            spent=spent / self._setting.budget,
            reason=self._reasons.get(device, ""),
        )
        self._record(turn.kind if profiler is not None else "", task)

    # What comes next ------------------------------------------------------------------------------------

    def _next(self, device: str) -> Turn:
        if device not in self._warmed:
            return Turn(kind="warm", cores=CORES_MOST)
        if self._pupils[device]:
            teacher, ramp = self._pupils[device][0], self._ramps[device]
            examples = self._setting.first << ramp
            return Turn(kind="teach", cores=cores_of(teacher, ramp), member=teacher, request=ramp, examples=examples)
        if any(self._pupils.values()):
            return Turn(kind="warm", cores=CORES_MOST)
        if device not in self._turns:
            self._turns[device] = deque(self._turns_of(device))
        turns = self._turns[device]
        return turns[0] if turns else Turn(kind="over", cores=CORES_MOST)

    def _taught_by(self, device: str, spent: float) -> None:
        self._ramps[device] += 1
        if spent >= RAMP_BUDGETS * self._setting.budget or self._ramps[device] >= RAMP_MOST:
            self._pupils[device].popleft()
            self._ramps[device] = 0
        if not any(self._pupils.values()):
            self.taught = len(self._rows)
            for row in self._rows:
                for profiler in self._profilers.values():
                    profiler.observed(*row)

    def _turns_of(self, device: str) -> list[Turn]:
        """Every profiler once a round; they take turns in going first."""
        place, names = self._places[device], list(self._profilers)
        member, turns = self._setting.members[place], []
        for request in range(self._setting.requests):
            first = (request + place) % len(names)
            cores = cores_of(member, request)
            turns += [
                Turn(kind=name, cores=cores, member=member, request=request) for name in names[first:] + names[:first]
            ]
            if place < STEADY:
                turns.append(Turn(kind="steady", cores=CORES, request=request, examples=self._setting.steady))
        return turns


def write_turn(folder: Path, device: str, turn: Turn) -> None:
    draft = folder / f".{device}.new"
    draft.write_text(json.dumps({"cores": turn.cores, "kind": turn.kind}))
    draft.replace(folder / f"{device}.json")
