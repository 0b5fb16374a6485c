"""A product by each mode of offloading, with the executors in this process: the arithmetic, its bytes and its seconds.

What an executor does is timed apart from what the analyst does, in processor seconds: on one core that is nobody else's
they are seconds, and waiting for a core does not count. Bytes are those of the arrays that would cross, each executor's
own copy of a right side counted. Operations are floating point ones: a multiply-add is two, an addition one.

    paper        an outer product for each inner index, shuffled, summed at home in an order (DCL)
    tiles        blocks of rows, each by the whole right side
    freivalds    the same, each block checked
    mask         fixed point under masks for two executors each block, checked over whole numbers
    replicate    each block by three executors, compared bit for bit
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks import offload_outer as outer
from benchmarks.offload_layer_shuffle import dynamic_layer_shuffle
from benchmarks.offload_order import static_layer_order
from shoal.offload import masking
from shoal.offload.cost import MASK_POOLS, REPLICAS
from shoal.offload.kinds import execute
from shoal.offload.products import Array, Report, Secret, check
from shoal.offload.shuffle import Shuffle, unshuffle
from shoal.offload.stream import SEED_BYTES
from shoal.offload.tiling import assemble, product, tiles
from shoal.offload.verify import TRIALS_EXACT, Freivalds, FreivaldsExact, majority

Mode = Literal["paper", "tiles", "freivalds", "mask", "replicate"]
MODES: tuple[Mode, ...] = ("paper", "tiles", "freivalds", "mask", "replicate")

#: Stands for entropy: what is measured does not depend on it.
SEED = bytes(range(16))


@dataclass(slots=True)
class Spent:
    """What one product, or some, took of everyone."""

    bytes_out: int = 0
    bytes_in: int = 0
    analyst_s: float = 0.0
    executors_s: float = 0.0
    analyst_operations: int = 0
    executors_operations: int = 0
    #: 2·a·b·c of each product: what it is without any offloading.
    layer_operations: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_out + self.bytes_in

    @property
    def analyst_ops_share(self) -> float:
        return self.analyst_operations / self.layer_operations if self.layer_operations else 0.0

    def wall_s(self, executors: int) -> float:
        """If executors work side by side, and bytes take no time."""
        return self.analyst_s + self.executors_s / executors


class Counting:
    """What the modes share: seconds of either side, and a report."""

    def __init__(self, executors: int) -> None:
        self.executors = executors
        self.spent = Spent()
        self._products = 0
        self._chance = np.random.default_rng(0)

    @property
    def report(self) -> Report:
        return Report(
            products=self._products,
            sent=self._products,
            bytes_out=self.spent.bytes_out,
            bytes_in=self.spent.bytes_in,
            operations_home=self.spent.analyst_operations // 2,
            operations_away=self.spent.executors_operations // 2,
            seconds=self.spent.analyst_s + self.spent.executors_s,
        )

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        check(left, right)
        self._products += 1
        self.spent.layer_operations += outer.layer_operations(left.shape[0], left.shape[1], right.shape[1])
        return self._multiply(left, right)

    def _multiply(self, left: Array, right: Array) -> Array:
        raise NotImplementedError

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.spent.analyst_s += time.process_time() - began_s

    def _away(self, work: Callable[[], Array]) -> Array:
        began_s = time.process_time()
        made = work()
        self.spent.executors_s += time.process_time() - began_s
        return made


class Paper(Counting):
    """DCL: each task shuffled in its own way, results put back and added in an order that is the layer's."""

    def __init__(self, executors: int, *, shuffled: bool = True) -> None:
        super().__init__(executors)
        self._shuffled = shuffled

    def _multiply(self, left: Array, right: Array) -> Array:
        rows, inner, columns = left.shape[0], left.shape[1], right.shape[1]
        with self._at_home():
            order = paper_order(inner)
            total = np.zeros((0, 0), np.float32)
        for feature in order.tolist():
            with self._at_home():
                column, row = outer.task(left, right, feature)
                if self._shuffled:
                    shuffle = task_shuffle(rows, columns, computation=self._products, task=feature)
                    column, row = column[shuffle.rows], row[shuffle.columns]
            part = self._away(lambda column=column, row=row: execute(column, row))  # type: ignore[misc]
            self.spent.bytes_out += column.nbytes + row.nbytes
            self.spent.bytes_in += part.nbytes
            with self._at_home():
                part = unshuffle(part, shuffle) if self._shuffled else part
                total = np.add(total, part, out=total) if total.size else part
        self.spent.executors_operations += outer.executor_operations(rows, inner, columns)
        self.spent.analyst_operations += outer.analyst_operations(rows, inner, columns)
        return total


class Centralised(Counting):
    """Nobody's help: the same outer products in the same order. What ``Paper`` must equal, to the bit."""

    def _multiply(self, left: Array, right: Array) -> Array:
        with self._at_home():
            return outer.at_home(left, right, paper_order(left.shape[1]))


