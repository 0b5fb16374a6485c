"""Which features a case has, which two of them met in one case, and which two the product refuses together.

A pair that no plan accepts is refused with the reason that the product gives. Every other pair must be drawn. What is
counted is what a case has, not what came of it: where a device leads from the first to the last second, tabs of
browsers are there and get no work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dst.case import GRAPHS, FuzzCase
from shoal.compress.codec import Codec
from shoal.errors import Misuse
from shoal.learning.algorithm_name import AlgorithmName
from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import Plan, Until
from shoal.sim.faults import KINDS, Deaf, Mute, PartitionFault
from shoal.sim.jobs import bare_spec

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlanFeature:
    """Something that a plan chooses."""

    name: str
    #: Features that answer one question exclude each other by their meaning: they are not a pair.
    question: str
    has: Callable[[Plan], bool]


@dataclass(frozen=True, slots=True)
class ClusterFeature:
    """Something about the devices, the managers or what befalls them."""

    name: str
    has: Callable[[FuzzCase], bool]
    #: Returns why a job with this plan makes no use of the feature, or None if it does.
    unused: Callable[[Plan], str | None] = lambda plan: None
    #: Whether the feature concerns this job of a case, by its place.
    concerns: Callable[[FuzzCase, int], bool] = lambda what, place: True


def _form(plan: Plan) -> str:
    return Codec.parse(plan.codec).form


def _is_coded(plan: Plan) -> bool:
    return plan.codec not in ("dense", "int16") and _form(plan) != "led"


def _hooks(plan: Plan) -> frozenset[str]:
    """The methods of the plan's algorithm."""
    return AlgorithmName.parse(plan.algorithm).hooks if plan.algorithm else frozenset()


PLAN_FEATURES = (
    PlanFeature("star", "topology", lambda plan: plan.topology == "star"),
    PlanFeature("tree", "topology", lambda plan: plan.topology == "tree"),
    PlanFeature("shard", "topology", lambda plan: plan.topology == "shard"),
    PlanFeature("topology by itself", "topology", lambda plan: plan.topology == "auto"),
    PlanFeature("sync", "pace", lambda plan: plan.pace == "sync"),
    PlanFeature("buffered", "pace", lambda plan: plan.pace == "buffered"),
    PlanFeature("async", "pace", lambda plan: plan.pace == "async"),
    PlanFeature("pace by itself", "pace", lambda plan: plan.pace == "auto"),
    PlanFeature("robust(nearest)", "rule", lambda plan: plan.believes.rule == "nearest"),
    PlanFeature("robust(clip)", "rule", lambda plan: plan.believes.rule == "clip"),
    PlanFeature("sealed", "sealed", lambda plan: plan.believes.sealed is not None),
    PlanFeature("helper", "helper", lambda plan: plan.believes.helper is not None),
    PlanFeature("private", "private", lambda plan: plan.privacy is not None),
    PlanFeature("codec", "codec", _is_coded),
    PlanFeature("int16", "codec", lambda plan: plan.codec == "int16"),
    PlanFeature("led", "codec", lambda plan: _form(plan) == "led"),
    PlanFeature("codec_down", "codec_down", lambda plan: plan.down != "dense"),
    PlanFeature("local data", "data", lambda plan: plan.data == "local"),
    PlanFeature("fixed work", "work", lambda plan: plan.work == "fixed"),
    PlanFeature("sized work", "work", lambda plan: plan.work == "sized"),
    PlanFeature("adaptive step", "outer", lambda plan: plan.outer in ADAPTIVE),
    PlanFeature("cohort", "cohort", lambda plan: plan.cohort > 0),
    PlanFeature("labels", "labels", lambda plan: plan.share_labels),
    PlanFeature("similar staleness", "staleness", lambda plan: plan.staleness == "similar"),
    PlanFeature("parameter staleness", "staleness", lambda plan: plan.staleness == "parameter"),
    PlanFeature("schedule", "schedule", lambda plan: bool(plan.schedule)),
    PlanFeature("clip of the mean", "clip", lambda plan: plan.clip_mean > 0),
    PlanFeature("decay skips", "skips", lambda plan: bool(plan.decay_skips)),
    PlanFeature("mean of versions", "ema", lambda plan: plan.ema > 0),
    PlanFeature("drawn cohort", "sampling", lambda plan: bool(plan.sampling)),
    PlanFeature("equal devices", "weights", lambda plan: plan.weights == "device"),
    PlanFeature("several passes", "passes", lambda plan: plan.passes > 1),
    PlanFeature("updates of any length", "unusual", lambda plan: plan.accept_unusual),
    PlanFeature("merge", "change", lambda plan: "merge" in _hooks(plan)),
    PlanFeature("finish", "change", lambda plan: "finish" in _hooks(plan)),
    PlanFeature("choose", "choice", lambda plan: "choose" in _hooks(plan)),
    PlanFeature("published", "published", lambda plan: plan.publish in ("every", "better")),
)


