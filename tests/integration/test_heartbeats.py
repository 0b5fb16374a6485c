"""Heartbeats over real sockets: a device that waits is heard less often, and is alive all the while."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator

#: Of patience: the machine may be busy.
DEADLINE_S = 240.0


@pytest.mark.timeout(400)
def test_a_device_that_waits_is_heard_less_often_and_is_alive(tmp_path: Path) -> None:
    async def story() -> None:
        async with LocalCluster(workers=1, home=tmp_path / "home") as cluster, Operator.open(cluster.home) as operator:
            began_s, longest_s = time.monotonic(), 0.0
            # With a heartbeat a second a device would be suspect after 3 s: that long a silence is a longer interval.
            while longest_s < 3.2:
                assert time.monotonic() - began_s < DEADLINE_S, f"it was heard every {longest_s:.1f} s at least"
                views = [view for view in (await operator.status()).nodes if view.node == "device-1"]
                for view in views:
                    assert view.state != "lost", view.reason
                    if view.state == "alive":
                        longest_s = max(longest_s, view.heard_s)
                await asyncio.sleep(0.25)

    asyncio.run(story())
