"""What a manager pays for devices that stay connected and wait: memory, processor, and a storm after it was killed.

A real manager, and devices that are real lines (``runtime.dialer``: mutual TLS, the device router's hellos, heartbeats
and waits between attempts) without a trainer, many to a process. They dial a few at a time, wait connected with a
heartbeat every 30 s, and are counted. Then the manager is killed with SIGKILL and started again, and every device comes
back by its own rules.

    kb_per_device      growth of the manager's resident memory, over the devices
    us_per_device_s    the manager's processor time while all of them wait, without what it takes alone, over devices
                       and seconds
    lost               devices that lost their session while nothing was done to them
    storm_waste        the manager's processor time until all are back, over what it took when they came a few at a time

How many fit is bounded by this machine: each end of a connection is an open file and memory, and all share its cores.

    python -m benchmarks.sessions --json
    python -m benchmarks.sessions --quick --json      # a few hundred, within a minute
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from benchmarks.common import cpu_s, finish, memory_mb, say
from shoal.identity.enrolment import enrol
from shoal.identity.identity import Identity
from shoal.identity.join_code import JoinCode
from shoal.roles.events import Received
from shoal.roles.node.device_router import Beat, DeviceRouter, Duty, Redial, Say
from shoal.roles.node.failure_detector import Patience
from shoal.runtime.dialer import Dialer
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.manager_main import ManagerReady, run_home
from shoal.wire.messages import Facts, Message, Welcome

DEVICES = 1500
QUICK_DEVICES = 200
HOLD_S = 60.0
QUICK_HOLD_S = 10.0

#: How long the manager is watched without devices.
ALONE_S = 3.0

#: Devices of one process, and how many of them dial at a time.
A_PROCESS = 1000
AT_A_TIME = 8

#: Devices that wait are told to send a fifth as many heartbeats as those that work: one every 30 s.
PATIENCE = Patience(heartbeat_s=6.0, suspect_after_s=9.0, lost_after_s=13.0, reconnect_s=1.5)

#: After which a device that came is known to wait, and has sent its last frequent heartbeat.
SETTLED_S = PATIENCE.lost_after_s + PATIENCE.heartbeat_s

#: Every wait ends.
WAIT_S = 170.0

Told = dict[str, object]


# Devices -----------------------------------------------------------------------------------------------------


class Device:
    """A device that has no job: its line and its router, as an agent has them."""

    def __init__(self, identity: Identity, endpoint: str) -> None:
        self.identity = identity
        self.incarnation = secrets.token_hex(8)
        self._router = DeviceRouter(node=identity.node, incarnation=self.incarnation, manager="manager")
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
        self._carry(self._router.on_opened("manager", Facts(host="light", torch="2", cpus=1), time.monotonic()))

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


async def serve_devices(homes: Path, first: int, count: int, endpoint: str) -> None:
    """Lead so many devices by lines on standard input: ``count`` answers how many are welcome and how many ended."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    devices = [Device(Identity.load(homes / f"{number:06}"), endpoint) for number in range(first, first + count)]
    turns = asyncio.Semaphore(AT_A_TIME)
    holding = []

    async def begin(device: Device) -> None:
        async with turns:
            holding.append(asyncio.create_task(device.line.hold()))
            await device.welcomed.wait()

    beginning = asyncio.gather(*(begin(device) for device in devices))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        welcome, ended = sum(device.welcomed.is_set() for device in devices), sum(device.ended for device in devices)
        print(json.dumps({"welcome": welcome, "ended": ended}), flush=True)
    beginning.cancel()
    for task in holding:
        task.cancel()


# The manager -------------------------------------------------------------------------------------------------


async def serve_manager(home: Path, port: int, devices: int) -> None:
    def told(ready: ManagerReady) -> None:
        line = {"join_line": ready.join_line, "endpoint": ready.endpoint}
        print(json.dumps(line), flush=True)

    await run_home(home, host="127.0.0.1", port=port, devices=devices, patience=PATIENCE, on_ready=told)


