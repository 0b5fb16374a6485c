"""One analyst: a process that multiplies or trains, alone or with pools, and tells what it took.

    python -m benchmarks.offload_analyst '{"do": "product", "pools": [...], "rows": 2048, "inner": 1024, ...}'

``product``: one product again and again, each time with another right side, as in training. ``train``: steps of a wide
network. Both are done alone first, in the same process and under the same quota. The last line is JSON.
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

from benchmarks.offload_modes import drawn
from shoal.offload.products import AtHome, Products
from shoal.runtime.borrowed import Borrowed


@contextmanager
def products_of(settings: dict[str, Any]) -> Iterator[Products]:
    if not settings["pools"]:
        yield AtHome()
        return
    with Borrowed(settings["pools"], privacy=settings["privacy"], verify=settings["verify"]) as borrowed:
        yield borrowed


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of this process's processor time."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def product(settings: dict[str, Any]) -> dict[str, Any]:
    left, right = drawn(settings["rows"], settings["inner"], settings["columns"])
    versions = [right * np.float32(1 + turn / 1000) for turn in range(settings["turns"])]
    home = [timed(lambda version=version: left @ version) for version in versions]  # type: ignore[misc]
    away: list[tuple[float, float]] = []
    worst = 0.0
    with products_of(settings) as products:
        # Who has never met knows nothing of the link, and has no connection.
        products.multiply(left[:64], right, secret="left", name="first")
        before = products.report
        for version in versions:
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            made = products.multiply(left, version, secret="left", name="again")
            away.append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
            worst = max(worst, float(np.abs(made - left @ version).max()))
        after = products.report
    count = len(versions)
    return {
        "home_s": median(wall for wall, _ in home),
        "home_cpu_s": median(cpu for _, cpu in home),
        "wall_s": median(wall for wall, _ in away),
        "cpu_s": median(cpu for _, cpu in away),
        "bytes": (after.bytes_moved - before.bytes_moved) / count,
        "largest_difference": worst,
        "report": asdict(after),
        "advert": asdict(advert) if (advert := getattr(products, "advert", None)) else None,
    }


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """A wide network on drawn examples: seconds a step, alone and with the pools, and how far apart the two end."""
    import torch
    from torch import nn

    from shoal.training.offload.wrap import bring_home, offload, offloading

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

    def steps(model: nn.Module) -> list[float]:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        took = []
        for _ in range(settings["turns"]):

            def step() -> None:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()

            took.append(timed(step)[0])
        return took

    alone, helped = network(), network()
    alone_s = steps(alone)
    with products_of(settings) as products:
        offload(
            helped, products, privacy=settings["privacy"], verify=settings["verify"], send=settings.get("send", "worth")
        )
        helped_s = steps(helped)
        told = offloading(helped)
        advert = getattr(products, "advert", None)
        bring_home(helped)
    pairs = zip(alone.parameters(), helped.parameters(), strict=True)
    return {
        "alone_s": alone_s,
        "helped_s": helped_s,
        "largest_difference": max(float((one - other).abs().max()) for one, other in pairs),
        "largest_parameter": max(float(parameter.abs().max()) for parameter in alone.parameters()),
        "decisions": [str(decision) for decision in told.decisions],
        "sent": sum(decision.verdict.sends for decision in told.decisions),
        "products": len(told.decisions),
        "report": asdict(told.report),
        "advert": asdict(advert) if advert else None,
    }


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    told = {"product": product, "train": train}[settings["do"]](settings)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
