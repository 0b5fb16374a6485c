"""A plan that draws from every feature at once, as far as the product accepts it.

Each change sets one feature with the companions that it cannot do without. A change that the plan refuses is left out,
so whatever two features a plan accepts together are drawn together sooner or later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dst.plans import in_shape, stepped
from dst.trust_plans import (
    believing_plan,
    compared_plan,
    cut_unseen_plan,
    led_plan,
    noisy_plan,
    private_plan,
    private_shape_plan,
    sealed_plan,
    sealed_shape_plan,
    short_words_plan,
)
from shoal.errors import Misuse
from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import STALENESS, Plan
from shoal.sim.rng import Stream

Change = Callable[[Plan, Stream], Plan]

#: Momentum carries what is rounded, or the noise, from version to version. Above this, paper and machine part.
_MOMENTUM_MOST = 0.3


def _star(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, topology="star")


def _tree(plan: Plan, stream: Stream) -> Plan:
    return in_shape(plan, stream, ("tree",))


def _shard(plan: Plan, stream: Stream) -> Plan:
    return in_shape(
        replace(plan, codec_down="dense" if plan.is_stepped_by_leader else plan.codec_down), stream, ("shard",)
    )


def _pace(plan: Plan, stream: Stream) -> Plan:
    pace, buffer = stream.pick(("sync", "buffered", "async")), stream.pick((2, 3, 5, 8))
    cohort = plan.cohort if pace == "sync" else 0
    if pace == "sync" and plan.believes.private is not None:
        cohort = plan.cohort or buffer
    return replace(plan, pace=pace, buffer=buffer, cohort=cohort)


def _staleness(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, staleness=stream.pick(STALENESS[:-1]))


def _cohort(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, cohort=stream.pick((2, 3, 4)))


def _codec(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, codec=stream.pick(("bf16", "top100%", "top30%", "top60%+4bit")))


def _codec_down(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, codec_down=stream.pick(("bf16", "fp16", "top10%", "top30%+4bit", "top60%+8bit")))


def _fixed(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, work="fixed", budget_s=0.0, requests_per_s=0.0)


def _local(plan: Plan, stream: Stream) -> Plan:
    leases = 6 + stream.below(20)
    return replace(plan, data="local", epoch_leases=leases, work="leased" if plan.work == "fixed" else plan.work)


def _sized(plan: Plan, stream: Stream) -> Plan:
    plan = plan if plan.data == "local" else _local(plan, stream)
    budget_s, requests_per_s = stream.pick((0.3, 2.0)), stream.pick((0.0, 2.0))
    return replace(plan, work="sized", budget_s=budget_s, requests_per_s=requests_per_s)


def _labels(plan: Plan, stream: Stream) -> Plan:
    plan = plan if plan.data == "local" else _local(plan, stream)
    return replace(plan, share_labels=True, staleness=stream.pick(("similar", plan.staleness)))


def _published(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, publish=stream.pick(("every", "better")), versions_kept=stream.pick((1, 2, 5)))


def for_tabs(plan: Plan, stream: Stream) -> Plan:
    """A job that tabs of browsers can work for, as far as the plan allows it."""
    trust = stream.pick(("identity", "identity", "robust", "robust(clip)"))
    momentum = None if trust == "identity" else 0.0
    try:
        return replace(
            plan,
            workers_max=max(plan.workers_max, 3 + stream.below(3)),
            trust=trust,
            worker_momentum=momentum,
            clip_update=0.0,
            participations=0,
            apart=0,
            topology="star",
            data="shared",
            codec="dense",
            codec_down="dense",
            share_labels=False,
            staleness="root" if plan.staleness == "similar" else plan.staleness,
            work=stream.pick(("leased", "fixed")),
            budget_s=0.0,
            requests_per_s=0.0,
        )
    except Misuse:
        return plan


def _private(plan: Plan, stream: Stream) -> Plan:
    return private_plan(plan, stream, often=1.0)


#: Who may do what with updates.
TRUSTS: tuple[Change, ...] = (
    believing_plan,
    compared_plan,
    _private,
    private_shape_plan,
    sealed_plan,
    noisy_plan,
    sealed_shape_plan,
    lambda plan, stream: cut_unseen_plan(sealed_shape_plan(plan, stream), stream),
)

#: All else, each by itself.
OTHERS: tuple[Change, ...] = (
    _star,
    _tree,
    _shard,
    _pace,
    _pace,
    _staleness,
    _cohort,
    _codec,
    _codec_down,
    _fixed,
    _local,
    _sized,
    _labels,
    _published,
    _published,
    short_words_plan,
    led_plan,
    stepped,
)


def unsealed_words_plan(plan: Plan, stream: Stream) -> Plan:
    """Words of 16 bits in a plan that seals nothing, up or in both directions."""
    down = stream.pick(("", "int16", plan.codec_down))
    return plan if plan.believes.sealed is not None else replace(plan, codec="int16", codec_down=down)


def chosen_for_plan(plan: Plan, stream: Stream) -> Plan:
    """A plan that leaves its topology, its pace or both to the leader."""
    topology, pace = stream.pick((("auto", plan.pace), (plan.topology, "auto"), ("auto", "auto"), ("auto", "auto")))
    is_stepped_whole = topology == "auto" and plan.is_stepped_by_leader
    is_in_step = plan.believes.sealed is not None or plan.believes.private is not None
    return replace(
        plan,
        topology=topology,
        pace=pace,
        cohort=plan.cohort if pace == "sync" or is_in_step else 0,
        # Aggregators of a tree sum updates that are late together.
        staleness="root" if plan.staleness == "parameter" and topology == "auto" else plan.staleness,
        codec_down="dense" if is_stepped_whole else plan.codec_down,
    )


def fixed_local_plan(plan: Plan, stream: Stream) -> Plan:
    """Equal shares of an epoch's leases, on the devices' own examples."""
    # Nothing is held out of own examples, by which a mean of versions could be evaluated.
    return replace(_local(plan, stream), work="fixed", budget_s=0.0, requests_per_s=0.0, ema=0.0)


def sized_shared_plan(plan: Plan, stream: Stream) -> Plan:
    """Leases of shared examples, each with as many complete batches as fit a budget."""
    return replace(
        plan,
        data="shared",
        work="sized",
        budget_s=stream.pick((0.3, 2.0)),
        requests_per_s=stream.pick((0.0, 2.0)),
        share_labels=False,
        staleness="root" if plan.staleness == "similar" else plan.staleness,
    )


def drawn_plan(plan: Plan, stream: Stream) -> Plan:
    """A cohort that is chosen by chance."""
    sampling = stream.pick(("uniform", "by_examples") if plan.data == "local" else ("uniform",))
    return replace(plan, cohort=plan.cohort or stream.pick((2, 3, 4)), sampling=sampling)


def equal_plan(plan: Plan, stream: Stream) -> Plan:
    """Each device counts once, whatever its number of examples."""
    return replace(plan, weights="device")


def passes_plan(plan: Plan, stream: Stream) -> Plan:
    """Several passes over the examples of a lease, which has as many times as long for them."""
    # Nothing is held out of own examples, by which a mean of versions could be evaluated.
    plan = plan if plan.data == "local" else replace(_local(plan, stream), ema=0.0)
    times = stream.pick((2, 3))
    return replace(plan, local_epochs=times, lease_s=plan.lease_s * times, budget_s=plan.budget_s * times)


def of_any_length_plan(plan: Plan, stream: Stream) -> Plan:
    """Updates are merged whatever their length."""
    return replace(plan, accept_unusual=True)


def any_plan(plan: Plan, stream: Stream) -> Plan:
    """Change a plan by one kind of trust, or none, and then by several other features, in any order."""
    if stream.happens(0.8):
        plan = _changed(plan, stream.pick(TRUSTS), stream)
    if plan.believes.sealed is not None and stream.happens(0.5):
        plan = _changed(plan, stream.pick((short_words_plan, led_plan)), stream)
    for _ in range(2 + stream.below(7)):
        plan = _changed(plan, stream.pick(OTHERS), stream)
    return _workable(plan)


def sometimes(change: Change) -> Change:
    """Return a draw that makes this change in one plan of four, where the product accepts it."""
    return lambda plan, stream: _changed(plan, change, stream) if stream.happens(0.25) else plan


def _changed(plan: Plan, change: Change, stream: Stream) -> Plan:
    """Return the plan with this change, or as it was if the product refuses that."""
    try:
        changed = change(plan, stream)
    except Misuse:
        return plan
    return plan if changed.why_not_new is not None else changed


def _workable(plan: Plan) -> Plan:
    """Limit numbers, not features, to what can be worked out on paper, and let a job be short."""
    is_rounded = plan.trust != "identity" or plan.pace != "sync" or plan.codec == "int16" or plan.down != "dense"
    momentum = min(plan.momentum, _MOMENTUM_MOST) if is_rounded and plan.outer not in ADAPTIVE else plan.momentum
    epochs = min(plan.until.epochs or 3, 4)
    try:
        return replace(plan, momentum=momentum, until=replace(plan.until, epochs=epochs))
    except Misuse:
        return replace(plan, momentum=momentum)
