"""Star, tree of workers, tree of hubs: what a batch takes devices on home links, simulated.

n devices on links of their own, as at home (``--up-mbps`` and ``--down-mbps``), train one lease each for a version; the
manager's node leads over a link of ``--leader-mbps``. Hubs have ``--hub-mbps`` each way and train nothing. The roles
are the deployed ones. A batch is the time from one version to the next, once the topology holds; ``*_leader_mb`` is
what the leader's link carries for one, ``*_leader_messages`` how many messages the leader hears and says for one, and
``predicted_*`` what ``topology/predict.py`` says.

    python -m benchmarks.hubs [--devices 64] [--hubs 4] [--quick] --json
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from statistics import median

from benchmarks.common import PERNET, Versions
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.roles.events import Received
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import Settings, World
from shoal.topology import predict
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.split import split
from testbed.results import finish, say

TRAIN_S = 1.0
#: Versions of a star before a topology holds, and those that are timed.
BEFORE, TIMED, SETTLING = 4, 6, 2


class Watched(Versions):
    """When versions were made, what the leader's link had carried by then, and how many were before the tree held."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0
        self.topology = "star"
        self.carried: list[int] = []
        self.messages: list[int] = []
        self._messages = 0
        self.world: World | None = None

    def step(self, step: Step) -> None:
        super().step(step)
        assert self.world is not None
        self.carried += [sum(self.world.home_bytes)] * (len(self.made_s) - len(self.carried))
        self.messages += [self._messages] * (len(self.made_s) - len(self.messages))
        if step.role == "leader":
            self._messages += isinstance(step.event, Received)
            self._messages += sum(isinstance(action, Send) for action in step.actions)
        for action in step.actions:
            if isinstance(action, Record) and action.kind == "topology.changed":
                self.before, self.topology = len(self.made_s), action.reason.partition(",")[0]

    def figures(self) -> tuple[float, float, float]:
        """Seconds, megabytes of the leader's link and messages for a version, once the topology holds."""
        first, last = self.before + SETTLING, len(self.made_s) - 1
        batch_s = median(after - before for before, after in itertools.pairwise(self.made_s[first:last]))
        carried, messages = (
            (told[last - 1] - told[first]) / (last - 1 - first) for told in (self.carried, self.messages)
        )
        return batch_s, carried / 1e6, messages


def played(topology: str, given: argparse.Namespace, *, hubs: int) -> Watched:
    up, down, wide = (Steady(mbit(rate)) for rate in (given.up_mbps, given.down_mbps, given.hub_mbps))
    device = Build(
        kind="home",
        seconds_per_gmac=0.0,
        seconds_per_batch=TRAIN_S,
        memory_mb=4096,
        line=AccessLink(up=up, down=down, latency_s=0.01),
    )
    line = AccessLink(up=wide, down=wide, latency_s=0.002)
    hub = replace(device, kind="hub", line=line, is_hub=True, told_bytes_per_s=wide.bytes_per_s)
    plan = Plan(
        topology=topology,
        aggregators=hubs,
        batch_size=1,
        workers_min=given.devices,
        workers_max=given.devices,
        until=Until(epochs=1),
        lease_s=600.0,
        momentum=0.0,
    )
    layout = Layout.of([("flat", (PERNET,), "parameter")])
    job = system_job(plan, layout, examples=given.devices * (BEFORE + SETTLING + TIMED), start_s=0.1)
    home = Steady(mbit(given.leader_mbps))
    watched = Watched()
    world = watched.world = World(
        Settings(
            seed=0,
            builds=[*[device] * given.devices, *[hub] * hubs],
            home_line=AccessLink(up=home, down=home),
            jobs=[job],
        ),
        observers=[watched],
    )
    world.begin()
    if not world.run(limit_s=36_000.0):
        raise SystemExit(f"the simulation of a {topology} did not finish")
    return watched


def predicted_s(given: argparse.Namespace, *, hubs: int | None) -> float:
    """``hubs``: of a tree, 0 for one of workers; None: of a star."""
    leader, wide = mbit(given.leader_mbps), mbit(given.hub_mbps)
    cluster = Cluster(
        leader=ClusterNode(name="leader", up_bytes_per_s=leader, down_bytes_per_s=leader),
        workers=tuple(
            ClusterNode(
                name=f"w{number:03}",
                up_bytes_per_s=mbit(given.up_mbps),
                down_bytes_per_s=mbit(given.down_mbps),
                compute_s=TRAIN_S,
            )
            for number in range(given.devices)
        ),
        hubs=tuple(
            ClusterNode(name=f"h{number}", up_bytes_per_s=wide, down_bytes_per_s=wide) for number in range(hubs or 0)
        ),
    )
    if hubs is None:
        return predict.star(cluster, model_bytes=4 * PERNET).batch_s
    return predict.tree(cluster, split(cluster, aggregators=hubs or None), model_bytes=4 * PERNET).batch_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--hubs", type=int, default=4)
    parser.add_argument("--up-mbps", type=float, default=20.0)
    parser.add_argument("--down-mbps", type=float, default=100.0)
    parser.add_argument("--leader-mbps", type=float, default=100.0)
    parser.add_argument("--hub-mbps", type=float, default=1000.0)
    parser.add_argument("--quick", action="store_true", help="sixteen devices and two hubs")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object, as always here")
    given = parser.parse_args()
    if given.quick:
        given.devices, given.hubs = min(given.devices, 16), min(given.hubs, 2)
    result: dict[str, object] = {"devices": given.devices, "hubs": given.hubs, "train_s": TRAIN_S}
    result |= {name: getattr(given, name) for name in ("up_mbps", "down_mbps", "leader_mbps", "hub_mbps")}
    for name, topology, hubs in (("star", "star", 0), ("tree", "tree", 0), ("hubs", "tree", given.hubs)):
        watched = played(topology, given, hubs=hubs)
        batch_s, leader_mb, messages = watched.figures()
        told_s = predicted_s(given, hubs=None if topology == "star" else hubs)
        at_leader = f"{leader_mb:.1f} MB and {messages:.0f} messages at the leader"
        say(f"{name}: {watched.topology}, {batch_s:.2f} s a batch, {told_s:.2f} s predicted, {at_leader}")
        result |= {f"{name}_s": batch_s, f"predicted_{name}_s": told_s}
        result |= {f"{name}_leader_mb": leader_mb, f"{name}_leader_messages": messages}
    finish(result)


if __name__ == "__main__":
    main()
