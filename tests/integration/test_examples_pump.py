"""``examples/pump``: devices learn what is normal while their recordings still come."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from example_sites import EXAMPLES, readable, start_with
from kit import cluster_in, run

PUMP = EXAMPLES / "pump"


def _feeder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pump_feed", PUMP / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.needs_data
def test_faults_are_told_apart_while_recordings_come(tmp_path: Path, real_data: Path) -> None:
    feed = _feeder()
    files, held_out = feed.devices_of(real_data / "har" / "hapt_windows_9ch_128.npz", 2)
    np.savez(tmp_path / "held_out.npz", **held_out)
    folders = [tmp_path / f"own-{number}" for number in (1, 2)]

    def come(first: int, last: int) -> None:
        for folder, own in zip(folders, files, strict=True):
            for number in range(first, last):
                feed.write(folder, number, own[number])
            readable(folder, *folder.iterdir())

    come(0, 4)
    readable(tmp_path)

    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            for number, folder in enumerate(folders, start=1):
                await start_with(site, f"device-{number}", folder)
            kwargs = {"held_out": str(tmp_path / "held_out.npz")}
            job = await site.submit_task(PUMP, kwargs=kwargs, workers_min=2, until={"endless": True})

            def figures() -> list[float]:
                return [
                    each.value or 0.0 for row in site.evaluations(job) for each in row.metrics if each.name == "auc"
                ]

            for first in range(4, 52, 8):
                least = len(figures()) + 1

                async def judged(least: int = least) -> bool:
                    return len(figures()) >= least

                await site.until("an evaluation", judged)
                come(first, first + 8)

            async def good() -> bool:
                return figures()[-1] >= 0.82

            await site.until("an AUC of 0.82", good)
            held = [int(each.examples) for each in site.evaluations(job)]
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            assert figures()[0] < max(figures()), "it tells faults better as recordings come"
            assert set(held) == {len(held_out["fault"])}

    run(story())
