"""When each device of a fleet is there, as recorded of real phones. Knows nothing of what they do then.

FLASH recorded 723 phones for 241 half hours: idle, charging and on Wi-Fi, or not, or not known, which counts as not. A
device of the fleet is a drawn one of these, shifted by a drawn part of the half hour: the record does not say when
within it a phone came.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.errors import Misuse
from shoal.sim.rng import Rng

STEP_S = 1800

#: From six in the evening to six in the evening, by the record's clock: the night's peak and the fall after it are in
#: the middle. Of the days recorded, the one with the fewest gaps.
FIRST_HALF_HOUR, HALF_HOURS = 84, 48

#: Of one device, one after the other: it is there from the one to the other.
Spans = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    #: Of each device.
    spans: list[Spans]
    window_s: float

    @property
    def available_s(self) -> float:
        """All devices together."""
        return sum(end_s - start_s for spans in self.spans for start_s, end_s in spans)


def recorded() -> np.ndarray:
    """Half hours x phones: is it there?"""
    directory = os.environ.get("SHOAL_DATA", "")
    path = Path(directory) / "devices" / "flash_e5_availability_matrix.npy"
    if not directory or not path.exists():
        raise Misuse("the record of phones is not there: set SHOAL_DATA to a directory with devices/" + path.name)
    present: np.ndarray = np.nan_to_num(np.load(path)) > 0
    return present


def fleet(present: np.ndarray, devices: int, *, rng: Rng, first: int, half_hours: int, shift_s: int) -> Fleet:
    """So many devices that follow the rows from ``first`` on; each shifted by less than ``shift_s``, from 0 to a half
    hour. With 0 all that come in a half hour come at its beginning, at once."""
    if not 0 <= shift_s <= STEP_S or first < 0 or first + half_hours >= len(present):
        raise Misuse(f"a shift of {shift_s} s, rows {first} to {first + half_hours} of {len(present)}: there are fewer")
    window_s = float(half_hours * STEP_S)
    # One row more than is played: shifted by nearly a half hour, a device reaches into it.
    changes = [_changes(column) for column in present[first : first + half_hours + 1].T]
    stream = rng.stream("fleet")
    spans = []
    for _ in range(devices):
        recorded_s, earlier_s = stream.pick(changes), stream.random() * shift_s
        shifted = ((max(0.0, from_s - earlier_s), min(window_s, to_s - earlier_s)) for from_s, to_s in recorded_s)
        spans.append(tuple((from_s, to_s) for from_s, to_s in shifted if to_s > from_s))
    return Fleet(spans=spans, window_s=window_s)


def _changes(column: np.ndarray) -> Spans:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], column.astype(np.int8), [0]))))
    return tuple((float(from_ * STEP_S), float(to * STEP_S)) for from_, to in zip(edges[::2], edges[1::2], strict=True))
