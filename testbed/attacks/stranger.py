"""Attacks of a stranger: someone who can reach the manager's ports and has no certificate, no line and no secret."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import select
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

import grpc
import grpc.aio

from shoal.errors import ShoalError
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.join_code import JoinCode, new_secret
from shoal.net.grpc import SERVICE
from shoal.wire.frames import envelope_frame, read_opening
from shoal.wire.limits import ENROL_DEADLINE_S
from shoal.wire.messages import Facts, Hello, Lane, Welcome
from testbed.attacks.kit import STRANGER, NotTried, Outcome, Site, channel_of, crowd

SILENT = 2500
SOFT_LIMIT = 1024
NEWCOMERS = 4
GET_IN_S = 30.0

AT_THE_DOOR = 200

FAILED_JOINS = 1000
FAILED_AT_ONCE = 16
#: A summary now and then is welcome; a line for each failed join is not: that is 100 kB and more.
LOG_MAX_BYTES = 20_000
JOINED = "joined"


async def silent_connections(folder: Path, scale: float) -> Outcome:
    """A stranger holds 2,500 silent TCP connections to the work port of a manager with the usual 1,024 open files.

    Harm: members cannot connect, or the manager cannot open a file, so that blobs and checkpoints are not stored.
    """
    limited = ("sh", "-c", f'ulimit -Sn {SOFT_LIMIT}; exec "$@"', "sh", sys.executable)
    async with Site(folder, manager_command=limited) as site:
        members = [await site.member(f"member-{number}") for number in range(NEWCOMERS)]
        await site.operator.status()
        async with crowd("127.0.0.1", site.port, count=SILENT):
            await asyncio.sleep(2.0)
            files = len(os.listdir(f"/proc/{site.manager_pid}/fd"))
            got_in = await asyncio.gather(*(_gets_in(member) for member in members))
            try:
                async with asyncio.timeout(GET_IN_S):
                    await site.start_echo_job()
                stored = "blobs were stored"
            except (ShoalError, TimeoutError) as error:
                stored = f"no blob could be stored ({str(error)[:120] or 'no answer'})"
    waited = [f"{s:.1f} s" if s is not None else "never" for s in got_in]
    held = all(s is not None for s in got_in) and stored == "blobs were stored"
    inside = sum(s is not None for s in got_in)
    return Outcome(
        held,
        f"{inside} of {NEWCOMERS} members got in ({', '.join(waited)}), {stored}; the manager had {files} files open",
    )


async def _gets_in(member: Enrolled) -> float | None:
    """Until it is welcome, trying again as an agent does; None: it never was."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < GET_IN_S:
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(8.0), channel_of(member.identity, member.manager_endpoint) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{Lane.CONTROL}")()
                await call.write(envelope_frame(Hello(node=member.identity.node, incarnation="1", facts=Facts())))
                if isinstance(read_opening(await call.read()).message, Welcome):
                    return time.monotonic() - began_s
        await asyncio.sleep(0.5)
    return None


async def full_enrolment_door(folder: Path, scale: float) -> Outcome:
    """A stranger holds 200 silent connections at the enrolment port while two devices want to join.

    Harm: no device can join, and none can return whose certificate ran out.
    """
    async with Site(folder) as site:
        code = JoinCode.parse(site.join_line)
        async with crowd("127.0.0.1", code.port, count=AT_THE_DOOR):
            await asyncio.sleep(1.0)
            told = []
            for number in range(2):
                began_s = time.monotonic()
                try:
                    await enrol(code, wanted=f"device-{number}")
                    told.append(f"joined in {time.monotonic() - began_s:.1f} s")
                except ShoalError as error:
                    told.append(f"could not join: {error}")
    return Outcome(all(each.startswith("joined") for each in told), "; ".join(told))


async def failed_joins_in_the_log(folder: Path, scale: float) -> Outcome:
    """A stranger tries to join 1,000 times with secrets that it made up.

    Harm: each is written down, so that a stranger fills the manager's disk at will.
    """
    async with Site(folder) as site:
        line = JoinCode.parse(site.join_line)
        before = len(site.log())
        room = asyncio.Semaphore(FAILED_AT_ONCE)
        told: dict[str, int] = {}

        async def fail() -> None:
            async with room:
                why = await _made_up(line.host, line.port)
                told[why] = told.get(why, 0) + 1

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60.0):
                await asyncio.gather(*(fail() for _ in range(FAILED_JOINS)))
        # What is summed up comes a while later.
        await asyncio.sleep(2.0)
        grown = len(site.log()) - before
        try:
            await site.member("honest")
            honest = "an honest device joined after it"
        except ShoalError as error:
            honest = f"an honest device could not join after it: {error}"
    tries = sum(told.values())
    held = grown <= LOG_MAX_BYTES and JOINED not in told
    if held and tries < FAILED_JOINS:
        raise NotTried(f"{tries} of {FAILED_JOINS} joins were tried in time")
    answers = ", ".join(f"{count} x {why}" for why, count in sorted(told.items(), key=lambda each: -each[1])[:3])
    return Outcome(
        held and honest.endswith("after it"), f"{tries} failed joins made {grown:,} bytes of log ({answers}); {honest}"
    )


async def _made_up(host: str, port: int) -> str:
    """Ask to join with a secret that nobody gave out; what came of it. No signing request: it is not read that far."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    content = json.dumps({"secret": new_secret(), "csr_pem": "none", "wanted": "stranger", "facts": {}}).encode()
    try:
        async with asyncio.timeout(ENROL_DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(len(content).to_bytes(4, "big") + content)
                answer = json.loads((await reader.read())[4:] or b"{}")
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        return type(error).__name__
    return JOINED if "certificate_pem" in answer else str(answer.get("refused"))[:60]


# The process of a stranger -----------------------------------------------------------------------------------


def hold_open(host: str, port: int, *, count: int, for_s: float) -> None:
    """Keep so many connections open without a word, and open each anew that is cut. Bounded in time."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    held: dict[int, socket.socket] = {}
    poll = select.poll()
    end_s, told = time.monotonic() + for_s, False
    while time.monotonic() < end_s:
        for _ in range(min(500, count - len(held))):
            try:
                connection = socket.socket()
                connection.setblocking(False)
                connection.bind((STRANGER, 0))
                connection.connect_ex((host, port))
            except OSError:
                break
            held[connection.fileno()] = connection
            poll.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
        if len(held) >= count and not told:
            told = True
            print("open", flush=True)
        for number, _ in poll.poll(50):
            connection = held[number]
            try:
                is_cut = not connection.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                is_cut = True
            if is_cut:
                poll.unregister(connection)
                del held[number]
                connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stranger's process. Started by benchmarks.attacks.")
    parser.add_argument("--crowd", required=True, metavar="HOST:PORT")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    host, _, port = given.crowd.rpartition(":")
    hold_open(host, int(port), count=given.count, for_s=given.seconds)


if __name__ == "__main__":
    main()
