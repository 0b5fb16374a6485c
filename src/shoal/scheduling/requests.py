"""Which requests for work are accepted, with how many examples, and when the other devices should ask again. Pure
state.

FLeet §2.1 and §2.4: request -> size (the profilers) -> similarity -> the controller's thresholds -> task. A threshold
is a percentile of recent requests: the smallest tasks and the most similar labels are refused (§3.5, Figure 15 shows
that the small ones are hardly missed). With ``utility_percentile`` the requests with the lowest utility by Oort are
refused too, except for a random share of them. ``steering`` decides when refused devices return.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import FIRST_EXAMPLES, Profiler, check_budget
from shoal.scheduling.steering import Steering

#: Recent requests that the percentiles are computed over.
WINDOW = 500
#: With fewer requests there are no thresholds yet.
ENOUGH = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRequest:
    """A device's request for work."""

    features: Features
    #: Examples that the device can train on.
    examples_held: int
    #: Similarity of its labels to the labels trained on so far, from 0 to 1, or None if the device does not report it.
    similarity: float | None = None
    #: What a task may cost this device, by the name of a budget, where that differs from the budget's own value. None
    #: means no limit.
    budgets: Mapping[str, float | None] = field(default_factory=dict)
    #: The utility of its update (``utility.oort_utility``), or None if unknown, as for a device that never trained.
    utility: float | None = None

    def __post_init__(self) -> None:
        if self.examples_held < 0:
            raise Misuse(f"examples_held is {self.examples_held}; it must be 0 or more")
        if self.similarity is not None and not 0 <= self.similarity <= 1:
            raise Misuse(
                f"similarity is {self.similarity}; it must be from 0 to 1, or None if the device does not report it"
            )
        if self.utility is not None and not (math.isfinite(self.utility) and self.utility >= 0):
            raise Misuse(f"utility is {self.utility}; it must be 0 or more, or None if unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    examples: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRefused:
    retry_after_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Percentage of requests to refuse for each reason. 0 refuses none for that reason."""

    size_percentile: float = 0.0
    similarity_percentile: float = 0.0
    utility_percentile: float = 0.0
    #: Share of requests with too low a utility that are accepted anyway: utilities are old, and devices change.
    explore: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.size_percentile, self.similarity_percentile, self.utility_percentile)
        if not all(0 <= share < 100 for share in shares) or not 0 <= self.explore <= 1:
            raise Misuse("set percentiles from 0 to below 100, and explore from 0 to 1")


class Recent:
    """The last values of one kind. All requests count, not only accepted ones. Otherwise a threshold would be a
    percentile of the values above itself, and would rise for ever."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        self._values.append(value)

    def percentile(self, percent: float) -> float | None:
        """Return the percentile, or None while there are too few values."""
        return float(np.percentile(np.array(self._values), percent)) if len(self._values) >= ENOUGH else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limit of one resource per task, and the profiler that predicts what a task takes of it."""

    profiler: Profiler
    #: The limit, or None if each request has its own.
    budget: float | None

    def __post_init__(self) -> None:
        if self.budget is not None:
            check_budget(self.budget)


class Intake:
    """Decides on requests, one after the other."""

    def __init__(
        self,
        budgets: Mapping[str, Budget],
        *,
        steering: Steering,
        rules: Rules | None = None,
        unsized: int = FIRST_EXAMPLES,
    ) -> None:
        """``budgets``: by name, such as "time" and "energy"; the smallest resulting size applies. ``unsized``: the
        examples of a task to which no budget applies."""
        if not budgets:
            raise Misuse("set at least one budget to size tasks")
        self._budgets = dict(budgets)
        self._steering = steering
        self._rules = rules or Rules()
        self._unsized = unsized
        self._sizes, self._similarities, self._utilities = Recent(), Recent(), Recent()

    def decide(self, request: WorkRequest, *, now_s: float, draw: float) -> Accepted | RequestRefused:
        """Accept or refuse a request. ``draw`` is a random number in [0, 1)."""
        device = request.features.device
        if not self._steering.arrives(device, now_s=now_s):
            refused = "more devices ask than the pace allows"
        else:
            examples, why = self._size(request)
            # Thresholds come from earlier requests: compare this request with them first, and count it afterwards.
            refused = self._why_not(request, examples, draw)
            self._count(request, examples)
            if not refused:
                self._steering.lends(device, now_s=now_s)
                return Accepted(examples=examples, reason=why)
        return RequestRefused(retry_after_s=self._steering.appoint(device, now_s=now_s, draw=draw), reason=refused)

    def done(self, features: Features, examples: int, spent: Mapping[str, float]) -> None:
        """Record what a task took of each resource, by the name of its budget. Resources that were not measured are
        missing."""
        for name, amount in spent.items():
            if name not in self._budgets:
                raise Misuse(f"budget {name!r} does not exist; the budgets are {', '.join(self._budgets)}")
            self._budgets[name].profiler.observed(features, examples, amount)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the profilers' learned state, by the names of their budgets."""
        return {
            f"{name}.{key}": array
            for name, each in self._budgets.items()
            for key, array in each.profiler.snapshot().items()
        }

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:
        """Restore a snapshot. Raises Misuse if it is invalid. A budget that the snapshot does not have starts from
        nothing."""
        for name, each in self._budgets.items():
            start = f"{name}."
            own = {key.removeprefix(start): array for key, array in learned.items() if key.startswith(start)}
            each.profiler.restore(own)

    def _size(self, request: WorkRequest) -> tuple[int, str]:
        budgets = {name: each.budget for name, each in self._budgets.items()} | dict(request.budgets)
        sizings = {
            name: self._budgets[name].profiler.decide(request.features, budget)
            for name, budget in budgets.items()
            if budget is not None
        }
        if not sizings:
            return min(request.examples_held, self._unsized), "no budget applies to it"
        name = min(sizings, key=lambda name: sizings[name].examples)
        if request.examples_held <= sizings[name].examples:
            return request.examples_held, f"all it has; {name} would allow {sizings[name].examples}"
        return sizings[name].examples, f"{name}: {sizings[name].reason}"

    def _why_not(self, request: WorkRequest, examples: int, draw: float) -> str:
        """Return why the request is refused, or an empty text if it is accepted."""
        rules = self._rules
        if not examples:
            return "it has no examples"
        # Strictly below or above the threshold: if all requests are equal, all are accepted.
        least = self._sizes.percentile(rules.size_percentile) if rules.size_percentile else None
        if least is not None and examples < least:
            return f"{examples} examples: {rules.size_percentile:g} % of requests are below {least:.0f}"
        alike = rules.similarity_percentile
        most = self._similarities.percentile(100 - alike) if alike else None
        if most is not None and request.similarity is not None and request.similarity > most:
            return f"similarity {request.similarity:.2f}: {alike:g} % of requests are above {most:.2f}"
        useful = self._utilities.percentile(rules.utility_percentile) if rules.utility_percentile else None
        if useful is not None and request.utility is not None and request.utility < useful and draw >= rules.explore:
            return f"utility {request.utility:.3g}: {rules.utility_percentile:g} % of requests are below {useful:.3g}"
        return ""

    def _count(self, request: WorkRequest, examples: int) -> None:
        self._sizes.add(examples)
        if request.similarity is not None:
            self._similarities.add(request.similarity)
        if request.utility is not None:
            self._utilities.add(request.utility)
