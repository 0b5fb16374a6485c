"""Hubs as a leader knows them: lent nothing, aggregators first, missed by nobody for long when they go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hub_story import WORKERS, delta, formed, hub, records, sent
from leader_story import Story

from shoal.roles.events import Liveness, PeerChanged, Saved
from shoal.roles.leader.workers import VIOLATIONS_MAX
from shoal.wire.messages import (
    Finished,
    JobSpec,
    Release,
    Released,
    SetUpAggregator,
    Update,
    Work,
)


@pytest.fixture
def story(make_spec: Callable[..., JobSpec]) -> Story:
    story = Story(make_spec(topology="tree", workers_min=3, examples=60))
    story.happens(Saved(version=0))
    return story


def test_a_hub_is_lent_nothing_and_stands_for_no_worker(story: Story) -> None:
    hub(story)
    assert records(story, "device.joined") == ["hub ready to sum up for others (a hub)"]
    story.ready("a", "b")
    assert not sent(story, Work)
    assert story.leader.progress().reason == "2 of 3 required devices connected"
    story.ready("c")
    assert sorted(sent(story, Work)) == ["a", "b", "c"]
    assert [view.node for view in story.leader.progress().workers] == ["a", "b", "c"]
    story.tick(30.0)
    assert "hub" not in sent(story, Work)


def test_what_a_hub_says_of_a_lease_is_not_heard(story: Story) -> None:
    hub(story)
    story.says("hub", Update(job="digits", term=1, lease=1, version=0, examples=1, tensors=delta()))
    assert not story.actions
    assert "hub" not in story.leader._workers.nodes()


def test_hubs_are_aggregators_before_workers(story: Story) -> None:
    formed(story, "hub")
    assert story.leader.topology == "tree 1-1-3 with 1 hub"
    assert story.leader.aggregators == ("hub",)


@pytest.mark.parametrize("state", [Liveness.SUSPECT, Liveness.LOST])
def test_a_lost_hub_breaks_the_tree_at_once_and_a_suspect_one_too(story: Story, state: Liveness) -> None:
    formed(story, "hub", "spare")
    used = story.leader.aggregators
    story.happens(PeerChanged(node=used[0], state=state, reason="silent"))
    # Everyone waits for the next: it is set up at once, without that hub.
    told = sent(story, SetUpAggregator)
    assert told
    assert used[0] not in told
    assert "regrouping devices" in (story.leader._formations.held_up() or "")
    assert (story.leader._workers.find(used[0]) is not None) is (state is Liveness.SUSPECT)


def test_a_hub_that_the_manager_wants_back_goes_once_it_sums_up_nothing(story: Story) -> None:
    hub(story)
    story.says("home", Release(job="digits", node="hub", reason="is drained"))
    assert sent(story, Finished) == ["hub"]
    assert sent(story, Released) == ["home"]
    assert story.leader._workers.hubs() == []


def test_a_worker_that_is_a_hub_now_gives_its_lease_back_and_the_other_way_round(story: Story) -> None:
    story.ready(*WORKERS)
    assert len(story.leader._training.ledger.leases()) == 3
    hub(story, "a")
    assert {lease.worker for lease in story.leader._training.ledger.leases()} == {"b", "c"}
    story.ready("a")
    assert story.leader._workers.hubs() == []
    assert sent(story, Work) == ["a"]


def test_a_worker_that_was_left_out_is_no_aggregator_as_a_hub(story: Story) -> None:
    story.ready(*WORKERS)
    for _ in range(VIOLATIONS_MAX):
        worker = story.leader._workers.get("a")
        assert worker is not None
        story.leader._workers.on_violation(worker, "bad values")
    hub(story, "a")
    hub(story, "b")
    assert [one.node for one in story.leader._workers.hubs() if not one.left_out] == ["b"]
