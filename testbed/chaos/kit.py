"""A cluster to be hurt: a real manager and real agents as processes, each device in its own network if it can be.

Every process that is started here is ended here, by its id. Without root there are no namespaces and no small disk:
then a link that is down is a device that is stopped, and no disk is filled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import psutil

from shoal.data.digits import mnist
from shoal.errors import ShoalError, Unreachable
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.store.rows import EpochAudit
from shoal.trainer.package import ReadyTask
from shoal.trainer.prepared_job import LAYOUT_NOTE, PreparedJob
from shoal.trainer.shards import write_shards
from shoal.trainer.spawn import end_process
from shoal.wire import tensors
from shoal.wire.messages import JobView
from testbed.chaos.faults import (
    CHURN,
    FULL_DISK,
    HANG,
    KILL_AGENT,
    KILL_LEADER,
    KILL_MANAGER,
    KILL_SUB_LEADER,
    KILL_TRAINER,
    LEADER,
    LINK_DOWN,
    MANAGER,
    SEGFAULT,
    SLOW_LINK,
    STOP,
    SUB_LEADER,
    Fault,
    Outage,
)
from testbed.chaos.watch import VERSIONS_VARIABLE, Made, last_in, versions_in
from testbed.echo_job import echo_job
from testbed.namespaces import Network
from testbed.paced_digits import DEVICE_VARIABLE, first_model, layout_for
from testbed.processes import bound

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]

BATCH_SIZE = 32
TEST_EXAMPLES = 2000

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
#: A device that is new joins within this, also if no manager answers just then.
JOIN_WITHIN_S = 60.0

#: What passes a slow link.
SLOW_MBPS = 2.0

#: More events than a job of a benchmark has.
EVENTS_MANY = 100_000

#: Of a log: what comes before a traceback, and all of it.
_LINE_CHARS, _BUG_CHARS = 300, 4_000

#: Room for a few checkpoints of the job, and little to write until it is full.
DISK_MB = 8


def digits_job(directory: Path, *, batches: int, seed: int) -> ReadyTask:
    """A network that learns digits, for the paced trainer: its first model and its data, made without torch."""
    layout = layout_for(batches)
    model = directory / f"model-{seed}.safetensors"
    with model.open("wb") as file:
        tensors.write(file, layout.views(first_model(layout, seed)), {LAYOUT_NOTE: layout.to_json()})
    shards = directory / "shards"
    (x, y), (test_x, test_y) = mnist("train"), mnist("test")
    prepared = PreparedJob(
        model=str(model),
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        layout=layout,
        train=write_shards(x[: batches * BATCH_SIZE], y[: batches * BATCH_SIZE], shards),
        test=write_shards(test_x[:TEST_EXAMPLES], test_y[:TEST_EXAMPLES], shards),
        shards=str(shards),
        plan={"batch_size": BATCH_SIZE, "seed": seed},
    )
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    return dataclasses.replace(echo_job(empty, values=1, batches=1), name="digits", prepared=prepared)


class Site:
    """``async with Site(...) as site``: a cluster with all its devices enrolled and their agents running."""

    def __init__(
        self, home: Path, *, devices: Mapping[str, float], network: Network | None, start_s: float, lead: str = "here"
    ) -> None:
        """``lead``: whether the manager's node leads, or ``devices`` do."""
        self.home = home
        self._lead = lead
        self.devices = tuple(devices)
        self.outages: list[Outage] = []
        #: Faults that found nothing to hurt, such as a trainer that was not there.
        self.missed: list[Fault] = []
        self.pids: list[int] = []
        self._paces_s = dict(devices)
        self._network = network
        self._start_s = start_s
        self._host = network.address if network else "127.0.0.1"
        self._port = _free_pair_of_ports(self._host)
        self._join_line = ""
        self._manager: asyncio.subprocess.Process | None = None
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._disk: Path | None = None
        self._aimed = 0
        #: How many devices left for good.
        self._left = 0

    async def __aenter__(self) -> Self:
        try:
            self._make_disk()
            await self._start_manager()
            for device in self.devices:
                await self._make_device(device)
            await asyncio.gather(*(self._start_agent(device) for device in self.devices))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process, politely first, and give the disk back."""
        for device in list(self._agents):
            self._wake(device)
        await asyncio.gather(*(end_process(process) for process in self._agents.values()))
        self._agents.clear()
        if self._manager is not None:
            await end_process(self._manager)
            self._manager = None
        if self._disk is not None:
            # Lazy: whoever still maps a checkpoint keeps it, and the disk goes with the last of them.
            await asyncio.to_thread(_command, "umount", "--lazy", str(self._disk))
            self._disk = None

    # Processes -----------------------------------------------------------------------------------------

    @property
    def has_disk(self) -> bool:
        """Whether the checkpoints lie on a disk that can be filled."""
        return self._disk is not None

    def _make_disk(self) -> None:
        checkpoints = self.home / "cluster" / "checkpoints"
        checkpoints.mkdir(parents=True, mode=0o700)
        if os.geteuid() == 0 and sys.platform == "linux":
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _command("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(checkpoints))
                self._disk = checkpoints

    async def _start_manager(self) -> None:
        where = ("--host", self._host, "--port", str(self._port))
        options = ("--home", str(self.home), *where, "--lead", self._lead)
        command = (sys.executable, "-m", "testbed.chaos.manager", *options)
        environment = {VERSIONS_VARIABLE: str(self.home / "versions")}
        self._manager = await self._spawn(*command, log="manager.log", environment=environment, capture=True)
        assert self._manager.stdout is not None
        line = await asyncio.wait_for(self._manager.stdout.readline(), START_TIMEOUT_S)
        if not line:
            raise Unreachable(f"the manager did not start: {(self.home / 'manager.log').read_text()[-2000:]}")
        self._join_line = json.loads(line)["join_line"]

    async def _make_device(self, device: str, name: str = "", line: str = "") -> None:
        """``name``: what the cluster shall call it, if not as its place is called; ``line``: to join with, if not with
        that of all."""
        directory = self._device(device)
        enrolled = await enrol(JoinCode.parse(line or self._join_line), wanted=name or device)
        enrolled.save(directory / "node")
        (directory / "start").write_text(str(self._start_s))
        self.set_pace(device, self._paces_s[device])

    async def _start_agent(self, device: str) -> None:
        prefix = self._network.enter(device) if self._network else ()
        options = ("--home", str(self._device(device)), "--child-module", "testbed.paced_digits")
        command = (*prefix, sys.executable, "-m", "testbed.chaos.agent", *options)
        environment = {DEVICE_VARIABLE: str(self._device(device)), VERSIONS_VARIABLE: str(self.home / "versions")}
        self._agents[device] = await self._spawn(*command, log=f"{device}.log", environment=environment)

    async def _spawn(
        self, *command: str, log: str, environment: dict[str, str], capture: bool = False
    ) -> asyncio.subprocess.Process:
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        with (self.home / log).open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                # Even if this program is killed, its cluster does not stay behind, nor what was stopped of it.
                *bound(*command),
                "--leash",
                # Held open while this program lives.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                cwd=ROOT,
                # A signal typed at the terminal is for the soak alone: it ends the others in order.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1", **environment},
            )
        self.pids.append(process.pid)
        return process

    def _device(self, device: str) -> Path:
        return self.home / "devices" / device

    def set_pace(self, device: str, pace_s: float) -> None:
        """From its next lease on, this device takes so long a batch."""
        draft = self._device(device) / "pace.new"
        draft.write_text(str(pace_s))
        draft.replace(self._device(device) / "pace")

    def let_run(self) -> None:
        """All devices as quick as this machine is."""
        for device in self.devices:
            self.set_pace(device, 0.0)

    def _processes_of(self, device: str) -> list[psutil.Process]:
        """The agent and its trainer."""
        try:
            agent = psutil.Process(self._agents[device].pid)
            return [agent, *agent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _wake(self, device: str) -> None:
        for process in self._processes_of(device):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    # Faults --------------------------------------------------------------------------------------------

    def aimed(self, fault: Fault) -> Fault:
        """The fault with its victim by name, as things are now."""
        if fault.victim == LEADER:
            return dataclasses.replace(fault, victim=self.leader())
        return dataclasses.replace(fault, victim=self._aggregator()) if fault.victim == SUB_LEADER else fault

    def _aggregator(self) -> str:
        """One who leads in part, each in its turn; where nobody does, a device that may be about to."""
        made = self.versions()
        alive = [device for device in self.devices if self._agents[device].returncode is None]
        leading = [node for node in (made[-1].aggregators if made else ()) if node in alive]
        self._aimed += 1
        among = leading or alive or list(self.devices)
        return among[self._aimed % len(among)]

    async def inflict(self, fault: Fault) -> None:
        """Hurt one part of the cluster, and put right what a service manager or a person with a cable would."""
        await self._ways()[fault.kind](fault)

    def _ways(self) -> dict[str, Callable[[Fault], Awaitable[None]]]:
        return {
            KILL_AGENT: self._kill_agent,
            KILL_SUB_LEADER: self._kill_agent,
            KILL_LEADER: self._kill_leader,
            STOP: self._stop,
            LINK_DOWN: self._cut if self._network else self._stop,
            KILL_TRAINER: self._hurt_trainer,
            SEGFAULT: self._hurt_trainer,
            HANG: self._hang,
            KILL_MANAGER: self._kill_manager,
            FULL_DISK: self._fill_disk,
            SLOW_LINK: self._slow,
            CHURN: self._replace,
        }

    async def _kill_agent(self, fault: Fault) -> None:
        if self._agents[fault.victim].returncode is not None:
            # Dead already, and nobody leads in its place yet.
            self.missed.append(fault)
            return
        with self._out(fault.victim):
            self._agents[fault.victim].kill()
            await self._agents[fault.victim].wait()
            await asyncio.sleep(fault.for_s)
            await self._start_agent(fault.victim)

    async def _kill_leader(self, fault: Fault) -> None:
        await (self._kill_manager if fault.victim == MANAGER else self._kill_agent)(fault)

    async def _stop(self, fault: Fault) -> None:
        with self._out(fault.victim):
            for process in self._processes_of(fault.victim):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            await asyncio.sleep(fault.for_s)
            self._wake(fault.victim)

    async def _cut(self, fault: Fault) -> None:
        assert self._network is not None
        with self._out(fault.victim):
            await asyncio.to_thread(self._network.cut, fault.victim)
            await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(self._network.mend, fault.victim)

    async def _slow(self, fault: Fault) -> None:
        if self._network is None:
            self.missed.append(fault)
            return
        limit = self._network.limit
        await asyncio.to_thread(limit, fault.victim, down_mbps=SLOW_MBPS, up_mbps=SLOW_MBPS)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            await asyncio.to_thread(self._network.unlimit, fault.victim)

    async def _replace(self, fault: Fault) -> None:
        """A device leaves for good, and another comes to its place: with a name, keys and files of its own."""
        place = fault.victim
        with self._out(place):
            await end_process(self._agents[place])
            self._left += 1
            async with self.operator() as operator:
                await _again(lambda: operator.revoke_node(self._name_at(place), "left for good"))
                # The line that a revoked device joined with is void.
                label, valid_s = f"{place}-{self._left}", 600.0
                made = await _again(lambda: operator.make_token(role="node", uses=1, valid_s=valid_s, label=label))
            await asyncio.to_thread(shutil.rmtree, self._device(place))
            await asyncio.sleep(fault.for_s)
            await _again(lambda: self._make_device(place, label, made.join_line))
            await self._start_agent(place)

    def _name_at(self, place: str) -> str:
        """What the cluster calls the device at this place."""
        return Enrolled.load(self._device(place) / "node").identity.node

    async def _hang(self, fault: Fault) -> None:
        (self._device(fault.victim) / "hang").touch()

    async def _hurt_trainer(self, fault: Fault) -> None:
        trainers = self._processes_of(fault.victim)[1:]
        number = signal.SIGSEGV if fault.kind == SEGFAULT else signal.SIGKILL
        for trainer in trainers:
            with contextlib.suppress(psutil.NoSuchProcess):
                trainer.send_signal(number)
        if not trainers:
            self.missed.append(fault)

    async def _kill_manager(self, fault: Fault) -> None:
        assert self._manager is not None
        began_s = time.monotonic()
        self._manager.kill()
        await self._manager.wait()
        await asyncio.sleep(fault.for_s)
        # From here on it is its own affair to be back soon.
        self.outages.append(Outage(who=MANAGER, from_s=began_s, to_s=time.monotonic()))
        await self._start_manager()

    async def _fill_disk(self, fault: Fault) -> None:
        if self._disk is None:
            self.missed.append(fault)
            return
        filler = self._disk / "filler"
        try:
            await asyncio.to_thread(_fill, filler)
            await asyncio.sleep(fault.for_s)
        finally:
            filler.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _out(self, who: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.outages.append(Outage(who=who, from_s=began_s, to_s=time.monotonic()))

    # What came of it -------------------------------------------------------------------------------------

    def operator(self) -> contextlib.AbstractAsyncContextManager[Operator]:
        return Operator.open(self.home)

    def submitter(self) -> contextlib.AbstractAsyncContextManager[Operator]:
        """Who submits jobs."""
        return self.operator()

    async def view(self, operator: Operator, job: str) -> JobView | None:
        """How a job stands; None while there is no manager to ask."""
        with contextlib.suppress(ShoalError):
            return (await operator.status(job)).jobs[0]
        return None

    def versions(self) -> list[Made]:
        """When versions were made, which, and by whom. One that was made again after a crash is here again."""
        return versions_in(self.home / "versions")

    def leader(self) -> str:
        """Who made the newest version; a device, where devices lead."""
        newest = last_in(self.home / "versions")
        return newest.node if newest else MANAGER

    def leading(self) -> frozenset[str]:
        """Who has a connection to each device that works: the leader."""
        return frozenset({self.leader()})

    def living(self) -> dict[str, int]:
        """The manager and the agents that run now, with their process ids."""
        processes = {MANAGER: self._manager, **self._agents}
        return {name: each.pid for name, each in processes.items() if each is not None and each.returncode is None}

    def registry(self) -> Registry:
        return Registry(Paths(self.home).registry)

    def tracebacks(self) -> list[str]:
        """Logs in which some part of Shoal met a bug of its own."""
        return list(self.bugs())

    def bugs(self) -> dict[str, str]:
        """These logs, with the last traceback of each and what followed it."""
        found: dict[str, str] = {}
        for log in self.logs():
            before, word, after = log.read_text(errors="replace").rpartition("Traceback")
            if word:
                # With the line that says what went wrong, which may stand before it.
                found[str(log.relative_to(self.home))] = (before[-_LINE_CHARS:] + word + after)[:_BUG_CHARS]
        return found

    def logs(self) -> list[Path]:
        return sorted(self.home.glob("*.log"))


async def _again(act: Callable[[], Awaitable[T]]) -> T:
    """Until a manager answers, which may be away just then."""
    until_s = time.monotonic() + JOIN_WITHIN_S
    while True:
        try:
            return await act()
        except ShoalError:
            if time.monotonic() > until_s:
                raise
        await asyncio.sleep(0.5)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _free_pair_of_ports(host: str) -> int:
    """A port that is free together with the next: the manager takes both, and the same ones after a restart."""
    while True:
        with socket.create_server((host, 0)) as first, contextlib.suppress(OSError, OverflowError):
            port = int(first.getsockname()[1])
            with socket.create_server((host, port + 1)):
                return port


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=STOP_TIMEOUT_S)


def left_behind(directory: Path, pids: list[int]) -> list[str]:
    """What should not be there any more: file systems below a directory, and processes."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [f"mount {mount}" for mount in mounts if Path(mount).is_relative_to(directory)]
    return found + [f"process {pid}" for pid in pids if psutil.pid_exists(pid)]


