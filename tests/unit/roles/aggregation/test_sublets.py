"""Two lend to a worker: it takes no lease of a hub that is older than its leader's last word."""

from __future__ import annotations

from shoal.roles.aggregation.sublets import Sublets
from shoal.wire.messages import Work


def work(lease: int, *, block: int = 0, term: int = 1) -> Work:
    return Work(job="digits", term=term, lease=lease, kind="train", version=1, deadline_s=1.0, block=block, formation=2)


def test_a_newer_lease_of_either_is_taken() -> None:
    sublets = Sublets()
    assert sublets.admits(work(1), holds=False)
    assert sublets.admits(work(11, block=10), holds=False)
    # Another of the same block, with a lower number: one that came back.
    assert sublets.admits(work(13, block=10), holds=False)
    assert sublets.admits(work(12, block=10), holds=False)
    assert sublets.admits(work(20), holds=True)
    assert sublets.admits(work(1, term=2), holds=True)


def test_a_hub_speaks_too_late() -> None:
    sublets = Sublets()
    assert sublets.admits(work(20), holds=False)
    assert not sublets.admits(work(11, block=10), holds=False)
    assert sublets.admits(work(31, block=30), holds=False)
    assert not sublets.admits(work(11, block=10), holds=False)


def test_what_the_leader_lent_is_not_dropped_for_a_hub() -> None:
    sublets = Sublets()
    assert sublets.admits(work(20), holds=False)
    assert not sublets.admits(work(31, block=30), holds=True)
    assert sublets.admits(work(31, block=30), holds=False)
    assert sublets.admits(work(32, block=30), holds=True)


def test_a_block_that_was_left_is_over() -> None:
    sublets = Sublets()
    assert sublets.admits(work(11, block=10), holds=False)
    sublets.leave()
    assert not sublets.admits(work(12, block=10), holds=False)
    assert sublets.admits(work(21, block=20), holds=False)
