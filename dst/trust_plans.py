"""The plans of a seed's jobs as far as trust goes: robust, private, sealed, and what they combine with. A part of
``fuzz_case``. Each draws from a stream of its own, so that seeds that draw none of it stay as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import Plan
from shoal.sim.rng import Stream


def believing_plan(plan: Plan, stream: Stream) -> Plan:
    """Who is believed, drawn from a stream of its own. Without momentum on devices: as what they have not sent yet, it
    is theirs to know, and could not be worked out on paper."""
    trust = stream.pick(("identity", "robust", "robust", "robust(nearest, 35%)", "robust(clip)", "robust(clip)"))
    pace, buffer, more = stream.pick(("sync", "buffered")), stream.pick((3, 4, 6)), 3 + stream.below(4)
    if trust == "identity" or plan.outer in ADAPTIVE:
        # An adaptive step makes a great deal of a value that is almost zero, and weights are rounded before it.
        return plan
    # Updates of devices are compared where they come whole.
    if trust == "robust(clip)":
        return replace(plan, trust=trust, topology="star", worker_momentum=0.0)
    return replace(
        plan,
        trust=trust,
        topology="star",
        worker_momentum=0.0,
        pace=pace,
        buffer=buffer,
        cohort=0 if pace == "buffered" or not plan.cohort else 3,
        workers_max=max(plan.workers_max, more),
    )


def compared_plan(plan: Plan, stream: Stream) -> Plan:
    """Who is believed where updates meet in aggregators, drawn from a stream of its own. As ``believing_plan``: without
    momentum on devices, and without an adaptive step."""
    trust = stream.pick(("robust", "robust(nearest, 35%)", "robust(clip)", "robust(clip)"))
    more, aggregators = 3 + stream.below(4), stream.pick((0, 2, 3))
    pace, buffer = stream.pick(("sync", "buffered", "async")), stream.pick((2, 3, 5))
    # Devices are cut one by one in a tree, and compared in a shard alone.
    topology = "shard" if trust != "robust(clip)" else stream.pick(("tree", "shard"))
    if plan.outer in ADAPTIVE:
        plan = replace(plan, outer="sgd", outer_rate=1.0, momentum=0.3, weight_decay=0.0)
    return replace(
        plan,
        trust=trust,
        topology=topology,
        pace="sync" if topology == "shard" else pace,
        buffer=buffer,
        worker_momentum=0.0,
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        aggregators=aggregators,
        cohort=3 if plan.cohort and (topology == "shard" or pace == "sync") else 0,
        workers_max=max(plan.workers_max, more),
        # Long enough to see it formed, broken and formed again.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 1),
    )


def private_plan(plan: Plan, stream: Stream, *, often: float = 0.6) -> Plan:
    """What a model may tell of a person, drawn from a stream of its own. With little noise, since numbers grow with it
    until paper and machine differ, and codecs that do not round: what is cut first and rounded then is the device's to
    know."""
    pace, codec = stream.pick(("sync", "sync", "buffered", "async")), stream.pick(("dense", "top100%", "top30%"))
    together, is_apart = stream.pick((1, 2, 2, 3)), stream.happens(0.4)
    clip, most, leases = stream.pick((0.3, 4.0)), stream.pick((0, 0, 2, 4)), 6 + stream.below(20)
    if not stream.happens(often):
        return plan
    devices = 1 if pace == "async" else together
    workers_min = max(plan.workers_min, 2 * devices) if is_apart and devices < 3 else plan.workers_min
    return replace(
        plan,
        trust=stream.pick(("private(100)", "private(60, 1e-4)")),
        data="local",
        topology="star",
        pace=pace,
        codec=codec,
        cohort=together if pace == "sync" else 0,
        buffer=together,
        work="leased",
        budget_s=0.0,
        requests_per_s=0.0,
        share_labels=False,
        staleness="root" if plan.staleness == "similar" else plan.staleness,
        worker_momentum=None,
        # Sums are divided by a small number and carry noise: with much momentum they run away.
        momentum=plan.momentum / 3,
        epoch_leases=leases,
        workers_min=workers_min,
        workers_max=max(plan.workers_max, workers_min),
        clip_update=clip,
        participations=most,
        apart=2 if workers_min >= 2 * devices and is_apart else 1,
    )


def private_shape_plan(plan: Plan, stream: Stream) -> Plan:
    """Private plans whose updates meet in aggregators, drawn from a stream of its own. Most of these cases do: it is
    what they are for."""
    kind, aggregators, more = stream.pick(("tree", "shard")), stream.pick((0, 2, 3)), 1 + stream.below(4)
    together, is_sized = 2 + stream.below(3), stream.happens(0.4)
    plan = private_plan(plan, stream, often=0.95)
    if plan.privacy is None:
        return plan
    pace = "buffered" if kind == "tree" and plan.pace == "buffered" else "sync"
    workers_min = max(plan.workers_min, 2 * together) if plan.apart > 1 else plan.workers_min
    return replace(
        plan,
        topology=kind,
        pace=pace,
        cohort=together if pace == "sync" else 0,
        buffer=together,
        # Then leases are of as many examples as a device has time for.
        work="sized" if is_sized else "leased",
        budget_s=2.0 if is_sized else 0.0,
        # A leader that takes the step of a shard gives out whole values.
        codec_down="dense" if kind == "shard" else plan.codec_down,
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        aggregators=aggregators,
        workers_min=workers_min,
        workers_max=max(plan.workers_max, workers_min, together) + more,
        # Long enough to see it formed, broken and formed again.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 1),
    )


def short_words_plan(plan: Plan, stream: Stream) -> Plan:
    """Whether sealed updates are words of 16 bits, drawn from a stream of its own. Not under an adaptive rule, which
    makes as much of what is rounded as of an update: no oracle could tell what a version should be."""
    is_short = stream.happens(0.9) and plan.believes.sealed is not None and plan.outer not in ADAPTIVE
    return replace(plan, codec="int16") if is_short else plan


def led_plan(plan: Plan, stream: Stream) -> Plan:
    """How many places a sealed sum has, drawn from a stream of its own."""
    codec, is_led = stream.pick(("led10%+ef", "led30%+ef", "led60%+ef", "led100%+ef")), stream.happens(0.9)
    return replace(plan, codec=codec) if is_led and plan.believes.sealed is not None else plan


def _sealable(plan: Plan) -> dict[str, Any]:
    """The fields that a plan must have for its sums to be sealed."""
    return {
        "worker_momentum": None,
        "topology": "star",
        "pace": "sync",
        "data": "local",
        "codec": "dense",
        "work": "leased" if plan.work == "fixed" else plan.work,
        "staleness": "root" if plan.staleness == "similar" else plan.staleness,
        "share_labels": False,
    }


def sealed_plan(plan: Plan, stream: Stream) -> Plan:
    """Whether the leader sees sums alone, drawn from a stream of its own. Most of these cases do: it is what they are
    for. So few devices that some may be lost, with shares that such a group can bear."""
    least, borne = stream.pick(((3, "0%, 0%"), (3, "0%, 30%"), (4, "0%, 30%"), (6, "10%, 20%")))
    more, leases = stream.below(3), stream.below(12)
    if stream.happens(0.25):
        return plan
    return replace(
        plan,
        trust=f"sealed({least}, {borne})",
        **_sealable(plan),
        epoch_leases=max(plan.epoch_leases, least + leases) if plan.data == "local" else least + leases,
        cohort=0 if not plan.cohort else max(plan.cohort, least),
        workers_min=least,
        workers_max=max(plan.workers_max, least + more),
    )


def noisy_plan(plan: Plan, stream: Stream) -> Plan:
    """Whether devices add noise before they seal, drawn from a stream of its own. With little noise, as
    ``private_plan``, and at times with so few participations that devices are spent before the plan is over."""
    least, borne = stream.pick(((3, "0%, 0%"), (3, "0%, 34%"), (4, "20%, 25%"), (4, "0%, 30%")))
    together, more, leases = least + stream.below(3), stream.below(3), stream.below(12)
    clip, most, rarely = stream.pick((0.3, 4.0)), stream.pick((0, 2, 5, 12)), stream.happens(0.2)
    if rarely:
        return plan
    workers_min = max(together, plan.workers_min) if stream.happens(0.5) else together
    return replace(
        plan,
        trust=f"sealed({least}, {borne}) + {stream.pick(('private(100)', 'private(60, 1e-4)'))}",
        **_sealable(plan),
        # As ``private_plan``: noise runs away with much momentum, and an adaptive step makes much of next to nothing.
        momentum=plan.momentum / 3,
        epoch_leases=together + leases,
        cohort=together,
        workers_min=workers_min,
        workers_max=max(plan.workers_max, workers_min + more),
        clip_update=clip,
        participations=most,
    )


def helped_plan(plan: Plan, stream: Stream) -> Plan:
    """Sealed sums for a helper to open, at times with noise, in short words or of some places; drawn from a stream of
    its own. Most of these cases do: it is what they are for."""
    kind = stream.pick(("plain", "words", "led", "noise"))
    if kind == "noise":
        return noisy_plan(plan, stream)
    plan = sealed_plan(plan, stream)
    if kind == "led" and plan.outer not in ADAPTIVE:
        return led_plan(plan, stream)
    return short_words_plan(plan, stream) if kind == "words" else plan


def sealed_shape_plan(plan: Plan, stream: Stream) -> Plan:
    """Sealed sums, at times with noise or in short words, whose words meet in aggregators; drawn from a stream of its
    own. Most of these cases do: it is what they are for."""
    kind, aggregators, more = stream.pick(("tree", "shard")), stream.pick((0, 2, 3)), 1 + stream.below(3)
    is_noisy = stream.happens(0.25)
    plan = noisy_plan(plan, stream) if is_noisy else short_words_plan(sealed_plan(plan, stream), stream)
    if plan.believes.sealed is None:
        return plan
    return replace(
        plan,
        topology=kind,
        aggregators=aggregators,
        codec_down="" if kind == "shard" else plan.codec_down,
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        # Much of it carries what short words are rounded by from version to version, beyond what an oracle can tell.
        momentum=plan.momentum / 3 if plan.codec == "int16" else plan.momentum,
        workers_max=plan.workers_max + more,
        # Long enough to see it formed, broken and formed again.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 1),
    )


def cut_unseen_plan(plan: Plan, stream: Stream) -> Plan:
    """How short devices cut themselves, drawn from a stream of its own. As ``believing_plan``: without momentum on
    devices. Toy updates are about one long."""
    clip, is_star = stream.pick((0.1, 0.5, 4.0)), stream.happens(0.3)
    if plan.believes.sealed is None or plan.privacy is not None:
        return plan
    topology = "star" if is_star else plan.topology
    trust = f"robust(clip) + {plan.trust}"
    return replace(plan, trust=trust, topology=topology, clip_update=clip, worker_momentum=0.0)
