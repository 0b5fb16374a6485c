"""Runs the console: a socket, uvicorn, the asker. Says where it listens and how to get in."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from shoal.console.access import OPERATOR, VIEWER, ConsoleAccess
from shoal.console.acts import ALLOWED, Acts
from shoal.console.app import Console, ConsoleSettings, make_app
from shoal.console.asker import Asker
from shoal.console.assets import Assets
from shoal.console.feed import Feed
from shoal.console.simulations import Simulations
from shoal.errors import Misuse
from shoal.runtime.reachable import listens_on_loopback
from shoal.web_server import listen, web_config

LOOPBACK = "127.0.0.1"
#: Connections at one time, streams included.
CONNECTIONS_MAX = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    home: Path
    host: str = LOOPBACK
    port: int = 7072
    certificate: Path | None = None
    key: Path | None = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.allow if name not in ALLOWED]:
            raise Misuse(f"--allow {unknown[0]!r}: name some of {', '.join(ALLOWED)}")
        if (self.certificate is None) != (self.key is None):
            raise Misuse("--certificate and --key go together: name both files")
        if self.is_open and self.certificate is None:
            raise Misuse(
                f"--host {self.host} can be reached from other machines, so it needs TLS: name --certificate and --key,"
                f" or leave --host out and use `ssh -L {self.port}:{LOOPBACK}:{self.port}`"
            )
        if _is_any(self.host):
            raise Misuse(f"--host {self.host} is every address: name the one that browsers will use")

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it."""
        return not listens_on_loopback(self.host)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleReady:
    """How to log in, once the console listens."""

    port: int
    origin: str
    #: Makes a link that opens once, within a minute. Returns "" if people log in with a token.
    new_link: Callable[[], str]
    viewer_token: str = ""
    operator_token: str = ""


async def serve(options: Options, on_ready: Callable[[ConsoleReady], None]) -> None:
    """Run the console until a signal ends it."""
    with contextlib.closing(listen(options.host, options.port, option="--port")) as listening:
        await _serve_on(listening, options, on_ready)


async def _serve_on(listening: socket.socket, options: Options, on_ready: Callable[[ConsoleReady], None]) -> None:
    port: int = listening.getsockname()[1]
    is_tls = options.certificate is not None
    name = f"[{options.host}]" if ":" in options.host else options.host
    origin = f"{'https' if is_tls else 'http'}://{name}:{port}"
    hosts = [f"{name}:{port}"] + ([] if options.is_open else [f"localhost:{port}"])
    if port == (443 if is_tls else 80):
        hosts.append(name)
    feed, access, simulations = (
        Feed(first_seq=int(time.time())),
        ConsoleAccess(time.monotonic),
        Simulations(options.home),
    )
    asker = Asker(options.home, feed)
    settings = ConsoleSettings(
        hosts=tuple(hosts), origin=origin, is_tls=is_tls, asks_token=options.is_open, allow=options.allow
    )
    console = Console(
        feed=feed,
        access=access,
        acts=Acts(asker, options.allow),
        assets=Assets(),
        simulations=simulations,
        settings=settings,
        watch=asker.watch,
    )
    server = uvicorn.Server(server_config(console, certificate=options.certificate, key=options.key))
    asking = asyncio.create_task(asker.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        on_ready(_ready(access, options, port, origin))
        await asyncio.wait((serving, asking), return_when=asyncio.FIRST_COMPLETED)
        # Raises the error of whichever ended by one.
        for task in (asking, serving):
            if task.done():
                task.result()
    finally:
        server.should_exit = True
        asking.cancel()
        await simulations.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await asyncio.gather(asking, return_exceptions=True)


def _ready(access: ConsoleAccess, options: Options, port: int, origin: str) -> ConsoleReady:
    role = OPERATOR if options.allow else VIEWER
    if options.is_open:
        return ConsoleReady(
            port=port,
            origin=origin,
            new_link=str,
            viewer_token=access.new_token(VIEWER),
            operator_token=access.new_token(OPERATOR) if options.allow else "",
        )
    return ConsoleReady(port=port, origin=origin, new_link=lambda: f"{origin}/open?k={access.new_link(role)}")


def server_config(console: Console, *, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Config:
    return web_config(
        make_app(console),
        connections_max=CONNECTIONS_MAX,
        certificate=certificate,
        key=key,
        options="--certificate and --key",
    )


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
