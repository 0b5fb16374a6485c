"""What Shoal itself pays for a heartbeat at the manager: everything above gRPC, in one process and without sockets.

Real sessions read frames and write answers; the manager's node decides, with its roles, limits and files. Only gRPC's
two calls are replaced, by futures. The futures and the event loop are measured alone, by the same frames through an
echo, in turns with the sessions, and are taken off.

    python -m benchmarks.heartbeat_share --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoal.identity.identity import Authority
from shoal.identity.names import RemoteIdentity
from shoal.net.access import Access
from shoal.net.session import FrameSession
from shoal.net.shared_budget import SharedBudget
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.manager_options import ManagerOptions
from shoal.wire.frames import envelope_frame
from shoal.wire.messages import Facts, Heartbeat, Hello, Lane, Message

DEVICES = 200
END = object()


class Pipe:
    """A stream without a wire: the benchmark puts frames in, and hears how many answers came out."""

    def __init__(self, answered: Callable[[], None]) -> None:
        self._answered = answered
        self._waiting: asyncio.Future[object] | None = None

    async def read(self) -> object:
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting

    async def write(self, frame: bytes) -> None:
        self._answered()

    def put(self, frame: object) -> None:
        assert self._waiting is not None, "a frame while the one before is still handled"
        self._waiting.set_result(frame)

    async def echo(self) -> None:
        while await self.read() is not END:
            await self.write(b"")


class Pipes:
    """So many streams that are spoken to at once."""

    def __init__(self, count: int) -> None:
        self._left = 0
        self._all_answered = asyncio.Event()
        self.pipes = [Pipe(self._answered) for _ in range(count)]

    def _answered(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._all_answered.set()

    async def round(self, frame: bytes) -> float:
        """Processor seconds until every stream was answered."""
        self._left = len(self.pipes)
        self._all_answered.clear()
        began_s = time.process_time()
        for pipe in self.pipes:
            pipe.put(frame)
        await self._all_answered.wait()
        used_s = time.process_time() - began_s
        # What no answer waits for, such as the manager's own turn, is paid for too.
        began_s = time.process_time()
        for _ in range(20):
            await asyncio.sleep(0)
        return used_s + time.process_time() - began_s


def beats(number: int) -> dict[str, Message]:
    """What a device says with its heartbeat of this number, by what it does."""
    return {
        "changed": Heartbeat(seq=number, load=0.5 + number / 1000, memory_free_mb=3000 + number, link_bytes_per_s=1e7),
        "steady": Heartbeat(seq=number, is_idle=True, is_same=True),
    }


async def shares_us(rounds: int) -> dict[str, float]:
    """Microseconds of processor a heartbeat, by what the device does."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        authority = Authority.create(home / "authority", "bench")
        manager = ManagerNode(authority.identity(node="manager", role="manager"), ManagerOptions(home=home / "home"))
        await manager.start()
        commons, spoken, echoed = SharedBudget(), Pipes(DEVICES), Pipes(DEVICES)
        access = Access(cluster=authority.cluster)
        names = [f"w{number:04}" for number in range(DEVICES)]
        peers = [RemoteIdentity(node=name, role="node", cluster=authority.cluster) for name in names]
        sessions = [
            FrameSession(
                peer=peers[number],
                lane=Lane.CONTROL,
                read=pipe.read,
                write=pipe.write,
                end=END,
                commons=commons,
                hears=access.heard(peers[number], str(Lane.CONTROL)),
            )
            for number, pipe in enumerate(spoken.pipes)
        ]
        tasks = [asyncio.create_task(session.run(manager.listener)) for session in sessions]
        echoes = [asyncio.create_task(pipe.echo()) for pipe in echoed.pipes]
        await asyncio.sleep(0.1)
        for session, pipe in zip(sessions, spoken.pipes, strict=True):
            pipe.put(envelope_frame(Hello(node=session.peer.node, incarnation="one", facts=Facts(host="bench"))))
        await asyncio.sleep(1.0)
        took_s: dict[str, list[float]] = {}
        for number in range(1, rounds + 1):
            for name, message in beats(number).items():
                frame = envelope_frame(message)
                bare_s = await echoed.round(frame)
                took_s.setdefault(name, []).append(await spoken.round(frame) - bare_s)
                # No device may say more than so much in a second.
                await asyncio.sleep(0.02)
        for pipe in (*spoken.pipes, *echoed.pipes):
            pipe.put(END)
        await asyncio.gather(*tasks, *echoes)
        await manager.stop()
    # The cheapest tenth: CPU time grows when other work shares the caches.
    return {name: 1e6 * sorted(took)[len(took) // 10] / DEVICES for name, took in took_s.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    shares = asyncio.run(shares_us(given.rounds))
    print(json.dumps({f"own_{name}_heartbeat_us": round(us, 2) for name, us in shares.items()}))


if __name__ == "__main__":
    main()
