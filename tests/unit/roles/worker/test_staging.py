"""Values come to a worker in parts, from its aggregators: it trains on a version once it is whole, and once only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.roles.actions import Action, Record, Send, StageModel, Train
from shoal.roles.events import Connected, LinkMeasured, Prepared, Received, Started, TrainerFailed
from shoal.roles.worker.staging import Staging
from shoal.roles.worker.worker import Worker
from shoal.wire.messages import Hop, JobSpec, Message, ModelShard, Ready, Route, Work

ROUTE = Route(
    job="digits",
    term=1,
    formation=1,
    hops=(Hop(node="pi", endpoint="pi:1", start=0, stop=2), Hop(node="pa", endpoint="pa:1", start=2, stop=5)),
)


def values(node: str = "pi", *, version: int = 3, **changes: Any) -> ModelShard:
    start, stop = {"pi": (0, 2), "pa": (2, 5)}[node]
    given: dict[str, Any] = {"tensors": {"model": np.arange(start, stop, dtype=np.float32)}}
    return ModelShard(job="digits", term=1, formation=1, version=version, start=start, stop=stop, **given | changes)


def work(*, version: int = 3, lease: int = 1) -> Work:
    return Work(
        job="digits",
        term=1,
        lease=lease,
        kind="train",
        version=version,
        batches=(4,),
        deadline_s=60.0,
        formation=1,
        values_by=1,
    )


def test_a_version_is_whole_once_every_part_of_it_is_there() -> None:
    staging = Staging()
    assert not staging.is_whole(1, 3, ROUTE)
    assert staging.add(values("pi"))
    assert not staging.is_whole(1, 3, ROUTE)
    assert staging.add(values("pa"))
    assert staging.is_whole(1, 3, ROUTE)
    assert not staging.is_whole(1, 4, ROUTE)


def test_a_newer_version_replaces_what_was_there_and_an_older_one_is_of_no_use() -> None:
    staging = Staging()
    staging.add(values("pi"))
    assert staging.add(values("pa", version=4))
    assert not staging.add(values("pa", version=3))
    assert staging.add(values("pi", version=4))
    assert staging.is_whole(1, 4, ROUTE)


def test_what_was_taken_to_train_on_is_not_there_a_second_time() -> None:
    staging = Staging()
    staging.add(values("pi"))
    staging.add(values("pa"))
    assert not staging.is_spent(1, 3, ROUTE)
    staging.spend()
    assert staging.is_spent(1, 3, ROUTE)
    assert not staging.is_whole(1, 3, ROUTE)
    assert not staging.add(values("pi")), "a part of it alone is no model"
    assert staging.add(values("pi", version=4))
    assert not staging.is_spent(1, 4, ROUTE)


class Device:
    """A worker that reaches both aggregators of its route."""

    def __init__(self, spec: JobSpec) -> None:
        self.worker = Worker(spec=spec, leader="home", term=1)
        for event in (Started(), Connected(node="home"), Prepared(), Connected(node="pi"), Connected(node="pa")):
            self.worker.handle(event, 0.0)
        self.hears("home", ROUTE)

    def hears(self, sender: str, message: Message) -> list[Action]:
        return self.worker.handle(Received(sender=sender, message=message), 0.0)


def _said(actions: list[Action]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def test_a_lease_begins_with_the_last_part_of_its_model(make_spec: Callable[..., JobSpec]) -> None:
    device = Device(make_spec())
    assert [type(action) for action in device.hears("pi", values("pi"))] == [StageModel]
    assert not [action for action in device.hears("home", work()) if isinstance(action, Train)]
    stage, *_, train = device.hears("pa", values("pa"))
    assert isinstance(stage, StageModel)
    assert stage.start == 2
    assert isinstance(train, Train)
    assert train.staged


def test_a_lease_whose_values_were_spent_is_answered_with_what_the_worker_holds(
    make_spec: Callable[..., JobSpec],
) -> None:
    """Its trainer died on that very version: the leader must send it whole."""
    device = Device(make_spec())
    device.hears("pi", values("pi"))
    device.hears("pa", values("pa"))
    device.hears("home", work())
    device.worker.handle(TrainerFailed(lease=1, reason="it died"), 0.0)
    device.worker.handle(Prepared(), 0.0)
    actions = device.hears("home", work(lease=2))
    assert _said(actions) == [Ready(job="digits", holds_term=0, holds_version=-1)]
    assert not [action for action in actions if isinstance(action, Train)]


def test_values_that_are_not_what_they_say_are_not_staged(make_spec: Callable[..., JobSpec]) -> None:
    device = Device(make_spec())
    for tensors in ({}, {"model": np.zeros(3, np.float32)}, {"model": np.zeros(2, np.float64)}):
        (record,) = device.hears("pi", values("pi", tensors=tensors))
        assert isinstance(record, Record)
        assert record.reason.startswith("values of pi: ")
    assert [type(action) for action in device.hears("pi", values("pi"))] == [StageModel]


def test_a_worker_says_what_its_link_carries_when_it_is_ready(make_spec: Callable[..., JobSpec]) -> None:
    worker = Worker(spec=make_spec(), leader="home", term=1)
    for event in (Started(), Connected(node="home"), LinkMeasured(down_bytes_per_s=5e6, medium="wifi")):
        assert not _said(worker.handle(event, 0.0))
    (ready,) = _said(worker.handle(Prepared(), 0.0))
    assert ready == Ready(job="digits", down_bytes_per_s=5e6, medium="wifi")
