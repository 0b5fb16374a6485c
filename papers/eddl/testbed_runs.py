"""Real clusters on the testbed, beside their simulation; and what leading costs (Figure 15 b). Takes root.

Manager, agents, TLS and TCP are real, over links of 100 Mb/s each way; the trainers take the second that an ODROID
takes. The manager leads. What it takes is read from the kernel; what it leaves to others is measured with a transfer
over its link, and with work on its core while the cluster runs and while it is stopped, in turn.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from unittest import mock

from papers.eddl import foreground
from papers.eddl.batch_time import NOISE, ROUNDS
from papers.eddl.paper import LEADER_CPU_LOSS, LEADER_MEMORY_LOSS, LEADER_NETWORK_LOSS
from papers.eddl.setting import BATCH_S, LEASE_S, PERNET, RATES_MBIT
from papers.eddl.star import Star, batch_s
from papers.harness.rows import Row
from shoal.errors import Misuse
from shoal.runtime.operator import Operator
from shoal.wire.messages import JobView
from testbed.cluster import MANAGER, Cluster
from testbed.devices import Board, boards
from testbed.echo_job import echo_job
from testbed.measure import transfer
from testbed.namespaces import why_no_namespaces
from testbed.noted import NOTES_VARIABLE, read_notes
from testbed.processes import cpu_s, memory_mb
from testbed.results import say

RATE_MBIT = RATES_MBIT[0]
#: What TCP carries of the wire's rate (docs/testbed.md).
PAYLOAD = 0.956

CASES = (("sync", 1), ("sync", 2), ("sync", 4), ("sync", 8), ("async", 4), ("async", 8))
QUICK_CASES = (("sync", 2),)
#: Rounds that are timed, after as many as it takes to fall into step; then the device's own work is measured.
TIMED = {"sync": 8, "async": 12}
QUICK_TIMED = 3
SETTLING = 2

TRANSFER_S = 5.0
SLOT_S = 1.0
PAIRS = 4
LONGEST_S = 240.0


def run(quick: bool) -> list[Row]:
    if why_not := why_no_namespaces():
        say(f"testbed: not run: {why_not}")
        return [{"skipped": why_not}]
    return asyncio.run(_run(quick))


async def _run(quick: bool) -> list[Row]:
    cases = QUICK_CASES if quick else CASES
    # One more than work: there is always one to exchange something else with.
    devices = boards(1 + max(workers for _, workers in cases), up_mbps=RATE_MBIT, down_mbps=RATE_MBIT, pace_s=BATCH_S)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="shoal-eddl-") as folder:
        home, notes = Path(folder) / "home", Path(folder) / "notes"
        cluster = Cluster(
            home,
            devices,
            manager=Board(name=MANAGER, up_mbps=RATE_MBIT, down_mbps=RATE_MBIT, cores=1.0),
            child_module="shoal.trainer.echo",
            manager_module="testbed.noted",
        )
        with mock.patch.dict(os.environ, {NOTES_VARIABLE: str(notes)}):
            async with cluster, Operator.open(home) as operator:
                await cluster.connected()
                alone_mbit = None if quick else await _both_ways(cluster, devices[-1].name)
                for number, (pace, workers) in enumerate(cases):
                    directory = Path(folder) / str(number)
                    directory.mkdir()
                    timed = QUICK_TIMED if quick else TIMED[pace]
                    row = await _case(cluster, operator, directory, notes, pace, workers, timed, alone_mbit)
                    rows.append(row)
                    say(
                        f"testbed: {pace}, {workers} workers: {row['real_s']:.2f} s a batch,"
                        f" simulated {row['simulated_s']:.2f} s (ratio {row['ratio']:.2f})"
                    )
    return rows


async def _case(
    cluster: Cluster,
    operator: Operator,
    directory: Path,
    notes: Path,
    pace: str,
    workers: int,
    timed: int,
    alone_mbit: float | None,
) -> Row:
    versions = 1 if pace == "sync" else workers
    first, last = SETTLING * versions, (SETTLING + timed) * versions
    # More than is needed: what is left over is when own work is measured.
    ready = echo_job(directory, values=PERNET, batches=workers * (SETTLING + timed + 40))
    plan = {
        "pace": pace,
        "workers_min": workers,
        "workers_max": workers,
        "until": {"epochs": 1},
        "momentum": 0.0,
        "lease_s": LEASE_S,
    }
    job = await operator.submit(ready, plan=plan)
    assert cluster.manager is not None
    pid = cluster.manager.pid
    await _made(operator, notes, job, first)
    cpu_before_s, before = cpu_s(pid), await _view(operator, job)
    began_s = time.monotonic()
    moments = await _made(operator, notes, job, last)
    took_s = time.monotonic() - began_s
    cpu_used_s, after = cpu_s(pid) - cpu_before_s, await _view(operator, job)
    real_s = (moments[last - 1] - moments[first - 1]) / timed
    row: Row = {
        "pace": pace,
        "workers": workers,
        "real_s": real_s,
        "simulated_s": simulated_s(pace, workers),
        "leader_cpu_share": cpu_used_s / took_s,
        "leader_memory_mb": memory_mb(pid),
        "leader_mbit": 8e-6 * (_bytes(after) - _bytes(before)) / took_s,
    }
    row["ratio"] = row["real_s"] / row["simulated_s"]
    if alone_mbit is not None and pace == "sync":
        row |= await _losses(cluster, after, alone_mbit)
        row |= _reported(workers)
    await operator.stop(job)
    await _over(operator, job)
    return row


def simulated_s(pace: str, workers: int) -> float:
    """A batch of the same cluster in the simulator."""
    star = Star(workers=workers, rate_mbit=PAYLOAD * RATE_MBIT, pace=pace, noise=NOISE[pace])
    return batch_s(star, rounds=ROUNDS[pace])


async def _losses(cluster: Cluster, view: JobView, alone_mbit: float) -> Row:
    """What a leader's own work loses, while the job goes on."""
    working = {worker.node for worker in view.progress.workers} if view.progress else set()
    idle = next(device.name for device in cluster.devices if device.name not in working)
    row: Row = {"network_loss": 1 - await _both_ways(cluster, idle) / alone_mbit}

    def disturb(may_run: bool) -> None:
        # For a second: nobody is missed so soon.
        for process in (cluster.manager, *cluster.agents.values()):
            if process is not None:
                process.send_signal(signal.SIGCONT if may_run else signal.SIGSTOP)

    for kind in foreground.KINDS:
        measure = partial(foreground.rate, kind, seconds=SLOT_S, before=cluster.bed[MANAGER].exec())
        row[f"{kind}_loss"] = await asyncio.to_thread(foreground.loss, measure, disturb=disturb, pairs=PAIRS)
    return row


