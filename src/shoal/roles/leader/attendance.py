"""Who is here: workers and hubs that are ready, suspect, lost or back. A part of the leader.

It writes down who came and went, and gives up what a lost node had. Whether leases go out or the topology changes by
it, the leader decides.
"""

from __future__ import annotations

from shoal.roles.events import Liveness, PeerChanged
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.policy import TopologyPolicy
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.wire.messages import FIRST_HELD, Ready


class Attendance:
    def __init__(
        self,
        machine: Machine,
        shared: Shared,
        *,
        leases: Leases,
        aggregation: AggregationController,
        policy: TopologyPolicy,
    ) -> None:
        self._machine = machine
        self._term = shared.term
        self._workers, self._formations, self._shares = shared.workers, shared.formations, shared.shares
        self._leases, self._aggregation, self._policy = leases, aggregation, policy

    def on_ready(self, node: str, message: Ready) -> WorkerRecord:
        """A worker or a hub is there. What it had of this leader before is its own no more."""
        worker = self._workers.find(node)
        if worker is None:
            worker = self._workers.add(node, is_hub=message.is_hub)
            does = "ready to sum up for others (a hub)" if worker.is_hub else "ready"
            self._machine.record("device.joined", f"{node} {does}")
            self._policy.on_workers_changed()
        worker.up_bytes_per_s, worker.down_bytes_per_s = message.up_bytes_per_s, message.down_bytes_per_s
        worker.medium = message.medium
        if worker.is_hub:
            # It may be an aggregator from the next formation on, and is leased nothing.
            self._workers.suspects.discard(node)
        return worker

    def begin(self, worker: WorkerRecord, message: Ready) -> None:
        """A worker asks for its first lease, or for another after it began again."""
        node = worker.node
        held = (message.holds_term, message.holds_version)
        worker.holds = (self._term, 0) if held == FIRST_HELD else held
        worker.device = message.state
        self._aggregation.on_ready(node)
        self._shares.on_changed()
        self._leases.give_up(node, fate=f"was given up: {node} asked for new work")
        self._workers.make_idle(worker)

    def came_back(self, node: str) -> WorkerRecord:
        """It was thought lost, and is back with an update or a result."""
        worker = self._workers.add(node)
        self._policy.on_workers_changed()
        self._formations.on_joined(node)
        return worker

    def on_peer(self, worker: WorkerRecord, event: PeerChanged) -> bool:
        """A node is suspect, lost, or responds again. Return whether the present formation is broken by it."""
        node = worker.node
        if event.state is Liveness.SUSPECT:
            worker.reason = event.reason
            self._workers.suspects.add(node)
            self._machine.record("worker.suspected", f"{node}: {event.reason}")
            return self._aggregation.on_suspect(node, event.reason)
        self._workers.suspects.discard(node)
        if event.state is Liveness.LOST:
            self._lose(worker, event.reason)
            return True
        if not worker.is_hub:
            # A worker that is left out is told nothing more: its last reason still holds.
            worker.reason = worker.told if worker.left_out else None
            # It may be missing in a formation that was set up meanwhile.
            self._formations.on_joined(node)
        return False

    def _lose(self, worker: WorkerRecord, reason: str) -> None:
        """A node is gone. The sums that it had are made again, by another or by the leader."""
        node = worker.node
        self._workers.remove(node)
        self._machine.record("worker.lost", f"{node}, a hub: {reason}" if worker.is_hub else f"{node}: {reason}")
        self._aggregation.on_worker_lost(node, reason)
        if not worker.is_hub:
            self._leases.give_up(node, fate=f"was taken back: {node} is lost; its batches go to other devices")