def _why_no_tabs(plan: Plan) -> str | None:
    """Ask the job itself, as the manager does."""
    spec = bare_spec("job", plan, examples=100)
    return replace(spec, graphs=GRAPHS).why_no_tabs


def _why_no_hubs(plan: Plan) -> str | None:
    return None if plan.hubs_max else "a hub is an aggregator of a tree, and this plan has none"


def _has_cable_cut(what: FuzzCase) -> bool:
    return any(isinstance(fault, Mute | Deaf | PartitionFault) and fault.who.has_home for fault in what.faults)


def _has_kind(kind: type[Any]) -> Callable[[FuzzCase], bool]:
    return lambda what: any(type(fault) is kind for fault in what.faults)


CLUSTER_FEATURES = (
    ClusterFeature("hubs", lambda what: any(build.is_hub for build in what.builds), _why_no_hubs),
    ClusterFeature("browsers", lambda what: any(build.is_browser for build in what.builds), _why_no_tabs),
    ClusterFeature("check-ins", lambda what: what.check_in_s > 0),
    ClusterFeature("two managers", lambda what: what.has_two_managers),
    ClusterFeature("store outage", lambda what: bool(what.outages)),
    ClusterFeature("devices lead", lambda what: what.prefers_devices),
    ClusterFeature("two jobs", lambda what: len(what.jobs) > 1),
    ClusterFeature("manager cut off", _has_cable_cut),
    ClusterFeature("struck between two steps", lambda what: bool(what.strike_at)),
    ClusterFeature(
        "struck in a formation",
        lambda what: bool(what.targeted),
        lambda plan: "a star has no aggregators that could be struck" if plan.topology == "star" else None,
    ),
    ClusterFeature(
        "stopped by its operator",
        lambda what: bool(what.stops),
        concerns=lambda what, place: what.jobs[place].spec.job in what.stops,
    ),
    *(ClusterFeature(f"fault {name}", _has_kind(kind)) for name, kind in KINDS.items()),
)


def pairs() -> list[Pair]:
    """Every two features that do not answer the same question."""
    plans = [
        (one.name, other.name)
        for one, other in itertools.combinations(PLAN_FEATURES, 2)
        if one.question != other.question
    ]
    mixed = [(plan.name, cluster.name) for plan in PLAN_FEATURES for cluster in CLUSTER_FEATURES]
    clusters = [(one.name, other.name) for one, other in itertools.combinations(CLUSTER_FEATURES, 2)]
    return [*plans, *mixed, *clusters]


def drawn_in(what: FuzzCase) -> set[Pair]:
    """The pairs that meet in a case: features of plans in one job, and those of the cluster that the job makes use
    of."""
    found: set[Pair] = set()
    clusters = [feature for feature in CLUSTER_FEATURES if feature.has(what)]
    used: set[str] = set()
    for place, job in enumerate(what.jobs):
        plan = job.spec.plan
        plans = [feature.name for feature in PLAN_FEATURES if feature.has(plan)]
        if not job.spec.test.examples and plan.data != "local":
            # Nothing is evaluated, so nothing is published.
            plans = [name for name in plans if name != "published"]
        used_by = (feature for feature in clusters if feature.concerns(what, place))
        here = [feature.name for feature in used_by if feature.unused(plan) is None]
        found.update(itertools.combinations(plans, 2))
        found.update(itertools.product(plans, here))
        used.update(here)
    found.update(itertools.combinations([feature.name for feature in clusters if feature.name in used], 2))
    return found


