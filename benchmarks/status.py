"""What a status and a submission cost a manager that has many ended jobs, in processor time.

A real manager with a few open jobs is started on a registry that holds 10 ended jobs, and again after that registry
got 10,000. An operator asks for the status, for a page of ended jobs and for one by its name, and submits jobs. The
processor time of the manager's process is read around each, less what the manager uses in as many seconds when nobody
asks (on a busy machine a submission takes long by the clock). The jobs have no devices: each is led, and waits.

    python -m benchmarks.status --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.runtime import local
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.trainer.package import ReadyTask
from testbed.echo_job import echo_job
from testbed.processes import memory_mb
from testbed.results import finish, say

ENDED = 10_000
FEW = 10
OPEN = 3

#: Of what a submission costs a manager, some comes after the answer: it appoints a leader, which reads the model.
SETTLE_S = 0.3
#: How long the manager is watched while nobody asks.
IDLE_S = 3.0
#: The manager is at rest when it used no more than this in a look of this length. A bounded number of looks.
QUIET_MS, QUIET_S, QUIET_LOOKS = 5.0, 0.5, 20
#: A job that is stopped has ended by then, however busy the machine is.
ENDS_WITHIN_S = 60.0

local.START_TIMEOUT_S = 600.0


def fill(registry: Path, source: str, count: int, *, now_s: float) -> None:
    """Copy an ended job until there are this many ended ones, one per hour, in a registry that nobody has open."""
    database = sqlite3.connect(registry)
    database.execute("CREATE TEMP TABLE copied AS SELECT * FROM jobs WHERE job = ?", (source,))
    (spec,) = database.execute("SELECT spec_json FROM copied").fetchone()
    (there,) = database.execute("SELECT COUNT(*) FROM jobs WHERE ended_s IS NOT NULL").fetchone()
    with database:
        for number in range(there, count):
            database.execute(
                "UPDATE copied SET job = :job, name = :name, spec_json = :spec_json, created_s = :created_s, "
                "ended_s = :ended_s",
                ended_job(number, json.loads(spec), now_s),
            )
            database.execute("INSERT INTO jobs SELECT * FROM copied")
    database.close()


def ended_job(number: int, spec: dict[str, object], now_s: float) -> dict[str, object]:
    """Return what differs in a copy: its id, its name, and when it ran."""
    job, name, ended_s = f"night-{number:05}", f"night-{number % 100}", now_s - 3600.0 * (number + 2)
    return {
        "job": job,
        "name": name,
        "spec_json": json.dumps({**spec, "job": job, "name": name}),
        "created_s": ended_s - 600.0,
        "ended_s": ended_s,
    }


def process_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, to the microsecond, with all its threads."""
    # As clock_getcpuclockid(3) makes it of a process id.
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What one act took: processor time of the manager's process, and time by the clock."""

    cpu_s: float
    wall_s: float

    def own_ms(self, idle: float) -> float:
        """Return the milliseconds of processor time without those that the process uses anyway, at this rate."""
        return 1e3 * max(0.0, self.cpu_s - idle * self.wall_s)


async def taken(pid: int, times: int, act: Callable[[], Awaitable[object]], *, settle_s: float = 0.0) -> list[Taken]:
    """Return what each of several acts took."""
    found = []
    for _ in range(times):
        before_s, began_s = process_cpu_s(pid), time.monotonic()
        await act()
        await asyncio.sleep(settle_s)
        found.append(Taken(cpu_s=process_cpu_s(pid) - before_s, wall_s=time.monotonic() - began_s))
    return found


def own_ms(found: list[Taken], idle: float) -> float:
    """Return the median of what acts took, in milliseconds of processor time."""
    return statistics.median(each.own_ms(idle) for each in found)


async def until_ended(operator: Operator, job: str) -> None:
    async with asyncio.timeout(ENDS_WITHIN_S):
        while not (await operator.status(job)).jobs[0].state.is_ended:
            await asyncio.sleep(0.05)


async def until_quiet(pid: int, idle: float) -> None:
    """Wait until a process uses little more than it does at rest: the end of a job costs something after it is told."""
    for _ in range(QUIET_LOOKS):
        (now,) = await taken(pid, 1, lambda: asyncio.sleep(QUIET_S))
        if now.own_ms(idle) < QUIET_MS:
            return


