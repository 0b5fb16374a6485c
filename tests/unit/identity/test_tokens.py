"""Tokens in memory: how often, how long, and under which name."""

from __future__ import annotations

import pytest
from memory_tokens import MemoryTokens, free_name, secret_hash

from shoal.errors import Misuse
from shoal.identity.tokens import Denial, Grant


def denied(answer: Grant | Denial) -> str:
    assert isinstance(answer, Denial)
    return answer.reason


def test_a_one_time_token_works_once() -> None:
    tokens = MemoryTokens()
    secret = tokens.create(valid_s=60, now_s=0)
    assert tokens.redeem(secret, wanted="pi", now_s=1) == Grant(node="pi", role="node")
    assert "used up" in denied(tokens.redeem(secret, wanted="pi", now_s=2))


def test_a_token_works_as_often_as_it_was_made_for() -> None:
    tokens = MemoryTokens()
    twice, always = tokens.create(valid_s=60, now_s=0, uses=2), tokens.create(valid_s=60, now_s=0, uses=None)
    answers = [tokens.redeem(twice, wanted=f"pi-{count}", now_s=1) for count in range(3)]
    assert [isinstance(answer, Grant) for answer in answers] == [True, True, False]
    assert all(isinstance(tokens.redeem(always, wanted=f"board-{n}", now_s=1), Grant) for n in range(20))


def test_a_token_ends_at_its_second() -> None:
    tokens = MemoryTokens()
    secret = tokens.create(valid_s=60, now_s=1000, uses=None)
    assert isinstance(tokens.redeem(secret, wanted="pi", now_s=1059.9), Grant)
    assert "expired" in denied(tokens.redeem(secret, wanted="pi-2", now_s=1060))


def test_an_unknown_secret_is_refused_and_spends_nothing() -> None:
    tokens = MemoryTokens()
    secret = tokens.create(valid_s=60, now_s=0)
    assert "not known" in denied(tokens.redeem("0" * 32, wanted="pi", now_s=1))
    assert "not known" in denied(tokens.redeem(secret_hash(secret).hex(), wanted="pi", now_s=1))
    assert isinstance(tokens.redeem(secret, wanted="pi", now_s=1), Grant)


def test_a_name_is_granted_once() -> None:
    tokens = MemoryTokens(taken=["hub"])
    secret = tokens.create(valid_s=60, now_s=0, uses=None)
    names = [tokens.redeem(secret, wanted=wanted, now_s=1) for wanted in ("pi", "pi", "pi", "hub")]
    assert [answer.node for answer in names if isinstance(answer, Grant)] == ["pi", "pi-2", "pi-3", "hub-2"]


def test_a_long_name_keeps_its_length() -> None:
    assert free_name("x" * 63, {"x" * 63}) == "x" * 61 + "-2"
    everything = {"pi", *(f"pi-{count}" for count in range(2, 1001))}
    assert free_name("pi", everything) is None


def test_tokens_carry_their_role_and_never_make_a_manager() -> None:
    tokens = MemoryTokens()
    secret = tokens.create(valid_s=60, now_s=0, role="operator")
    assert tokens.redeem(secret, wanted="ann", now_s=1) == Grant(node="ann", role="operator")
    with pytest.raises(Misuse, match="not 'manager'"):
        tokens.create(valid_s=60, now_s=0, role="manager")


def test_a_token_for_nobody_is_a_mistake() -> None:
    with pytest.raises(Misuse):
        MemoryTokens().create(valid_s=60, now_s=0, uses=0)
    with pytest.raises(Misuse):
        MemoryTokens().create(valid_s=0, now_s=0)
