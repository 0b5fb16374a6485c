"""What operators set for members counts for nodes that are here and for those that come later."""

from __future__ import annotations

from typing import Any, cast

from shoal.roles.events import Liveness, MemberHeld, Started
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, NodeRecord
from shoal.roles.manager.failover import Failover
from shoal.roles.manager.member_settings import MemberSettings


class Calls:
    """Writes down which of its methods are called, for which node."""

    def __init__(self, made: list[tuple[str, str]]) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        def call(what: Any, *_: object, **__: object) -> None:
            node = what if isinstance(what, str) else what.node if isinstance(what, NodeRecord) else what[0]
            self._made.append((name, node))

        return call


class Desk(Machine):
    def __init__(self, *, cards: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.cluster = ClusterState(())
        self.made: list[tuple[str, str]] = []
        calls = Calls(self.made)
        self.settings = MemberSettings(
            self,
            self.cluster,
            cast(Appointments, calls),
            cast(Failover, calls),
            held={"late": "drained"},
            cards=cards,
            labels={"late": ("site=north",)},
            schedule=lambda: self.made.append(("schedule", "")),
        )
        self.handle(Started(), 0.0)

    def on_event(self, event: object) -> None:
        pass

    def comes(self, name: str) -> NodeRecord:
        node = self.cluster.nodes[name] = self.settings.newcomer(name)
        node.state = Liveness.ALIVE
        return node

    def told(self) -> list[tuple[str, str]]:
        made = list(self.made)
        self.made.clear()
        return made


def held(node: str, hold: str = "", **other: Any) -> MemberHeld:
    return MemberHeld(node=node, hold=hold, **other)


def test_a_node_that_comes_has_what_was_set_before() -> None:
    desk = Desk(cards={"late": b"card"})
    late, other = desk.comes("late"), desk.comes("other")
    assert (late.held, late.labels, late.card, late.is_signed) == ("drained", ("site=north",), b"card", True)
    assert (other.held, other.labels, other.card, other.is_signed) == (None, (), b"", False)
    assert Desk().comes("other").is_signed, "in a simulation every node may seal"


def test_a_held_node_is_released_and_one_that_is_not_held_any_more_gets_work() -> None:
    desk = Desk()
    desk.comes("pi")
    desk.settings.on_held(held("pi", "drained", reason="new disk"))
    assert desk.told() == [("release", "pi"), ("transfer_from", "pi")]
    desk.settings.on_held(held("pi", "drained"))
    assert desk.told() == [], "nothing changed"
    desk.settings.on_held(held("pi"))
    assert desk.told() == [("schedule", "")]


def test_a_hold_of_a_node_that_is_not_here_is_kept_for_it() -> None:
    desk = Desk()
    desk.settings.on_held(held("pi", "pending"))
    desk.settings.on_held(held("late", labels=("site=north",)))
    assert desk.told() == []
    assert desk.settings.held == {"pi": "pending"}
    assert desk.comes("pi").held == "pending"


def test_a_revoked_node_is_barred_and_lost_for_certain() -> None:
    desk = Desk()
    desk.comes("pi")
    desk.settings.on_held(held("pi", "revoked", reason="stolen"))
    assert desk.told() == [("bar_everywhere", "pi"), ("on_lost", "pi")]


def test_a_new_card_and_new_labels_count_at_once() -> None:
    desk = Desk(cards={})
    pi = desk.comes("pi")
    desk.settings.on_held(held("pi", card=b"card"))
    assert (pi.card, pi.is_signed) == (b"card", True)
    assert desk.told() == [("schedule", "")]
    desk.settings.on_held(held("pi", labels=("site=south",)))
    assert (pi.is_signed, pi.labels) == (False, ("site=south",))
    assert desk.told() == [("schedule", ""), ("transfer_from", "pi"), ("schedule", "")]
