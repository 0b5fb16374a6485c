"""Real agents, a fifth of them liars with every attack in turn: the job gets to its target, and the liar is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import HERE, cluster_in, run

CLOUDS = HERE / "clouds_task.py"
LIAR = "liar"


@pytest.mark.parametrize("pace", ["sync", "buffered"])
def test_a_fifth_of_the_devices_lie_and_the_job_reaches_its_target(tmp_path: Path, pace: str) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=4, options=()) as site:
            home = site.cluster.agent_home(LIAR)
            await site.cluster._enrol(LIAR, home)
            command = ("lying_agent", "--home", str(home))
            site.cluster.agents[LIAR] = await site.cluster._spawn(*command, log=f"{LIAR}.log")
            await site.connected(LIAR)
            job = await site.submit_task(
                CLOUDS,
                kwargs={"count": 1000},
                batch_size=20,
                learning_rate=0.05,
                seed=3,
                workers_min=5,
                trust="robust",
                pace=pace,
                buffer=5,
                until={"accuracy": 0.95, "epochs": 12},
            )
            view = await site.ended(job)
            assert "reached" in view.reason, view.reason
            down = [event.text for event in site.events(job) if event.kind == "weighed-down"]
            assert any(text.startswith(f"{LIAR} is weighed down in version") for text in down), down
            often = [text for text in down if text.startswith(LIAR) and " times so far" in text]
            assert often, "it lies in every version, and is outvoted in most"
            rows, _ = site.history(job)
            assert len({(row.epoch, row.batch) for row in rows}) == len(rows), "every batch counts once all the same"

    run(story())
