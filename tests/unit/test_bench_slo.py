"""The contest of profilers: what it counts, and that it is the same for all. Starts no processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.maui import Maui
from benchmarks.slo import judged, modelled
from benchmarks.slo_contest import Contest, Setting, Turn
from benchmarks.slo_energy import BUDGET_J, Modelled
from benchmarks.slo_fleet import draw_fleet, sudden_share
from benchmarks.slo_loop import Drawn, Task, contenders, contest, drawn_contest, score, teach
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.logrls import LogRls
from shoal.scheduling.profile.sizing import Profiler


def task(request: int, spent: float) -> Task:
    return Task(device="a", request=request, examples=1, spent=spent, reason="")


def test_a_score_counts_shares_of_the_budget() -> None:
    found = score([task(0, 1.9), task(1, 0.5), task(2, 1.0), *(task(3 + i, 0.8 + i / 20) for i in range(11))])
    # Late: 0.8, 0.85 ... 1.3, of which the last six are over; their deviations sorted end in 0.15, 0.2, 0.2, 0.25, 0.3.
    assert found.p90_late == pytest.approx(0.25)
    assert found.overshoot_late == pytest.approx(6 / 11)
    assert found.overshoot == pytest.approx(7 / 14)
    assert found.worst_first == 1.9
    assert found.tasks == 14


def test_a_fleet_is_drawn_from_its_seed_and_name_alone() -> None:
    first = draw_fleet(1, 5, requests=10)
    assert first == draw_fleet(1, 8, requests=10)[:5]
    assert first != draw_fleet(2, 5, requests=10)
    assert [each.moments for each in first] != [each.moments for each in draw_fleet(1, 5, requests=10, name="other")]
    speeds = [each.moments[0].speed for each in draw_fleet(1, 100, requests=1)]
    assert 5 < max(speeds) / min(speeds) < 50


def test_a_contest_is_the_same_each_time_and_whoever_else_takes_part() -> None:
    alone = drawn_contest(3, {"maui": Maui()})["maui"]
    assert alone == drawn_contest(3, contenders(within=0.9))["maui"]


def test_what_changes_suddenly_is_counted() -> None:
    member = draw_fleet(1, 1, requests=6)[0]
    speeds = (1.0, 0.5, 0.5, 0.55, 0.9, 0.9)
    stepped = replace(member, moments=tuple(replace(member.moments[i], speed=speed) for i, speed in enumerate(speeds)))
    # From the fourth request on: 0.5 to 0.55, 0.55 to 0.9, and none.
    assert sudden_share([stepped], after=3) == pytest.approx(1 / 3)


class Noted:
    """A ground on which nothing varies, that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def features(self, device: str, request: int) -> Features:
        return Features(device=device)

    def spend(self, device: str, request: int, examples: int) -> float:
        self.asked.append((device, request, examples))
        return examples * 0.01


def test_a_training_device_ramps_up_to_twice_the_budget() -> None:
    ground = Noted()
    assert teach({"maui": Maui()}, ["a"], ground, 1.0, first=16) == 5
    # 2.56 s is the first that is 2 s or longer.
    assert ground.asked == [("a", request, 16 * 2**request) for request in range(5)]


def test_profilers_take_turns_in_going_first() -> None:
    class Told(Maui):
        def __init__(self, name: str, order: list[str]) -> None:
            super().__init__()
            self._name, self._order = name, order

        def observed(self, features: Features, examples: int, spent: float) -> None:
            self._order.append(self._name)
            super().observed(features, examples, spent)

    order: list[str] = []
    profilers: dict[str, Profiler] = {name: Told(name, order) for name in "abc"}
    contest(profilers, ["one", "two"], Noted(), 1.0, requests=2)
    assert order == list("abc" + "bca" + "bca" + "cab")


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_at_once_do_the_same_tasks(at_once: int) -> None:
    members = draw_fleet(1, 4, requests=3)
    done = contest({"maui": Maui()}, [m.name for m in members], Drawn(1, members), 3.0, requests=3, at_once=at_once)
    assert [(each.device, each.request) for each in done["maui"]] == [
        (member.name, request) for request in range(3) for member in members
    ]


