"""Real agents whose sums a helper opens, a fifth agent that trains nothing: sums are exact whichever node is killed.

While the helper is away the job waits and says so. A device, the leader or the helper dies as by ``kill -9`` at a word
of a sum (``mortal``); the model must then be the exact sum of what the history says.
"""

from __future__ import annotations

from pathlib import Path

from kit import Site, cluster_in, run
from test_sealed import LEADS_HERE, OWN_TALLY, _dies_at, _is_exact, _moves, _tallying, mortals


async def _says_that_it_waits(site: Site, job: str, helper: str) -> None:
    async def waits() -> bool | None:
        view = await site.view(job)
        progress = view.progress if view is not None else None
        return (progress is not None and f"{helper} is away" in progress.reason) or None

    await site.until(f"the job says that it waits for {helper}", waits)


def test_whoever_is_killed_at_a_word_the_sums_are_exact(tmp_path: Path) -> None:
    orders = tmp_path / "orders"

    async def story() -> None:
        async with cluster_in(tmp_path, workers=5, options=OWN_TALLY, manager_options=LEADS_HERE) as site:
            site.pace(0.4)
            helper = max(site.cluster.agents)
            job = await _tallying(site, tmp_path, trust=f"sealed(3, helper={helper})")
            await _moves(site, job)
            for word, time in (("Update", 1), ("AskMasks", 1), ("MaskSum", 1)):
                name = await _dies_at(site, orders, word, time)
                assert (name == helper) == (word == "MaskSum")
                assert (name == "") == (word == "AskMasks")
                if not name:
                    await site.cluster.start_manager()
                if name == helper:
                    await _says_that_it_waits(site, job, helper)
                if name:
                    await site.cluster.start_agent(name)
                await _moves(site, job)
            site.pace(0.0)
            await site.ended(job)
            await _is_exact(site, job)
            rows, _ = site.history(job)
            assert helper not in {row.node for row in rows}

    with mortals(orders):
        run(story())
