"""Rules about trust: what robust, sealed and private plans cannot have."""

from __future__ import annotations

from shoal.compress.codec import Codec
from shoal.learning.blt_table import VERSIONS_MAX
from shoal.learning.privacy import PARTICIPATIONS_MAX
from shoal.plan_rules.facts import (
    can_be_sealed,
    comes_often,
    has_many_versions,
    has_no_certain_noise,
    hides_nobody,
    is_chain,
    is_clipped,
    is_coded_shard,
    is_compared,
    is_led,
    is_private,
    is_sealed,
    needs_too_much_noise,
    rests_long,
)
from shoal.plan_rules.rule import PlanRule, dashed
from shoal.trust import DEVICES_LEAST, DEVICES_MAX

#: Keys that have an effect only in a private plan.
PRIVATE_ONLY = ("clip_update", "participations", "apart")

ROBUST = (
    PlanRule(
        name="robust-chain",
        keys=("trust", "topology"),
        when=lambda plan: plan.believes.rule is not None and is_chain(plan) and not is_sealed(plan),
        why="pairs see two updates at a time: there is no majority to compare with",
        instead="Set topology = 'star' or 'shard', or 'tree' under robust(clip)",
        ground="safety",
    ),
    PlanRule(
        name="nearest-tree",
        keys=("trust", "topology"),
        when=lambda plan: is_compared(plan) and plan.topology == "tree",
        why="an aggregator sums a group before the leader could compare the devices, and a group may have a majority of"
        " liars",
        instead="Set topology = 'star' or 'shard', or trust = 'robust(clip)'",
        ground="safety",
    ),
    PlanRule(
        name="nearest-async",
        keys=("trust", "pace"),
        when=lambda plan: is_compared(plan) and plan.pace == "async",
        why="a version of one update has no neighbours to compare it with",
        instead="Set pace = 'sync' or 'buffered', or trust = 'robust(clip)'",
        ground="mathematics",
    ),
    PlanRule(
        name="nearest-buffer",
        keys=("trust", "buffer"),
        when=lambda plan: (
            is_compared(plan) and plan.pace == "buffered" and not DEVICES_LEAST <= plan.buffer <= DEVICES_MAX
        ),
        why=f"a version is of {DEVICES_LEAST} to {DEVICES_MAX} devices that are compared with each other",
        instead="Set buffer to such a number, or trust = 'robust(clip)'",
        ground="mathematics",
    ),
    PlanRule(
        name="nearest-cohort",
        keys=("trust", "cohort"),
        when=lambda plan: is_compared(plan) and plan.cohort > 0 and not DEVICES_LEAST <= plan.cohort <= DEVICES_MAX,
        why=f"a version is of {DEVICES_LEAST} to {DEVICES_MAX} devices that are compared with each other",
        instead="Set cohort to such a number, or leave it out",
        ground="mathematics",
    ),
    PlanRule(
        name="nearest-workers",
        keys=("trust", "workers_max"),
        when=lambda plan: is_compared(plan) and plan.workers_max < DEVICES_LEAST,
        why="of two devices nobody can tell which one lies",
        instead=f"Allow {DEVICES_LEAST} workers or more",
        ground="mathematics",
    ),
    PlanRule(
        name="robust-momentum",
        keys=("trust", "momentum", "worker_momentum"),
        when=lambda plan: plan.believes.rule is not None and plan.device_momentum > 0 and plan.momentum > 0,
        why="the leader's momentum and that of the devices would add up",
        instead="Leave momentum out, or set worker_momentum = 0",
        ground="mathematics",
    ),
    PlanRule(
        name="worker-momentum-trust",
        keys=("worker_momentum", "trust"),
        when=lambda plan: plan.believes.rule is None and bool(plan.worker_momentum),
        why="worker_momentum has no effect unless trust = 'robust' or 'robust(clip)'",
        instead="Set that, or leave worker_momentum out and set momentum, which the leader keeps",
        ground="no effect",
    ),
)