def test_modelled_phones_are_of_different_kinds_and_warm_as_they_work() -> None:
    ground = Modelled(1, 35)
    assert len({ground.features(name, 0).kind for name in ground.names}) == len(ground.names) == 35
    name = ground.names[0]
    before = ground.features(name, 0)
    assert ground.spend(name, 0, 2000) > 0
    after = ground.features(name, 1)
    assert before.temperature_c is not None
    assert after.temperature_c is not None
    assert after.temperature_c > before.temperature_c
    assert after.frequency_sum_mhz is None


def test_energy_is_said_to_be_modelled_and_ours_is_best() -> None:
    found = modelled(1, within=0.84)
    assert found["energy_is"] == "modelled"
    assert found["energy_budget_j"] == BUDGET_J == pytest.approx(32.4)
    assert found["energy_plain_p90"] < found["energy_iprof_p90"] < found["energy_maui_p90"]


def test_what_was_missed_is_said_with_what_limits_it() -> None:
    good = {"ours_p90": 0.2, "overshoot": 0.1, "worst_first": 2.0, "noise_p90": 0.05}
    assert judged(good) == []
    assert judged(good | {"overshoot": 0.3}) == ["overshoot 0.300 is over 0.2"]
    assert "the machine's own noise, 0.400" in judged(good | {"noise_p90": 0.4})[0]
    assert judged(good | {"sudden": 0.2}) == []
    assert "20 % of the requests came after a sudden change" in judged(good | {"overshoot": 0.3, "sudden": 0.2})[1]
    assert judged({"not_measured": "no root"}) == []


# The same contest inside a leader.


def through_a_leader(
    profilers: dict[str, Profiler], *, devices: int = 3, teachers: int = 4, requests: int = 5, lost: int = 0
) -> tuple[Contest, dict[str, list[Task]], list[Turn]]:
    """Devices that ask in turn, and take what a formula says for the quota that they were told."""
    setting = Setting(
        members=draw_fleet(1, devices, requests=requests),
        teachers=draw_fleet(1, teachers, requests=24, name="teacher"),
        requests=requests,
        budget=3.0,
        first=8,
        steady=100,
    )
    turns: dict[str, Turn] = {}
    told: list[Turn] = []
    done: dict[str, list[Task]] = {name: [] for name in (*profilers, "")}

    def tell(device: str, turn: Turn) -> None:
        turns[device] = turn
        told.append(turn)

    contest = Contest(setting, profilers, tell=tell, record=lambda kind, task: done[kind].append(task))
    for number in range(5000):
        if contest.is_over:
            return contest, done, told
        device = Features(device=f"device-{1 + number % devices}")
        sizing = contest.decide(device, 3.0)
        if lost and number % lost == 0:
            continue
        contest.observed(device, sizing.examples, sizing.examples * 0.004 / turns[device.device].cores)
    raise AssertionError("it does not end")


def test_every_device_asks_every_profiler_as_often_and_all_learn_from_the_offline_set() -> None:
    contest, done, told = through_a_leader({"ours": LogRls(), "maui": Maui()})
    for name in ("ours", "maui"):
        asked = sorted((task.device, task.request) for task in done[name])
        assert asked == [(f"device-{d}", r) for d in (1, 2, 3) for r in range(5)]
    assert contest.taught == sum(turn.kind == "teach" for turn in told)
    assert {turn.member.name for turn in told if turn.kind == "teach" and turn.member} == {
        f"teacher-{n}" for n in (1, 2, 3, 4)
    }
    kinds = [turn.kind for turn in told]
    last_taught = max(place for place, kind in enumerate(kinds) if kind == "teach")
    assert min(place for place, kind in enumerate(kinds) if kind == "ours") > last_taught, "nobody begins earlier"
    assert len(done[""]) == 2 * 5, "two devices also do the same over and over"
    assert {task.examples for task in done[""]} == {100}
    assert all(0.05 <= turn.cores <= 1.0 for turn in told)


def test_a_lease_that_is_lost_is_asked_for_again() -> None:
    whole = through_a_leader({"maui": Maui()})[1]["maui"]
    holes = through_a_leader({"maui": Maui()}, lost=7)[1]["maui"]
    assert sorted((t.device, t.request) for t in holes) == sorted((t.device, t.request) for t in whole)
    assert score(holes).tasks == score(whole).tasks
