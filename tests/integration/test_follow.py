"""`shoal model follow` beside a fleet that learns from its own examples: a file that becomes better, and stays so."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from follower import Follower
from kit import HERE, WAIT_S, Site, cluster_in, run
from readings_task import readings

from shoal.cli.model_follower import version_in

READINGS = HERE / "readings_task.py"


async def _status(site: Site, job: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal.cli.main", "status", job, "--json", "--home", str(site.cluster.home)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    told: dict[str, Any] = json.loads(out)
    return told


@pytest.mark.slow
def test_a_file_follows_what_is_best(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site, AsyncExitStack() as ending:
            files = []
            for number in (1, 2):
                own = tmp_path / f"own-{number}"
                own.mkdir()
                files.append(own / "readings.csv")
                files[-1].write_text(readings(200, seed=number))
                files[-1].chmod(0o644)
                own.chmod(0o755)
                await site.cluster.start_agent(f"device-{number}", "--data", str(own))
                await site.connected(f"device-{number}")

            def more(lines: str) -> None:
                for file in files:
                    with file.open("a") as end:
                        end.write(lines)

            plan: dict[str, Any] = {"workers_min": 2, "until": {"endless": True}, "learning_rate": 0.001}
            job = await site.submit_task(READINGS, **plan, momentum=0.0, seed=3)
            follower = await ending.enter_async_context(Follower.start(site, job, tmp_path / "model.safetensors"))
            unseen = readings(500, seed=99)
            first = await follower.line("pulled")
            began = follower.right(unseen)
            # It learns on. What is new is judged by a model that knows more.
            held = first
            for batch in range(30):
                is_good = (held["accuracy"] or 0.0) > 0.85 and follower.right(unseen) > max(began, 0.8)
                if (held["examples"] or 0) >= 60 and is_good:
                    break
                more(readings(100, seed=50 + batch))
                held = await follower.line("pulled", "kept")
            assert held["version"] > first["version"]
            assert follower.right(unseen) > max(began, 0.8)
            # The world changes: every place has another name. What is judged so is worse, and is not taken.
            told = readings(300, seed=99).splitlines()
            more("".join(f"{line[:-1]}{(int(line[-1]) + 1) % 3}\n" for line in told))
            drift = None
            while drift is None or "is worse" not in held["reason"]:
                held = await follower.line("pulled", "kept")
                drift = (await _status(site, job))["drift"]
            assert drift["latest"]["accuracy"] < 0.5 < held["accuracy"]
            assert version_in(follower.file, job=job) == held["version"]
            assert follower.right(unseen) > 0.8
            await site.operator.stop(job)
            ended = await follower.line("ended")
            assert ended["version"] == held["version"]
            assert await asyncio.wait_for(follower.process.wait(), WAIT_S) == 0
            assert not [path for path in tmp_path.iterdir() if path.name.startswith(".model")]
            exported = [path for path in (site.cluster.home / "cluster" / "blobs").rglob("*") if path.is_file()]
            assert len(exported) < 12, "models that were given out are let go"

    run(story())
