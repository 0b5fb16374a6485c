"""Files of a job that were carried to a device are read there; what the folder lacks is fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit import cluster_in, run

from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from testbed.echo_job import echo_job

_TASK = """
import numpy as np
from torch import nn

import shoal


class Points(shoal.Task):
    def model(self):
        return nn.Linear(2, 2)

    def examples(self, split):
        count = 40 if split == "train" else 8
        rows = np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32)
        return rows, (rows[:, 0] > 0).astype(np.int64)
"""


@pytest.mark.parametrize("carried", ["whole", "spoilt"])
def test_a_device_reads_the_files_that_it_was_given(tmp_path: Path, carried: str) -> None:
    """The manager loses the shards once they were submitted: only the folder has them, or the job waits."""
    folder = tmp_path / "stick"
    folder.mkdir()
    ready = echo_job(tmp_path, values=16, batches=16)
    names = [Path(path).name for path in ready.prepared.paths(ready.prepared.train)]
    for path in map(Path, ready.prepared.paths(ready.prepared.train)):
        data = path.read_bytes()
        (folder / path.name).write_bytes(data if carried == "whole" else data[:-1] + b"?")

    async def story() -> None:
        options = ("--child-module", "shoal.trainer.echo", "--files", str(folder))
        async with cluster_in(tmp_path, workers=1, options=options, share_cache=False) as site:
            kept = BlobStore(Paths(site.cluster.home).blobs)
            if carried == "whole":
                job = await site.operator.submit(ready, plan={"workers_min": 2, "until": {"epochs": 1}})
                for name in names:
                    kept.remove(name)
                await site.cluster.start_agent("device-2")
            else:
                job = await site.operator.submit(ready, plan={"workers_min": 1, "until": {"epochs": 1}})
            await site.ended(job)
            for device in site.cluster.agents:
                said = (site.cluster.home / f"{device}.log").read_text()
                expected = f"read {names[0][:12]}… from {folder}" if carried == "whole" else "is not what its name says"
                assert expected in said
                has = BlobStore(Paths(site.cluster.agent_home(device)).cache / "blobs")
                assert all(has.verify(name) for name in names)

    run(story())


@pytest.mark.timeout(300)
def test_the_files_of_a_task_are_written_by_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(_TASK)
    out = tmp_path / "stick"
    command = (
        sys.executable,
        "-m",
        "shoal.cli.main",
        "files",
        "task.py",
        "--out",
        str(out),
        "--home",
        "home",
        "--json",
    )
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        written = sorted(path.name for path in out.iterdir())
        assert (told["files"], told["bytes"]) == (len(written), sum(path.stat().st_size for path in out.iterdir()))
        assert len(written) >= 2
        store = BlobStore(tmp_path / "store")
        assert all(store.adopt(out / name, name) for name in written)
