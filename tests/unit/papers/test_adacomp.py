"""The reproduction of AdaComp: its arena on a model of a few values, its network against torch's, its files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from papers.adacomp import experiments, paper, plots, results, roles, tables, unfinished
from papers.adacomp.__main__ import PAPER, wanted
from papers.adacomp.arena import Examined, Method, State, Tally, played
from papers.adacomp.arrivals import STARTING, Crowd, Queue, Start, speeds_of
from papers.adacomp.digits import dealt, standardised
from papers.adacomp.headline import headline
from papers.adacomp.runs import Course, Run, crowd_of, pickled_bytes, row_of
from papers.harness.results import Folder
from shoal.errors import Misuse
from shoal.learning.layout import Layout

ROOT = Path(__file__).resolve().parent.parent.parent.parent

#: Two tensors of four and two values.
LAYOUT = Layout.of([("weight", (4,), "parameter"), ("bias", (2,), "parameter")])


class Wanting:
    """Learns a goal by the gradient of |model - goal|² / 2, and remembers what it was asked."""

    goal = np.arange(6, dtype=np.float32)

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def gradient(self, model: np.ndarray, examples: np.ndarray) -> np.ndarray:
        self.seen.append((model, examples))
        gradient: np.ndarray = model - self.goal
        return gradient

    def accuracy(self, model: np.ndarray) -> float:
        return float(1 / (1 + np.abs(model - self.goal).sum()))


def play(
    method: Method,
    crowd: Crowd,
    *,
    updates: int,
    learner: Wanting | None = None,
    wanted: float = 2.0,
    saved: State | None = None,
    save: Callable[[State], None] | None = None,
) -> Tally:
    hands = [np.arange(10 * worker, 10 * worker + 10) for worker in range(crowd.workers)]
    model = np.zeros(6, dtype=np.float32)
    return played(
        learner or Wanting(),
        model,
        LAYOUT,
        hands,
        method=method,
        crowd=crowd,
        every=1,
        updates_max=updates,
        wanted=wanted,
        saved=saved,
        save=save,
    )


DENSE = Method(codec="dense", rule="none", rate=0.5)
ALONE = Crowd(workers=1, batch=2)
MANY = Crowd(workers=7, batch=2, start="together")


# The arena -----------------------------------------------------------------------------------------------------


def test_one_worker_is_plain_descent() -> None:
    metrics = play(DENSE, ALONE, updates=3)
    # The distance of 15 is halved by each of three updates.
    assert [found.accuracy for found in metrics.examined] == pytest.approx([1 / 8.5, 1 / 4.75, 1 / 2.875])
    assert (metrics.staleness, metrics.entries, metrics.update_bytes) == (0, 18, 72)
    assert metrics.frame_bytes > metrics.update_bytes


def test_the_largest_of_each_tensor_are_sent_and_nothing_else_moves() -> None:
    learner = Wanting()
    play(replace(DENSE, codec="top50%"), ALONE, updates=2, learner=learner)
    # Of (0, 1, 2, 3) the two largest, of (4, 5) the larger.
    np.testing.assert_array_equal(learner.seen[1][0], np.array([0, 0, 1, 1.5, 0, 2.5], dtype=np.float32))


def test_a_late_update_is_divided_by_the_versions_since() -> None:
    learner = Wanting()
    metrics = play(replace(DENSE, rule="update", rate=0.1), MANY, updates=3, learner=learner)
    # All began with version 0, so that the first three updates are of one gradient, and 0, 1 and 2 versions late.
    assert all(model is learner.seen[0][0] for model, _ in learner.seen)
    assert metrics.staleness == 0 + 1 + 2
    assert metrics.inverse_staleness == 1 + 1 + 1 / 2
    # 0.1 · (1 + 1 + 1/2) of the distance of 15 is gone.
    assert metrics.examined[-1].accuracy == pytest.approx(1 / (1 + 15 * (1 - 0.25)))


def test_each_place_is_divided_by_the_updates_that_moved_it() -> None:
    # Where every update moves everything, σ is τ; where each moves a few places, others moved fewer of the same.
    everywhere = play(Method(codec="dense", rule="parameter", rate=0.1), MANY, updates=3)
    as_one = play(Method(codec="dense", rule="update", rate=0.1), MANY, updates=3)
    assert everywhere.examined[-1].accuracy == pytest.approx(as_one.examined[-1].accuracy)
    assert everywhere.place_staleness == pytest.approx(0 + 1 + 2)
    few = play(Method(codec="top10%", rule="parameter", rate=0.1), MANY, updates=40)
    assert few.place_staleness < few.staleness


def test_feedback_sends_what_was_held_back() -> None:
    without = play(replace(DENSE, codec="top10%", rate=0.05), ALONE, updates=60)
    held = play(replace(DENSE, codec="top10%+ef", rate=0.05), ALONE, updates=60)
    assert held.examined[-1].accuracy > 2 * without.examined[-1].accuracy


def test_workers_have_examples_of_their_own() -> None:
    learner = Wanting()
    play(DENSE, MANY, updates=50, learner=learner)
    hands = {frozenset(int(example) // 10 for example in examples) for _, examples in learner.seen}
    assert hands == {frozenset({worker}) for worker in range(7)}
    assert all(len(set(examples.tolist())) == 2 for _, examples in learner.seen)


@pytest.mark.parametrize("arrivals", ["cycles", "memoryless"])
def test_the_same_seed_is_the_same_run_and_another_is_not(arrivals: str) -> None:
    crowd = replace(MANY, arrivals=arrivals, crash_chance=0.02)
    method = Method(codec="top50%", rule="parameter", rate=0.02)
    first, again, other = (play(method, replace(crowd, seed=seed), updates=30) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_version_between_pull_and_push_is_one_of_others() -> None:
    # On average a worker sees one update of each other: n - 1.
    slowly = replace(DENSE, rate=0.001)
    metrics = play(slowly, Crowd(workers=20, batch=1), updates=2000)
    assert metrics.staleness / metrics.updates == pytest.approx(19, rel=0.05)
    loose = play(slowly, Crowd(workers=20, batch=1, arrivals="memoryless"), updates=2000)
    assert loose.staleness / loose.updates == pytest.approx(19, rel=0.1)
    # Short cycles: without memory, some come back at once.
    assert loose.inverse_staleness > 2 * metrics.inverse_staleness


def test_who_crashed_does_not_come_back_and_a_run_ends_with_the_last() -> None:
    metrics = play(DENSE, replace(MANY, crash_chance=1.0), updates=100)
    assert (metrics.crashed, metrics.updates) == (7, 7)
    # As likely as the paper says, of 200 workers no more than one is left by 250,000 updates, and not 100.
    assert paper.WORKERS * (1 - paper.CRASH_CHANCE) ** (paper.UPDATES / paper.WORKERS) < 2


def test_fast_workers_send_as_much_more_as_they_are_faster() -> None:
    crowd = Crowd(workers=10, batch=1, classes=paper.CLASSES, start="together")
    assert speeds_of(crowd) == [100.0] * 3 + [10.0] * 4 + [1.0] * 3
    learner = Wanting()
    play(replace(DENSE, rate=0.001), crowd, updates=3400, learner=learner)
    pushes = np.bincount([int(examples[0]) // 10 for _, examples in learner.seen], minlength=10)
    assert pushes[:3].mean() / pushes[3:7].mean() == pytest.approx(10, rel=0.15)
    with pytest.raises(Misuse, match=r"make 0\.9, not 1"):
        speeds_of(replace(crowd, classes=((0.4, 1.0), (0.5, 2.0))))


def test_what_diverges_is_refused_and_the_rest_is_told() -> None:
    metrics = play(replace(DENSE, rate=100.0), ALONE, updates=50)
    assert "norm" in metrics.trouble
    assert 0 < metrics.updates < 50
    assert len(metrics.examined) == metrics.updates


def test_a_model_that_answers_the_same_for_ever_is_given_up() -> None:
    class Dead(Wanting):
        def accuracy(self, model: np.ndarray) -> float:
            return 0.1135

    metrics = play(DENSE, ALONE, updates=50, learner=Dead())
    assert metrics.updates == 5
    assert "answers the same" in metrics.trouble


def test_it_stops_where_it_was_to_get() -> None:
    metrics = play(DENSE, ALONE, updates=50, wanted=0.3)
    assert [found.accuracy >= 0.3 for found in metrics.examined] == [False, False, True]
    with pytest.raises(Misuse, match="examples for 1 workers, there are 2"):
        played(Wanting(), np.zeros(6, np.float32), LAYOUT, [np.arange(3)], method=DENSE, crowd=replace(MANY, workers=2),
               every=1, updates_max=1)  # fmt: skip


def test_workers_begin_one_after_another_with_the_newest_model() -> None:
    queue = Queue(replace(MANY, start="in turn"), 0, np.zeros(6, np.float32))
    begun: list[int] = []
    for version in range(100):
        push = queue.next_push(version, np.zeros(6, np.float32))
        assert push is not None
        begun += [push.worker] if push.worker not in begun else []
        queue.pushed(push.worker, version + 1, np.zeros(6, np.float32))
    assert begun == sorted(begun) == list(range(7))
    # A cycle is shorter than the time between two starts: the first worker has moved the model when the second begins.
    assert STARTING / 7 > 2.2
    held = {}
    for start in ("in turn", "together"):
        learner = Wanting()
        play(replace(DENSE, rate=0.01), replace(MANY, start=start), updates=7, learner=learner)
        held[start] = len({id(model) for model, _ in learner.seen})
    assert held["in turn"] >= 6 > 3 >= held["together"]


@pytest.mark.parametrize("codec", ["dense", "top50%", "top50%+ef+4bit"])
@pytest.mark.parametrize("rule", ["update", "parameter", "none"])
def test_a_run_that_was_killed_continues_to_the_bit(tmp_path: Path, codec: str, rule: str) -> None:
    method = Method(codec=codec, rule=rule, rate=0.02)  # type: ignore[arg-type]
    crowd = replace(MANY, start="in turn", crash_chance=0.01)
    whole = play(method, crowd, updates=90)
    file = unfinished.file_of({"method": "adacomp-1", "seed": 0}, tmp_path / "new")
    for until in (3, 25, 60, 90):
        # Each part knows only the file of the part before.
        saved = unfinished.read(file)
        assert (saved is None) == (until == 3)
        part = play(method, crowd, updates=until, saved=saved, save=lambda state: unfinished.write(file, state))
    assert part == whole
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_worker_that_holds_too_old_a_version_cannot_be_saved() -> None:
    slow = replace(MANY, classes=((0.5, 1000.0), (0.5, 1.0)))
    method = Method(codec="top50%", rule="parameter", rate=0.001)
    with pytest.raises(Misuse, match="can be counted again"):
        play(method, slow, updates=3000, save=lambda state: None)


# The network and its data --------------------------------------------------------------------------------------


def test_images_have_mean_0_and_deviation_1_and_an_empty_one_stays_finite() -> None:
    images = np.zeros((2, 1, 28, 28), dtype=np.uint8)
    images[0, 0, :14] = 200
    made = standardised(images)
    assert made.dtype == np.float32
    np.testing.assert_allclose([made[0].mean(), made[0].std()], [0, 1], atol=1e-6)
    assert not made[1].any()


def test_hands_are_equal_and_share_no_image() -> None:
    hands = dealt(60_000, 200, used=12_000, seed=3)
    assert [len(hand) for hand in hands] == [60] * 200
    assert len(np.unique(np.concatenate(hands))) == 12_000
    assert not np.array_equal(hands[0], dealt(60_000, 200, used=12_000, seed=4)[0])


def test_the_network_is_the_papers_and_its_gradient_is_torchs() -> None:
    import torch
    from torch import nn

    from papers.adacomp.digits import Digits
    from papers.adacomp.network import LAYOUT, Network, first_model

    assert LAYOUT.size == paper.PARAMETERS
    model = first_model(0)
    weights = LAYOUT.views(model)["full1.weight"]
    assert np.abs(weights).max() <= 0.2
    # Cut at two deviations, the deviation is 0.88 of what it was.
    assert weights.std() == pytest.approx(0.088, abs=0.001)
    chance = np.random.default_rng(0)
    data = Digits(images=chance.standard_normal((6, 1, 28, 28)).astype(np.float32), labels=np.array([0, 1, 2, 3, 4, 9]))
    network = Network(data, data)
    plain = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(1568, 128), nn.ReLU()),
        nn.Linear(128, 10),
    )
    with torch.no_grad():
        for parameter, view in zip(plain.parameters(), LAYOUT.views(model).values(), strict=True):
            parameter.copy_(torch.from_numpy(view))
    chosen = np.array([5, 1, 2])
    scores = plain(torch.from_numpy(data.images[chosen]))
    nn.functional.cross_entropy(scores, torch.from_numpy(data.labels[chosen])).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()]).numpy()
    np.testing.assert_allclose(network.gradient(model, chosen), expected, atol=1e-5)
    with torch.no_grad():
        right = (plain(torch.from_numpy(data.images)).argmax(1).numpy() == data.labels).mean()
    assert network.accuracy(model) == pytest.approx(float(right))


# Runs, rows and files ------------------------------------------------------------------------------------------


def test_every_run_has_a_key_of_its_own() -> None:
    for runs in (*experiments.EXPERIMENTS.values(), experiments.FINAL):
        keys = [json.dumps(run.key) for run in runs]
        assert len(set(keys)) == len(keys)
    assert all(run.updates_max == paper.UPDATES for run in experiments.FINAL)


def test_runs_are_chosen_by_experiment_method_and_seed() -> None:
    chosen = wanted(["tuned"], final=False, quick=False, seeds=2)
    assert list(chosen) == ["tuned"]
    assert {run.seed for run in chosen["tuned"]} == {0, 1}
    assert [run.method for run in wanted(["asgd"], final=True, quick=False, seeds=1)["final"]] == ["asgd"]


RUN = Run(method="adacomp-1", codec="top1%", rule="parameter", rate=0.1)


def examined(updates: int, accuracy: float) -> Examined:
    sent = {"entries": 10 * updates, "update_bytes": 50 * updates, "frame_bytes": 60 * updates}
    return Examined(updates=updates, accuracy=accuracy, crashed=0, **sent)


def test_a_row_tells_what_was_sent_to_the_target() -> None:
    metrics = Tally(updates=4, entries=40, staleness=8.0, inverse_staleness=2.0, place_staleness=4.0)
    metrics.examined = [examined(1, 0.5), examined(2, 0.971), examined(3, 0.96), examined(4, 0.98)]
    row = row_of(RUN, metrics)
    assert (row["updates_to_target"], row["entries"], row["update_bytes"], row["frame_bytes"]) == (2, 20, 100, 120)
    assert (row["best"], row["trouble"], row["staleness"]) == (0.98, "", 2.0)
    # Nine bytes for a value, five for its place.
    assert row["pickled_bytes"] == 20 * 14
    assert pickled_bytes("dense", paper.PARAMETERS) * paper.UPDATES == pytest.approx(paper.ASGD_BYTES, rel=0.04)
    metrics.examined = metrics.examined[:1]
    assert row_of(RUN, metrics)["entries"] is None


def test_crowds_are_the_papers() -> None:
    assert crowd_of(RUN) == Crowd(workers=200, batch=10)
    assert crowd_of(replace(RUN, classes=True)).classes == paper.CLASSES


def test_rows_are_kept_by_their_key(tmp_path: Path) -> None:
    kept = Folder(tmp_path)
    assert results.missing("one", [RUN], kept) == [RUN]
    results.keep("one", {**RUN.key, "best": 1 / 3}, RUN.key, kept)
    results.keep("one", {**RUN.key, "best": 0.5}, RUN.key, kept)
    other = replace(RUN, seed=1)
    results.keep("one", {**other.key, "best": 1 / 3}, other.key, kept)
    assert [row["best"] for row in results.read("one", kept)] == [0.5, 0.33333]
    assert results.missing("one", [RUN, other, replace(RUN, seed=2)], kept) == [replace(RUN, seed=2)]
    assert list(kept.read()) == ["one"]
    assert kept.read()["one"].machine["cores"] >= 1


def sent(method: str, rule: str, updates: int | None, size: int) -> dict[str, object]:
    reached = None if updates is None else updates * size
    return {
        **replace(RUN, method=method, rule=rule).key,  # type: ignore[arg-type]
        "updates_to_target": updates,
        "entries": reached,
        "update_bytes": reached,
        "frame_bytes": reached,
        "pickled_bytes": reached,
        "updates": 40_000,
        "start": "together",
        "best": 0.96,
        "trouble": "",
        "curve": [],
    }


def test_the_headline_compares_what_was_sent() -> None:
    rows = {"headline": [sent("asgd", "update", 40_000, 100), sent("adacomp-1", "parameter", 20_000, 1)]}
    assert headline(rows)["entries_times_fewer_cycles"] == 200
    assert headline(rows)["updates_asgd_cycles"] == 40_000
    rows["headline"][0] = sent("asgd", "update", None, 100)
    assert "entries_times_fewer_cycles" not in headline(rows)
    assert headline({}) == {}


def test_the_best_of_a_method_is_over_rates_and_rules_and_all_of_one_seed() -> None:
    rows = {
        "headline": [sent("asgd", "update", 40_000, 100), sent("asgd", "update", 20_000, 100) | {"seed": 1}],
        "tuned": [sent("asgd", "none", 32_000, 100), sent("asgd", "none", None, 100) | {"rate": 0.5}],
    }
    assert tables.as_the_paper(rows, "asgd")["updates_to_target"] == 40_000  # type: ignore[index]
    rows["tuned"][0] |= {"updates_to_target": 45_000}
    assert tables.best(rows, "asgd")["rule"] == "update"  # type: ignore[index]
    rows["tuned"][0] |= {"updates_to_target": 25_000}
    assert tables.best(rows, "asgd")["rule"] == "none"  # type: ignore[index]
    assert tables.best(rows, "adacomp-1") is None
    assert "| uniform cycles | ASGD | 40,000 |" in tables.handicap(rows)


def test_tables_say_what_was_not_reached() -> None:
    made = tables.headline({"headline": [sent("comp-asgd-1", "update", None, 1)]})
    assert "| Comp-ASGD, 1 % | uniform cycles | together | α/τ | 0.1 | 0 | not in 40,000 (96.0 % at best) |" in made
    assert (tables.amount(1.33e9), tables.amount(150.2e6), tables.amount(8.4e6)) == ("1.33 GB", "150 MB", "8.40 MB")
    assert tables.power(4.66e7) == "4.66·10⁷"
    lost = sent("asgd", "none", None, 1) | {"trouble": "not finite", "updates": 5}
    assert "| 0 | lost after 5 (96.0 % at best) |" in tables.tuned({"tuned": [lost]})
    with pytest.raises(Misuse, match="a table 'nothing'"):
        PAPER.filled("<!-- table: nothing -->\n<!-- end -->", {})


def test_the_readme_is_what_the_results_say() -> None:
    assert PAPER.filled(PAPER.readme.read_text(), PAPER.store.read()) == PAPER.readme.read_text()


def test_every_table_and_plot_of_the_readme_is_there() -> None:
    text = PAPER.readme.read_text()
    assert all(f"<!-- table: {name} -->" in text for name in tables.TABLES)
    assert all(f"({name}.png)" in text and (PAPER.folder / f"{name}.png").exists() for name in plots.PLOTS)


def test_the_roles_are_asked_for_the_papers_algorithm() -> None:
    plan = roles.plan_of(quick=False)
    assert (plan["pace"], plan["staleness"], plan["codec"], plan["workers_min"]) == ("async", "parameter", "top1%", 200)


@pytest.mark.needs_data
@pytest.mark.parametrize(("start", "lost"), [("in turn", False), ("together", True)])
def test_a_tenth_of_each_tensor_is_lost_only_if_all_begin_together(start: Start, lost: bool) -> None:
    run = replace(experiments.ADACOMP_10, start=start, updates_max=800, every=800, wanted=2.0)
    row = Course(test_images=1_000).measured(run, say=lambda text: None)
    assert bool(row["trouble"]) is lost


@pytest.mark.needs_data
def test_one_method_from_end_to_end() -> None:
    command = (sys.executable, "-m", "papers.adacomp", "--quick", "--only", "comp-asgd-1", "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["quick"] is True
    (row,) = told["rows"]["quick"]
    assert row["updates"] == 300
    assert row["best"] > 0.2
