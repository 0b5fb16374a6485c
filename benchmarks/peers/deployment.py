"""What the contest asks of each peer: start it as its documents say, give it a job, tell which models were made."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.bed import Machine, Machines
from benchmarks.peers.counts import Typed

HERE = Path(__file__).resolve().parent
START_S = 180.0
COMMAND_S = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is the same for every peer."""

    machines: Machines
    #: One folder a client, with its share.
    shares: Path
    #: Examples of a share; batches of 32 of them are a round of a client.
    examples: int
    #: The Python of the peer's own environment.
    python: Path

    @property
    def binaries(self) -> Path:
        return self.python.parent


def environment_on(machine: Machine, setting: Setting, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a machine of its own has: its own home, nothing of this program's environment; one core a client."""
    return {
        "PATH": f"{setting.binaries}:{os.environ['PATH']}",
        "HOME": str(machine.home),
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        **(extra or {}),
    }


class Deployment(ABC):
    """One peer on the machines. Commands that a user types are noted; what only looks is not."""

    #: How it was set up, in a sentence.
    setup: str
    #: What installs it.
    install: tuple[str, ...]
    #: Whether the user's own program saves each model and begins with it: then a job that is given again goes on.
    keeps_model = False

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.machines = setting.machines
        self.server = setting.machines.server
        self.typed = Typed()
        self.typed.note(self.install)

    @property
    @abstractmethod
    def app(self) -> Path:
        """The folder with all that a user writes."""

    @abstractmethod
    def start_server(self) -> None:
        """Start it, or start it again after it was killed, and wait until it listens."""

    @abstractmethod
    def start_client(self, client: Machine) -> None: ...

    @abstractmethod
    def wait_for_clients(self) -> None: ...

    @abstractmethod
    def submit(self, rounds: int) -> None: ...

    @abstractmethod
    def models(self) -> list[int]:
        """The rounds of the aggregated models of the latest job, in the order in which they were seen."""

    @abstractmethod
    def state(self) -> str:
        """What the peer says of the latest job."""

    @abstractmethod
    def fetch_model(self) -> Path:
        """The last model of the latest job, which has ended."""

    def expect(self, round_s: float) -> None:
        """Take note of how long a round takes, before anything is killed. Most peers have no setting for it."""
        return

    def close(self) -> None:
        """Let go of what looked, if anything did."""
        return

    def environment(self, machine: Machine, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return environment_on(machine, self.setting, extra)

    def share_of(self, client: Machine) -> Path:
        return self.setting.shares / client.name