# What the product refuses -----------------------------------------------------------------------------------

_SEALED = "sealed(8)"
_HELPED = "sealed(8, helper=h)"
_PRIVATE = "private(100)"
_TRUSTS = (
    "identity",
    "robust(nearest)",
    "robust(clip)",
    _PRIVATE,
    _SEALED,
    f"{_SEALED} + {_PRIVATE}",
    f"robust(clip) + {_SEALED}",
    _HELPED,
    f"{_HELPED} + {_PRIVATE}",
    f"robust(clip) + {_HELPED}",
    f"robust(nearest) + {_SEALED}",
    f"robust(nearest) + {_HELPED}",
    f"robust(nearest) + {_PRIVATE}",
    f"robust(clip) + {_PRIVATE}",
)
#: Every question with its answers, the plain one first, each with what it cannot do without.
_AXES: tuple[tuple[dict[str, Any], ...], ...] = (
    tuple({"trust": trust} for trust in _TRUSTS),
    ({"topology": "star"}, {"topology": "tree"}, {"topology": "shard"}),
    ({"pace": "sync"}, {"pace": "buffered"}, {"pace": "async"}),
    ({"data": "shared"}, {"data": "local"}),
    ({"work": "leased"}, {"work": "fixed"}, {"work": "sized", "budget_s": 2.0}),
    ({"codec": "dense"}, {"codec": "top30%"}, {"codec": "int16"}, {"codec": "led10%+ef"}),
    ({"codec_down": "dense"}, {"codec_down": "top30%"}),
    ({"outer": "sgd"}, {"outer": "adam"}),
    ({"cohort": 0}, {"cohort": 10}),
    (
        {"share_labels": False, "staleness": "root"},
        {"share_labels": True, "staleness": "root"},
        {"share_labels": True, "staleness": "similar"},
        {"share_labels": False, "staleness": "parameter"},
    ),
)
_COMMON: dict[str, Any] = {"workers_min": 20, "workers_max": 40, "epoch_leases": 80, "until": Until(epochs=2)}
_EXTRAS: dict[str, dict[str, Any]] = {
    "topology by itself": {"topology": "auto"},
    "pace by itself": {"pace": "auto"},
    "published": {"publish": "better"},
    "schedule": {"schedule": "warmup 5 cosine 30"},
    "clip of the mean": {"clip_mean": 4.0},
    "decay skips": {"outer": "adamw", "outer_rate": 0.01, "weight_decay": 0.1, "decay_skips": "vectors"},
    "mean of versions": {"ema": 0.9},
    "drawn cohort": {"sampling": "uniform"},
    "equal devices": {"weights": "device"},
    "several passes": {"local_epochs": 2},
    "updates of any length": {"accept_unusual": True},
    "merge": {"algorithm": "drawn:DrawnAlgorithm merge"},
    "finish": {"algorithm": "drawn:DrawnAlgorithm finish"},
    "choose": {"algorithm": "drawn:DrawnAlgorithm choose"},
}

#: One answer for each question, by its place.
Answers = tuple[int, ...]


def _chosen(answers: Answers) -> dict[str, Any]:
    chosen: dict[str, Any] = {**_COMMON}
    for axis, answer in zip(_AXES, answers, strict=True):
        chosen |= axis[answer]
    trust = chosen["trust"]
    if "clip) + sealed" in trust or "private" in trust:
        chosen["clip_update"] = 0.5
    if "robust" in trust:
        chosen["worker_momentum"] = 0.0
    return chosen


