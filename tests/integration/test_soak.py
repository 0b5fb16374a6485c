"""Minutes of the soak of hours: killed in the middle it leaves nothing that `clean` does not remove, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kit import HERE

from testbed.devices import clean, left_of
from testbed.homes import homes_of
from testbed.namespaces import why_no_namespaces
from testbed.soak.journal import Journal
from testbed.soak.pair import why_no_servers

#: It takes minutes, and what it breaks is broken one by one in other tests.
pytestmark = [pytest.mark.nightly, pytest.mark.needs_data, pytest.mark.slow]

HOURS = 0.03
LIMIT_S = 600.0


def _started(state: Path) -> subprocess.Popen[str]:
    options = ("--hours", str(HOURS), "--every", "10", "--state", str(state), "--json")
    command = (sys.executable, "-m", "testbed", "soak", *options)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=HERE.parent.parent, start_new_session=True, **pipes)


def _processes_of(pid: int) -> list[str]:
    """Of the clusters that a soak made."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if any(f"shoal-testbed-{pid}-" in word for word in process.info["cmdline"] or ())
    ]


def _until_nothing_runs(pid: int) -> None:
    until_s = time.monotonic() + 30.0
    while _processes_of(pid) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert _processes_of(pid) == []


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.skipif(bool(why_no_namespaces() or why_no_servers()), reason=why_no_namespaces() or why_no_servers())
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_soak_that_was_killed_goes_on_from_where_it_was(
    tmp_path: Path, real_data: Path, number: signal.Signals
) -> None:
    state = tmp_path / "soak.jsonl"
    with _started(state) as process:
        assert process.stderr is not None
        faults = 0
        while faults < 7:
            line = process.stderr.readline()
            assert line, "the soak ended before it was killed"
            faults += " min  " in line
        # In the second cluster, of two managers, PostgreSQL and a bucket.
        os.kill(process.pid, number)
        process.communicate(timeout=LIMIT_S)
    _until_nothing_runs(process.pid)
    if number is signal.SIGKILL:
        clean()
    assert [*left_of(process.pid), *homes_of(process.pid)] == []
    so_far = Journal(state)
    assert sum(leg.seconds for leg in so_far.legs.values()) < 3600 * HOURS

    with _started(state) as again:
        out, told = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, told[-4000:]
    assert "continued: " in told
    found = json.loads(out.splitlines()[-1])
    assert found["hours"] == pytest.approx(HOURS, abs=0.001)
    assert found["hours_with_two_managers"] == pytest.approx(HOURS / 2, abs=0.001)
    assert found["clusters"] > len(so_far.legs)
    assert found["faults"] >= sum(sum(leg.faults.values()) for leg in so_far.legs.values())
    assert (found["lost"], found["twice"], found["model_matches_history"]) == (0, 0, True)
    # Tracebacks are told, not judged: gRPC prints one if a device that leads is asked to end while a call is open.
    assert found["left_behind"] == []
    assert 0.1 < found["goodput"] < 1.3
    assert found["processes_compared"] > 0
    _until_nothing_runs(again.pid)
