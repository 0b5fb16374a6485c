"""Figure 15 (a): what a device's own work loses beside a working agent. Real processes, real training. Takes root.

The device is one core that nobody else is given: on it a process computes, or copies memory, while an agent trains
PerNet there with one thread, and while that training is stopped, in turn. Once more with the agent niced, which the
paper did not try.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from papers.eddl import foreground
from papers.eddl.lessons import ROOT, TASKS
from papers.eddl.paper import WORKER_CPU_LOSS
from papers.eddl.setting import LEASE_S
from papers.harness.rows import Row
from shoal.errors import Misuse
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from testbed.commands import NoNamespaces
from testbed.processes import children_of
from testbed.quota import Quota
from testbed.results import say

SLOT_S = 1.0
PAIRS = 8
LONGEST_START_S = 60.0
NICE = 19


def run(quick: bool) -> list[Row]:
    kinds = foreground.KINDS[:1] if quick else foreground.KINDS
    rows: list[Row] = []
    device = Quota(1.0)
    try:
        device.make()
    except NoNamespaces as error:
        say(f"overhead: not run: {error}")
        return [{"skipped": str(error)}]
    try:
        for nice in (0,) if quick else (0, NICE):
            lost = asyncio.run(_lost(device, kinds, nice, pairs=2 if quick else PAIRS))
            for kind, share in lost.items():
                row: Row = {"work": kind, "nice": nice, "loss": share}
                if kind == "cpu" and not nice:
                    row["reported_loss"] = WORKER_CPU_LOSS
                rows.append(row)
                say(f"overhead: {kind} loses {share:.1%} beside an agent of niceness {nice}")
    finally:
        device.remove()
    return rows


async def _lost(device: Quota, kinds: Sequence[str], nice: int, *, pairs: int) -> dict[str, float]:
    cpu = max(os.sched_getaffinity(0))
    async with LocalCluster(workers=1, agent_options=("--quiet",)) as cluster, Operator.open(cluster.home) as operator:
        [agent] = cluster.agents.values()
        # Its trainer is started later, and is born on the same core, in the same group and as nice.
        Path(device.enter()[-1]).write_text(str(agent.pid))
        os.sched_setaffinity(agent.pid, {cpu})
        os.setpriority(os.PRIO_PROCESS, agent.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
        plan = {"until": {"seconds": 3600.0}, "evaluate_every_epochs": 1000, "lease_s": LEASE_S}
        job = await operator.prepare_and_submit(str(ROOT / TASKS["pernet"]), plan=plan, on_progress=lambda text: None)
        await _trains(operator, job)
        trainers = children_of(agent.pid)

        def disturb(may_train: bool) -> None:
            # Without an update the leader waits, and the agent with it.
            for trainer in trainers:
                os.kill(trainer, signal.SIGCONT if may_train else signal.SIGSTOP)

        lost = {}
        for kind in kinds:
            measure = partial(foreground.rate, kind, seconds=SLOT_S, before=device.enter(), cpu=cpu)
            lost[kind] = await asyncio.to_thread(foreground.loss, measure, disturb=disturb, pairs=pairs)
        await operator.stop(job)
        return lost


async def _trains(operator: Operator, job: str) -> None:
    """Wait until versions are made."""
    until_s = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until_s:
        progress = (await operator.status(job)).jobs[0].progress
        if progress is not None and progress.version > 0:
            return
        await asyncio.sleep(0.1)
    raise Misuse(f"nothing was trained within {LONGEST_START_S:g} s: see the agent's log in {Path.cwd()}")
