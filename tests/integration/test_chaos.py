"""A short soak of the real thing: every batch once, the job ends, nothing is left; and that the soak counts rightly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shoal.sim.rng import Rng
from testbed.chaos.faults import (
    KILL_MANAGER,
    LASTS_S,
    MANAGER,
    ON_WORKERS,
    WITH_MANAGER,
    Outage,
    Stretch,
    alive_device_s,
    at_their_pace,
    draw_faults,
    percentile,
    stretches,
)
from testbed.chaos.kit import ROOT, left_behind, tally_of
from testbed.namespaces import left_of, why_no_namespaces

#: A soak, and how it counts: what it breaks is broken one by one in test_faults.py and test_failover.py.
pytestmark = pytest.mark.nightly

DEVICES = ("a", "b", "c", "d", "e", "f")
LIMIT_S = 330.0


def _started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "benchmarks.chaos", "--quick", "--json", "--seed", "1", *words)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes)


def _nothing_left(process: subprocess.Popen[str], directory: Path) -> bool:
    links = [] if why_no_namespaces() else left_of(process.pid)
    return [*left_behind(directory, [process.pid]), *links, *directory.iterdir()] == []


@pytest.mark.needs_data
def test_a_soak_with_the_manager_among_the_victims(tmp_path: Path, real_data: Path) -> None:
    with _started(tmp_path, "--devices", "4") as process:
        out, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told[-4000:]
    result = json.loads(out.splitlines()[-1])
    assert result["faults"] == 10
    assert result["faults_missed"] == 0
    assert result["leader_faults"] >= 1
    assert (result["batches_lost"], result["batches_twice"]) == (0, 0)
    assert result["model_matches_history"]
    assert result["bugs_logged"] == []
    assert result["left_behind"] == []
    assert 0.1 < result["goodput"] < 1.2
    assert 0.1 < result["goodput_with_leader_faults"] < 1.2
    # The start of two processes and a round; a loaded machine may take its time.
    assert 1.0 < result["leader_recovery_p95_s"] < 30.0
    assert _nothing_left(process, tmp_path)


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_soak_leaves_nothing(tmp_path: Path, real_data: Path, number: signal.Signals) -> None:
    with _started(tmp_path, "--devices", "2") as process:
        assert process.stderr is not None
        deadline_s = time.monotonic() + LIMIT_S
        # In the middle of the first faults, with a device hurt.
        while " s  " not in (line := process.stderr.readline()):
            assert line, "the soak ended before its first fault"
            assert time.monotonic() < deadline_s
        process.send_signal(number)
        process.communicate(timeout=180)
    assert process.returncode != 0
    assert _nothing_left(process, tmp_path)


# How it draws and counts --------------------------------------------------------------------------------


def test_a_seed_draws_the_same_faults_and_every_kind_has_its_turn() -> None:
    def drawn(seed: int) -> list[object]:
        chance = Rng(seed).stream("faults")
        return list(draw_faults(chance, kinds=WITH_MANAGER, devices=DEVICES, every_s=10, span_s=180))

    assert drawn(3) == drawn(3) != drawn(4)
    faults = draw_faults(Rng(3).stream("faults"), kinds=WITH_MANAGER, devices=DEVICES, every_s=10, span_s=180)
    assert [fault.at_s for fault in faults] == [10.0 * number for number in range(18)]
    assert Counter(fault.kind for fault in faults) == {kind: 2 * WITH_MANAGER.count(kind) for kind in WITH_MANAGER}
    for fault in faults:
        assert LASTS_S[fault.kind][0] <= fault.for_s <= LASTS_S[fault.kind][1]
        assert (fault.victim == MANAGER) == (fault.kind not in ON_WORKERS)
    assert Counter(fault.kind for fault in faults)[KILL_MANAGER] == 4


def test_no_device_is_struck_while_it_is_down() -> None:
    faults = draw_faults(Rng(5).stream("faults"), kinds=ON_WORKERS, devices=DEVICES, every_s=5, span_s=600)
    free_s = dict.fromkeys(DEVICES, 0.0)
    for fault in faults:
        assert fault.at_s >= free_s[fault.victim]
        free_s[fault.victim] = fault.at_s + fault.for_s


def test_alive_is_who_is_not_out_while_there_is_a_manager() -> None:
    outages = [
        Outage(who="a", from_s=8, to_s=14),
        Outage(who="b", from_s=12, to_s=99),
        Outage(who=MANAGER, from_s=13, to_s=15),
    ]
    found = stretches(outages, devices=("a", "b", "c"), from_s=10, to_s=20)
    assert [(stretch.from_s, stretch.to_s, stretch.alive) for stretch in found] == [
        (10, 12, ("b", "c")),
        (12, 13, ("c",)),
        (13, 14, ()),
        (14, 15, ()),
        (15, 20, ("a", "c")),
    ]
    # 2 x 2 + 1 x 1 + 0 + 0 + 5 x 2
    assert alive_device_s(outages, devices=("a", "b", "c"), from_s=10, to_s=20) == 15


def test_rounds_are_as_long_as_the_slowest_one_alive() -> None:
    found = [
        Stretch(from_s=0, to_s=10, alive=("quick", "slow")),
        Stretch(from_s=10, to_s=20, alive=("quick",)),
        Stretch(from_s=20, to_s=30, alive=()),
    ]
    # 10 s of rounds of 0.5 s for two, then 10 s of rounds of 0.25 s for one.
    assert at_their_pace(found, paces_s={"quick": 0.2, "slow": 0.45}, overhead_s=0.05) == pytest.approx(40 + 40)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 21)]
    assert percentile(values, 0.95) == 19.0
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_the_tally_tells_a_batch_that_is_in_the_model_twice_or_not_at_all() -> None:
    rows = [(1, 0), (1, 1), (2, 2), (2, 3)]
    # Momentum 0.5: version 1 counts 1 + 0.5, version 2 counts 1; each is shared by two batches.
    np.testing.assert_allclose(tally_of(rows, batches=4, momentum=0.5), [0.75, 0.75, 0.5, 0.5])
    for wrong in ([*rows, (2, 0)], rows[:-1]):
        assert not np.allclose(tally_of(rows, batches=4, momentum=0.5), tally_of(wrong, batches=4, momentum=0.5))
