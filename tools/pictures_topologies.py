"""What crosses each link in a star, a tree, a shard and a chain, and how long a batch takes with more devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pictures_canvas import Canvas

from shoal.cli.sketch import Sketch
from shoal.topology import predict
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.shard import water_fill
from shoal.topology.split import split

#: The example of docs/topologies.md: `shoal plan explain --mbps 100 --model-mb 2.9 --train-s 1`.
LINK_BYTES_PER_S, MODEL_BYTES, TRAIN_S = 100e6 / 8, 2.9e6, 1.0
DEVICES = 8
COUNTS = (2, 4, 8, 16, 32, 64)
KINDS = {"star": ("one", "c1"), "tree": ("two", "c2"), "shard": ("three", "c3")}
#: Line width per megabyte between two nodes.
_PX_PER_MB = 0.75

#: Bytes per version from one node to another.
Loads = Mapping[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Panel:
    name: str
    says: tuple[str, str]
    loads: Loads
    batch: str
    #: The devices in the order in which they are drawn around the leader.
    ring: tuple[str, ...]
    #: Whose link the figure below the drawing belongs to.
    whose: str
    #: Devices that sum for others and are drawn dark.
    sums: frozenset[str] = frozenset()

    def fuller_bytes(self, node: str) -> float:
        """Return what the fuller direction of a node's link carries per version."""
        out = sum(load for (source, _), load in self.loads.items() if source == node)
        into = sum(load for (_, target), load in self.loads.items() if target == node)
        return max(out, into)

    @property
    def busiest(self) -> str:
        """The leader if no device's link carries more."""
        nodes = sorted({node for pair in self.loads for node in pair})
        return max(nodes, key=lambda node: (round(self.fuller_bytes(node)), node == "L"))


def side_by_side() -> str:
    """Draw four topologies of the same eight devices, with lines as wide as the bytes that cross them."""
    canvas = Canvas(
        900,
        476,
        title="Star, tree, shard and chain",
        says="Eight devices in four topologies. Lines are as wide as the bytes that cross them per version. The busiest"
        " link is red, with its bytes and the seconds that these take.",
    )
    model, link = f"{MODEL_BYTES / 1e6:g} MB", f"{LINK_BYTES_PER_S * 8 / 1e6:g} Mb/s"
    canvas.text(24, 32, "Where updates are summed: the same 8 devices in four topologies", bold=True, size=16)
    says = f"Line width: bytes per version. Model {model}, links {link} each way, training {TRAIN_S:g} s"
    canvas.text(24, 52, says, "dim", size=12)
    for place, panel in enumerate(_panels()):
        _panel(canvas, 16 + place * 218, panel)
    canvas.path([(24, 410), (876, 410)], "hair")
    notes = [
        "Red: the busiest link, with what its fuller direction carries per version and how long that takes.",
        "L is the leader. Dark devices of a tree are aggregators and also train. In a shard each device sums a part.",
        "A chain has no leader: a flock adds partial sums in pairs. Drawn without the version going back.",
    ]
    canvas.lines(24, 430, notes, size=12)
    return canvas.written()


def _cluster(devices: int) -> Cluster:
    nodes = [
        ClusterNode(name=name, up_bytes_per_s=LINK_BYTES_PER_S, down_bytes_per_s=LINK_BYTES_PER_S, compute_s=seconds)
        for name, seconds in (("L", 0.0), *((str(number), TRAIN_S) for number in range(1, devices + 1)))
    ]
    return Cluster(leader=nodes[0], workers=tuple(nodes[1:]))


