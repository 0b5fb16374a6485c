"""hivemind on the machines: four peers that average the network's values. It has no server and no rounds of a job."""

from __future__ import annotations

import re
import statistics
import time
from functools import partial

from benchmarks.peers.bed import POLL_S, Machine, Stuck, wait_until
from benchmarks.peers.contest import bytes_per_round
from benchmarks.peers.counts import Typed, lines_user_writes
from benchmarks.peers.deployment import HERE, START_S, Setting, environment_on
from benchmarks.peers.shares import CLIENTS
from testbed.results import say

_APP = HERE / "hivemind_app"
_ADDRESS = re.compile(r"^address (\S+)", re.MULTILINE)
_AVERAGED = re.compile(r"^averaged (\d+) (\S+)", re.MULTILINE)
_FAILED = re.compile(r"^failed", re.MULTILINE)
_SAMPLE_S = 1.0
_LONGEST_S = 240.0
AVERAGINGS = 50

SETUP = (
    "hivemind.DHT and DecentralizedAverager with groups of four, values as float32, on each of four machines; nothing"
    " trains, so it is a lower bound of a round"
)


def averagings(setting: Setting, rounds: int = AVERAGINGS) -> dict[str, object]:
    """Seconds and bytes of an averaging. The first is left out: the peers find one another in it."""
    typed = Typed()
    typed.note(("pip", "install", "hivemind"))
    first = setting.machines.clients[0]

    def start(machine: Machine, *known: str) -> None:
        options = ("--host", machine.address, "--peers", str(CLIENTS))
        command = ("python", str(_APP / "average.py"), *options, *(("--first", *known) if known else ()))
        typed.note(command)
        machine.start(*command, environment=environment_on(machine, setting))

    # Each connects to all before it: libp2p looks for nobody at 198.18.0.0/15, where these machines are.
    known: list[str] = []
    for machine in setting.machines.clients:
        start(machine, *known)
        wait_until(partial(_address, machine), limit_s=START_S, what="a peer of hivemind")
        known.append(_address(machine))
    rss_mb, begun = _watch(setting.machines.clients, 1)
    before = [machine.crossed_bytes() for machine in setting.machines.clients]
    later_mb, done = _watch(setting.machines.clients, begun + rounds)
    after = [machine.crossed_bytes() for machine in setting.machines.clients]
    taken_s = [float(seconds) for _, seconds in _AVERAGED.findall(first.said())][begun:done]
    say(f"  {rounds} averagings, {statistics.median(taken_s):.2f} s each")
    return {
        "setup": SETUP,
        "steps": typed.steps,
        "lines_user_writes": lines_user_writes(_APP),
        "average_s": statistics.median(taken_s),
        "failed": len(_FAILED.findall(first.said())),
        "client_rss_mb": max(rss_mb, later_mb),
        "client_bytes": bytes_per_round(before, after, done - begun),
        "rounds": done - begun,
        "commands": typed.commands,
    }


def _address(machine: Machine) -> str:
    """Return where others find this peer; empty if it has not said so yet."""
    found = _ADDRESS.search(machine.said())
    return found[1] if found is not None else ""


def _watch(machines: list[Machine], averaged: int) -> tuple[float, int]:
    """Wait until all have averaged this many times. Return the most memory that one held, and how often all have."""
    rss_mb = 0.0
    sampled_s = moved_s = time.monotonic()
    seen = 0
    while True:
        said = [_AVERAGED.findall(machine.said()) for machine in machines]
        done = min(map(len, said))
        now_s = time.monotonic()
        if done > seen:
            seen, moved_s = done, now_s
        if now_s - sampled_s > _SAMPLE_S or done >= averaged:
            sampled_s = now_s
            rss_mb = max(rss_mb, *(machine.memory_mb() for machine in machines))
        if done >= averaged:
            return rss_mb, done
        if now_s - moved_s > _LONGEST_S:
            raise Stuck(f"hivemind does not average: {machines[0].said()[-1500:]}")
        time.sleep(POLL_S)
