"""The command: devices for as long as it runs, a command on them, what their links carry, what others left behind.

python -m testbed up --devices 4 --up-mbps 10 --down-mbps 50       # until Ctrl-C; --cluster: Shoal runs on them
python -m testbed run --devices 2 --on device-1 -- ping -c1 198.18.0.1
python -m testbed measure [--json]
python -m testbed arm64 [--json]                                   # an emulated aarch64 device joins and trains
python -m testbed soak --hours 2 [--json]                          # a cluster under faults; goes on after a kill
python -m testbed clean
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.errors import ShoalError
from testbed.arm64_root import MIRROR, TORCH
from testbed.devices import Board, Testbed, boards, clean
from testbed.homes import temporary_home
from testbed.measure import Measured, measure_all
from testbed.namespaces import NoNamespaces, why_no_namespaces
from testbed.proxy import Line

if TYPE_CHECKING:
    from testbed.cluster import Cluster

#: What a command run by ``run`` finds in its environment: the devices, as JSON.
TESTBED_VARIABLE = "SHOAL_TESTBED"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    commands = {"up": _up, "run": _run, "measure": _measure, "arm64": _arm64, "soak": _soak, "clean": _clean}
    try:
        with _ended_by_signals():
            if why_not := why_no_namespaces():
                raise NoNamespaces(why_not)
            return commands[given.command](given)
    except (NoNamespaces, ShoalError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2


# Commands ------------------------------------------------------------------------------------------------


def _up(given: argparse.Namespace) -> int:
    if given.cluster:
        return asyncio.run(_up_cluster(given))
    with Testbed(_boards(given), shared_mbps=given.shared_mbps) as bed:
        _introduce(bed)
        print("Ctrl-C takes them down", flush=True)
        while True:
            signal.pause()


async def _up_cluster(given: argparse.Namespace) -> int:
    # Only here: the other commands need nothing of Shoal's runtime, and start in half the time.
    from testbed.cluster import Cluster

    with contextlib.ExitStack() as stack:
        home = given.home or stack.enter_context(temporary_home())
        cluster = Cluster(home, _boards(given), manager=_manager(given), shared_mbps=given.shared_mbps)
        # The loop is asked, not interrupted: processes are ended in order.
        stopping = asyncio.Event()
        for number in _ENDING:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        starting = asyncio.create_task(_started(cluster, stopping))
        await stopping.wait()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
    return 0


async def _started(cluster: Cluster, stopping: asyncio.Event) -> None:
    try:
        async with cluster:
            await cluster.connected()
            _introduce(cluster.bed)
            print(f"operate it with: shoal status --home {shlex.quote(str(cluster.home))}")
            print("Ctrl-C takes it down", flush=True)
            await stopping.wait()
    finally:
        stopping.set()


def _run(given: argparse.Namespace) -> int:
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if not words:
        raise NoNamespaces("run what? python -m testbed run [OPTIONS] -- COMMAND")
    with Testbed(_boards(given), shared_mbps=given.shared_mbps) as bed:
        if given.on and given.on not in [device.name for device in bed]:
            raise NoNamespaces(f"there is no {given.on}: devices are called device-1 to device-{len(bed)}")
        described = json.dumps({device.name: _described(bed, device.name) for device in bed})
        command = bed[given.on].exec(*words) if given.on else tuple(words)
        # On this machine's own terminal: Ctrl-C reaches the command too, and then us.
        with subprocess.Popen(command, env={**os.environ, TESTBED_VARIABLE: described}) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5.0)
                process.kill()
                raise
    return code if code >= 0 else 128 - code


def _measure(given: argparse.Namespace) -> int:
    with Testbed(_boards(given), shared_mbps=given.shared_mbps) as bed:
        rows = measure_all(
            bed.network,
            up_mbps=given.up_mbps,
            down_mbps=given.down_mbps,
            seconds=given.seconds,
            shared_mbps=given.shared_mbps,
        )
    if given.json:
        print(json.dumps({row.key: row.as_json() for row in rows}))
    else:
        _print_measured(rows)
    return 0


def _arm64(given: argparse.Namespace) -> int:
    # Only here, as above.
    from testbed.arm64 import show
    from testbed.arm64_root import default_folder

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", file=sys.stderr, flush=True)

    began_s = time.monotonic()
    folder = (given.root or default_folder()).absolute()
    showing = show(folder, torch=given.torch, mirror=given.mirror, within_s=given.within_s, tell=tell)
    shown = asyncio.run(showing)
    if given.json:
        print(json.dumps(shown.as_json()))
    else:
        for key, value in shown.as_json().items():
            print(f"{key:<18} {value}")
    return 0 if shown.trained_versions and shown.machine == "aarch64" else 1


def _soak(given: argparse.Namespace) -> int:
    # Only here, as above.
    from testbed.results import finish
    from testbed.soak.journal import default_path
    from testbed.soak.result import is_sound, keep
    from testbed.soak.run import soak

    path: Path = (given.state or default_path()).absolute()
    home = given.home
    running = soak(path, hours=given.hours, every_s=given.every, seed=given.seed, anew=given.new, home=home)
    found = asyncio.run(_ended_in_order(running))
    if found is None:
        print(f"testbed: the same command goes on from {path}", file=sys.stderr)
        return 130
    if given.keep:
        keep(found)
    finish(found)
    return 0 if is_sound(found) else 1


async def _ended_in_order(running: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | None:
    """What it gives; None if a signal ended it. Its processes are ended in order."""
    task = asyncio.create_task(running)
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None


def _clean(given: argparse.Namespace) -> int:
    cleaned = clean()
    for name in cleaned.removed:
        print(f"removed {name}")
    for name in cleaned.kept:
        print(f"left alone, in use: {name}")
    if not cleaned.removed:
        print("nothing was left behind")
    return 0


# What is printed -------------------------------------------------------------------------------------------


def _introduce(bed: Testbed) -> None:
    print(f"this machine is {bed.address} to {len(bed)} devices:")
    for device in bed:
        print(f"  {device.name:<12} {device.address:<14} {_traits(device.board)}")
        print(f"  {'':<12} {shlex.join(device.exec('COMMAND'))}")


def _traits(board: Board) -> str:
    told = [
        f"up {board.up_mbps:g} Mb/s" if board.up_mbps is not None else "",
        f"down {board.down_mbps:g} Mb/s" if board.down_mbps is not None else "",
        f"{board.cores:g} cores" if board.cores is not None else "",
        f"{board.pace_s:g} s a batch" if board.pace_s else "",
    ]
    return ", ".join(filter(None, told)) or "no limits"


def _described(bed: Testbed, name: str) -> dict[str, object]:
    return {"address": bed[name].address, "enter": bed[name].exec()}


def _print_measured(rows: Sequence[Measured]) -> None:
    print(f"{'':<28} {'asked':>8} {'measured':>9} {'of asked':>9}   each flow")
    for row in rows:
        spread = f"{min(row.flows_mbps):.1f} to {max(row.flows_mbps):.1f}" if len(row.flows_mbps) > 1 else ""
        asked = f"{row.asked_mbps:8.1f} {row.mbps:9.1f} {row.mbps / row.asked_mbps:9.3f}"
        print(f"{row.what:<28} {asked}   {spread}".rstrip())
    print("Mb/s; measured is TCP's payload, which is 0.956 of what is on the wire")


# What is given ---------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Devices made of this machine. Takes root.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make devices, and take them down at Ctrl-C")
    run = commands.add_parser("run", help="make devices, run a command, take them down")
    measure = commands.add_parser("measure", help="what links carry, beside what was asked for")
    arm64 = commands.add_parser("arm64", help="an aarch64 device under emulation joins this machine and trains")
    soak = commands.add_parser("soak", help="a cluster under a fault a minute: what is lost, counts twice, and grows")
    commands.add_parser("clean", help="remove what testbeds left behind that were killed")
    for command, devices, rate_mbps in ((up, 4, None), (run, 4, None), (measure, 16, 100.0)):
        command.add_argument("--devices", type=int, default=devices, metavar="N")
        command.add_argument("--up-mbps", type=float, default=rate_mbps, help="from each device")
        command.add_argument("--down-mbps", type=float, default=rate_mbps, help="to each device")
        command.add_argument("--shared-mbps", type=float, help="of all devices together, as on one radio channel")
    for command in (up, run):
        command.add_argument("--cores", type=float, help="each device's share of the processor")
    up.add_argument("--cluster", action="store_true", help="with a manager and an agent on each device")
    up.add_argument("--home", type=Path, help="the cluster's; left there afterwards")
    up.add_argument("--pace-s", type=float, default=0.0, help="what a batch takes at least, with --cluster")
    up.add_argument("--delay-ms", type=float, default=0.0, help="one way between manager and device, with --cluster")
    up.add_argument("--jitter-ms", type=float, default=0.0)
    up.add_argument("--loss", type=float, default=0.0, help="the chance of a segment to be lost")
    run.add_argument("--on", metavar="DEVICE", help="run it there; else on this machine, which reaches them all")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    measure.add_argument("--seconds", type=float, default=3.0, help="of each transfer")
    arm64.add_argument("--root", type=Path, metavar="DIR", help="keeps the root folder; else in the user's cache")
    arm64.add_argument("--torch", default=TORCH, metavar="VERSION", help=f"its aarch64 wheel; {TORCH} unless told")
    arm64.add_argument("--mirror", default=MIRROR, metavar="URL", help="of Debian")
    arm64.add_argument("--within-s", type=float, default=1800.0, help="for joining, and again for training")
    soak.add_argument("--hours", type=float, default=2.0, help="with faults in all; half of them with two managers")
    soak.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between two faults")
    soak.add_argument("--seed", type=int, default=1)
    soak.add_argument("--state", type=Path, metavar="FILE", help="goes on from there; else in the user's cache")
    soak.add_argument("--new", action="store_true", help="begin anew; what is in FILE is put aside")
    soak.add_argument("--home", type=Path, help="the clusters'; left there afterwards")
    soak.add_argument("--keep", action="store_true", help="add the result to testbed/soak/kept.json")
    for command in (measure, arm64, soak):
        command.add_argument("--json", action="store_true")
    return parser


def _boards(given: argparse.Namespace) -> list[Board]:
    chosen = vars(given)
    line = None
    if chosen.get("delay_ms") or chosen.get("jitter_ms") or chosen.get("loss"):
        line = Line(delay_ms=given.delay_ms, jitter_ms=given.jitter_ms, loss=given.loss)
    return boards(
        given.devices,
        up_mbps=given.up_mbps,
        down_mbps=given.down_mbps,
        cores=chosen.get("cores"),
        pace_s=chosen.get("pace_s", 0.0),
        line=line,
    )


def _manager(given: argparse.Namespace) -> Board:
    """On a link like the others': the leader's link counts."""
    return Board(name="", up_mbps=given.up_mbps, down_mbps=given.down_mbps)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end this program as Ctrl-C does: by way of every ``finally``."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


if __name__ == "__main__":
    sys.exit(main())
