"""`shoal nodes --as-fleet` of a cluster that has trained: its file is simulated as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kit import HERE, cluster_in, run

from shoal.cli import main
from shoal.cli.exits import Exit
from shoal.sim.fleet_file import load_fleet
from shoal.sim.profiles import Fleet
from shoal.sim.rng import Rng

TASK = HERE / "clouds_task.py"


def test_a_cluster_is_simulated_from_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "shoal nodes --as-fleet > fleet.toml" in (HERE.parents[1] / "docs" / "plan-a-fleet.md").read_text()

    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            home = str(site.cluster.home)
            job = await site.submit_task(TASK, workers_min=2, until={"epochs": 4})
            await site.ended(job)
            assert await asyncio.to_thread(main.run, ["nodes", "--as-fleet", "--home", home]) == Exit.OK
            (tmp_path / "fleet.toml").write_text(text := capsys.readouterr().out)
            progress = (await site.operator.status(job)).jobs[0].progress
            assert progress is not None
            train_s = sorted(worker.train_s for worker in progress.workers)
            assert text.count(f"# measured in {job}") == len({line for line in text.splitlines() if job in line})
            fleet = load_fleet(tmp_path / "fleet.toml")
            speeds = sorted(build.seconds_per_gmac for build in Fleet(fleet, 2, Rng(0)))
            # As the leader measured the two: the size of a lease is the same.
            assert speeds[1] / speeds[0] == pytest.approx(train_s[1] / train_s[0], rel=0.12)

    run(story())
    words = ["simulate", str(TASK), "--fleet", "fleet.toml", "--epochs", "1", "--system-only"]
    assert main.run([*words, "--home", str(tmp_path / "own")]) == Exit.OK
    assert "2 devices of fleet.toml" in " ".join(capsys.readouterr().out.split())
