"""The reproduction of MDLdroid: its pure parts on figures worked out on paper, a little training, real members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.mdldroid import aggregating, exploring, lenet, relearning, schedulers, setting, speed, tables
from papers.mdldroid.__main__ import PAPER
from papers.mdldroid.accuracy import Course, courses, play, together
from papers.mdldroid.busy import Pattern, drawn, idle
from papers.mdldroid.crew import Crew, Seat
from papers.mdldroid.decisions import (
    Game,
    State,
    TimedGame,
    balance,
    best_return,
    busy_penalty,
    perfect_pairs,
    random_chance,
    return_of,
    threshold,
)
from papers.mdldroid.dqn import AFTER_THRESHOLD, DECAY, LEAST, STRATEGIES, Agent, learn
from papers.mdldroid.experiments import EXPERIMENTS
from papers.mdldroid.headline import headline
from papers.mdldroid.means import any_merges, halving_weights, merged, neighbourhood_mean, pair
from papers.mdldroid.windows import UNEQUAL, Windows, at_random, by_person
from shoal.errors import Misuse
from testbed.flocks import between_versions

# Means -----------------------------------------------------------------------------------------------------------


def test_a_pair_is_weighed_and_the_receiver_has_both_weights() -> None:
    mean, theta = pair(np.array([1.0]), 1, np.array([4.0]), 2)
    assert (mean[0], theta) == (3.0, 3.0)


@given(st.integers(2, 9), st.integers(0, 1_000))
def test_whoever_meets_whom_the_last_has_the_weighted_mean(count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    updates = [generator.normal(size=5) for _ in range(count)]
    thetas = generator.integers(1, 400, count).tolist()
    found = merged(updates, thetas, any_merges(count, generator))
    np.testing.assert_allclose(found, np.average(updates, axis=0, weights=thetas), atol=1e-12)


def test_a_sender_is_out_and_one_must_be_left() -> None:
    three = [np.zeros(1)] * 3
    with pytest.raises(Misuse, match="has sent already"):
        merged(three, [1, 1, 1], [(0, 1), (0, 2)])
    with pytest.raises(Misuse, match="2 are left"):
        merged(three, [1, 1, 1], [(0, 1)])


def test_halving_gives_the_last_half() -> None:
    assert halving_weights(4).tolist() == [1 / 8, 1 / 8, 1 / 4, 1 / 2]
    # ((a + b)/2 + c)/2, by hand.
    assert np.dot(halving_weights(3), [1, 2, 4]) == pytest.approx(((1 + 2) / 2 + 4) / 2)
    for count in range(1, 10):
        assert halving_weights(count).sum() == 1


def test_equation_2_as_printed_is_the_mean_on_a_ring_and_not_on_a_star() -> None:
    updates = [np.array([value]) for value in (3.0, 0.0, 0.0, 0.0)]
    ring = [[3], [0], [1], [2]]
    assert neighbourhood_mean(updates, ring)[0] == pytest.approx(0.75)
    star = [[1, 2, 3], [0], [0], [0]]
    # The middle: 3·3/6 of its own; each leaf half of the middle's: (1.5 + 3·1.5)/4.
    assert neighbourhood_mean(updates, star)[0] == pytest.approx(1.5)


# Data, network, courses ------------------------------------------------------------------------------------------


def some_windows(people: int = 9, each: int = 16) -> Windows:
    """The label can be read off: one channel is up."""
    count = people * each
    labels = np.arange(count) % setting.CLASSES
    values = np.random.default_rng(0).normal(0, 0.1, (count, setting.CHANNELS, setting.MOMENTS)).astype(np.float32)
    for number, label in enumerate(labels):
        values[number, label] += 1
    return Windows(
        values=values, labels=labels, people=np.repeat(np.arange(people), each), test_values=values, test_labels=labels
    )


def test_the_network_is_as_stated() -> None:
    # 9·20·5 + 20, 20·50·5 + 50, 50·29·128 + 128, 128·6 + 6.
    assert setting.PARAMETERS == 920 + 5_050 + 185_728 + 774 == 192_472
    assert lenet.begin(0).shape == (192_472,)


def test_an_epoch_learns() -> None:
    windows = some_windows()
    model = lenet.begin(1)
    for _ in range(3):
        order = np.arange(len(windows.labels))
        model = lenet.trained(model, windows.values, windows.labels, order=order, rate=0.05)
    assert lenet.accuracy(model, windows.test_values, windows.test_labels) > 0.9
    assert lenet.accuracy(np.full_like(model, np.nan), windows.test_values, windows.test_labels) == 0


def test_people_are_whole_and_nobody_is_twice() -> None:
    people = np.repeat(np.arange(21), 10)
    for sizes in ((), UNEQUAL):
        own = by_person(people, devices=9, seed=1, sizes=sizes)
        assert sorted(np.concatenate(own).tolist()) == list(range(210))
        owners = [set(people[part].tolist()) for part in own]
        assert sum(len(part) for part in owners) == 21
    assert sorted(len(part) // 10 for part in by_person(people, devices=9, seed=1, sizes=UNEQUAL)) == sorted(UNEQUAL)
    with pytest.raises(Misuse, match="does not share"):
        by_person(people, devices=3, seed=1, sizes=(1, 1, 1))
    assert sorted(np.concatenate(at_random(20, devices=3, seed=1)).tolist()) == list(range(20))


def step_of(method: str, theta: str = "samples") -> float:
    models = [np.zeros(1, np.float32)] * 3
    updates = [np.array([value], np.float32) for value in (1.0, 2.0, 6.0)]
    course = Course(method=method, devices=3, theta=theta)
    found, _ = together(course, models, updates, [1, 1, 2], np.random.default_rng(0))
    return float(found[0][0])


def test_methods_differ_as_their_equations_do() -> None:
    assert step_of("chain") == pytest.approx((1 + 2 + 2 * 6) / 4)
    assert step_of("chain", theta="one") == pytest.approx(3)
    assert step_of("literal") == pytest.approx(2 * (1 + 2 + 2 * 6) / 4)
    assert step_of("neighbour") == pytest.approx(1 / 4 + 2 / 4 + 6 / 2)
    # Gossip: the first device hears the last one alone.
    assert step_of("gossip") == pytest.approx((1 + 6) / 2)
    with pytest.raises(Misuse, match="no method"):
        step_of("other")


def test_a_course_of_one_device_is_one_model() -> None:
    windows = some_windows(people=3)
    alone, _ = play(Course(method="central", devices=1, epochs=1), windows, seed=1)
    chained, apart = play(Course(method="chain", devices=1, epochs=1), windows, seed=1)
    assert alone == chained
    assert apart == 0
    assert {course.method for course in courses()} >= {"central", "chain", "neighbour", "literal"}


# The game --------------------------------------------------------------------------------------------------------


def test_rewards_are_those_of_equation_7() -> None:
    game = Game([False, False, True])
    assert game.choose(0) == pytest.approx(-0.04)
    assert game.states[0] == State.SEND
    assert game.choose(1) == pytest.approx(-0.04)
    assert game.states[:2] == [State.DONE, State.GET]
    # It got once, so sending pays 0.1 more.
    assert game.choose(1) == pytest.approx(0.06)
    assert game.choose(2) == 1.0
    assert game.over
    assert game.pairs == [(0, 1), (1, 2)]


def test_a_busy_device_costs_less_the_later() -> None:
    assert [busy_penalty(step, 3) for step in range(4)] == pytest.approx([-0.8, -0.6, -0.4, -0.2])
    assert Game([True, False, False]).choose(0) == pytest.approx(-0.8)


def test_a_choice_that_is_none_ends_the_game() -> None:
    game = Game([False] * 3)
    game.choose(0)
    assert game.choose(0) == -1
    assert game.over
    with pytest.raises(Misuse, match="over"):
        game.choose(1)


def test_the_threshold_is_equation_8() -> None:
    # f(7) = 0.1 + f(3) = 0.2; f(8) = 0.
    assert balance(7) == pytest.approx(0.2)
    assert threshold(8) == pytest.approx(0.3)


def test_random_choices_hardly_ever_end_well() -> None:
    # Of three: 3/3, 2/3 for a pair, then 2/3, 1/3.
    assert random_chance(3) == pytest.approx(2 / 3 * 2 / 3 * 1 / 3)
    assert random_chance(9) < 1e-5


def all_returns(busy: list[bool]) -> list[float]:
    """Every order of pairs there is, by brute force."""
    found: list[float] = []

    def go(alive: tuple[int, ...], pairs: list[tuple[int, int]]) -> None:
        if len(alive) == 1:
            found.append(return_of(busy, pairs))
            return
        for sender, receiver in permutations(alive, 2):
            go(tuple(each for each in alive if each != sender), [*pairs, (sender, receiver)])

    go(tuple(range(len(busy))), [])
    return found


@pytest.mark.parametrize("busy", [[False] * 4, [True, False, False, False], [True, True, False, False]])
def test_no_order_beats_the_perfect_agent(busy: list[bool]) -> None:
    most = max(all_returns(busy))
    assert best_return(tuple(sorted((0, each) for each in busy)), 4) == pytest.approx(most)
    pairs = perfect_pairs(busy, np.random.default_rng(3))
    assert return_of(busy, pairs) == pytest.approx(most)


def test_the_reward_prefers_a_ring_to_a_tree() -> None:
    ring = [(place, place + 1) for place in range(7)]
    tree = [(1, 0), (3, 2), (5, 4), (7, 6), (2, 0), (6, 4), (4, 0)]
    assert return_of([False] * 8, ring) > return_of([False] * 8, tree) + 0.3


def test_a_timed_game_costs_what_the_round_takes() -> None:
    game = TimedGame([0.0, 0.0, 2.5])
    brought = sum(game.choose(place) for place in (0, 1, 1, 2))
    # A merge ends at 1, the next at 2.5 + 1.
    assert brought == pytest.approx(1 - 0.35)
    wrong = TimedGame([0.0, 0.0])
    wrong.choose(0)
    assert wrong.choose(0) == -1


# Agents ----------------------------------------------------------------------------------------------------------


def test_strategies_wait_and_fade_as_their_names_say() -> None:
    tdge, tge, dge = (STRATEGIES[name] for name in ("TDGE", "TGE", "DGE"))
    assert tdge.after(1.0, passed_now=False, passed=False) == 1.0
    assert tdge.after(1.0, passed_now=True, passed=True) == pytest.approx(DECAY * AFTER_THRESHOLD)
    assert tge.after(1.0, passed_now=True, passed=True) == AFTER_THRESHOLD
    assert tge.after(AFTER_THRESHOLD, passed_now=False, passed=True) == AFTER_THRESHOLD
    assert dge.after(1.0, passed_now=False, passed=False) == DECAY
    assert dge.after(LEAST, passed_now=False, passed=True) == LEAST


def test_an_agent_learns_three_devices() -> None:
    busy = (True, False, False)
    learned = learn(
        3,
        strategy=STRATEGIES["DGE"],
        deal=lambda _: Game(busy),
        threshold=threshold(3),
        games=300,
        seed=1,
        is_enough=lambda agent: agent.own_return(busy) > 0.8,
    )
    assert learned.games < 300
    pairs, helped = learned.agent.pairs(busy)
    assert not helped
    assert 0 in pairs[-1]


def test_an_agent_that_knows_nothing_still_gives_a_round() -> None:
    pairs, _ = Agent(6, seed=1).pairs([False] * 6)
    assert len(pairs) == 5


def test_files_in_turn_give_the_mean_of_what_is_held(tmp_path: Path) -> None:
    models = [np.full(4, value, dtype=np.float32) for value in (1, 2, 6)]
    files = [tmp_path / f"{number}.npy" for number in range(3)]
    for file, model in zip(files, models, strict=True):
        np.save(file, model)
    assert aggregating.held_mean(models).tolist() == aggregating.mean_in_turn(files).tolist() == [3, 3, 3, 3]
    assert models[0].tolist() == [1, 1, 1, 1], "what is held is not changed"
    rows = aggregating.rows_of((2, 3), values=10, runs=1)
    assert [(row["devices"], row["runs"]) for row in rows] == [(2, 1), (3, 1)]


def test_what_is_learned_again_is_another_pattern() -> None:
    for number in range(5):
        first, second = relearning.patterns(5, number)
        assert first.busy != second.busy
    games, seconds = relearning.one_run(3, STRATEGIES["DGE"], number=0)
    assert 0 < games <= 1_000
    assert seconds > 0


def test_bars_can_be_reached() -> None:
    for number in range(20):
        pattern = drawn(9, seed=2, number=number)
        best = best_return(tuple(sorted((0, busy) for busy in pattern.busy)), 9)
        assert exploring.bar_of(pattern, "T(N)") <= exploring.bar_of(pattern, "strict") + 1e-9 < best


def test_luck_is_rare_and_not_out_of_reach() -> None:
    pattern = Pattern(ready=(1.0, 0.0, 0.0, 0.0))
    lucky = exploring.lucky_return(pattern)
    best = best_return(((0, False), (0, False), (0, False), (0, True)), 4)
    assert np.mean(all_returns(list(pattern.busy))) < lucky <= best + 1e-9


# Schedulers ------------------------------------------------------------------------------------------------------


@given(st.integers(3, 16), st.integers(0, 500))
def test_at_most_half_are_busy_and_the_same_seed_gives_the_same(devices: int, number: int) -> None:
    pattern = drawn(devices, seed=1, number=number)
    assert sum(pattern.busy) <= devices // 2
    assert pattern == drawn(devices, seed=1, number=number)


def test_rounds_are_worked_out_by_hand() -> None:
    devices = Pattern(ready=(5.0, 0.0, 0.0, 0.0)).standings()
    # Free ones merge at 1 and 2, the busy one at 6; the tree's first pair waits for it and another level follows.
    assert schedulers.earliest_two(devices).makespan_s == 6
    assert schedulers.in_step_tree(devices).makespan_s == 7
    assert schedulers.plain_ring(devices).makespan_s == 8
    assert schedulers.closed_ring(devices).makespan_s == 9


def test_nobody_is_earlier_than_ours() -> None:
    rows = schedulers.compared(
        7, {**schedulers.FIXED, "perfect agent": schedulers.perfect_agent(1)}, patterns=60, rounds=30
    )
    by_name = {row["scheduler"]: row for row in rows}
    assert all(row["over_optimum"] >= 1 for row in rows)
    assert by_name["ours"]["over_bound_most"] < 1
    assert by_name["ours"]["variance_rounds"] < 0.05 * by_name["tree, in step"]["variance_rounds"]
    assert by_name["ours"]["latency"] > 0
    assert schedulers.earliest_two(idle(8).standings()).makespan_s == 3


def test_a_taught_agent_tells_what_it_took() -> None:
    told = schedulers.taught_agent(3, games=5)
    assert told["games"] == 5
    assert told["return"] <= told["return_best"] + 1e-9
    timed = schedulers.taught_agent(3, games=5, timed=True)
    assert schedulers.learned_agent(timed["agent"])(idle(3).standings()).makespan_s == 2


def test_rules_that_are_asked_begin_at_once_with_two_that_are_free() -> None:
    devices = Pattern(ready=(5.0, 0.0, 0.0, 0.0)).standings()
    for scheduler in (schedulers.any_two(1), schedulers.asked_agent(Agent(4, seed=1))):
        played = scheduler(devices)
        assert played.makespan_s == 6
        assert "d00" not in {played.merges[0].sender, played.merges[0].receiver}


class Watching(Agent):
    """An agent that remembers what it was shown."""

    shown: tuple[list[State], ...] = ()

    def best(self, states: Sequence[State], among: Sequence[int]) -> int:
        self.shown = (*self.shown, list(states))
        return min(among)


def test_an_agent_that_is_asked_sees_the_devices_as_they_are() -> None:
    agent = Watching(4, seed=1)
    schedulers.asked_agent(agent)(Pattern(ready=(0.0, 0.0, 0.5, 1.25)).standings())
    busy, free, send, done = State.BUSY, State.FREE, State.SEND, State.DONE
    assert agent.shown[0] == [free, free, busy, busy]
    assert agent.shown[1] == [send, free, busy, busy]
    # At 1 the first merge is over; the third device was ready, the last is not.
    assert agent.shown[2] == [done, free, free, busy]
    assert agent.shown[3] == [done, send, free, busy]
    # Now the last two are left.
    assert agent.shown[-1] == [done, done, send, free]


@pytest.mark.parametrize("size", [3, 6])
def test_ours_is_the_optimum(size: int) -> None:
    assert schedulers.checked(size, patterns=25) == {"exact_tried": 25, "exact_equal": 25}
    assert schedulers.checked(16, patterns=25) == {}


# Members ---------------------------------------------------------------------------------------------------------


async def all_rounds(devices: int) -> None:
    async with Crew(values=3_000, seats=[Seat()] * devices) as crew:
        for whole in (False, True):
            await crew.chain_round(train_s=[0.0] * devices, whole=whole)
            await crew.check()
        for hold in (False, True):
            await crew.master_round(train_s=[0.0] * devices, hold=hold)
            await crew.check()
        assert min(await crew.peaks_mb()) > 1


def test_members_end_with_the_mean_of_all() -> None:
    asyncio.run(all_rounds(4))


def test_rounds_of_a_flock_are_read_from_all_logs() -> None:
    def line(number: int, second: float) -> str:
        told = {"ts": f"2026-01-01T00:00:{second:06.3f}Z", "event": "version.made", "reason": f"version {number} of 3"}
        return json.dumps(told)

    lines = [line(2, 11.5), "not of the log", line(1, 10.0), line(3, 14.0), line(3, 14.2), '{"event": "log"}']
    assert between_versions(lines, rounds=3) == pytest.approx([1.5, 2.5])
    with pytest.raises(Misuse, match="4 were made"):
        between_versions(lines, rounds=4)


def test_a_model_of_time_is_worked_out_by_hand() -> None:
    # Eight devices: an eighth of the training, three merges and three hops against seven in and seven out.
    told = speed.modelled(8, merge_share=0.02)
    assert told["chain"] == pytest.approx(1 / 8 + 6 * 0.02)
    assert told["master"] == pytest.approx(1 / 8 + 14 * 0.02)


# What is told ----------------------------------------------------------------------------------------------------


def scheduler_row(name: str, devices: int, **more: float) -> dict[str, Any]:
    values = {"makespan": 4.0, "latency": 2.0, "latency_ideal": 2.0, "variance_round": 2.0, "variance_rounds": 100.0}
    told = {"scheduler": name, "devices": devices, "patterns": 10, "over_optimum": 1.0, "optimal_share": 1.0}
    return {**told, **values, **more}


def test_the_headline_is_of_the_rows() -> None:
    rows = [
        scheduler_row("ours", 4, makespan=3.0, variance_rounds=1.0),
        scheduler_row("tree, in step", 4),
        scheduler_row("ring", 4, makespan=6.0),
        scheduler_row("dqn", 4, over_optimum=1.5, learning_s=3.0),
    ]
    testbed = {"what": "testbed", "devices": 4, "one_s": 6.0, "chain_s": 3.0, "master_s": 4.5}
    told = headline({"schedulers": rows, "speed": [testbed]})
    assert told["makespan_vs_tree"] == pytest.approx(-0.25)
    assert told["makespan_vs_ring"] == pytest.approx(-0.5)
    assert told["variance_vs_tree"] == pytest.approx(-0.99)
    assert told["dqn_over_exact"] == 1.5
    assert told["speedup_vs_one"] == {"4": 2.0}
    assert told["speedup_vs_master"] == {"4": 1.5}
    assert headline({}) == {}


def test_exploration_is_told_against_tdge() -> None:
    rows = [
        {"bar": "T(N)", "strategy": name, "devices": 3, "games": games, "seconds": games / 100}
        for name, games in (("TDGE", 50), ("DGE", 75))
    ]
    told = headline({"explore": rows})["explore"]["T(N)"]
    assert told["DGE"] == {"games_vs_TDGE": 1.5, "seconds_vs_TDGE": 1.5}


def test_the_readme_has_known_tables_and_says_what_was_not_measured() -> None:
    text = PAPER.readme.read_text()
    for name in tables.TABLES:
        assert f"<!-- table: {name} -->" in text
    assert PAPER.filled("<!-- table: memory -->\nold\n<!-- end -->", {}).splitlines()[1] == "*Not measured.*"
    with pytest.raises(Misuse, match="asks for a table 'other'"):
        PAPER.filled("<!-- table: other -->\n<!-- end -->", {})


def test_the_readme_is_what_its_rows_say() -> None:
    assert PAPER.filled(PAPER.readme.read_text(), PAPER.store.read()) == PAPER.readme.read_text()


def test_experiments_have_names_of_their_own() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert set(names) >= {name for table in tables.TABLES.values() for name in table.needs}
