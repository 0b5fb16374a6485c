"""A leader in a story: a clock that stands still unless moved, what is said to it, and what it says."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import numpy as np

from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.roles.actions import Action, End, Record, Save, Send
from shoal.roles.events import Liveness, PeerChanged, Received, Started, TimerFired
from shoal.roles.leader.gathering.private_sum import Normals, no_chance
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.leases import TICK_S
from shoal.wire.messages import Evaluated, Failed, JobSpec, Message, Progress, Ready, Update, Work

M = TypeVar("M", bound=Message)


class Story:
    """A leader, a clock that stands still unless moved, and what was said."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        term: int = 1,
        size: int = 2,
        saved: Save | None = None,
        normals: Normals = no_chance,
    ) -> None:
        self.layout = Layout.of([("w", (size,), "parameter")])
        model = np.zeros(size, dtype=np.float32)
        self.leader = Leader(spec=spec, layout=self.layout, model=model, term=term, manager="home", normals=normals)
        if saved is not None:
            self.leader.restore(tensors=saved.tensors, state=json.loads(json.dumps(saved.state)))
        self.term = term
        self.now_s = 100.0
        self.actions: list[Action] = []
        self.happens(Started())

    def happens(self, event: Any) -> list[Action]:
        """Handle one event; what follows it is what the story looks at next."""
        self.actions = self.leader.handle(event, self.now_s)
        self.leader._training.ledger.check()
        return self.actions

    def says(self, node: str, message: Message, *, size_bytes: int = 0) -> list[Action]:
        return self.happens(Received(sender=node, message=message, size_bytes=size_bytes))

    def ready(self, *nodes: str) -> None:
        """They come one after the other; what is heard is what all of them were told."""
        heard = [action for node in nodes for action in self.says(node, Ready(job="digits"))]
        self.actions = heard

    def tick(self, after_s: float = TICK_S) -> list[Action]:
        self.now_s += after_s
        return self.happens(TimerFired(name="tick"))

    def lost(self, node: str, reason: str = "silent for 8.0 s") -> list[Action]:
        return self.happens(PeerChanged(node=node, state=Liveness.LOST, reason=reason))

    def update(self, node: str, work: Work, *values: float, **changes: Any) -> list[Action]:
        delta = np.array(values or (1, 1), dtype=np.float32)
        given: dict[str, Any] = {"term": work.term, "lease": work.lease, "version": work.version}
        given |= {"examples": len(work.batches), "loss_sum": 0.5, "tensors": {"delta": delta}}
        return self.says(node, Update(job="digits", **given | changes))

    def evaluated(self, node: str, work: Work, *, correct: int, examples: int = 1000, **changes: Any) -> list[Action]:
        sums = judged_sums(examples=examples, loss_sum=1.0, correct=correct)
        given: dict[str, Any] = {"term": work.term, "lease": work.lease, "version": work.version, "metrics": sums}
        return self.says(node, Evaluated(job="digits", examples=examples, **given | changes))

    def fail(self, node: str, lease: int, reason: str = "out of memory") -> list[Action]:
        return self.says(node, Failed(job="digits", term=self.term, lease=lease, reason=reason))

    def told(self, node: str, kind: type[M]) -> list[M]:
        sent = [action for action in self.actions if isinstance(action, Send) and action.to == node]
        return [action.message for action in sent if isinstance(action.message, kind)]

    def work(self, node: str) -> Work:
        """The one lease this node was just given."""
        (work,) = self.told(node, Work)
        return work

    def records(self, kind: str) -> list[str]:
        return [action.reason for action in self.actions if isinstance(action, Record) and action.kind == kind]

    def save(self) -> Save:
        (save,) = [action for action in self.actions if isinstance(action, Save)]
        return save

    def saves(self) -> int:
        return sum(isinstance(action, Save) for action in self.actions)

    @property
    def ended(self) -> bool:
        return any(isinstance(action, End) for action in self.actions)

    @property
    def model(self) -> list[float]:
        return [float(value) for value in self.leader.model]

    @property
    def progress(self) -> Progress:
        self.leader.now_s = self.now_s
        return self.leader.progress()

    def epoch(self, node: str) -> None:
        """One worker does every batch that is left of this epoch, alone."""
        self.ready(node)
        while self.told(node, Work) and self.work(node).kind == "train":
            self.update(node, self.work(node))
