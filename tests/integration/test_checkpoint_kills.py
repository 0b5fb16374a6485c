"""kill -9 while checkpoints are saved: what was acknowledged is there, whole, and nothing half is ever loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.store.checkpoints import CheckpointStore, LoadedCheckpoint

KILLS = 80
SAVER = Path(__file__).with_name("checkpoint_saver.py")


class Saver:
    """Talks to the process that forks savers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def ask(self, command: str) -> None:
        self._stdin.write(command + "\n")
        self._stdin.flush()

    def start(self, command: str) -> int:
        self.ask(command)
        word, pid = self._stdout.readline().split()
        assert word == "started"
        return int(pid)

    def saved(self) -> int:
        """Wait for the next version to be acknowledged."""
        word, version = self._stdout.readline().split()
        assert word == "saved"
        return int(version)

    def reap(self) -> int:
        """Wait for the saver to be gone; the last version it acknowledged meanwhile, or 0."""
        self.ask("reap")
        acknowledged = 0
        while (line := self._stdout.readline().split()) != ["reaped"]:
            assert line[0] == "saved"
            acknowledged = int(line[1])
        return acknowledged


@pytest.fixture
def saver() -> Iterator[Saver]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(SAVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        yield Saver(process)
    finally:
        process.kill()
        process.communicate()


def loaded(directory: Path) -> LoadedCheckpoint:
    found = CheckpointStore(directory).load()
    assert found is not None
    assert found.state == {"version": found.version, "ledger": [found.version] * 100}
    assert np.all(found.tensors["model"] == found.version)
    assert np.array_equal(found.tensors["velocity"], np.arange(found.version, found.version + (1 << 15)))
    return found


@pytest.mark.timeout(360)
def test_kills_at_random_moments(saver: Saver, tmp_path: Path) -> None:
    chance = np.random.default_rng(20240607)
    version, torn, save_s = 0, 0, 0.01
    for kill in range(KILLS):
        pid = saver.start(f"loop {tmp_path}")
        # The moment is counted in saves, so that a busy machine is killed in the same places as an idle one.
        for _ in range(max(int(chance.integers(0, 4)), 2 if kill == 0 else 0)):
            started_s = time.monotonic()
            version = saver.saved()
            save_s = time.monotonic() - started_s
        time.sleep(chance.uniform(0, 2 * min(save_s, 0.1)))
        os.kill(pid, signal.SIGKILL)
        acknowledged = max(saver.reap(), version)
        torn += any(tmp_path.glob(".*.tmp"))

        found = loaded(tmp_path)

        assert found.which == "newest"
        assert found.skipped == ()
        # One more than acknowledged: it was durable, and the kill came before it could be said.
        assert acknowledged <= found.version <= acknowledged + 1
        assert not any(tmp_path.glob(".*.tmp"))
        assert len(list(tmp_path.iterdir())) <= 2
        version = found.version
    assert version > KILLS
    assert torn > KILLS // 20, "the kills hardly ever met a write"


@pytest.mark.timeout(360)
def test_kills_around_every_system_call_that_orders_a_save(saver: Saver, tmp_path: Path) -> None:
    """A save is: fsync the file, rename it, fsync the directory, unlink the oldest. The rename is the moment."""
    outcome = []
    for call in range(1, 6):
        for when in ("before", "after"):
            directory = tmp_path / f"{call}-{when}"
            saver.start(f"once {directory} {call} {when}")
            acknowledged = saver.reap()
            found = loaded(directory)
            assert found.which == "newest"
            assert found.version >= acknowledged
            outcome.append((found.version, acknowledged))
            assert not any(directory.glob(".*.tmp"))
    dies_before_rename, dies_after_rename, survives = (2, 0), (3, 0), (3, 3)
    assert outcome == [dies_before_rename] * 3 + [dies_after_rename] * 5 + [survives] * 2
