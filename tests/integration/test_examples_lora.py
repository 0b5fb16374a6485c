"""``examples/lora_notes``: adapters learn from notes on two devices, and only adapters cross."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from example_sites import EXAMPLES, bytes_an_update, readable, start_with
from kit import cluster_in, run

pytest.importorskip("peft", reason="the example's adapters are peft's")
pytest.importorskip("transformers", reason="the example's base is a transformers model")

NOTES = EXAMPLES / "lora_notes"
#: Four matrices of 256 x 256 and three of 256 x 512 a layer, its two norms; the norm, the bytes in and out.
BASE_VALUES = 4 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256 + 2 * 256 * 256
#: Rank 8 on the seven matrices of each of four layers: sides of 256 and 256, or 256 and 512.
ADAPTER_VALUES = 4 * 8 * (4 * (256 + 256) + 3 * (256 + 512))


@pytest.mark.nightly
def test_adapters_cross_and_the_base_comes_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, NOTES / "notes.py", tmp_path, "--notes", "48"], check=True, timeout=180)
    readable(tmp_path)

    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=(), share_cache=False) as site:
            for number in (1, 2):
                await start_with(site, f"device-{number}", tmp_path / f"device-{number}")
            short = {"lease_batches": 8, "batch_size": 2, "epoch_leases": 2, "outer_rate": 1.0, "momentum": 0.0}
            job = await site.submit_task(NOTES, **short, schedule="", workers_min=2, until={"epochs": 2})
            await site.progress(job, "two updates", lambda told: told.version >= 1)
            bases = [_base(site.cluster.agent_home(f"device-{number}")) for number in (1, 2)]
            before = [file.stat() for file in bases]
            view = await site.ended(job)
            assert view.progress is not None
            losses = [row.loss for row in site.evaluations(job)]
            # A model that knows nothing pays ln 256 = 5.5 for a byte.
            assert losses[0] < 5.55
            assert losses[-1] < losses[0] - 0.1
            # An update is the adapters as float32, and a few words beside them.
            assert 4 * ADAPTER_VALUES <= bytes_an_update(site, job, view.progress) < 4.2 * ADAPTER_VALUES
            # The base came before the first update, in bfloat16, and was not fetched again.
            after = [file.stat() for file in bases]
            assert [each.st_mtime_ns for each in after] == [each.st_mtime_ns for each in before]
            assert all(2 * BASE_VALUES <= each.st_size < 2.1 * BASE_VALUES for each in after)

    run(story())


def _base(home: Path) -> Path:
    (file,) = (each for each in (home / "cache").rglob("*") if each.is_file() and each.stat().st_size > 2 * BASE_VALUES)
    return file
