"""Attacks of a mate: someone who has a flock's secret, and lies about what its updates weigh or what a model is.

The bad mate is the real one, over the real transport, with its last word changed:

    python -m testbed.attacks.mate LIE --home DIR ...      as ``shoal.flock.driver`` is run
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.flock import driver
from shoal.flock.driver import load_orders, save_orders
from shoal.flock.peer import Peer, Version
from shoal.roles.actions import Action, Send
from shoal.roles.events import Event
from shoal.trainer.echo import UPDATE_VALUE
from shoal.wire import tensors
from shoal.wire.messages import PartialSum
from testbed.attacks.kit import ROOT, NotTried, Outcome, end
from testbed.flocks import command, give_orders

ROUNDS = 4
VALUES = 200
EXAMPLES = 32
FLY_S = 75.0

HONEST = ("ant", "bee")
#: Versions after which it is seen what a lie did.
ENOUGH = 2

#: What the liar says that each value of its update is: many times the others', and nothing that a check refuses.
LIE_VALUE = 64 * UPDATE_VALUE


async def heavy_mate(folder: Path, scale: float) -> Outcome:
    """One of three mates says that its update weighs 1e9.

    Harm: the mean is its update alone: it owns the model of all.
    """
    told = await _fly(folder, {"zed": "heavy"})
    return _shared_out(told, liars=1)


async def endless_mates(folder: Path, scale: float) -> Outcome:
    """Two of four mates say that their updates weigh 1e308 each, which together is more than there is.

    Harm: the mean is 0: nobody's training counts, for ever.
    """
    told = await _fly(folder, {"yak": "endless", "zed": "endless"})
    return _shared_out(told, liars=2)


async def infinite_mate(folder: Path, scale: float) -> Outcome:
    """One of three mates says that its update weighs infinitely much.

    Harm: as above, or a mate that dies of it.
    """
    told = await _fly(folder, {"zed": "infinite"})
    return _shared_out(told, liars=1)


async def not_a_model(folder: Path, scale: float) -> Outcome:
    """A mate says that it holds the next version, of all updates, and gives the others a model that is not numbers.

    Harm: they take it, for its hash is the one that was said, and all later versions are not numbers either.
    """
    told = await _fly(folder, {"zed": "nan"}, until="not taken: version")
    bad = [name for name, model in told.models.items() if not np.isfinite(model).all()]
    words = f"{', '.join(bad)} hold a model that is no numbers" if bad else "honest mates hold only models of numbers"
    if not told.lies:
        raise NotTried(f"no lie was told; {told.words}")
    return Outcome(not bad and not told.deaths, f"{words}; {told.words}")


@dataclasses.dataclass
class Told:
    """What came of a flock."""

    #: Of honest mates: the last model, and which version it is.
    models: dict[str, np.ndarray[Any, Any]]
    versions: dict[str, int]
    lies: int
    log: str
    deaths: list[str]

    @property
    def words(self) -> str:
        versions = ", ".join(f"{name} at version {number}" for name, number in self.versions.items())
        refused = re.findall(r"not taken: ([^\n]*)", self.log) or re.findall(r"broke the contract[^\n]*", self.log)
        dead = f"; died: {', '.join(self.deaths)}" if self.deaths else ""
        first = refused[0][:120] if refused else "none"
        return f"{versions or 'no version'}, {self.lies} lies told, refused: {first}{dead}"


def _shared_out(told: Told, *, liars: int) -> Outcome:
    """Judge by the model: with fair weights each round moves it by the mean, in which a liar has one voice of many."""
    if not told.models or not told.lies:
        if told.deaths:
            return Outcome(False, f"mates died; {told.words}")
        raise NotTried(f"the flock came to nothing; {told.words}")
    honest = len(HONEST)
    fair = (honest * UPDATE_VALUE + liars * LIE_VALUE) / (honest + liars)
    worst = 0.0
    moved = math.inf
    for name, model in told.models.items():
        rounds = max(1, told.versions[name])
        step = float(np.abs(np.nan_to_num(model, nan=math.inf, posinf=math.inf)).max()) / rounds
        worst, moved = max(worst, step / fair), min(moved, step / UPDATE_VALUE)
    held = worst <= 1.1 and moved >= 0.5 and not told.deaths and min(told.versions.values()) > 0
    return Outcome(
        held,
        f"a round moved the model by {worst:.2f} of what fair weights would, {moved:.1f} honest updates; {told.words}",
    )


async def _fly(folder: Path, liars: Mapping[str, str], *, until: str = "") -> Told:
    """Two honest mates and these, until it is over, or its time is, or both honest ones have said this."""
    names = [*HONEST, *liars]
    hosts = {name: f"127.0.0.{20 + number}" for number, name in enumerate(names)}
    homes = give_orders(folder, hosts, rounds=ROUNDS, values=VALUES)
    ports = {name: _free_port(host) for name, host in hosts.items()}
    for name, home in homes.items():
        orders = load_orders(home)
        peers = {other: f"{hosts[other]}:{ports[other]}" for other in names if other != name}
        settings = dataclasses.replace(orders.settings, examples=EXAMPLES, beat_s=0.5, lost_after_s=3.0, patience_s=3.0)
        save_orders(
            home, dataclasses.replace(orders, settings=settings, port=ports[name], peers=peers, multicast=False)
        )
    processes = {name: await _started(homes[name], liars.get(name, "")) for name in names}
    deaths: list[str] = []
    try:
        end_s = time.monotonic() + FLY_S
        while time.monotonic() < end_s and any(processes[name].returncode is None for name in HONEST):
            await asyncio.sleep(0.5)
            if liars and _lies(homes, liars) and all(_made(homes[name]) >= ENOUGH for name in HONEST):
                break
            if until and all(until in _log(homes[name]) for name in HONEST):
                break
        deaths = [name for name in HONEST if processes[name].returncode not in (None, 0)]
    finally:
        await asyncio.gather(*(end(process) for process in processes.values()))
    models, versions = {}, {}
    for name in HONEST:
        path = _model_of(homes[name])
        if path.exists():
            arrays, notes = tensors.read(path, mmap=False)
            models[name] = np.concatenate([np.ravel(array) for array in arrays.values()])
            versions[name] = int(notes["version"])
    log = "\n".join(_log(homes[name]) for name in HONEST)
    return Told(models, versions, _lies(homes, liars), log, deaths)


def _log(home: Path) -> str:
    return (home / "log").read_text(errors="replace")


def _lies(homes: Mapping[str, Path], liars: Mapping[str, str]) -> int:
    return sum(_log(homes[name]).count("LIED") for name in liars)


def _model_of(home: Path) -> Path:
    return driver.stored_model(home, load_orders(home).plan_sha256)


def _made(home: Path) -> int:
    """The newest version that a mate wrote down."""
    path = _model_of(home)
    return int(tensors.read(path, mmap=False)[1]["version"]) if path.exists() else 0


async def _started(home: Path, lie: str) -> asyncio.subprocess.Process:
    runs = command(home)
    if lie:
        at = runs.index("shoal.flock.driver")
        runs[at : at + 1] = ["testbed.attacks.mate", lie]
    with (home / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *runs, "--leash", stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT
        )


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


# The bad mate ------------------------------------------------------------------------------------------------


WEIGHTS = {"heavy": 1e9, "endless": 1e308, "infinite": math.inf}


class BadPeer(Peer):
    """Decides as every mate does, and then says something else."""

    lie = ""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        actions = super().handle(event, now_s)
        if self.lie == "nan" and self.status().phase == "holding":
            spoilt = np.full(self.version.model.size, np.nan, np.float32)
            self.version = Version(number=self.version.number + 1, model=spoilt, made_of=len(HONEST) + 1)
            BadPeer.lie = "told"
            print("LIED: a model that is not numbers", file=sys.stderr, flush=True)
        return [self._changed(action) for action in actions]

    def _changed(self, action: Action) -> Action:
        if not isinstance(action, Send) or not isinstance(action.message, PartialSum) or self.lie not in WEIGHTS:
            return action
        if action.to not in HONEST:
            # Liars do not lie to each other: they would only hold each other up.
            return action
        part = copy.copy(action.message)
        # Past its own checks: what arrives is what counts.
        object.__setattr__(part, "weight", WEIGHTS[self.lie])
        object.__setattr__(part, "tensors", {"mean": np.full(self.version.model.size, LIE_VALUE, np.float32)})
        print(f"LIED: weight {WEIGHTS[self.lie]}", file=sys.stderr, flush=True)
        return dataclasses.replace(action, message=part)


def main() -> int:
    BadPeer.lie = sys.argv.pop(1)
    # The driver builds whatever goes by this name.
    vars(driver)["Peer"] = BadPeer
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
