"""What is said of a sealed plan before it is run."""

from __future__ import annotations

import re

from shoal.cli.render.sealed import members_note, sealed_facts
from shoal.plan import Plan


def facts(codec: str, devices: int) -> dict[str, str]:
    plan = Plan(trust="sealed", data="local", workers_min=8, workers_max=100, codec=codec)
    return dict(sealed_facts(plan, devices=devices, model_bytes=2.9e6))


def device_ms(told: dict[str, str]) -> int:
    found = re.search(r"about (\d+) ms of a core more a version on a device", told["costs"])
    assert found is not None, told["costs"]
    return int(found[1])


def test_a_sealed_plan_says_who_opens_what_it_costs_and_what_is_learnt() -> None:
    told = facts("dense", 16)
    assert "each masks with every other; 10 of them open a mask" in told["trust"]
    for learns in (told["learns"], facts("dense", 64)["learns"]):
        assert "sums of at least 8 devices, and who took part" in learns
        assert "a crafted model can show single examples" in learns


def test_it_says_what_the_manager_could_do_unless_members_are_signed() -> None:
    told = facts("dense", 16)["members"]
    assert told.startswith("The manager decides who is a member. If it lies, or lends its key to the leader, it can")
    assert "read that device's update" in told
    signed = Plan(trust="sealed(8, members=40)", data="local", workers_min=8, workers_max=100)
    told = dict(sealed_facts(signed, devices=16, model_bytes=2.9e6))["members"]
    assert "about 40, of which 4 may collude. The manager cannot add one" in told
    assert "The manager decides" not in told
    helped = Plan(trust="sealed(8, helper=aide)", data="local", workers_min=8, workers_max=100)
    assert "The manager decides" in dict(sealed_facts(helped, devices=16, model_bytes=2.9e6))["members"]


def test_a_status_says_what_the_manager_could_do_and_whether_it_leads() -> None:
    plan = Plan(trust="sealed", data="local", workers_min=8, workers_max=100)
    assert "It also leads this job" in members_note(plan, is_led_by_manager=True)
    assert "It also leads this job" not in members_note(plan)
    assert members_note(Plan()) == ""


def test_where_words_meet_in_aggregators_it_says_what_those_learn() -> None:
    plan = Plan(trust="sealed", data="local", workers_min=8, workers_max=100, topology="tree")
    told = dict(sealed_facts(plan, devices=16, model_bytes=2.9e6))
    assert "learn nothing of any update" in told["meet"]
    assert "meet" not in facts("dense", 16)


def test_where_a_helper_opens_the_sums_of_aggregators_words_are_masked_twice() -> None:
    told = {}
    for topology in ("star", "shard"):
        plan = Plan(trust="sealed(8, helper=aide)", data="local", workers_min=8, workers_max=100, topology=topology)
        told[topology] = dict(sealed_facts(plan, devices=64, model_bytes=2.9e6))
    assert "meet" not in told["star"]
    assert "two masks and learn nothing of any update, also together with aide" in told["shard"]["meet"]
    assert told["star"]["costs"] != told["shard"]["costs"]


def test_masks_of_16_bits_cost_half() -> None:
    # Rounding and hashing 725,000 values take 10 ms, each of 29 masks of 32 bits 1.1 ms.
    assert device_ms(facts("dense", 64)) == 42
    assert device_ms(facts("int16", 64)) == 26


def test_noise_of_devices_costs_what_was_measured() -> None:
    """``benchmarks.trust_shares``: 1.8e-4 ms a value to round it and draw its noise, 130 ms of these."""
    plan = Plan(
        trust="sealed + private(8)",
        data="local",
        workers_min=50,
        workers_max=50,
        cohort=50,
        participations=10,
        clip_update=1.0,
    )
    told = dict(sealed_facts(plan, devices=50, model_bytes=2.9e6))
    assert 150 < device_ms(told) < 220


def test_words_at_some_places_cost_as_few_and_their_places_are_told() -> None:
    # The model is hashed in 7 ms; a tenth of its values are rounded and masked.
    assert device_ms(facts("led10%+ef", 64)) == 9
    told = facts("led10%+ef", 64)["places"]
    assert "72,500 of 725,000 values a version" in told
    assert "KB more down" in told or "kB more down" in told or "KiB more down" in told
    assert "places" not in facts("int16", 64)


def test_a_helper_is_named_with_what_it_costs_and_what_must_not_be() -> None:
    plan = Plan(trust="sealed(8, helper=aide)", data="local", workers_min=8, workers_max=100)
    told = dict(sealed_facts(plan, devices=64, model_bytes=2.9e6))
    assert "aide opens the sums of 64 devices, of at least 8 and each once" in told["trust"]
    # Rounding and hashing 725,000 values take 10 ms, one mask of 32 bits 1.1 ms.
    assert device_ms(told) == 11
    assert "70 ms at aide; 32 B more up a device" in told["costs"]
    assert "together they see every update" in told["learns"]
