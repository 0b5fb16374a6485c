"""How often each parameter moved since a version: AdaComp's staleness for each place. Numpy only; knows no updates.

The staleness of a sparse update differs from place to place: σ_k is how many of the versions made since the one it was
made against moved parameter k. The paper keeps the places of all those versions and searches each of them, τ·c·|Θ| for
an update; with a counter for each place, σ_k is what it counts now less what it counted then.

What it counted then is kept as snapshots, some versions apart, together with the places of the versions in between.
A walk from the nearest snapshot is exact and at most half as many lists long as snapshots are apart, whatever τ is and
however many workers there are. Of older versions the places are gone and snapshots stay, ever fewer the older they
are: between two of them, a count is taken to have grown evenly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: Versions whose places are kept, and versions from one snapshot to the next.
EXACT_VERSIONS = 512
APART_VERSIONS = 64

#: Places kept for each parameter: of updates that name 1 % of them 512 versions are 5, of those with 10 % it is 80.
ENTRIES_PER_PLACE = 8

#: Snapshots thin out so often, each time for ages twice as old; with 512 versions kept, the last are 32,768 old.
AGES = 6

#: How much farther apart snapshots of the first of these ages are: two of them are left in each age of 512 versions.
_THINNER = 4


def scale_of(touched: np.ndarray) -> np.ndarray:
    """α_k / α = 1 / max(1, σ_k): what an update is worth at each place   (AdaComp, equations 4 and 5)."""
    scales: np.ndarray = np.float32(1) / np.maximum(touched, 1).astype(np.float32)
    return scales


@dataclass(frozen=True, slots=True)
class _Snapshot:
    version: int
    counts: np.ndarray
    #: Versions that moved everything are counted once, not at every place.
    everywhere: int


class ParameterStaleness:
    """Counts, for each place of a model, the versions that moved it.

    ``note`` takes the time of the places it is given, and now and then a copy of a counter for every place; ``since``
    that of its places, times half the snapshots' distance. Memory is at most ``bytes_max``, which no number of workers
    and no age of an update adds to: with the constants of this file, 152 bytes a place.
    """

    def __init__(
        self,
        size: int,
        *,
        version: int = 0,
        exact_versions: int = EXACT_VERSIONS,
        apart_versions: int = APART_VERSIONS,
        entries_per_place: int = ENTRIES_PER_PLACE,
    ) -> None:
        """``version`` is the first one: what moved before is not known."""
        if size < 1:
            raise Misuse(f"a model has at least one place, not {size}")
        if version < 0:
            raise Misuse(f"versions count from 0, not {version}")
        if not 1 <= apart_versions <= exact_versions:
            raise Misuse(f"snapshots {apart_versions} versions apart, of {exact_versions}: at least 1, at most all")
        if entries_per_place < 1:
            raise Misuse(f"at least one entry a place is kept, not {entries_per_place}")
        self._first = self._version = version
        self._exact, self._apart = exact_versions, apart_versions
        self._entries_max = entries_per_place * size
        self._counts = np.zeros(size, dtype=np.uint32)
        self._everywhere = 0
        #: What each of the last versions moved; None is everything.
        self._moved: deque[np.ndarray | None] = deque()
        self._entries = 0
        #: Oldest first; the first of all is never thinned out, so that something lies before every version.
        self._snapshots = [_Snapshot(version, self._counts.copy(), 0)]
        self._scratch = np.zeros(size, dtype=np.uint32)

    @property
    def size(self) -> int:
        return self._counts.size

    @property
    def version(self) -> int:
        return self._version

    @property
    def exact_from(self) -> int:
        """Since this version and any later one counts are exact, as they are since the version of a snapshot."""
        return self._version - len(self._moved)

    @property
    def nbytes(self) -> int:
        """The bytes held now."""
        arrays = [self._counts, self._scratch, *(snapshot.counts for snapshot in self._snapshots)]
        each = {id(array): array.nbytes for array in arrays}
        return sum(each.values()) + self._entries * self._counts.itemsize

    @property
    def bytes_max(self) -> int:
        """The most bytes that are ever held."""
        young = self._exact // self._apart + 1
        old = AGES * (self._exact // (self._apart * _THINNER) + 1)
        # The counter, the scratch and the first snapshot besides.
        return self._counts.itemsize * ((young + old + 3) * self.size + self._entries_max)

    def note(self, places: np.ndarray | None) -> None:
        """Record a new version that changed these places, which ascend, or all places if it is None."""
        if places is None:
            self._everywhere += 1
            self._moved.append(None)
        else:
            self._check(places)
            self._counts[places] += np.uint32(1)
            self._moved.append(places.astype(np.uint32))
            self._entries += places.size
        self._version += 1
        while len(self._moved) > self._exact or self._entries > self._entries_max:
            gone = self._moved.popleft()
            self._entries -= 0 if gone is None else gone.size
        if (self._version - self._first) % self._apart == 0:
            self._take_snapshot()

    def since(self, version: int, places: np.ndarray | None) -> np.ndarray:
        """σ_k of these places, or of all: how many versions after this one moved k   (AdaComp, equation 3).

        Exact from ``exact_from`` on. Before, it is never more than the versions in between and never fewer than since
        the next snapshot. What came before the first version is taken to have moved everything: it is not known, and
        an update that is damped too much does less harm than one that is damped too little.
        """
        if version > self._version:
            raise Misuse(f"since version {version}: the newest is {self._version}")
        if version < self._first:
            return self.since(self._first, places) + (self._first - version)
        if places is not None and places.size and not 0 <= int(places.min()) <= int(places.max()) < self.size:
            raise Misuse(f"places {places.min()} to {places.max()} of {self.size}")
        now = _counted(self._counts, self._everywhere, places)
        counted: np.ndarray = now - self._then(version, places, now)
        return counted

    # What was counted then ------------------------------------------------------------------------

    def _then(self, version: int, places: np.ndarray | None, now: np.ndarray) -> np.ndarray:
        after = bisect_right(self._snapshots, version, key=lambda snapshot: snapshot.version)
        older = self._snapshots[after - 1]
        before = _counted(older.counts, older.everywhere, places)
        if older.version == version:
            return before
        newer_version, behind = self._version, now
        if after < len(self._snapshots):
            newer = self._snapshots[after]
            newer_version, behind = newer.version, _counted(newer.counts, newer.everywhere, places)
        then: np.ndarray
        if version - older.version <= newer_version - version and older.version >= self.exact_from:
            then = before + self._walked(older.version, version, places)
        elif version >= self.exact_from:
            then = behind - self._walked(version, newer_version, places)
        else:
            then = _between(before, behind, version - older.version, newer_version - version)
        return then

    def _walked(self, start: int, stop: int, places: np.ndarray | None) -> np.ndarray:
        """Return how often places moved in the versions after ``start`` up to ``stop``, from the lists of places."""
        first = self.exact_from
        lists = [self._moved[number - first] for number in range(start, stop)]
        named = [moved for moved in lists if moved is not None]
        for moved in named:
            self._scratch[moved] += np.uint32(1)
        counted = _counted(self._scratch, len(lists) - len(named), places)
        for moved in named:
            self._scratch[moved] = 0
        return counted

    # Snapshots ------------------------------------------------------------------------------------

    def _take_snapshot(self) -> None:
        last = self._snapshots[-1]
        recent = (self._moved[-number] for number in range(1, min(self._apart, len(self._moved)) + 1))
        # If every version moved all places, the counts have not changed relative to each other: nothing is copied.
        same = len(self._moved) >= self._apart and all(moved is None for moved in recent)
        counts = last.counts if same else self._counts.copy()
        self._snapshots.append(_Snapshot(self._version, counts, self._everywhere))
        self._snapshots[1:] = [snapshot for snapshot in self._snapshots[1:] if self._stays(snapshot.version)]

    def _stays(self, version: int) -> bool:
        """Whether a snapshot is kept: all of recent versions are. Each older range is twice as long and keeps half as
        many."""
        age = self._version - version
        if age <= self._exact:
            return True
        farther = _THINNER << ((age - 1) // self._exact).bit_length() - 1
        return farther < _THINNER << AGES and (version - self._first) // self._apart % farther == 0

    def _check(self, places: np.ndarray) -> None:
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise Misuse(f"places are a row of whole numbers, not {places.dtype} {places.shape}")
        if places.size and not 0 <= int(places[0]) <= int(places[-1]) < self.size:
            raise Misuse(f"places {places[0]} to {places[-1]} of {self.size}")
        if places.size > 1 and not (places[1:] > places[:-1]).all():
            raise Misuse("places ascend, each at most once: sort them")


def _counted(counts: np.ndarray, everywhere: int, places: np.ndarray | None) -> np.ndarray:
    """Return the counts of these places, or of all if it is None."""
    counted: np.ndarray = (counts if places is None else counts[places]).astype(np.int64)
    counted += everywhere
    return counted


def _between(before: np.ndarray, behind: np.ndarray, after_older: int, to_newer: int) -> np.ndarray:
    """A count that grew evenly, as far as one version adds at most one to it."""
    evenly = before + (behind - before) * after_older // (after_older + to_newer)
    possible: np.ndarray = np.clip(
        evenly, np.maximum(before, behind - to_newer), np.minimum(behind, before + after_older)
    )
    return possible
