"""Which shape and pace a job is to have: fixed by its plan, or chosen from what rounds show."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from shoal.plan import Plan
from shoal.roles.leader.gathering.policy import (
    AGAIN_S,
    LEAST,
    ROUNDS_FIRST,
    SETTLED_S,
    SHARD_MOST,
    UNFIT_S,
    TopologyPolicy,
    Wanted,
)
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.topology.choose import MARGIN, ROUNDS_OFF, ROUNDS_SETTLING

#: PerNet's: 2.9 MB, a quarter of a second at 100 Mbit/s.
SIZE = 720_967
RATE = 12.5e6


def crew(count: int, **changes: Any) -> list[WorkerRecord]:
    return [WorkerRecord(node=f"w{place:02}", **changes) for place in range(count)]


def shaping_of(**plan: Any) -> TopologyPolicy:
    return TopologyPolicy(Machine(), Plan(**plan), size=SIZE)


def at(shaping: TopologyPolicy, now_s: float) -> TopologyPolicy:
    """The same, at this time."""
    shaping._machine.now_s = now_s
    return shaping


def wanted(
    shaping: TopologyPolicy, workers: Sequence[WorkerRecord], now_s: float, kind: str = "star", **changes: Any
) -> Wanted | None:
    given: dict[str, Any] = {"present": (), "pace_now": "sync"} | changes
    return at(shaping, now_s).wanted(workers, given["present"], kind, given["pace_now"])


def leads(told: Wanted | None) -> list[str]:
    assert told is not None
    return [share.node for share in told.shares]


def sizes(told: Wanted | None) -> list[int]:
    assert told is not None
    return [share.stop - share.start for share in told.shares]


# As the plan says -------------------------------------------------------------------------------------------------


def test_a_star_wants_nothing() -> None:
    assert wanted(shaping_of(topology="star"), crew(30), 100.0) is None
    assert shaping_of(topology="star").is_star
    assert not shaping_of(topology="star", pace="auto").is_star
    assert not shaping_of(topology="auto").is_star


def test_a_tree_of_about_the_square_root() -> None:
    told = wanted(shaping_of(topology="tree"), crew(9), 100.0)
    assert told is not None
    assert (told.kind, told.pace) == ("tree", None)
    assert leads(told) == ["w00", "w01", "w02"]
    assert [share.members[0] for share in told.shares] == leads(told), "each is of its own group"
    assert sorted(node for share in told.shares for node in share.members) == [f"w{place:02}" for place in range(9)]
    assert {(share.start, share.stop) for share in told.shares} == {(0, SIZE)}


def test_a_tree_of_as_many_as_the_plan_says_and_there_are() -> None:
    assert len(leads(wanted(shaping_of(topology="tree", aggregators=4), crew(9), 100.0))) == 4
    assert len(leads(wanted(shaping_of(topology="tree", aggregators=9), crew(3), 100.0))) == 3


def test_a_shard_of_parts_without_a_gap() -> None:
    told = wanted(shaping_of(topology="shard"), crew(7), 100.0)
    assert told is not None
    starts = [share.start for share in told.shares]
    stops = [share.stop for share in told.shares]
    assert starts == [0, *stops[:-1]]
    assert stops[-1] == SIZE
    assert all(share.members == [f"w{place:02}" for place in range(7)] for share in told.shares)
    assert max(stop - start for start, stop in zip(starts, stops, strict=True)) < SIZE / 7 + 2


def test_before_a_round_a_link_that_looks_better_leads_no_more() -> None:
    workers = [*crew(3, down_bytes_per_s=5e6), WorkerRecord(node="alone", down_bytes_per_s=75e6)]
    told = wanted(shaping_of(topology="shard"), workers, 100.0)
    assert leads(told) == ["alone", "w00", "w01", "w02"]
    assert sizes(told) == pytest.approx([SIZE / 4] * 4, abs=2)


def test_links_that_are_about_alike_lead_as_much() -> None:
    rates = {"a": 4e6, "b": 5e6, "c": 6e6}
    workers = [WorkerRecord(node=node, down_bytes_per_s=rate) for node, rate in rates.items()]
    assert sizes(wanted(shaping_of(topology="shard"), workers, 100.0)) == pytest.approx([SIZE / 3] * 3, abs=2)


def test_one_with_a_slow_link_leads_nothing_and_is_a_member() -> None:
    workers = [*crew(4, down_bytes_per_s=RATE), WorkerRecord(node="slow", down_bytes_per_s=1e5)]
    told = wanted(shaping_of(topology="shard"), workers, 100.0)
    assert told is not None
    assert leads(told) == ["w00", "w01", "w02", "w03"]
    assert all("slow" in share.members for share in told.shares)


def test_a_model_smaller_than_the_crew_is_led_by_some() -> None:
    shaping = TopologyPolicy(Machine(), Plan(topology="shard"), size=3)
    told = wanted(shaping, crew(8), 100.0)
    assert told is not None
    assert [(share.start, share.stop) for share in told.shares] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_too_few_workers_have_no_shape(kind: str) -> None:
    shaping = shaping_of(topology=kind)
    assert wanted(shaping, crew(LEAST[kind] - 1), 100.0) is None
    assert wanted(shaping, crew(LEAST[kind]), 100.0) is not None
    assert wanted(shaping, [], 100.0) is None


def test_it_is_waited_until_nobody_comes_or_goes() -> None:
    shaping = shaping_of(topology="tree")
    at(shaping, 100.0).on_workers_changed()
    assert wanted(shaping, crew(9), 100.0 + SETTLED_S - 0.1) is None
    assert wanted(shaping, crew(9), 100.0 + SETTLED_S) is not None


def test_a_tree_that_there_is_stays() -> None:
    assert wanted(shaping_of(topology="tree"), crew(30), 100.0, "tree", present=["w00"]) is None


def test_a_shard_is_shared_out_anew_once_many_would_lead_who_do_not() -> None:
    shaping = shaping_of(topology="shard")
    present = [f"w{place:02}" for place in range(7)]
    assert wanted(shaping, crew(7), 100.0, "shard", present=present) is None
    assert wanted(shaping, crew(9), 100.0, "shard", present=present) is None
    assert len(leads(wanted(shaping, crew(10), 100.0, "shard", present=present))) == 10


def test_those_with_links_too_slow_for_a_share_are_no_reason_to_share_out_anew() -> None:
    shaping = shaping_of(topology="shard")
    workers = [*crew(3, down_bytes_per_s=RATE), WorkerRecord(node="slow", down_bytes_per_s=1e5)]
    told = wanted(shaping, workers, 100.0)
    assert wanted(shaping, workers, 100.0, "shard", present=leads(told)) is None


# What came to nothing ---------------------------------------------------------------------------------------------


def test_pauses_grow_with_each_failure_and_end_with_the_first_version() -> None:
    shaping = shaping_of(topology="tree")
    now_s = 1000.0
    for pause_s in (*AGAIN_S, AGAIN_S[-1], AGAIN_S[-1]):
        at(shaping, now_s).on_failed([])
        assert wanted(shaping, crew(9), now_s + pause_s - 0.1) is None
        assert wanted(shaping, crew(9), now_s + pause_s) is not None
        now_s += 1000.0
    shaping.on_sum_merged()
    at(shaping, now_s).on_failed([])
    assert wanted(shaping, crew(9), now_s + AGAIN_S[0]) is not None


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_one_through_whom_it_failed_leads_nothing_for_a_while(kind: str) -> None:
    shaping = shaping_of(topology=kind, aggregators=2)
    workers = crew(4)
    assert "w00" in leads(wanted(shaping, workers, 1000.0))
    at(shaping, 1000.0).on_failed(["w00"])
    told = wanted(shaping, workers, 1000.0 + AGAIN_S[0])
    assert "w00" not in leads(told)
    assert told is not None
    assert "w00" in {node for share in told.shares for node in share.members}, "it works all the same"
    assert "w00" not in leads(wanted(shaping, workers, 1000.0 + UNFIT_S[0] - 0.1))
    assert "w00" in leads(wanted(shaping, workers, 1000.0 + UNFIT_S[0]))
    now_s = 1000.0
    for pause_s in (*UNFIT_S[1:], UNFIT_S[-1]):
        now_s += 1000.0
        assert "w00" in leads(wanted(shaping, workers, now_s)), "all is forgiven, and nothing forgotten"
        at(shaping, now_s).exclude(["w00"])
        assert "w00" not in leads(wanted(shaping, workers, now_s + pause_s - 0.1))
        assert "w00" in leads(wanted(shaping, workers, now_s + pause_s))


def test_where_nobody_may_lead_there_is_no_formation() -> None:
    shaping = shaping_of(topology="shard")
    at(shaping, 1000.0).on_failed([f"w{place:02}" for place in range(3)])
    assert wanted(shaping, crew(3), 1000.0 + AGAIN_S[0]) is None
    assert at(shaping, 1001.0).arrange("tree", crew(3)) is None
    assert at(shaping, 2000.0).arrange("star", crew(3)) is None


# auto -------------------------------------------------------------------------------------------------------------


def busy(count: int, *, lease_s: float, train_s: float = 1.0) -> list[WorkerRecord]:
    workers = crew(count)
    for worker in workers:
        trains(worker, lease_s=lease_s, train_s=train_s)
    return workers


def trains(worker: WorkerRecord, *, lease_s: float, train_s: float) -> None:
    """Its leases take so long, and their training so much of that."""
    worker.durations_s.clear()
    worker.trainings_s.clear()
    worker.durations_s.extend([lease_s] * 3)
    worker.trainings_s.extend([train_s] * 3)


def seen(shaping: TopologyPolicy, rounds: int, round_s: float, kind: str = "star") -> None:
    for _ in range(rounds):
        shaping.on_round(round_s, kind)


#: What a round of a star of sixteen takes at 100 Mbit/s, and of a shard.
STAR_S, SHARD_S = 7.69, 1.447


def chosen(**plan: Any) -> tuple[TopologyPolicy, list[WorkerRecord], Wanted | None]:
    shaping, workers = shaping_of(**{"topology": "auto", **plan}), busy(16, lease_s=STAR_S)
    seen(shaping, ROUNDS_FIRST, STAR_S)
    return shaping, workers, wanted(shaping, workers, 100.0)


def test_auto_watches_some_rounds_of_a_star_first() -> None:
    shaping, workers = shaping_of(topology="auto"), busy(16, lease_s=STAR_S)
    seen(shaping, ROUNDS_FIRST - 1, STAR_S)
    assert wanted(shaping, workers, 100.0) is None
    assert (shaping.views, shaping.predicted_s) == ((), 0.0)
    at(shaping, 50.0).on_workers_changed()
    seen(shaping, 1, STAR_S)
    assert wanted(shaping, workers, 100.0) is None, "those before someone came do not count"
    seen(shaping, ROUNDS_FIRST - 1, STAR_S)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert told.kind == "shard"
    assert len(told.shares) == 16
    assert told.reason.startswith("shard: 1.45 s per batch, where a star takes 7.69 s")
    assert wanted(shaping, workers, 100.0) is None, "it is set up now"


def test_rounds_of_two_shapes_are_not_counted_together() -> None:
    shaping, workers = shaping_of(topology="auto"), busy(16, lease_s=STAR_S)
    seen(shaping, ROUNDS_FIRST, 4.09, "tree")
    seen(shaping, ROUNDS_FIRST - 1, STAR_S, "star")
    assert wanted(shaping, workers, 100.0) is None
    seen(shaping, 1, STAR_S, "star")
    assert wanted(shaping, workers, 100.0) is not None


def test_auto_tells_what_there_was_to_choose_from() -> None:
    shaping, _, _ = chosen()
    assert [(view.topology, view.pace, view.chosen) for view in shaping.views] == [
        ("star", "sync", False),
        ("tree", "sync", False),
        ("shard", "sync", True),
    ]
    assert shaping.predicted_s == pytest.approx(SHARD_S, rel=0.02)
    assert [view.batch_s for view in shaping.views] == pytest.approx([STAR_S, 4.09, SHARD_S], rel=0.02)


def test_auto_stays_a_star_where_that_is_nearly_as_good() -> None:
    shaping, workers = shaping_of(topology="auto"), busy(2, lease_s=1.01)
    seen(shaping, ROUNDS_FIRST, 1.01)
    assert wanted(shaping, workers, 100.0) is None
    assert [view.topology for view in shaping.views if view.chosen] == ["star"]


def test_auto_does_not_connect_everyone_with_everyone_where_they_are_many() -> None:
    shaping, workers = shaping_of(topology="auto"), busy(SHARD_MOST + 1, lease_s=30.0)
    seen(shaping, ROUNDS_FIRST, 30.0)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert told.kind == "tree"
    assert "shard" not in [view.topology for view in shaping.views]


def test_auto_that_was_right_stays() -> None:
    shaping, workers, _ = chosen()
    seen(shaping, 50, SHARD_S, "shard")
    assert wanted(shaping, workers, 200.0, "shard") is None


def test_auto_that_was_wrong_chooses_anew_with_what_it_learned() -> None:
    shaping, workers, _ = chosen()
    seen(shaping, ROUNDS_SETTLING + ROUNDS_OFF - 1, 6.0, "shard")
    assert wanted(shaping, workers, 200.0, "shard") is None
    seen(shaping, 1, 6.0, "shard")
    told = wanted(shaping, workers, 200.0, "shard")
    assert told is not None
    assert told.kind == "tree"
    assert "5 rounds in a row took longer than predicted for a shard" in told.reason
    # A tree is as slow as it was said to be: nothing goes to and fro.
    seen(shaping, 50, 4.09, "tree")
    assert wanted(shaping, workers, 300.0, "tree") is None


def test_auto_goes_back_to_a_shape_that_was_faster_and_ever_more_seldom() -> None:
    """The processor is what a shard is short of here: slower than the star was, and yet near its prediction."""
    shaping, workers = shaping_of(topology="auto"), busy(2, lease_s=1.15)
    star_s = 1.15
    seen(shaping, ROUNDS_FIRST, star_s)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert told.kind == "shard"
    shard_s = 1.04 * star_s
    assert shard_s < (1 + MARGIN) * shaping.predicted_s
    seen(shaping, ROUNDS_SETTLING + ROUNDS_OFF, shard_s, "shard")
    back = wanted(shaping, workers, 200.0, "shard")
    assert back is not None
    assert back.kind == "star"
    assert "5 rounds of a shard took 1.20 s, those of a star 1.15 s" in back.reason
    # It is as fast as it was: the shard, whose rounds are known now, is not tried again.
    seen(shaping, 100, star_s)
    assert wanted(shaping, workers, 300.0) is None
    # It is slower than the shard was: that is believed after twice as many rounds.
    seen(shaping, ROUNDS_OFF, 1.07 * shard_s)
    assert wanted(shaping, workers, 400.0) is None
    seen(shaping, ROUNDS_OFF, 1.07 * shard_s)
    again = wanted(shaping, workers, 400.0)
    assert again is not None
    assert again.kind == "shard"


def test_rounds_of_another_shape_than_was_chosen_say_nothing_of_it() -> None:
    shaping, workers, _ = chosen()
    # It takes a while to be set up.
    seen(shaping, 50, STAR_S, "star")
    assert wanted(shaping, workers, 200.0) is None


def test_auto_tries_again_after_a_formation_that_came_to_nothing() -> None:
    shaping, workers, told = chosen()
    assert "w03" in leads(told)
    at(shaping, 200.0).on_failed(["w03"])
    seen(shaping, ROUNDS_FIRST, STAR_S)
    assert wanted(shaping, workers, 200.0 + AGAIN_S[0] - 0.1) is None
    told = wanted(shaping, workers, 200.0 + AGAIN_S[0])
    assert len(leads(told)) == 15
    assert "w03" not in leads(told)


def test_what_rounds_of_one_shape_took_is_not_taken_for_another() -> None:
    shaping, workers, _ = chosen()
    seen(shaping, ROUNDS_FIRST, SHARD_S, "shard")
    at(shaping, 200.0).on_failed([])
    seen(shaping, ROUNDS_FIRST - 1, STAR_S, "star")
    assert wanted(shaping, workers, 300.0) is None, "too few rounds of a star"


@pytest.mark.parametrize("came", [4, 6])
def test_auto_after_someone_came_chooses_anew(came: int) -> None:
    shaping, _, told = chosen()
    at(shaping, 200.0).on_workers_changed()
    assert shaping.predicted_s == 0
    more = busy(16 + came, lease_s=1.4)
    seen(shaping, ROUNDS_FIRST, 1.45, "shard")
    told = wanted(shaping, more, 300.0, "shard", present=leads(told))
    assert shaping.predicted_s > 0
    if came == 4:
        assert told is None, "a shard is best still"
    else:
        assert len(leads(told)) == 22, "and many of them lead nothing yet"


# pace = auto ------------------------------------------------------------------------------------------------------


def with_stragglers(quick: int, slow: int) -> list[WorkerRecord]:
    workers = busy(quick + slow, lease_s=1.2)
    for worker in workers[quick:]:
        trains(worker, lease_s=10.2, train_s=10.0)
    return workers


def test_pace_auto_does_not_wait_for_stragglers() -> None:
    shaping, workers = shaping_of(topology="star", pace="auto"), with_stragglers(6, 2)
    seen(shaping, ROUNDS_FIRST, 10.2)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert (told.kind, told.shares, told.pace, told.buffer) == ("star", (), "buffered", 6)
    assert told.reason.startswith("2 stragglers: ")
    assert [(view.topology, view.pace) for view in shaping.views] == [("star", "sync"), ("star", "buffered")]


def test_pace_auto_compares_neither_two_devices_nor_more_than_can_be_compared() -> None:
    for quick, pace, buffer in ((2, None, 1), (6, "buffered", 6), (260, "buffered", 256)):
        shaping, workers = shaping_of(topology="star", pace="auto", trust="robust"), with_stragglers(quick, 1)
        seen(shaping, ROUNDS_FIRST, 10.2)
        told = wanted(shaping, workers, 100.0)
        assert (told.pace, told.buffer) == (pace, buffer) if told is not None else pace is None


def test_pace_auto_stays_in_step_where_updates_are_sealed() -> None:
    sealed = {"trust": "sealed(3, 0%, 0%)", "data": "local", "workers_min": 8}
    shaping, workers = shaping_of(topology="star", pace="auto", **sealed), with_stragglers(6, 2)
    seen(shaping, ROUNDS_FIRST, 10.2)
    assert wanted(shaping, workers, 100.0) is None
    assert {view.pace for view in shaping.views} == {"sync"}


def test_topology_auto_forms_no_tree_where_devices_are_compared() -> None:
    shaping, workers = shaping_of(topology="auto", trust="robust"), busy(16, lease_s=STAR_S)
    seen(shaping, ROUNDS_FIRST, STAR_S)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert told.kind == "shard"
    assert {view.topology for view in shaping.views} == {"star", "shard"}
    many = busy(SHARD_MOST + 1, lease_s=30.0)
    shaping = shaping_of(topology="auto", trust="robust")
    seen(shaping, ROUNDS_FIRST, 30.0)
    assert wanted(shaping, many, 100.0) is None


def test_pace_auto_stays_in_step_where_all_are_alike() -> None:
    shaping, workers = shaping_of(topology="star", pace="auto"), busy(8, lease_s=1.2)
    seen(shaping, ROUNDS_FIRST, 1.2)
    assert wanted(shaping, workers, 100.0) is None


def test_pace_auto_comes_back_into_step_when_the_stragglers_are_gone() -> None:
    shaping, workers = shaping_of(topology="star", pace="auto"), with_stragglers(6, 2)
    seen(shaping, ROUNDS_FIRST, 10.2)
    assert wanted(shaping, workers, 100.0) is not None
    at(shaping, 200.0).on_workers_changed()
    seen(shaping, ROUNDS_FIRST, 1.2)
    told = wanted(shaping, workers[:6], 300.0, pace_now="buffered")
    assert told is not None
    assert (told.kind, told.pace) == ("star", "sync")


def test_where_nobody_waits_those_who_are_slow_are_led_by_one() -> None:
    shaping, workers = shaping_of(topology="tree", pace="auto"), busy(12, lease_s=1.1)
    for place in (2, 5):
        trains(workers[place], lease_s=4.1, train_s=4.0)
    seen(shaping, ROUNDS_FIRST, 4.1)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert (told.kind, told.pace, told.buffer) == ("tree", "buffered", 10)
    assert len(told.shares) > 1
    assert any({"w02", "w05"} <= set(share.members) for share in told.shares)


def test_where_nobody_waits_a_star_waits_for_no_straggler_either() -> None:
    # 100 Mb/s: a star in step takes as long as its slowest, one in which nobody waits a third of that. A tree, in which
    # groups wait for their slowest, is no better.
    shaping, workers = shaping_of(topology="auto", pace="auto"), busy(8, lease_s=4.4)
    trains(workers[7], lease_s=7.4, train_s=4.0)
    seen(shaping, ROUNDS_FIRST, 6.1)
    told = wanted(shaping, workers, 100.0)
    assert told is not None
    assert (told.kind, told.pace) == ("star", "buffered")


def test_no_shard_without_step() -> None:
    shaping, workers = shaping_of(topology="auto", pace="async"), busy(16, lease_s=STAR_S)
    seen(shaping, ROUNDS_FIRST, STAR_S)
    told = wanted(shaping, workers, 100.0, pace_now="async")
    assert "shard" not in [view.topology for view in shaping.views]
    assert told is None or told.kind == "tree"


# Hubs -------------------------------------------------------------------------------------------------------------


def hubs(*names: str, rate: float = RATE) -> list[WorkerRecord]:
    return [WorkerRecord(node=name, is_hub=True, up_bytes_per_s=rate, down_bytes_per_s=rate) for name in names]


def over(
    shaping: TopologyPolicy, now_s: float, here: Sequence[WorkerRecord], kind: str = "star", **changes: Any
) -> Any:
    given: dict[str, Any] = {"present": (), "workers": crew(9), "pace": "sync"} | changes
    return at(shaping, now_s).wanted(given["workers"], given["present"], kind, given["pace"], here)


def test_hubs_are_the_aggregators_of_a_tree_and_none_of_its_members() -> None:
    told = over(shaping_of(topology="tree"), 100.0, hubs("h1", "h2", "h3"))
    assert leads(told) == ["h1", "h2", "h3"]
    assert all(share.is_hub for share in told.shares)
    assert sorted(node for share in told.shares for node in share.members) == [f"w{place:02}" for place in range(9)]


def test_a_shard_has_no_hubs_and_a_star_neither() -> None:
    assert leads(over(shaping_of(topology="shard"), 100.0, hubs("h1"))) == [f"w{place:02}" for place in range(9)]
    assert over(shaping_of(topology="star"), 100.0, hubs("h1")) is None


def test_workers_are_the_rest_where_more_are_asked_for() -> None:
    told = over(shaping_of(topology="tree", aggregators=3), 100.0, hubs("h1"))
    assert [(share.node, share.is_hub) for share in told.shares] == [("h1", True), ("w00", False), ("w01", False)]


def test_a_hub_that_made_a_formation_fail_is_left_out_for_a_while() -> None:
    shaping = at(shaping_of(topology="tree"), 100.0)
    shaping.exclude(["h1"])
    assert "h1" not in leads(over(shaping, 103.0, hubs("h1", "h2")))
    # Without another, workers lead; once it is fit again, it does.
    of_workers = leads(over(shaping, 103.0, hubs("h1")))
    assert of_workers == ["w00", "w01", "w02"]
    assert over(shaping, 103.0, hubs("h1"), "tree", present=of_workers) is None
    assert leads(over(shaping, 100.0 + UNFIT_S[0], hubs("h1"), "tree", present=of_workers)) == ["h1"]


def test_a_hub_that_comes_late_takes_the_place_of_workers_and_a_spare_one_changes_nothing() -> None:
    shaping = shaping_of(topology="tree", aggregators=2)
    assert leads(over(shaping, 100.0, hubs("h1"), "tree", present=["w00", "w01"])) == ["h1", "w00"]
    assert over(shaping, 100.0, hubs("h1", "h2", "h3"), "tree", present=["h1", "h2"]) is None


def test_unfit_workers_are_members_of_a_tree_over_hubs() -> None:
    shaping = at(shaping_of(topology="tree"), 100.0)
    shaping.exclude([worker.node for worker in crew(9)])
    told = over(shaping, 103.0, hubs("h1"))
    assert leads(told) == ["h1"]
    assert len(told.shares[0].members) == 9


def test_a_hub_that_does_not_know_its_link_is_taken_to_have_the_best() -> None:
    shaping = shaping_of(topology="tree")
    cluster = shaping._links.cluster(crew(4, down_bytes_per_s=1e6), hubs("h", rate=0.0))
    assert cluster.hubs[0].narrow_bytes_per_s == cluster.leader.narrow_bytes_per_s
    assert shaping._links.cluster(crew(4), hubs("h", rate=3e6)).hubs[0].narrow_bytes_per_s == 3e6


def test_auto_predicts_with_hubs_and_leaves_a_bad_one_out() -> None:
    # Too many for a shard, and on slow links.
    def chosen(here: Sequence[WorkerRecord]) -> Any:
        shaping = shaping_of(topology="auto")
        workers = crew(SHARD_MOST + 1, trainings_s=deque([0.1]), up_bytes_per_s=1e6, down_bytes_per_s=1e6)
        for _ in range(ROUNDS_FIRST):
            at(shaping, 100.0).on_round(900.0, "star")
        return over(shaping, 100.0, here, workers=workers)

    assert all(share.is_hub for share in chosen(hubs("h1", "h2", rate=1e8)).shares)
    assert not any(share.is_hub for share in chosen(hubs("h1", rate=1e3)).shares)
