"""Rules that are asked whenever a device becomes free, to set beside the package's: any two, and the DQN's choice.

Both begin a merge whenever two are free, as the package's rule does: only whom they choose differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from papers.mdldroid.busy import place_of
from papers.mdldroid.decisions import State
from papers.mdldroid.dqn import Agent
from shoal.flock.pairing.links import Links
from shoal.flock.pairing.pairs import Holder, Pair


@dataclass(frozen=True, slots=True)
class AnyTwo:
    """By chance, in either direction."""

    generator: np.random.Generator

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        if len(free) < 2:
            return None
        sender, receiver = self.generator.choice(len(free), 2, replace=False)
        return Pair(sender=free[sender].name, receiver=free[receiver].name, reason="by chance")


@dataclass(frozen=True, slots=True)
class AskedAgent:
    """The DQN with its eye on the devices as they are now, held to those that are free."""

    agent: Agent

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        if len(free) < 2:
            return None
        states = [State.DONE] * self.agent.devices
        for each in coming:
            # When a busy device will be ready nobody can tell; when a merge will end everybody can.
            states[place_of(each.name)] = State.BUSY if math.isinf(each.ready_s) else State.GET
        names = {place_of(each.name): each.name for each in free}
        for place in names:
            states[place] = State.FREE
        sender = self.agent.best(states, sorted(names))
        states[sender] = State.SEND
        receiver = self.agent.best(states, sorted(place for place in names if place != sender))
        return Pair(sender=names[sender], receiver=names[receiver], reason="the agent's choice")
