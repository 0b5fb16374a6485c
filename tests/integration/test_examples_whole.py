"""The examples on real data that their own tests do not train: an epoch or some rounds of each, as its page says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_sites import EXAMPLES, readable
from kit import cluster_in, own_commands, run

pytestmark = [pytest.mark.nightly, pytest.mark.needs_data, pytest.mark.timeout(900)]

#: Epochs, and the share of held-out examples that two devices then have right at least.
TASKS = {"mnist": (1, 0.9), "permissions": (6, 0.4)}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns_on_two_devices(name: str, tmp_path: Path, real_data: Path) -> None:
    epochs, least = TASKS[name]

    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            job = await site.submit_task(EXAMPLES / name, workers_min=2, until={"epochs": epochs})
            await site.ended(job)
            assert (site.evaluations(job)[-1].accuracy or 0.0) >= least

    run(story())


def test_a_loop_learns_at_home(real_data: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "offload" / "train.py"), "--steps", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found = re.search(r"(\d+\.\d)% of held-out digits right", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 85


def free_port(host: str) -> int:
    with socket.socket() as taken:
        taken.bind((host, 0))
        return int(taken.getsockname()[1])


def test_two_devices_train_activities_without_a_server(tmp_path: Path, real_data: Path) -> None:
    recordings, folder = real_data / "har" / "hapt_windows_9ch_128.npz", EXAMPLES / "activity"
    split = [sys.executable, str(folder / "split.py"), str(recordings), str(tmp_path / "own"), "--devices", "2"]
    subprocess.run(split, check=True, timeout=300)
    readable(tmp_path, tmp_path / "own", *(tmp_path / "own").iterdir())
    shoal = own_commands(tmp_path) / "shoal"
    secret = subprocess.run([shoal, "flock", "secret"], capture_output=True, text=True, check=True, timeout=60).stdout
    (tmp_path / "flock.key").write_text(secret, encoding="utf-8")
    (tmp_path / "flock.key").chmod(0o600)
    devices, environment = [], os.environ | {"OMP_NUM_THREADS": "1"}
    ports = {1: free_port("127.0.0.1"), 2: free_port("127.0.0.2")}
    for number, other in ((1, 2), (2, 1)):
        options = ["--devices", "2", "--rounds", "4", "--secret-file", tmp_path / "flock.key"]
        options += ["--data", tmp_path / "own" / f"device-{number}", "--name", f"device-{number}"]
        options += ["--home", tmp_path / f"home-{number}", "--host", f"127.0.0.{number}", "--whenever"]
        options += ["--port", ports[number], "--peer", f"device-{other}=127.0.0.{other}:{ports[other]}"]
        command = [str(word) for word in (shoal, "flock", "train", folder, *options)]
        devices.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True))
    ends_s = time.monotonic() + 600
    try:
        told = [device.communicate(timeout=ends_s - time.monotonic())[0] for device in devices]
    finally:
        for device in devices:
            device.kill()
    assert [device.returncode for device in devices] == [0, 0], told