def free_pair() -> int:
    """A port whose next is free, too: devices find the manager there again."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


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

    async def count(self) -> tuple[int, int]:
        """How many are welcome now, and how often a session ended."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"count\n")
        told = [await line_of(process) for process in self._processes]
        return sum(int(str(each["welcome"])) for each in told), sum(int(str(each["ended"])) for each in told)

    async def until_welcome(self, wanted: int) -> bool:
        """Whether all are, before patience ends."""
        until_s = time.monotonic() + WAIT_S
        while (await self.count())[0] < wanted:
            if time.monotonic() > until_s:
                return False
            await asyncio.sleep(0.25)
        return True

    async def stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def enrol_all(join_line: str, homes: Path, devices: int) -> None:
    code, turns = JoinCode.parse(join_line), asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with turns:
            (await enrol(code, wanted=f"light-{number:06}")).identity.save(homes / f"{number:06}")

    await asyncio.gather(*(one(number) for number in range(devices)))


async def measure(devices: int, hold_s: float) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        homes, port = Path(folder) / "homes", free_pair()
        part = ("--part", "manager", "--home", str(Path(folder) / "home"), "--port", str(port))
        manager = await spawn(*part, "--devices", str(devices))
        fleet = Fleet([])
        try:
            ready = await line_of(manager)
            await enrol_all(str(ready["join_line"]), homes, devices)
            say(f"{devices} devices joined")
            alone_s = cpu_s(manager.pid)
            await asyncio.sleep(ALONE_S)
            alone_s = (cpu_s(manager.pid) - alone_s) / ALONE_S
            empty_mb, empty_s = memory_mb(manager.pid), cpu_s(manager.pid)
            endpoint = str(ready["endpoint"])
            firsts = range(0, devices, A_PROCESS)
            processes = [
                await spawn(
                    *("--part", "devices", "--home", str(homes), "--endpoint", endpoint),
                    *("--first", str(first), "--devices", str(min(A_PROCESS, devices - first))),
                )
                for first in firsts
            ]
            fleet = Fleet(processes)
            assert await fleet.until_welcome(devices), "not all of them were let in"
            connect_s = cpu_s(manager.pid) - empty_s
            kb = (memory_mb(manager.pid) - empty_mb) * 1024 / devices
            say(f"all welcome: {1e3 * connect_s / devices:.1f} ms of processor and {kb:.0f} kB a device")
            await asyncio.sleep(SETTLED_S)
            before_s, began_s, (_, ended) = cpu_s(manager.pid), time.monotonic(), await fleet.count()
            await asyncio.sleep(hold_s)
            held_s = time.monotonic() - began_s
            us = 1e6 * ((cpu_s(manager.pid) - before_s) / held_s - alone_s) / devices
            welcome, ended_after = await fleet.count()
            say(f"held for {held_s:.0f} s: {us:.1f} us a device and second")
            manager.send_signal(signal.SIGKILL)
            await manager.wait()
            manager = await spawn(*part, "--devices", "1")
            await line_of(manager)
            up_s, began_s = cpu_s(manager.pid), time.monotonic()
            is_back = await fleet.until_welcome(devices)
            storm_s, back_s = cpu_s(manager.pid) - up_s, time.monotonic() - began_s
        finally:
            await fleet.stop()
            if manager.returncode is None:
                manager.kill()
            await manager.wait()
    return {
        "sessions": devices,
        "kb_per_device": kb,
        "us_per_device_s": us,
        "lost": ended_after - ended + devices - welcome,
        "storm_waste": storm_s / connect_s,
        "storm_all_back": is_back,
        "storm_back_s": back_s,
        "connect_ms": 1e3 * connect_s / devices,
        "held_s": held_s,
        "heartbeat_s": 30.0,
        "limit": f"{resource.getrlimit(resource.RLIMIT_NOFILE)[1]} open files, {os.cpu_count()} cores for both ends",
        "load_1m": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=0, help=f"devices at once; {DEVICES} unless told")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DEVICES} devices, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--part", choices=("manager", "devices"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        # Measured from outside; ends with the process that started it.
        if given.part == "manager":
            end_with_starter()
            asyncio.run(serve_manager(given.home, given.port, given.devices))
        else:
            asyncio.run(serve_devices(given.home, given.first, given.devices, given.endpoint))
        return
    devices = given.devices or (QUICK_DEVICES if given.quick else DEVICES)
    finish(asyncio.run(measure(devices, QUICK_HOLD_S if given.quick else HOLD_S)))


if __name__ == "__main__":
    main()
