"""Whose updates are in whose partial."""

from __future__ import annotations

import pytest
from holdings import Holdings

from shoal.errors import Misuse


def test_a_merge_moves_everything() -> None:
    holdings = Holdings("abc")
    holdings.merged("a", "b")
    holdings.merged("b", "c")
    assert holdings.holders == ("c",)
    assert sorted(holdings.members("c")) == ["a", "b", "c"]
    assert holdings.alive == ("a", "b", "c")


def test_those_in_a_lost_partial_begin_again() -> None:
    holdings = Holdings("abcd")
    holdings.merged("a", "b")
    holdings.merged("c", "b")
    assert sorted(holdings.lost("b")) == ["a", "c"]
    assert sorted(holdings.holders) == ["a", "c", "d"]
    assert holdings.members("a") == ("a",)
    holdings.merged("d", "a")
    assert sorted(holdings.members("a")) == ["a", "d"]


def test_one_that_had_handed_on_is_not_missed_until_its_holder_is_lost() -> None:
    holdings = Holdings("abc")
    holdings.merged("a", "b")
    assert holdings.lost("a") == ()
    assert sorted(holdings.members("b")) == ["a", "b"]
    assert holdings.lost("b") == (), "a is gone too, and cannot begin again"
    assert holdings.holders == ("c",)
    assert holdings.lost("b") == ()


def test_merges_that_cannot_be() -> None:
    holdings = Holdings("abc")
    holdings.merged("a", "b")
    for pair in (("a", "c"), ("c", "a"), ("b", "b")):
        with pytest.raises(Misuse):
            holdings.merged(*pair)
    for names in ("", "aa"):
        with pytest.raises(Misuse):
            Holdings(names)
