"""What offloading costs and brings: bytes, operations at the analyst and seconds, mode by mode on the same layers.

First with the executors in this process, one thread, so that only arithmetic is compared:

    narrow     the thesis' layer, 784 to 128, for D images        ``offload``
    wide       2,048 to 2,048                                     ``wide``

``bytes`` are of all executors together, ``analyst_ops_share`` the analyst's floating point operations over the 2·a·b·c
of the layer, ``wall_s`` what it would take if eight executors worked side by side and bytes took no time; ``analyst_s``
is the analyst's part of that. ``freivalds_share`` is the check's time over the product's. All in processor seconds.

Then with real ones (``real``), each a process in a network of its own on this machine, by the clock: the same modes;
where sending begins to pay (``crossover``) for an analyst with a tenth of a core at loopback, 1 Gb/s and 100 Mb/s,
measured and as the cost model says; training a wide network (``worked_case``); and with a fifth of the executors lying
(``detection``).

    python -m benchmarks.offload [--quick] [--only arithmetic modes worked_case crossover detection] --json
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

from benchmarks.offload_modes import MODES, Mode, drawn, made
from benchmarks.offload_real import PARTS, real
from shoal.offload.products import Array
from shoal.offload.tiling import product
from shoal.offload.verify import Freivalds
from testbed.one_core import again_on_one_core
from testbed.results import finish, say

EXECUTORS = 8
#: rows, inner, columns.
NARROW, QUICK_NARROW = (60_000, 784, 128), (4_000, 784, 128)
WIDE, QUICK_WIDE = (8_192, 2_048, 2_048), (2_048, 1_024, 1_024)


def in_process(shape: tuple[int, int, int], modes: tuple[Mode, ...]) -> dict[str, dict[str, float]]:
    left, right = drawn(*shape)
    told: dict[str, dict[str, float]] = {}
    for mode in modes:
        products = made(mode, EXECUTORS)
        products.multiply(left, right, secret="left", name=mode)
        spent = products.spent
        told[mode] = {
            "bytes": spent.bytes,
            "analyst_ops_share": spent.analyst_ops_share,
            "wall_s": spent.wall_s(EXECUTORS),
            "analyst_s": spent.analyst_s,
            "executors_s": spent.executors_s,
        }
        say(f"{mode:<10} {shape}: {_shown(told[mode])}")
    return told


def _shown(row: dict[str, float]) -> str:
    return (
        f"{row['bytes'] / 1e6:,.1f} MB, analyst {100 * row['analyst_ops_share']:.2f} % of operations and "
        f"{row['analyst_s']:.3f} s, executors {row['executors_s']:.3f} s"
    )


def freivalds_share(shape: tuple[int, int, int], *, turns: int) -> dict[str, float]:
    """Checks in the time of products, tile by tile as they come back; medians of turns that alternate."""
    left, right = drawn(*shape)
    rows = max(1, shape[0] // EXECUTORS)
    block: Array = left[:rows]
    result = product(block, right)

    chance = np.random.default_rng(0)
    judge = Freivalds(right, chance=chance)
    took: dict[str, list[float]] = {"product": [], "check": [], "version": []}
    for _ in range(turns):
        took["product"].append(_seconds(lambda: product(block, right)))
        took["check"].append(_seconds(lambda: judge.holds(block, result)))
        took["version"].append(_seconds(lambda: Freivalds(right, chance=chance)))
    product_s, check_s, version_s = (float(np.median(each)) for each in took.values())
    return {
        "product_s": product_s * EXECUTORS,
        "check_s": check_s * EXECUTORS,
        "version_s": version_s,
        "share": check_s / product_s,
        # In training each product has another right side, for which the check is prepared once.
        "share_with_version": (check_s * EXECUTORS + version_s) / (product_s * EXECUTORS),
    }


def _seconds(work: Any) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def arithmetic(*, quick: bool) -> dict[str, Any]:
    """What needs no real executors."""
    narrow, wide = (QUICK_NARROW, QUICK_WIDE) if quick else (NARROW, WIDE)
    modes = in_process(narrow, MODES)
    # By outer products it would be 140 GB: nobody has to see that.
    wide_modes = in_process(wide, MODES[1:])
    shares = {name: freivalds_share(shape, turns=5) for name, shape in (("narrow", narrow), ("wide", wide))}
    for name, share in shares.items():
        say(f"Freivalds, {name}: {share}")
    return {
        "offload": {
            **modes,
            "bytes_ratio": modes["paper"]["bytes"] / modes["tiles"]["bytes"],
            "freivalds_share": shares["wide"]["share"],
            "freivalds_share_narrow": shares["narrow"]["share"],
        },
        "wide": wide_modes,
        "freivalds": shares,
        "shapes": {"narrow": narrow, "wide": wide},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small layers, few turns, no crossover")
    parts = ("arithmetic", *PARTS)
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    # Three links take most of the time: a minute has room for the rest.
    wanted = given.only or tuple(part for part in parts if not given.quick or part != "crossover")
    told: dict[str, Any] = {"quick": given.quick, "executors": EXECUTORS, "offload": {}}
    if "arithmetic" in wanted:
        told |= arithmetic(quick=given.quick)
    if any(part in PARTS for part in wanted):
        told["real"] = real(wanted, quick=given.quick)
        for key, part, name in (
            ("speedup_worked_case", "worked_case", "speedup"),
            ("caught_share", "detection", "caught_share"),
        ):
            if part in told["real"]:
                told["offload"][key] = told["real"][part][name]
    finish({**told, "load_1m": os.getloadavg()[0]})


if __name__ == "__main__":
    again_on_one_core("benchmarks.offload")
    main()
