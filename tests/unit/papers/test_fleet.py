"""The reproduction of FLeet: its pure parts on figures worked out on paper, and a few steps of training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.slo import modelled
from benchmarks.slo_loop import contenders, drawn_contest, score
from papers.fleet import budgets, online, private, setting, staleness, stream, tables, thresholds
from papers.fleet.__main__ import PAPER
from papers.fleet.asynchrony import Curve, Visit, play, shortened, strangers
from papers.fleet.experiments import EXPERIMENTS
from papers.fleet.headline import headline
from papers.fleet.images import Pictures, alike, batch_of, label_counts, one_owner, two_shards, writers_of
from papers.fleet.late import middle
from papers.fleet.long_tail import LATE, row_of, with_stragglers
from papers.fleet.moments import divergence
from papers.fleet.network import accuracy, begin, gradient, gradients_by_example
from papers.fleet.paper import BUDGETS, TRIP_MEAN_S
from papers.fleet.rules import (
    RULES,
    Adaptive,
    Arrival,
    Buffered,
    Damped,
    adasgd,
    adasgd_released,
    by_age,
    distance,
    local_prior,
)
from papers.fleet.setting import D1, D2, RATE_OF_MEANS
from papers.fleet.tagger import Tagger, f1
from shoal.errors import Corrupt, Misuse
from shoal.learning.staleness import inverse, none
from shoal.scheduling.profile.conformal import WITHIN

# The network and the data ----------------------------------------------------------------------------------------


def test_the_network_is_the_papers() -> None:
    # 8·25 + 8, 48·8·25 + 48, and 48·2·2·10 + 10.
    assert setting.PARAMETERS == 208 + 9_648 + 1_930 == 11_786
    assert begin(0).shape == (11_786,)
    assert pytest.approx(0.05) == setting.RATE_OF_MEANS


def test_thresholds_are_the_papers() -> None:
    assert (D1.threshold, D2.threshold) == (12, 24)


def some_pictures(count: int = 200) -> Pictures:
    """Labels that can be read off: a bright row for each."""
    labels = np.arange(count) % 10
    images = np.zeros((count, 1, 28, 28), dtype=np.uint8)
    for number, label in enumerate(labels):
        images[number, 0, 2 * label + 4] = 255
    return Pictures(images=images, labels=labels, test_images=images[:50], test_labels=labels[:50])


def test_the_gradient_is_the_mean_of_the_examples() -> None:
    pictures = some_pictures(12)
    whole = gradient(begin(1), pictures.images, pictures.labels)
    rows = gradients_by_example(begin(1), pictures.images, pictures.labels)
    np.testing.assert_allclose(rows.mean(axis=0), whole, atol=1e-5)


def test_a_prior_of_two_labels_leaves_the_others_alone() -> None:
    pictures = some_pictures(10)
    two = slice(0, 2)
    prior = local_prior(np.array([5, 5, 0, 0, 0, 0, 0, 0, 0, 0]), mixed=1e-9)
    found = gradient(begin(1), pictures.images[two], pictures.labels[two], prior=prior)
    plain = gradient(begin(1), pictures.images[two], pictures.labels[two])
    # The last ten values are the biases of the classes: 0 and 1 are here, the others are not.
    assert np.abs(found[-8:]).max() < 1e-6 < np.abs(plain[-8:]).min()


def test_accuracy_is_of_all_and_of_each_class() -> None:
    # A model of zeros says 0 to everything.
    pictures = some_pictures()
    whole, of_class = accuracy(np.zeros(11_786, dtype=np.float32), pictures.test_images, pictures.test_labels)
    assert whole == pytest.approx(0.1)
    assert of_class.tolist() == [1.0] + [0.0] * 9


def test_two_shards_are_few_labels_and_nobody_shares() -> None:
    labels = np.repeat(np.arange(10), 60)
    own = two_shards(labels, seed=3, users=30)
    assert sorted(np.concatenate(own).tolist()) == list(range(600))
    assert max(len(set(labels[part].tolist())) for part in own) <= 2
    assert {len(part) for part in own} == {20}
    assert sorted(np.concatenate(alike(600, seed=3, users=7)).tolist()) == list(range(600))


def test_writers_are_column_two() -> None:
    rows = np.arange(24).reshape(3, 8)
    data = b"\0\0\x0c\x02" + np.array([3, 8], ">i4").tobytes() + rows.astype(">i4").tobytes()
    assert writers_of(data).tolist() == [2, 10, 18]
    with pytest.raises(Corrupt, match="not an idx file"):
        writers_of(b"\0\0\x08\x01")


def test_a_batch_is_at_most_all_and_nothing_twice() -> None:
    batch = batch_of(np.arange(30), np.random.default_rng(0), size=100)
    assert sorted(batch.tolist()) == list(range(30))


# The rules -------------------------------------------------------------------------------------------------------


def arrival(staleness: int = 0, counts: Any = (1, 1), gradient: Any = (2.0, -4.0)) -> Arrival:
    padded = np.zeros(10)
    padded[: len(counts)] = counts
    return Arrival(
        gradient=np.array(gradient, dtype=np.float32),
        base=np.zeros(2, dtype=np.float32),
        staleness=staleness,
        counts=padded,
    )


def test_damped_is_the_papers_step() -> None:
    leader = Damped(by_age(inverse), rate=0.5)
    moved = leader.merge(np.zeros(2, dtype=np.float32), arrival(staleness=3))
    # 0.5 · 1/4 · g
    assert moved.tolist() == [-0.25, 0.5]
    assert leader.weights == [0.25]


def test_adasgd_of_two_labels_weighs_more_than_twice_its_damping() -> None:
    weight = adasgd(24.0)
    everyone = np.ones(10)
    nothing = np.zeros(2, dtype=np.float32)
    # The first has nothing before it: sim = 1, and e^(-0.2137·12) = 1/13.
    assert weight(arrival(12, everyone), nothing) == pytest.approx(1 / 13)
    assert weight(arrival(12, (1, 1)), nothing) == pytest.approx(1 / 13 / math.sqrt(0.2))


def test_the_released_rule_raises_stragglers_and_nobody_else() -> None:
    weight = adasgd_released(12.0)
    everyone, nothing = np.ones(10), np.zeros(2, dtype=np.float32)
    # T = 12: (1/7)² at the threshold and beyond. What is later than 18 is divided by its similarity: two labels that
    # have 2 of 12 examples each make it 2·√(1/2 · 2/12) = √(1/3).
    assert weight(arrival(48, everyone), nothing) == pytest.approx(1 / 49)
    assert weight(arrival(12, (1, 1)), nothing) == pytest.approx(1 / 49)
    assert weight(arrival(48, (1, 1)), nothing) == pytest.approx(math.sqrt(3) / 49)
    # As printed it counts for 7^-8, over a similarity that is never as small.
    assert adasgd(12.0)(arrival(48, (1, 1)), nothing) == pytest.approx(7.0**-8)


def test_one_owner_has_a_label_and_nothing_else() -> None:
    labels = np.repeat(np.arange(10), 60)
    own = one_owner(labels, seed=3)
    assert len(own) == 10
    assert set(labels[own[0]].tolist()) == {0}
    assert sorted(np.concatenate(own).tolist()) == list(range(600))
    assert not any((labels[part] == 0).any() for part in own[1:])


def test_the_rare_class_is_told_as_the_median_of_seeds() -> None:
    def curve(rare: float) -> Curve:
        return Curve(steps=[25], accuracy=[0.5], of_classes=[[rare] + [0.5] * 9], weights=[0.1, 0.2])

    rows = [row_of("dynsgd", "hundred", [curve(value) for value in (0.7, 0.1, 0.6)])]
    rows.append(row_of("adasgd, released", "hundred", [curve(value) for value in (0.9, 0.8, 0.2)]))
    rows.append(row_of("adasgd, released", "ten", [curve(0.95)]))
    assert headline({"long_tail": rows}) == {
        "class0_dynsgd": pytest.approx(0.6),
        "class0_released": pytest.approx(0.8),
        "class0_released_ten_clients": pytest.approx(0.95),
    }


def test_distance_weighs_by_how_far_the_model_went() -> None:
    weight = distance(0.1)
    # ‖0.1·(3, 4)‖ = 0.5 against a way of 2.
    assert weight(arrival(gradient=(3.0, 4.0)), np.array([0.0, 2.0])) == pytest.approx(0.25)
    assert weight(arrival(), np.zeros(2)) == 1


def test_buffered_moves_once_in_so_many() -> None:
    leader = Buffered(by_age(none), rate=1.0, size=2, momentum=0.0)
    model = np.zeros(2, dtype=np.float32)
    assert leader.merge(model, arrival()) is model
    assert leader.merge(model, arrival(gradient=(0.0, 2.0))).tolist() == [-1.0, 1.0]


def test_adaptive_goes_as_far_in_every_value() -> None:
    leader = Adaptive(by_age(none), rate=0.1, floor=0.0)
    assert leader.merge(np.zeros(2, dtype=np.float32), arrival()).tolist() == pytest.approx([-0.1, 0.1])


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_trains_and_the_same_seed_gives_the_same(name: str) -> None:
    pictures = some_pictures()
    own = two_shards(pictures.labels, seed=0, users=10)

    def once() -> Curve:
        rule = RULES[name]
        return play(
            rule,
            rate=rule.rates[0],
            threshold=D1.threshold,
            pictures=pictures,
            own=own,
            visitor=strangers(own, D1),
            steps=25,
            seed=0,
        )

    one, same = once(), once()
    assert one.accuracy == same.accuracy
    assert one.steps == [25]
    assert len(one.weights) == 25
    assert all(0 < weight <= 1 for weight in one.weights)


def test_plain_steps_learn_what_can_be_read_off() -> None:
    pictures = some_pictures()
    own = alike(len(pictures.labels), seed=0, users=2)
    curve = play(
        RULES["ssgd"],
        rate=0.2,
        threshold=0.0,
        pictures=pictures,
        own=own,
        visitor=strangers(own, setting.FRESH),
        steps=75,
        seed=0,
    )
    assert curve.final(1) > 0.8


def test_a_decayed_step_is_shorter_by_how_many_came_before() -> None:
    """The first update is i = 1: its step is divided by 2^0.3."""
    before, after = np.zeros(3, np.float32), np.full(3, 2.0, np.float32)
    assert shortened(before, after, by=1) is after
    assert shortened(before, after, by=2**-0.3).tolist() == pytest.approx([2 / 2**0.3] * 3)
    pictures = some_pictures()
    own = alike(len(pictures.labels), seed=0, users=2)

    def end(decay: float) -> Curve:
        return play(
            RULES["ssgd"],
            rate=0.2,
            threshold=0.0,
            pictures=pictures,
            own=own,
            visitor=strangers(own, setting.FRESH),
            steps=50,
            seed=0,
            decay=decay,
        )

    # Steps of nothing: the model that it began with, which has learned nothing.
    assert end(0.0).accuracy[-1] > 0.8 > end(50.0).accuracy[-1]


def test_steps_to_80_are_of_the_mean_of_looks() -> None:
    jumpy = Curve(steps=[25 * n for n in range(1, 9)], accuracy=[0.9, 0.1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8])
    # The first five that hold no 0.1 are the third to the seventh.
    assert jumpy.steps_to() == 175
    assert Curve(steps=[25], accuracy=[0.9]).steps_to() is None


def test_a_run_that_never_got_there_is_later_than_those_that_did() -> None:
    assert middle([100, None, 300]) == 300
    assert middle([100, None, None]) is None
    assert middle([]) is None


def test_whoever_has_a_zero_is_late() -> None:
    labels = np.array([0, 1, 1, 2])
    visit = with_stragglers([np.array([0, 1]), np.array([2, 3])], labels)
    generator = np.random.default_rng(0)
    seen = [visit(step, generator) for step in range(50)]
    assert {found.staleness for found in seen if found.user == 0} == {LATE}
    assert max(found.staleness for found in seen if found.user == 1) < LATE


# Refusing and privacy --------------------------------------------------------------------------------------------


def test_the_smallest_are_refused_and_about_as_many_as_asked() -> None:
    refused: list[bool] = []
    admits = thresholds.small(0.4, refused)
    generator = np.random.default_rng(0)
    sizes = [max(1, round(float(generator.normal(100, 33)))) for _ in range(2_000)]
    let_in = [admits(Visit(user=0, batch=np.zeros(size), staleness=0)) for size in sizes]
    assert np.mean(refused) == pytest.approx(0.4, abs=0.03)
    kept = [size for size, good in zip(sizes[100:], let_in[100:], strict=True) if good]
    assert np.mean(kept) > 110
    assert refused == [not good for good in let_in]


def test_nobody_is_refused_by_no_threshold() -> None:
    assert thresholds.percentile([1.0, 2.0], 0.0) == -math.inf
    assert thresholds.percentile([], 0.5) == -math.inf


def test_an_epoch_deals_out_every_example_once() -> None:
    visit = private.dealt(600)
    generator = np.random.default_rng(0)
    batches = [visit(step, generator).batch for step in range(1, 13)]
    assert sorted(np.concatenate(batches[:6]).tolist()) == list(range(600))
    assert sorted(np.concatenate(batches[6:]).tolist()) == list(range(600))
    assert private.participations(1_200, examples=60_000) == 2
    assert private.participations(1_201, examples=60_000) == 3


def test_without_sampling_the_moments_are_those_of_the_gaussian() -> None:
    # RDP of the Gaussian mechanism: α / (2z²).
    assert divergence(8, sampled=1.0, multiplier=2.0) == pytest.approx(8 / 8)
    assert divergence(8, sampled=0.01, multiplier=2.0) < 0.01


# The stream ------------------------------------------------------------------------------------------------------


def rows_of_days(days: int) -> list[dict[str, Any]]:
    """Every day has a tag of its own, and a word that goes with it."""
    rows = []
    for hour in range(24 * days):
        day = hour // 24
        for number in range(4):
            text = f"word{'abcdefghij'[day]} and more #tag{day} @someone https://example.org/tag{day}"
            rows.append({"ts": 86_400 + hour * 3_600 + number, "user": number, "text": text, "tags": [f"tag{day}"]})
    return rows


def test_tags_links_and_names_are_not_shown() -> None:
    plain, _ = stream.features_of("Vote today", None)
    dressed, values = stream.features_of("Vote today #vote2020 @senator https://vote.example", None)
    assert plain.tolist() == dressed.tolist()
    assert plain[-1] == stream.FEATURES - 1
    assert float(np.square(values[:-1]).sum()) == pytest.approx(1)
    nothing, _ = stream.features_of("#a", None)
    assert nothing.tolist() == [stream.FEATURES - 1]


def test_hours_begin_with_the_day() -> None:
    whole = stream.built(rows_of_days(2))
    assert (whole.hours, whole.tags, len(whole.posts)) == (48, 2, 192)
    assert [post.tags.tolist() for post in whole.of_hour(24)] == [[1]] * 4


def test_hourly_updates_see_a_new_day_and_daily_ones_do_not() -> None:
    whole = stream.built(rows_of_days(4), with_author=False)
    hourly, gradients = online.play(whole, pace="hourly", rate=4.0)
    daily, as_many = online.play(whole, pace="daily", rate=4.0)
    assert gradients == as_many
    # Of one tag and five guesses the best is 2/6. Hourly it misses the first hour of each day; daily, everything.
    assert online.mean_of(hourly) == pytest.approx(23 / 24 * 2 / 6)
    assert online.mean_of(daily) == 0
    assert len(online.by_day(hourly)) == 4


def test_a_reset_forgets() -> None:
    whole = stream.built([{**row, "tags": ["same"]} for row in rows_of_days(4)])
    kept, _ = online.play(whole, pace="daily", rate=4.0)
    reset, _ = online.play(whole, pace="daily", rate=4.0, reset_days=2)
    days = [round(value, 2) for value in online.by_day(kept)]
    assert days == [0.0, 0.33, 0.33, 0.33]
    assert [round(value, 2) for value in online.by_day(reset)] == [0.0, 0.33, 0.0, 0.33]


def test_the_popular_are_those_of_the_window() -> None:
    found = {row["window"]: row["f1"] for row in online.baselines(stream.built(rows_of_days(4)), first_hour=48)}
    assert found["last hour"] == pytest.approx(23 / 24 * 2 / 6)
    assert found["yesterday"] == 0
    assert found["this hour, known beforehand"] == pytest.approx(2 / 6)
    assert online.about(stream.built(rows_of_days(4)))["uses_of_tags_first_seen_today"] == 1


def test_a_tag_that_lost_its_place_is_never_guessed_and_places_grow() -> None:
    whole = stream.built(rows_of_days(2))
    model = Tagger()
    model.keep(range(600))
    assert model.tags == 600
    model.learn(whole.of_hour(0), rate=4.0)
    assert model.guesses(whole.of_hour(0))[0].count(0) == 1
    model.keep(range(1, 4))
    assert sorted(model.guesses(whole.of_hour(0))[0] or [1, 2, 3]) == [1, 2, 3]


def test_f1_counts_five_guesses() -> None:
    assert f1([1, 2, 3, 4, 5], np.array([5, 6])) == pytest.approx(2 / 7)
    assert f1([], np.array([5])) == 0


def test_staleness_is_what_came_back_meanwhile() -> None:
    # Alone nothing comes meanwhile, and of a hundred at one moment the last to be back has 99 before it.
    assert staleness.staleness(np.arange(5) * 1_000.0, seed=1).tolist() == [0] * 5
    assert sorted(staleness.staleness(np.zeros(100), seed=1)) == list(range(100))
    # At an even rate it is about the rate times the way, by Little's law, without its own and between two posts.
    even = staleness.staleness(np.arange(20_000) / 2.0, seed=1)[1_000:-1_000]
    assert even.mean() == pytest.approx(2.0 * TRIP_MEAN_S - 0.5, rel=0.02)


# What is told ----------------------------------------------------------------------------------------------------


def late_row(rule: str, how: str, median: float | None) -> dict[str, Any]:
    told = {"rule": rule, "staleness": "D2", "split": "shards", "how": how, "rate": 0.1, "median": median}
    return {**told, "steps_to_80": [None if median is None else int(median)], "weight": 0.1, "tried": {}, "final": 0.8}


def test_the_headline_is_of_the_rows() -> None:
    rows = [late_row("dynsgd", "tuned", 1_000), late_row("adasgd", "tuned", 900), late_row("adaptive", "tuned", 600)]
    rows += [late_row("fedavg", "tuned", None), late_row("distance", "tuned", None)]
    told = headline({"late": rows})
    assert told["steps_to_80"]["tuned"]["D2"]["adaptive"] == 600
    assert told["steps_to_80"]["tuned"]["D2"]["fedavg"] is None
    assert told["adasgd_fewer_steps_D2_tuned"] == pytest.approx(0.1)
    assert told["best_rule_D2"] == "adaptive"
    assert told["best_fewer_steps_D2"] == pytest.approx(0.4)
    assert told["best_fewer_steps_D2_reached"]
    assert headline({}) == {}


def test_the_stream_is_judged_without_resets() -> None:
    def model(pace: str, reset: int | None, value: float) -> dict[str, Any]:
        told = {"what": "model", "pace": pace, "reset_days": reset}
        return {**told, "f1": value, "f1_second_day": 2 * value}

    rows = [model("hourly", None, 0.3), model("daily", None, 0.2), model("hourly", 2, 0.2), model("daily", 2, 0.1)]
    told = headline({"online": [*rows, {"what": "popular", "window": "last hour", "f1": 0.1}]})
    assert told["f1_online_over_daily"] == pytest.approx(1.5)
    assert told["f1_online_over_daily_reset"] == pytest.approx(2.0)
    assert told["f1_online_over_last_hour"] == pytest.approx(3.0)
    assert not told["f1_online_over_daily_reached"]


def test_the_readme_has_known_tables_and_says_what_was_not_measured() -> None:
    text = PAPER.readme.read_text()
    for name in tables.TABLES:
        assert f"<!-- table: {name} -->" in text
    assert (
        PAPER.filled("<!-- table: late -->\nold\n<!-- end -->", {})
        == "<!-- table: late -->\n*Not measured.*\n<!-- end -->"
    )
    with pytest.raises(Misuse, match="asks for a table 'other'"):
        PAPER.filled("<!-- table: other -->\n<!-- end -->", {})


def test_the_readme_is_what_its_rows_say() -> None:
    assert PAPER.filled(PAPER.readme.read_text(), PAPER.store.read()) == PAPER.readme.read_text()


def test_experiments_have_names_of_their_own() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert set(names) >= {name for table in tables.TABLES.values() for name in table.needs}
    assert RATE_OF_MEANS in RULES["dynsgd"].rates


def test_labels_are_counted_by_class() -> None:
    assert label_counts(np.array([0, 1, 1]), classes=4).tolist() == [1, 2, 0, 0]
    with pytest.raises(Misuse, match="labels of 3 classes"):
        label_counts(np.array([0, 3]), classes=3)


# Figures 12 and 13 -----------------------------------------------------------------------------------------------


def test_budgets_are_in_the_papers_units() -> None:
    rows = {(row["unit"], row["profiler"]): row for row in budgets.run(quick=True)}
    assert {unit for unit, _ in rows} == set(BUDGETS)
    # In shares of the budget the same contest as of the benchmark.
    seconds = score(drawn_contest(1, contenders(within=WITHIN))["iprof"]).p90
    assert rows["seconds", "iprof"]["off"] == pytest.approx(3.0 * seconds)
    energy = modelled(1, within=WITHIN)["energy_maui_p90_all"]
    assert rows["battery", "maui"]["off"] == pytest.approx(0.075 * energy)
    assert "| 3 s | MAUI | 2.7 s |" in tables.budgets({"budgets": list(rows.values())})
