"""Divides one set of examples among devices, for experiments with data that differ from device to device. Numpy only.

A partition is a pure function of the labels, the number of devices and a seed. It draws from splitmix64, as the order
of batches does, so a simulation and the devices of a laboratory get the same rows without exchanging any.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from shoal.data.draws import dirichlet_shares, log_gammas, uniforms
from shoal.data.local import part
from shoal.errors import Misuse
from shoal.scheduling.batches import Indices, epoch_order, mix

#: A row that no device has.
NOBODY = -1

#: Each purpose has a stream of its own.
_ORDER, _DEAL, _WITHIN, _SHARES, _RANKS = range(1, 6)


class Parts(Sequence[Indices]):
    """The rows of each device as one array and its cuts: a hundred thousand devices take no objects."""

    def __init__(self, order: Indices, ends: Indices) -> None:
        """``ends``: where the rows of each device end in ``order``."""
        self._order = order
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> Indices: ...

    @overload
    def __getitem__(self, at: slice) -> list[Indices]: ...

    def __getitem__(self, at: int | slice) -> Indices | list[Indices]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        return self._order[self._ends[number - 1] if number else 0 : self._ends[number]]


@dataclass(frozen=True, slots=True)
class Partition(ABC):
    """How examples are divided among devices. ``str`` of it is what ``parse_partition`` reads."""

    @property
    def column(self) -> str:
        """The column of the examples that decides, or "" if only their number does."""
        return "y"

    def rows(self, values: Any, devices: int, *, seed: int = 0) -> Sequence[Indices]:
        """Return the rows of each device, in a shuffled order. No row is listed twice, unless they are ``drawn``.

        ``values`` are the values of ``column``, one a row: class numbers, unless the partition is ``by`` another.
        """
        # Numbers of numpy overflow where seeds are mixed.
        values, devices, seed = np.asarray(values), operator.index(devices), operator.index(seed)
        if values.ndim != 1:
            raise Misuse(f"{self} needs one value for each example; these have the shape {values.shape}")
        if devices < 1:
            raise Misuse(f"examples are divided among at least one device, not {devices}")
        return self._divided(values, devices, seed=seed)

    def _divided(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Parts:
        if len(values) < devices:
            raise Misuse(
                f"{len(values)} examples are too few for {devices} devices: each needs at least one. With"
                " drawn(20, 0.1), several devices may have the same example"
            )
        return _parts(self.owners(values, devices, seed=seed), devices, seed=seed)

    def here(self, values: Any, *, seed: int = 0) -> Indices:
        """Return the rows of this device, for ``Task.examples`` on a device that joined with ``--part``. All rows where
        no part is given, such as on the machine that starts the job."""
        mine = part()
        if mine is None:
            return np.arange(len(values))
        values = np.asarray(values)
        if values.dtype.hasobject:
            raise Misuse(f"{self} divides by numbers or texts, and these values are Python objects")
        index, devices = mine
        rows = _rows_here(self, values.tobytes(), values.dtype.str, values.shape, devices, index, seed)
        return rows.copy()

    @abstractmethod
    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        """Return the device of each row, counted from 0, or ``NOBODY``."""


@dataclass(frozen=True, slots=True)
class Iid(Partition):
    """Every device has a random sample, and all have as many rows, or one fewer."""

    @property
    def column(self) -> str:
        return ""

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        owners = np.empty(len(values), np.int64)
        owners[epoch_order(len(values), seed=mix(seed, _DEAL), epoch=0)] = np.arange(len(values)) % devices
        return owners

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True, slots=True)
class Dirichlet(Partition):
    """The rows of each class are divided among all devices by shares from a symmetric Dirichlet distribution
    (Yurochkin et al. 2019). A device that gets fewer than ``least`` rows takes some from whoever has the most."""

    alpha: float
    least: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise Misuse(f"dirichlet({self.alpha:g}): alpha is above 0; 0.1 is very unequal, 100 is nearly iid")
        if not isinstance(self.least, int | np.integer) or self.least < 0:
            raise Misuse(f"{self}: least is a whole number of rows, 0 or more")

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        if devices * self.least > len(values):
            raise Misuse(f"{self}: {len(values)} examples do not give {devices} devices {self.least} each")
        classes = _classes(values, self)
        owners = np.empty(len(values), np.int64)
        for number in range(int(classes.max()) + 1):
            of_class = np.flatnonzero(classes == number)
            shuffled = of_class[epoch_order(len(of_class), seed=mix(seed, _WITHIN), epoch=number)]
            shares = dirichlet_shares(self.alpha, devices, seed=mix(seed, _SHARES, number))
            ends = np.floor(shares[:-1] * len(shuffled)).astype(np.int64)
            owners[shuffled] = np.searchsorted(ends, np.arange(len(shuffled)), side="right")
        return _filled(owners, devices, least=self.least, seed=seed)

    def __str__(self) -> str:
        least = "" if self.least == 1 else f", least={self.least}"
        return f"dirichlet({_short(self.alpha)}{least})"


@dataclass(frozen=True, slots=True)
class Pathological(Partition):
    """The rows are sorted by class and cut into ``classes`` pieces a device, and each device is dealt
    ``classes`` of them (McMahan et al. 2017). So it has about that many classes."""

    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int | np.integer) or self.classes < 1:
            raise Misuse(f"{self}: the number of classes of a device is a whole number from 1")

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        pieces = devices * self.classes
        if pieces > len(values):
            raise Misuse(f"{self}: {len(values)} examples cannot be cut into {self.classes} pieces for each device")
        dealt = np.empty(pieces, np.int64)
        dealt[epoch_order(pieces, seed=mix(seed, _DEAL), epoch=0)] = np.arange(pieces) // self.classes
        owners = np.empty(len(values), np.int64)
        by_class = np.argsort(_classes(values, self), kind="stable")
        # In whole numbers: piece p has the places from p * rows / pieces on.
        owners[by_class] = dealt[np.arange(len(values)) * pieces // len(values)]
        return owners

    def __str__(self) -> str:
        return f"pathological({self.classes})"


@dataclass(frozen=True, slots=True)
class By(Partition):
    """Rows with the same value of a column, such as a writer, are on the same device. Where there are more values than
    devices, the values are dealt out."""

    name: str

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise Misuse('by("writer") names a column of the examples')

    @property
    def column(self) -> str:
        return self.name

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        found, group = np.unique(values, return_inverse=True)
        if len(found) < devices:
            raise Misuse(f"{self}: there are {len(found)} different values, too few for {devices} devices")
        dealt = np.empty(len(found), np.int64)
        dealt[epoch_order(len(found), seed=mix(seed, _DEAL), epoch=0)] = np.arange(len(found)) % devices
        owners: Indices = dealt[group.reshape(-1)]
        return owners

    def __str__(self) -> str:
        return f"by({json.dumps(self.name, ensure_ascii=False)})"


@dataclass(frozen=True, slots=True)
class Sizes(Partition):
    """Another partition with sizes that follow a power law: the device of rank k keeps a share k ** -power of its rows,
    at least one. Nobody has the rest. Ranks are drawn."""

    power: float
    base: Partition = field(default_factory=Iid)

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf:
            raise Misuse(f"sizes({self.power:g}): the power is a number from 0, such as 1.2")
        if not isinstance(self.base, Partition):
            raise Misuse("sizes(1.2, dirichlet(0.1)): the second argument is another partition")

    @property
    def column(self) -> str:
        return self.base.column

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        owners = self.base.owners(values, devices, seed=seed).copy()
        ranks = epoch_order(devices, seed=mix(seed, _RANKS), epoch=0) + 1
        for rank, rows in zip(ranks.tolist(), _parts(owners, devices, seed=seed), strict=True):
            # A large power makes the share of a rank 0.
            owners[rows[max(1, math.ceil(len(rows) * rank**-self.power)) :]] = NOBODY
        return owners

    def __str__(self) -> str:
        return f"sizes({_short(self.power)}, {self.base})"


@dataclass(frozen=True, slots=True)
class DrawnRows(Partition):
    """Each device draws ``count`` rows with replacement: first a class, by its own shares from a symmetric Dirichlet
    distribution, then a row of that class (after Hsu et al. 2019). Several devices may have the same row."""

    count: int
    alpha: float

    def __post_init__(self) -> None:
        if not isinstance(self.count, int | np.integer) or self.count < 1:
            raise Misuse(f"{self}: each device draws a whole number of rows, 1 or more, such as drawn(20, 0.1)")
        if not 0 < self.alpha < math.inf:
            raise Misuse(f"{self}: alpha is above 0; 0.1 is very unequal, 100 is nearly iid")

    def _divided(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Parts:
        if not len(values):
            raise Misuse(f"{self}: there are no examples to draw from")
        classes = _classes(values, self)
        sizes = np.bincount(classes)
        logs = log_gammas(self.alpha, devices * len(sizes), seed=mix(seed, _SHARES)).reshape(devices, len(sizes))
        ends = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
        chances = uniforms(devices * self.count, seed=mix(seed, _DEAL)).reshape(devices, self.count) * ends[:, -1:]
        chosen = np.zeros((devices, self.count), np.int64)
        for number in range(len(sizes) - 1):
            chosen += chances >= ends[:, number : number + 1]
        places = uniforms(chosen.size, seed=mix(seed, _WITHIN)).reshape(chosen.shape)
        by_class, firsts = np.argsort(classes, kind="stable"), np.cumsum(sizes) - sizes
        rows = by_class[firsts[chosen] + (places * sizes[chosen]).astype(np.int64)]
        return Parts(rows.reshape(-1), self.count * np.arange(1, devices + 1))

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Indices:
        raise Misuse(f"{self} gives a row to several devices, which sizes(...) cannot cut: all draw the same number")

    def __str__(self) -> str:
        return f"drawn({self.count}, {_short(self.alpha)})"


# As a task's author writes them -----------------------------------------------------------------------------


def iid() -> Partition:
    """A random sample for each device, all of one size."""
    return Iid()


def dirichlet(alpha: float, *, least: int = 1) -> Partition:
    """Each class is divided by shares from Dirichlet(alpha): 0.1 is very unequal, 100 nearly iid. Every device has at
    least ``least`` rows."""
    return Dirichlet(alpha, least)


def pathological(classes_per_device: int) -> Partition:
    """About this many classes on each device: rows sorted by class, cut, and dealt (McMahan et al. 2017)."""
    return Pathological(classes_per_device)


def by(column: str) -> Partition:
    """Rows with the same value of this column, such as a writer, on the same device."""
    return By(column)


def drawn(count: int, alpha: float) -> Partition:
    """``count`` rows for each device, drawn with replacement: its classes by shares from Dirichlet(alpha). For more
    devices than the examples are enough for: several of them may have the same row."""
    return DrawnRows(count, alpha)


def sizes(power: float, base: Partition | None = None) -> Partition:
    """Another partition, ``iid()`` by default, of which the device of rank k keeps a share k ** -power."""
    return Sizes(power, base if base is not None else Iid())


def hash_of(parts: Sequence[Indices]) -> str:
    """Return a SHA-256 of the rows of all devices, which names a partition in a file of results."""
    digest = hashlib.sha256()
    for rows in parts:
        digest.update(len(rows).to_bytes(8, "little"))
        digest.update(rows.astype("<i8").tobytes())
    return digest.hexdigest()


def _short(number: float) -> str:
    """Return a number as a person writes it, without losing a digit."""
    text = f"{number:g}"
    return text if float(text) == number else repr(float(number))


# What they share --------------------------------------------------------------------------------------------


def _parts(owners: Indices, devices: int, *, seed: int) -> Parts:
    """Return the rows of each device. They are shuffled, since a device takes its last rows for its newest."""
    order = epoch_order(len(owners), seed=mix(seed, _ORDER), epoch=0)
    order = order[owners[order] != NOBODY]
    order = order[np.argsort(owners[order], kind="stable")]
    counts = np.bincount(owners[order], minlength=devices)
    return Parts(order, np.cumsum(counts))


@functools.lru_cache(maxsize=4)
def _rows_here(
    partition: Partition, values: bytes, dtype: str, shape: tuple[int, ...], devices: int, index: int, seed: int
) -> Indices:
    """Return the rows of one device. Remembered: a task is asked for its examples before every lease."""
    return partition.rows(np.frombuffer(values, dtype).reshape(shape), devices, seed=seed)[index]


def _filled(owners: Indices, devices: int, *, least: int, seed: int) -> Indices:
    """Give devices with fewer than ``least`` rows some of whoever has the most at that moment."""
    counts = np.bincount(owners, minlength=devices).tolist()
    parts = _parts(owners, devices, seed=seed)
    largest = [(-count, device) for device, count in enumerate(counts)]
    heapq.heapify(largest)
    filled = owners.copy()
    for device in [device for device, count in enumerate(counts) if count < least]:
        for _ in range(least - counts[device]):
            _, giver = heapq.heappop(largest)
            counts[giver] -= 1
            filled[parts[giver][counts[giver]]] = device
            heapq.heappush(largest, (-counts[giver], giver))
    return filled


def _classes(values: np.ndarray[Any, Any], partition: Partition) -> Indices:
    """Return the class of each row, counted from 0 in the order of the labels."""
    if values.dtype.kind not in "biuU":
        raise Misuse(
            f"{partition} goes by classes, and the labels are {values.dtype}: divide these examples with iid or"
            ' by("column")'
        )
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
