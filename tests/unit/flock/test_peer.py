"""One peer by itself: the messages it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from dst.flock_world import PLAN
from shoal.flock.peer import Peer, Version, digest_of
from shoal.flock.settings import FlockSettings
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, Record, Save, Send, Train
from shoal.roles.events import Connected, Prepared, Received, Started, Trained
from shoal.sim.jobs import bare_spec
from shoal.wire.messages import Command, ModelTransfer, PartialSum, PeerStatus, Request


def held(number: int, *, examples: int = 0) -> Peer:
    """A peer that holds this version, and has met bee, which coordinates."""
    peer = Peer(
        node="ant",
        spec=bare_spec("flock", Plan(data="local", until=Until(epochs=5)), examples=0),
        plan_sha256=PLAN,
        settings=FlockSettings(rounds=5, devices=2, examples=examples),
        first=Version(number=number, model=np.zeros(3, np.float32)),
    )
    peer.handle(Started(), 0.0)
    peer.handle(Prepared(), 0.1)
    peer.handle(Connected(node="bee"), 0.2)
    standing = PeerStatus(plan=PLAN, term=2, coordinator="bee", version=1, digest="other")
    peer.handle(Received(sender="bee", message=standing), 0.3)
    return peer


def asked_for(peer: Peer, version: int) -> list[int]:
    call = Command(term=2, number=1, kind="fetch", round=version + 1, version=version, digest="other", other="bee")
    actions = peer.handle(Received(sender="bee", message=call), 0.4)
    return [each.message.version for each in actions if isinstance(each, Send) and isinstance(each.message, Request)]


def test_it_fetches_what_is_newer_or_counts_instead_of_its_own() -> None:
    assert asked_for(held(1), 2) == [2]
    assert asked_for(held(2), 2) == [2]


def test_it_never_goes_back_to_an_older_version() -> None:
    assert asked_for(held(3), 2) == []


def given(peer: Peer, model: np.ndarray) -> list[Action]:
    """The actions of a peer that fetched this model."""
    digest = digest_of(model)
    call = Command(term=2, number=1, kind="fetch", round=3, version=2, digest=digest, other="bee")
    peer.handle(Received(sender="bee", message=call), 0.4)
    message = ModelTransfer(version=2, digest=digest, tensors={"model": model})
    return peer.handle(Received(sender="bee", message=message), 0.5)


def test_a_given_model_that_is_not_finite_is_not_taken() -> None:
    # The digest only says that the model is the one that was announced: whoever announced it may have broken it.
    peer = held(1)
    (refused,) = given(peer, np.array([1, np.inf, 1], np.float32))
    assert isinstance(refused, Record)
    assert "not finite" in refused.reason
    assert peer.version.number == 1
    assert any(isinstance(action, Save) for action in given(held(1), np.array([1, 2, 1], np.float32)))


@pytest.mark.parametrize(("weight", "is_taken"), [(64.0, True), (65.0, False), (1e9, False)])
def test_a_peers_update_weighs_at_most_its_examples(weight: float, is_taken: bool) -> None:
    peer = held(1, examples=64)
    digest = peer.version.digest
    call = Command(term=2, number=1, kind="train", round=2, version=1, digest=digest, other="")
    trains = [a for a in peer.handle(Received(sender="bee", message=call), 0.4) if isinstance(a, Train)]
    own = {"delta": np.ones(3, np.float32)}
    peer.handle(Trained(lease=trains[0].lease, examples=64, loss_sum=1.0, seconds=1.0, tensors=own), 0.5)
    take = Command(term=2, number=2, kind="take", round=2, version=1, digest=digest, other="bee", merge=1)
    peer.handle(Received(sender="bee", message=take), 0.6)
    theirs = {"mean": np.full(3, 3, np.float32)}
    part = PartialSum(term=2, coordinator="bee", round=2, merge=1, of=("bee",), weight=weight, tensors=theirs)
    peer.handle(Received(sender="bee", message=part), 0.7)
    make = Command(term=2, number=3, kind="make", round=2, version=1, digest=digest, other="")
    peer.handle(Received(sender="bee", message=make), 0.8)
    assert peer.version.model.tolist() == ([2.0] * 3 if is_taken else [1.0] * 3)
