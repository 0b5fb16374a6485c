"""Which requests for work are accepted, with how much, and when the others shall ask again. Pure state.

FLeet §2.1 and §2.4: request -> size (the profilers) -> similarity -> the controller's thresholds -> task. A threshold
is a percentile of what was asked lately: the smallest so many of a hundred tasks are refused, and the most similar
(§3.5, Figure 15: the small ones are hardly missed). With ``utility_percentile`` the least useful by Oort are refused
too, but for a drawn few who are tried all the same. When refused devices return is ``steering``.
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

#: Requests that percentiles are of.
WINDOW = 500
#: With fewer, there are no thresholds yet.
ENOUGH = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRequest:
    """A device asks for work."""

    features: Features
    #: What it has to train on.
    examples_held: int
    #: How alike its labels are to what was learned from so far, from 0 to 1; None: not told.
    similarity: float | None = None
    #: What a task may take of this device, by the name of a budget, where that differs from the budget's own; None: as
    #: much as it takes.
    budgets: Mapping[str, float | None] = field(default_factory=dict)
    #: What its update is worth (``utility.oort_utility``); None: not known, as of one that never trained.
    utility: float | None = None

    def __post_init__(self) -> None:
        if self.examples_held < 0:
            raise Misuse(f"a device cannot hold {self.examples_held} examples")
        if self.similarity is not None and not 0 <= self.similarity <= 1:
            raise Misuse(f"similarity is from 0 to 1, not {self.similarity}; None if not told")
        if self.utility is not None and not (math.isfinite(self.utility) and self.utility >= 0):
            raise Misuse(f"utility is 0 or more, not {self.utility}; None if not known")


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
    """What is refused, in hundredths of the requests; 0 refuses none for that reason."""

    size_percentile: float = 0.0
    similarity_percentile: float = 0.0
    utility_percentile: float = 0.0
    #: Of those whose utility is too low, so many are accepted: utilities are old, and devices change.
    explore: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.size_percentile, self.similarity_percentile, self.utility_percentile)
        if not all(0 <= share < 100 for share in shares) or not 0 <= self.explore <= 1:
            raise Misuse("percentiles are from 0 to below 100, and explore is from 0 to 1")


class Recent:
    """The last values of one kind. All that were asked count, not only what was accepted: else a threshold would be a
    percentile of what passed it, and rise for ever."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        self._values.append(value)

    def percentile(self, percent: float) -> float | None:
        """None while there are too few."""
        return float(np.percentile(np.array(self._values), percent)) if len(self._values) >= ENOUGH else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a task may take of one thing, and who knows what it takes."""

    profiler: Profiler
    #: None if each request names its own.
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
        """``budgets``: by name, such as "time" and "energy"; the smallest size holds. ``unsized``: the examples of a
        task to which no budget applies."""
        if not budgets:
            raise Misuse("a task is sized by at least one budget")
        self._budgets = dict(budgets)
        self._steering = steering
        self._rules = rules or Rules()
        self._unsized = unsized
        self._sizes, self._similarities, self._utilities = Recent(), Recent(), Recent()

    def decide(self, request: WorkRequest, *, now_s: float, draw: float) -> Accepted | RequestRefused:
        """``draw``: a number in [0, 1) from the caller's chance."""
        device = request.features.device
        if not self._steering.arrives(device, now_s=now_s):
            refused = "more devices ask than the pace allows"
        else:
            examples, why = self._size(request)
            # Thresholds are of the past: what is asked now is judged by them, then counts.
            refused = self._why_not(request, examples, draw)
            self._count(request, examples)
            if not refused:
                self._steering.lends(device, now_s=now_s)
                return Accepted(examples=examples, reason=why)
        return RequestRefused(retry_after_s=self._steering.appoint(device, now_s=now_s, draw=draw), reason=refused)

    def done(self, features: Features, examples: int, spent: Mapping[str, float]) -> None:
        """A task took this much of each thing, by the name of its budget; what was not measured is left out."""
        for name, amount in spent.items():
            if name not in self._budgets:
                raise Misuse(f"there is no budget {name!r}: there are {', '.join(self._budgets)}")
            self._budgets[name].profiler.observed(features, examples, amount)

    def snapshot(self) -> dict[str, np.ndarray]:
        """What profilers have learned, under the names of their budgets."""
        return {
            f"{name}.{key}": array
            for name, each in self._budgets.items()
            for key, array in each.profiler.snapshot().items()
        }

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:
        """Go on from a snapshot; raises Misuse where it is none. A budget that it does not know begins with nothing."""
        for name, each in self._budgets.items():
            start = f"{name}."
            own = {key.removeprefix(start): array for key, array in learned.items() if key.startswith(start)}
            each.profiler.restore(own)

    def come_again_s(self, device: str, *, now_s: float, draw: float) -> float:
        """When one that has done its work shall ask for more."""
        return self._steering.appoint(device, now_s=now_s, draw=draw)

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
        """Empty: it is accepted."""
        rules = self._rules
        if not examples:
            return "it has no examples"
        # Less or more than the threshold, not equal to it: where all are alike, all are accepted.
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
