"""What one manager changes about members, another reads: that and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shoal.store.base import Database
from shoal.store.registry import Registry
from shoal.store.rows import Certificate

pytestmark = pytest.mark.timeout(120)

ISSUED = Certificate(sha256="a", node="pi", role="node", key_sha256="k", issued_s=1.0, expires_s=9e9)


@pytest.fixture
def pair(open_database: Callable[[], Database]) -> Iterator[tuple[Registry, Registry]]:
    with Registry(open_database(), holder="one") as one, Registry(open_database(), holder="other") as other:
        yield one, other


def test_every_change_of_a_member_is_read_once(pair: tuple[Registry, Registry]) -> None:
    one, other = pair
    one.add_token(secret="s", role="node", uses=9, now_s=1.0)
    for name in ("pi", "nano"):
        one.redeem_token("s", name, 2.0)
    seen = other.members_epoch()
    changes: dict[str, Callable[[], object]] = {
        "joined": lambda: one.redeem_token("s", "orin", 3.0),
        "upserted": lambda: one.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=3.0),
        "reserved": lambda: one.reserve_node("new", "operator", now_s=3.0),
        "certified": lambda: one.add_certificate(ISSUED),
        "certified again": lambda: one.add_certificate(replace(ISSUED, sha256="b"), replaces="a"),
        "used": lambda: one.use_certificate("b", now_s=4.0),
        "drained": lambda: one.set_node_state("pi", "drained", reason="hot"),
        "revoked": lambda: one.revoke_node("pi", now_s=5.0, reason="sold"),
        "forgotten": lambda: one.forget_node("pi", now_s=6.0),
    }
    for what, change in changes.items():
        change()
        found = other.members_since(seen)
        name = {"joined": "orin", "reserved": "new"}.get(what, "pi")
        assert [node.node for node in found.nodes] == [name], what
        assert found.nodes[0] == one.node(name)
        assert list(found.certificates) == one.certificates(name)
        assert found.epoch == other.members_epoch() == found.nodes[0].epoch > seen
        seen = found.epoch
    assert other.members_since(seen).nodes == ()
    one.reserve_node("new", "node", now_s=9.0)
    reserved = other.node("new")
    assert reserved is not None
    assert reserved.role == "operator", "it has the name"
    assert other.members_epoch() == seen


def test_members_that_go_with_an_authority_are_all_told(pair: tuple[Registry, Registry]) -> None:
    one, other = pair
    one.add_token(secret="s", role="node", uses=9, now_s=1.0)
    one.upsert_node(node="east", role="manager", facts_json="{}", state="enrolled", now_s=1.0)
    one.add_certificate(replace(ISSUED, sha256="east-1", node="east", role="manager"))
    for name in "abc":
        one.redeem_token("s", name, 2.0)
        one.add_certificate(replace(ISSUED, sha256=f"{name}-east", node=name, issuer="east-1"))
    one.redeem_token("s", "d", 2.0)
    one.add_certificate(replace(ISSUED, sha256="b-root", node="b"))
    seen = other.members_epoch()
    one.revoke_node("east", now_s=9.0, reason="stolen")
    found = other.members_since(seen)
    assert {node.node: node.state for node in found.nodes} == {
        "a": "revoked",
        "b": "enrolled",
        "c": "revoked",
        "east": "revoked",
    }
    good = {row.sha256 for row in found.certificates if row.revoked_s is None}
    assert good == {"b-root"}


def test_a_manager_that_is_alone_counts_nothing(registry: Registry) -> None:
    registry.add_token(secret="s", role="node", uses=9, now_s=1.0)
    registry.redeem_token("s", "pi", 2.0)
    registry.revoke_node("pi", now_s=3.0, reason="")
    assert registry.members_epoch() == 0
    assert registry.members_since(0).nodes == ()


def test_nobody_is_missed_while_managers_write_at_the_same_time(
    open_database: Callable[[], Database], pair: tuple[Registry, Registry]
) -> None:
    """A reader that reads on and on from where it was sees every member, whichever of two writers was first."""
    one, other = pair
    one.add_token(secret="s", role="node", uses=99, now_s=1.0)
    is_over = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        with Registry(open_database(), holder="reader") as reader:
            epoch = 0
            while True:
                was_over = is_over.is_set()
                found = reader.members_since(epoch)
                seen.update(node.node for node in found.nodes)
                epoch = found.epoch
                if was_over:
                    return

    def write(registry: Registry, name: str) -> None:
        for number in range(20):
            registry.redeem_token("s", f"{name}{number}", 2.0)

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(read)
        writing = [pool.submit(write, registry, name) for registry, name in ((one, "a"), (other, "b"))]
        for each in writing:
            each.result(timeout=60)
        is_over.set()
        reading.result(timeout=60)
    assert seen == {f"{name}{number}" for name in "ab" for number in range(20)}
