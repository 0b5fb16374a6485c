"""Published versions on a real disk: whole after a crash between any two steps, bounded, the same after a restart."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import Refused
from shoal.plan import Plan, Until
from shoal.roles.evaluation_rows import row_of
from shoal.roles.manager.publishing import Serving
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.runtime.job_files import FRESH_S
from shoal.runtime.publisher import Publisher
from shoal.store.blobs import BlobStore
from shoal.store.registry import Registry
from shoal.wire import tensors as tensor_files
from shoal.wire.messages import EvaluationView

JOB = "readings"
ENDLESS = Plan(until=Until(endless=True), versions_kept=3)


class PowerCut(Exception):
    """Nothing that comes after it happens."""


@dataclass
class Site:
    """A manager's disk, as one process after the other finds it."""

    folder: Path
    notes: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry(self.folder / "registry.sqlite")
        if self.registry.job(JOB) is None:
            self.registry.add_job(job=JOB, name=JOB, spec_json="{}", now_s=1.0)
        self.models = BlobStore(self.folder / "published")
        self.publisher = Publisher(
            self.registry, self.models, lambda job, kind, why: self.notes.append((kind, why)), clock=lambda: 77.0
        )

    def restarted(self) -> Site:
        self.registry.close()
        return Site(self.folder)

    def is_sound(self) -> None:
        """What is served can be fetched, no file is there for nothing, and no row without its file."""
        kept = self.registry.published(JOB)
        assert self.models.hashes() == sorted({each.sha256 for each in kept})
        assert all(self.models.verify(each.sha256) for each in kept)
        served = self.publisher.served(JOB)
        assert (served is None) == (not kept)
        if served is not None:
            assert served.version in [each.version for each in kept]
            assert self.publisher.model(JOB) is not None

    def version_of(self, sha256: str) -> int:
        return int(tensor_files.read(self.models.path(sha256), mmap=False)[1]["version"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.registry.close()


def durable(version: int, *shares: float) -> StoredVersion:
    """A version, with an evaluation of every tenth up to it."""
    views = [
        EvaluationView(version=10 * n, epoch=n, accuracy=share, loss=0.5, examples=1000, seconds=1.0)
        for n, share in enumerate(shares, start=1)
    ]
    rows = [row_of(view) for view in views]
    tensors = {"w": np.full(4, version, np.float32), "shoal.velocity": np.zeros(4, np.float32)}
    return StoredVersion(
        version=version, tensors=tensors, state={"evaluations": rows, "ledger": {"epoch": len(shares)}}
    )


def versions(site: Site) -> list[int]:
    return [each.version for each in site.publisher.versions(JOB).versions]


def test_the_better_is_published_by_itself_and_the_worse_is_not(site: Site) -> None:
    site.publisher.weigh(JOB, ENDLESS, durable(5))
    assert site.publisher.served(JOB) is None, "nothing was judged"
    assert site.publisher.model(JOB) is None
    site.publisher.weigh(JOB, ENDLESS, durable(12, 0.7))
    site.publisher.weigh(JOB, ENDLESS, durable(21, 0.7, 0.9))
    site.publisher.weigh(JOB, ENDLESS, durable(25, 0.7, 0.9))
    site.publisher.weigh(JOB, ENDLESS, durable(30, 0.7, 0.9, 0.8))
    told = site.publisher.versions(JOB)
    first, second = told.versions
    assert (first.version, first.number, first.accuracy, first.at_s) == (12, 1, 0.7, 77.0)
    assert (second.version, second.number, second.reason) == (21, 2, "better than version 12, 70.00 %")
    assert told.served is not None
    assert (told.served.version, told.served.verdict) == (
        21,
        "version 30 is worse, 80.00 % against 90.00 %: keeping version 21",
    )
    model = site.publisher.model(JOB)
    assert model is not None
    held, notes = tensor_files.read(site.models.path(model.sha256), mmap=False)
    assert list(held) == ["w"], "without the bookkeeping"
    assert notes == {"job": JOB, "version": "21"}
    assert model.size_bytes == site.models.path(model.sha256).stat().st_size
    assert [kind for kind, _ in site.notes] == ["version.published", "version.published"]
    site.is_sound()


def test_an_evaluation_is_weighed_once(site: Site) -> None:
    every = Plan(until=Until(endless=True), publish="every")
    site.publisher.weigh(JOB, every, durable(10, 0.7))
    site.publisher.weigh(JOB, every, durable(15, 0.7))
    assert versions(site) == [10], "the next checkpoint brings it again"
    site.publisher.weigh(JOB, every, durable(20, 0.7, 0.2))
    assert versions(site) == [10, 20]


def test_a_job_with_an_end_is_published_by_hand_alone(site: Site) -> None:
    plan = Plan(until=Until(epochs=3))
    site.publisher.weigh(JOB, plan, durable(10, 0.9))
    assert site.publisher.served(JOB) is None
    assert site.registry.serving(JOB) == Serving(), "nothing is written down for it"
    site.publisher.weigh(JOB, Plan(until=Until(epochs=3), publish="asked"), durable(10, 0.9))
    assert "when an operator says so" in site.registry.serving(JOB).verdict
    assert site.publisher.publish(JOB, plan, durable(10, 0.9)) == (
        "version 10 is served, 90.00 % of 1,000 examples right"
    )
    assert site.publisher.publish(JOB, plan, durable(90, 0.9)) == "version 90 is served, not evaluated"
    with pytest.raises(Refused, match="learned nothing"):
        site.publisher.publish(JOB, plan, durable(0))


def test_a_rollback_holds_until_an_operator_publishes(site: Site) -> None:
    site.publisher.weigh(JOB, ENDLESS, durable(10, 0.7))
    site.publisher.weigh(JOB, ENDLESS, durable(20, 0.7, 0.9))
    told = site.publisher.roll_back(JOB, 0, reason="it is odd")
    assert told.startswith("version 10 is served again; version 20 was withdrawn: it is odd; until")
    site = site.restarted()
    site.publisher.weigh(JOB, ENDLESS, durable(30, 0.7, 0.9, 0.99))
    served = site.publisher.served(JOB)
    assert served is not None
    assert (served.version, served.reason) == (10, "rolled back from version 20: it is odd")
    assert "held back" in served.verdict
    site.publisher.publish(JOB, ENDLESS, durable(30, 0.7, 0.9, 0.99))
    site.publisher.weigh(JOB, ENDLESS, durable(40, 0.7, 0.9, 0.99, 1.0))
    served = site.publisher.served(JOB)
    assert served is not None
    assert (served.version, served.hold) == (40, ""), "the hold is over"
    site.is_sound()
    site.registry.close()


def test_a_damaged_model_is_not_served_again(site: Site) -> None:
    site.publisher.weigh(JOB, ENDLESS, durable(10, 0.7))
    site.publisher.weigh(JOB, ENDLESS, durable(20, 0.7, 0.9))
    first = site.publisher.versions(JOB).versions[0]
    site.models.path(first.sha256).write_bytes(b"rust")
    with pytest.raises(Refused, match="damaged"):
        site.publisher.roll_back(JOB, 0)
    served = site.publisher.served(JOB)
    assert served is not None
    assert served.version == 20


def test_so_many_are_kept_and_what_is_served_always(site: Site) -> None:
    shares: list[float] = []
    for n in range(1, 6):
        shares.append(0.5 + n / 20)
        site.publisher.weigh(JOB, ENDLESS, durable(10 * n, *shares))
    assert versions(site) == [30, 40, 50]
    site.publisher.roll_back(JOB, 30)
    site.publisher.publish(JOB, ENDLESS, durable(60))
    assert versions(site) == [40, 50, 60]
    assert site.version_of(site.publisher.versions(JOB).versions[0].sha256) == 40
    assert site.publisher.model(JOB, 50) is not None
    with pytest.raises(Refused, match="not among the published ones that are kept: 40, 50, 60"):
        site.publisher.model(JOB, 30)
    site.is_sound()


def test_the_same_version_again_is_one_row(site: Site) -> None:
    site.publisher.weigh(JOB, ENDLESS, durable(10, 0.7))
    site.publisher.publish(JOB, ENDLESS, durable(10, 0.7), reason="sure")
    (only,) = site.publisher.versions(JOB).versions
    assert (only.number, only.reason) == (2, "an operator published it: sure")
    site.is_sound()


#: What a publication does, one after the other.
STEPS = ("make", "publish", "remove")


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_between_any_two_steps_leaves_what_is_whole(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    for n in (1, 2, 3):
        site.publisher.weigh(JOB, ENDLESS, durable(10 * n, *(0.5 + each / 10 for each in range(1, n + 1))))
    owner: Any = site.registry if step == "publish" else site.models
    _dies_at(owner, step, monkeypatch, is_done=is_done)
    better = durable(40, 0.6, 0.7, 0.8, 0.9)
    with pytest.raises(PowerCut):
        site.publisher.weigh(JOB, ENDLESS, better)
    monkeypatch.undo()
    site = site.restarted()
    site.is_sound()
    served = site.publisher.served(JOB)
    assert served is not None
    was_decided = step == "remove" or (step == "publish" and is_done)
    assert served.version == (40 if was_decided else 30)
    # The next leader begins from the same checkpoint, and it is weighed again.
    site.publisher.weigh(JOB, ENDLESS, better)
    assert versions(site) == [20, 30, 40]
    assert [each.number for each in site.publisher.versions(JOB).versions] == [2, 3, 4], "published once"
    site.is_sound()
    site.registry.close()


def _dies_at(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def cut(*arguments: Any, **named: Any) -> Any:
        if is_done:
            whole(*arguments, **named)
        raise PowerCut

    monkeypatch.setattr(owner, name, cut)


def test_a_manager_that_starts_leaves_a_model_that_another_is_about_to_publish(tmp_path: Path) -> None:
    models = BlobStore(tmp_path / "published")
    writer = models.writer(sha256 := hashlib.sha256(b"model").hexdigest(), 5)
    writer.feed(memoryview(b"model"))
    writer.commit()
    now_s = time.time()

    def starts(*, holder: str, now_s: float) -> list[str]:
        with Registry(tmp_path / "registry.sqlite", holder=holder) as registry:
            Publisher(registry, models, lambda job, kind, why: None, clock=lambda: now_s)
        return models.hashes()

    assert starts(holder="home/1", now_s=now_s) == [sha256]
    assert starts(holder="home/1", now_s=now_s + FRESH_S + 1) == []
