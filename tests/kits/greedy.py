"""Sealing devices led by a greedy liar (``dst.greedy_liar``): in each shape and codec, with devices and leaders that
die."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sealed_shapes import ShapedTroupe
from sealed_troupe import HELPER, SealedTroupe, SealingDevice

from dst.greedy_liar import GreedyLiar
from dst.seal_oracle import SealOracle
from shoal.plan import Until
from shoal.roles.actions import Train
from shoal.sim.invariants import Violation
from shoal.sim.observe import Step
from shoal.sim.rng import Rng, Stream

#: Messages that are delivered while the leader lies, and after that.
LYING = 700
HONEST = 3000

#: What a plan's trust may be, with the fewest devices that it takes.
TRUSTS = (
    ("sealed(3, 0%, 30%)", 4),
    ("sealed(3, 0%, 0%)", 4),
    ("sealed(4, 0%, 30%)", 6),
    ("sealed(5, 0%, 30%)", 6),
    ("sealed(4, 20%, 20%)", 8),
    (f"sealed(4, helper={HELPER})", 6),
    (f"sealed(3, 20%, 20%, helper={HELPER})", 6),
    ("sealed(4, 0%, 30%) + private(100)", 6),
    ("sealed(5, 10%, 20%, members=20)", 8),
)


class LyingTroupe(ShapedTroupe):
    """Nobody holds this leader to what an honest one does."""

    def __init__(self, topology: str, **changes: object) -> None:
        super().__init__(topology, **changes)
        #: How often each lie was told.
        self.lied: Counter[str] = Counter()
        self.oracle = SealOracle([self.spec], is_led_honestly=False)

    def _observe(self, step: Step) -> None:
        SealedTroupe._observe(self, step)

    def _trains(self, node: str, device: SealingDevice, action: Train) -> None:
        if action.staged:
            device.model = self.staged[node].copy()
        SealedTroupe._trains(self, node, device, action)


def drawn_plan(draws: Stream) -> tuple[str, dict[str, Any], int]:
    """Return a topology, changes of a plan, and how many devices take part."""
    trust, least = draws.pick(TRUSTS)
    devices = least + draws.below(3)
    topology = draws.pick(("star", "star", "tree", "shard"))
    changes: dict[str, Any] = {"trust": trust, "workers_min": least, "epoch_leases": 4 * devices}
    if "private" in trust:
        changes |= {"cohort": least, "clip_update": 0.5, "until": Until(epochs=3)}
    else:
        codecs = ("dense", "int16", "led30%+ef") if topology == "star" else ("dense", "int16")
        changes["codec"] = draws.pick(codecs)
    if topology == "star" or HELPER in trust:
        topology, changes["aggregators"] = "star", 0
    return topology, changes, devices


def greedy(seed: int) -> LyingTroupe:
    """Play a seed: a leader lies as it can, and then an honest one leads. Raises Violation if it could read what it may
    not, or if the honest one gets no sum."""
    draws = Rng(seed).stream("greedy")
    topology, changes, devices = drawn_plan(draws)
    troupe = LyingTroupe(topology, **changes)
    troupe.liar = liar = GreedyLiar([troupe.spec], draws)
    troupe.trains_slowly = draws.happens(0.5)
    names = [f"d{number}" for number in range(devices)]
    if troupe.spec.plan.believes.helper is not None:
        troupe.helps()
    troupe.joins(*names)
    for _ in range(1 + draws.below(3)):
        troupe.run(most=LYING // 3)
        match draws.below(4):
            case 0:
                troupe.dies()
            case 1:
                name = draws.pick(names)
                troupe.loses(name)
                troupe.joins(name)
            case 2 if troupe.spec.plan.believes.helper is not None:
                troupe.loses(HELPER)
                troupe.helps()
            case _:
                pass
    troupe.joint.finish()
    troupe.lied = liar.lies
    leads_honestly(troupe)
    return troupe


def leads_honestly(troupe: SealedTroupe) -> None:
    """Another leader takes over, and does not lie: there must be sums again, unless devices took part too often."""
    troupe.liar = None
    troupe.dies()
    first = troupe.leader.version
    troupe.run(lambda: troupe.leader.version > first, most=HONEST)
    is_private = troupe.spec.plan.believes.private is not None
    if troupe.leader.version == first and not is_private:
        raise Violation(f"no sum after the liar: {[record.reason for record in troupe.records[-4:]]}")
    troupe.joint.finish()
