"""Seeded disasters, profile by profile: whatever breaks, history stays exact, what was acknowledged survives, and every
job ends. A share of each profile is in the gate, more in the full tier; ``benchmarks.protocol_seeds`` plays all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from dst.case import case
from dst.features import drawn_in, pairs, refusals
from dst.fuzz import fuzz
from dst.pinned import COVER, PINNED
from dst.profiles import PROFILES
from shoal.learning.outer_rule import ADAPTIVE
from shoal.learning.privacy import SharedPrivacy
from shoal.plan import Plan

#: Seeds that one test plays.
BLOCK = 5
#: Blocks of each profile in the gate, and in the full tier with those.
GATE_BLOCKS = 1
FULL_BLOCKS = 6
#: Plain jobs are the ground that all profiles stand on; ``any`` is where features meet.
MORE = {"plain": 6, "any": 6}


def played(profile: str, seed: int) -> None:
    try:
        fuzz(profile, seed)
    except BaseException as error:
        error.add_note(
            f"python -m benchmarks.protocol_seeds --profile {profile} --first {seed} --count 1 --trace {seed}.jsonl"
        )
        raise


def blocks(profile: str) -> list[object]:
    times = MORE.get(profile, 1)
    gate, every = GATE_BLOCKS * max(1, times // 3), FULL_BLOCKS * times
    return [
        pytest.param(profile, block, marks=() if block < gate else pytest.mark.full, id=f"{profile}-{block}")
        for block in range(every)
    ]


@pytest.mark.parametrize(("profile", "block"), [each for profile in PROFILES for each in blocks(profile)])
def test_no_invariant_breaks(profile: str, block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        played(profile, seed)


@pytest.mark.parametrize(("profile", "seed"), PINNED, ids=[f"{profile}-{seed}" for profile, seed in PINNED])
def test_what_was_mended_stays_so(profile: str, seed: int) -> None:
    played(profile, seed)


@pytest.mark.full
def test_every_two_features_meet_or_are_refused() -> None:
    """In a few seeds that ``--quick`` plays; a pair that is neither drawn nor refused is a defect."""
    drawn = set().union(*(drawn_in(case("any", seed)) for seed in COVER))
    refused = refusals()
    assert [pair for pair in pairs() if pair not in drawn and pair not in refused] == []
    assert not drawn & set(refused)
    assert all(refused.values())


def plans(profile: str, count: int = 60) -> list[Plan]:
    return [job.spec.plan for seed in range(count) for job in case(profile, seed).jobs]


#: Profile -> what some of its plans have, and plain ones never.
DRAWN: dict[str, Callable[[Plan], bool]] = {
    "outer": lambda plan: plan.outer in ADAPTIVE,
    "outer-clip": lambda plan: plan.clip_mean > 0 and bool(plan.decay_skips),
    "ema": lambda plan: plan.ema > 0,
    "robust": lambda plan: plan.believes.rule is not None,
    "robust-parts": lambda plan: plan.believes.rule is not None and plan.topology != "star",
    "private": lambda plan: plan.has_leaders_noise,
    "private-shapes": lambda plan: plan.has_leaders_noise and plan.topology != "star",
    "sealed": lambda plan: plan.believes.sealed is not None,
    "sealed-words": lambda plan: plan.codec == "int16",
    "sealed-led": lambda plan: plan.codec.startswith("led"),
    "sealed-private": lambda plan: isinstance(plan.privacy, SharedPrivacy),
    "sealed-shapes": lambda plan: plan.believes.sealed is not None and plan.topology != "star",
    "sealed-clip": lambda plan: plan.is_cut_unseen,
    "helper": lambda plan: plan.believes.helper is not None,
}


@pytest.mark.parametrize("profile", DRAWN)
def test_a_profile_draws_what_it_is_for(profile: str) -> None:
    assert sum(map(DRAWN[profile], plans(profile))) > 15
    assert not any(map(DRAWN[profile], plans("plain")))


def test_profiles_of_clusters_have_their_devices_and_managers() -> None:
    def share(profile: str, has: Callable[..., bool]) -> float:
        return sum(has(case(profile, seed)) for seed in range(40)) / 40

    assert share("check-in", lambda what: what.check_in_s > 0) > 0.5
    assert share("managers", lambda what: what.has_two_managers) == 1.0
    assert share("hubs", lambda what: any(build.is_hub for build in what.builds)) == 1.0
    assert share("any", lambda what: any(build.is_browser for build in what.builds)) > 0.2
    assert not any(
        share("plain", has) for has in (lambda what: what.check_in_s > 0, lambda what: what.has_two_managers)
    )


def test_plans_of_a_profile_are_of_every_kind() -> None:
    outer = plans("outer", 90)
    assert {(plan.topology, plan.outer) for plan in outer} >= set(itertools.product(("star", "shard"), ADAPTIVE))
    assert {bool(plan.schedule) for plan in outer if plan.outer in ADAPTIVE} == {False, True}
    assert {plan.pace for plan in outer if plan.outer in ADAPTIVE} == {"sync", "buffered", "async"}
    assert {plan.trust for plan in plans("robust")} >= {"identity", "robust", "robust(nearest, 35%)", "robust(clip)"}
    assert {(plan.trust, plan.topology, plan.pace) for plan in plans("robust-parts")} >= {
        ("robust", "shard", "sync"),
        ("robust(clip)", "shard", "sync"),
        ("robust(clip)", "tree", "sync"),
        ("robust(clip)", "tree", "buffered"),
        ("robust(clip)", "tree", "async"),
    }
    private = [plan for plan in plans("private") if plan.privacy]
    assert {plan.pace for plan in private} == {"sync", "buffered", "async"}
    assert {plan.apart for plan in private} == {1, 2}
    shapes = [(plan.topology, plan.pace) for plan in plans("private-shapes") if plan.has_leaders_noise]
    assert {("tree", "sync"), ("tree", "buffered"), ("shard", "sync")} <= set(shapes)
    clipped = [plan.topology for plan in plans("sealed-clip") if plan.is_cut_unseen]
    assert all(clipped.count(kind) > 5 for kind in ("star", "tree", "shard"))
