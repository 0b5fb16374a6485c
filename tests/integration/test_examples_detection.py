"""``examples/detection``: a head learns to find boxes on a backbone that an earlier job trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from example_sites import EXAMPLES, bytes_an_update
from kit import cluster_in, run

from shoal.wire import tensors

TASK = EXAMPLES / "detection" / "task.py"
HEAD_VALUES = 96 * 32 * 9 + 32 + 32 * 5 * 9 + 5


@pytest.mark.nightly
@pytest.mark.needs_data
def test_only_the_head_crosses_and_precision_rises(tmp_path: Path, real_data: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            until = {"seconds": 5.0, "epochs": 1}
            digits = await site.operator.prepare_and_submit(f"{TASK}:Digits", plan={"until": until})
            await site.ended(digits)
            start = tmp_path / "digits.safetensors"
            await site.operator.pull_model(digits, start)
            plan = {"until": {"epochs": 6}, "workers_min": 2}
            scenes = {"scenes": 512}
            job = await site.operator.prepare_and_submit(f"{TASK}:Detector", kwargs=scenes, plan=plan, start=start)
            view = await site.ended(job)
            assert view.progress is not None
            found = [{each.name: each.value or 0.0 for each in row.metrics} for row in site.evaluations(job)]
            assert found[-1]["precision"] > max(0.6, found[0]["precision"])
            assert found[-1]["recall"] > found[0]["recall"]
            # An update is the head as float32, and a few words beside it; the backbone has 74,784 values more.
            sent = bytes_an_update(site, job, view.progress, batches=16)
            assert 4 * HEAD_VALUES <= sent < 4.2 * HEAD_VALUES
            assert {name.partition(".")[0] for name in await site.model(job)} == {"boxes"}
            # Pulled whole, the file has the backbone that the first job trained.
            await site.operator.pull_model(job, tmp_path / "whole.safetensors", whole=True)
            whole, trained = (tensors.read(file)[0] for file in (tmp_path / "whole.safetensors", start))
            # BatchNorm's counters of batches are whole numbers, which no job trains.
            backbone = {name for name in whole if name.startswith("backbone.") and not name.endswith("tracked")}
            assert backbone == {name for name in trained if name.startswith("backbone.")}
            assert all(np.array_equal(whole[name], trained[name]) for name in backbone)

    run(story())
