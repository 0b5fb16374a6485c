"""A PyTorch loop of one's own with real pools: managers and agents as processes, and ``shoal.offload``."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.offload.torch.wrap import bring_home, offloading
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator


async def ready(home: Path, executors: int) -> None:
    deadline_s = time.monotonic() + 60
    async with Operator.open(home) as operator:
        while sum(executor.state == "ready" for executor in (await operator.status()).executors) < executors:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)


def trained(pools: list[str], **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    x, y = torch.randn(32, 1, 8, 8), torch.randint(0, 4, (32,))
    if pools:
        model = shoal.offload(model, pools, send="all", **settings)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


@pytest.mark.parametrize(("privacy", "clusters"), [("none", 1), ("mask", 2)])
def test_a_loop_of_ones_own_with_real_pools(tmp_path: Path, privacy: str, clusters: int) -> None:
    async def run() -> nn.Module:
        async with AsyncExitStack() as stack:
            homes = [tmp_path / f"pool-{number}" for number in range(clusters)]
            for home in homes:
                await stack.enter_async_context(LocalCluster(workers=2, home=home, agent_options=("--lend",)))
                await ready(home, 2)
            model = await asyncio.to_thread(trained, [str(home) for home in homes], privacy=privacy)
            report = offloading(model).report
            assert report.liars == ()
            # Five steps of three forward and two input gradients; with nothing to hide, three weight gradients too.
            assert report.products == 5 * (5 if privacy == "mask" else 8)
            assert report.operations_away > 0
            return bring_home(model)

    model, plain = asyncio.run(run()), trained([])
    for got, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-3 if privacy == "mask" else 1e-5)
