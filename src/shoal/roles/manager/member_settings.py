"""Members as operators set them: who is held back, whose card is signed, what a node is labelled.

A part of the manager. A setting counts whether its node is here or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.roles.events import MemberHeld
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, NodeRecord
from shoal.roles.manager.failover import Failover


class MemberSettings:
    def __init__(
        self,
        machine: Machine,
        cluster: ClusterState,
        appointments: Appointments,
        failover: Failover,
        *,
        held: Mapping[str, str],
        cards: Mapping[str, bytes] | None,
        labels: Mapping[str, tuple[str, ...]],
        schedule: Callable[[], None],
    ) -> None:
        """``cards``: those of members that have one, or None if every node may be in sealed groups with signed members,
        as in a simulation. ``schedule``: gives jobs their leaders and workers after a change."""
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        self._failover = failover
        #: Nodes that operators hold back.
        self.held = dict(held)
        self._cards = dict(cards) if cards is not None else None
        self._labels = dict(labels)
        self._schedule = schedule

    def newcomer(self, name: str) -> NodeRecord:
        """Return the record of a node that connects for the first time since the manager started."""
        node = NodeRecord(node=name, held=self.held.get(name))
        if self._cards is not None:
            node.card = self._cards.get(name, b"")
            node.is_signed = bool(node.card)
        node.labels = self._labels.get(name, ())
        return node

    def on_held(self, event: MemberHeld) -> None:
        """Apply the settings of a member. A held node keeps its lease: its leader lets it go when the lease is done, so
        that nothing is lost."""
        if event.hold == "revoked":
            self._on_revoked(event)
            return
        hold = event.hold or None
        if hold is not None:
            self.held[event.node] = hold
        else:
            self.held.pop(event.node, None)
        node = self._cluster.nodes.get(event.node)
        self._set_card(event.node, node, event.card)
        self._set_labels(event.node, node, event.labels)
        if node is None or node.held == hold:
            return
        node.held = hold
        what = node.held_back or "may be given work"
        kind = "device.held" if node.held_back else "device.readmitted"
        self._machine.record(kind, f"{event.node} {what}" + (f": {event.reason}" if event.reason else ""))
        if hold is not None:
            self._appointments.release([event.node])
            self._appointments.transfer_from(node)
        else:
            self._cluster.look(node)
            self._schedule()

    def _on_revoked(self, event: MemberHeld) -> None:
        was_leader = bool(self._cluster.led_by(event.node))
        self._appointments.bar_everywhere(event.node, event.reason)
        self._failover.on_lost(event.node, event.reason, is_certain=True)
        if was_leader:
            self._schedule()

    def _set_card(self, name: str, node: NodeRecord | None, card: bytes) -> None:
        """Apply a card that an operator signed. A node that works under an older card begins its job again."""
        if self._cards is None or self._cards.get(name, b"") == card:
            return
        if card:
            self._cards[name] = card
        else:
            self._cards.pop(name, None)
        if node is None:
            return
        node.card, node.is_signed = card, bool(card)
        self._machine.record("card.changed", f"{name} {'has a new card' if card else 'has no card any more'}")
        if node.job is not None and self._cluster.jobs[node.job].spec.plan.believes.has_signed_members:
            self._cluster.called_back.add(name)
            self._appointments.release([name])
        self._schedule()

    def _set_labels(self, name: str, node: NodeRecord | None, labels: tuple[str, ...]) -> None:
        """Apply an operator's labels. A job whose plan no longer takes the node lets it go after its lease."""
        if self._labels.get(name, ()) == labels:
            return
        self._labels[name] = labels
        if node is None:
            return
        node.labels = labels
        self._machine.record("device.labelled", f"{name} is labelled {', '.join(labels) or 'as it says itself'}")
        if node.job is not None and not node.may_stay_in(self._cluster.jobs[node.job]):
            self._cluster.called_back.add(name)
            self._appointments.release([name])
        self._appointments.transfer_from(node)
        self._schedule()