def lost_and_twice(registry: Registry, job: str, *, batches: int) -> tuple[int, int]:
    """Batches of a whole number of epochs that are not in the surviving history, or came into it a second time."""
    audits = registry.audit(job)
    return batches - sum(audit.distinct for audit in audits), _twice(registry, job, audits)


def lost_and_twice_so_far(registry: Registry, job: str, *, epoch_batches: int) -> tuple[int, int]:
    """The same of a job that goes on: its last epoch is not over, and lacks batches."""
    audits = registry.audit(job)
    return sum(epoch_batches - audit.distinct for audit in audits[:-1]), _twice(registry, job, audits)


def _twice(registry: Registry, job: str, audits: Sequence[EpochAudit]) -> int:
    # The history refuses a batch a second time, and then the save that brings it fails.
    refused = sum(
        event.kind == "save.failed" and "must not apply it again" in event.text
        for event in registry.events_after(job, 0, limit=EVENTS_MANY)
    )
    return sum(audit.batches - audit.distinct for audit in audits) + refused


def tally_of(rows: list[tuple[int, int]], *, batches: int, momentum: float) -> np.ndarray[Any, Any]:
    """What the tally must be for a history of (version, batch): a round is the mean of its batches, then momentum."""
    rounds: dict[int, list[int]] = {}
    for version, batch in rows:
        rounds.setdefault(version, []).append(batch)
    model, velocity = np.zeros(batches), np.zeros(batches)
    for version in sorted(rounds):
        mean = np.zeros(batches)
        mean[rounds[version]] = 1 / len(rounds[version])
        velocity = momentum * velocity + mean
        model += velocity
    return model
