"""Real agents that cut themselves before they seal: the model is the exact sum of updates that were cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit import Site
from own_tally_trainer import place_of
from shared_cluster import SharedCluster, shared_cluster
from test_sealed import OWN_TALLY, VALUES, _tallying

#: A turn's update is one long.
CLIP = 0.25

cluster = shared_cluster(workers=4, options=OWN_TALLY)


@pytest.mark.parametrize("kind", ["star", "shard"])
def test_what_agents_seal_is_cut_whatever_the_trainer_made(tmp_path: Path, cluster: SharedCluster, kind: str) -> None:
    async def story(site: Site) -> None:
        site.pace(0.1)
        trust = {"trust": "robust(clip) + sealed(3, 0%, 30%)", "clip_update": CLIP, "worker_momentum": 0.0}
        job = await _tallying(site, tmp_path, **trust, topology=kind, until={"epochs": 6})
        if kind != "star":
            await site.progress(job, f"a {kind}", lambda told: told.topology.startswith(kind))
        site.pace(0.0)
        await site.ended(job)
        rows, _ = site.history(job)
        model = np.zeros(VALUES)
        for version in sorted({row.version for row in rows}):
            places = [place_of(row.epoch, row.node, VALUES) for row in rows if row.version == version]
            np.add.at(model, places, CLIP / len(places))
        np.testing.assert_allclose((await site.model(job))["flat"], model, rtol=1e-4, atol=1e-5)

    cluster.run(story)
