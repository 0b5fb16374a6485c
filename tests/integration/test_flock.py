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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.transport.flock_secret import FlockSecret
from shoal.wire import tensors
from testbed.namespaces import Network, why_no_namespaces

NAMES = ("ant", "bee", "cat")
LIMIT_S = 150.0

TASK = """
    import numpy as np
    import shoal
    from torch import nn

    RULE = np.random.default_rng(0).normal(size=(20, 4))

    class Corners(shoal.Task):
        def __init__(self, width: int = 32) -> None:
            self.width = width

        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(20, self.width), nn.ReLU(), nn.Linear(self.width, 4))

        def examples(self, split):
            if split == "test":
                x = np.random.default_rng(99).normal(size=(500, 20)).astype(np.float32)
                return x, (x @ RULE).argmax(1)
            held = np.load(shoal.data.local_folder() / "train.npz")
            return held["x"], held["y"]

        loss = staticmethod(nn.functional.cross_entropy)
"""


class Mates:
    """Real devices of one flock, each a process in a namespace of its own."""

    def __init__(self, folder: Path, network: Network, *, rounds: int, width: int) -> None:
        self._folder = folder
        self._network = network
        self._options = ("--rounds", str(rounds), "--set", f"width={width}")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "flock.key").write_text(FlockSecret.draw().text)
        (folder / "task.py").write_text(textwrap.dedent(TASK))
        rule = np.random.default_rng(0).normal(size=(20, 4))
        for number, name in enumerate(NAMES, start=1):
            x = np.random.default_rng(number).normal(size=(200 * number, 20)).astype(np.float32)
            (folder / name).mkdir()
            np.savez(folder / name / "train.npz", x=x, y=(x @ rule).argmax(1))

    def start(self, name: str) -> None:
        command = [*self._network.enter(name), sys.executable, "-m", "shoal.cli.main", "flock", "train"]
        command += [str(self._folder / "task.py"), "--devices", str(len(NAMES)), *self._options]
        command += ["--secret-file", str(self._folder / "flock.key"), "--data", str(self._folder / name)]
        command += ["--name", name, "--home", str(self._folder / f"home-{name}"), "--whenever", "--json"]
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


@contextlib.contextmanager
def flock(folder: Path, network: Network, *, rounds: int, width: int) -> Iterator[Mates]:
    mates = Mates(folder, network, rounds=rounds, width=width)
    try:
        for name in NAMES:
            mates.start(name)
        yield mates
    finally:
        mates.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_one_is_killed_in_the_middle_of_a_merge(tmp_path: Path, network: Network, victim: str) -> None:
    # A model of 0.4 MB at 1 Mb/s is on its way for three seconds.
    for name in NAMES:
        network.limit(name, up_mbps=1.0, down_mbps=1.0)
    with flock(tmp_path, network, rounds=2, width=4000) as mates:
        pair = mates.await_line(r"pair: round 1: (\w+) gives to (\w+)", "ant", "bee")
        lost = pair[1] if victim == "sender" else pair[2]
        time.sleep(0.5)
        mates.kill(lost)
        left = [name for name in NAMES if name != lost]
        told = [mates.result(name) for name in left]
        assert {each["digest"] for each in told} == {told[0]["digest"]}
        assert [each["version"] for each in told] == [2, 2]
        made = [re.findall(r"made: version (\d+) of \d+ updates: (.*)", mates.log(name)) for name in left]
        of = {int(version): names.split(", ") for rows in made for version, names in rows}
        # What it had not handed on when it died is in no version; both others are in each.
        assert of == {1: left, 2: left}
        models = [tensors.read(Path(each["model"]))[0] for each in told]
        for name in models[0]:
            np.testing.assert_array_equal(models[0][name], models[1][name])


@pytest.mark.timeout(300)
def test_the_conductor_dies_and_comes_back(tmp_path: Path, network: Network) -> None:
    with flock(tmp_path, network, rounds=40, width=32) as mates:
        mates.await_line(r"made: version 3 of 3", *NAMES)
        mates.kill("ant")
        mates.await_line(r"bee conducts in term 2: ant is silent", "bee")
        mates.start("ant")
        told = [mates.result(name) for name in NAMES]
        assert len({each["digest"] for each in told}) == 1
        assert {each["version"] for each in told} == {40}
        # Two went on without it, and all three were together again.
        logs = "".join(mates.log(name) for name in NAMES)
        assert "of 2 updates: bee, cat" in logs
        assert told[0]["accuracy"] > 0.5