def paper_order(inner: int) -> Array:
    """SLA: the order in which the outer products of a layer are added; whoever sums must keep to it."""
    return static_layer_order(SEED, layer=0, size=inner)


def task_shuffle(rows: int, columns: int, *, computation: int, task: int) -> Shuffle:
    """DLS, of one task: its own order of examples and of neurons."""
    return dynamic_layer_shuffle(SEED, layer=0, computation=computation, rows=rows, inner=0, columns=columns, task=task)


class Tiles(Counting):
    def __init__(self, executors: int, *, verify: Literal["none", "freivalds", "replicate"] = "none") -> None:
        super().__init__(executors)
        self._verify = verify

    def _multiply(self, left: Array, right: Array) -> Array:
        rows, inner, columns = left.shape[0], left.shape[1], right.shape[1]
        cut = tiles(rows, rows_each=-(-rows // self.executors))
        times = REPLICAS if self._verify == "replicate" else 1
        judge = None
        if self._verify == "freivalds":
            with self._at_home():
                judge = Freivalds(right, chance=self._chance)
            self.spent.analyst_operations += 2 * judge.trials * (rows * inner + inner * columns + rows * columns)
        parts: dict[int, Array] = {}
        for tile in cut:
            block = left[tile.start : tile.stop]
            results = [self._away(lambda block=block: product(block, right)) for _ in range(times)]  # type: ignore[misc]
            self.spent.bytes_out += times * block.nbytes
            self.spent.bytes_in += sum(result.nbytes for result in results)
            with self._at_home():
                if judge is not None and not judge.holds(block, results[0]):
                    raise AssertionError("an honest product was refused")
                if times > 1 and majority(results).value is None:
                    raise AssertionError("honest products differ")
            parts[tile.number] = results[0]
        self.spent.bytes_out += min(self.executors, times * len(cut)) * right.nbytes
        self.spent.executors_operations += times * outer.layer_operations(rows, inner, columns)
        with self._at_home():
            return assemble(parts, cut, columns)


class Masked(Counting):
    """Half of the executors hold seeds, the others shares: two pools that do not collude."""

    def _multiply(self, left: Array, right: Array) -> Array:
        rows, inner, columns = left.shape[0], left.shape[1], right.shape[1]
        pairs = max(1, self.executors // MASK_POOLS)
        cut = tiles(rows, rows_each=-(-rows // pairs))
        with self._at_home():
            fixed = masking.quantise_right(right)
            judge = FreivaldsExact(fixed.digits, chance=self._chance)
        parts: dict[int, Array] = {}
        for tile in cut:
            with self._at_home():
                whole = masking.quantise_fixed(left[tile.start : tile.stop], fixed)
                seed = self._chance.bytes(SEED_BYTES)
                share = masking.masked(whole.values, seed)
            shape = (share.shape[0], share.shape[1])
            of_mask = self._away(
                lambda seed=seed, shape=shape: masking.share_product(masking.mask(seed, shape), fixed.digits)  # type: ignore[misc]
            )
            of_share = self._away(lambda share=share: masking.share_product(share, fixed.digits))  # type: ignore[misc]
            self.spent.bytes_out += share.nbytes + SEED_BYTES
            self.spent.bytes_in += of_mask.nbytes + of_share.nbytes
            with self._at_home():
                combined = masking.combined(of_mask, of_share)
                if not judge.holds(whole.values, combined):
                    raise AssertionError("an honest product was refused")
                parts[tile.number] = masking.restored(combined, whole, fixed)
        self.spent.bytes_out += min(self.executors, MASK_POOLS * len(cut)) * fixed.digits.nbytes
        limbs = fixed.limbs
        self.spent.executors_operations += MASK_POOLS * limbs * outer.layer_operations(rows, inner, columns)
        self.spent.analyst_operations += mask_operations(rows, inner, columns, limbs=limbs)
        with self._at_home():
            return assemble(parts, cut, columns)


def mask_operations(rows: int, inner: int, columns: int, *, limbs: int) -> int:
    """At the analyst: values scaled, squared, rounded and masked; results added, put together and scaled; checks."""
    masked = 4 * rows * inner
    unmasked = (2 * limbs + 1) * rows * columns
    prepared = 2 * limbs * inner * columns
    checked = 2 * TRIALS_EXACT * (rows * inner + limbs * (inner * columns + rows * columns))
    return masked + unmasked + prepared + checked


def made(mode: Mode, executors: int) -> Counting:
    match mode:
        case "paper":
            return Paper(executors)
        case "tiles":
            return Tiles(executors)
        case "freivalds" | "replicate":
            return Tiles(executors, verify=mode)
        case "mask":
            return Masked(executors)


def drawn(rows: int, inner: int, columns: int) -> tuple[Array, Array]:
    """A layer's sides: inputs as of images, weights as they are drawn at first."""
    draw = np.random.default_rng(1)
    left = draw.random((rows, inner), dtype=np.float32)
    right = draw.standard_normal((inner, columns), dtype=np.float32) / np.float32(np.sqrt(inner))
    return left, right
