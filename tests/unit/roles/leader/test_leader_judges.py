"""A leader and those who lie, or whose model was broken: what is merged, who is left out, where the model goes back to.

As in ``test_leader``: the model is two zeros, an honest update is [1, 1], and a lie is 10^5 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from leader_story import Story

from dst.oracles import gaps_in
from shoal.plan import Until
from shoal.roles.actions import Save
from shoal.roles.events import Saved
from shoal.roles.node.checkpoint_transfer import packed, unpacked, version_of
from shoal.wire.messages import Failed, JobSpec, UpdateRefused, Wait, Work

Start = Callable[..., Story]

HUGE = (9e5, 1.0)
PACES = ("sync", "buffered", "async")


@pytest.fixture
def begin(make_spec: Callable[..., JobSpec]) -> Start:
    """Start a leader whose first save is done."""

    def start(*, term: int = 1, saved: Save | None = None, **spec: Any) -> Story:
        story = Story(make_spec(**spec), term=term, saved=saved)
        if saved is None:
            story.happens(Saved(version=0))
        return story

    return start


def works(story: Story, *nodes: str) -> dict[str, Work]:
    return {node: work for node in nodes for work in story.told(node, Work)[-1:]}


class Round:
    """Honest devices that go on by themselves, and the leases of those that do not."""

    def __init__(self, story: Story, *nodes: str) -> None:
        self.story = story
        self.held: dict[str, Work] = {}
        story.ready(*nodes)
        self.look()

    def look(self) -> None:
        for action in self.story.actions:
            message = getattr(action, "message", None)
            if isinstance(message, Work):
                self.held[action.to] = message  # type: ignore[union-attr]

    def update(self, node: str, *values: float) -> None:
        self.story.update(node, self.held.pop(node), *values)
        self.look()

    def diverge(self, node: str) -> None:
        work = self.held.pop(node)
        failed = Failed(job="digits", term=work.term, lease=work.lease, reason="not finite", diverged=True)
        self.story.says(node, failed)
        self.look()


@pytest.fixture(params=PACES)
def lively(request: pytest.FixtureRequest, begin: Start) -> Story:
    """A long job in one pace, with held-out examples."""
    return begin(examples=400, test=1000, pace=request.param, buffer=2, until=Until(epochs=50))


def test_one_huge_update_is_refused_in_every_pace(lively: Story) -> None:
    crew = Round(lively, "a", "b", "evil")
    for _ in range(8):
        for node in ("a", "b", "evil"):
            crew.update(node, 1, 1)
    before = max(lively.model)
    crew.update("evil", *HUGE)
    (refused,) = lively.told("evil", UpdateRefused)
    assert "times what is usual" in refused.reason
    for _ in range(3):
        for node in ("a", "b"):
            if node in crew.held:
                crew.update(node, 1, 1)
    assert max(lively.model) < before + 20
    assert not any("evil" not in reason for reason in lively.records("update.rejected"))


def test_the_first_update_of_a_job_is_not_believed_either(lively: Story) -> None:
    # As the audit did it: the very first update, before anyone else was heard.
    crew = Round(lively, "evil", "a", "b")
    crew.update("evil", *HUGE)
    (refused,) = lively.told("evil", UpdateRefused)
    assert "before it is known what is usual" in refused.reason
    assert lively.progress.workers[-1].failures == 0, "it may be honest"
    for _ in range(6):
        for node in ("a", "b"):
            if node in crew.held:
                crew.update(node, 1, 1)
    for _ in range(3):
        crew.update("evil", *HUGE)
    assert lively.told("evil", Wait)[0].reason.startswith("left out after 3 refused updates")
    assert max(lively.model) < 50
    assert not lively.told("evil", Work)
    assert lively.leader._workers.trusted == 2


def test_honest_first_updates_that_are_large_train_again_once(begin: Start) -> None:
    story = begin(examples=400, pace="sync", until=Until(epochs=50))
    crew = Round(story, "a", "b", "c")
    for node in ("a", "b", "c"):
        crew.update(node, 5000, 5000)
    for node in ("a", "b"):
        crew.update(node, 5000, 5000)
    assert story.leader.version == 1
    assert story.model == [5000, 5000]
    assert [view.failures for view in story.progress.workers] == [0, 0, 0]


def test_an_unusual_update_now_and_then_is_made_up_for(begin: Start) -> None:
    story = begin(examples=4000, pace="async", until=Until(epochs=50))
    crew = Round(story, "a", "b", "c")
    for _ in range(8):
        for node in ("a", "b", "c"):
            crew.update(node, 1, 1)
    for _ in range(10):
        crew.update("a", *HUGE)
        crew.update("a", 1, 1)
    assert story.leader._workers.trusted == 3
    for _ in range(3):
        crew.update("a", *HUGE)
    assert story.told("a", Wait)[0].reason.startswith("left out after 3 refused updates")


def test_a_new_leader_knows_what_is_usual(begin: Start) -> None:
    story = begin(examples=400, pace="async", until=Until(epochs=50), checkpoint_every_s=0.0)
    crew = Round(story, "a", "b", "c")
    for _ in range(4):
        for node in ("a", "b", "c"):
            crew.update(node, 1, 1)
    story.happens(Saved(version=1))
    saved = story.save()
    after = begin(examples=400, pace="async", until=Until(epochs=50), saved=saved, term=2)
    crew = Round(after, "evil")
    crew.update("evil", *HUGE)
    assert "times what is usual" in after.told("evil", UpdateRefused)[0].reason


# The model is suspected -----------------------------------------------------------------------------------


def evaluated(story: Story, crew: Round, *nodes: str) -> None:
    """One epoch by these devices, and its evaluation."""
    epoch = story.leader.epoch
    while story.leader.epoch == epoch:
        for node in nodes:
            if node in crew.held and crew.held[node].kind == "train":
                crew.update(node, 1, 1)
    for node in [node for node, work in crew.held.items() if work.kind == "evaluate"]:
        story.evaluated(node, crew.held.pop(node), correct=900)
        crew.look()


def test_when_all_turn_bad_the_model_goes_back_and_who_contributed_is_set_aside(begin: Start) -> None:
    story = begin(examples=12, test=1000, pace="async", until=Until(epochs=50))
    crew = Round(story, "a", "b", "evil")
    evaluated(story, crew, "a", "b", "evil")
    good, model = story.leader.version, story.model
    # It breaks the model by what the bound lets pass; whatever the others get from that is not finite.
    crew.update("evil", 90, -90)
    broken = story.leader.version
    crew.diverge("a")
    crew.diverge("b")
    (told,) = story.records("model.reverted")
    assert told.startswith(f"version {broken + 1} is version {good} again")
    assert told.endswith("set aside, since they contributed: evil")
    assert (story.leader.version, story.model) == (broken + 1, model)
    assert story.leader.epoch == 1
    assert story.leader._workers.trusted == 2
    # The others go on, from the whole model.
    assert story.progress.state == "training"
    story.ready("a", "b")
    assert {work.version for work in works(story, "a", "b").values()} == {broken + 1}
    assert all("model" in work.tensors for work in works(story, "a", "b").values())
    story.ready("evil")
    assert not story.told("evil", Work)
    assert story.told("evil", Wait)[0].reason.startswith("set aside: it contributed to the model after version")


def test_no_batch_is_twice_or_missing_in_the_history_that_survives(begin: Start) -> None:
    story = begin(examples=12, test=1000, pace="async", until=Until(epochs=50), checkpoint_every_s=0.0)
    history: dict[tuple[int, int], int] = {}

    def keep() -> None:
        """What a store does: it drops what the training went back over, and adds what is new."""
        for save in [action for action in story.actions if isinstance(action, Save)]:
            version = unpacked(packed(version_of(save), job="digits", term=1))
            assert version is not None
            for kept, again in gaps_in(version.state):
                for key in [key for key, at in history.items() if kept < at < again]:
                    del history[key]
            for row in version.applied:
                assert (row.epoch, row.batch) not in history
                history[row.epoch, row.batch] = row.version
            story.happens(Saved(version=save.version))
            crew.look()
            keep()

    crew = Round(story, "a", "b", "c", "d", "evil")
    while story.leader.epoch == 0:
        for node in ("a", "b", "c", "d", "evil"):
            if node in crew.held and crew.held[node].kind == "train":
                crew.update(node, 1, 1)
                keep()
    for node in [node for node, work in crew.held.items() if work.kind == "evaluate"]:
        story.evaluated(node, crew.held.pop(node), correct=900)
        crew.look()
        keep()
    for _ in range(3):
        crew.update("evil", 90, -90)
        keep()
    story.tick(1.0)
    keep()
    assert max(history.values()) > 12
    for node in ("a", "b", "c"):
        crew.diverge(node)
        keep()
    assert story.leader._workers.trusted == 4
    assert set(history) == {(0, batch) for batch in range(12)}
    while story.leader.epoch == 1:
        story.ready("a", "b")
        crew.look()
        for node in ("a", "b"):
            if node in crew.held and crew.held[node].kind == "train":
                crew.update(node, 1, 1)
                keep()
    story.tick(20.0)
    keep()
    assert set(history) == {(epoch, batch) for epoch in range(2) for batch in range(12)}


def test_where_nobody_is_left_the_job_fails_and_keeps_the_good_model(begin: Start) -> None:
    story = begin(examples=12, test=1000, pace="sync", until=Until(epochs=50))
    crew = Round(story, "a", "b")
    evaluated(story, crew, "a", "b")
    model = story.model
    crew.update("a", 1, 1)
    crew.update("b", 1, 1)
    crew.diverge("a")
    crew.diverge("b")
    assert story.progress.state == "closing"
    assert story.progress.reason.startswith("the model is suspected: a, b get values that are not finite")
    assert "no worker is left that did not contribute since (a, b)" in story.progress.reason
    assert "refused 3 times" not in story.progress.reason
    assert story.model == model


def test_a_model_that_nobody_moved_is_not_gone_back_from_for_ever(begin: Start) -> None:
    story = begin(examples=12, pace="async", until=Until(epochs=50))
    crew = Round(story, "a", "b", "c")
    crew.diverge("a")
    crew.diverge("b")
    assert story.progress.state == "closing"
    assert "which nobody moved since it was found good" in story.progress.reason


def test_values_that_are_not_finite_from_one_device_do_not_move_the_model_back(begin: Start) -> None:
    story = begin(examples=400, pace="async", until=Until(epochs=50))
    crew = Round(story, "a", "b", "evil")
    for _ in range(3):
        crew.update("evil", float("nan"), 0)
        crew.update("a", 1, 1)
        crew.update("b", 1, 1)
    assert story.leader.version == 6
    assert story.leader._workers.trusted == 2
    assert story.told("evil", Work) == []


def test_a_checkpoint_that_went_back_nowhere_is_refused(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec())
    save = story.save()
    sound = version_of(save)
    for gaps in ([[3, 1]], [[0, 9]], [["0", 0]], [[0]], "x", [[-1, 0]]):
        broken = type(sound)(version=0, tensors=sound.tensors, state={**sound.state, "went_back": gaps})
        with pytest.raises(Exception, match="went_back"):
            unpacked(packed(broken, job="digits", term=1))
    assert np.array_equal(save.tensors["w"], [0, 0])
