"""The outcome of a simulated job, as values: how well it learned, how long it took, and what each device did. An
observer of the simulation fills these in.

Seconds are virtual and count from the job's submission, unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: The most devices whose time is given span by span.
LANES_MAX = 40

#: The most spans of one device. More are merged with a coarser grain.
SPANS_MAX = 2000

#: Points of the series of versions.
RATES_MAX = 500

#: The most devices that are written one by one. The rest are summed by kind.
PLAIN_DEVICES_MAX = 200


#: What a device can wait for: a lease, its model on the wire, its update on the wire, or code, data and its trainer.
WAITS = ("lease", "model", "update", "start")


class DeviceActivity(StrEnum):
    """The activity of a device in one job."""

    #: No process runs there.
    AWAY = "away"
    #: Nothing to do: not in this job, between two leases, or before another attempt.
    WAITING = "waiting"
    #: Fetches code and data, and starts its trainer.
    PREPARING = "preparing"
    #: A model is for it, in the leader's queue or on the wire.
    RECEIVING = "receiving"
    TRAINING = "training"
    EVALUATING = "evaluating"
    #: Its update is on the wire.
    SENDING = "sending"


#: A trainer is at work.
BUSY = frozenset((DeviceActivity.TRAINING, DeviceActivity.EVALUATING))
ON_THE_WIRE = frozenset((DeviceActivity.RECEIVING, DeviceActivity.SENDING))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """An evaluation."""

    at_s: float
    version: int
    epoch: int
    #: The accuracy, or `None` if the evaluation had no metric of this name.
    accuracy: float | None
    loss: float | None
    #: Metric -> its value.
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    state: DeviceActivity
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device's time, without gaps from the submission to the end."""

    node: str
    kind: str
    spans: tuple[Span, ...]
    #: The seconds within which only the time of each state is exact, not the order of spans, since there were too many.
    #: 0 if all spans are exact.
    grain_s: float = 0.0
    #: The time at which the first grain begins.
    grains_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How often something was said for one reason. Numbers in it are N, and names of devices are ``others``."""

    #: The kind of an event, or ``wait`` for a device that was told why it gets no lease.
    kind: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to a node. Its time is below 0 before the submission."""

    at_s: float
    node: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """How many devices of a cohort were in which state at a moment."""

    at_s: float
    #: With a lease.
    working: int
    #: Connected, without a lease.
    waiting: int
    #: Told when to come again.
    asleep: int
    away: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOutcome:
    node: str
    kind: str
    #: How long a worker of this job ran on it.
    here_s: float
    #: The part of ``here_s`` in which its trainer worked on a lease.
    busy_s: float
    #: The part of ``here_s`` in which a model for it, or its update, was on the wire.
    wire_s: float
    #: How many of its batches are in the saved model.
    batches: int
    #: Bytes that were delivered since the simulation began, for any purpose.
    bytes_up: int
    bytes_down: int
    #: Energy that it used while a process ran on it, including idle time, since the simulation began.
    energy_wh: float
    #: How many preparations and leases failed on it.
    failures: int
    #: Whether it was too hot for full speed when its last lease began.
    is_hot: bool
    #: The part of ``here_s`` in which it fetched code and data and started its trainer.
    prepare_s: float = 0.0
    #: The part of ``wire_s`` in which its update was on the wire.
    send_s: float = 0.0

    @property
    def waited_s(self) -> dict[str, float]:
        """Return how long it waited, by what it waited for (``WAITS``)."""
        lease_s = self.here_s - self.busy_s - self.wire_s - self.prepare_s
        model_s = self.wire_s - self.send_s
        return dict(zip(WAITS, (lease_s, model_s, self.send_s, self.prepare_s), strict=True))