SEALED = (
    PlanRule(
        name="sealed-nearest",
        keys=("trust",),
        when=lambda plan: is_sealed(plan) and plan.believes.rule == "nearest",
        why="nobody can compare updates that are sealed",
        instead="Set trust = 'robust(clip) + sealed', in which devices cut themselves, or only 'sealed' or 'robust'",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-private-robust",
        keys=("trust",),
        when=lambda plan: is_sealed(plan) and is_private(plan) and plan.believes.rule == "clip",
        why="devices of a private plan cut themselves to clip_update already",
        instead="Set trust = 'sealed + private(...)'",
        ground="no effect",
    ),
    PlanRule(
        name="sealed-clip",
        keys=("trust", "clip_update"),
        when=lambda plan: is_sealed(plan) and plan.believes.rule == "clip" and not is_clipped(plan),
        why="it needs a clip: nobody sees how long updates are, so nobody can know which length is usual",
        instead="Set clip_update to the length of a usual update, such as 0.5 (a job without sealed shows it)",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-data",
        keys=("trust", "data"),
        when=lambda plan: is_sealed(plan) and plan.data != "local",
        why="every member has those examples, and can work out from a version and a lease what a device sealed, so the"
        " masks would hide nothing",
        instead="Set data = 'local', or trust = 'identity'",
        ground="safety",
    ),
    PlanRule(
        name="sealed-chain",
        keys=("trust", "topology"),
        when=lambda plan: is_sealed(plan) and is_chain(plan),
        why="nobody leads, so nobody could ask devices to open a sum",
        instead="Set topology = 'star', 'tree' or 'shard'",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-shard-codec-down",
        keys=("trust", "topology", "codec_down"),
        when=lambda plan: is_sealed(plan) and is_coded_shard(plan),
        why="the leader opens the sums of such a shard and takes the step, and aggregators cannot code a step that they"
        " do not take",
        instead="Set codec_down = 'dense', or topology = 'star' or 'tree'",
        ground="limit",
    ),
    PlanRule(
        name="sealed-async",
        keys=("trust", "pace"),
        when=lambda plan: is_sealed(plan) and plan.pace == "async",
        why="the difference of two versions is the update, whatever is masked",
        instead="Set pace = 'sync'",
        ground="safety",
    ),
    PlanRule(
        name="sealed-buffered",
        keys=("trust", "pace"),
        when=lambda plan: is_sealed(plan) and plan.pace == "buffered",
        why="devices agree on the members of a sum before they seal, for one version; an older update would need"
        " its own weight, which nobody can apply under a mask",
        instead="Set pace = 'sync'",
        ground="limit",
    ),
    PlanRule(
        name="sealed-codec",
        keys=("trust", "codec"),
        when=lambda plan: is_sealed(plan) and not can_be_sealed(plan) and Codec.parse(plan.codec).form != "top",
        why="masks need whole numbers of one size",
        instead="Set codec = 'dense', or 'int16' for half the bytes, or 'led10%+ef' for a twentieth",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-top",
        keys=("trust", "codec"),
        when=lambda plan: is_sealed(plan) and not can_be_sealed(plan) and Codec.parse(plan.codec).form == "top",
        why="the places that a device sends reveal what moved, and nobody hides the only device at a place",
        instead="Set codec = 'dense', or 'int16' for half the bytes, or 'led10%+ef' for a twentieth",
        ground="safety",
    ),
    PlanRule(
        name="led-topology",
        keys=("codec", "topology"),
        when=lambda plan: is_led(plan) and plan.topology != "star",
        why="an aggregator sums a fixed part of the model, and these words are for places that change with every sum",
        instead="Set topology = 'star', or codec = 'int16'",
        ground="limit",
    ),
    PlanRule(
        name="sealed-labels",
        keys=("trust", "share_labels"),
        when=lambda plan: is_sealed(plan) and plan.share_labels,
        why="a device would reveal its labels beside the sealed update",
        instead="Leave share_labels out",
        ground="safety",
    ),
    PlanRule(
        name="sealed-cohort",
        keys=("trust", "cohort"),
        when=lambda plan: (
            plan.believes.sealed is not None
            and plan.cohort > 0
            and not plan.believes.sealed.least <= plan.cohort <= plan.group_most
        ),
        why="a sealed sum has {plan.group_least} to {plan.group_most} devices",
        instead="Set cohort to such a number",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-workers",
        keys=("trust", "workers_min"),
        when=lambda plan: is_sealed(plan) and plan.workers_min < plan.opened_least,
        why="a sum of fewer than {plan.opened_least} devices is not opened",
        instead="Set workers_min to {plan.opened_least} or more, or name fewer devices in sealed(...) if so few hide"
        " each other enough, or set cohort to less under private(...)",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-leases",
        keys=("trust", "epoch_leases"),
        when=lambda plan: is_sealed(plan) and plan.epoch_leases < plan.opened_least,
        why="a sum of fewer than {plan.opened_least} devices is not opened",
        instead="Set epoch_leases to {plan.opened_least} or more, or name fewer devices in sealed(...) if so few hide"
        " each other enough, or set cohort to less under private(...)",
        ground="mathematics",
    ),
    PlanRule(
        name="sealed-most",
        keys=("trust",),
        when=lambda plan: is_sealed(plan) and plan.opened_least > plan.group_most,
        why="a sealed sum is of at most {plan.group_most} devices, and none of fewer than {plan.opened_least} would be"
        " opened",
        instead="Name fewer",
        ground="limit",
    ),
    PlanRule(
        name="sealed-few-honest",
        keys=("trust",),
        when=hides_nobody,
        why="too many of the {plan.opened_least} devices of a sum may collude, so the sum hides nobody",
        instead="Name more devices, or a smaller share that may collude",
        ground="safety",
    ),
    PlanRule(
        name="led-trust",
        keys=("codec", "trust"),
        when=lambda plan: is_led(plan) and not is_sealed(plan),
        why="the leader names these places when it binds the members of a sealed sum, and devices that seal nothing are"
        " bound to none",
        instead="Set trust = 'sealed', or codec = 'top1%+ef+4bit', whose places each device chooses for itself, in"
        " fewer bytes",
        ground="limit",
    ),
    PlanRule(
        name="codec-down-sealed",
        keys=("codec_down",),
        when=lambda plan: Codec.parse(plan.down).is_sealed_only,
        why="a version is not sealed on its way to the devices",
        instead="Set codec_down = 'dense' or 'bf16', or leave it out",
        ground="no effect",
    ),
    PlanRule(
        name="sealed-worker-momentum",
        keys=("trust", "worker_momentum"),
        when=lambda plan: is_sealed(plan) and bool(plan.worker_momentum),
        why="the part of an update that a device keeps would be in many sums, so a sealed plan leaves"
        " worker_momentum at 0",
        instead="Set momentum, which the leader keeps, and leave worker_momentum out",
        ground="no effect",
        new_jobs_only=True,
    ),
)