def _panels() -> list[_Panel]:
    cluster = _cluster(DEVICES)
    names = tuple(worker.name for worker in cluster.workers)
    tree, shares = split(cluster), water_fill(cluster.workers, model_bytes=MODEL_BYTES)
    predicted = {
        "star": predict.star(cluster, model_bytes=MODEL_BYTES),
        "tree": predict.tree(cluster, tree, model_bytes=MODEL_BYTES),
        "shard": predict.shard(cluster, model_bytes=MODEL_BYTES, shares=shares),
    }
    batch = {name: f"{each.batch_s:.2f} s per batch" for name, each in predicted.items()}
    pairs = [("L", group.aggregator) for group in tree.groups]
    pairs += [(group.aggregator, name) for group in tree.groups for name in group.members]
    return [
        _Panel(
            name="star",
            says=("every worker with", "the leader"),
            loads=_both_ways([("L", name) for name in names]),
            batch=batch["star"],
            ring=names,
            whose="the leader's link",
        ),
        _Panel(
            name="tree",
            says=("aggregators sum", "for their groups"),
            loads=_both_ways(pairs),
            batch=batch["tree"],
            ring=tuple(name for group in tree.groups for name in _around(group.aggregator, group.members)),
            whose="the leader's link",
            sums=frozenset(group.aggregator for group in tree.groups),
        ),
        _Panel(
            name="shard",
            says=("each sums one part", "for all"),
            loads=_shard_loads(dict(zip(shares.nodes, shares.shares, strict=True))),
            batch=batch["shard"],
            ring=names,
            whose="each device's link",
        ),
        _Panel(
            name="chain",
            says=("in pairs, without", "a leader"),
            loads=_chain_loads(list(names)),
            batch="no prediction",
            ring=names,
            whose="the last one's link",
            sums=frozenset(names[-1:]),
        ),
    ]


