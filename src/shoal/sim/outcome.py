"""What came of a simulated job, as values: how well it learned, how long it took, and what each device did. Knows no
world; an observer of the simulation fills these in.

Seconds are virtual and count from the job's submission, unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: Devices whose time is told span by span.
LANES_MAX = 40

#: Spans that are kept of one device; beyond, they are told with a coarser grain.
SPANS_MAX = 2000

#: Points of the series of versions.
RATES_MAX = 500

#: Devices that are written one by one; the rest by kind.
PLAIN_DEVICES_MAX = 200


class DeviceActivity(StrEnum):
    """What a device is at, as far as one job goes."""

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
    #: None: the evaluation had no metric of this name.
    accuracy: float | None
    loss: float | None
    #: Metric -> its figure.
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
    #: Within so many seconds the order of spans is not kept, only how long each state was held: there were too many.
    #: Zero: all are as they were.
    grain_s: float = 0.0
    #: Where the first grain begins.
    grains_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Note:
    """Something that befell a node. Before the submission its time is below 0."""

    at_s: float
    node: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOutcome:
    node: str
    kind: str
    #: A worker of this job ran on it.
    here_s: float
    #: Of this, its trainer was at a lease.
    busy_s: float
    #: Of this, a model was for it or its update on the wire.
    wire_s: float
    #: Its batches that are part of the saved model.
    batches: int
    #: Delivered, whatever for, since the simulation began.
    bytes_up: int
    bytes_down: int
    #: Drawn while a process ran on it, idling included, since the simulation began.
    energy_wh: float
    #: Preparations and leases that failed on it.
    failures: int
    #: It was too hot for its full speed when its last lease began.
    is_hot: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    #: As the manager recorded them last.
    state: str
    reason: str
    #: To the end of the job, or so far.
    seconds: float
    #: The last version.
    rounds: int
    #: Epochs that are over.
    epochs: int
    #: What the plan aimed for.
    goal: float | None
    #: Nothing was learned: accuracies mean nothing.
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
    #: How many things happened in the simulation.
    events: int
    #: Devices that are rows of a cohort at the end: they are not among ``devices``, and neither are these bytes.
    rows: int = 0
    rows_bytes_up: int = 0
    rows_bytes_down: int = 0

    @property
    def accuracy(self) -> float | None:
        """Of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def metrics(self) -> dict[str, float | None]:
        """Of the last evaluation."""
        return self.evaluations[-1].metrics if self.evaluations else {}

    def time_to(self, accuracy: float) -> float | None:
        """When an evaluation first reached this; None if none did."""
        return next((point.at_s for point in self.evaluations if (point.accuracy or 0.0) >= accuracy), None)

    @property
    def bytes_up(self) -> int:
        return sum(device.bytes_up for device in self.devices) + self.rows_bytes_up

    @property
    def bytes_down(self) -> int:
        return sum(device.bytes_down for device in self.devices) + self.rows_bytes_down

    @property
    def energy_wh(self) -> float:
        return sum(device.energy_wh for device in self.devices)

    @property
    def idle_share(self) -> float:
        """1 - busy / here, over the summed seconds of all devices.

        Here: a worker of the job ran on the device. Busy: its trainer was at a lease. So preparing, moving models and
        updates, and waiting for others all count as idle. 0 where nobody was here.
        """
        here_s = sum(device.here_s for device in self.devices)
        return 1 - sum(device.busy_s for device in self.devices) / here_s if here_s else 0.0

    def to_plain(self) -> dict[str, Any]:
        """As JSON says it. Of a large fleet, devices beyond the first PLAIN_DEVICES_MAX are summed up by kind."""
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
            "evaluations": [dataclasses.asdict(point) for point in self.evaluations],
            "devices": [dataclasses.asdict(device) for device in listed],
            "more_devices": _by_kind(rest),
            "lanes": lanes,
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "rates": [list(pair) for pair in self.rates],
        }


_SUMMED = ("here_s", "busy_s", "wire_s", "batches", "bytes_up", "bytes_down", "energy_wh", "failures")


def _by_kind(devices: Iterable[DeviceOutcome]) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for device in devices:
        row = kinds.setdefault(device.kind, {"kind": device.kind, "devices": 0, **dict.fromkeys(_SUMMED, 0)})
        row["devices"] += 1
        for name in _SUMMED:
            row[name] += getattr(device, name)
    return list(kinds.values())
