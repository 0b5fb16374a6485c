"""A sealed troupe whose devices also sum up for each other: trees and shards, and nothing between but what they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sealed_troupe import HOME, SIZE, SealedTroupe, SealingDevice, a_plan

from dst.sealed_shape_oracle import SealedShapeOracle
from shoal.roles.actions import Action, Send, StageModel, Train
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import Connected, Disconnected, Event, Received
from shoal.roles.worker.staging import put
from shoal.sim.invariants import Violation
from shoal.sim.observe import Step
from shoal.wire.messages import (
    AggregatorReady,
    Message,
    Reduce,
    RelayModel,
    Route,
    SetUpAggregator,
    TearDown,
    UpdateShard,
)

NAMES = [f"d{number}" for number in range(9)]

#: What a message takes: workers that came are left alone for a while before they are arranged.
_STEP_S = 0.02


class ShapedTroupe(SealedTroupe):
    def __init__(self, topology: str, **changes: object) -> None:
        #: (device, formation) -> the aggregator there.
        self.aggregators: dict[tuple[str, int], Aggregator] = {}
        self.staged: dict[str, np.ndarray] = {}
        #: (worker, aggregator) that have a session.
        self.sessions: set[tuple[str, str]] = set()
        self.shape_oracle = SealedShapeOracle()
        #: Version -> the leader's model.
        self.models: dict[int, np.ndarray] = {}
        # Five versions an epoch, of nine devices each.
        super().__init__(a_plan(**{"topology": topology, "aggregators": 3, "epoch_leases": 45, **changes}))  # type: ignore[arg-type]

    def loses(self, *nodes: str) -> None:
        for node in nodes:
            self.aggregators = {key: each for key, each in self.aggregators.items() if key[0] != node}
            for pair in sorted(self.sessions):
                if node in pair:
                    self.sessions.discard(pair)
                if pair[1] == node and pair[0] in self.devices and pair[0] != node:
                    self._works(pair[0], Disconnected(node=node, reason="it is gone"))
            super().loses(node)

    def is_aggregator(self, node: str) -> bool:
        return node in self.leader.aggregators

    def forms(self) -> None:
        """Until the shape of the plan holds."""
        self.run(lambda: bool(self.leader.aggregators))
        assert self.leader.aggregators, self.records[-5:]

    def run_to_word(self, is_it: Callable[[Message], bool]) -> tuple[str, str, Message]:
        """Until such a message was said, and was not heard."""
        self.run(lambda: any(is_it(message) for *_, message in self.queue))
        return next(each for each in self.queue if is_it(each[2]))

    def is_exact(self, *, versions: int, atol: float = 1e-5) -> None:
        """So many versions more, each the mean of what its history names, but for the rounding to words: a device that
        is missing moves a version by a thousand times as much."""
        first = self.leader.version
        self.run(lambda: self.leader.version >= first + versions, most=20_000)
        if self.leader.version < first + versions:
            raise Violation(f"no version after {self.leader.version}: {[r.reason for r in self.records[-5:]]}")
        for version in range(1, self.leader.version + 1):
            moved = self.models[version].astype(np.float64) - self.models[version - 1]
            if not np.allclose(moved, self.mean_of(version), atol=atol):
                raise Violation(f"version {version} is not the sum of its updates")

    # What drivers do -------------------------------------------------------------------------------------

    def _observe(self, step: Step) -> None:
        super()._observe(step)
        self.shape_oracle.step(step)
        if step.role == "leader":
            self.models.setdefault(self.leader.version, np.array(self.leader.model))

    def _deliver(self, sender: str, to: str, message: Message) -> None:
        self.now_s += _STEP_S
        super()._deliver(sender, to, message)

    def _hears(self, node: str, event: Received) -> None:
        match event.message:
            case SetUpAggregator() as form:
                key = (node, form.formation)
                if key in self.aggregators:
                    self._sums(key, event)
                    return
                self.aggregators[key] = Aggregator(form, node=node, leader=HOME)
                ready = AggregatorReady(job="job", term=form.term, formation=form.formation, endpoint="127.0.0.1:9")
                self.queue.append((node, HOME, ready))
            case Reduce() | RelayModel() | UpdateShard() as message:
                self._sums((node, message.formation), event)
            case Route() as route:
                self._works(node, event)
                for hop in route.hops:
                    if hop.node in self.devices:
                        self.sessions.add((node, hop.node))
                        self._works(node, Connected(node=hop.node))
            case TearDown() as message:
                for key in [key for key in self.aggregators if key[0] == node and key[1] <= message.formation]:
                    del self.aggregators[key]
                self._works(node, event)
            case _:
                self._works(node, event)

    def _sums(self, key: tuple[str, int], event: Event) -> None:
        aggregator = self.aggregators.get(key)
        if aggregator is None:
            return
        actions = aggregator.handle(event, self.now_s)
        self._observe(Step(self.now_s, key[0], "aggregator", "job", event, actions))
        for action in actions:
            if isinstance(action, Send) and (action.to == HOME or action.to in self.devices):
                self.queue.append((key[0], action.to, action.message))

    def _acts(self, node: str, device: SealingDevice, action: Action) -> None:
        match action:
            case Send() if action.to != HOME:
                if action.to in self.devices:
                    self.queue.append((node, action.to, action.message))
            case StageModel():
                assert device.model is not None or not action.changes
                present = device.model if device.model is not None else np.zeros(SIZE, dtype=np.float32)
                put(action, self.staged.setdefault(node, np.zeros(SIZE, dtype=np.float32)), present)
            case _:
                super()._acts(node, device, action)

    def _trains(self, node: str, device: SealingDevice, action: Train) -> None:
        if action.staged:
            device.model = np.array(self.staged[node])
        if action.changes:
            raise AssertionError("nothing is coded here")
        if device.model is not None or action.tensors:
            expected = self.models[action.version]
            given = action.tensors["model"] if action.tensors else device.model
            if not np.array_equal(expected, given):
                raise Violation(f"{node} trains on another model than version {action.version}")
        super()._trains(node, device, action)