async def measure(home: Path, ready: ReadyTask, *, statuses: int, submits: int) -> dict[str, float]:
    """Start a manager on this home, ask it, and return medians."""
    began_s = time.monotonic()
    async with LocalCluster(workers=0, home=home) as cluster, Operator.open(home) as operator:
        assert cluster.manager is not None
        pid = cluster.manager.pid
        start_s, started_mb = time.monotonic() - began_s, memory_mb(pid)
        # The first ones pay for imports.
        await operator.status()
        (nothing,) = await taken(pid, 1, lambda: asyncio.sleep(IDLE_S))
        idle = nothing.cpu_s / nothing.wall_s
        asked = await taken(pid, statuses, operator.status)
        pages = await taken(pid, statuses // 4, operator.ended_jobs)
        by_name = await taken(pid, statuses // 4, lambda: operator.jobs_called("night-0"))
        submissions: list[Taken] = []
        submitted: list[str] = []

        async def submit() -> None:
            submitted.append(await operator.submit(ready, plan={}))

        for _ in range(submits):
            submissions += await taken(pid, 1, submit, settle_s=SETTLE_S)
            # There are as few open jobs for the next one.
            await operator.stop(submitted[-1])
            await until_ended(operator, submitted[-1])
            await until_quiet(pid, idle)
        told = await operator.status()
        command_s, lines = await asyncio.to_thread(status_command, home)
        return {
            "ended_jobs": told.finished_jobs + told.failed_jobs + told.stopped_jobs,
            "open_jobs": sum(view.state.is_open for view in told.jobs),
            "listed_jobs": len(told.jobs),
            "status_cpu_ms": own_ms(asked, idle),
            "page_cpu_ms": own_ms(pages, idle),
            "by_name_cpu_ms": own_ms(by_name, idle),
            "submit_cpu_ms": own_ms(submissions, idle),
            "submit_wall_s": statistics.median(each.wall_s for each in submissions),
            "idle_cpu_ms_per_s": 1e3 * idle,
            "start_s": start_s,
            "started_mb": started_mb,
            "manager_mb": memory_mb(pid),
            "manager_peak_mb": memory_mb(pid, "VmHWM"),
            "status_command_s": command_s,
            "status_command_lines": lines,
        }


def status_command(home: Path) -> tuple[float, int]:
    """Return how long ``shoal status`` takes by the clock, and how many lines it prints."""
    began_s = time.monotonic()
    command = (sys.executable, "-m", "shoal", "status", "--home", str(home))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return time.monotonic() - began_s, len(done.stdout.splitlines())


async def prepare(home: Path, ready: ReadyTask) -> str:
    """Make a cluster with a few open jobs and one that ended. Return the id of that one."""
    async with LocalCluster(workers=0, home=home), Operator.open(home) as operator:
        jobs = [await operator.submit(ready, plan={}) for _ in range(OPEN + 1)]
        await operator.stop(jobs[0])
        await until_ended(operator, jobs[0])
        return jobs[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ended", type=int, default=ENDED, help="ended jobs in the registry")
    parser.add_argument("--statuses", type=int, default=100)
    parser.add_argument("--submits", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="fewer statuses and submissions, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    statuses, submits = (24, 6) if given.quick else (given.statuses, given.submits)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        ready = echo_job(Path(folder), values=1000, batches=10)
        source = asyncio.run(prepare(home, ready))
        found = {}
        for count in (FEW, given.ended):
            fill(Paths(home).registry, source, count, now_s=time.time())
            found[count] = asyncio.run(measure(home, ready, statuses=statuses, submits=submits))
            told = found[count]
            say(
                f"{count:,} ended jobs: {told['status_cpu_ms']:.1f} ms of processor per status,"
                f" {told['submit_cpu_ms']:.1f} ms per submission, {told['manager_mb']:.0f} MB;"
                f" `shoal status` takes {told['status_command_s']:.1f} s"
            )
    few = {f"few_{name}": figure for name, figure in found[FEW].items()}
    many = {**found[given.ended], "ended_jobs": given.ended}
    finish({**many, **few, "statuses": statuses, "submits": submits, "load_1m": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
