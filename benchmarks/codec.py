"""What a sparse codec costs and saves: time and bytes, beside a copy of the dense vector in memory and beside zstd.

An update of PerNet (720,967 values in 12 tensors) and one of 11,610,000 values in 20, normal in each tensor, cross in
``top1%+ef+4bit``: the largest 1 % of each tensor, places Rice-coded, levels of 4 bits. Times are processor time of all
threads together, as on one core, and waiting for a core does not count; contenders take turns, and what is told are
medians over turns.

    encode, decode      what the sender and the receiver do; ``ratio_to_copy`` is both over one copy
    feedback            what error feedback adds at the sender: adding what was kept, and taking off what was sent
    packed              the dense vector as a general packer has it: zstd level 3 where its library is installed, else
                        zlib level 1 (``packer`` says which)
    packed_sparse       the same packer on what is sent anyway: places as uint32, values as float32

    python -m benchmarks.codec --json
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import os
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import PERNET
from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse, largest
from shoal.wire.coded import bytes_max, bytes_of, decode, encode
from testbed.results import finish, say

NAME = "top1%+ef+4bit"

#: Others, for the table: at the small size only.
ALSO = ("dense", "fp16", "bf16", "top1%", "top1%+8bit", "top1%+2bit", "top0.1%+4bit", "top10%+4bit")

PERNET_SIDES = (427, 512, 512, 256, 256, 128, 71)
LARGE_TENSORS, LARGE = 20, 11_610_000

Pack = Callable[[bytes], bytes]


def pernet_sizes() -> tuple[int, ...]:
    sizes = [size for inputs, outputs in pairwise(PERNET_SIDES) for size in (inputs * outputs, outputs)]
    assert sum(sizes) == PERNET
    return tuple(sizes)


def drawn_update(sizes: tuple[int, ...]) -> np.ndarray:
    """Normal, of another spread in each tensor: no level rounds to zero, so that all that is chosen is sent."""
    draw = np.random.default_rng(0)
    spreads = np.repeat(10.0 ** draw.uniform(-4, -2, len(sizes)), sizes)
    return (draw.normal(size=sum(sizes)) * spreads).astype(np.float32)


def packer() -> tuple[str, Pack]:
    """zstd by its library, or zlib: neither is a dependency, and Python has the one alone before 3.14."""
    found = ctypes.util.find_library("zstd")
    if found is None:
        return "zlib 1", lambda data: zlib.compress(data, 1)
    library = ctypes.CDLL(found)
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    library.ZSTD_compress.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int,
    ]

    def pack(data: bytes) -> bytes:
        room = ctypes.create_string_buffer(library.ZSTD_compressBound(len(data)))
        size = library.ZSTD_compress(room, len(room), data, len(data), 3)
        return room.raw[:size]

    return f"zstd 3 ({library.ZSTD_versionNumber()})", pack


def take_turns(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Processor milliseconds of each turn of each; the first turn of all is to get warm."""
    took_ms: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, run in contenders.items():
            began_s = time.process_time()
            run()
            if turn:
                took_ms[name].append(1000 * (time.process_time() - began_s))
    return took_ms


class Sender:
    """What error feedback adds to sending; the update itself is coded elsewhere."""

    def __init__(self, update: np.ndarray, sent: Sparse) -> None:
        self._feedback, self._update, self._sent = Feedback(update.size), update, sent

    def __call__(self) -> None:
        self._feedback.add(self._update)
        self._feedback.sent(self._sent)


def measure(sizes: tuple[int, ...], *, turns: int) -> dict[str, Any]:
    codec, update = Codec.parse(NAME), drawn_update(sizes)
    sent = encode(codec, update, sizes)
    arrived = decode(codec, sent, sizes)
    assert isinstance(arrived, Sparse)
    room = np.empty_like(update)
    took_ms = take_turns(
        {
            "copy": lambda: np.copyto(room, update),
            "choose": lambda: largest(update, sizes, share_ppm=codec.share_ppm),
            "encode": lambda: encode(codec, update, sizes),
            "decode": lambda: decode(codec, sent, sizes),
            "feedback": Sender(update, arrived),
        },
        turns,
    )
    ratios = [
        (encoding + decoding) / copying
        for encoding, decoding, copying in zip(took_ms["encode"], took_ms["decode"], took_ms["copy"], strict=True)
    ]
    return {
        **{f"{name}_ms": median(each) for name, each in took_ms.items()},
        "ratio_to_copy": median(ratios),
        "bytes": bytes_of(sent),
        "bytes_max": bytes_max(codec, sizes),
        "entries": arrived.places.size,
        "bits_per_entry": 8 * bytes_of(sent) / arrived.places.size,
        "dense_bytes": update.nbytes,
    }


def measure_packer(sizes: tuple[int, ...], *, turns: int) -> dict[str, Any]:
    name, pack = packer()
    update = drawn_update(sizes)
    chosen = largest(update, sizes, share_ppm=Codec.parse(NAME).share_ppm)
    dense, thin = update.tobytes(), chosen.places.astype(np.uint32).tobytes() + chosen.values.tobytes()
    took_ms = take_turns({"packed": lambda: pack(dense), "packed_sparse": lambda: pack(thin)}, turns)
    return {
        "packer": name,
        **{f"{each}_ms": median(took) for each, took in took_ms.items()},
        "packed_bytes": len(pack(dense)),
        "packed_sparse_bytes": len(pack(thin)),
    }


def tell_others(sizes: tuple[int, ...], *, turns: int) -> None:
    update = drawn_update(sizes)
    for name in ALSO:
        codec = Codec.parse(name)
        sent = encode(codec, update, sizes)
        took_ms = take_turns(
            {
                "encode": lambda codec=codec: encode(codec, update, sizes),  # type: ignore[misc]
                "decode": lambda codec=codec, sent=sent: decode(codec, sent, sizes),  # type: ignore[misc]
            },
            turns,
        )
        encode_ms, decode_ms = (median(took) for took in took_ms.values())
        say(f"{name:<14} {bytes_of(sent):>9,} bytes  encode {encode_ms:.2f} ms  decode {decode_ms:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    turns = 21 if given.quick else 101
    small, large = pernet_sizes(), (LARGE // LARGE_TENSORS,) * LARGE_TENSORS
    tell_others(small, turns=max(5, turns // 5))
    finish(
        {
            "codec": NAME,
            "parameters": sum(small),
            **measure(small, turns=turns),
            **measure_packer(small, turns=5),
            "large_parameters": sum(large),
            **{f"large_{name}": value for name, value in measure(large, turns=max(5, turns // 5)).items()},
            **{f"large_{name}": value for name, value in measure_packer(large, turns=3).items() if name != "packer"},
            "load_1m": os.getloadavg()[0],
        }
    )


if __name__ == "__main__":
    main()
