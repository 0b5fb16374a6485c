"""Whether a leader should sum an update straight from the chunks that it comes in. Processor time, in turns.

    assembled_ms   what Shoal does: chunks are copied into one buffer, then its norm and its sum
    unaligned_ms   norm and sum of each chunk where it lies in its frame: an envelope shifts its values
    aligned_ms     the same, if frames were padded so that values begin where numpy reads them at once
    early_norm_ms  each chunk copied and its norm taken while it is in the cache, the sum at the end

In each of them an update that turns out wrong at its last chunk has changed nothing: sums begin when all is there.

    python -m benchmarks.chunk_sums --json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.common import PERNET
from shoal.wire.frames import cut_tensors
from shoal.wire.limits import VALUE_BYTES
from testbed.results import finish

#: Different updates that take turns: none of them is still in a core's own cache when it comes again.
POOL = 12

#: Bytes before the values of a first frame and of others, as they are and as padding would make them.
HEADS = (47, 5)
PADDED = (48, 16)

Chunks = list[np.ndarray]


def arrived(values: int, heads: tuple[int, int]) -> list[Chunks]:
    """The chunks of each update, where they lie in their frames."""
    draw = np.random.default_rng(0)
    pool: list[Chunks] = []
    for _ in range(POOL):
        update = draw.normal(scale=1e-3, size=values).astype(np.float32)
        chunks = []
        for number, parts in enumerate(cut_tensors({"delta": update})):
            head = heads[min(number, 1)]
            chunks.append(np.frombuffer(b"".join((bytes(head), *parts)), np.uint8)[head:])
        pool.append(chunks)
    return pool


class Leader:
    """The memory that updates are summed in."""

    def __init__(self, values: int) -> None:
        self._total = np.zeros(values, np.float64)
        self._buffer = np.empty(values * VALUE_BYTES, np.uint8)
        self._update = self._buffer.view(np.float32)

    def assembled(self, chunks: Chunks) -> None:
        at = 0
        for chunk in chunks:
            self._buffer[at : at + chunk.size] = chunk
            at += chunk.size
        np.dot(self._update, self._update)
        np.add(self._total, self._update, out=self._total)

    def in_place(self, chunks: Chunks) -> None:
        parts, at = [chunk.view(np.float32) for chunk in chunks], 0
        for part in parts:
            np.dot(part, part)
        for part in parts:
            total = self._total[at : at + part.size]
            np.add(total, part, out=total)
            at += part.size

    def early_norm(self, chunks: Chunks) -> None:
        at = 0
        for chunk in chunks:
            self._buffer[at : at + chunk.size] = chunk
            part = self._update[at // VALUE_BYTES : (at + chunk.size) // VALUE_BYTES]
            np.dot(part, part)
            at += chunk.size
        np.add(self._total, self._update, out=self._total)


def ms_each(way: Callable[[Chunks], None], pool: list[Chunks]) -> float:
    began_s = time.process_time()
    for chunks in pool:
        way(chunks)
    return 1e3 * (time.process_time() - began_s) / len(pool)


def compare(*, values: int, turns: int) -> dict[str, float]:
    leader, as_sent, padded = Leader(values), arrived(values, HEADS), arrived(values, PADDED)
    ways: dict[str, tuple[Callable[[Chunks], None], list[Chunks]]] = {
        "assembled_ms": (leader.assembled, as_sent),
        "unaligned_ms": (leader.in_place, as_sent),
        "aligned_ms": (leader.in_place, padded),
        "early_norm_ms": (leader.early_norm, as_sent),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, (way, pool) in ways.items():
            took[name].append(ms_each(way, pool))
    return {name: median(each) for name, each in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    finish({**compare(values=given.params, turns=9 if given.quick else 51), "params": given.params})


if __name__ == "__main__":
    main()
