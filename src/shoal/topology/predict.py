"""How long a batch takes in a star, a tree or a shard. Pure; does not depend on roles or on how a topology is built.

A batch here is the time in EDDL's Figure 6: from one version to the next, when every worker has trained one lease. S is
the model's size, B a link, l the training. On equal links of a switch

    star    l + 2nS/B          sent to all at once (EDDL §4.3)
            l + (n+1)S/B       sent strictly one after the other: the first trains while the others still wait
    tree    l + 2(g + n/g - 2)S/B     sent at once; the leader one of the g aggregators, these among the n workers
    shard   l + (2(n-1) + 1)/n · S/B     the leader receives every share, to keep the versions

Shoal's leader starts the next transfer after ``HOLD_S``, so its star is between the two forms: near the second if a
model is sent within that time, near the first if it takes many times as long. So star and tree are simulated on the
fluid model of ``flows``, and these forms are special cases. Not modelled: the time to merge an update, heartbeats, and
packet loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.flows import FlowTransfer, finish_times_s
from shoal.topology.shard import Shares, phases_s, water_fill
from shoal.topology.split import Tree

#: How long a sender keeps others waiting for one message. Equals ``shoal.net.shared_budget.TURN_HOLD_S``, which is in a
#: higher layer.
HOLD_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyPrediction:
    """A topology and the predicted time of a batch in it."""

    topology: str
    batch_s: float
    #: The part of ``batch_s`` that is not the slowest worker's training.
    sync_s: float
    detail: str


def star(cluster: Cluster, *, model_bytes: float, hold_s: float = HOLD_S) -> TopologyPrediction:
    """Predict a star: one leader; every worker fetches the model from it and sends its update back."""
    transfers = _exchange(cluster.leader, cluster.workers, model_bytes=model_bytes)
    batch_s = max(finish_times_s(transfers, cluster.nodes, hold_s=hold_s))
    models = len(cluster.workers) - cluster.leader_works
    through_s = _through_s(cluster.leader, models, model_bytes)
    what = "1 model" if models == 1 else f"{models} models"
    detail = f"{what} over the link of {cluster.leader.name} ({through_s:.2f} s each way)"
    return _told("star", batch_s, cluster, detail)


def star_ways_s(cluster: Cluster, *, model_bytes: float, hold_s: float = HOLD_S) -> list[float]:
    """Return the seconds for transfers of each worker's lease in a star, both ways, in the order of the workers."""
    if cluster.leader_works:
        raise Misuse("a leader that works needs no transfer to itself: give a cluster whose leader does not work")
    transfers = _exchange(cluster.leader, cluster.workers, model_bytes=model_bytes)
    back_s = finish_times_s(transfers, cluster.nodes, hold_s=hold_s)[len(cluster.workers) :]
    return [back - worker.compute_s for back, worker in zip(back_s, cluster.workers, strict=True)]


def tree(
    cluster: Cluster, topology: Tree, *, model_bytes: float, above: str = "sync", hold_s: float = HOLD_S
) -> TopologyPrediction:
    """Predict a tree: aggregators fetch the model, pass it on, train, sum updates, and send one update each.

    An aggregator waits for all of its group. With ``above`` = ``sync`` the leader waits for all aggregators. With
    ``async`` each aggregator continues when it has its answer (EDDL §6.5). Then a batch is the average round of a
      group,
    or the time that the leader's link needs to serve every group once, if that is longer.
    """
    if above not in ("sync", "async"):
        raise Misuse(f"above is {above!r}; set sync or async")
    _check_all_are_in(cluster, topology)
    if above == "sync":
        transfers = _tree_transfers(cluster, topology, model_bytes=model_bytes)
        batch_s = max(finish_times_s(transfers, cluster.nodes, hold_s=hold_s))
    else:
        batch_s = _async_above_s(cluster, topology, model_bytes=model_bytes, hold_s=hold_s)
    most = max(len(group.members) for group in topology.groups)
    which = f"{len(topology.groups)} aggregators"
    if topology.hubs:
        which = f"{topology.hubs} hubs" + (f" of {which}," if topology.hubs < len(topology.groups) else "")
    detail = f"{topology.notation}, {above} above: {which} with up to {most} workers each"
    return _told("tree", batch_s, cluster, detail)


def shard(cluster: Cluster, *, model_bytes: float, shares: Shares | None = None) -> TopologyPrediction:
    """Predict a shard: every worker leads a share. All wait for the slowest to train; then the two halves follow.

    In the second half the leader also receives every share's mean, since it keeps the versions. Latency counts once per
    half: a node sends to all others at once.
    """
    workers = cluster.workers
    shares = water_fill(workers, model_bytes=model_bytes) if shares is None else shares
    if shares.nodes != tuple(worker.name for worker in workers):
        raise Misuse("the shares are for other nodes than the workers of this cluster")
    halves_s = phases_s(workers, shares.shares, model_bytes=model_bytes, observer=cluster.leader)
    latencies_s = sorted(worker.latency_s for worker in workers)
    delay_s = sum(latencies_s[-2:]) if len(workers) > 1 else 0.0
    batch_s = cluster.slowest_s + sum(halves_s) + 2 * delay_s
    return _told("shard", batch_s, cluster, shares.reason)


def flowing(cluster: Cluster, *, model_bytes: float) -> TopologyPrediction:
    """Predict a star in which no worker waits for another."""
    batch_s = flowing_s(cluster, model_bytes=model_bytes)
    detail = f"the average lease of {len(cluster.workers)} workers, where no worker waits for another"
    return _told("star", batch_s, cluster, detail)