def _private_only(key: str) -> PlanRule:
    return PlanRule(
        name=f"private-{dashed(key)}",
        keys=(key, "trust"),
        when=lambda plan: (
            not is_private(plan) and bool(getattr(plan, key)) and not (key == "clip_update" and plan.is_cut_unseen)
        ),
        why=f"{key} has no effect unless trust = 'private(...)'"
        + (" or 'robust(clip) + sealed'" if key == "clip_update" else ""),
        instead=f"Set that, or leave {key} out",
        ground="no effect",
    )


PRIVATE = (
    PlanRule(
        name="unusual-trust",
        keys=("accept_unusual", "trust"),
        when=lambda plan: plan.accept_unusual and (is_sealed(plan) or is_private(plan)),
        why="nobody compares the length of an update with others then: it is sealed, or clipped to clip_update",
        instead="Leave accept_unusual out",
        ground="no effect",
    ),
    PlanRule(
        name="private-weights",
        keys=("trust", "weights"),
        when=lambda plan: bool(plan.weights) and (is_sealed(plan) or is_private(plan)),
        why="each device counts once already: its number of examples would reveal something of it",
        instead="Leave weights out",
        ground="no effect",
    ),
    PlanRule(
        name="private-by-examples",
        keys=("trust", "sampling"),
        when=lambda plan: is_private(plan) and plan.sampling == "by_examples",
        why="which devices take part would reveal how many examples they have, outside the account",
        instead="Set sampling = 'uniform', or leave it out",
        ground="safety",
    ),
    *(_private_only(key) for key in PRIVATE_ONLY),
    PlanRule(
        name="private-data",
        keys=("trust", "data"),
        when=lambda plan: is_private(plan) and plan.data != "local",
        why="all devices train on the examples of each person then, so a bound on one device does not bound a person",
        instead="Set data = 'local'",
        ground="mathematics",
    ),
    PlanRule(
        name="private-robust",
        keys=("trust",),
        when=lambda plan: is_private(plan) and plan.believes.rule is not None and not is_sealed(plan),
        why="updates are weighed against each other: one device then moves what others count for, and no clip bounds"
        " that",
        instead="Set only trust = 'private(...)', whose clip bounds each device, or only 'robust'",
        ground="mathematics",
    ),
    PlanRule(
        name="private-chain",
        keys=("trust", "topology"),
        when=lambda plan: is_private(plan) and not is_sealed(plan) and is_chain(plan),
        why="the last device of a chain has the sum without noise, and nobody leads",
        instead="Set topology = 'star', 'tree' or 'shard'",
        ground="safety",
    ),
    PlanRule(
        name="private-shard-codec-down",
        keys=("trust", "topology", "codec_down"),
        when=lambda plan: is_private(plan) and not is_sealed(plan) and is_coded_shard(plan),
        why="the leader adds the noise and takes the step of such a shard, and aggregators cannot code a step that they"
        " do not take",
        instead="Set codec_down = 'dense', or topology = 'star' or 'tree'",
        ground="limit",
    ),
    PlanRule(
        name="private-async",
        keys=("trust", "topology", "pace"),
        when=lambda plan: is_private(plan) and plan.topology != "star" and plan.pace == "async",
        why="an aggregator sums its entire group, and a version at that pace is divided by one",
        instead="Set pace = 'sync' or 'buffered', or topology = 'star'",
        ground="mathematics",
    ),
    PlanRule(
        name="private-labels",
        keys=("trust", "share_labels"),
        when=lambda plan: is_private(plan) and not is_sealed(plan) and plan.share_labels,
        why="counts of labels reveal something of a person outside the account, and labels_epsilon hides only one"
        " example",
        instead="Set share_labels = False",
        ground="safety",
    ),
    PlanRule(
        name="private-cohort",
        keys=("trust", "pace", "cohort"),
        when=lambda plan: is_private(plan) and plan.paces == ("sync",) and not plan.cohort,
        why="a private sum is divided by a number that is known beforehand",
        instead="Set cohort to how many devices make a version, such as 50; unless sealed, pace = 'buffered' will do"
        " too",
        ground="mathematics",
    ),
    PlanRule(
        name="private-until",
        keys=("trust", "until"),
        when=lambda plan: is_private(plan) and plan.until.epochs is None,
        why="the account needs to know how many versions there are at most",
        instead="Set until = shoal.epochs(n), together with any other end",
        ground="mathematics",
    ),
    PlanRule(
        name="private-clip",
        keys=("trust", "clip_update"),
        when=lambda plan: is_private(plan) and not is_clipped(plan),
        why="it needs a clip, which bounds what one device can change",
        instead="Set clip_update to the length of a usual update, such as 0.5 (a job without private shows it; an"
        " adaptive clip would have to be accounted for too)",
        ground="mathematics",
    ),
    PlanRule(
        name="private-versions",
        keys=("trust", "until", "epoch_leases"),
        when=has_many_versions,
        why=f"these are {{plan.privacy.versions}} versions, and noise is known for {VERSIONS_MAX}",
        instead="Set fewer epochs or epoch_leases, or more devices per version (cohort, or buffer)",
        ground="limit",
    ),
    PlanRule(
        name="private-often",
        keys=("trust", "participations", "apart"),
        when=comes_often,
        why="a device would take part {plan.privacy.participations} times, and it keeps account of"
        f" {PARTICIPATIONS_MAX}",
        instead="Set participations to less, or apart to more",
        ground="limit",
    ),
    PlanRule(
        name="private-rest",
        keys=("trust", "apart", "workers_min"),
        when=rests_long,
        why="{plan.privacy.devices} devices make a version, and each rests for {plan.privacy.apart} versions, so"
        " {plan.privacy.workers_least} workers are needed",
        instead="Set workers_min to that or more, or apart to less",
        ground="mathematics",
    ),
    PlanRule(
        name="shares-apart",
        keys=("trust", "apart"),
        when=lambda plan: is_private(plan) and is_sealed(plan) and plan.apart > 0,
        why="devices draw noise afresh for each sum, so apart gains nothing",
        instead="Leave apart out; participations says how often a device takes part",
        ground="no effect",
    ),
    PlanRule(
        name="shares-codec",
        keys=("trust", "codec"),
        when=lambda plan: is_private(plan) and is_sealed(plan) and can_be_sealed(plan) and plan.codec != "dense",
        why="words of 16 bits have no room for noise",
        instead="Set codec = 'dense'",
        ground="mathematics",
    ),
    PlanRule(
        name="shares-collude",
        keys=("trust", "cohort"),
        when=has_no_certain_noise,
        why="all of the {plan.opened_least} devices of the smallest sum that is opened may reveal the noise that they"
        " added",
        instead="Set cohort to more, or name a smaller share that may collude",
        ground="safety",
    ),
    PlanRule(
        name="shares-noise",
        keys=("trust", "cohort", "participations"),
        when=needs_too_much_noise,
        why="this epsilon needs more noise than devices can add to their words",
        instead="Set cohort to have more devices in a version, or participations to less, or name a larger epsilon",
        ground="mathematics",
    ),
)
