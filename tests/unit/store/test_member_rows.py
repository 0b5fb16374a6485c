"""Members in the registry: older registries are brought along, and what was revoked stays so."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.store.registry import Registry
from shoal.store.rows import Certificate, Redeemed
from shoal.store.schema import MIGRATIONS


def certificate(sha256: str, node: str = "pi", *, issued_s: float = 5.0) -> Certificate:
    return Certificate(sha256=sha256, node=node, role="node", key_sha256="k", issued_s=issued_s, expires_s=100.0)


def test_a_registry_of_the_first_release_keeps_its_members(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    database = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        database.execute(statement)
    database.execute("INSERT INTO nodes VALUES ('pi', 'node', '{}', 1.0, 2.0, 'enrolled')")
    database.execute("INSERT INTO tokens VALUES ('ab', 'node', 3, NULL, 1.0, 'old', '')")
    database.execute("PRAGMA user_version = 1")
    database.commit()
    database.close()
    with Registry(path) as registry:
        (node,) = registry.nodes()
        assert (node.node, node.state, node.token_sha256, node.revoked_s) == ("pi", "enrolled", "", None)
        assert [token.label for token in registry.tokens()] == ["old"]
        assert registry.certificates() == []
        assert registry.revoke_node("pi", now_s=3.0, reason="sold")
        assert [token.label for token in registry.tokens()] == ["old"], "which token it joined with is not known"


def test_a_revocation_is_one_step(registry: Registry) -> None:
    registry.add_token(secret="s", role="node", uses=2, now_s=1.0)
    assert registry.redeem_token("s", "pi", 2.0) == Redeemed(node="pi", role="node")
    registry.add_certificate(certificate("a"))
    registry.add_certificate(certificate("b", issued_s=6.0), replaces="a")
    assert registry.revoke_node("pi", now_s=9.0, reason="sold")
    node = registry.node("pi")
    assert node is not None
    assert (node.state, node.revoked_s, node.reason) == ("revoked", 9.0, "sold")
    assert [(row.sha256, row.revoked_s) for row in registry.certificates("pi")] == [("a", 9.0), ("b", 9.0)]
    assert registry.tokens() == []
    assert not registry.revoke_node("ghost", now_s=9.0, reason="")
    for state in ("enrolled", "drained"):
        with pytest.raises(Misuse):
            registry.set_node_state("pi", state)
    with pytest.raises(Misuse, match="pi was revoked"):
        registry.add_certificate(certificate("c"))


def test_a_name_that_is_given_again_remembers_that_it_was_revoked(registry: Registry) -> None:
    registry.upsert_node(node="pi", role="node", facts_json='{"a": "b"}', state="enrolled", now_s=1.0)
    registry.add_token(secret="older", role="node", uses=1, now_s=2.0)
    registry.revoke_node("pi", now_s=3.0, reason="sold")
    registry.add_token(secret="newer", role="operator", uses=1, now_s=4.0)
    assert registry.redeem_token("older", "pi", 5.0) == Redeemed(node="pi-2", role="node")
    assert registry.redeem_token("newer", "pi", 6.0, state="pending") == Redeemed(node="pi", role="operator")
    node = registry.node("pi")
    assert node is not None
    assert (node.role, node.state, node.revoked_s, node.reason, node.facts_json) == (
        "operator",
        "pending",
        3.0,
        "",
        "{}",
    )
    assert registry.node("nobody") is None
    assert registry.certificate("nothing") is None


# Authorities of managers' own --------------------------------------------------------------------------------


def issued(sha256: str, node: str, issuer: str) -> Certificate:
    return dataclasses.replace(certificate(sha256, node), issuer=issuer)


@pytest.fixture
def two_managers(registry: Registry) -> Registry:
    """East issued certificates to a, b and c; the cluster's own authority one to b, later, and one to d."""
    registry.add_token(secret="s", role="node", uses=9, now_s=1.0)
    registry.upsert_node(node="east", role="manager", facts_json="{}", state="enrolled", now_s=1.0)
    registry.add_certificate(dataclasses.replace(certificate("east-1", "east"), role="manager"))
    for name in "abcd":
        registry.redeem_token("s", name, 2.0)
    for name in "abc":
        registry.add_certificate(issued(f"{name}-east", name, "east-1"))
    registry.add_certificate(certificate("b-root", "b"))
    registry.add_certificate(certificate("d-root", "d"))
    return registry


def test_a_revoked_authority_takes_with_it_what_it_issued(two_managers: Registry) -> None:
    registry = two_managers
    assert registry.issued_by("east") == ["a", "b", "c"]
    assert registry.revoke_node("east", now_s=9.0, reason="stolen")
    states = {node.node: node.state for node in registry.nodes()}
    assert states == {"a": "revoked", "b": "enrolled", "c": "revoked", "d": "enrolled", "east": "revoked"}
    good = {row.sha256 for row in registry.certificates() if row.revoked_s is None}
    assert good == {"b-root", "d-root"}
    assert registry.tokens() == [], "east saw the secret that its devices joined with"


def test_a_superseded_certificate_of_another_authority_saves_nobody(two_managers: Registry) -> None:
    registry = two_managers
    registry.use_certificate("d-root", now_s=3.0)
    registry.add_certificate(issued("d-east", "d", "east-1"), replaces="d-root")
    registry.use_certificate("d-east", now_s=4.0)
    registry.revoke_node("east", now_s=9.0, reason="stolen")
    node = registry.node("d")
    assert node is not None
    assert node.state == "revoked"
    assert "east" in node.reason


def test_a_revoked_or_unknown_authority_issues_nothing(two_managers: Registry) -> None:
    registry = two_managers
    registry.revoke_node("east", now_s=9.0, reason="stolen")
    for issuer in ("east-1", "west-1"):
        with pytest.raises(Misuse, match="authority of this manager was revoked"):
            registry.add_certificate(issued("d-2", "d", issuer))
    assert [row.sha256 for row in registry.certificates("d")] == ["d-root"]


def test_the_clusters_own_authority_is_no_managers(registry: Registry) -> None:
    """The empty issuer: to revoke a device must not reach what the cluster's authority issued."""
    registry.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=1.0)
    registry.add_certificate(certificate("", "odd"))
    registry.add_certificate(certificate("p", "pi"))
    registry.upsert_node(node="odd", role="node", facts_json="{}", state="enrolled", now_s=1.0)
    registry.revoke_node("odd", now_s=9.0, reason="")
    node = registry.node("pi")
    assert node is not None
    assert node.state == "enrolled"


def test_a_browser_is_invited_by_a_token_that_it_can_join_with(registry: Registry) -> None:
    registry.add_token(secret="tab", role="browser", uses=1, now_s=1.0, expires_s=10.0)
    registry.add_token(secret="agent", role="node", uses=1, now_s=1.0)
    for _ in range(2):
        assert registry.why_no_invitation("tab", 2.0) is None, "asking spends nothing"
    assert "expired" in str(registry.why_no_invitation("tab", 10.0))
    assert "makes a node" in str(registry.why_no_invitation("agent", 2.0))
    assert "unknown" in str(registry.why_no_invitation("other", 2.0))
    registry.redeem_token("tab", "tab", 3.0, is_tab=True)
    assert "used up" in str(registry.why_no_invitation("tab", 4.0))
