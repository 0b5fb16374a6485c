"""Offloading with real executors on a testbed: modes by the clock, where it begins to pay, a worked case, liars."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.offload_bed import CORES, Bed
from shoal.offload.cost import Home, Privacy, Shape, worth
from shoal.offload.products import Advert
from testbed.devices import Board
from testbed.namespaces import why_no_namespaces
from testbed.results import say

EXECUTORS = 8
#: What the slow analyst has of a core: about what a core of a Raspberry Pi 4 does with float32.
SLOW_CORES = 0.1
#: Where nothing is to be learnt but that it works: programs start sooner.
QUICK_SLOW_CORES = 0.5

#: Modes as Borrowed names them: privacy, verify. Masks are between two pools of four.
MODES = {
    "tiles": ("none", "none"),
    "freivalds": ("none", "freivalds"),
    "mask": ("mask", "freivalds"),
    "replicate": ("none", "replicate"),
}
SHAPES = {"narrow": (60_000, 784, 128), "wide": (4_096, 4_096, 4_096)}
QUICK_SHAPES = {"narrow": (4_000, 784, 128), "wide": (1_024, 2_048, 2_048)}

#: Links of the slow analyst. None: as fast as this machine moves bytes between processes.
LINKS_MBPS: dict[str, float | None] = {"loopback": None, "1 Gb/s": 1000.0, "100 Mb/s": 100.0}
#: Square layers, with as many rows: where does sending begin to pay?
WIDTHS, QUICK_WIDTHS = (1_024, 2_048, 3_072, 4_096, 6_144), (512, 1_024)

#: The worked case: layers, and examples in a step. A right side may have 256 MiB, and so may a batch.
CASE_WIDTHS, CASE_ROWS = (8_064, 8_064, 10), 8_192
QUICK_CASE_WIDTHS, QUICK_CASE_ROWS = (2_048, 2_048, 10), 2_048

#: Tiles as tall as a message holds: of a wide product the usual ones have 32 rows, and read all weights for each.
TALL = 1 << 33

#: A fifth of them lies.
LIARS = ("executor-3", "executor-8")
LIAR_EXECUTORS = 10


PARTS = ("modes", "worked_case", "crossover", "detection")


def real(parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    why_not = why_no_namespaces()
    if why_not:
        say(f"no testbed: {why_not}")
        return {"why_not": why_not}
    return asyncio.run(_real(parts, quick=quick))


async def _real(parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    told: dict[str, Any] = {}
    slow = QUICK_SLOW_CORES if quick else SLOW_CORES
    analysts = [Board(name="analyst", cores=CORES), Board(name="slow", cores=slow)]
    if "modes" in parts:
        with tempfile.TemporaryDirectory(prefix="shoal-offload-") as folder:
            async with Bed(Path(folder), pools=2, executors=EXECUTORS, analysts=analysts) as bed:
                told["modes"] = await modes(bed, quick=quick)
    for name, part in (("worked_case", worked_case), ("crossover", crossover)):
        if name in parts:
            with tempfile.TemporaryDirectory(prefix="shoal-offload-") as folder:
                async with Bed(Path(folder), pools=1, executors=EXECUTORS, analysts=analysts) as bed:
                    told[name] = await part(bed, quick=quick)
    if "detection" in parts:
        with tempfile.TemporaryDirectory(prefix="shoal-offload-") as folder:
            told["detection"] = await detection(Path(folder))
    return told


async def modes(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Each mode on the same layers, by an analyst with all of a core and no limit on its link."""
    told: dict[str, Any] = {}
    shapes = QUICK_SHAPES if quick else SHAPES
    for place, (name, (privacy, verify)) in enumerate(MODES.items()):
        settings = {"do": "products", "pools": bed.homes, "privacy": privacy, "verify": verify, "salt": 100 * place}
        found = await bed.analyse("analyst", {**settings, "shapes": list(shapes.values()), "turns": 3})
        told[name] = dict(zip(shapes, found["products"], strict=True))
        for shape, row in told[name].items():
            say(f"real, {name:<10} {shape:<7} {_row(row)}")
    return told


