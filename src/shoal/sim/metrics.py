"""Observes a simulation and builds the outcome of each job from the events and actions of its roles.

It sees every step of fleets of 100,000 devices, so it compares types, makes no texts on the way, and keeps the timeline
of only a few devices.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from shoal.roles.actions import Action, End, Evaluate, Keep, Prepare, Record, Save, Send, Train
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Prepared,
    PrepareFailed,
    Received,
    Started,
    Trained,
    TrainerFailed,
)
from shoal.sim.devices import Device
from shoal.sim.fault_text import write
from shoal.sim.faults import Fault
from shoal.sim.jobs import SystemOnly
from shoal.sim.observe import Mark, Step
from shoal.sim.outcome import (
    BUSY,
    LANES_MAX,
    ON_THE_WIRE,
    RATES_MAX,
    SPANS_MAX,
    Census,
    DeviceActivity,
    DeviceOutcome,
    DeviceTimeline,
    Note,
    Outcome,
    Point,
    ReasonCount,
    Span,
)
from shoal.sim.world import HOME, World
from shoal.states import JobState
from shoal.wire.messages import EvaluationView, Progress, Ready, Update, UpdateRefused, UpdateShard, Wait, Work

#: The most notes on nodes whose lane is not drawn: one fault may hit 100,000 devices.
NOTES_MAX = 1000

#: The most counts of devices by state that are kept: a picture is not wider.
CENSUS_MAX = 600

#: How many spans a lane with too many is reduced to, which leaves room for later ones.
_SPANS_ENOUGH = SPANS_MAX * 3 // 4

#: The most different reasons of one job that are counted. Others are counted together.
REASONS_MAX = 50
_OTHER_REASONS = "other reasons"
#: Records of a leader that say what went wrong, each with a device's name and a reason.
_TROUBLES = frozenset(("update.rejected", "lease.expired", "lease.failed", "preparation.failed"))

_JOULES_PER_WH = 3600.0
_TRAINER_IS_FREE = frozenset((Prepared, PrepareFailed, Trained, EvaluationDone, TrainerFailed))


class Metrics:
    """An observer of one world, from its beginning. ``devices`` is how many it has."""

    def __init__(self, devices: int) -> None:
        #: The lanes of devices without a job, with which the lanes of a new job begin.
        self._idle = _Course({node: _Stint(spans=[]) for node in drawn(devices)})
        self._courses: dict[str, _Course] = {}
        #: Node -> since when a process runs there, and how long others did before.
        self._since_s: dict[str, float] = {}
        self._before_s: dict[str, float] = {}
        self._said_goodbye: set[str] = set()
        self._crashes_s: list[float] = []
        self._census: list[Census] = []
        #: One of this many counts is kept, and how many are left out before the next one.
        self._census_every, self._census_skip = 1, 0
        #: A note without a fault is an empty battery.
        self._notes: list[tuple[float, str, Fault | None]] = []

    def count(self, world: World) -> None:
        """Count the devices of a cohort by their states. Called again and again; keeps ever fewer of the counts."""
        if world.cohort is None:
            return
        if self._census_skip:
            self._census_skip -= 1
            return
        self._census.append(world.cohort.census())
        if len(self._census) > CENSUS_MAX:
            self._census, self._census_every = self._census[::2], 2 * self._census_every
        self._census_skip = self._census_every - 1

    # Steps ---------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        if step.role == "manager":
            # Most messages to a manager are heartbeats, which cause no action.
            if step.actions:
                self._manager(step)
            return
        course = self._course(step.job)
        if course.over_s is None:
            if step.role == "worker":
                course.worker(step)
            elif step.role == "leader" and course.leader_node in ("", step.node):
                # A leader whose term is over may lead on for a while, to no effect.
                course.leader(step)

    def _manager(self, step: Step) -> None:
        for action in step.actions:
            if type(action) is Keep and action.state.is_ended:
                self._course(action.job).over_s = step.at_s

    def _course(self, job: str) -> _Course:
        course = self._courses.get(job)
        if course is None:
            stints = {node: stint.copy() for node, stint in self._idle.stints.items()}
            course = self._courses[job] = _Course(stints)
        return course

    # Marks ---------------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        at_s, node = mark.at_s, mark.node
        match mark.kind:
            case "started":
                self._since_s[node] = at_s
                self._turn(node, at_s, DeviceActivity.WAITING)
            case "left":
                self._said_goodbye.add(node)
            case "killed" | "power off":
                self._ended(node, at_s)
            case "fault":
                self._note(at_s, node, mark.facts["fault"])
            case "battery empty":
                self._note(at_s, node, None)
            case "led":
                self._course(mark.facts["job"]).led(node, mark.facts["term"], mark.facts["version"])

    def _ended(self, node: str, at_s: float) -> None:
        since_s = self._since_s.pop(node, None)
        if since_s is None:
            return
        self._before_s[node] = self._before_s.get(node, 0.0) + at_s - since_s
        self._turn(node, at_s, DeviceActivity.AWAY)
        if node in self._said_goodbye:
            self._said_goodbye.remove(node)
        else:
            self._crashes_s.append(at_s)

    def _turn(self, node: str, at_s: float, state: DeviceActivity) -> None:
        """Note that a process begins or ends on a node: its earlier activity is over."""
        for course in (self._idle, *self._courses.values()):
            stint = course.stints.get(node)
            if stint is not None and course.over_s is None:
                stint.turn(at_s, state, is_employed=False)

    def _note(self, at_s: float, node: str, fault: Fault | None) -> None:
        if len(self._notes) < NOTES_MAX or node == HOME or node in self._idle.stints:
            self._notes.append((at_s, node, fault))

    # The sum of it -------------------------------------------------------------------------------------

    def outcome(self, world: World, job: str) -> Outcome:
        """Return how a job ended, or its state now."""
        course, simulated, record = self._course(job), world.job(job), world.disk.jobs.get(job)
        begin_s = simulated.submit_s
        end_s = max(begin_s, course.over_s if course.over_s is not None else world.kernel.now_s)
        kinds = {name: machine.device.build.kind for name, machine in world.machines.items() if machine.device}
        devices = self._devices(world, job, course, end_s)
        up_bytes, down_bytes = world.home_bytes if world.cohort is not None else (0, 0)
        rows = world.devices - len(devices)
        return Outcome(
            state=record.state if record else JobState.QUEUED,
            reason=(record.reason or "") if record else "the manager has not heard of it yet",
            seconds=end_s - begin_s,
            rounds=course.version,
            epochs=course.epoch,
            goal=simulated.spec.plan.until.accuracy,
            is_system_only=isinstance(simulated.training, SystemOnly),
            evaluations=course.points(begin_s),
            lower=course.lower(),
            refused=course.refused,
            leases_expired=course.expired,
            crashes=sum(at_s <= end_s for at_s in self._crashes_s),
            devices=devices,
            lanes=tuple(
                course.stints[node].lane(node, kinds.get(node, ""), begin_s, end_s) for node in self._idle.stints
            ),
            notes=tuple(
                Note(at_s - begin_s, node, "its battery is empty" if fault is None else write([fault]).strip())
                for at_s, node, fault in self._notes
                if at_s <= end_s
            ),
            rates=course.rates(begin_s),
            events=world.kernel.handled,
            took_part=len({row.node for row in world.disk.history.get(job, ())}),
            rows=rows,
            rows_bytes_up=up_bytes - sum(device.bytes_up for device in devices) if rows else 0,
            rows_bytes_down=down_bytes - sum(device.bytes_down for device in devices) if rows else 0,
            rows_energy_wh=self._rows_energy_wh(world),
            census=tuple(
                replace(each, at_s=each.at_s - begin_s) for each in self._census if begin_s <= each.at_s <= end_s
            ),
            reasons=course.reasons_seen(),
        )

    def _devices(self, world: World, job: str, course: _Course, end_s: float) -> tuple[DeviceOutcome, ...]:
        batches = Counter(row.node for row in world.disk.history.get(job, ()))
        never, rows = _Stint(), []
        for node, machine in world.machines.items():
            device = machine.device
            if device is None:
                continue
            stint = course.stints.get(node, never)
            here_s, busy_s, wire_s, prepare_s, send_s = stint.sums(end_s)
            rows.append(
                DeviceOutcome(
                    node=node,
                    kind=device.build.kind,
                    here_s=here_s,
                    busy_s=busy_s,
                    wire_s=wire_s,
                    prepare_s=prepare_s,
                    send_s=send_s,
                    batches=batches[node],
                    bytes_up=world.network.sent_bytes(node),
                    bytes_down=world.network.received_bytes(node),
                    energy_wh=self._drawn_j(device, node, world.kernel.now_s) / _JOULES_PER_WH,
                    failures=stint.failures,
                    is_hot=device.is_hot,
                )
            )
        return tuple(rows)

    def _rows_energy_wh(self, world: World) -> float:
        if world.cohort is None:
            return 0.0
        now_s = world.kernel.now_s
        return sum(self._drawn_j(device, node, now_s) for node, device in world.cohort.used()) / _JOULES_PER_WH

    def _drawn_j(self, device: Device, node: str, now_s: float) -> float:
        """Return the energy of a device without the time it was away: the device counts idle time from the start."""
        here_s = self._before_s.get(node, 0.0)
        if node in self._since_s:
            here_s += now_s - self._since_s[node]
        return device.spent_j(now_s) - device.build.idle_watts * (now_s - here_s)


def drawn(devices: int) -> tuple[str, ...]:
    """Return the devices whose lanes are drawn, evenly chosen."""
    lanes = min(devices, LANES_MAX)
    return tuple(f"w{1 + lane * devices // lanes}" for lane in range(lanes))


class _Course:
    """One job as observed until now."""

    __slots__ = (
        "_evaluated_s",
        "_rates",
        "_rates_every",
        "_rates_skipped",
        "_seen_s",
        "_term",
        "_views",
        "epoch",
        "expired",
        "leader_node",
        "over_s",
        "reasons",
        "refused",
        "stints",
        "version",
    )

    def __init__(self, stints: dict[str, _Stint]) -> None:
        self.stints = stints
        #: When the manager recorded its end.
        self.over_s: float | None = None
        self.version = 0
        self.epoch = 0
        #: The node that leads it under the newest term, or "" if none has begun.
        self.leader_node = ""
        self._term = 0
        self.refused = 0
        self.expired = 0
        #: (Kind, reason) -> how often.
        self.reasons: Counter[tuple[str, str]] = Counter()
        #: Version -> when its evaluation was complete, and the evaluation.
        self._evaluated_s: dict[int, float] = {}
        self._views: dict[int, EvaluationView] = {}
        self._seen_s = 0.0
        self._rates: list[tuple[float, int]] = []
        self._rates_every = 1
        self._rates_skipped = 0

    # The leader ----------------------------------------------------------------------------------------

    def leader(self, step: Step) -> None:
        at_s, event = step.at_s, step.event
        if type(event) is Received and type(event.message) is Update:
            stint = self.stints.get(event.sender)
            if stint is not None and stint.state is DeviceActivity.SENDING:
                stint.turn(at_s, DeviceActivity.WAITING)
        for action in step.actions:
            if type(action) is Send:
                message = action.message
                if type(message) is Work:
                    self._lent(action.to, message, at_s)
                elif type(message) is Wait:
                    self._count_reason("wait", message.reason)
                elif type(message) is Progress:
                    self.epoch = message.epoch
                    self._made(message.version, at_s)
            elif type(action) is Record:
                self._recorded(action.kind, at_s)
                if action.kind in _TROUBLES:
                    # The text before the colon names the device and its lease.
                    self._count_reason(action.kind, action.reason.partition(": ")[2] or action.reason)
            elif type(action) is Save:
                for view in action.evaluations:
                    self._views[view.version] = view
                    # An evaluation that is made from updates' results is of a version that was not leased yet.
                    self._evaluated_s.setdefault(view.version, at_s)

    def _lent(self, node: str, work: Work, at_s: float) -> None:
        self._made(work.version, at_s)
        stint = self.stints.get(node)
        if work.tensors and stint is not None and stint.is_employed and stint.state is DeviceActivity.WAITING:
            stint.turn(at_s, DeviceActivity.RECEIVING)

    def _recorded(self, kind: str, at_s: float) -> None:
        if kind == "update.rejected":
            self.refused += 1
        elif kind == "lease.expired":
            self.expired += 1
        elif kind == "job.evaluated":
            # The leased version is the one that is evaluated: nothing is trained meanwhile.
            self._evaluated_s[self.version] = at_s

    def _count_reason(self, kind: str, reason: str) -> None:
        counted = (kind, general_reason(reason))
        if counted not in self.reasons and len(self.reasons) >= REASONS_MAX:
            counted = (kind, _OTHER_REASONS)
        self.reasons[counted] += 1

    def reasons_seen(self) -> tuple[ReasonCount, ...]:
        """Return the reasons, the most frequent first."""
        counted = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return tuple(ReasonCount(kind, reason, count) for (kind, reason), count in counted)

    def _made(self, version: int, at_s: float) -> None:
        if version == self.version:
            return
        self.version, self._seen_s = version, at_s
        self._rates_skipped += 1
        if self._rates_skipped < self._rates_every:
            return
        self._rates_skipped = 0
        self._rates.append((at_s, version))
        if len(self._rates) >= RATES_MAX:
            # Every second point stays, so that the spacing equals that of the points to come.
            del self._rates[::2]
            self._rates_every *= 2

    def led(self, node: str, term: int, version: int) -> None:
        """Note that a leader began at this version: later versions are lost."""
        if term < self._term:
            return
        self.leader_node, self._term = node, term
        for lost in [known for known in self._views if known > version]:
            del self._views[lost]

    # Workers -------------------------------------------------------------------------------------------

    def worker(self, step: Step) -> None:
        stint = self.stints.get(step.node)
        if stint is None:
            stint = self.stints[step.node] = _Stint()
        event, kind = step.event, type(step.event)
        state, is_employed = stint.state, True
        if kind is Started:
            state = DeviceActivity.WAITING
        elif kind in _TRAINER_IS_FREE:
            # A worker that got another lease meanwhile continues with that.
            if not isinstance(event, Trained | EvaluationDone) or event.lease == stint.lease:
                state = DeviceActivity.WAITING
            stint.failures += kind is TrainerFailed or kind is PrepareFailed
        elif state in ON_THE_WIRE:
            # The transfer has arrived, or was lost with the session.
            is_answer = isinstance(event, Received) and isinstance(event.message, Work | UpdateRefused)
            if is_answer or kind is Connected or kind is Disconnected:
                state = DeviceActivity.WAITING
        for action in step.actions:
            if type(action) is Train:
                state, stint.lease = DeviceActivity.TRAINING, action.lease
            elif type(action) is Evaluate:
                state, stint.lease = DeviceActivity.EVALUATING, action.lease
            elif type(action) is Prepare:
                state = DeviceActivity.PREPARING
            elif type(action) is Send:
                if type(action.message) is UpdateShard:
                    state = DeviceActivity.SENDING
                elif type(action.message) is Update:
                    # If it goes to aggregators in shards, the leader is told once all of them have theirs.
                    state = DeviceActivity.WAITING if action.message.formation else DeviceActivity.SENDING
                elif type(action.message) is Ready:
                    state = DeviceActivity.WAITING
            elif type(action) is End:
                state, is_employed = DeviceActivity.WAITING, False
        if state is DeviceActivity.WAITING and isinstance(event, Received) and isinstance(event.message, Work):
            # A lease that causes no action waits for its values.
            state = DeviceActivity.RECEIVING if event.message.values_by and not _asks(step.actions) else state
        stint.turn(step.at_s, state, is_employed=is_employed)

    # The sum of it -------------------------------------------------------------------------------------

    def points(self, begin_s: float) -> tuple[Point, ...]:
        return tuple(
            Point(
                at_s=self._evaluated_s[version] - begin_s,
                version=version,
                epoch=view.epoch,
                accuracy=view.accuracy,
                loss=view.loss,
                metrics={metric.name: metric.value for metric in view.metrics},
            )
            for version, view in sorted(self._views.items())
        )

    def lower(self) -> tuple[str, ...]:
        """Return the metrics of evaluations that are better when they are lower."""
        return tuple(sorted({each.name for view in self._views.values() for each in view.metrics if each.lower}))

    def rates(self, begin_s: float) -> tuple[tuple[float, int], ...]:
        pairs = [(at_s - begin_s, version) for at_s, version in self._rates]
        last = (self._seen_s - begin_s, self.version)
        if self.version and (not pairs or pairs[-1] != last):
            pairs.append(last)
        return tuple(pairs)


_NAMES = re.compile(r"\bw\d+(?:, w\d+)*(?: and \d+ more)?\b")
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


# A leader gives one reason to many devices.
@lru_cache(maxsize=1024)
def general_reason(reason: str) -> str:
    """Return a reason without the devices and numbers in it, so that reasons of one kind are the same text."""
    return _NUMBERS.sub("N", _NAMES.sub("others", reason))


def _asks(actions: list[Action]) -> bool:
    """Whether these actions ask for another lease."""
    return any(type(action) is Send and type(action.message) is Ready for action in actions)


_Spans = list[tuple[DeviceActivity, float, float]]


class _Stint:
    """One device in one job: its activity, since when, and the time of each activity."""

    __slots__ = (
        "_busy_s",
        "_grain_s",
        "_here_s",
        "_prepare_s",
        "_send_s",
        "_since_s",
        "_spans",
        "_wire_s",
        "failures",
        "is_employed",
        "lease",
        "state",
    )

    def __init__(self, *, spans: _Spans | None = None) -> None:
        self.state = DeviceActivity.AWAY
        #: Whether a worker of the job runs there.
        self.is_employed = False
        #: The last lease that its trainer got.
        self.lease = 0
        self.failures = 0
        self._since_s = 0.0
        self._here_s = self._busy_s = self._wire_s = self._prepare_s = self._send_s = 0.0
        #: Its spans without gaps from second 0, or `None` if its lane is not drawn.
        self._spans = spans
        #: The grain of the spans, or 0 while they are exact.
        self._grain_s = 0.0

    def copy(self) -> _Stint:
        """Return a copy, for a device that was never employed."""
        twin = _Stint(spans=None if self._spans is None else list(self._spans))
        twin.state, twin._since_s, twin._grain_s = self.state, self._since_s, self._grain_s
        return twin

    def turn(self, at_s: float, state: DeviceActivity, *, is_employed: bool = True) -> None:
        if state is self.state and is_employed is self.is_employed:
            return
        self._here_s, self._busy_s, self._wire_s, self._prepare_s, self._send_s = self.sums(at_s)
        if self._spans is not None:
            _add(self._spans, self.state, self._since_s, at_s)
            if len(self._spans) > SPANS_MAX:
                self._thin_out(self._spans)
        self.state, self.is_employed, self._since_s = state, is_employed, at_s

    def sums(self, now_s: float) -> tuple[float, float, float, float, float]:
        """Return the seconds here, busy, on the wire, preparing and sending until now."""
        if not self.is_employed:
            return self._here_s, self._busy_s, self._wire_s, self._prepare_s, self._send_s
        lasted_s, state = now_s - self._since_s, self.state
        return (
            self._here_s + lasted_s,
            self._busy_s + lasted_s if state in BUSY else self._busy_s,
            self._wire_s + lasted_s if state in ON_THE_WIRE else self._wire_s,
            self._prepare_s + lasted_s if state is DeviceActivity.PREPARING else self._prepare_s,
            self._send_s + lasted_s if state is DeviceActivity.SENDING else self._send_s,
        )

    def _thin_out(self, spans: _Spans) -> None:
        # A grain is twice the one before, so that they nest.
        grain_s = self._grain_s or spans[-1][2] / SPANS_MAX
        spans = coarser(spans, grain_s)
        while len(spans) > _SPANS_ENOUGH:
            grain_s *= 2
            spans = coarser(spans, grain_s)
        self._spans, self._grain_s = spans, grain_s

    def lane(self, node: str, kind: str, begin_s: float, end_s: float) -> DeviceTimeline:
        """Return the timeline to draw, counted from ``begin_s``."""
        spans, grain_s = list(self._spans or ()), self._grain_s
        _add(spans, self.state, self._since_s, end_s)
        if grain_s:
            # The latest spans too: otherwise the timeline would seem to change there.
            spans = coarser(spans, grain_s)
        cut = [(state, max(from_s, begin_s), min(to_s, end_s)) for state, from_s, to_s in spans]
        shown = [Span(state, from_s - begin_s, to_s - begin_s) for state, from_s, to_s in cut if from_s < to_s]
        return DeviceTimeline(node, kind, tuple(shown), grain_s, -(begin_s % grain_s) if grain_s else 0.0)


def _add(spans: _Spans, state: DeviceActivity, from_s: float, to_s: float) -> None:
    if to_s <= from_s:
        return
    if spans and spans[-1][0] is state:
        spans[-1] = (state, spans[-1][1], to_s)
    else:
        spans.append((state, from_s, to_s))


def coarser(spans: _Spans, grain_s: float) -> _Spans:
    """Merge the spans within each grain: one span per state, as long as all of its spans in the grain together."""
    fewer: _Spans = []
    for _, group in itertools.groupby(_split(spans, grain_s), key=lambda numbered: numbered[0]):
        pieces = [piece for _, piece in group]
        lasted_s: dict[DeviceActivity, float] = {}
        for state, from_s, to_s in pieces:
            lasted_s[state] = lasted_s.get(state, 0.0) + to_s - from_s
        begin_s, end_s = pieces[0][1], pieces[-1][2]
        last = next(reversed(lasted_s))
        for state, seconds in lasted_s.items():
            # The last ends exactly where the group does, despite rounding.
            to_s = end_s if state is last else min(end_s, begin_s + seconds)
            _add(fewer, state, begin_s, to_s)
            begin_s = to_s
    return fewer


def _split(spans: _Spans, grain_s: float) -> Iterator[tuple[int, tuple[DeviceActivity, float, float]]]:
    """Yield each span with the number of its grain. A span that crosses the end of a grain is split there."""
    for state, from_s, to_s in spans:
        grain = int(from_s // grain_s)
        if from_s >= (grain + 1) * grain_s:
            # It begins with a grain, but rounding put it into the one before.
            grain += 1
        border_s = (grain + 1) * grain_s
        yield grain, (state, from_s, min(to_s, border_s))
        if border_s < to_s:
            yield grain + 1, (state, border_s, to_s)
