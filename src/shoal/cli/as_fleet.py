"""A running cluster as a fleet file for the simulator. Pure text: measured figures, and for each other one that it is
not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.cli.render.format import clean, plural
from shoal.scheduling.placement import LINK_ASSUMED_BYTES_PER_S
from shoal.sim.fleet_file import PROFILE
from shoal.sim.profiles import builds
from shoal.sim.rng import Rng
from shoal.wire.messages import JobView, NodeView

_BYTES_PER_MBIT = 125_000.0

#: Names listed in one comment.
_NAMES_SHOWN = 8

_HEAD = """\
# A fleet for `shoal simulate TASK --fleet FILE` (docs/plan-a-fleet.md), as this cluster was when it was asked.
# The cluster does not know these figures of its devices. Add them where you do:
#   power: train_watts, idle_watts, battery_wh
#   the delay of their links: latency_s
#   the rate of their uplinks: up_mbps is the measured downlink
#   when they are there: presence; here they always are
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpeed:
    """What a device needed for an example, and by which job this was measured."""

    seconds_per_gmac: float
    job: str


def speeds_of(view: JobView, gmacs_per_example: float) -> dict[str, NodeSpeed]:
    """Return the speed of each worker of a job whose leases all have as many examples. Empty if they have not, or if
    the cost of an example is not known."""
    plan, progress = view.plan, view.progress
    if progress is None or not gmacs_per_example or plan.data != "shared" or plan.work != "leased":
        return {}
    gmacs = gmacs_per_example * plan.batch_size * plan.lease_batches
    return {
        worker.node: NodeSpeed(seconds_per_gmac=worker.train_s / gmacs, job=view.job)
        for worker in progress.workers
        if 0 < worker.train_s < math.inf
    }


def fleet_text(nodes: Sequence[NodeView], speeds: Mapping[str, NodeSpeed], *, cluster: str) -> str:
    """Return the fleet file. Devices that are alike to two digits are one group."""
    groups: dict[tuple[str, ...], list[str]] = {}
    left_out: list[str] = []
    for node in nodes:
        if why := _why_not(node):
            left_out.append(f"{clean(node.node)} ({why})")
        else:
            groups.setdefault(_lines(node, speeds.get(node.node)), []).append(clean(node.node))
    parts = [f"# Cluster {clean(cluster)}, {plural(len(nodes) - len(left_out), 'device')}.\n{_HEAD}"]
    parts += [f"# Left out: {_listed(left_out)}\n"] if left_out else []
    parts += ["\n".join(_group(lines, names)) + "\n" for lines, names in groups.items()]
    return "\n".join(parts)


def _why_not(node: NodeView) -> str:
    """Return why a device is no worker of this cluster now, or "" if it is one."""
    if node.facts.is_hub:
        return "a hub, which trains nothing"
    if node.state not in ("alive", "suspect", "dormant"):
        return clean(node.state)
    return clean(node.standing)


def _group(lines: tuple[str, ...], names: Sequence[str]) -> Iterator[str]:
    if len(names) > 1:
        yield f"# {_listed(names)}"
    yield "[[group]]"
    yield f"name = {json.dumps(names[0])}"
    yield f"count = {len(names)}"
    yield from lines


def _lines(node: NodeView, speed: NodeSpeed | None) -> tuple[str, ...]:
    """Return the lines of a group for a device. Figures that are assumed are marked."""
    if speed is None:
        (usual,) = builds(PROFILE, 1, Rng(0))
        figure, source = usual.seconds_per_gmac, f"NOT MEASURED: a {usual.kind}"
    else:
        figure, source = speed.seconds_per_gmac, f"measured in {clean(speed.job)}, with the cost of its batches"
    lines = [f"seconds_per_gmac = {_two_digits(figure)}  # {source}"]
    rate = node.link_bytes_per_s
    is_measured = 0 < rate < math.inf
    mbps = _two_digits((rate if is_measured else LINK_ASSUMED_BYTES_PER_S) / _BYTES_PER_MBIT)
    lines.append(f"up_mbps = {mbps}  # NOT MEASURED" + (": the downlink" if is_measured else ""))
    lines.append(f"down_mbps = {mbps}" + ("  # measured" if is_measured else "  # NOT MEASURED"))
    if node.facts.memory_mb > 0:
        lines.append(f"memory_mb = {node.facts.memory_mb}  # all of it: other programs need some")
    else:
        lines.append("# memory_mb is not known: that of the simulator applies")
    return tuple(lines)


def _two_digits(value: float) -> str:
    """Write a figure so that devices that differ by less are one group. Never in a form that TOML does not know."""
    digits = 1 - math.floor(math.log10(value))
    rounded = round(value, digits)
    return f"{rounded:.{max(0, digits)}f}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
