"""Attacks of a task: code that an operator signed and that a device therefore runs, in a real trainer with PyTorch."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.trainer.find import find_task
from shoal.trainer.package import ReadyTask, make_ready
from testbed.attacks.bad_task import MARK
from testbed.attacks.kit import ROOT, NotTried, Outcome, Site

TASK = ROOT / "testbed" / "attacks" / "bad_task.py"

#: What a trainer may use; PyTorch itself takes about half of it. And what the task tries to take in each way.
MEMORY_MB, WANTED_MB = 700, 1200
#: By which the limit on a process's own memory can be passed by.
WAYS = ("shared anonymous memory", "memfds", "files in /dev/shm")

REPORT_S = 40.0

#: What an agent says that runs no task, since its trainer would be root.
REFUSED_ROOT = "a task does not run as root"


async def prepared(folder: Path, **given: Any) -> ReadyTask:
    """The bad task as a job, with nothing bad done to the machine that prepares it."""
    path, entry = find_task(str(TASK))
    out = folder / "prepared"
    ready = await make_ready(path, entry, out=out, kwargs={"seed": 1}, plan=None, on_progress=lambda _: None)
    return dataclasses.replace(ready, arguments={"seed": 1, **given})


async def submitted(site: Site, ready: ReadyTask, **given: Any) -> str:
    ready = dataclasses.replace(ready, arguments={**ready.arguments, **given})
    return await site.operator.submit(ready, plan={"until": {"epochs": 50}, "pace": "async", "batch_size": 8})


async def report(site: Site, job: str) -> dict[str, Any] | str:
    """What the task told of its deed, or why it told nothing."""
    end_s = time.monotonic() + REPORT_S
    while time.monotonic() < end_s:
        failed = re.findall(rf"\[{job}\] failed: device-1: ([^\n]*)", site.log())
        for why in failed:
            _, mark, rest = why.partition(f"{MARK} ")
            if mark:
                told: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
                return told
        view = await site.view(job)
        if view.state == "failed":
            return f"the job failed: {view.reason}"
        if len(failed) >= 3 or any("SIGKILL" in why or "memory" in why or "may use" in why for why in failed):
            return f"it does not train: {failed[-1]}"
        await asyncio.sleep(0.2)
    return "nothing was heard of it"


def confinement(site: Site) -> str:
    """What the agent says is in force."""
    lines = re.findall(r"trainer: ([^\n]*)", site.log("device-1"))
    return lines[-1] if lines else "nothing"


async def shrunk_memory(folder: Path, scale: float) -> Outcome:
    """A task shrinks the memory that its trainer shares with the agent, before the agent reads the update there.

    Harm: the agent dies of SIGBUS, and with it all that the device does and leads.
    """
    async with Site(folder, workers=1, agent_options=()) as site:
        job = await submitted(site, await prepared(folder), deed="shrink")
        agent = site.agents["device-1"]

        async def done() -> bool:
            return agent.returncode is not None or await site.version(job) >= 5

        with contextlib.suppress(TimeoutError):
            await site.until("the deed is done", done, limit_s=REPORT_S)
        code, version = agent.returncode, await site.version(job)
    if code is not None:
        return Outcome(False, f"the agent died, exit status {code}")
    if version < 5:
        raise NotTried(f"the agent is alive, and the job reached only version {version} in {REPORT_S:g} s")
    return Outcome(True, f"the agent is alive, the job reached version {version}")


async def root_task(folder: Path, scale: float) -> Outcome:
    """A task on a device whose trainer cannot become nobody, because Python lies in a closed home.

    Harm: it reads the agent's keys, reaches into the agent, is back in the network, or takes the processor for itself.
    """
    if os.geteuid() != 0:
        raise NotTried("only root's trainers change their user")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    search = os.pathsep.join(filter(None, (str(closed), str(ROOT), os.environ.get("PYTHONPATH", ""))))
    async with Site(folder, workers=1, agent_options=(), environment={"PYTHONPATH": search}) as site:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            key = site.agent_home("device-1") / "node" / "identity.json"
            job = await submitted(site, await prepared(folder), deed="rise", key=str(key), port=port)
            told = await report(site, job)
        says = confinement(site)
    return rise_judged(told, says)


def rise_judged(told: dict[str, Any] | str, says: str) -> Outcome:
    """Judge by what the task could do, or by why it did not run. A job that failed for another reason shows nothing."""
    if not isinstance(told, str):
        return _judged(told, says)
    if REFUSED_ROOT not in told:
        raise NotTried(f"{told}; the agent says: {says}")
    return Outcome(True, f"{told}; the agent says: {says}")


def _judged(told: dict[str, Any], says: str) -> Outcome:
    done = [deed for deed, came in told.items() if str(came).startswith("YES")]
    lies = [word for word in ("no network",) if word in says and "connect after" in done]
    words = ", ".join(done) if done else f"nothing of {', '.join(told)}"
    lie = f"; the log claims {lies[0]!r}, which is not so" if lies else ""
    return Outcome(not done, f"the task could do: {words}{lie}; the agent says: {says}")


async def hoarded_memory(folder: Path, scale: float) -> Outcome:
    """A task takes more memory than its limit as shared anonymous memory, memfds and files in /dev/shm.

    Harm: the device runs out of memory, and what lies in /dev/shm stays after the trainer.
    """
    async with open_site(folder, environment={"SHOAL_TRAINER_MEMORY_MB": str(MEMORY_MB)}) as site:
        ready = await prepared(folder)
        reports = []
        for way in WAYS:
            job = await submitted(site, ready, deed="hoard", mb=WANTED_MB, way=way)
            reports.append(await report(site, job))
            with contextlib.suppress(ShoalError):
                # It has failed by itself, or is about to.
                await site.operator.stop(job)
        says = confinement(site)
    left = sorted(Path("/dev/shm").glob("shoal-attack-*"))  # noqa: S108
    left_mb = sum(path.stat().st_size for path in left) >> 20
    for path in left:
        path.unlink()
    held, words = not left, []
    for way, told in zip(WAYS, reports, strict=True):
        came = str(told[way]) if isinstance(told, dict) else told
        is_stopped = came.startswith("no: ") if isinstance(told, dict) else "SIGKILL" in came or "may use" in came
        if not is_stopped and isinstance(told, str) and not left:
            # The task did not say that it has the memory, nor did anybody say that it was kept from it.
            raise NotTried(f"{way}: {came}; the agent says: {says}")
        held = held and is_stopped
        words.append(f"{way}: {'stopped' if is_stopped else 'NOT stopped'} ({came[:100]})")
    stays = f"; {left_mb} MB stayed in /dev/shm" if left else ""
    return Outcome(
        held, f"allowed {MEMORY_MB} MB, wanted {WANTED_MB}: {', '.join(words)}{stays}; the agent says: {says}"
    )


async def pried_shards(folder: Path, scale: float) -> Outcome:
    """A task looks through the device's home, which anyone may enter, for data that another job left there.

    Harm: it reads the examples of that job.
    """
    async with open_site(folder) as site:
        ready = await prepared(folder)
        other = await submitted(site, ready)
        await site.goes_on(other, versions=3)
        shard = Path(ready.prepared.paths(ready.prepared.train)[0]).read_bytes()
        await site.operator.stop(other)
        # Other data than that of the first: else they are its own.
        path, entry = find_task(str(TASK))
        mine = await make_ready(
            path, entry, out=folder / "mine", kwargs={"seed": 2}, plan=None, on_progress=lambda _: None
        )
        secret = shard[-200:-100].hex()
        home = site.agent_home("device-1")
        job = await submitted(site, mine, deed="pry", home=str(home), secret=secret)
        told = await report(site, job)
        says = confinement(site)
        there = any(shard[-200:-100] in path.read_bytes() for path in home.rglob("*") if path.is_file())
    if isinstance(told, str):
        raise NotTried(f"{told}; the agent says: {says}")
    found = told["found"]
    words = (
        f"read the other job's examples in {', '.join(found)}" if found else "found none of the other job's examples"
    )
    kept = "they are still on the device" if there else "they are no longer on the device"
    return Outcome(not found and told["user"] != 0, f"the task, as user {told['user']}, {words}; {kept}")


# A device on which a trainer can be nobody --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_site(folder: Path, environment: dict[str, str] | None = None) -> AsyncIterator[Site]:
    """A cluster of one device whose Python any user can read, so that its trainers are nobody's."""
    with open_python(folder) as command:
        site = Site(folder, workers=1, agent_options=(), agent_command=command, environment=environment)
        async with site:
            # As where a home is not closed to others: what is in it has rights of its own.
            for path in (folder, site.home, site.home / "devices", site.agent_home("device-1")):
                path.chmod(0o755)
            yield site


