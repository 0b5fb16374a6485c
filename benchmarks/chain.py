"""The chain of pairs against the best there is, a tree and a ring: when it ends, who spends what, how long it thinks.

Drawn rounds: devices have trained within one merge of each other, and at most half of them are busy and come back up
to four merges later. Everything is worked out, nothing is sent.

    python -m benchmarks.chain [--quick] --json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.chain_bound import lower_bound_s
from benchmarks.chain_broadcast import binomial, compare, richest_first, soonest, told_s
from benchmarks.chain_exact import exact_equal
from benchmarks.chain_links import EqualLinks, NodeLinks, TableLinks
from benchmarks.chain_schedule import Energy, Schedule, play, ring, spent_variance, tree
from shoal.flock.pairing.ahead import WINDOW, LookAhead
from shoal.flock.pairing.exact import DEVICES_MOST, exact
from shoal.flock.pairing.links import Links, table_s
from shoal.flock.pairing.pairs import EarliestTwo, Holder
from shoal.sim.rng import Rng, Stream
from shoal.topology.cluster import ClusterNode
from testbed.results import finish, say

SIZES = tuple(range(3, 17))
MERGE_S = 1.0
ONE_S = EqualLinks(each_s=MERGE_S)
#: Between the slowest and the fastest link.
SPREAD = 4.0
#: Of seconds added up in another order.
ROUNDING = 1e-9

Play = Callable[[Sequence[Holder], Links, Energy], Schedule]

FIXED: dict[str, Play] = {
    "tree": lambda devices, links, energy: tree(devices, links=links, energy=energy),
    "tree_in_step": lambda devices, links, energy: tree(devices, links=links, energy=energy, in_step=True),
    "ring": lambda devices, links, energy: ring(devices, links=links, energy=energy),
    "ring_returning": lambda devices, links, energy: ring(devices, links=links, energy=energy, returns=True),
}

RULES: dict[str, Play] = {
    "earliest_two": lambda devices, links, energy: play(EarliestTwo(), devices, links=links, energy=energy),
    "ahead": lambda devices, links, energy: play(LookAhead(), devices, links=links, energy=energy),
    "ahead_foretold": lambda devices, links, energy: play(
        LookAhead(), devices, links=links, energy=energy, foretold=True
    ),
}


def drawn(count: int, chance: Stream) -> list[Holder]:
    ready_s = [chance.between(0.0, MERGE_S) for _ in range(count)]
    waiting = list(range(count))
    for _ in range(chance.below(count // 2 + 1)):
        ready_s[waiting.pop(chance.below(len(waiting)))] += chance.between(0.0, 4 * MERGE_S)
    return [Holder(name=f"d{place:03}", ready_s=each) for place, each in enumerate(ready_s)]


# Where merges are alike ----------------------------------------------------------------------------------


def equal(instances: int) -> dict[str, float | int]:
    """Earliest-two against the exact program (up to its size), the bound, the tree and the ring."""
    chance = Rng(1).stream("equal")
    optimal, judged, within, over = 0, 0, 0, 0.0
    less: dict[str, list[float]] = {name: [] for name in FIXED}
    for place in range(instances):
        devices = drawn(SIZES[place % len(SIZES)], chance)
        ready_s = [each.ready_s for each in devices]
        ours_s = play(EarliestTwo(), devices, links=ONE_S).makespan_s
        if len(devices) <= DEVICES_MOST:
            judged += 1
            optimal += abs(ours_s - exact_equal(ready_s, merge_s=MERGE_S).makespan_s) <= ROUNDING
        above_s = ours_s - lower_bound_s(ready_s, merge_s=MERGE_S)
        within += -ROUNDING <= above_s < MERGE_S
        over = max(over, above_s / MERGE_S)
        for name, fixed in FIXED.items():
            less[name].append(1 - ours_s / fixed(devices, ONE_S, Energy()).makespan_s)
    say(
        f"{instances} rounds of {SIZES[0]} to {SIZES[-1]} devices, equal merges;"
        f" {judged} of them against the exact optimum"
    )
    for name, shares in less.items():
        mean, best, worst = -statistics.mean(shares), -max(shares), -min(shares)
        say(f"  against {name:<15} {mean:+7.1%} (best {best:+7.1%}, worst {worst:+7.1%})")
    return {
        "instances": instances,
        "instances_exact": judged,
        "optimal_share": optimal / judged,
        "within_bound_share": within / instances,
        "above_bound_merges_max": over,
        **{f"shorter_than_{name}": statistics.mean(shares) for name, shares in less.items()},
    }


# Where links differ --------------------------------------------------------------------------------------


def _rate(chance: Stream) -> float:
    """From 1 to SPREAD, any factor as likely as any other."""
    return float(SPREAD ** chance.random())


def _nodes(names: Sequence[str], chance: Stream, *, both_ways_alike: bool) -> dict[str, ClusterNode]:
    nodes = {}
    for name in names:
        up = _rate(chance)
        nodes[name] = ClusterNode(
            name=name, up_bytes_per_s=up, down_bytes_per_s=up if both_ways_alike else _rate(chance)
        )
    return nodes


def links_by_device(names: Sequence[str], chance: Stream) -> Links:
    return NodeLinks(nodes=_nodes(names, chance, both_ways_alike=True), size_bytes=2 * MERGE_S)


def links_by_way(names: Sequence[str], chance: Stream) -> Links:
    return NodeLinks(nodes=_nodes(names, chance, both_ways_alike=False), size_bytes=2 * MERGE_S)


def links_by_pair(names: Sequence[str], chance: Stream) -> Links:
    seconds = np.array([[2 * MERGE_S / _rate(chance) for _ in names] for _ in names])
    return TableLinks(names=names, seconds=seconds)


FAMILIES = {"device": links_by_device, "way": links_by_way, "pair": links_by_pair}


def unequal(instances: int, *, sizes: Sequence[int] = range(3, DEVICES_MOST + 1)) -> dict[str, float | int]:
    """Every rule against the exact program, for links whose rates differ by up to SPREAD."""
    chance = Rng(2).stream("unequal")
    ratios: dict[tuple[str, str, bool], list[float]] = {}
    for family, draw in FAMILIES.items():
        for place in range(instances):
            devices = drawn(sizes[place % len(sizes)], chance)
            names = [each.name for each in devices]
            links = draw(names, chance)
            best_s = exact([each.ready_s for each in devices], merge_s=table_s(names, links)).makespan_s
            beyond = len(devices) > WINDOW
            for name, rule in (RULES | FIXED).items():
                ratio = rule(devices, links, Energy()).makespan_s / best_s
                ratios.setdefault((family, name, beyond), []).append(ratio)
    found: dict[str, float | int] = {"instances_unequal": instances * len(FAMILIES)}
    say(f"makespan over the optimum, {instances} rounds a row; links differ by up to {SPREAD:g} times, by ...")
    for name in RULES | FIXED:
        for family in FAMILIES:
            inside, outside = ratios[family, name, False], ratios[family, name, True]
            all_of_it = inside + outside
            say(
                f"  {family:<7} {name:<15} mean {statistics.mean(all_of_it):.3f}, worst {max(all_of_it):.2f};"
                f" {sizes[0]} to {WINDOW} devices {statistics.mean(inside):.3f}, more {statistics.mean(outside):.3f}"
            )
            found[f"ratio_{family}_{name}"] = statistics.mean(all_of_it)
        found[f"ratio_{name}"] = statistics.mean(
            ratio for family in FAMILIES for beyond in (False, True) for ratio in ratios[family, name, beyond]
        )
        found[f"ratio_max_{name}"] = max(max(each) for (_, of, _), each in ratios.items() if of == name)
    found["mean_ratio_unequal"] = found["ratio_ahead"]
    return found


# Energy --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The same devices in round after round."""

    name: str
    count: int
    energy: Energy
    is_drawn: bool = True
    links: Links = ONE_S


