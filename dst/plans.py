"""The plans of a seed's jobs: pace, topology, work, codecs, whose examples, the leader's step and hubs.
``trust_plans`` has what concerns trust. Each draws from its own stream."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from dst.trust_plans import compared_plan, sealed_shape_plan
from shoal.errors import Misuse
from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import STALENESS, Plan, Until
from shoal.sim.jobs import bare_spec
from shoal.sim.rng import Stream
from shoal.wire.messages import JobSpec


def draw_spec(stream: Stream, paces: Stream, name: str) -> JobSpec:
    """Jobs are short: what comes after the faults shows little. One that ends by its time would go on for long."""
    workers_min = 1 + stream.below(2)
    seconds = stream.between(3.0, 40.0) if stream.happens(0.2) else None
    plan = Plan(
        batch_size=100 * (1 + stream.below(3)),
        lease_batches=1 + stream.below(2),
        momentum=stream.pick((0.9, 0.0)),
        workers_min=workers_min,
        # At times as few as it needs, and others stand by.
        workers_max=workers_min + stream.below(4),
        lease_s=3.0 if stream.happens(0.8) else 0.0,
        checkpoint_every_s=stream.between(0.5, 6.0),
        evaluate_every_epochs=1 + stream.below(2),
        until=Until(
            epochs=1 + stream.below(4) if seconds is None else 8,
            accuracy=0.45 if stream.happens(0.1) else None,
            seconds=seconds,
        ),
    )
    test_examples = stream.below(4) * 700
    return bare_spec(name, paced(plan, paces), examples=100 * (6 + stream.below(50)), test_examples=test_examples)


def paced(plan: Plan, stream: Stream) -> Plan:
    """When its model moves, drawn from a stream of its own: whatever else befalls the job is the same in each pace."""
    pace = stream.pick(("sync", "buffered", "async"))
    # The last of them is for devices' own examples alone.
    buffer, staleness = stream.pick((2, 3, 5, 8)), stream.pick(STALENESS[:-1])
    # Asynchrony is momentum enough: with much of the plan's own, numbers grow until paper and machine differ.
    momentum = plan.momentum if pace == "sync" else plan.momentum / 3
    return replace(plan, pace=pace, buffer=buffer, staleness=staleness, momentum=momentum)


def shaped(specs: Sequence[JobSpec], stream: Stream) -> list[JobSpec]:
    """Where its updates meet, drawn from a stream of its own: in every second case all meet at the leader, as if
    there were no other way."""
    if stream.happens(0.5):
        return list(specs)
    return [replace(spec, plan=in_shape(spec.plan, stream)) for spec in specs]


def in_shape(plan: Plan, stream: Stream, kinds: tuple[str, ...] = ("tree", "shard")) -> Plan:
    kind = stream.pick(kinds)
    return replace(
        plan,
        topology=kind,
        # A shard moves in step.
        pace="sync" if kind == "shard" else plan.pace,
        # What aggregators sum up is late as a whole.
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        aggregators=stream.pick((0, 2, 3)),
        workers_max=plan.workers_max + 1 + stream.below(4),
        # Long enough to see it formed, broken and formed again.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 1),
    )


def coded(plan: Plan, stream: Stream) -> Plan:
    """What crosses the wire, drawn from a stream of its own. Without feedback at the workers: what they have not sent
    yet is theirs to know, and could not be worked out on paper."""
    if stream.happens(0.5):
        return plan
    return replace(
        plan,
        codec=stream.pick(("dense", "bf16", "top100%", "top30%", "top60%+4bit")),
        codec_down=stream.pick(("dense", "bf16", "fp16", "top10%", "top30%+4bit", "top60%+8bit")),
        outer_rate=stream.pick((1.0, 0.7)),
        outer="nesterov" if stream.happens(0.3) else "sgd",
        nesterov=False,
        cohort=stream.pick((0, 0, 2, 3)) if plan.pace == "sync" else 0,
    )


def owned(plan: Plan, stream: Stream) -> Plan:
    """Whose the examples are, drawn from a stream of its own."""
    if not stream.happens(0.2):
        return plan
    is_sized, shares_labels = stream.happens(0.5), stream.happens(0.5)
    return replace(
        plan,
        data="local",
        epoch_leases=6 + stream.below(30),
        work="sized" if is_sized else "leased",
        budget_s=stream.pick((0.3, 2.0)) if is_sized else 0.0,
        requests_per_s=stream.pick((0.0, 2.0)) if is_sized else 0.0,
        share_labels=shares_labels,
        staleness="similar" if shares_labels and plan.staleness == "exponential" else plan.staleness,
    )


def stepped(plan: Plan, stream: Stream) -> Plan:
    """The leader's step and its schedule, drawn from a stream of their own."""
    schedule = stream.pick(("", "", "warmup 5 cosine 30", "constant 4 linear 20", "step 6 x0.5"))
    if stream.happens(0.3):
        return replace(plan, schedule=schedule)
    return replace(
        plan,
        outer=stream.pick(ADAPTIVE),
        nesterov=False,
        outer_rate=stream.pick((1e-3, 0.02)),
        # Sums are rounded in different orders here and on paper. The larger of the two is that of Reddi et al. 2021.
        outer_epsilon=stream.pick((1e-6, 1e-3)),
        outer_beta2=stream.pick((0.99, 0.999)),
        weight_decay=stream.pick((0.0, 0.1)),
        schedule=schedule,
    )


def clipped(plan: Plan, stream: Stream) -> Plan:
    """The clip of a version's mean and tensors that do not decay, where the product accepts them."""
    clip, skips = stream.pick((0.0, 0.5, 4.0, 40.0)), stream.pick(("vectors", "weight"))
    if plan.topology == "shard":
        # The leader takes the step of such a shard, which is given out whole.
        plan = replace(plan, codec_down="dense")
    with contextlib.suppress(Misuse):
        plan = replace(plan, clip_mean=clip)
    if plan.outer not in ADAPTIVE:
        return plan
    with contextlib.suppress(Misuse):
        plan = replace(plan, outer="adamw", weight_decay=0.1, decay_skips=skips)
    return plan


def averaged(plan: Plan, stream: Stream) -> Plan:
    """The exponential mean of versions, drawn from a stream of its own. Devices evaluate new examples of their own by
    the version they train, so that such a job is refused."""
    decay = stream.pick((0.5, 0.9, 0.999))
    return plan if plan.data == "local" else replace(plan, ema=decay)


def over_hubs(plan: Plan, stream: Stream) -> Plan:
    """A tree, drawn from a stream of its own: whose updates are plain, cut, or sealed; at times with a place for no
    worker more than it needs, so that it would lack one if a hub took it."""
    kind, is_tight = stream.pick(("plain", "plain", "plain", "cut", "sealed", "as drawn")), stream.happens(0.4)
    if kind == "as drawn":
        return plan
    plan = replace(plan, staleness="root" if plan.staleness == "parameter" else plan.staleness)
    if kind == "cut":
        plan = replace(compared_plan(plan, stream), trust="robust(clip)", topology="tree")
    elif kind == "sealed":
        plan = replace(sealed_shape_plan(plan, stream), topology="tree")
    else:
        plan = in_shape(plan, stream, ("tree",))
    if is_tight:
        least = max(3, plan.workers_least)
        plan = replace(plan, workers_min=least, workers_max=least)
    return plan


def draw_work(stream: Stream) -> str:
    return "fixed" if stream.happens(0.2) else "leased"
