"""Offloading with real executors on a testbed: modes by the clock, where it begins to pay, a worked case, liars."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import say
from benchmarks.offload_bed import CORES, Bed
from shoal.offload.cost import Home, crossover_columns
from shoal.offload.products import Advert
from testbed.devices import Board
from testbed.namespaces import why_no_namespaces

POOLS, EXECUTORS = 2, 8
#: What the slow analyst has of a core: about what a core of a Raspberry Pi 4 does with float32.
SLOW_CORES = 0.1

#: Modes as Borrowed names them: privacy, verify.
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
WIDTHS, QUICK_WIDTHS = (256, 512, 1_024, 2_048, 4_096), (256, 1_024)

#: The worked case: layers, and examples in a step.
CASE_WIDTHS, CASE_ROWS = (4_096, 4_096, 4_096, 10), 4_096
QUICK_CASE_WIDTHS, QUICK_CASE_ROWS = (2_048, 2_048, 10), 2_048

#: A fifth of them lies.
LIARS = ("executor-3", "executor-8")
LIAR_EXECUTORS = 10


def real(*, quick: bool) -> dict[str, Any]:
    why_not = why_no_namespaces()
    if why_not:
        say(f"no testbed: {why_not}")
        return {"why_not": why_not, "worked_case": {}, "detection": {}}
    return asyncio.run(_real(quick=quick))


async def _real(*, quick: bool) -> dict[str, Any]:
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-offload-") as folder:
        analysts = [Board(name="analyst", cores=CORES), Board(name="slow", cores=SLOW_CORES)]
        async with Bed(Path(folder), pools=POOLS, executors=EXECUTORS, analysts=analysts) as bed:
            told["modes"] = await modes(bed, quick=quick)
            told["worked_case"] = await worked_case(bed, quick=quick)
            told["crossover"] = await crossover(bed, quick=quick)
    with tempfile.TemporaryDirectory(prefix="shoal-offload-") as folder:
        told["detection"] = await detection(Path(folder), quick=quick)
    return told


async def modes(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Each mode on the same layers, by an analyst with all of a core and no limit on its link."""
    told: dict[str, Any] = {}
    for name, (privacy, verify) in MODES.items():
        shapes = QUICK_SHAPES if quick else SHAPES
        settings = {"do": "products", "pools": bed.homes, "privacy": privacy, "verify": verify}
        found = await bed.analyse("analyst", {**settings, "shapes": list(shapes.values()), "turns": 3})
        told[name] = dict(zip(shapes, found["products"], strict=True))
        for shape, row in told[name].items():
            say(f"real, {name:<10} {shape:<7} {_row(row)}")
    return told


async def worked_case(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Steps of training by the slow analyst: alone, and with the pools; without secrets, and with masks."""
    widths, rows = (QUICK_CASE_WIDTHS, QUICK_CASE_ROWS) if quick else (CASE_WIDTHS, CASE_ROWS)
    told: dict[str, Any] = {"widths": widths, "rows": rows, "cores": SLOW_CORES}
    for privacy in ("none",) if quick else ("none", "mask"):
        settings = {"do": "train", "pools": bed.homes, "privacy": privacy, "verify": "freivalds", "widths": widths}
        found = await bed.analyse("slow", {**settings, "rows": rows, "turns": 2 if quick else 3})
        # The first step of each also fetches memory and meets the pools.
        alone_s, helped_s = median(found["alone_s"][1:]), median(found["helped_s"][1:])
        told[privacy] = {**found, "alone_step_s": alone_s, "helped_step_s": helped_s, "speedup": alone_s / helped_s}
        say(f"worked case, privacy {privacy}: {alone_s:.1f} s a step alone, {helped_s:.1f} s helped")
        for decision in found["decisions"]:
            say(f"   {decision}")
    return {**told, "speedup": told["none"]["speedup"]}


async def crossover(bed: Bed, *, quick: bool) -> dict[str, Any]:
    """Square products of the slow analyst over three links: at home and away, and what the cost model says."""
    widths = QUICK_WIDTHS if quick else WIDTHS
    settings = {"do": "products", "pools": bed.homes, "privacy": "none", "verify": "freivalds"}
    shapes = [(width, width, width) for width in widths]
    measured = (await bed.analyse("slow", {"do": "measure"}))["home"]
    told: dict[str, Any] = {"home": measured}
    for link, mbps in LINKS_MBPS.items():
        bed.bed["slow"].limit(up_mbps=mbps, down_mbps=mbps)
        found = await bed.analyse("slow", {**settings, "shapes": shapes, "turns": 2})
        rows = {width: row["home_s"] / row["wall_s"] for width, row in zip(widths, found["products"], strict=True)}
        pays = [width for width, speedup in rows.items() if speedup > 1]
        told[link] = {
            "speedup_by_width": rows,
            "pays_from": min(pays) if pays else None,
            "model_pays_from": predicted(Home(**measured), found["advert"], mbps=mbps),
        }
        say(f"crossover, {link}: {told[link]}")
    bed.bed["slow"].limit(up_mbps=None, down_mbps=None)
    return told


def predicted(home: Home, advert: dict[str, Any] | None, *, mbps: float | None) -> int | None:
    """The least width of a square product that pays, by the cost model."""
    if advert is None:
        return None
    link = {"bytes_per_s": mbps * 1e6 / 8} if mbps is not None else {}
    pool = Advert(**{**advert, **link})
    for width in range(64, 16_385, 64):
        columns = crossover_columns(
            width, width, secret="left", home=home, pool=pool, privacy="none", verify="freivalds"
        )
        if columns is not None and columns <= width:
            return width
    return None


async def detection(folder: Path, *, quick: bool) -> dict[str, Any]:
    """A fifth of the executors lie, all in the same way: is the result the same, and is each of them named?"""
    told: dict[str, Any] = {}
    liars: dict[str, Any] = {"liars": LIARS, "liar_module": "benchmarks.offload_liar"}
    for verify in ("freivalds", "replicate"):
        bed = Bed(folder / verify, pools=1, executors=LIAR_EXECUTORS, analysts=[Board(name="analyst", cores=CORES)], **liars)
        async with bed:
            settings = {"do": "train", "pools": bed.homes, "privacy": "none", "verify": verify, "send": "all"}
            widths, rows = (256, 256, 10), 512 if quick else 2_048
            found = await bed.analyse("analyst", {**settings, "widths": widths, "rows": rows, "turns": 5})
            excluded = await bed.excluded()
        named = set(found["report"]["liars"])
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