def flowing_s(cluster: Cluster, *, model_bytes: float) -> float:
    """Return the time of one lease per worker if no worker waits for another: limited by the workers together, or by
    the leader's link.

    A worker's lease takes its training and its transfers; the leader's link carries one model each way per lease.
    """
    leases_per_s = sum(
        1 / max(node.compute_s + model_bytes / node.up_bytes_per_s + model_bytes / node.down_bytes_per_s, 1e-9)
        for node in cluster.workers
    )
    return max(len(cluster.workers) / leases_per_s, _through_s(cluster.leader, len(cluster.workers), model_bytes))


def _told(topology: str, batch_s: float, cluster: Cluster, detail: str) -> TopologyPrediction:
    return TopologyPrediction(
        topology=topology, batch_s=batch_s, sync_s=max(0.0, batch_s - cluster.slowest_s), detail=detail
    )


def _exchange(
    leader: ClusterNode,
    workers: tuple[ClusterNode, ...],
    *,
    model_bytes: float,
    start: tuple[int, ...] = (),
    first: tuple[int, ...] = (),
    already: int = 0,
) -> list[FlowTransfer]:
    """Return the transfers of one round: the model to each worker, the update back once it has trained, and the
    leader's own training if it is one of the workers.

    They start after the transfers of ``start``, which bring the model. A leader that has it sends those of ``first``
    before. ``already`` is the length of the list that these will be appended to.
    """
    others = [worker for worker in workers if worker.name != leader.name]
    down = [
        FlowTransfer(source=leader.name, target=worker.name, size_bytes=model_bytes, after=start or first)
        for worker in others
    ]
    up = [
        FlowTransfer(
            source=worker.name,
            target=leader.name,
            size_bytes=model_bytes,
            after=(already + place,),
            wait_s=worker.compute_s,
        )
        for place, worker in enumerate(others)
    ]
    own = [
        FlowTransfer(source=leader.name, target=leader.name, size_bytes=0, after=start, wait_s=worker.compute_s)
        for worker in workers
        if worker.name == leader.name
    ]
    return [*down, *up, *own]


def _tree_transfers(cluster: Cluster, topology: Tree, *, model_bytes: float) -> list[FlowTransfer]:
    nodes, top = cluster.nodes, cluster.leader.name
    remote = [group for group in topology.groups if group.aggregator != top]
    transfers = [FlowTransfer(source=top, target=group.aggregator, size_bytes=model_bytes) for group in remote]
    starts: dict[str, tuple[int, ...]] = {group.aggregator: (place,) for place, group in enumerate(remote)}
    for group in topology.groups:
        start = starts.get(group.aggregator, ())
        # A hub does not train: it only passes the model on and waits for updates.
        crew = tuple(nodes[name] for name in (*(() if group.is_hub else (group.aggregator,)), *group.members))
        began = len(transfers)
        # A leader that also has a group serves the other aggregators first, since they have workers to serve.
        transfers += _exchange(
            nodes[group.aggregator],
            crew,
            model_bytes=model_bytes,
            start=start,
            first=tuple(range(len(remote))),
            already=began,
        )
        if group.aggregator != top:
            summed = tuple(range(began + len(group.members), len(transfers)))
            transfers.append(FlowTransfer(source=group.aggregator, target=top, size_bytes=model_bytes, after=summed))
    return transfers


def _async_above_s(cluster: Cluster, topology: Tree, *, model_bytes: float, hold_s: float) -> float:
    """Return the average round of the groups (averaged as rates), or the time that the leader's link needs for one
    round of each group if that is longer."""
    nodes = cluster.nodes
    rates = 0.0
    for group in topology.groups:
        alone = Tree(groups=(group,), reason="")
        transfers = _tree_transfers(cluster, alone, model_bytes=model_bytes)
        rates += 1 / max(finish_times_s(transfers, nodes, hold_s=hold_s))
    mean_s = len(topology.groups) / rates
    remote = sum(group.aggregator != cluster.leader.name for group in topology.groups)
    return max(mean_s, _through_s(cluster.leader, remote, model_bytes), _air_s(nodes, topology, cluster, model_bytes))


def _air_s(nodes: Mapping[str, ClusterNode], topology: Tree, cluster: Cluster, model_bytes: float) -> float:
    """Return how long the busiest shared medium is busy with one round of every group."""
    busy_s: dict[str, float] = {}
    pairs = [(cluster.leader.name, group.aggregator) for group in topology.groups]
    pairs += [(group.aggregator, member) for group in topology.groups for member in group.members]
    for pair in pairs:
        for node in (nodes[name] for name in pair if pair[0] != pair[1]):
            if node.medium:
                both_ways_s = model_bytes / node.up_bytes_per_s + model_bytes / node.down_bytes_per_s
                busy_s[node.medium] = busy_s.get(node.medium, 0.0) + both_ways_s
    return max(busy_s.values(), default=0.0)


def _through_s(leader: ClusterNode, models: int, model_bytes: float) -> float:
    """Return the time of this many models over the slower direction of this link."""
    return models * model_bytes / leader.narrow_bytes_per_s


def _check_all_are_in(cluster: Cluster, topology: Tree) -> None:
    named = sorted(name for group in topology.groups for name in group.members)
    named = sorted([*named, *(group.aggregator for group in topology.groups if not group.is_hub)])
    if named != sorted(worker.name for worker in cluster.workers):
        raise Misuse(
            "a tree must name every worker of its cluster once, including aggregators: split the cluster again"
        )