@contextlib.contextmanager
def open_python(folder: Path) -> Iterator[tuple[str, ...]]:
    """What starts this Python so that any user can read it.

    Where it, its packages or Shoal lie in somebody's closed folder, they are shown at the same paths in a name space of
    mounts of its own.
    """
    named: list[str] = [sys.base_prefix, sys.prefix, str(ROOT), *filter(None, sys.path)]
    places = {Path(each).resolve() for each in named}
    needs = sorted(place for place in places if place.exists())
    needs = [need for need in needs if not any(need != other and need.is_relative_to(other) for other in needs)]
    closed = {need: top for need in needs if (top := _closed_above(need)) is not None and os.geteuid() == 0}
    if not closed:
        yield (sys.executable,)
        return
    with tempfile.TemporaryDirectory(dir=folder) as hold:
        held = {need: shlex.quote(f"{hold}/{number}") for number, need in enumerate(closed)}
        steps = ["umask 022"]
        steps += [f"mkdir {at} && mount --bind {shlex.quote(str(need))} {at}" for need, at in held.items()]
        steps += [f"mount -t tmpfs -o mode=711 tmpfs {shlex.quote(str(top))}" for top in sorted({*closed.values()})]
        for need, at in held.items():
            there = shlex.quote(str(need))
            steps.append(f"mkdir -p {there} && mount --move {at} {there} && rmdir {at}")
        inside = " && ".join([*steps, f'exec {shlex.quote(sys.executable)} "$@"'])
        yield ("unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh")


def _closed_above(path: Path) -> Path | None:
    """The outermost folder above it that only its owner may enter."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