@cache
def refusals() -> dict[Pair, str]:
    """Return the pairs that the product refuses, each with its reason, found by asking for every combination."""
    plans: dict[Answers, Plan] = {}
    refused: dict[Answers, Misuse] = {}
    for answers in itertools.product(*(range(len(axis)) for axis in _AXES)):
        try:
            plan = Plan(**_chosen(answers))
        except Misuse as error:
            refused[answers] = error
            continue
        if (why := plan.why_not_new) is not None:
            refused[answers] = Misuse(why)
        else:
            plans[answers] = plan
    accepted: set[Pair] = set()
    having: dict[str, list[Plan]] = {feature.name: [] for feature in PLAN_FEATURES}
    for plan in plans.values():
        names = [feature.name for feature in PLAN_FEATURES if feature.has(plan)]
        accepted.update(itertools.combinations(names, 2))
        for name in names:
            having[name].append(plan)
    reasons: dict[Pair, str] = {}
    for extra, changes in _EXTRAS.items():
        for name in [each for each in having if each != extra and having[each]]:
            found, reason = _first_accepted(having[name], changes)
            if found is None:
                reasons[_ordered(name, extra)] = reason
            else:
                accepted.add(_ordered(name, extra))
                having[extra].append(found)
    clusters = {feature.name for feature in CLUSTER_FEATURES}
    wanted = {pair for pair in pairs() if pair not in accepted and not clusters.intersection(pair)}
    return reasons | _reasons_of(wanted, set(plans), refused) | _unused(having)


def _first_accepted(plans: list[Plan], changes: dict[str, Any]) -> tuple[Plan | None, str]:
    """Return the first of these plans that takes the changes, with them; or None, and why the first one does not."""
    reason = ""
    for plan in plans:
        try:
            changed = replace(plan, **changes)
        except Misuse as error:
            reason = reason or str(error)
            continue
        refused = bare_spec("job", changed, examples=100).why_not_new
        if refused is None:
            return changed, ""
        reason = reason or refused
    return None, reason


def _ordered(one: str, other: str) -> Pair:
    order = [feature.name for feature in PLAN_FEATURES]
    return (one, other) if order.index(one) < order.index(other) else (other, one)


def _reasons_of(wanted: set[Pair], accepted: set[Answers], refused: dict[Answers, Misuse]) -> dict[Pair, str]:
    """For each pair, the reason of a plan with both that is acceptable with another answer to one question, and best to
    either of two: such a reason is about the pair. Of several, the plainest plan's."""
    found: dict[Pair, tuple[int, int, str]] = {}
    for answers, reason in refused.items():
        names = _asked(_chosen(answers))
        here = [pair for pair in itertools.combinations(names, 2) if pair in wanted]
        if here:
            told = (-min(2, _ways_out(answers, accepted)), sum(map(bool, answers)), str(reason))
            for pair in here:
                found[pair] = min(found.get(pair, told), told)
    return {pair: reason for pair, (_, _, reason) in found.items()}


def _ways_out(answers: Answers, accepted: set[Answers]) -> int:
    """How many questions have another answer that would make these acceptable."""
    return sum(
        any((*answers[:place], other, *answers[place + 1 :]) in accepted for other in range(len(axis)))
        for place, axis in enumerate(_AXES)
    )


def _asked(chosen: dict[str, Any]) -> list[str]:
    """The features that were asked for, in order, of choices that make no plan."""
    trust = chosen["trust"]
    has = {
        chosen["topology"]: True,
        chosen["pace"]: True,
        "robust(nearest)": "nearest" in trust,
        "robust(clip)": "clip" in trust,
        "sealed": "sealed" in trust,
        "helper": "helper" in trust,
        "private": "private" in trust,
        "codec": chosen["codec"] == "top30%",
        "int16": chosen["codec"] == "int16",
        "led": chosen["codec"].startswith("led"),
        "codec_down": chosen["codec_down"] != "dense",
        "local data": chosen["data"] == "local",
        "fixed work": chosen["work"] == "fixed",
        "sized work": chosen["work"] == "sized",
        "adaptive step": chosen["outer"] in ADAPTIVE,
        "cohort": chosen["cohort"] > 0,
        "labels": chosen["share_labels"],
        "similar staleness": chosen["staleness"] == "similar",
        "parameter staleness": chosen["staleness"] == "parameter",
    }
    return [feature.name for feature in PLAN_FEATURES if has.get(feature.name)]


def _unused(having: dict[str, list[Plan]]) -> dict[Pair, str]:
    """A feature of the cluster of which no plan with a certain feature makes use."""
    found: dict[Pair, str] = {}
    for cluster in CLUSTER_FEATURES:
        for name, plans in having.items():
            reasons = [cluster.unused(plan) for plan in plans]
            if reasons and None not in reasons:
                found[name, cluster.name] = min(reason for reason in reasons if reason is not None)
    return found