async def worked_case(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Steps of training by the slow analyst, alone and with the pool; of each the last, since the first is cold."""
    widths, rows = (QUICK_CASE_WIDTHS, QUICK_CASE_ROWS) if quick else (CASE_WIDTHS, CASE_ROWS)
    settings: dict[str, Any] = {"do": "train", "pools": bed.homes, "privacy": "none", "verify": "freivalds"}
    settings |= {"widths": widths, "rows": rows, "turns": 2, "tile_operations": TALL}
    settings |= {"send": "all" if quick else "worth"}
    found = await bed.analyse("slow", settings)
    alone_s, helped_s = found["alone_s"][-1], found["helped_s"][-1]
    say(f"worked case: {alone_s:.1f} s a step alone, {helped_s:.1f} s helped: {alone_s / helped_s:.2f} times as fast")
    for decision in found["decisions"]:
        say(f"   {decision}")
    case = {"widths": widths, "rows": rows, "cores": bed.bed["slow"].board.cores, "speedup": alone_s / helped_s}
    cpu_ratio = found["alone_cpu_s"][-1] / found["helped_cpu_s"][-1]
    return {**case, "alone_step_s": alone_s, "helped_step_s": helped_s, "analyst_cpu_ratio": cpu_ratio, **found}


async def crossover(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Square products of the slow analyst over three links: at home and away, and what the cost model says."""
    widths = QUICK_WIDTHS if quick else WIDTHS
    settings: dict[str, Any] = {"do": "products", "pools": bed.homes, "privacy": "none", "verify": "freivalds"}
    settings |= {"shapes": [(width, width, width) for width in widths], "turns": 1, "tile_operations": TALL}
    measured = await bed.analyse("slow", {"do": "measure", "pools": bed.homes})
    home = Home(**measured["home"])
    told: dict[str, Any] = {"measured": measured}
    home_s: list[float] = []
    for place, (link, mbps) in enumerate(LINKS_MBPS.items()):
        bed.bed["slow"].limit(up_mbps=mbps, down_mbps=mbps)
        found = await bed.analyse("slow", {**settings, "at_home": not home_s, "salt": 100 * place})
        home_s = home_s or [row["home_s"] for row in found["products"]]
        away_s = [row["wall_s"] for row in found["products"]]
        speedups = {width: one / other for width, one, other in zip(widths, home_s, away_s, strict=True)}
        pays = [width for width, speedup in speedups.items() if speedup > 1]
        pool = over(Advert(**measured["advert"]), mbps)
        told[link] = {
            "speedup_by_width": speedups,
            "pays_from": min(pays) if pays else None,
            "model_pays_from": predicted(home, pool, privacy="none"),
            "model_pays_from_masked": predicted(home, replace(pool, pools=2), privacy="mask"),
        }
        say(f"crossover, {link}: {told[link]}")
    bed.bed["slow"].limit(up_mbps=None, down_mbps=None)
    core_per_s = 1 / (await bed.analyse("analyst", {"do": "measure", "pools": bed.homes}))["home"]["operation_s"]
    elsewhere = with_a_core_each(home, Advert(**measured["advert"]), core_per_s)
    return {**told, "home_s": dict(zip(widths, home_s, strict=True)), "model_with_a_core_each": elsewhere}


def predicted(home: Home, pool: Advert, *, privacy: Privacy) -> int | None:
    """The least width of a square product that pays, by the cost model; None if none of up to 64k does."""
    for width in range(64, 65_537, 64):
        shape = Shape(rows=width, inner=width, columns=width)
        if worth(shape, "left", home=home, pool=pool, privacy=privacy, verify="freivalds").sends:
            return width
    return None


def with_a_core_each(home: Home, pool: Advert, core_per_s: float) -> dict[str, dict[str, int | None]]:
    """The model once more, for executors that are not all on one machine: each with a core like this one's."""
    found: dict[str, dict[str, int | None]] = {}
    for link, mbps in LINKS_MBPS.items():
        there = over(replace(pool, operations_per_s=EXECUTORS * core_per_s, pools=2), mbps)
        found[link] = {
            "none": predicted(home, there, privacy="none"),
            "mask": predicted(home, there, privacy="mask"),
        }
    say(f"crossover by the model, executors with a core each: {found}")
    return found


def over(pool: Advert, mbps: float | None) -> Advert:
    """The same pool over a link: its time and this device's own, which was measured where the link takes none."""
    return pool if mbps is None else replace(pool, bytes_per_s=1 / (1 / pool.bytes_per_s + 8 / (mbps * 1e6)))


async def detection(folder: Path) -> dict[str, Any]:
    """A fifth of the executors lie, all in the same way: is the result the same, and is each of them named?"""
    told: dict[str, Any] = {}
    liars: dict[str, Any] = {"liars": LIARS, "liar_module": "benchmarks.offload_liar"}
    for verify in ("freivalds", "replicate"):
        bed = Bed(
            folder / verify, pools=1, executors=LIAR_EXECUTORS, analysts=[Board(name="analyst", cores=CORES)], **liars
        )
        async with bed:
            settings: dict[str, Any] = {"do": "train", "pools": bed.homes, "privacy": "none", "verify": verify}
            settings |= {"send": "all"}
            # Low tiles, so that everyone is asked for something.
            settings |= {"widths": (256, 256, 10), "rows": 2_048, "turns": 5, "tile_operations": 1 << 22}
            found = await bed.analyse("analyst", settings)
            excluded = await bed.excluded()
        # With their pool's name before their own.
        named = {name.rpartition("/")[2] for name in found["report"]["liars"]}
        told[verify] = {
            "same_bits": found["same_bits_as_tiles"],
            "largest_difference": found["largest_difference"],
            "caught": sorted(named),
            "excluded": excluded,
            "caught_share": len(named & set(LIARS)) / len(LIARS),
            "honest_accused": sorted((named | set(excluded)) - set(LIARS)),
        }
        say(f"detection by {verify}: {told[verify]}")
    return {**told, "caught_share": told["freivalds"]["caught_share"]}


def _row(row: dict[str, Any]) -> str:
    return (
        f"{row['wall_s']:.3f} s, {row['bytes'] / 1e6:,.1f} MB, analyst {row['cpu_s']:.3f} s of processor; "
        f"at home {row['home_s']:.3f} s; off by {row['largest_difference']:.1e}"
    )