def variance(rule: Play, fleet: Fleet, *, rounds: int) -> float:
    chance = Rng(3).stream("energy")
    spent = {each.name: 0.0 for each in drawn(fleet.count, chance)}
    schedule = None
    for _ in range(rounds):
        devices = drawn(fleet.count, chance)
        if not fleet.is_drawn:
            devices = [replace(each, ready_s=0.0) for each in devices]
        devices = [replace(each, spent_joules=spent[each.name]) for each in devices]
        schedule = rule(devices, fleet.links, fleet.energy)
        spent = dict(schedule.spent_joules)
    if schedule is None:
        raise SystemExit("no rounds, no variance")
    return spent_variance(schedule)


def energy(rounds: int) -> dict[str, float | int | dict[str, float]]:
    """The variance of what devices have spent, against the fixed tree's; of equal merges and costs, the worst."""
    even, dear = Energy(), Energy(send_watts=2.0)
    names = [f"d{place:03}" for place in range(8)]
    uneven = links_by_device(names, Rng(4).stream("links"))
    fleets = [
        *(Fleet(name=f"{count} devices", count=count, energy=even) for count in (4, 8, 9, 16)),
        Fleet(name="8, all at once", count=8, energy=even, is_drawn=False),
        *(Fleet(name=f"{count}, sending twice as dear", count=count, energy=dear) for count in (4, 8, 16)),
        Fleet(name="4, dear and all at once", count=4, energy=dear, is_drawn=False),
        Fleet(name="8, links differ", count=8, energy=even, links=uneven),
    ]
    ratios: dict[str, float] = {}
    say(f"variance of the energy spent after {rounds} rounds, over the fixed tree's")
    for fleet in fleets:
        rule = RULES["ahead" if fleet.links is uneven else "earliest_two"]
        ours, trees, rings = (variance(each, fleet, rounds=rounds) for each in (rule, FIXED["tree"], FIXED["ring"]))
        say(f"  {fleet.name:<26} {ours:9.2f} against {trees:9.0f} (tree), {rings:9.0f} (ring): {ours / trees:.6f}")
        ratios[fleet.name] = round(ours / trees, 6)
    worst = max(ratios[fleet.name] for fleet in fleets if fleet.energy == even and fleet.links is not uneven)
    return {
        "rounds": rounds,
        "variance_ratio_to_tree": worst,
        "variance_ratio_links_differ": ratios["8, links differ"],
        "variance_ratios": ratios,
    }


