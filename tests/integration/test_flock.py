"""Devices without a manager: they find each other on a bare network, train, lose one in mid-merge, and finish alike."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.flock.secret import FlockSecret
from shoal.trainer.echo import UPDATE_VALUE
from shoal.wire import tensors
from testbed.flocks import command, give_orders
from testbed.namespaces import Network, why_no_namespaces

NAMES = ("ant", "bee", "cat")
LIMIT_S = 450.0
VALUES = 150_000

TASK = """
    import numpy as np
    import shoal
    from torch import nn

    RULE = np.random.default_rng(0).normal(size=(20, 4))

    class Corners(shoal.Task):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))

        def examples(self, split):
            if split == "test":
                x = np.random.default_rng(99).normal(size=(500, 20)).astype(np.float32)
                return x, (x @ RULE).argmax(1)
            held = np.load(shoal.data.local_folder() / "train.npz")
            return held["x"], held["y"]

        loss = staticmethod(nn.functional.cross_entropy)
"""


class Peers:
    """Real devices of one flock, each a process in a namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=out, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """The device and whatever it started, at once."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait(10)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def await_line(self, pattern: str, *names: str) -> re.Match[str]:
        """The first of a kind in these logs."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            for name in names:
                if found := re.search(pattern, self.log(name)):
                    return found
            time.sleep(0.02)
        raise AssertionError(f"nothing like {pattern} in:\n" + "\n".join(self.log(name) for name in names))

    def result(self, name: str) -> dict[str, Any]:
        assert self.processes[name].wait(LIMIT_S) == 0, self.log(name)
        told: dict[str, Any] = json.loads((self._folder / f"{name}.out").read_text())
        return told

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


@pytest.fixture
def network() -> Iterator[Network]:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    with Network(NAMES) as network:
        yield network


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    peers = Peers(tmp_path)
    yield peers
    peers.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["sender", pytest.param("receiver", marks=pytest.mark.gate("flock"))])
def test_one_is_killed_in_the_middle_of_a_merge(tmp_path: Path, network: Network, peers: Peers, victim: str) -> None:
    hosts = {name: network.address_of(name) for name in NAMES}
    # A model of 0.6 MB at 1 Mb/s is on its way for five seconds: also on a busy machine, it is when the kill comes.
    homes = give_orders(tmp_path, hosts, rounds=2, values=VALUES)
    for name in NAMES:
        network.limit(name, up_mbps=1.0, down_mbps=1.0)
        peers.start(name, [*network.enter(name), *command(homes[name])])
    pair = peers.await_line(r"merge.started: round 1: (\w+) gives to (\w+)", "ant", "bee")
    lost = pair[1] if victim == "sender" else pair[2]
    time.sleep(0.5)
    peers.kill(lost)
    left = [name for name in NAMES if name != lost]
    told = [peers.result(name) for name in left]
    assert {each["digest"] for each in told} == {told[0]["digest"]}
    assert [each["version"] for each in told] == [2, 2]
    made = [re.findall(r"version.made: version (\d+) of \d+ updates: (.*)", peers.log(name)) for name in left]
    of = {int(version): names.split(", ") for rows in made for version, names in rows}
    # What it had not handed on when it died is in no version; both others are in each.
    assert of == {1: left, 2: left}
    for each in told:
        # Every update is the same, and so is the mean of those that are in: two versions, two of them.
        (values,) = tensors.read(Path(each["model"]))[0].values()
        np.testing.assert_array_equal(values, np.full(VALUES, 2 * UPDATE_VALUE, np.float32))


def with_examples(folder: Path) -> None:
    """A task, and examples of its own for each device."""
    (folder / "flock.key").write_text(FlockSecret.draw().text)
    (folder / "task.py").write_text(textwrap.dedent(TASK))
    rule = np.random.default_rng(0).normal(size=(20, 4))
    for number, name in enumerate(NAMES, start=1):
        x = np.random.default_rng(number).normal(size=(200 * number, 20)).astype(np.float32)
        (folder / name).mkdir()
        np.savez(folder / name / "train.npz", x=x, y=(x @ rule).argmax(1))


#: A device that starts again takes as long as some sixty rounds of the others, on a quiet machine and on a busy one.
ROUNDS = 150


@pytest.mark.timeout(900)
def test_the_conductor_dies_and_comes_back(tmp_path: Path, network: Network, peers: Peers) -> None:
    with_examples(tmp_path)

    def start(name: str) -> None:
        typed = [*network.enter(name), sys.executable, "-m", "shoal.cli.main", "flock", "train"]
        typed += [str(tmp_path / "task.py"), "--devices", str(len(NAMES)), "--rounds", str(ROUNDS)]
        typed += ["--secret-file", str(tmp_path / "flock.key"), "--data", str(tmp_path / name)]
        peers.start(name, [*typed, "--name", name, "--home", str(tmp_path / f"home-{name}"), "--whenever", "--json"])

    for name in NAMES:
        start(name)
    peers.await_line(r"version.made: version 3 of 3", *NAMES)
    peers.kill("ant")
    peers.await_line(r"bee coordinates in term 2: ant is silent", "bee")
    start("ant")
    told = [peers.result(name) for name in NAMES]
    assert len({each["digest"] for each in told}) == 1
    assert {each["version"] for each in told} == {ROUNDS}
    # Two went on without it; all three end with what came of it.
    assert "of 2 updates: bee, cat" in peers.log("bee") + peers.log("cat")
    assert told[0]["accuracy"] > 0.5
