"""``shoal up``: make a cluster or bring one back, open its doors, run until told to stop.

Run as ``python -m shoal.runtime.manager_main --home DIR``, it prints one line of JSON once it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shoal.errors import Misuse, ShoalError
from shoal.identity.discovery import check_installed
from shoal.identity.listening import listen
from shoal.net.open_files import connections_max, raise_limit
from shoal.roles.node.failure_detector import Patience
from shoal.runtime import log_lines
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.hooks import load_hooks
from shoal.runtime.malloc import keep_freed_memory
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import TAKEN_OVER, ManagerReady, ManagerRun, cancelled, serve
from shoal.runtime.reachable import parse_advertised, reachable
from shoal.store.base import Away
from shoal.store.seat import Deposed, WentBack

log = logging.getLogger("shoal")

#: After this long a manager starts over that found that its database went back.
START_OVER_S = 0.5


async def run_home(
    options: ManagerOptions, *, patience: Patience | None = None, on_ready: Callable[[ManagerReady], None]
) -> None:
    """Serve until SIGINT or SIGTERM. ``patience``: how long a node may be silent."""
    began_s = time.monotonic()
    keep_freed_memory()
    room = raise_limit(), connections_max()
    if options.announce:
        check_installed()
    # In a thread: a name may take long to look up.
    reach = await asyncio.to_thread(reachable, options.host, options.advertise)
    if reach.others and not options.store:
        raise Misuse("--advertise names other managers, and without --store this one is alone")
    if options.direct:
        parse_advertised(options.direct, option="--direct")
    hooks = load_hooks(options.home)
    run = ManagerRun(
        options, reach=reach, hooks=hooks, room=room, began_s=began_s, patience=patience, on_ready=on_ready
    )
    with _alone(options.home):
        _check_free(options.host, options.port)
        loop = asyncio.get_running_loop()
        turning = asyncio.create_task(run.vitals.loop.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, run.stop)
        try:
            await _serve_again(run)
        finally:
            await cancelled(turning)


async def _serve_again(run: ManagerRun) -> None:
    """Serve, and start over where that is the remedy, until the run is told to stop."""
    why = ""
    while not run.is_told_to_stop:
        run.stopping.clear()
        try:
            async with contextlib.AsyncExitStack() as ending:
                await serve(run, ending, why)
            return
        except WentBack as error:
            why = "" if run.untold else str(error)
            log.warning("this manager starts over: %s", error)
        except Deposed:
            raise Deposed(TAKEN_OVER) from None
        except Away as error:
            if not run.is_ready:
                raise
            log.warning("this manager starts over once its stores answer: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run.stopping.wait(), START_OVER_S)


def _check_free(host: str, port: int) -> None:
    """Say that a port is taken before gRPC does: it prints a line of its own, which nobody can read."""
    if not port:
        return
    try:
        listen(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Misuse(
                f"port {port} on {host} is taken by another program: is another manager running? Stop it, or choose"
                " another pair of ports with --port"
            ) from None


class _alone:  # noqa: N801 - reads as `with _alone(home)`
    """One manager a home: a second would write the same files."""

    def __init__(self, home: Path) -> None:
        self._path = home / "cluster" / "lock"
        self._fd = -1

    def __enter__(self) -> None:
        import fcntl

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise Misuse(
                f"a manager is running on {self._path.parent} already: stop it first, or use another --home"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def main() -> int:
    def on_ready(ready: ManagerReady) -> None:
        print(json.dumps(dataclasses.asdict(ready)), flush=True)

    try:
        options = ManagerOptions.parse(sys.argv[1:])
        if options.leash:
            end_with_starter()
        log_lines.set_up(quiet=options.quiet, given=options.log_format)
        asyncio.run(run_home(options, on_ready=on_ready))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
