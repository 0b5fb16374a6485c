"""Blocks as a leader lends them: one message each way for a hub, merged once, taken back whole, lent again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hub_story import WORKERS, formed, records, round_of, sent
from leader_story import Story

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.roles.actions import Send
from shoal.roles.events import Liveness, PeerChanged, Saved
from shoal.wire.messages import (
    AggregatorReady,
    BadShard,
    BlockDone,
    BlockPart,
    BlockReturn,
    Failed,
    Go,
    JobSpec,
    LendBlock,
    Ready,
    Release,
    Released,
    Routed,
    SetUpAggregator,
    TearDown,
    UpdateRefused,
    Wait,
    Work,
)


@pytest.fixture
def story(make_spec: Callable[..., JobSpec]) -> Story:
    story = Story(make_spec(topology="tree", work="blocks", workers_min=2, examples=60))
    story.happens(Saved(version=0))
    formed(story, "hub")
    assert story.leader.topology == "tree 1-1-3 with 1 hub in blocks"
    return story


def block(story: Story) -> LendBlock:
    """The block that is out."""
    now = story.leader._formations.now
    assert now is not None
    (out,) = now.blocks.values()
    return out.lent


def lent(story: Story) -> list[LendBlock]:
    """Those that were just lent."""
    sends = [action for action in story.actions if isinstance(action, Send)]
    return [action.message for action in sends if isinstance(action.message, LendBlock)]


def done(of: LendBlock, *missing: str, mean: float = 1.0, **changes: Any) -> BlockDone:
    """Every device but these has trained a lease."""
    by = list(zip(of.parts(), of.devices, of.examples, strict=True))
    given: dict[str, Any] = {
        "parts": tuple(BlockPart(lease=n, node=d, examples=e) for n, d, e in by if d not in missing),
        "returned": tuple(BlockReturn(lease=n, reason=f"{d} is gone") for n, d, _ in by if d in missing),
        "tensors": {"mean": np.full(2, mean, dtype=np.float32)},
        "version": of.version,
    }
    return BlockDone(job="digits", term=1, formation=of.formation, block=of.block, **given | changes)


def test_a_hub_is_lent_a_lease_for_each_of_its_workers(story: Story) -> None:
    out = block(story)
    assert sorted(out.devices) == list(WORKERS)
    assert len(out.parts()) == 3
    assert out.tensors["model"] is story.leader.model
    assert not sent(story, Work)
    held = story.leader._training.ledger.held_by("hub")
    assert [lease.id for lease in held] == [out.block]
    assert story.leader._training.ledger.outstanding == 1


def test_a_block_is_merged_in_one_step_and_the_next_one_is_lent(story: Story) -> None:
    out, version = block(story), story.leader.version
    before = story.leader.model.copy()
    story.says("hub", done(out))
    assert story.leader.version == version + 1
    np.testing.assert_allclose(story.leader.model, before + 1.0)
    (following,) = lent(story)
    assert following.version == version + 1
    assert min(following.parts()) > max(out.parts()), "numbers of leases are never used twice"
    assert not set(following.batches) & set(out.batches)
    rows = story.leader._durability._applied
    assert {(row.batch, row.node) for row in rows if row.version == version + 1} == {
        (batch, device)
        for (_, batches), device in zip(out.parts().items(), out.devices, strict=True)
        for batch in batches
    }


def test_a_copy_of_its_end_finds_the_block_closed(story: Story) -> None:
    out = block(story)
    story.says("hub", done(out))
    version, model = story.leader.version, story.leader.model.copy()
    story.says("hub", done(out))
    assert records(story, "refused") == [f"block of hub: lease {out.block} is done: it came back in parts"]
    assert story.leader.version == version
    np.testing.assert_array_equal(story.leader.model, model)
    assert not story.leader.awaits("hub", done(out))


def test_the_end_of_a_block_of_another_term_or_hub_is_not_heard(story: Story) -> None:
    out = block(story)
    assert story.leader.awaits("hub", done(out))
    for node, term in (("hub", 2), ("other", 1)):
        message = replace(done(out), term=term)
        assert not story.leader.awaits(node, message)
        story.says(node, message)
        assert block(story) is out


def test_what_comes_back_is_lent_again_and_its_device_is_asked(story: Story) -> None:
    out = block(story)
    gone = out.devices[1]
    story.says("hub", done(out, gone))
    returned = out.parts()[out.block + 2]
    assert records(story, "lease-returned") == [f"lease {out.block + 2} came back from hub: {gone} is gone"]
    # It may be at its lease still: it says when it is free.
    assert sent(story, Go) == [gone]
    (following,) = lent(story)
    assert set(returned) <= set(following.batches)
    assert gone not in following.devices


def test_a_lost_hub_costs_a_block_and_no_batch(story: Story) -> None:
    out = block(story)
    story.happens(PeerChanged(node="hub", state=Liveness.LOST, reason="silent"))
    assert records(story, "lease-returned") == [f"lease {out.block} was taken back: hub was lost (silent)"]
    assert not story.leader._training.ledger.outstanding
    # No other hub is here: workers lead a tree, and everyone hears that the old one is over.
    following = story.leader._formations.next
    assert following is not None
    for node in following.aggregators:
        story.says(node, AggregatorReady(job="digits", term=1, formation=2, endpoint="pi:8"))
    for node in WORKERS:
        story.says(node, Routed(job="digits", term=1, formation=2))
    assert sorted(sent(story, TearDown))[:3] == list(WORKERS)
    assert not sent(story, Work), "nobody has said that it is free"
    story.ready(*WORKERS)
    batches = [
        batch
        for action in story.actions
        if isinstance(action, Send) and isinstance(action.message, Work)
        for batch in action.message.batches
    ]
    assert sorted(batches) == sorted(out.batches)
    story.says("hub", done(out))
    assert records(story, "refused") == [
        f"block of hub: lease {out.block} was taken back: hub was lost (silent)",
    ]


def test_a_block_that_is_overdue_is_taken_back_and_its_hub_not_used_for_a_while(story: Story) -> None:
    out = block(story)
    story.tick(out.deadline_s + 3.0)
    assert not story.leader._training.ledger.get(out.block)
    following = story.leader._formations.next
    assert following is not None
    assert "hub" not in following.aggregators, "it is unfit for a while"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 99}, "as the end of block"),
        ({"parts": ()}, "as the end of block"),
        ({"tensors": {"mean": np.full(2, np.nan, dtype=np.float32)}}, "not finite"),
    ],
)
def test_what_is_not_the_end_of_a_block_breaks_with_the_hub(story: Story, changes: dict[str, Any], said: str) -> None:
    out, version = block(story), story.leader.version
    story.says("hub", done(out, **changes))
    assert said in records(story, "aggregator")[0]
    assert not story.leader._training.ledger.outstanding
    assert story.leader.version == version


def test_a_block_names_no_device_that_it_was_not_lent_for(story: Story) -> None:
    out = block(story)
    parts = tuple(
        BlockPart(lease=n, node="stranger", examples=e) for n, e in zip(out.parts(), out.examples, strict=True)
    )
    story.says("hub", done(out, parts=parts))
    assert "stranger" in records(story, "aggregator")[0]


def test_a_worker_that_asks_for_work_leaves_its_block(story: Story) -> None:
    out = block(story)
    story.says("a", Ready(job="digits"))
    forms = [action.message for action in story.actions if isinstance(action, Send) and action.to == "hub"]
    assert [form.members for form in forms if isinstance(form, SetUpAggregator)] == [("b", "c"), WORKERS]
    # Until it is known to reach the hub, it has its leases from the leader, of other batches.
    (work,) = story.told("a", Work)
    assert not set(work.batches) & set(out.batches)
    story.says("hub", done(out, "a"))
    assert not lent(story), "the version waits for its lease"
    story.update("a", work, 1.0, 1.0)
    (following,) = lent(story)
    assert set(following.devices) == {"b", "c"}


def test_a_failed_lease_of_a_block_counts_for_its_device(story: Story) -> None:
    out = block(story)
    story.says("a", Failed(job="digits", term=1, lease=out.block + 1, reason="out of memory"))
    assert records(story, "failed") == ["a: out of memory"]
    forms = [action.message for action in story.actions if isinstance(action, Send) and action.to == "hub"]
    assert [form.members for form in forms if isinstance(form, SetUpAggregator)] == [("b", "c")]
    assert story.leader._batch_failures.by_batch[out.parts()[out.block + 1][0]]["a"] == 1
    assert block(story) is out


def test_a_bad_update_that_the_hub_found_is_its_devices_fault(story: Story) -> None:
    out = block(story)
    bad = BadShard(job="digits", term=1, formation=out.formation, lease=out.block + 1, node="a", reason="not finite")
    story.says("hub", bad)
    assert sent(story, UpdateRefused) == ["a"]
    worker = story.leader._workers.get("a")
    assert worker is not None
    assert worker.violations == 1
    assert block(story) is out


def test_a_hub_that_connects_again_is_told_its_block_again(story: Story) -> None:
    out = block(story)
    story.says("hub", Ready(job="digits", is_hub=True))
    assert lent(story) == [out]


def test_nobody_is_let_go_while_a_block_counts_on_it(story: Story) -> None:
    out = block(story)
    story.says("home", Release(job="digits", node="a", reason="is drained"))
    assert not sent(story, Released)
    story.says("hub", done(out))
    assert sent(story, Released) == ["home"]


def test_a_tree_with_workers_among_its_aggregators_is_lent_no_blocks(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec(topology="tree", work="blocks", aggregators=2, workers_min=3, examples=60))
    story.happens(Saved(version=0))
    story.says("hub", Ready(job="digits", is_hub=True))
    story.ready(*WORKERS)
    story.tick(3.0)
    for _ in range(4):
        round_of(story)
        story.tick(1.0)
    following = story.leader._formations.next
    assert following is not None
    assert not following.lends
    assert "leases, not blocks: 1 of 2 aggregators train as well" in following.reason
    assert not sent(story, Wait)


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": "star"},
        {"topology": "auto"},
        {"pace": "async"},
        {"trust": "robust(clip)"},
        {"data": "local"},
        {"cohort": 2},
        {"codec": "bf16"},
        {"codec_down": "bf16"},
    ],
)
def test_a_plan_that_a_leader_must_know_each_device_for_has_no_blocks(changes: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=r"work = 'blocks' with .*: set .*; or work = 'leased'"):
        Plan(**{"topology": "tree", "work": "blocks", **changes})
