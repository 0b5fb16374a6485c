"""One analyst: a process that multiplies or trains, alone or with pools, and tells what it took.

    python -m benchmarks.offload_analyst '{"do": "products", "pools": [...], "shapes": [[2048, 1024, 1024]], ...}'

``products``: each again and again, each time with another right side, as in training. ``train``: steps of a wide
network. Both are done alone too, in the same process and under the same quota. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.offload_at_home import AtHome
from benchmarks.offload_modes import drawn
from shoal.offload import tiling
from shoal.offload.products import Array, Products, Secret
from shoal.offload.roles.product import TILE_OPERATIONS, cut
from shoal.offload.runtime.borrowed import Borrowed


class TilesAtHome(AtHome):
    """The same tiles as an analyst cuts, each by itself, with nobody's help: the bits that the pools' must have."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self._operations = operations

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        tiles = cut(len(left), *right.shape, operations=self._operations)
        parts = {tile.number: tiling.product(left[tile.start : tile.stop], right) for tile in tiles}
        return tiling.assemble(parts, tiles, right.shape[1])


@contextmanager
def products_of(settings: dict[str, Any]) -> Iterator[Products]:
    if not settings["pools"]:
        yield AtHome()
        return
    tile_operations = settings.get("tile_operations", TILE_OPERATIONS)
    modes = {"privacy": settings["privacy"], "verify": settings["verify"]}
    with Borrowed(settings["pools"], **modes, tile_operations=tile_operations) as borrowed:
        yield borrowed


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of this process's processor time."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def products(settings: dict[str, Any]) -> dict[str, Any]:
    with products_of(settings) as pools:
        told = [product(pools, shape, settings, at_home=settings.get("at_home", True)) for shape in settings["shapes"]]
        return {"products": told, "advert": plain_advert(pools), "report": asdict(pools.report)}


def product(pools: Products, shape: list[int], settings: dict[str, Any], *, at_home: bool) -> dict[str, Any]:
    left, right = drawn(*shape)
    turns, salt = settings["turns"], settings.get("salt", 0)
    home: list[tuple[float, float]] = []
    away: list[tuple[float, float]] = []
    # Who has never met knows nothing of the link, and has no connection.
    pools.multiply(left[:64], right, secret="left", name="first")
    before = pools.report
    worst = 0.0
    for turn in range(1, turns + 1):
        # Never one that somebody has kept, of another run either.
        version = right * np.float32(1 + (turn + salt) / 1000)
        made: list[np.ndarray] = []
        away.append(timed(lambda v=version, m=made: m.append(pools.multiply(left, v, secret="left", name="it"))))  # type: ignore[misc]
        if at_home:
            home.append(timed(lambda v=version, m=made: m.append(left @ v)))  # type: ignore[misc]
            worst = max(worst, float(np.abs(made[0] - made[1]).max()))
    told = {
        "operations": shape[0] * shape[1] * shape[2],
        "wall_s": median(wall for wall, _ in away),
        "cpu_s": median(cpu for _, cpu in away),
        "bytes": (pools.report.bytes_moved - before.bytes_moved) / turns,
    }
    if not at_home:
        return told
    return {
        **told,
        "home_s": median(wall for wall, _ in home),
        "home_cpu_s": median(cpu for _, cpu in home),
        "largest_difference": worst,
    }


def plain_advert(pools: Products) -> dict[str, Any] | None:
    advert = getattr(pools, "advert", None)
    return asdict(advert) if advert is not None else None


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """What this device and its way to the pools take, by the same trials as when a model is offloaded."""
    from shoal.offload.torch.measure import measured_advert, measured_home

    with Borrowed(settings["pools"], privacy="none", verify="freivalds") as pools:
        advert = measured_advert(pools, pools)
    assert advert is not None
    return {"home": asdict(measured_home()), "advert": asdict(advert)}


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """A wide network on drawn examples: seconds a step, alone and with the pools, and how far apart the two end."""
    import torch
    from torch import nn

    from shoal.offload.torch.wrap import bring_home, offload, offloading

    torch.set_num_threads(1)
    widths, rows = settings["widths"], settings["rows"]
    torch.manual_seed(0)
    x, y = torch.randn(rows, widths[0]), torch.randint(0, widths[-1], (rows,))

    def network() -> nn.Sequential:
        torch.manual_seed(1)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def steps(model: nn.Module) -> list[tuple[float, float]]:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        took: list[tuple[float, float]] = []
        for _ in range(settings["turns"]):

            def step() -> None:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()

            took.append(timed(step))
        return took

    alone, helped = network(), network()
    alone_s = steps(alone)
    modes = {"privacy": settings["privacy"], "verify": settings["verify"]}
    with products_of(settings) as pools:
        offload(helped, pools, **modes, send=settings.get("send", "worth"))
        helped_s = steps(helped)
        told = offloading(helped)
        advert = plain_advert(pools)
        bring_home(helped)
    same_bits = None
    if settings.get("send") == "all":
        tiles = TilesAtHome(settings.get("tile_operations", TILE_OPERATIONS))
        tiled = offload(network(), tiles, **modes, send="all")
        steps(tiled)
        same_bits = all(torch.equal(a, b) for a, b in zip(tiled.parameters(), helped.parameters(), strict=True))
    pairs = zip(alone.parameters(), helped.parameters(), strict=True)
    return {
        "alone_s": [wall for wall, _ in alone_s],
        "alone_cpu_s": [cpu for _, cpu in alone_s],
        "helped_s": [wall for wall, _ in helped_s],
        "helped_cpu_s": [cpu for _, cpu in helped_s],
        "largest_difference": max((one - other).abs().max().item() for one, other in pairs),
        "largest_parameter": max(parameter.abs().max().item() for parameter in alone.parameters()),
        "same_bits_as_tiles": same_bits,
        "decisions": [str(decision) for decision in told.decisions],
        "sent": sum(decision.verdict.sends for decision in told.decisions),
        "products": len(told.decisions),
        "report": asdict(told.report),
        "advert": advert,
    }


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    told = {"products": products, "train": train, "measure": measure}[settings["do"]](settings)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