# How long it thinks --------------------------------------------------------------------------------------


def _median_ms(work: Callable[[], object], *, times: int) -> tuple[float, float]:
    """The middle by the clock, and the 99th of a hundred in processor time, since others run on this machine."""
    took_ms, used_ms = [], []
    for _ in range(times):
        began, began_cpu = time.perf_counter(), time.thread_time()
        work()
        took_ms.append(1e3 * (time.perf_counter() - began))
        used_ms.append(1e3 * (time.thread_time() - began_cpu))
    return sorted(took_ms)[times // 2], sorted(used_ms)[min(times - 1, (99 * times) // 100)]


def decisions(times: int) -> dict[str, float | int]:
    chance = Rng(5).stream("decisions")
    # The most there is to look at: all thousand are free, each at another time.
    devices = [replace(each, spent_joules=chance.between(0.0, 100.0)) for each in drawn(1000, chance)]
    links = links_by_way([each.name for each in devices], chance)
    first_ms, high_ms = _median_ms(lambda: EarliestTwo().next_pair(devices, links=links), times=times)
    few = devices[:WINDOW]
    ahead_ms, _ = _median_ms(lambda: LookAhead().next_pair(few, links=links), times=max(3, times // 20))
    ready_s = [each.ready_s for each in devices[:9]]
    table = table_s([each.name for each in devices[:9]], links)
    exact_ms, _ = _median_ms(lambda: exact(ready_s, merge_s=table), times=max(3, times // 20))
    say(
        f"a decision: {first_ms:.3f} ms of 1,000 free devices (99 %: {high_ms:.3f}),"
        f" {ahead_ms:.1f} ms looking {WINDOW} ahead"
    )
    return {
        "decision_ms_1000": first_ms,
        "decision_ms_1000_p99": high_ms,
        f"decision_ms_ahead_{WINDOW}": ahead_ms,
        "exact_ms_9": exact_ms,
    }


# The way back --------------------------------------------------------------------------------------------


def broadcasts(instances: int) -> dict[str, float | int]:
    """Until everyone has the model, in models over one link; equal links, then links that differ."""
    chance = Rng(6).stream("broadcast")
    found: dict[str, float | int] = {}
    say(f"{'until all have the model':>26} {'binomial':>9} {'multicast':>10} {'all-gather':>11}")
    for count in (4, 8, 16, 32):
        names = [f"d{place:03}" for place in range(count)]
        even = {name: ClusterNode(name=name, up_bytes_per_s=1.0, down_bytes_per_s=1.0) for name in names}
        alike = compare(names[0], names[1:], nodes=even, size_bytes=1.0)
        say(f"{count:>18} devices {alike.binomial_s:9.2f} {alike.multicast_s:10.2f} {alike.all_gather_s:11.2f}")
        found[f"binomial_over_multicast_{count}"] = alike.binomial_s / alike.multicast_s
        found[f"all_gather_over_binomial_{count}"] = alike.all_gather_s / alike.binomial_s
    gains = []
    for _ in range(instances):
        devices = [replace(each, spent_joules=chance.between(0.0, 100.0)) for each in drawn(8, chance)]
        root = devices[0].name
        links = links_by_way([each.name for each in devices], chance)
        others = richest_first(devices, root=root)
        plain_s = max(told_s(binomial(root, others), links=links).values())
        gains.append(max(told_s(soonest(root, others, links=links), links=links).values()) / plain_s)
    found["soonest_over_binomial_unequal"] = statistics.mean(gains)
    say(f"  where links differ, told by whoever is soonest: {statistics.mean(gains):.3f} of the binomial's time")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    few = given.quick
    finish(
        equal(1_000 if few else 10_000)
        | unequal(30 if few else 200)
        | energy(200)
        | decisions(200 if few else 2_000)
        | broadcasts(100 if few else 1_000)
    )


if __name__ == "__main__":
    main()
