"""Members in the registry: older registries are brought along, and what was revoked stays so."""

from __future__ import annotations

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
