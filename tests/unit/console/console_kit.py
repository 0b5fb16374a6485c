"""The console's real app under a real uvicorn on loopback, fed by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from browser import PATIENCE_S, Browser

from shoal.console.access import OPERATOR, ConsoleAccess
from shoal.console.acts import Acts
from shoal.console.app import Console, ConsoleSettings
from shoal.console.asker import Asker
from shoal.console.assets import Assets
from shoal.console.feed import Feed
from shoal.console.serve import server_config
from shoal.console.simulations import Simulations
from shoal.console.state import JobDetails, Look, state_of
from shoal.wire.messages import Status


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Server:
    def __init__(self, console: Console, loop: asyncio.AbstractEventLoop, port: int, clock: Clock) -> None:
        self.console = console
        self.port = port
        self.clock = clock
        self._loop = loop

    def do(self, what: Callable[[], Any]) -> Any:
        """Run this in the server's own thread."""

        async def run() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def take(self, status: Status, at_s: float = 1000.0, **details: JobDetails) -> None:
        """The manager answered this."""
        state = state_of(Look(status=status, at_s=at_s, details=details))
        self.do(lambda: self.console.feed.take(state, at_s))

    def browser(self, role: str = OPERATOR) -> Browser:
        """One that opened its link."""
        browser = Browser(self.port)
        answer = browser.get(f"/open?k={self.do(lambda: self.console.access.new_link(role))}")
        assert answer.status == 303
        return browser


@contextlib.contextmanager
def console_server(home: Path, *, allow: tuple[str, ...] = (), asks_token: bool = False) -> Iterator[Server]:
    """The app as `shoal console` runs it, without a manager to ask."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    started: list[Server] = []
    ready = threading.Event()
    clock = Clock()

    async def main() -> None:
        feed = Feed()
        asker = Asker(home, feed)
        settings = ConsoleSettings(
            hosts=(f"127.0.0.1:{port}", f"localhost:{port}"),
            origin=f"http://127.0.0.1:{port}",
            allow=allow,
            asks_token=asks_token,
        )
        console = Console(
            feed=feed,
            access=ConsoleAccess(clock),
            acts=Acts(asker, allow),
            assets=Assets(),
            simulations=Simulations(home),
            settings=settings,
            watch=asker.watch,
        )
        server = uvicorn.Server(server_config(console))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        started.append(Server(console, asyncio.get_running_loop(), port, clock))
        ready.set()
        while not ended.is_set():
            await asyncio.sleep(0.05)
        server.should_exit = True
        await console.simulations.stop()
        await serving

    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield started[0]
    finally:
        ended.set()
        thread.join(PATIENCE_S)
        listening.close()
