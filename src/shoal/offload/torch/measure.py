"""Measures this device's own part of offloading, and its link to a pool, for a second or two.

Means over a time, not the best of a few: a device with a quota of its processor shows it only over time. The measured
code is the code in use, on sizes that do not fit in a cache, like those of layers worth sending.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.offload import masking
from shoal.offload.cost import Home
from shoal.offload.kinds import digest_of
from shoal.offload.products import Advert, Advertises, Array, Products
from shoal.offload.stream import SEED_BYTES
from shoal.offload.verify import Freivalds, FreivaldsExact

#: A product of about 268 million multiply-adds, and something of the size of its sides.
ROWS, INNER, COLUMNS = 256, 1024, 1024
#: So long for each of the eight; a quota's period is a tenth of a second.
EACH_S = 0.12
#: How often two things are done in turn, to be compared.
TURNS = 5
#: Copies of the data in making a frame and in taking it apart.
_COPIES = 2


def measured_home(*, each_s: float = EACH_S) -> Home:
    draw = np.random.default_rng(0)
    left = draw.standard_normal((ROWS, INNER), dtype=np.float32)
    right = draw.standard_normal((INNER, COLUMNS), dtype=np.float32)
    result: Array = left @ right
    tensors = torch.from_numpy(left), torch.from_numpy(right)
    check = Freivalds(right, chance=draw)
    fixed = masking.quantise_right(right)
    whole = masking.quantise_fixed(left, fixed)
    seed = bytes(SEED_BYTES)
    share = masking.masked(whole.values, seed)
    half = masking.share_product(share, fixed.digits)
    combined = masking.combined(half, masking.share_product(masking.mask(seed, left.shape), fixed.digits))
    check_exactly = FreivaldsExact(fixed.digits, chance=draw)

    def mask() -> None:
        masking.masked(masking.quantise_fixed(left, fixed).values, seed)

    def probe() -> None:
        # Turned round, named, kept, and multiplied by r.
        kept = np.array(tensors[1].t().contiguous().numpy())
        digest_of(kept)
        Freivalds(kept, chance=draw)

    def probe_exactly() -> None:
        kept = masking.quantise_right(np.array(tensors[1].t().contiguous().numpy())).digits
        digest_of(kept)
        FreivaldsExact(kept, chance=draw)

    def took(work: Callable[[], object]) -> float:
        return mean_s(work, each_s)

    return Home(
        operation_s=took(lambda: tensors[0] @ tensors[1]) / (ROWS * INNER * COLUMNS),
        byte_s=took(lambda: _sealed(right)) / right.nbytes,
        check_s=took(lambda: check.holds(left, result)) / (left.size + result.size),
        probe_s=took(probe) / right.size,
        mask_s=took(mask) / left.size,
        unmask_s=took(lambda: masking.unmask(half, half, whole, fixed)) / result.size,
        check_exactly_s=took(lambda: check_exactly.holds(whole.values, combined)) / (left.size + result.size),
        probe_exactly_s=took(probe_exactly) / right.size,
        # Beside numpy's own product, since executors have no torch; in turns: it is a ratio.
        share_factor=ratio(lambda: masking.share_product(share, fixed.digits), lambda: left @ right, turns=TURNS),
    )


#: Products that are all link and no work: 1 MB out at first, then as much as half a second takes, within bounds.
_LINK_INNER, _LINK_COLUMNS, _LINK_ROWS, _LINK_ROWS_MAX = 1024, 8, 256, 8192
_LINK_S = 0.5


def measured_advert(products: Products, pool: Advertises) -> Advert | None:
    """The pool's own numbers, with a measured rate of the link: from two products, by their difference in duration.

    The duration of one product would not do: it includes the latency and the broker's queue.
    """
    advert = pool.advert
    if advert is None:
        return None
    first_s, first = _moved(products, _LINK_ROWS)
    rows = min(_LINK_ROWS_MAX, max(4 * _LINK_ROWS, int(_LINK_ROWS * _LINK_S / max(first_s, 1e-6))))
    second_s, second = _moved(products, rows)
    rate = (second - first) / (second_s - first_s) if second_s > first_s else 0.0
    return replace(advert, bytes_per_s=max(rate, second / second_s))


def _moved(products: Products, rows: int) -> tuple[float, int]:
    # The numbers are nobody's data: they may be seen.
    left = np.ones((rows, _LINK_INNER), dtype=np.float32)
    right = np.ones((_LINK_INNER, _LINK_COLUMNS), dtype=np.float32)
    began_s = time.perf_counter()
    result = products.multiply(left, right, secret="none", name="a look at the link")
    return time.perf_counter() - began_s, left.nbytes + right.nbytes + result.nbytes


def _sealed(matrix: Array) -> bytes:
    """About the work to send a matrix: copied, and encrypted as TLS does it."""
    data = b""
    for _ in range(_COPIES):
        data = matrix.tobytes()
    return AESGCM(bytes(16)).encrypt(bytes(12), data, None)


def mean_s(work: Callable[[], object], limit_s: float) -> float:
    work()
    done, began_s = 0, time.perf_counter()
    while not done or time.perf_counter() - began_s < limit_s:
        work()
        done += 1
    return (time.perf_counter() - began_s) / done


def ratio(one: Callable[[], object], other: Callable[[], object], *, turns: int) -> float:
    """The ratio of their processor times: a quota, or a crowd, would stretch the longer wall time more."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for work, seconds in zip((one, other), took, strict=True):
            began_s = time.process_time()
            work()
            seconds.append(time.process_time() - began_s)
    return min(took[0]) / min(took[1])
