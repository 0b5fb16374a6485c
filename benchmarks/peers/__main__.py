"""The same network, digits and four clients with Shoal, Flower and NVFLARE: what a user does, waits for and loses.

    python -m benchmarks.peers --install DIR        once: an environment for each peer, by pip
    python -m benchmarks.peers --environments DIR [--quick] --json

Each client and each server is a network namespace with processes of its own (root, iproute2). A client has every fourth
digit of MNIST, 4,800 of them, and a round is one pass over them in batches of 32 (plain steps of 0.05), then a mean.
Nobody evaluates while it trains; one program judges every peer's last model. ``--quick`` has fewer rounds and
examples and kills nothing. A peer that is not installed is told as missing, and the others run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers import install
from benchmarks.peers.bed import Machines, Stuck
from benchmarks.peers.contest import faults, plain_job, rounded
from benchmarks.peers.deployment import Deployment, Setting
from benchmarks.peers.shares import CLIENTS, names, write_shares
from benchmarks.peers.with_flower import FlowerDeployment
from benchmarks.peers.with_nvflare import NvflareDeployment
from benchmarks.peers.with_shoal import ShoalDeployment
from shoal.data import mnist
from testbed.namespaces import why_no_namespaces
from testbed.results import finish, say

PEERS: dict[str, type[Deployment]] = {
    "shoal": ShoalDeployment,
    "flower": FlowerDeployment,
    "nvflare": NvflareDeployment,
}

EXAMPLES, QUICK_EXAMPLES = 4800, 1600
ROUNDS, QUICK_ROUNDS = 8, 3

VARIABLE = "SHOAL_PEERS"
NOT_KILLED = {"client_killed": "not tried with --quick", "server_killed": "not tried with --quick"}


def turn(name: str, environments: Path, folder: Path, *, quick: bool) -> dict[str, object]:
    """All figures of one peer, or why there are none."""
    python = install.python_of(environments, name)
    version = install.version_of(python, name)
    if version is None:
        return {"missing": f"pip install {install.DISTRIBUTIONS[name]} (python -m benchmarks.peers --install DIR)"}
    say(f"{name} {version}")
    examples, rounds = (QUICK_EXAMPLES, QUICK_ROUNDS) if quick else (EXAMPLES, ROUNDS)
    write_shares(folder / "shares", mnist("train"), mnist("test"), examples=examples)
    told: dict[str, object] = {"version": version}
    machines = Machines(folder / "machines", names())
    with machines.up(), ExitStack() as stack:
        setting = Setting(machines=machines, shares=folder / "shares", examples=examples, python=python)
        peer = PEERS[name](setting)
        stack.callback(peer.close)
        try:
            told |= plain_job(peer, rounds)
            if quick:
                told |= NOT_KILLED
            else:
                told |= faults(peer, float(str(told["round_s"])))
        except (Stuck, subprocess.TimeoutExpired) as error:
            told["error"] = str(error)[-1500:]
            say(f"  {name}: {error}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="DIR", help="make the peers' environments there, and end")
    parser.add_argument("--environments", type=Path, metavar="DIR", help=f"where they are (or {VARIABLE})")
    parser.add_argument("--only", nargs="*", choices=tuple(PEERS), default=list(PEERS))
    parser.add_argument("--quick", action="store_true", help="a few minutes: three rounds, and nothing is killed")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and models there")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    if given.install is not None:
        install.install(given.install)
        return
    if reason := why_no_namespaces():
        raise SystemExit(f"this benchmark needs network namespaces: {reason}")
    environments = given.environments or Path(os.environ.get(VARIABLE, "peers-environments"))
    # Machines and processes are taken down on the way out, also when this is ended politely.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-peers-") as scratch:
        for name in given.only:
            folder = (given.keep or Path(scratch)).absolute() / name
            folder.mkdir(parents=True)
            figures = rounded(turn(name, environments.absolute(), folder, quick=given.quick))
            say(json.dumps({name: figures}))
            result[name] = figures
    finish({**result, "clients": CLIENTS, "quick": given.quick, "load": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
