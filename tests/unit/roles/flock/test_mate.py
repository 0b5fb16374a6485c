"""One mate by itself: what it does not let itself be talked into."""

from __future__ import annotations

import numpy as np

from shoal.plan import Plan, Until
from shoal.roles.actions import Send
from shoal.roles.events import Connected, Prepared, Received, Started
from shoal.roles.flock.mate import Mate, Version
from shoal.roles.flock.settings import FlockSettings
from shoal.sim.flock import PLAN
from shoal.sim.jobs import bare_spec
from shoal.wire.messages import Call, Standing, Want


def held(number: int) -> Mate:
    """A mate that holds this version, and has met bee, who conducts."""
    mate = Mate(
        node="ant",
        spec=bare_spec("flock", Plan(data="local", until=Until(epochs=5)), examples=0),
        plan_sha256=PLAN,
        settings=FlockSettings(rounds=5, devices=2),
        first=Version(number=number, model=np.zeros(3, np.float32)),
    )
    mate.handle(Started(), 0.0)
    mate.handle(Prepared(), 0.1)
    mate.handle(Connected(node="bee"), 0.2)
    standing = Standing(plan=PLAN, term=2, conductor="bee", version=1, digest="other")
    mate.handle(Received(sender="bee", message=standing), 0.3)
    return mate


def asked_for(mate: Mate, version: int) -> list[int]:
    call = Call(term=2, number=1, kind="fetch", round=version + 1, version=version, digest="other", other="bee")
    actions = mate.handle(Received(sender="bee", message=call), 0.4)
    return [each.message.version for each in actions if isinstance(each, Send) and isinstance(each.message, Want)]


def test_it_fetches_what_is_newer_or_counts_instead_of_its_own() -> None:
    assert asked_for(held(1), 2) == [2]
    assert asked_for(held(2), 2) == [2]


def test_it_never_goes_back_to_an_older_version() -> None:
    assert asked_for(held(3), 2) == []
