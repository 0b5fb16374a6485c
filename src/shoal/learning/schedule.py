"""A schedule of the learning rate by its text, such as ``warmup 20 cosine 2000``. Pure; no numpy, below plans.

A schedule is a factor for each version, at most 1 and never 0: version v is trained on with the rate times
``factor(v)``. Its phases follow one another, each counted in versions:

    [warmup N] [constant [N]] [cosine N | linear N | step N xF]

``warmup`` climbs in equal steps and is at 1 in its last version. ``cosine`` and ``linear`` fall from 1 to ``FLOOR`` and
stay there: a rate of 0 would keep devices busy with leases that change nothing. ``step`` multiplies by F after every N
versions. After a ``constant`` without a number nothing else can come.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from shoal.errors import Misuse

#: What a person may write, for errors and help.
GRAMMAR = (
    "warmup N, constant or constant N, then one of cosine N, linear N or step N xF, each at most once and in this"
    " order, as in 'warmup 20 cosine 2000' or 'step 500 x0.1'; N counts versions"
)

#: The share of the rate at which ``cosine`` and ``linear`` end.
FLOOR = 0.01
#: ``step`` goes no lower: the rate stays a number that a float32 can tell from 0.
STEP_FLOOR = 1e-6

VERSIONS_MAX = 10**9
TEXT_MAX_CHARS = 80

#: Of a text with a space before it.
_SCHEDULE = re.compile(
    r"(?: warmup (?P<warmup>\d{1,10}))?"
    r"(?P<constant> constant(?: (?P<level>\d{1,10}))?)?"
    r"(?: (?P<fall>cosine|linear|step) (?P<over>\d{1,10})(?: x(?P<by>\d?\.\d{1,9}|1))?)?",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The phases of a schedule. A phase of 0 versions is absent."""

    warmup: int = 0
    #: Versions at 1 before the rate falls.
    level: int = 0
    #: ``cosine``, ``linear`` or ``step``. Empty if the rate never falls.
    fall: str = ""
    over: int = 0
    #: The factor of each ``step``.
    by: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse a schedule. An empty text is a constant rate. Raises Misuse if the text is not a schedule."""
        return _parsed(text)

    def factor(self, version: int) -> float:
        """Return the factor of the rate for a version's leases, or for the step from it to the next version."""
        if version < self.warmup:
            return (version + 1) / self.warmup
        fallen = version - self.warmup - self.level
        if fallen <= 0 or not self.fall:
            return 1.0
        if self.fall == "step":
            # Compared as logarithms first, because a power of many steps would underflow to 0.
            steps = fallen // self.over
            return max(STEP_FLOOR, self.by**steps if steps * math.log(self.by) > math.log(STEP_FLOOR) else 0.0)
        share = min(1.0, fallen / self.over)
        left = (1.0 + math.cos(math.pi * share)) / 2.0 if self.fall == "cosine" else 1.0 - share
        return FLOOR + (1.0 - FLOOR) * left


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Schedule:
    found = _SCHEDULE.fullmatch(f" {text}" if text else "") if len(text) <= TEXT_MAX_CHARS else None
    if found is None:
        raise Misuse(f"schedule = {text[:TEXT_MAX_CHARS]!r} is not a schedule that Shoal knows; write {GRAMMAR}")
    counts = {name: int(found[name]) for name in ("warmup", "level", "over") if found[name] is not None}
    if any(not 1 <= count <= VERSIONS_MAX for count in counts.values()):
        raise Misuse(f"schedule = {text!r}: a phase takes from 1 to {VERSIONS_MAX} versions")
    if found["constant"] and found["fall"] and not found["level"]:
        raise Misuse(f"schedule = {text!r}: say for how many versions it is constant, as in 'constant 100 linear 50'")
    if (found["fall"] == "step") != (found["by"] is not None):
        raise Misuse(f"schedule = {text!r}: a step, and it alone, says what it multiplies by, as in 'step 500 x0.1'")
    by = float(found["by"] or 1)
    if not 0 < by <= 1:
        raise Misuse(f"schedule = {text!r}: a step multiplies by a number above 0 and at most 1, not {by:g}")
    return Schedule(**counts, fall=found["fall"] or "", by=by)
