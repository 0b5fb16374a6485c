"""What is durable: one save at a time, and history that is carried until it is safe."""

from __future__ import annotations

from typing import Any

from shoal.roles.actions import Save
from shoal.roles.leader.checkpointing import Durability
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Applied
from shoal.wire.messages import EvaluationView


def row(batch: int) -> Applied:
    return Applied(epoch=0, batch=batch, version=1, node="a", lease=batch)


def save(durability: Durability, version: int) -> Save | None:
    def snapshot() -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"version": version}

    durability.save(version, snapshot)
    actions = durability._machine.take_actions()
    assert len(actions) <= 1
    return actions[0] if actions else None  # type: ignore[return-value]


def test_a_save_carries_the_history_since_the_last_one() -> None:
    durability = Durability(Machine())
    durability.on_applied([row(0), row(1)])
    first = save(durability, 1)
    assert first is not None
    assert first.applied == (row(0), row(1))
    durability.on_applied([row(2)])
    assert durability.version == -1
    assert not durability.on_saved(1)
    assert durability.version == 1
    second = save(durability, 2)
    assert second is not None
    assert second.applied == (row(2),)


def test_one_save_at_a_time_and_the_wish_is_remembered() -> None:
    durability = Durability(Machine())
    assert save(durability, 1)
    assert save(durability, 2) is None
    assert durability.is_saving
    assert durability.on_saved(1), "another was asked for meanwhile"
    again = save(durability, 3)
    assert again is not None
    assert again.version == 3
    assert not durability.on_saved(3)


def test_what_a_failed_save_carried_is_carried_by_the_next() -> None:
    durability = Durability(Machine())
    view = EvaluationView(version=1, epoch=1, accuracy=0.5, loss=1.0, examples=10, seconds=3.0)
    durability.on_applied([row(0)])
    durability.add_evaluation(view)
    save(durability, 1)
    durability.on_applied([row(1)])
    durability.on_failed("no space")
    assert not durability.is_saving
    again = save(durability, 2)
    assert again is not None
    assert again.applied == (row(0), row(1))
    assert again.evaluations == (view,)


def test_a_save_is_due_when_something_has_been_at_risk_for_long_enough() -> None:
    machine = Machine()
    durability = Durability(machine)
    machine.now_s = 10.0
    durability.start()
    machine.now_s = 99.0
    assert not durability.due(every_s=5.0), "nothing is at risk"
    durability.on_applied([row(0)])
    machine.now_s = 14.9
    assert not durability.due(every_s=5.0)
    machine.now_s = 15.0
    assert durability.due(every_s=5.0)
    save(durability, 1)
    machine.now_s = 16.0
    durability.on_failed("no space")
    machine.now_s = 20.9
    assert not durability.due(every_s=5.0), "it was tried a moment ago"
    machine.now_s = 21.0
    assert durability.due(every_s=5.0)


def test_an_answer_to_another_save_changes_nothing() -> None:
    durability = Durability(Machine())
    durability.on_applied([row(0)])
    save(durability, 3)
    assert not durability.on_saved(2)
    assert durability.is_saving
    assert durability.version == -1
