"""Every product in this process, with numpy: the baseline of measurements and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shoal.offload.products import Array, Report, Secret, check


class AtHome:
    """Every product in this process, with numpy: the baseline, and the fallback."""

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._report = Report()

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        check(left, right)
        began_s = self._clock()
        result: Array = left @ right
        self._report = replace(
            self._report,
            products=self._report.products + 1,
            operations_home=self._report.operations_home + left.shape[0] * left.shape[1] * right.shape[1],
            seconds=self._report.seconds + self._clock() - began_s,
        )
        return result

    @property
    def report(self) -> Report:
        return self._report
