"""A hub that sublets a block: each lease is in the sum once or comes back, and the leader is told once."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.roles.actions import Action, Send, SetTimer
from shoal.roles.aggregation.aggregator import Aggregator
from shoal.roles.aggregation.block_aggregator import SUBLET_GRACE_S, BlockAggregator, aggregator_of
from shoal.roles.events import Received, TimerFired
from shoal.wire.messages import (
    BadShard,
    BlockDone,
    LendBlock,
    Message,
    ModelShard,
    RelayModel,
    SetUpAggregator,
    ShardAck,
    UpdateShard,
    Work,
)

M = TypeVar("M", bound=Message)
DEVICES = ("a", "b", "c")


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


class Hub:
    """A hub of devices a, b and c, and what it just said."""

    def __init__(self) -> None:
        self.now_s = 0.0
        form = self.form(*DEVICES)
        self.role = aggregator_of(form, node="hub", leader="home")
        self.actions: list[Action] = []

    def form(self, *members: str) -> SetUpAggregator:
        return SetUpAggregator(
            job="digits", term=1, formation=3, kind="tree", version=4, start=0, stop=2, members=members, lends=True
        )

    def hears(self, sender: str, message: Message) -> None:
        self.actions = self.role.handle(Received(sender=sender, message=message), self.now_s)

    def lent(self, block: int = 10, **changes: Any) -> None:
        """Five batches, two a lease: leases 11, 12 and 13."""
        given: dict[str, Any] = {
            "batches": (4, 5, 6, 7, 8),
            "lease_batches": 2,
            "examples": (20, 20, 10),
            "devices": DEVICES,
            "lease_s": 10.0,
            "deadline_s": 22.0,
            "tensors": {"model": array(1, 2)},
        }
        self.hears("home", LendBlock(job="digits", term=1, formation=3, block=block, version=4, **given | changes))

    def brings(self, device: str, lease: int, *values: float, **changes: Any) -> None:
        given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 3, "version": 4, "examples": 10}
        tensors = {"delta": array(*(values or (1, 1)))}
        self.hears(device, UpdateShard(lease=lease, tensors=tensors, **given | changes))

    def members(self, *members: str) -> None:
        self.hears("home", self.form(*members))

    def waits(self, for_s: float) -> None:
        self.now_s += for_s
        self.actions = self.role.handle(TimerFired(name="late"), self.now_s)

    def said(self, kind: type[M]) -> list[tuple[str, M]]:
        return [
            (action.to, action.message)
            for action in self.actions
            if isinstance(action, Send) and isinstance(action.message, kind)
        ]

    @property
    def done(self) -> BlockDone:
        ((to, done),) = self.said(BlockDone)
        assert to == "home"
        return done


@pytest.fixture
def hub() -> Hub:
    return Hub()


def test_a_tree_that_is_lent_blocks_has_another_aggregator(hub: Hub) -> None:
    assert isinstance(hub.role, BlockAggregator)
    plain = SetUpAggregator(job="digits", term=1, formation=3, kind="tree", version=4, start=0, stop=2)
    assert type(aggregator_of(plain, node="hub", leader="home")) is Aggregator


def test_a_block_is_sublet_at_once_and_comes_back_as_one_mean(hub: Hub) -> None:
    hub.lent()
    works = hub.said(Work)
    assert [(to, work.lease, work.batches, work.block) for to, work in works] == [
        ("a", 11, (4, 5), 10),
        ("b", 12, (6, 7), 10),
        ("c", 13, (8,), 10),
    ]
    assert all(work.tensors["model"].tolist() == [1, 2] and work.formation == 3 for _, work in works)
    hub.brings("b", 12, 3, 0, examples=20, loss_sum=5.0, train_s=0.5)
    assert [(to, ack.lease, ack.reason) for to, ack in hub.said(ShardAck)] == [("b", 12, "")]
    hub.brings("a", 11, 0, 6, examples=20)
    assert not hub.said(BlockDone)
    hub.brings("c", 13, 9, 9, examples=10)
    done = hub.done
    assert [(part.lease, part.node, part.examples) for part in done.parts] == [
        (11, "a", 20),
        (12, "b", 20),
        (13, "c", 10),
    ]
    assert (done.parts[1].loss_sum, done.parts[1].train_s) == (5.0, 0.5)
    assert done.returned == ()
    # (20 (0, 6) + 20 (3, 0) + 10 (9, 9)) / 50
    np.testing.assert_allclose(done.tensors["mean"], [3.0, 4.2], rtol=1e-6)


def test_a_copy_of_an_update_is_answered_and_not_added(hub: Hub) -> None:
    hub.lent()
    hub.brings("a", 11, 5, 5)
    hub.brings("a", 11, 5, 5)
    assert [ack.reason for _, ack in hub.said(ShardAck)] == [""]
    hub.brings("b", 12, 1, 1)
    hub.brings("c", 13, 0, 0)
    np.testing.assert_allclose(hub.done.tensors["mean"], [2.0, 2.0])


@pytest.mark.parametrize(("device", "lease"), [("a", 12), ("a", 99), ("c", 11)])
def test_an_update_of_what_is_sublet_to_another_is_refused(hub: Hub, device: str, lease: int) -> None:
    hub.lent()
    hub.brings(device, lease)
    ((to, ack),) = hub.said(ShardAck)
    assert (to, ack.lease) == (device, lease)
    assert ack.reason == f"lease {lease} is not sublet to {device} any more"


def test_what_a_lost_device_had_is_sublet_again_or_comes_back(hub: Hub) -> None:
    hub.lent()
    hub.now_s = 1.0
    hub.members("a", "b")
    assert not hub.said(Work), "everyone has a lease"
    hub.brings("a", 11)
    # How long b takes is not known yet: nobody waits longer if a trains once more.
    assert [(to, work.lease) for to, work in hub.said(Work)] == [("a", 13)]
    hub.brings("b", 12)
    hub.members("b")
    done = hub.done
    assert [(part.lease, part.node) for part in done.parts] == [(11, "a"), (12, "b")]
    assert [(back.lease, back.reason) for back in done.returned] == [(13, "a is gone, or asked for other work")]


def test_once_it_knows_its_devices_nobody_waits_for_a_lease_twice(hub: Hub) -> None:
    for block in (10, 20, 30):
        hub.lent(block=block)
        hub.now_s += 1.0
        for place, device in enumerate(DEVICES):
            hub.brings(device, block + 1 + place)
        assert hub.done.block == block
    hub.lent(block=40)
    hub.members("a", "b")
    hub.now_s += 1.0
    hub.brings("a", 41)
    assert not hub.said(Work), "b is due as well: the block would take twice as long"
    hub.brings("b", 42)
    assert [back.lease for back in hub.done.returned] == [43]


def test_a_device_that_is_late_gets_nothing_else_and_its_update_is_refused(hub: Hub) -> None:
    hub.lent()
    hub.brings("a", 11)
    hub.brings("b", 12)
    hub.waits(10.0 + SUBLET_GRACE_S)
    done = hub.done
    assert [(back.lease, back.reason) for back in done.returned] == [(13, "c did not return it in 12.0 s")]
    hub.brings("c", 13)
    assert [ack.reason for _, ack in hub.said(ShardAck)] == ["lease 13 is not sublet to c any more"]
    assert not hub.said(BlockDone)


def test_a_hub_that_stood_still_reads_what_came_first(hub: Hub) -> None:
    hub.lent()
    hub.now_s = 60.0
    hub.actions = hub.role.handle(TimerFired(name="late", late_s=48.0), hub.now_s)
    assert [type(action) for action in hub.actions] == [SetTimer]
    for place, device in enumerate(DEVICES):
        hub.brings(device, 11 + place)
    assert len(hub.done.parts) == 3


def test_a_bad_update_is_told_to_the_leader_and_its_lease_is_free(hub: Hub) -> None:
    hub.lent(norm_max=2.0)
    hub.brings("a", 11, 30, 40)
    ((to, bad),) = hub.said(BadShard)
    assert (to, bad.node, bad.lease) == ("home", "a", 11)
    assert not hub.said(ShardAck)
    hub.brings("b", 12, examples=21)
    assert "21 examples; the lease holds 20" in hub.said(BadShard)[0][1].reason
    hub.brings("c", 13)
    assert [back.lease for back in hub.done.returned] == [11, 12]


def test_a_block_that_is_lent_again_is_answered_as_before(hub: Hub) -> None:
    hub.lent()
    hub.lent()
    assert not hub.actions, "it is sublet"
    for place, device in enumerate(DEVICES):
        hub.brings(device, 11 + place)
    done = hub.done
    hub.lent()
    assert hub.done is done
    hub.lent(block=5)
    assert not hub.actions, "an older one"


def test_without_devices_all_of_it_comes_back(hub: Hub) -> None:
    hub.lent(devices=("x",))
    assert [back.lease for back in hub.done.returned] == [11, 12, 13]
    assert not hub.done.tensors


def test_it_relays_models_as_any_aggregator(hub: Hub) -> None:
    relay = RelayModel(job="digits", term=1, formation=3, version=5, tensors={"model": array(3, 4)})
    hub.hears("home", relay)
    assert sorted(to for to, _ in hub.said(ModelShard)) == list(DEVICES)
