"""A leader's story with hubs: how they come, and a tree over them that holds."""

from __future__ import annotations

import numpy as np
from leader_story import Story

from shoal.roles.actions import Record, Send
from shoal.wire.messages import AggregatorReady, Message, Ready, Routed, Tensors, Update

WORKERS = ("a", "b", "c")


def hub(story: Story, node: str = "hub") -> None:
    story.says(node, Ready(job="digits", is_hub=True))


def sent(story: Story, kind: type[Message]) -> list[str]:
    return [action.to for action in story.actions if isinstance(action, Send) and isinstance(action.message, kind)]


def records(story: Story, kind: str) -> list[str]:
    return [action.reason for action in story.actions if isinstance(action, Record) and action.kind == kind]


def round_of(story: Story) -> None:
    """Everyone who has a lease brings its update straight to the leader."""
    for lease in story.leader._training.ledger.leases():
        update = Update(job="digits", term=1, lease=lease.id, version=lease.version, examples=1, tensors=delta())
        story.says(lease.worker, update)


def delta() -> Tensors:
    return {"delta": np.zeros(2, dtype=np.float32)}


def formed(story: Story, *hubs: str) -> None:
    """A tree over these hubs holds."""
    for name in hubs:
        hub(story, name)
    story.ready(*WORKERS)
    formations = story.leader._formations
    for _ in range(8):
        round_of(story)
        story.tick()
    assert formations.next is not None
    assert set(formations.next.aggregators) <= set(hubs)
    for name in formations.next.aggregators:
        story.says(name, AggregatorReady(job="digits", term=1, formation=1, endpoint="pi:7"))
    for worker in WORKERS:
        story.says(worker, Routed(job="digits", term=1, formation=1))
    round_of(story)
    story.tick()
    assert formations.now is not None