@dataclass(frozen=True, slots=True)
class WaitTotal:
    """How many devices waited longest for this, and how long all of them waited for it."""

    devices: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    #: The state and its reason, as the manager recorded them last.
    state: str
    reason: str
    #: Until the end of the job, or until now.
    seconds: float
    #: The last version.
    rounds: int
    #: How many epochs are complete.
    epochs: int
    #: The accuracy that the plan aimed for.
    goal: float | None
    #: Whether nothing was learned, so that accuracies mean nothing.
    is_system_only: bool
    #: Those of the history that survived.
    evaluations: tuple[Point, ...]
    refused: int
    leases_expired: int
    #: Processes that ended without a goodbye by the end of the job, the manager's included.
    crashes: int
    devices: tuple[DeviceOutcome, ...]
    #: At most LANES_MAX devices, evenly chosen.
    lanes: tuple[DeviceTimeline, ...]
    notes: tuple[Note, ...]
    #: (at_s, version), thinned; it falls where a crash lost versions.
    rates: tuple[tuple[float, int], ...]
    #: How many calls the simulation made.
    events: int
    #: How many devices have an update in some version.
    took_part: int = 0
    #: Metrics that are better when they are lower.
    lower: tuple[str, ...] = ()
    #: Devices that are rows of a cohort at the end: they are not among ``devices``, and neither are these bytes.
    rows: int = 0
    rows_bytes_up: int = 0
    rows_bytes_down: int = 0
    rows_energy_wh: float = 0.0
    #: All devices by their state over time, thinned, if there are rows.
    census: tuple[Census, ...] = ()
    #: What went wrong and why devices waited, the most frequent first.
    reasons: tuple[ReasonCount, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def metrics(self) -> dict[str, float | None]:
        """The metrics of the last evaluation."""
        return self.evaluations[-1].metrics if self.evaluations else {}

    def time_to(self, accuracy: float) -> float | None:
        """Return when an evaluation first reached this accuracy, or None if none did."""
        return next((point.at_s for point in self.evaluations if (point.accuracy or 0.0) >= accuracy), None)

    @property
    def bytes_up(self) -> int:
        return sum(device.bytes_up for device in self.devices) + self.rows_bytes_up

    @property
    def bytes_down(self) -> int:
        return sum(device.bytes_down for device in self.devices) + self.rows_bytes_down

    @property
    def energy_wh(self) -> float:
        return sum(device.energy_wh for device in self.devices) + self.rows_energy_wh

    @property
    def waited(self) -> dict[str, WaitTotal]:
        """Return what devices waited for (``WAITS``), the one that most of them waited longest for first."""
        devices: Counter[str] = Counter()
        seconds = dict.fromkeys(WAITS, 0.0)
        for device in self.devices:
            waited_s = device.waited_s
            longest = max(WAITS, key=waited_s.__getitem__)
            devices[longest] += waited_s[longest] > 0
            for name in WAITS:
                seconds[name] += waited_s[name]
        first = sorted(WAITS, key=lambda name: (-devices[name], -seconds[name]))
        return {name: WaitTotal(devices[name], seconds[name]) for name in first if seconds[name] > 0}

    @property
    def idle_share(self) -> float:
        """1 - busy / here, over the summed seconds of all devices.

        Here means that a worker of the job ran on the device, busy that its trainer worked on a lease. So preparing,
        moving models and updates, and waiting for others all count as idle. 0 if no worker ran anywhere.
        """
        here_s = sum(device.here_s for device in self.devices)
        return 1 - sum(device.busy_s for device in self.devices) / here_s if here_s else 0.0

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON. Devices beyond the first PLAIN_DEVICES_MAX are summed by kind."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        listed, rest = self.devices[:PLAIN_DEVICES_MAX], self.devices[PLAIN_DEVICES_MAX:]
        lanes = [
            {
                "node": lane.node,
                "kind": lane.kind,
                "grain_s": lane.grain_s,
                "grains_from_s": lane.grains_from_s,
                "spans": [[str(span.state), span.from_s, span.to_s] for span in lane.spans],
            }
            for lane in self.lanes
        ]
        return plain | {
            "accuracy": self.accuracy,
            "metrics": self.metrics,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "energy_wh": self.energy_wh,
            "idle_share": self.idle_share,
            "waited": [{"for": name, **dataclasses.asdict(each)} for name, each in self.waited.items()],
            "reasons": [dataclasses.asdict(each) for each in self.reasons],
            "evaluations": [dataclasses.asdict(point) for point in self.evaluations],
            "devices": [dataclasses.asdict(device) for device in listed],
            "more_devices": _by_kind(rest),
            "lanes": lanes,
            "census": [dataclasses.asdict(each) for each in self.census],
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "rates": [list(pair) for pair in self.rates],
        }


_SUMMED = tuple(
    field.name for field in dataclasses.fields(DeviceOutcome) if field.name not in ("node", "kind", "is_hot")
)


def _by_kind(devices: Iterable[DeviceOutcome]) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for device in devices:
        row = kinds.setdefault(device.kind, {"kind": device.kind, "devices": 0, **dict.fromkeys(_SUMMED, 0)})
        row["devices"] += 1
        for name in _SUMMED:
            row[name] += getattr(device, name)
    return list(kinds.values())
