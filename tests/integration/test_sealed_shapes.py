"""Real agents whose masked words meet in aggregators: one is killed as by ``kill -9`` while a sum is under way.

It dies when it is about to say that it has a piece, or to send its sum; or the leader does when some aggregators were
asked for theirs. The model must then be the exact sum of what the history says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Site, cluster_in, run
from test_sealed import LEADS_HERE, OWN_TALLY, _dies_at, _is_exact, _moves, _tallying, mortals


async def _forms(site: Site, job: str, kind: str) -> None:
    async def is_formed() -> bool | None:
        view = await site.view(job)
        progress = view.progress if view is not None else None
        return (progress is not None and progress.topology.startswith(kind)) or None

    await site.until(f"a {kind}", is_formed)


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_whoever_is_killed_while_words_meet_the_sums_are_exact(tmp_path: Path, kind: str) -> None:
    orders = tmp_path / "orders"
    shape = {"topology": kind, "aggregators": 2 if kind == "tree" else 0, "until": {"epochs": 20}}

    async def story() -> None:
        async with cluster_in(tmp_path, workers=6, options=OWN_TALLY, manager_options=LEADS_HERE) as site:
            site.pace(0.4)
            job = await _tallying(site, tmp_path, **shape)
            for word, time in (("ShardAck", 2), ("ReduceResult", 1), ("Reduce", 2)):
                await _forms(site, job, kind)
                name = await _dies_at(site, orders, word, time)
                assert bool(name) == (word != "Reduce")
                if name:
                    await site.cluster.start_agent(name)
                else:
                    await site.cluster.start_manager()
                await _moves(site, job)
            await _forms(site, job, kind)
            await _moves(site, job)
            site.pace(0.0)
            await site.ended(job)
            await _is_exact(site, job)

    with mortals(orders):
        run(story())