def _reported(workers: int) -> Row:
    """The paper gives the ends of its range: one worker and eight."""
    if workers not in (1, 8):
        return {}
    end = 0 if workers == 1 else 1
    return {
        "reported_network_loss": LEADER_NETWORK_LOSS[end],
        "reported_cpu_loss": LEADER_CPU_LOSS[end],
        "reported_memory_loss": LEADER_MEMORY_LOSS[end],
    }


async def _both_ways(cluster: Cluster, idle: str) -> float:
    """Mb/s of a transfer from the leader and of one to it, on average. Each long enough to see both ways of a round."""
    rates = []
    for pair in ((MANAGER, idle), (idle, MANAGER)):
        flows = await asyncio.to_thread(transfer, cluster.bed.network, [pair], seconds=TRANSFER_S)
        rates.append(flows[0].mbps)
    return fmean(rates)


async def _made(operator: Operator, notes: Path, job: str, count: int) -> Sequence[float]:
    """When versions of a job were made, once there are so many."""
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s:
        moments = [note.at_s for note in read_notes(notes, job)]
        if len(moments) >= count:
            return moments
        await asyncio.sleep(0.05)
    view = await _view(operator, job)
    raise Misuse(f"{count} versions were not made within {LONGEST_S:g} s; the job is {view.state}: {view.reason}")


async def _over(operator: Operator, job: str) -> None:
    until_s = time.monotonic() + LONGEST_S
    while (await _view(operator, job)).state not in ("stopped", "finished", "failed"):
        if time.monotonic() > until_s:
            raise Misuse(f"{job} did not stop within {LONGEST_S:g} s")
        await asyncio.sleep(0.1)


async def _view(operator: Operator, job: str) -> JobView:
    return (await operator.status(job)).jobs[0]


def _bytes(view: JobView) -> int:
    return view.progress.bytes_up + view.progress.bytes_down if view.progress else 0
