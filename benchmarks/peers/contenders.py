"""Who takes part, and what one turn of each is. Settings that matter to one fault only are contenders of their own."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import install
from benchmarks.peers.bed import Machines, Stuck
from benchmarks.peers.contest import faults, lost_client, plain_job, rounded
from benchmarks.peers.deployment import Deployment, Setting
from benchmarks.peers.shares import names, write_shares
from benchmarks.peers.with_flower import FlowerDeployment, FlowerWithTimeout
from benchmarks.peers.with_hivemind import averagings
from benchmarks.peers.with_nvflare import NvflareDeployment, NvflareThreeOfFour
from benchmarks.peers.with_shoal import ShoalDeployment
from shoal.data import mnist
from testbed.results import say

EXAMPLES, QUICK_EXAMPLES = 4800, 1600
ROUNDS, QUICK_ROUNDS = 8, 3
NOT_KILLED = {"client_killed": "not tried with --quick", "server_killed": "not tried with --quick"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    #: Whose environment it runs in.
    peer: str
    #: None if it only averages.
    deployment: type[Deployment] | None
    #: Only the killed client matters: its other figures are those of the contender before it.
    is_for_a_lost_client: bool = False


CONTENDERS: dict[str, Contender] = {
    "shoal": Contender(peer="shoal", deployment=ShoalDeployment),
    "flower": Contender(peer="flower", deployment=FlowerDeployment),
    "flower_timeout": Contender(peer="flower", deployment=FlowerWithTimeout, is_for_a_lost_client=True),
    "nvflare": Contender(peer="nvflare", deployment=NvflareDeployment),
    "nvflare_three": Contender(peer="nvflare", deployment=NvflareThreeOfFour, is_for_a_lost_client=True),
    "hivemind": Contender(peer="hivemind", deployment=None),
}


def version_of(name: str, environments: Path) -> str | None:
    peer = CONTENDERS[name].peer
    return install.version_of(install.python_of(environments, peer), peer)


def turn(name: str, environments: Path, folder: Path, *, quick: bool) -> dict[str, object]:
    """All figures of one contender, or why there are none."""
    contender = CONTENDERS[name]
    version = version_of(name, environments)
    if version is None:
        package = install.DISTRIBUTIONS[contender.peer]
        return {"missing": f"pip install {package} (python -m benchmarks.peers --install DIR)"}
    say(f"{name} {version}")
    examples = QUICK_EXAMPLES if quick else EXAMPLES
    write_shares(folder / "shares", mnist("train"), mnist("test"), examples=examples)
    told: dict[str, object] = {"version": version}
    if unmet := install.unmet_in(environments, contender.peer):
        told["unmet"] = "; ".join(unmet)
    machines = Machines(folder / "machines", names())
    python = install.python_of(environments, contender.peer)
    setting = Setting(machines=machines, shares=folder / "shares", examples=examples, python=python)
    try:
        with machines.up():
            told |= _figures(contender, setting, quick=quick)
    except (Stuck, subprocess.TimeoutExpired) as error:
        told["error"] = str(error)[-1500:]
        say(f"  {name}: {error}")
    return rounded(told)


def _figures(contender: Contender, setting: Setting, *, quick: bool) -> dict[str, object]:
    if contender.deployment is None:
        return averagings(setting)
    with ExitStack() as stack:
        peer = contender.deployment(setting)
        stack.callback(peer.close)
        rounds = QUICK_ROUNDS if quick or contender.is_for_a_lost_client else ROUNDS
        told = plain_job(peer, rounds)
        if quick:
            return told | NOT_KILLED
        round_s = float(str(told["round_s"]))
        return told | (lost_client if contender.is_for_a_lost_client else faults)(peer, round_s)
