"""A modelled device: what work costs it in time, energy and heat."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.errors import Misuse
from shoal.sim.network import AccessLink
from shoal.sim.rng import Stream

#: The cost of evaluating relative to training: it has no backward pass, which costs about twice the forward one.
EVALUATE_SHARE = 1 / 3

#: How far below its limit a device that was slowed by heat runs at full speed again.
RELIEF_C = 5.0

#: The temperature of a device whose heat is not modelled.
ROOM_C = 25.0

#: A trainer is an interpreter with torch loaded ...
TRAINER_MB = 350
#: ... and the model, its gradient, the update, and the model as it came.
MODEL_COPIES = 4

_JOULES_PER_WH = 3600.0
_BYTES_PER_MB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """First-order warming: toward ``ambient_c`` plus ``rise_c_per_w`` for every watt drawn."""

    rise_c_per_w: float
    time_constant_s: float
    limit_c: float
    ambient_c: float
    #: How many times longer work takes above the limit.
    slowdown: float

    def __post_init__(self) -> None:
        if not self.time_constant_s > 0 or not self.rise_c_per_w >= 0:
            raise Misuse("heat needs a time constant above 0 s and a rise of 0 degrees a watt or more")
        if not self.slowdown >= 1:
            raise Misuse(f"a hot device cannot be {self.slowdown} times slower: give 1 or more")

    def settles_c(self, watts: float) -> float:
        """Return the final temperature if this draw never changes."""
        return self.ambient_c + watts * self.rise_c_per_w

    def after_c(self, start_c: float, watts: float, elapsed_s: float) -> float:
        """Return T(t) = T∞ + (T₀ - T∞) e^(-t/τ): Newton's law of cooling under a constant draw."""
        end_c = self.settles_c(watts)
        return end_c + (start_c - end_c) * math.exp(-elapsed_s / self.time_constant_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """When a device is present: spans of (is it present?, seconds) that repeat forever.

    Seconds are integers, so that a change happens at exactly the second it was announced for, however late.
    """

    spans: tuple[tuple[bool, int], ...]
    #: The position of second 0 in the spans.
    offset_s: int = 0
    #: The total length of the spans, after which they begin again.
    _period_s: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.spans or min(seconds for _, seconds in self.spans) < 1:
            raise Misuse("presence needs at least one span, each a second or longer")
        object.__setattr__(self, "_period_s", sum(seconds for _, seconds in self.spans))

    def is_present(self, now_s: float) -> bool:
        return self.spans[self._find(now_s)[0]][0]

    def next_change_s(self, now_s: float) -> float | None:
        """Return when it comes or goes next, or None if it never does."""
        at, end_s = self._find(now_s)
        here = self.spans[at][0]
        for ahead in range(1, len(self.spans)):
            is_there, seconds = self.spans[(at + ahead) % len(self.spans)]
            if is_there is not here:
                return float(end_s)
            end_s += seconds
        return None

    def _find(self, now_s: float) -> tuple[int, int]:
        """Return the index of the span at a time, and the second at which it ends."""
        period_s = self._period_s
        turns, phase_s = divmod(now_s + self.offset_s, period_s)
        end_s = int(turns) * period_s - self.offset_s
        for at, (_, seconds) in enumerate(self.spans):
            end_s += seconds
            phase_s -= seconds
            if phase_s < 0:
                return at, end_s
        # Rounding may put the phase of a time before 0 on the end of the last span.
        return 0, end_s + self.spans[0][1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """The hardware of a device."""

    #: Its product name, such as "raspberry pi 4".
    kind: str
    #: Seconds to train on one example per billion multiply-adds of its forward pass.
    seconds_per_gmac: float
    #: The minimum seconds of a step, however small the model.
    seconds_per_batch: float
    #: The deviation of a lognormal factor, drawn for each lease.
    jitter: float = 0.0
    #: Memory that a trainer may take.
    memory_mb: int
    #: The charge at the beginning, or 0 on the mains.
    battery_wh: float = 0.0
    train_watts: float = 0.0
    idle_watts: float = 0.0
    heat: Heat | None = None
    line: AccessLink
    #: When it is present, or `None` if always.
    presence: Presence | None = None
    #: Whether it sums updates for others and does not train.
    is_hub: bool = False
    #: Whether it is a browser tab: it has no PyTorch, does not listen, and runs a job's exported training step.
    is_browser: bool = False
    #: The link rate that a hub reports, or 0 if it does not know.
    told_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.seconds_per_gmac, self.seconds_per_batch, self.jitter, self.battery_wh, self.idle_watts) < 0:
            raise Misuse(f"{self.kind}: times, jitter, battery and watts must be 0 or more")
        if self.train_watts < self.idle_watts:
            raise Misuse(f"{self.kind}: training cannot draw less than idling ({self.idle_watts} W)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeJob:
    """One piece of work to compute."""

    #: Multiply-adds of one forward pass, in billions.
    gmacs_per_example: float
    examples: int
    batches: int
    #: Whether it also has a backward pass.
    trains: bool = True
    #: New examples that are evaluated before the others are trained on, and their batches.
    judged_examples: int = 0
    judged_batches: int = 0


class DeviceRest(NamedTuple):
    """A device that idles, in five numbers."""

    since_s: float
    temperature_c: float
    spent_j: float
    is_hot: bool
    stream: int


class Device:
    """One device in the course of a simulation.

    Its power draw is constant during each piece of work and between two. So energy and heat have closed forms, and
    nothing needs to happen to a device while time passes. Whether it is too hot is decided when work begins, and holds
    to its end.
    """

    __slots__ = (
        "_from_c",
        "_from_j",
        "_from_s",
        "_stream",
        "_until_s",
        "_watts",
        "build",
        "is_hot",
        "slow_factor",
    )

    def __init__(self, build: Build, stream: Stream) -> None:
        self.build = build
        #: How many times longer work takes; faults set it.
        self.slow_factor = 1.0
        #: Whether it was above its limit when its last work began, and has not cooled enough since.
        self.is_hot = False
        self._stream = stream
        # The present work: draws _watts from _from_s, when temperature and energy were these, until _until_s.
        self._from_s = self._until_s = 0.0
        self._from_c = build.heat.settles_c(build.idle_watts) if build.heat is not None else ROOM_C
        self._from_j = 0.0
        self._watts = build.idle_watts

    def copy(self) -> Device:
        """Return a copy with the same state, which also draws the same random numbers."""
        twin = Device(self.build, self._stream.copy())
        twin.slow_factor, twin.is_hot, twin._watts = self.slow_factor, self.is_hot, self._watts
        twin._from_s, twin._until_s, twin._from_c, twin._from_j = (
            self._from_s,
            self._until_s,
            self._from_c,
            self._from_j,
        )
        return twin

    def at_rest(self, now_s: float) -> DeviceRest:
        """Return the state to keep of a device that will only idle from now on."""
        self.interrupt(now_s)
        return DeviceRest(self._from_s, self._from_c, self._from_j, self.is_hot, self._stream.state)

    @classmethod
    def rested(cls, build: Build, rest: DeviceRest) -> Device:
        """Restore a device from its state at rest, cooled down since."""
        device = cls(build, Stream(rest.stream))
        device._from_s = device._until_s = rest.since_s
        device._from_c, device._from_j, device.is_hot = rest.temperature_c, rest.spent_j, rest.is_hot
        return device

    # Work ------------------------------------------------------------------------------------------

    def seconds_for(self, work: ComputeJob, now_s: float) -> float:
        """Begin a piece of work, and return how long it will take. Charges its energy and heat.

        ``now_s`` is when it begins, which may be in the future if it waits for other work. Work that begins before the
        last one is over ends that one: a device does one at a time.
        """
        build = self.build
        seconds = (
            work.gmacs_per_example * work.examples * build.seconds_per_gmac + work.batches * build.seconds_per_batch
        )
        if not work.trains:
            seconds *= EVALUATE_SHARE
        if work.judged_examples:
            compute_s = work.gmacs_per_example * work.judged_examples * build.seconds_per_gmac
            seconds += EVALUATE_SHARE * (compute_s + work.judged_batches * build.seconds_per_batch)
        if build.jitter:
            seconds *= self._stream.lognormal(1.0, build.jitter)
        seconds *= self.slow_factor
        self.interrupt(now_s)
        watts, heat = build.train_watts, build.heat
        if heat is not None:
            self.is_hot = self._from_c >= heat.limit_c - (RELIEF_C if self.is_hot else 0.0)
            if self.is_hot:
                seconds *= heat.slowdown
                # A slower clock draws less. The model leaves out that a lower voltage would save still more.
                watts = build.idle_watts + (watts - build.idle_watts) / heat.slowdown
        self._watts, self._until_s = watts, self._from_s + seconds
        return seconds

    def interrupt(self, now_s: float) -> None:
        """Stop the current work. The rest of it is neither done nor charged."""
        energy_j, temperature_c = self.spent_j(now_s), self.temperature_c(now_s)
        self._from_s = self._until_s = max(now_s, self._from_s)
        self._from_j, self._from_c = energy_j, temperature_c

    def can_hold(self, model_bytes: int) -> bool:
        """Whether a trainer with a model of this size fits into its memory."""
        return TRAINER_MB + MODEL_COPIES * model_bytes / _BYTES_PER_MB <= self.build.memory_mb

    # Energy and heat -------------------------------------------------------------------------------

    @property
    def energy_j(self) -> float:
        """The energy charged to the end of the last work."""
        return self.spent_j(self._until_s)

    def spent_j(self, now_s: float) -> float:
        """Return the energy that it used until now, including idle time."""
        working_s, idle_s = self._since(now_s)
        return self._from_j + working_s * self._watts + idle_s * self.build.idle_watts

    def battery_left_wh(self, now_s: float) -> float:
        """Return the charge left in the battery, or infinity on the mains."""
        if not self.build.battery_wh:
            return math.inf
        return max(0.0, self.build.battery_wh - self.spent_j(now_s) / _JOULES_PER_WH)

    def is_empty(self, now_s: float) -> bool:
        return self.battery_left_wh(now_s) <= 0

    def temperature_c(self, now_s: float) -> float:
        heat = self.build.heat
        if heat is None:
            return ROOM_C
        working_s, idle_s = self._since(now_s)
        warm_c = heat.after_c(self._from_c, self._watts, working_s)
        return heat.after_c(warm_c, self.build.idle_watts, idle_s)

    def _since(self, now_s: float) -> tuple[float, float]:
        """Return the seconds of work and then of idling since the last work began, or 0 before any."""
        worked_s = min(now_s, self._until_s) - self._from_s
        return max(0.0, worked_s), max(0.0, now_s - self._until_s)

    # Presence --------------------------------------------------------------------------------------

    def is_present(self, now_s: float) -> bool:
        presence = self.build.presence
        return presence is None or presence.is_present(now_s)

    def next_change_s(self, now_s: float) -> float | None:
        """Return when it comes or goes next, or None if it never does."""
        presence = self.build.presence
        return None if presence is None else presence.next_change_s(now_s)
