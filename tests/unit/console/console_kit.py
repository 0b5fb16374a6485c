"""The console's real app under a real uvicorn on loopback, fed by hand, and a browser of few words."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from shoal.console.access import OPERATOR, Access
from shoal.console.acts import Acts
from shoal.console.app import Console, Settings
from shoal.console.asker import Asker
from shoal.console.assets import Assets
from shoal.console.feed import Feed
from shoal.console.serve import server_config
from shoal.console.simulations import Simulations
from shoal.console.state import JobDetails, Look, state_of
from shoal.wire.messages import Status

#: A busy machine takes its time.
PATIENCE_S = 120.0


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


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        body = response.read()
        self.packed_bytes = len(body)
        self.body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Keeps its cookie; sends what a test says besides."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        if isinstance(body, bytes):
            return self.ask("POST", path, body, headers)
        return self.ask("POST", path, json.dumps(body).encode(), {"content-type": "application/json"} | headers)

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        told = {"accept-encoding": "gzip", **({"cookie": self.cookie} if self.cookie else {})}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, body, told)
            answer = Answer(connection.getresponse())
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    @property
    def csrf(self) -> str:
        return str(self.get("/api/session").json["csrf"])

    def stream(self, last: int | None = None, *, receive_bytes: int = 0) -> Stream:
        return Stream(self, last, receive_bytes)


class Stream:
    """Server-sent events, one at a time."""

    def __init__(self, browser: Browser, last: int | None, receive_bytes: int) -> None:
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(("127.0.0.1", browser.port))
        resume = f"Last-Event-ID: {last}\r\n" if last is not None else ""
        head = f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{browser.port}\r\nCookie: {browser.cookie}\r\n{resume}\r\n"
        self._socket.sendall(head.encode())
        self._response = http.client.HTTPResponse(self._socket, method="GET")

    def begin(self) -> Stream:
        self._response.begin()
        assert self._response.status == 200, self._response.read()
        assert self._response.getheader("content-type", "").startswith("text/event-stream")
        return self

    def next(self) -> tuple[int, str, Any] | None:
        """(id, kind, data) of the next event; None: the stream is over."""
        told: dict[str, str] = {}
        while True:
            try:
                line = self._response.readline().decode().rstrip("\n")
            except (http.client.IncompleteRead, ConnectionError, ValueError):
                return None
            if not line and not self._response.fp:
                return None
            if line:
                name, _, value = line.partition(": ")
                told[name] = value
            elif "data" in told:
                return int(told["id"]), told["event"], json.loads(told["data"])
            else:
                if not told:
                    return None
                told = {}

    def close(self) -> None:
        self._response.close()
        self._socket.close()


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
        settings = Settings(
            hosts=(f"127.0.0.1:{port}", f"localhost:{port}"),
            origin=f"http://127.0.0.1:{port}",
            allow=allow,
            asks_token=asks_token,
        )
        console = Console(
            feed=feed,
            access=Access(clock),
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
