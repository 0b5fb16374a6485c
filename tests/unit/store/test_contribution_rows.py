"""Files of entries in shared sets: each counts once, within a quota, and a decision is whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.errors import Refused
from shoal.store import contribution_rows
from shoal.store.base import Database
from shoal.store.contribution_rows import APPROVED, PENDING, REJECTED, ContributionRow
from shoal.store.registry import Registry

QUOTA = 1000


def give(
    registry: Registry, letter: str, *, to: str = "weeds", node: str = "attic", size: int = 100
) -> ContributionRow:
    return registry.add_contribution(
        set_name=to,
        sha256=letter * 64,
        node=node,
        certificate="ab" * 32,
        entries=7,
        size_bytes=size,
        at_s=1700000000.125,
        quota_bytes=QUOTA,
    )


def test_a_file_counts_once_in_a_set_whoever_gives_it_again(registry: Registry) -> None:
    first = give(registry, "a")
    assert give(registry, "a", node="cellar") == first
    assert first.state == PENDING
    other = give(registry, "a", to="birds")
    assert registry.contributions("weeds", limit=9) == [first]
    assert registry.contributions(limit=9) == [first, other]
    assert registry.contributions(after=first.number, limit=9) == [other]
    assert registry.contribution("weeds", "b" * 64) is None


def test_what_waits_and_what_is_approved_counts_against_the_quota(registry: Registry) -> None:
    rows = [give(registry, letter, size=400) for letter in "ab"]
    with pytest.raises(Refused, match=r"over the quota: attic may add 0\.0 MB more"):
        give(registry, "c", size=201)
    registry.settle_contributions(rows[:1], APPROVED, by="ann")
    with pytest.raises(Refused, match="over the quota"):
        registry.check_quota("attic", 201, quota_bytes=QUOTA)
    give(registry, "c", size=201, node="cellar")
    registry.settle_contributions(rows[1:], REJECTED, by="ann")
    give(registry, "d", size=600)


def test_a_member_has_a_bounded_number_of_rows(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contribution_rows, "CONTRIBUTIONS_PER_MEMBER", 2)
    rows = [give(registry, letter) for letter in "ab"]
    registry.settle_contributions(rows, REJECTED, by="ann")
    with pytest.raises(Refused, match="attic gave 2 files already"):
        give(registry, "c")


def test_a_decision_is_about_all_of_its_rows_or_none(registry: Registry) -> None:
    first, second = [give(registry, letter) for letter in "ab"]
    registry.settle_contributions([second], REJECTED, by="bob")
    with pytest.raises(Refused, match="another operator decided about bbbbbbbbbbbb"):
        registry.settle_contributions([first, second], APPROVED, by="ann")
    assert [(row.state, row.decided_by) for row in registry.contributions(limit=9)] == [
        (PENDING, ""),
        (REJECTED, "bob"),
    ]
    assert registry.contributed() == {first.sha256}


def test_managers_that_share_a_database_keep_one_quota(open_database: Callable[[], Database]) -> None:
    def attempt(registry: Registry, letter: str) -> bool:
        try:
            give(registry, letter, size=300)
        except Refused:
            return False
        return True

    with Registry(open_database()) as one, Registry(open_database()) as other, ThreadPoolExecutor(4) as pool:
        done = list(pool.map(attempt, [one, other] * 4, "abcdef01"))
        rows = one.contributions(limit=9)
    assert sum(done) == 3
    assert [row.number for row in rows] == [1, 2, 3]
