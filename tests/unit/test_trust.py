"""Who is believed, as a plan says it: what can be written, and what is refused with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.learning.accountant import ratio_for
from shoal.learning.privacy import SharedPrivacy
from shoal.plan import Plan, epochs, seconds
from shoal.trust import DEVICES_MAX, Sealed, Trust


@pytest.mark.parametrize(
    ("text", "rule", "share"),
    [
        ("identity", None, 0.0),
        ("robust", "nearest", 0.2),
        ("robust(nearest)", "nearest", 0.2),
        ("robust(nearest, 20%)", "nearest", 0.2),
        ("robust(nearest,12.5%)", "nearest", 0.125),
        ("robust(nearest, 49%)", "nearest", 0.49),
        ("robust(clip)", "clip", 0.0),
    ],
)
def test_what_can_be_written(text: str, rule: str | None, share: float) -> None:
    trust = Trust.parse(text)
    assert (trust.text, trust.rule, trust.share) == (text, rule, pytest.approx(share))
    assert Plan(trust=text).believes == trust


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("magic", "is not a choice Shoal has; there is: identity"),
        ("", "is not a choice Shoal has"),
        ("robust(median)", "is not a choice Shoal has"),
        ("robust(nearest, 20)", "is not a choice Shoal has"),
        ("robust + identity", "is not a choice Shoal has"),
        ("private(8) + sealed", "in this order: sealed \\+ private"),
        ("private", "is not a choice Shoal has"),
        ("robust + robust(clip)", "is not a choice Shoal has"),
        ("x" * 1000, "is not a choice Shoal has"),
        ("robust(nearest, 50%)", "if they are half or more.*below 50%"),
        ("robust(nearest, 99%)", "below 50%"),
        ("robust(nearest, 0%)", "a share of 0 is trust = 'identity'"),
        ("robust(clip, 20%)", "write robust\\(clip\\)"),
        ("sealed(2)", "name 3 or more"),
        ("sealed(8, 60%, 40%)", "below 100% together"),
        ("private(0)", "epsilon is above 0"),
        ("private(8, 0.5)", "less than one in the number of people"),
    ],
)
def test_what_cannot_is_refused_with_what_there_is(text: str, told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(trust=text)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"pace": "async"}, "has no neighbours.*Set pace = 'sync' or 'buffered', or trust = 'robust\\(clip\\)'"),
        ({"topology": "tree"}, "majority of liars. Set topology = 'star' or 'shard'"),
        ({"topology": "chain", "data": "local"}, "pairs see two updates at a time.*Set topology = 'star' or 'shard'"),
        ({"pace": "buffered", "buffer": 2}, "buffer = 2: a version is of 3 to 256 devices"),
        ({"pace": "buffered", "buffer": 257}, "buffer = 257"),
        ({"cohort": 2}, "cohort = 2: a version is of 3 to 256"),
        ({"cohort": 257}, "cohort = 257"),
        ({"workers_max": 2}, "of two devices nobody can tell which one lies. Allow 3 workers"),
        ({"momentum": 0.9}, "would add up.*Leave momentum out, or set worker_momentum = 0"),
    ],
)
def test_what_nearest_cannot_do_says_what_to_change(said: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(trust="robust", **said)  # type: ignore[arg-type]


def test_what_auto_may_choose_follows_from_trust() -> None:
    def allowed(trust: str, **more: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        plan = Plan(trust=trust, topology="auto", pace="auto", **more)
        return plan.topologies, plan.paces

    every, both_paces = ("star", "tree", "shard"), ("sync", "buffered")
    assert allowed("identity") == allowed("robust(clip)") == (every, both_paces)
    # An aggregator of a tree would sum devices before they are compared.
    assert allowed("robust") == (("star", "shard"), both_paces)
    assert allowed("sealed", data="local", workers_min=8) == (every, ("sync",))
    # Noise is for a number of devices per version that stays.
    assert private(pace="auto").paces == ("sync",)
    assert private(pace="auto").privacy == private(pace="sync").privacy
    assert Plan(topology="tree", pace="async").topologies == ("tree",)
    assert Plan(pace="async").paces == ("async",)


def test_auto_takes_no_more_hubs_and_leases_than_it_can_use() -> None:
    assert Plan(trust="robust", topology="auto").hubs_max == 0
    assert Plan(topology="auto", workers_max=8).hubs_max == 4
    # It begins in step, in which workers wait for all that are compared.
    assert Plan(trust="robust", pace="auto").lent_most == 256
    assert Plan(trust="robust", pace="buffered").lent_most == 0


@pytest.mark.parametrize("pace", ["sync", "buffered", "async", "auto"])
def test_clipping_is_for_every_pace(pace: str) -> None:
    assert Plan(trust="robust(clip)", pace=pace).device_momentum == 0.9


@pytest.mark.parametrize("topology", ["star", "tree", "auto"])
@pytest.mark.parametrize("pace", ["sync", "buffered", "async", "auto"])
def test_clipping_is_for_every_pace_in_a_tree_too(topology: str, pace: str) -> None:
    assert Plan(trust="robust(clip)", topology=topology, pace=pace).topology == topology


def test_a_chain_has_no_centre() -> None:
    with pytest.raises(
        Misuse, match=r"pairs see two updates.*Set topology = 'star' or 'shard', or 'tree' under robust\(clip\)"
    ):
        Plan(trust="robust(clip)", topology="chain", data="local")


@pytest.mark.parametrize("trust", ["robust", "robust(clip)"])
def test_updates_are_compared_in_parts_too(trust: str) -> None:
    assert Plan(trust=trust, topology="shard").topology == "shard"
    with pytest.raises(Misuse, match=r"each aggregator of a shard makes its part.*Set pace = 'sync'"):
        Plan(trust="robust", topology="shard", pace="buffered")


@pytest.mark.parametrize("codec", ["dense", "bf16", "fp16", "top1%+ef+4bit"])
@pytest.mark.parametrize("trust", ["robust", "robust(clip)"])
def test_what_is_compared_is_decoded_whatever_the_codec(codec: str, trust: str) -> None:
    assert Plan(trust=trust, codec=codec).codec == codec


def test_momentum_moves_to_the_devices() -> None:
    plan = Plan(trust="robust")
    assert (plan.momentum, plan.device_momentum, plan.device_gain) == (0.0, 0.9, pytest.approx(1.0))
    assert (Plan().momentum, Plan().device_momentum, Plan().device_gain) == (0.9, 0.0, 1.0)
    none = Plan(trust="robust", worker_momentum=0.0)
    assert (none.momentum, none.device_momentum, none.device_gain) == (0.9, 0.0, 1.0)
    # Where the leader usually has none, a device sends a mean of its updates, no longer than one of them.
    assert Plan(trust="robust(clip)", pace="async").device_gain == pytest.approx(0.1)
    assert Plan(trust="robust", outer="adam").device_gain == pytest.approx(0.1)
    with pytest.raises(Misuse, match="worker_momentum has no effect unless trust = 'robust'"):
        Plan(worker_momentum=0.5)
    with pytest.raises(Misuse, match="from 0 to below 1"):
        Plan(trust="robust", worker_momentum=1.0)


def test_a_job_waits_for_devices_to_compare() -> None:
    assert (Plan().workers_least, Plan(trust="robust(clip)").workers_least, Plan(trust="robust").workers_least) == (
        1,
        1,
        3,
    )
    assert Plan(trust="robust", workers_min=5).workers_least == 5
    assert (Plan().lent_most, Plan(trust="robust").lent_most) == (0, DEVICES_MAX)
    assert Plan(trust="robust", cohort=40).lent_most == 40
    assert Plan(trust="robust", pace="buffered").lent_most == 0


# Private -----------------------------------------------------------------------------------------------------------


def private(**said: object) -> Plan:
    given: dict[str, object] = {"trust": "private(8, 1e-5)", "data": "local", "cohort": 10, "clip_update": 0.5}
    given |= {"until": epochs(4), "epoch_leases": 100, "workers_min": 50}
    return Plan(**given | said)  # type: ignore[arg-type]


def test_a_private_plan_works_out_how_often_a_device_comes() -> None:
    privacy = private().privacy
    assert privacy is not None
    # 4 epochs of 10 versions of 10 devices; 50 devices fill 5 versions before the first of them comes again.
    assert (privacy.versions, privacy.devices, privacy.apart, privacy.participations) == (40, 10, 5, 8)
    assert (privacy.epsilon, privacy.delta, privacy.clip) == (8.0, 1e-5, 0.5)
    assert privacy.epsilon_of(privacy.spent([8])) == pytest.approx(8.0)
    said = private(participations=3, apart=2).privacy
    assert said is not None
    assert (said.participations, said.apart) == (3, 2)
    # Fewer participations, and as much epsilon for each of them: less noise.
    assert said.multiplier < privacy.multiplier
    none, buffered, alone = (
        Plan().privacy,
        private(pace="buffered", cohort=0, buffer=20).privacy,
        private(pace="async", cohort=0).privacy,
    )
    assert none is None
    assert buffered is not None
    assert alone is not None
    assert (buffered.devices, buffered.versions, alone.devices, alone.versions) == (20, 20, 1, 400)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"data": "shared"}, "does not bound a person. Set data = 'local'"),
        ({"trust": "robust + private(8)"}, "no clip bounds that. Set only trust = 'private"),
        ({"trust": "robust(clip) + private(8)"}, "no clip bounds that"),
        ({"topology": "tree", "pace": "async", "cohort": 0}, "divided by one. Set pace = 'sync' or 'buffered'"),
        ({"topology": "auto", "pace": "async", "cohort": 0}, "divided by one. Set pace = 'sync' or 'buffered'"),
        ({"topology": "shard", "codec_down": "bf16"}, "a step that they do not take. Set codec_down = 'dense'"),
        ({"topology": "auto", "codec": "top10%"}, "a step that they do not take. Set codec_down = 'dense'"),
        ({"topology": "chain"}, "has the sum without noise, and nobody leads. Set topology = 'star', 'tree' or"),
        ({"share_labels": True}, "Set share_labels = False"),
        ({"share_labels": True, "labels_epsilon": 1.0}, "hides only one example. Set share_labels = False"),
        ({"pace": "auto", "cohort": 0}, "a number that is known beforehand. Set cohort"),
        ({"cohort": 0}, "Set cohort to how many devices make a version"),
        ({"until": seconds(60)}, "Set until = shoal.epochs"),
        ({"clip_update": 0.0}, "Set clip_update to the length of a usual update"),
        ({"clip_update": float("inf")}, "Set clip_update"),
        ({"participations": -1}, "participations is a number from 0, not -1"),
        ({"epoch_leases": 1_000_000}, "noise is known for 16384. Set fewer epochs"),
        ({"epoch_leases": 160_000, "until": epochs(1), "apart": 1}, "Set participations to less"),
        ({"apart": 200}, "2000 workers are needed. Set workers_min"),
    ],
)
def test_what_private_cannot_do_says_what_to_change(said: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        private(**said)


@pytest.mark.parametrize("topology", ["tree", "shard", "auto"])
def test_updates_of_a_private_plan_meet_in_any_shape_that_has_a_leader(topology: str) -> None:
    plan = private(topology=topology, codec="top10%", codec_down="dense")
    assert plan.privacy == private().privacy
    assert plan.is_stepped_by_leader
    assert plan.has_leaders_noise
    assert private(topology="tree", codec_down="bf16", pace="buffered", buffer=20, cohort=0).down == "bf16"
    assert not Plan(topology=topology).is_stepped_by_leader


@pytest.mark.parametrize("said", [{"clip_update": 1.0}, {"participations": 3}, {"apart": 2}])
def test_what_only_private_heeds_is_not_said_in_vain(said: dict[str, object]) -> None:
    with pytest.raises(Misuse, match=r"has no effect unless trust = 'private\(\.\.\.\)'"):
        Plan(**said)  # type: ignore[arg-type]


def test_several_chains_cost_what_they_cost() -> None:
    privacy = private(apart=39, participations=2, workers_min=390).privacy
    assert privacy is not None
    # The plan's noise is for a first and a last version. Two first ones, under two leaders, would be more than that.
    assert privacy.allows([2])
    assert not privacy.allows([1, 1])
    assert privacy.allows([1])


SEALED = {"trust": "sealed", "data": "local", "workers_min": 8, "workers_max": 20}


def test_a_sealed_plan_says_how_many_hide_each_other() -> None:
    plan = Plan(**SEALED)
    assert plan.believes.sealed == Sealed(least=8, colluding=0.1, lost=0.3)
    assert plan.workers_least == 8
    assert plan.lent_most == 256
    assert Plan(**{**SEALED, "trust": "sealed(5, 0%, 20%)"}).believes.sealed == Sealed(least=5, colluding=0, lost=0.2)


def test_a_plan_names_its_helper() -> None:
    helped = Plan(**{**SEALED, "trust": "sealed(8, helper=nas-2)"})
    assert helped.believes.sealed == Sealed(least=8, helper="nas-2")
    assert helped.believes.helper == "nas-2"
    assert Plan(**SEALED).believes.helper is None
    assert Plan().believes.helper is None
    shares = Plan(**{**SEALED, "trust": "sealed(8, 20%, 25%, helper=nas-2)"}).believes.sealed
    assert shares == Sealed(least=8, colluding=0.2, lost=0.25, helper="nas-2")
    assert both(trust="sealed(8, helper=nas-2) + private(8)").privacy == both(trust="sealed(8) + private(8)").privacy
    # Devices that collude hide nobody from each other, and open nothing.
    assert Plan(**{**SEALED, "trust": "sealed(4, 50%, 10%, helper=nas-2)"}).opened_least == 4
    # The roster of a group has 256 keys, the helper's among them.
    assert (helped.lent_most, Plan(**SEALED).lent_most) == (255, 256)
    longest = f"sealed(8, 10%, 30%, helper={'n' * 63}) + private(8, 1e-5)"
    assert both(trust=longest).believes.helper == "n" * 63


def test_a_plan_says_how_many_members_the_operator_signed() -> None:
    signed = Plan(**{**SEALED, "trust": "sealed(8, 10%, 30%, members=100)", "workers_min": 13})
    assert signed.believes.sealed == Sealed(least=8, colluding=0.1, lost=0.3, members=100)
    # All ten that may collude can be in one group: a sum has three more.
    assert signed.opened_least == 13
    with pytest.raises(Misuse, match="a sum of fewer than 13 devices is not opened"):
        Plan(**{**SEALED, "trust": "sealed(8, 10%, 30%, members=100)"})
    assert Plan(**{**SEALED, "trust": "sealed(8, members=24)"}).believes.sealed == Sealed(least=8, members=24)
    helped = Plan(**{**SEALED, "trust": "sealed(8, helper=nas-2, members=24)"}).believes.sealed
    assert helped == Sealed(least=8, helper="nas-2", members=24)
    longest = f"sealed(8, 10.25%, 30.25%, helper={'n' * 63}, members=100) + private(8.1234, 1.1234e-05)"
    assert both(trust=longest).believes.sealed == Sealed(
        least=8, colluding=0.1025, lost=0.3025, helper="n" * 63, members=100
    )


@pytest.mark.parametrize(
    ("text", "group", "liars"),
    [
        # A share of the group, rounded up; 10 % of 30 is 3, not the 4 that 30 * 0.1 = 3.0000000000000004 would give.
        ("sealed(8)", 8, 1),
        ("sealed(8)", 24, 3),
        ("sealed(8)", 30, 3),
        ("sealed(8, 0%, 30%)", 24, 0),
        # A share of the members: all of them may be in one group.
        ("sealed(8, members=100)", 11, 10),
        ("sealed(8, members=100)", 100, 10),
        ("sealed(8, 0%, 30%, members=100)", 11, 0),
        ("sealed(8, members=101)", 24, 11),
    ],
)
def test_colluding_devices_are_counted_over_the_members(text: str, group: int, liars: int) -> None:
    sealed = Trust.parse(text).sealed
    assert sealed is not None
    assert sealed.liars_of(group) == liars


def test_the_noise_that_is_certain_leaves_out_the_members_that_may_collude() -> None:
    # 35 of 50 devices are in the smallest sum, and 10 of the 100 members may tell what they know.
    privacy = both(trust="sealed(8, 10%, 30%, members=100) + private(8)").privacy
    assert isinstance(privacy, SharedPrivacy)
    assert privacy.certain == 25


def test_sealed_words_of_16_bits_go_up_and_versions_come_down_whole() -> None:
    plan = Plan(**{**SEALED, "codec": "int16"})
    assert (plan.codec, plan.down) == ("int16", "dense")
    assert Plan(**{**SEALED, "codec": "int16", "codec_down": "bf16"}).down == "bf16"


@pytest.mark.parametrize("trust", ["identity", "robust", "robust(clip)"])
def test_words_of_16_bits_without_masks_go_both_ways(trust: str) -> None:
    plan = Plan(codec="int16", trust=trust)
    assert (plan.codec, plan.down) == ("int16", "int16")
    assert Plan(codec="int16", trust=trust, codec_down="dense").down == "dense"
    assert Plan(**{**SEALED, "codec": "int16", "codec_down": "int16"}).down == "int16"


@pytest.mark.parametrize("topology", ["tree", "shard", "auto"])
def test_masked_words_meet_in_any_shape_that_has_a_leader(topology: str) -> None:
    assert Plan(**{**SEALED, "topology": topology, "codec": "int16"}).believes.sealed is not None
    assert Plan(**{**SEALED, "topology": "tree", "codec_down": "bf16"}).down == "bf16"
    assert both(topology=topology).privacy is not None
    assert Plan(**{**SEALED, "trust": "sealed(8, helper=nas)", "topology": topology}).believes.helper == "nas"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"data": "shared"}, "every member has those examples.*Set data = 'local'"),
        ({"topology": "chain"}, "nobody leads.*Set topology = 'star', 'tree' or 'shard'"),
        ({"topology": "shard", "codec_down": "bf16"}, "a step that they do not take. Set codec_down = 'dense'"),
        ({"topology": "auto", "codec_down": "bf16"}, "a step that they do not take. Set codec_down = 'dense'"),
        ({"pace": "async"}, "difference of two versions is the update.*Set pace = 'sync'"),
        ({"pace": "buffered"}, "which nobody can apply under a mask. Set pace = 'sync'"),
        ({"codec": "bf16"}, "masks need whole numbers.*Set codec = 'dense', or 'int16'"),
        ({"codec": "int16", "codec_down": "led5%+ef"}, "not sealed on its way.*Set codec_down = 'dense' or 'bf16'"),
        ({"codec": "top1%"}, "the places that a device sends.*Set codec = 'dense'"),
        ({"codec": "led5%+ef", "topology": "tree"}, "that change with every sum. Set topology = 'star', or codec ="),
        ({"codec": "led5%+ef", "topology": "auto"}, "that change with every sum. Set topology = 'star', or codec ="),
        ({"share_labels": True}, "Leave share_labels out"),
        ({"workers_min": 7}, "Set workers_min to 8 or more, or name fewer devices"),
        ({"epoch_leases": 5}, "Set epoch_leases to 8 or more"),
        ({"cohort": 4}, "a sealed sum has 8 to 256 devices. Set cohort"),
        (
            {"trust": "robust + sealed"},
            "updates that are sealed. Set trust = 'robust\\(clip\\) \\+ sealed'",
        ),
        ({"trust": "robust(clip) + sealed"}, "needs a clip.*Set clip_update"),
        ({"trust": "robust(clip) + sealed", "clip_update": float("inf")}, "needs a clip"),
        ({"trust": "robust(clip) + sealed", "clip_update": 1.0, "apart": 2}, "apart = 2 with trust = .*has no effect"),
        ({"clip_update": 1.0}, "clip_update = 1 with trust = 'sealed': clip_update has no effect"),
        ({"trust": "sealed + private(4)"}, "Set cohort to how many devices make a version, such as 50; unless sealed"),
        ({"trust": "sealed(4, 50%, 10%)"}, "hides nobody"),
        ({"trust": "sealed(helper=nas)"}, "is not a choice Shoal has.*sealed\\(8, helper=NODE\\)"),
        ({"trust": "sealed(8, helper=Nas 2)"}, "is not a choice Shoal has"),
        ({"trust": "sealed(2, helper=nas)"}, "name 3 or more"),
        ({"trust": "sealed(8, helper=nas)", "cohort": 256}, "a sealed sum has 8 to 255 devices"),
        ({"trust": "sealed(8, members=7)"}, "7 members cannot make a sum of 8.*Name at least 8 members"),
        ({"trust": "sealed(8, members=0)"}, "Name at least 8 members"),
        ({"trust": "sealed(8, members=3000)"}, "300 of 3000 members may collude.*at most 256 devices"),
        ({"trust": "sealed(8, 90%, 0%, members=9)"}, "9 of 9 members may collude.*Name fewer members or a smaller"),
        ({"trust": "sealed(8, members=signed)"}, "is not a choice Shoal has.*members=100"),
        ({"trust": "sealed(members=100)"}, "is not a choice Shoal has"),
        ({"trust": "sealed(8, members=100, helper=nas)"}, "is not a choice Shoal has"),
        (
            {"trust": "sealed(256, helper=nas)", "workers_min": 256, "workers_max": 300, "epoch_leases": 300},
            "of at most 255 devices.*Name fewer",
        ),
    ],
)
def test_what_cannot_be_sealed_is_refused_with_what_to_change(said: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(**{**SEALED, **said})


@pytest.mark.parametrize("topology", ["star", "tree", "shard", "auto"])
def test_devices_that_seal_may_cut_themselves_in_any_shape(topology: str) -> None:
    said = {**SEALED, "trust": "robust(clip) + sealed", "topology": topology, "clip_update": 0.5}
    plan = Plan(**said)  # type: ignore[arg-type]
    assert plan.is_cut_unseen
    # Sealed devices keep no momentum of their own: the leader has it.
    assert (plan.device_momentum, plan.momentum) == (0.0, 0.9)
    assert not Plan(**SEALED).is_cut_unseen
    assert not Plan(trust="robust(clip)").is_cut_unseen
    assert plan.is_stepped_by_leader
    assert not plan.has_leaders_noise


# Sealed and private ------------------------------------------------------------------------------------------------


def both(**said: object) -> Plan:
    given: dict[str, object] = {"trust": "sealed(8, 10%, 30%) + private(8, 1e-5)", "workers_max": 1000}
    return private(**{**given, "cohort": 50, "epoch_leases": 500, "workers_min": 500, **said})


def test_devices_that_seal_add_noise_for_the_smallest_sum() -> None:
    plan, privacy = both(), both().privacy
    assert isinstance(privacy, SharedPrivacy)
    # 50 devices: 15 may be lost, and 5 may collude.
    assert (plan.opened_least, privacy.certain, privacy.devices) == (35, 30, 50)
    assert both(trust="sealed(40) + private(8)").opened_least == 40
    # 4 epochs of 10 versions; 500 devices fill 10 of them. However far apart: noise is fresh for each.
    assert (privacy.participations, privacy.apart) == (4, 0)
    assert privacy.epsilon_of(privacy.spent([4])) == pytest.approx(8.0, rel=1e-4)
    assert privacy.spent([1, 3]) == privacy.spent([4]) == privacy.ratio
    assert privacy.allows([1, 3])
    assert not privacy.allows([2, 3])
    # Whole numbers and Renyi privacy cost a little: the noise of one leader would be so much.
    gaussian = 2 / ratio_for(8.0, delta=1e-5)
    assert gaussian < privacy.multiplier < 1.1 * gaussian


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"apart": 3}, "Leave apart out"),
        ({"topology": "chain"}, "Set topology = 'star', 'tree' or 'shard'"),
        ({"codec": "top1%"}, "Set codec = 'dense'"),
        ({"data": "shared"}, "Set data = 'local'"),
        ({"pace": "buffered", "cohort": 0}, "Set pace = 'sync'"),
        ({"cohort": 4}, "a sealed sum has 8 to 256 devices. Set cohort"),
        ({"cohort": 300}, "a sealed sum has 8 to 256 devices. Set cohort"),
        ({"workers_min": 30}, "Set workers_min to 35 or more.*or set cohort to less"),
        ({"epoch_leases": 20}, "Set epoch_leases to 35 or more.*or set cohort to less"),
        ({"until": seconds(60)}, "Set until = shoal.epochs"),
        ({"clip_update": 0.0}, "Set clip_update"),
        ({"trust": "sealed(8, 40%, 60%) + private(8)"}, "below 100% together"),
        ({"trust": "sealed(8, 49%, 50%) + private(8)", "cohort": 20}, "name a smaller share that may collude"),
        ({"trust": "sealed(8, 10%, 30%) + private(0.01)"}, "to have more devices in a version"),
        ({"epoch_leases": 300_000, "workers_min": 50}, "Set participations to less"),
        ({"trust": "robust(clip) + sealed + private(8)"}, "cut themselves to clip_update already"),
        ({"trust": "robust + sealed + private(8)"}, "nobody can compare updates that are sealed"),
        ({"share_labels": True}, "Leave share_labels out"),
    ],
)
def test_what_cannot_be_sealed_and_private_is_refused(said: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        both(**said)


def test_places_that_devices_agree_on_are_for_sealed_plans() -> None:
    plan = Plan(**{**SEALED, "codec": "led10%+ef"})
    assert (plan.codec, plan.down) == ("led10%+ef", "dense")
    with pytest.raises(Misuse, match=r"bound to none\. Set trust = 'sealed', or codec = 'top1%\+ef\+4bit'"):
        Plan(data="local", codec="led10%+ef")
    with pytest.raises(Misuse, match="not sealed on its way"):
        Plan(**{**SEALED, "codec": "int16", "codec_down": "led10%+ef"})
    for name in ("led10%", "led10%+ef+4bit", "led0%+ef", "led101%+ef", "led10%+4bit"):
        with pytest.raises(Misuse, match="no codec is called"):
            Plan(**{**SEALED, "codec": name})
