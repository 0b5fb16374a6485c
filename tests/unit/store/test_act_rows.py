"""The audit log: rows that are appended, by several managers too, and a chain that shows what was changed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.store.act_rows import ActRow, first_broken
from shoal.store.base import Database
from shoal.store.registry import Registry


def act(registry: Registry, kind: str = "stop a job", *, subject: str = "j1", is_refused: bool = False) -> ActRow:
    return registry.add_act(
        at_s=1700000000.125,
        operator="alice",
        certificate="ab" * 32,
        manager="home",
        kind=kind,
        subject=subject,
        text="too slow, é",
        is_refused=is_refused,
    )


def all_acts(registry: Registry) -> list[ActRow]:
    return registry.acts(limit=1000)


def test_acts_are_kept_in_order_and_their_chain_is_whole(registry: Registry) -> None:
    made = [act(registry), act(registry, "revoke a node", subject="d6"), act(registry, is_refused=True)]
    assert all_acts(registry) == made
    assert [row.seq for row in made] == [1, 2, 3]
    assert first_broken(all_acts(registry)) is None
    assert registry.acts(limit=10, subject="d6") == [made[1]]
    assert registry.acts(after=1, limit=1) == [made[1]]


@pytest.mark.parametrize(
    ("rewrite", "broken"),
    [
        ("UPDATE acts SET operator = 'bob' WHERE seq = 2", 2),
        ("UPDATE acts SET at_s = at_s + 1 WHERE seq = 3", 3),
        ("DELETE FROM acts WHERE seq = 1", 1),
        ("DELETE FROM acts WHERE seq = 2", 2),
        ("UPDATE acts SET seq = 9 WHERE seq = 4", 4),
    ],
)
def test_an_act_that_was_changed_or_removed_is_found(registry: Registry, rewrite: str, broken: int) -> None:
    for _ in range(4):
        act(registry)
    registry._database.change(rewrite)
    assert first_broken(all_acts(registry)) == broken


def test_managers_that_share_a_database_make_one_chain(open_database: Callable[[], Database]) -> None:
    with Registry(open_database()) as one, Registry(open_database()) as other, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda registry: [act(registry) for _ in range(20)], (one, other)))
        found = all_acts(one)
    assert [row.seq for row in found] == list(range(1, 41))
    assert first_broken(found) is None
