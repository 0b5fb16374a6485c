"""Real agents, each in a group with a processor quota that changes from lease to lease: a whole job of sized work.

A real manager, real enrolment, real trainers in children of real agents; two leases at a time (``cohort``), so that the
quotas of those at work add up to no more than this machine has. What sizes the leases is ``slo_contest``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.slo_agent import GROUP_VARIABLE, TURN_VARIABLE
from benchmarks.slo_loop import Task
from benchmarks.slo_manager import ASKED, FOLDER_VARIABLE, OVER_FILE, SETTING_FILE, TASKS_FILE
from benchmarks.slo_trainers import AT_ONCE, Share, write_examples
from shoal.errors import Misuse
from shoal.runtime.local import START_TIMEOUT_S, LocalCluster
from shoal.runtime.operator import Operator
from testbed import owners, quota
from testbed.results import say

ROOT = Path(__file__).resolve().parent.parent

#: Of computation: large enough for what a lease costs however small it is, which real agents pay and trainers do not.
SLO_S = 1.0
#: Where the offline set begins, and the size of the task that is always the same.
FIRST_EXAMPLES, STEADY_EXAMPLES = 64, 2_000

#: Agents whose trainers load at the same time.
LOAD_AT_ONCE = 4
LOAD_TIMEOUT_S = 240.0
_POLL_S = 0.5


class Fleet(LocalCluster):
    """A cluster whose manager holds the contest and whose agents have quotas."""

    def __init__(self, folder: Path) -> None:
        super().__init__(workers=0, home=folder / "home", cache=folder / "cache")
        self._folder = folder
        self._groups: dict[str, Share] = {}
        self._made = ExitStack()

    async def start_agent(self, name: str, *options: str) -> asyncio.subprocess.Process:
        share = self._groups[name] = Share()
        share.make()
        self._made.callback(share.remove)
        return await super().start_agent(name, *options)

    async def close(self) -> None:
        await super().close()
        with owners.undisturbed():
            self._made.close()

    async def _spawn(self, module: str, *arguments: str, log: str, capture: bool = False) -> asyncio.subprocess.Process:
        name = log.removesuffix(".log")
        told = {FOLDER_VARIABLE: str(self._folder), TURN_VARIABLE: str(self._folder / f"{name}.json")}
        module, share = "benchmarks.slo_manager", self._groups.get(name)
        if share is not None:
            module = "benchmarks.slo_agent"
            told[GROUP_VARIABLE] = str(quota.groups() / share.name)
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / log).open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *(share.enter() if share is not None else ()),
                *(sys.executable, "-m", module, *arguments, "--leash"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                env={**os.environ, **threads, **told, "PYTHONUNBUFFERED": "1", "PYTHONPATH": search},
            )


class Outcome:
    def __init__(self, folder: Path) -> None:
        self.tasks: dict[str, list[Task]] = {name: [] for name in ASKED}
        self.steady: list[Task] = []
        for text in (folder / TASKS_FILE).read_text().splitlines():
            row: dict[str, Any] = json.loads(text)
            name = row.pop("profiler")
            (self.tasks[name] if name else self.steady).append(Task(**row))
        self.taught = int((folder / OVER_FILE).read_text())


async def held(
    folder: Path, *, seed: int, devices: int, teachers: int, requests: int, slo_s: float, within: float, limit_s: float
) -> Outcome:
    """The whole contest, or Misuse where it is not over in time."""
    folder.chmod(0o755)
    own = folder / "own"
    own.mkdir(mode=0o755)
    for path in write_examples(own):
        path.chmod(0o644)
    setting = {"seed": seed, "devices": devices, "teachers": teachers, "requests": requests, "slo_s": slo_s}
    setting |= {"within": within, "first": FIRST_EXAMPLES, "steady": STEADY_EXAMPLES}
    (folder / SETTING_FILE).write_text(json.dumps(setting))
    owners.record()
    try:
        async with Fleet(folder) as fleet, Operator.open(fleet.home) as operator:
            plan: dict[str, Any] = {"work": "sized", "budget_s": slo_s, "until": {"endless": True}, "lease_s": 60.0}
            # In step, so that no more than these are at work at a time; whoever waited longest is next.
            plan |= {"cohort": AT_ONCE, "workers_min": devices, "publish": "asked", "checkpoint_every_s": 30.0}
            task = str(Path(__file__).with_name("slo_task.py"))
            job = await operator.prepare_and_submit(task, plan=plan)
            await _load(fleet, operator, job, devices, own)
            await _wait(folder, requests * devices * len(ASKED), limit_s)
            await operator.stop(job)
    finally:
        owners.forget(os.getpid())
    return Outcome(folder)


async def _load(fleet: Fleet, operator: Operator, job: str, devices: int, own: Path) -> None:
    """A few at a time: to load torch twenty times at once takes longer than anyone waits for it."""
    names = [f"device-{number}" for number in range(1, devices + 1)]
    for start in range(0, devices, LOAD_AT_ONCE):
        part = names[start : start + LOAD_AT_ONCE]
        await asyncio.gather(*(fleet.start_agent(name, "--data", str(own)) for name in part))
        until_s = time.monotonic() + LOAD_TIMEOUT_S
        while True:
            progress = (await operator.status(job)).jobs[0].progress
            ready = {worker.node for worker in progress.workers} if progress else set()
            if ready.issuperset(part):
                break
            if time.monotonic() > until_s:
                raise Misuse(f"agents did not become ready: {fleet.log_tail(f'{part[0]}.log')}")
            await asyncio.sleep(_POLL_S)
        say(f"{start + len(part)} of {devices} agents are ready")


async def _wait(folder: Path, tasks: int, limit_s: float) -> None:
    began_s = told_s = time.monotonic()
    while not (folder / OVER_FILE).exists():
        now_s = time.monotonic()
        if now_s - began_s > limit_s + START_TIMEOUT_S:
            raise Misuse(f"the contest was not over after {limit_s:.0f} s: take fewer devices, or wait longer")
        if now_s - told_s > 20:
            told_s = now_s
            done = len((folder / TASKS_FILE).read_text().splitlines()) if (folder / TASKS_FILE).exists() else 0
            say(f"{done} of about {tasks} tasks after {now_s - began_s:.0f} s")
        await asyncio.sleep(_POLL_S)
