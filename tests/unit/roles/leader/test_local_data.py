"""Jobs of devices' own examples: how much each trains on, who is told to come again, and what new examples say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, Record, Save, Send
from shoal.roles.events import Received, Saved, Started
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.local_data import EMPTY_S, LENT_KEPT, NotNow, Online, features_of, joules_allowed
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.roles.node.checkpoint_transfer import packed, unpacked, version_of
from shoal.scheduling.profile.logrls import DEVICES_LASTING
from shoal.wire.messages import DeviceState, Failed, JobSpec, Message, Ready, Update, UpdateRefused, Wait, Work

ENDLESS = Until(endless=True)
HELD = DeviceState(kind="pi", memory_total_mb=1024.0, examples=500)


def update(lease: int = 1, **told: Any) -> Update:
    given: dict[str, Any] = {"term": 1, "version": 0, "examples": 64, "train_s": 0.5} | told
    return Update(job="digits", lease=lease, **given)


def sized(**changes: Any) -> Online:
    return Online(Machine(), Plan(data="local", work="sized", budget_s=1.0, **changes))


def at(online: Online, now_s: float) -> Online:
    """The same, at this time."""
    online._machine.now_s = now_s
    return online


def member(device: DeviceState | None = HELD) -> WorkerRecord:
    return WorkerRecord(node="pi", device=device)


def test_leased_work_is_what_the_plan_says() -> None:
    online = Online(Machine(), Plan(data="local", batch_size=16, lease_batches=4))
    assert online.wants(member(), None) == (64, None)
    assert online.examples_max(7) == 64


def charged(joules: float | None, *, node: str = "phone") -> WorkerRecord:
    return WorkerRecord(node=node, device=replace(HELD, battery_joules=joules))


def learned(online: Online, worker: WorkerRecord, *, joules_per_example: float, leases: int = 30) -> Online:
    """After leases that took this much energy per example."""
    for _ in range(leases):
        asked = online.wants(worker, None)
        assert not isinstance(asked, NotNow)
        told = update(examples=asked[0], joules=asked[0] * joules_per_example, state=worker.device)
        online.learn(worker, told)
    return online


def by_battery(**changes: Any) -> Online:
    plan: dict[str, Any] = {"budget_battery_percent": 0.075, "batch_size": 16, "lease_batches": 4} | changes
    return Online(Machine(), Plan(data="local", work="sized", **plan))


def records(online: Online) -> list[str]:
    return [action.reason for action in online._machine.take_actions() if isinstance(action, Record)]


@pytest.mark.parametrize(("battery_j", "most"), [(40_000.0, 300), (20_000.0, 150)])
def test_a_lease_takes_a_share_of_the_battery(battery_j: float, most: int) -> None:
    # 0.075 % of 40 kJ, a phone's 11 Wh, are 30 J: 300 examples of 0.1 J.
    phone = charged(battery_j)
    online = learned(by_battery(), phone, joules_per_example=0.1)
    asked = online.wants(phone, None)
    assert not isinstance(asked, NotNow)
    assert 0.7 * most <= asked[0] <= most
    assert str(asked[1]).startswith("energy: ")
    assert not records(online)


@pytest.mark.parametrize("battery_j", [None, 0.0, -5.0, 1e12])
def test_a_device_without_a_battery_has_no_such_budget_and_it_is_recorded_once(battery_j: float | None) -> None:
    online = by_battery()
    board = charged(battery_j, node="pi")
    for _ in range(2):
        assert online.wants(board, None) == (64, "no budget applies to it")
    assert records(online) == [
        "pi reports no battery, so that budget_battery_percent = 0.075 does not apply to it; its leases have"
        " lease_batches batches"
    ]


def test_beside_other_budgets_the_smallest_holds_and_is_what_is_left_without_a_battery() -> None:
    both = Plan(data="local", work="sized", budget_joules=10.0, budget_battery_percent=0.075)
    assert joules_allowed(both, 40_000.0) == 10.0
    assert joules_allowed(both, 4_000.0) == pytest.approx(3.0)
    assert joules_allowed(both, None) == 10.0
    assert joules_allowed(replace(both, budget_joules=0.0), None) is None
    online = by_battery(budget_s=1.0, budget_joules=3.0)
    online.wants(charged(None, node="pi"), None)
    assert [reason.rpartition("; ")[2] for reason in records(online)] == ["budget_s = 1 and budget_joules = 3"]


def test_a_device_without_examples_is_asked_again() -> None:
    told = sized().wants(member(DeviceState()), None)
    assert told == NotNow("it has no examples of its own yet", EMPTY_S)


def test_sized_work_grows_into_its_budget() -> None:
    online, worker = sized(), member()
    sizes: list[int] = []
    for lease in range(1, 9):
        wanted = at(online, float(lease)).wants(worker, None)
        assert isinstance(wanted, tuple)
        examples, why = wanted
        assert why
        online.on_lent(lease, examples)
        assert online.examples_max(lease) == examples
        sizes.append(examples)
        # A hundred examples a second.
        online.learn(worker, update(lease, examples=examples, train_s=examples / 100, state=HELD))
        online.count_merged(lease, update(lease))
    assert sizes[0] < sizes[-1]
    assert 40 <= sizes[-1] <= 110, sizes


def test_a_device_that_is_slower_than_others_gets_less_until_it_is_done_in_time(begin: Callable[..., Story]) -> None:
    """Two hundred examples a second, and then eighty: a lease that has no time left is a measure too."""
    story = begin(work="sized", budget_s=2.0, lease_s=3.0, until=Until(epochs=99))
    (work,) = story.says(Ready(job="digits", state=HELD))
    now_s = 1.0
    for _ in range(6):
        assert isinstance(work, Work)
        now_s += work.examples / 200
        (work,) = story.says(delta(work, train_s=work.examples / 200, state=HELD), now_s)
    assert isinstance(work, Work)
    asked = [work.examples]
    while work.examples / 80 > 3.0:
        now_s += 3.0
        story.says(Failed(job="digits", term=1, lease=work.lease, reason="no result within the lease's 3.0 s"), now_s)
        now_s += 30.0
        (work,) = story.says(Ready(job="digits", state=HELD), now_s)
        assert isinstance(work, Work)
        asked.append(work.examples)
    assert asked[0] > 300
    assert all(before > after for before, after in itertools.pairwise(asked)), asked


def test_a_lease_that_failed_early_is_no_measure(begin: Callable[..., Story]) -> None:
    story = begin(work="sized", budget_s=2.0, lease_s=3.0, until=Until(epochs=99))
    (work,) = story.says(Ready(job="digits", state=HELD))
    assert isinstance(work, Work)
    story.says(Failed(job="digits", term=1, lease=work.lease, reason="the task raised"), 1.1)
    (again,) = story.says(Ready(job="digits", state=HELD), 40.0)
    assert isinstance(again, Work)
    assert again.examples == work.examples


def test_what_is_known_of_devices_goes_to_the_next_leader() -> None:
    online, worker = sized(budget_joules=50.0), member()
    for lease in range(1, 6):
        wanted = at(online, float(lease)).wants(worker, None)
        assert isinstance(wanted, tuple)
        spent = {"train_s": wanted[0] / 100, "joules": wanted[0] / 10}
        online.learn(worker, update(lease, examples=wanted[0], state=HELD, **spent))
    after, anew = sized(budget_joules=50.0), sized(budget_joules=50.0)
    assert after.restore(online.snapshot()) is None
    asked = [at(each, 100.0).wants(member(), None) for each in (online, after, anew)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]
    assert anew.restore({"shoal.profile.time.margins": np.zeros(2)}) == "the snapshot has no devices"
    assert Online(Machine(), Plan(data="local")).snapshot() == {}
    assert Online(Machine(), Plan(data="local")).restore(online.snapshot()) is None, (
        "another plan: what was learned is of no use"
    )


def test_what_goes_to_the_next_leader_is_small_however_many_devices_there_were() -> None:
    online = sized()
    for number in range(DEVICES_LASTING + 500):
        worker = WorkerRecord(node=f"device-{number:05}", device=HELD)
        online.learn(worker, update(examples=10, train_s=0.1, state=HELD))
    learned = online.snapshot()
    assert len(learned["shoal.profile.time.states"]) == DEVICES_LASTING
    assert learned["shoal.profile.time.devices"].tobytes().startswith(b"device-00500"), "those heard last"
    assert sum(array.nbytes for array in learned.values()) < 400_000
    assert sized().restore(learned) is None


def test_who_comes_too_often_is_told_when_to_come_again() -> None:
    online = sized(requests_per_s=0.01)
    first, second = member(), WorkerRecord(node="pa", device=HELD)
    assert isinstance(online.wants(first, None), tuple)
    told = at(online, 1.0).wants(second, None)
    assert isinstance(told, NotNow)
    assert told.retry_after_s > 10
    again = at(online, 2.0).wants(second, None)
    assert isinstance(again, NotNow)
    assert again.retry_after_s == pytest.approx(told.retry_after_s - 1.0), "the same place, however often it asks"


def test_a_lease_that_is_sent_anew_is_still_known() -> None:
    """Its aggregator was lost after it was told of: only once it is in a version is it over."""
    online, worker = sized(), member()
    online.on_lent(3, 200)
    online.learn(worker, update(3))
    assert online.examples_max(3) == 200
    online.count_merged(3, update(3))
    assert online.examples_max(3) == 64


def test_what_was_lent_is_not_remembered_without_end() -> None:
    online = sized()
    for lease in range(LENT_KEPT + 10):
        online.on_lent(lease, 5)
    assert online.examples_max(3) != 5
    assert online.examples_max(LENT_KEPT) == 5


def fresh(examples: int, correct: int, loss_sum: float = 0.0) -> dict[str, Any]:
    """How an update says that new examples did."""
    sums = judged_sums(examples=examples, loss_sum=loss_sum, correct=correct)
    return {"fresh": examples, "fresh_metrics": sums}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (fresh(3, 4), "an accuracy of 4 right of 3"),
        (fresh(65, 4), "65 new examples in a lease of 64"),
        (fresh(-1, -2), "-1 new examples"),
        (fresh(1, 1, 1e300), "a loss of 1e"),
        (fresh(1, 1) | {"fresh": 0}, "metric accuracy weighs 1 over 0 examples"),
        ({"labels": (1, 2)}, "where the plan does not allow it"),
    ],
)
def test_what_cannot_be_is_refused(told: dict[str, Any], why: str) -> None:
    with pytest.raises(PeerViolation, match=why):
        sized().check(update(**told), examples_max=64)


def test_new_examples_make_an_evaluation_once() -> None:
    online = sized()
    assert online.view(version=3, epoch=1, seconds=9.0) is None
    online.count_merged(1, update(1, **fresh(10, 7, 5.0)))
    online.count_merged(2, update(2, **fresh(30, 23, 7.0)))
    view = online.view(version=3, epoch=1, seconds=9.0)
    assert view is not None
    assert (view.version, view.examples, view.accuracy, view.loss) == (3, 40, 0.75, 0.3)
    assert online.view(version=4, epoch=2, seconds=9.0) is None


def test_devices_must_agree_on_what_a_metric_of_new_examples_is() -> None:
    online = sized()
    online.count_merged(1, update(1, **fresh(10, 7)))
    other = tuple(replace(metric, kind="ratio") for metric in judged_sums(examples=5, loss_sum=1.0, correct=5))
    with pytest.raises(PeerViolation, match="metric accuracy is a mean here and a ratio there"):
        online.check(update(2, fresh=5, fresh_metrics=other), examples_max=64)


def test_figures_that_no_device_has_are_not_known() -> None:
    state = DeviceState(kind="pi", temperature_c=2000.0, load=0.5, battery=-3.0)
    features = features_of("attic", state)
    assert (features.device, features.kind, features.load) == ("attic", "pi", 0.5)
    assert features.temperature_c is None
    assert features.battery is None
    assert features_of("attic", None).kind == ""


# In a leader's hands -----------------------------------------------------------------------------------------------


class Story:
    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (2,), "parameter")])
        self.leader = Leader(spec=spec, layout=layout, model=np.zeros(2, np.float32), term=1, manager="home")
        self.actions: list[Action] = self.leader.handle(Started(), 0.0)

    def says(self, message: Message, now_s: float = 1.0, node: str = "pi") -> list[Message]:
        self.actions = self.leader.handle(Received(sender=node, message=message, size_bytes=0), now_s)
        return [action.message for action in self.actions if isinstance(action, Send) and action.to == node]


@pytest.fixture
def begin(make_spec: Callable[..., JobSpec]) -> Callable[..., Story]:
    def make(**plan: Any) -> Story:
        return Story(make_spec(examples=0, data="local", lease_batches=2, epoch_leases=2, pace="async", **plan))

    return make


def delta(work: Work, **told: Any) -> Update:
    given = {"examples": work.examples, "tensors": {"delta": np.ones(2, np.float32)}} | told
    return update(work.lease, version=work.version, **given)


def test_a_lease_is_one_of_an_epoch_and_names_its_examples(begin: Callable[..., Story]) -> None:
    story = begin(until=Until(epochs=9))
    (work,) = story.says(Ready(job="digits", state=HELD))
    assert isinstance(work, Work)
    assert (work.batches, work.examples) == ((0,), 2)
    (second,) = story.says(delta(work, **fresh(2, 1), state=HELD), 2.0)
    assert isinstance(second, Work)
    assert second.batches == (1,)
    story.says(delta(second, **fresh(2, 2), state=HELD), 3.0)
    told = [action.reason for action in story.actions if isinstance(action, Record) and action.kind == "job.evaluated"]
    assert told == ["epoch 1: accuracy 75.00 %, loss 0 (version 2, 4 new examples before they were trained on)"]
    assert story.leader.progress().accuracy == 0.75


def test_sized_work_on_shared_examples_leases_complete_batches_each_once(make_spec: Callable[..., JobSpec]) -> None:
    plan: dict[str, Any] = {"work": "sized", "budget_s": 4.0, "batch_size": 4, "pace": "async"}
    story = Story(make_spec(examples=400, until=Until(epochs=1), **plan))
    sensed = DeviceState(kind="pi", memory_total_mb=1024.0)
    (work,) = story.says(Ready(job="digits", state=sensed))
    assert isinstance(work, Work)
    # Which examples they are follows from the batches.
    assert work.examples == 0
    sizes, trained = [len(work.batches)], list(work.batches)
    for turn in range(1, 100):
        examples = 4 * len(work.batches)
        # Figures about examples that it saw for the first time are ignored: all devices have these.
        told = delta(work, examples=examples, train_s=0.1 * examples, state=sensed, **fresh(1, 1))
        works = [each for each in story.says(told, float(turn)) if isinstance(each, Work)]
        if not works:
            break
        (work,) = works
        sizes.append(len(work.batches))
        trained += work.batches
    assert sorted(trained) == list(range(100))
    # Ten examples a second, of which about forty fit the budget.
    assert 7 <= max(sizes) <= 10
    assert "new examples" not in str(story.actions)


def test_a_shared_lease_has_a_batch_however_small_the_budget_is(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec(examples=400, work="sized", budget_s=0.01, batch_size=64))
    (work,) = story.says(Ready(job="digits"))
    assert isinstance(work, Work)
    assert work.batches == (0,)


def test_more_examples_than_were_lent_are_refused(begin: Callable[..., Story]) -> None:
    story = begin()
    (work,) = story.says(Ready(job="digits", state=HELD))
    assert isinstance(work, Work)
    said = story.says(delta(work, examples=3), 2.0)
    refused = [message.reason for message in said if isinstance(message, UpdateRefused)]
    assert refused == ["Update.examples is 3; the lease has 2"]


def test_who_has_nothing_is_told_when_to_ask_again(begin: Callable[..., Story]) -> None:
    (wait,) = begin().says(Ready(job="digits", state=DeviceState()))
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.retry_after_s) == ("it has no examples of its own yet", EMPTY_S)


def scales(story: Story, *, late: int) -> tuple[float, float]:
    """The weights of two updates this late: of labels that all have, and of labels that nobody else has."""
    course = story.leader._training
    (work,) = story.says(Ready(job="digits", state=HELD))
    assert isinstance(work, Work)
    lease = course.ledger.get(work.lease)
    assert lease is not None
    course.version = late
    common, rare = (delta(work, labels=labels) for labels in ((2, 0), (0, 2)))
    for _ in range(60):
        course.scale_of(lease, common)
        course.lateness.seen(9)
    return course.scale_of(lease, common), course.scale_of(lease, rare)


def test_an_update_of_rare_labels_is_raised_again(begin: Callable[..., Story]) -> None:
    # T = 9 + 3 = 12, and 48 > 1.5 T. The least weight is (1/7)², raised tenfold for labels that were never seen.
    common, rare = scales(begin(staleness="similar", share_labels=True), late=48)
    assert common == pytest.approx(1 / 49)
    assert rare == pytest.approx(10 / 49)


def test_an_update_that_is_not_an_outlier_is_not_raised(begin: Callable[..., Story]) -> None:
    common, rare = scales(begin(staleness="similar", share_labels=True), late=9)
    assert common == rare == pytest.approx(7**-1.5)


@pytest.mark.parametrize("rule", ["none", "inverse", "root", "exponential", "parameter"])
def test_labels_that_are_shared_change_no_weight_under_another_rule(begin: Callable[..., Story], rule: str) -> None:
    common, rare = scales(begin(staleness=rule, share_labels=True), late=48)
    assert common == rare == scales(begin(staleness=rule), late=48)[0]


def test_the_next_leader_sizes_as_the_last_one_would_have(make_spec: Callable[..., JobSpec]) -> None:
    spec = make_spec(examples=0, data="local", work="sized", budget_s=1.0, epoch_leases=4, pace="async", until=ENDLESS)
    story = Story(spec)
    story.leader.handle(Saved(version=0), 0.5)
    (work,) = story.says(Ready(job="digits", state=HELD))
    sizes, saves = [], []
    for turn in range(4):
        assert isinstance(work, Work)
        sizes.append(work.examples)
        told = delta(work, train_s=work.examples / 100, state=HELD)
        work = next(each for each in story.says(told, 2.0 + turn) if isinstance(each, Work))
        saves += [action for action in story.actions if isinstance(action, Save)]
    assert sizes[0] < sizes[-1]
    checkpoint = unpacked(packed(version_of(saves[-1]), job="digits", term=1))
    assert checkpoint is not None
    for broken in (False, True):
        after = Story(spec)
        tensors = dict(checkpoint.tensors)
        if broken:
            tensors["shoal.profile.time.states"] = tensors["shoal.profile.time.states"] * 1e9
        after.leader.restore(tensors=tensors, state=checkpoint.state)
        actions = after.leader.handle(Started(), 10.0)
        noted = [action.reason for action in actions if isinstance(action, Record) and action.kind == "profiles.reset"]
        (again,) = after.says(Ready(job="digits", state=HELD), 11.0)
        assert isinstance(again, Work)
        if broken:
            assert noted == ["devices are measured again: the snapshot has a device whose filter state is out of range"]
            assert again.examples == sizes[0]
        else:
            assert not noted
            assert again.examples == work.examples
