"""Whose work is weighed after a cut."""

from __future__ import annotations

from shoal.roles.manager.reunion import Side, judge, together


def test_a_worker_of_two_leaders_counts_once() -> None:
    one = Side(batches=4, workers=2, names=frozenset({"a", "b"}))
    two = Side(batches=3, workers=2, names=frozenset({"b", "c"}))
    assert together([one, two]) == Side(batches=7, workers=3, names=frozenset({"a", "b", "c"}))


def test_a_worker_whose_update_is_in_no_version_does_not_count() -> None:
    """Its leader reports it with the batch that it sent, and counts those in its versions."""
    newer = together([Side(batches=15, workers=2, names=frozenset({"a", "b", "late"}))])
    assert newer.workers == 2
    assert judge(older=Side(batches=12, workers=3), newer=newer).keeps_older
