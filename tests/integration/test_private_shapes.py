"""Real agents of a private job whose updates meet in aggregators, one killed as by ``kill -9`` while it sums up.
Devices keep their accounts, and the model is what the history says, with the leader's noise in it once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from kit import Site, cluster_in, run
from own_tally_trainer import place_of
from test_sealed import OWN_TALLY, VALUES, _dies_at, _moves, _tallying, mortals

from shoal.learning.blt import coefficients
from shoal.plan import Plan, epochs
from shoal.scheduling.ledger import Applied

COHORT, LEASES, EPOCHS = 4, 20, 12
PRIVATE = {
    "trust": "private(100, 1e-4)",
    "cohort": COHORT,
    "epoch_leases": LEASES,
    "clip_update": 1.0,
    "apart": 1,
    "participations": 200,
}


async def _forms(site: Site, job: str, kind: str) -> None:
    await site.progress(job, f"a {kind}", lambda told: told.topology.startswith(kind))


def _accounts(site: Site, name: str) -> list[tuple[int, int]]:
    """What is on the device's disk."""
    (found,) = site.cluster.agent_home(name).rglob("privacy/*.json")
    return [tuple(pair) for pair in json.loads(found.read_text())["participations"]]


def _deviation(versions: list[int], *, of: int) -> float:
    """Of the noise in each value of a model that was moved by these versions of one chain, in units of fresh noise."""
    column, most = coefficients(of), max(versions)
    lower = sum(column[late] * np.eye(most, k=-late) for late in range(most))
    return float(np.linalg.norm(np.linalg.inv(lower)[[version - 1 for version in versions]].sum(axis=0)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_noise_is_in_the_model_once_and_accounts_outlive_an_aggregator(tmp_path: Path, kind: str) -> None:
    orders = tmp_path / "orders"
    shape = {"topology": kind, "aggregators": 2 if kind == "tree" else 0, "until": {"epochs": EPOCHS}}

    async def story() -> None:
        async with cluster_in(tmp_path, workers=5, options=OWN_TALLY) as site:
            site.pace(0.3)
            job = await _tallying(site, tmp_path, **{**PRIVATE, **shape})
            for word in ("ShardAck", "ReduceResult"):
                await _forms(site, job, kind)
                name = await _dies_at(site, orders, word, 2)
                assert name, "a device sums up"
                before = _accounts(site, name)
                await site.cluster.start_agent(name)
                await _moves(site, job)
                assert _accounts(site, name)[: len(before)] == before, "nothing is given back"
            await _forms(site, job, kind)
            await _moves(site, job)
            site.pace(0.0)
            told = await site.progress(job, "its account", lambda told: told.participations_worst > 0)
            assert 0 < told.epsilon_worst <= told.epsilon <= 100
            await site.ended(job)
            rows, _ = site.history(job)
            for name in site.cluster.agents:
                counted = _accounts(site, name)
                assert len({row.version for row in rows if row.node == name}) <= len(counted)
                assert len(set(counted)) == len(counted), "one update a version"
            _is_noised(rows, (await site.model(job))["flat"])

    def _is_noised(rows: Sequence[Applied], model: np.ndarray) -> None:
        tally, versions = np.zeros(VALUES), sorted({row.version for row in rows})
        for row in rows:
            tally[place_of(row.epoch, row.node, VALUES)] += 1 / COHORT
        privacy = Plan(**{**PRIVATE, "data": "local", "until": epochs(EPOCHS)}).privacy  # type: ignore[arg-type]
        assert privacy is not None
        noise = model - tally
        wanted = privacy.mean_deviation * _deviation(versions, of=privacy.versions)
        assert np.std(noise) == pytest.approx(wanted, rel=4 / np.sqrt(2 * VALUES))

    with mortals(orders):
        run(story())