def _both_ways(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return the model one way and an update or a sum the other way, for each pair."""
    return {way: MODEL_BYTES for one, two in pairs for way in ((one, two), (two, one))}


def _shard_loads(share: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return a part of the update to the device that sums it, and the new values of its own part from each device."""
    loads = {(one, two): MODEL_BYTES * (share[two] + share[one]) for one in share for two in share if one != two}
    return loads | {(name, "L"): MODEL_BYTES * part for name, part in share.items()}


def _chain_loads(names: list[str]) -> dict[tuple[str, str], float]:
    """Return a partial sum for each merge: neighbours first, then those that continue, until one device has all."""
    loads: dict[tuple[str, str], float] = {}
    while len(names) > 1:
        loads |= dict.fromkeys(zip(names[::2], names[1::2], strict=True), MODEL_BYTES)
        names = names[1::2]
    return loads


def _around(aggregator: str, members: Sequence[str]) -> list[str]:
    """Return a group with its aggregator in the middle."""
    middle = len(members) // 2
    return [*members[:middle], aggregator, *members[middle:]]


def _panel(canvas: Canvas, x: float, panel: _Panel) -> None:
    centre_x, centre_y, radius = x + 109, 236.0, 76.0
    spots = {
        name: (
            centre_x + radius * math.sin(2 * math.pi * (place + 0.5) / len(panel.ring)),
            centre_y - radius * math.cos(2 * math.pi * (place + 0.5) / len(panel.ring)),
        )
        for place, name in enumerate(panel.ring)
    }
    if any("L" in pair for pair in panel.loads):
        spots["L"] = (centre_x, centre_y)
    canvas.text(centre_x, 92, panel.name, bold=True, size=15, at="middle")
    canvas.lines(centre_x, 110, list(panel.says), size=12, at="middle")
    busiest = panel.busiest
    # In a shard every device's link carries as much: none is marked.
    marked = "" if panel.name == "shard" else busiest
    for one, two in sorted({(min(pair), max(pair)) for pair in panel.loads}):
        load = panel.loads.get((one, two), 0.0) + panel.loads.get((two, one), 0.0)
        kind = "hot" if marked in (one, two) else "link"
        canvas.path([spots[one], spots[two]], kind, width=max(0.6, _PX_PER_MB * load / 1e6))
    for name, (at_x, at_y) in spots.items():
        is_dark = name == "L" or name in panel.sums
        canvas.dot(at_x, at_y, 15 if name == "L" else 12, "strong" if is_dark else "box")
        canvas.text(at_x, at_y + 4, name, "on" if is_dark else "text", size=12, at="middle", bold=True)
    fuller_bytes = panel.fuller_bytes(busiest)
    canvas.text(centre_x, 352, panel.batch, bold=True, size=14, at="middle")
    canvas.text(centre_x, 372, f"{panel.whose}: {fuller_bytes / 1e6:.1f} MB", "warn", size=12, at="middle")
    canvas.text(centre_x, 389, f"= {fuller_bytes / LINK_BYTES_PER_S:.2f} s", "warn", size=12, at="middle")


def seconds_per_batch() -> str:
    """Draw seconds per batch against devices, on links of their own and on shared Wi-Fi."""
    canvas = Canvas(
        900,
        420,
        title="Seconds per batch against the number of devices",
        says="Two panels with a curve each for star, tree and shard. With separate links the shard stays at 1.5 s. On"
        " shared Wi-Fi the star is fastest.",
    )
    canvas.text(24, 32, "Seconds per batch, as shoal plan explain predicts them", bold=True, size=16)
    says = f"Model {MODEL_BYTES / 1e6:g} MB, links {LINK_BYTES_PER_S * 8 / 1e6:g} Mb/s each way, {TRAIN_S:g} s training"
    canvas.text(24, 52, says, "dim", size=12)
    _curves(canvas, 64, "Each device has its own link", is_shared=False)
    _curves(canvas, 488, "All share one Wi-Fi channel; leader on a wire", is_shared=True)
    return canvas.written()


def _curves(canvas: Canvas, x: float, title: str, *, is_shared: bool) -> None:
    width, top, bottom = 310.0, 104.0, 360.0
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in KINDS}
    for devices in COUNTS:
        choice = Sketch(
            devices=devices,
            link_bytes_per_s=LINK_BYTES_PER_S,
            leader_bytes_per_s=LINK_BYTES_PER_S,
            model_bytes=MODEL_BYTES,
            train_s=TRAIN_S,
            shared_air=is_shared,
        ).choose()
        for each in choice.alternatives:
            if each.topology in found:
                found[each.topology].append((devices, each.batch_s))
    most = 64.0

    def place(devices: int, batch_s: float) -> tuple[float, float]:
        return (
            x + width * math.log2(devices / COUNTS[0]) / math.log2(COUNTS[-1] / COUNTS[0]),
            bottom - (bottom - top) * math.log2(batch_s) / math.log2(most),
        )

    canvas.text(x, 84, title, bold=True, size=13)
    for seconds in (1, 2, 4, 8, 16, 32, 64):
        y = place(COUNTS[0], seconds)[1]
        canvas.path([(x, y), (x + width, y)], "hair")
        canvas.text(x - 8, y + 4, f"{seconds} s", "dim", size=11, at="end")
    for devices in COUNTS:
        canvas.text(place(devices, 1)[0], bottom + 18, str(devices), "dim", size=11, at="middle")
    canvas.text(x + width / 2, bottom + 38, "devices", "dim", size=12, at="middle")
    ends = _apart([(place(*found[name][-1])[1], name) for name in KINDS])
    for name, (line, ink) in KINDS.items():
        points = [place(*each) for each in found[name]]
        canvas.path(points, line)
        for at_x, at_y in points:
            canvas.dot(at_x, at_y, 2.5, "tip")
        label = f"{name} {found[name][-1][1]:.1f} s"
        canvas.text(points[-1][0] + 8, ends[name] + 4, label, ink, size=12, bold=True)


def _apart(ends: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Return where the labels of curves go, so that no two touch."""
    placed: dict[str, float] = {}
    last = -math.inf
    for y, name in sorted(ends):
        last = max(y, last + 15)
        placed[name] = last
    return placed
