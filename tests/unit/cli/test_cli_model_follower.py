"""A file at the version that is served: what is fetched, what is kept, why, and that the file is always whole."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statuses import JOB, job, progress, status

from shoal.cli.commands import model
from shoal.cli.exits import Exit, NoCluster
from shoal.cli.model_follower import FollowLine, KeptFile, keep, version_in
from shoal.errors import Misuse, Refused, Unreachable
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.wire import tensors
from shoal.wire.messages import EvaluationView, ServedView, Status


def seen(version: int, share: float, examples: int = 1000) -> EvaluationView:
    return EvaluationView(
        version=version, epoch=version // 10, accuracy=share, loss=0.2, examples=examples, seconds=1.0
    )


class Around:
    """A cluster that stands as it is told to, and gives out what it serves, or the version that is durable then."""

    def __init__(self) -> None:
        self.durable = 0
        self.served: ServedView | None = None
        self.evaluations: tuple[EvaluationView, ...] = ()
        self.state = JobState.RUNNING
        self.until = Until(endless=True)
        self.known = True
        self.error: Exception | None = None
        self.refuses = False
        self.pulls = 0

    def serves(self, version: int, share: float, reason: str, *, verdict: str = "") -> None:
        sha256 = hashlib.sha256(model_bytes(version=version)).hexdigest()
        self.served = ServedView(
            version=version, sha256=sha256, accuracy=share, examples=1000, reason=reason, verdict=verdict
        )

    async def status(self, job_id: str = "", after_event: int = 0) -> Status:
        if self.error is not None:
            raise self.error
        view = job(
            state=self.state,
            reason="because",
            plan=Plan(until=self.until),
            progress=progress(durable_version=self.durable),
            served=self.served,
        )
        return status(*((view,) if self.known else (job(job="other"),)), evaluations=self.evaluations)

    async def pull_model(self, job_id: str, path: Path, *, newest: bool = False) -> None:
        self.pulls += 1
        if self.refuses:
            raise Refused("no blob here")
        version = self.durable if newest or self.served is None else self.served.version
        path.write_bytes(model_bytes(version=version, job_id=job_id))


def model_bytes(*, version: int, job_id: str = JOB) -> bytes:
    file = io.BytesIO()
    tensors.write(file, {"w": np.full(3, version, np.float32)}, {"job": job_id, "version": str(version)})
    return file.getvalue()


def kept_in(folder: Path, *, newest: bool = False) -> tuple[KeptFile, list[FollowLine]]:
    lines: list[FollowLine] = []
    return KeptFile(job=JOB, path=folder / "model.safetensors", newest=newest, tell=lines.append), lines


def look(kept: KeptFile, around: Around) -> None:
    asyncio.run(kept.look(around))


def test_the_file_follows_what_is_served(tmp_path: Path) -> None:
    kept, lines = kept_in(tmp_path)
    around = Around()
    look(kept, around)
    assert not kept.path.exists()
    around.durable = 5
    look(kept, around)
    around.durable = 12
    around.serves(10, 0.7, "the first that was evaluated")
    look(kept, around)
    look(kept, around)
    around.durable = 20
    around.serves(20, 0.9, "better than version 10, 70.00 %")
    look(kept, around)
    around.durable = 30
    around.serves(20, 0.9, "better than version 10, 70.00 %", verdict="version 30 is worse: keeping version 20")
    look(kept, around)
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 20
    assert [(line.did, line.version, line.text) for line in lines] == [
        ("kept", None, "there is no durable version yet"),
        ("pulled", 5, "version 5, not judged: the first one here, and none is published yet"),
        ("pulled", 10, "version 10, 70.00 % of 1,000 examples right: the first that was evaluated"),
        ("pulled", 20, "version 20, 90.00 % of 1,000 examples right: better than version 10, 70.00 %"),
        ("kept", 20, "version 30 is worse: keeping version 20"),
    ]
    assert around.pulls == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_a_version_that_is_withdrawn_goes_from_the_file(tmp_path: Path) -> None:
    kept, lines = kept_in(tmp_path)
    around = Around()
    around.durable = 40
    around.serves(40, 0.9, "better than version 31, 80.00 %")
    look(kept, around)
    around.serves(31, 0.8, "rolled back from version 40: it is odd")
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 31
    assert (lines[-1].did, lines[-1].text) == (
        "went_back",
        "version 31, 80.00 % of 1,000 examples right: version 40 is not served any more: "
        "rolled back from version 40: it is odd",
    )


def test_the_newest_is_taken_whatever_is_served(tmp_path: Path) -> None:
    kept, lines = kept_in(tmp_path, newest=True)
    around = Around()
    around.serves(20, 0.9, "the first that was evaluated")
    around.durable, around.evaluations = 30, (seen(20, 0.9), seen(30, 0.5))
    look(kept, around)
    look(kept, around)
    around.durable = 35
    look(kept, around)
    assert [line.text for line in lines] == [
        "version 30, 50.00 % of 1,000 examples right: the first one here",
        "version 35, 50.00 % of 1,000 examples right: newer than version 30",
    ]


def test_one_that_begins_again_knows_what_its_file_holds(tmp_path: Path) -> None:
    around = Around()
    around.durable = 30
    around.serves(20, 0.9, "the first that was evaluated", verdict="version 30 is worse: keeping version 20")
    (tmp_path / "model.safetensors").write_bytes(model_bytes(version=20))
    kept, lines = kept_in(tmp_path)
    look(kept, around)
    assert around.pulls == 0
    assert (lines[-1].did, lines[-1].version, lines[-1].accuracy) == ("kept", 20, 0.9)
    newest, _ = kept_in(tmp_path, newest=True)
    look(newest, around)
    assert version_in(newest.path, job=JOB) == 30


def test_a_file_of_another_job_is_replaced_and_what_is_no_model_is_not(tmp_path: Path) -> None:
    around = Around()
    around.durable = 30
    kept, _ = kept_in(tmp_path)
    kept.path.write_bytes(model_bytes(version=99, job_id="other"))
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 30
    kept.path.write_text("a letter to a friend")
    again, _ = kept_in(tmp_path)
    with pytest.raises(Misuse, match="is not a model"):
        look(again, around)
    assert kept.path.read_text() == "a letter to a friend"


def test_a_model_that_is_not_given_is_asked_for_again(tmp_path: Path) -> None:
    around = Around()
    around.durable, around.refuses = 30, True
    around.serves(30, 0.7, "the first that was evaluated")
    kept, lines = kept_in(tmp_path)
    look(kept, around)
    assert lines[-1].did == "kept"
    around.refuses = False
    look(kept, around)
    assert [line.did for line in lines] == ["kept", "pulled"]


def test_a_job_that_is_gone(tmp_path: Path) -> None:
    around = Around()
    around.known = False
    with pytest.raises(Misuse, match="no longer knows"):
        look(kept_in(tmp_path)[0], around)


def test_it_goes_on_while_the_manager_is_away_and_ends_with_the_job(tmp_path: Path) -> None:
    around = Around()
    kept, lines = kept_in(tmp_path)
    turns: list[Any] = [
        {"durable": 10},
        {"error": Unreachable("gone")},
        {"error": Unreachable("gone")},
        {"error": None, "state": JobState.STOPPED, "durable": 20},
    ]

    @asynccontextmanager
    async def connect() -> AsyncIterator[Around]:
        for name, value in turns.pop(0).items():
            setattr(around, name, value)
        yield around

    view = asyncio.run(keep(kept, connect, every_s=0.0))
    assert [line.did for line in lines] == ["pulled", "waiting", "pulled", "ended"]
    assert lines[-1].reason == f"stopped: because. {kept.path} holds version 20"
    assert model.end_of(view) == Exit.OK, "a job without an end is over when it is stopped"
    around.until = Until(epochs=9)
    ended = asyncio.run(around.status()).jobs[0]
    assert model.end_of(ended) == Exit.FAILED


def test_a_cluster_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    around = Around()
    around.error = NoCluster("run `shoal up`")

    @asynccontextmanager
    async def connect() -> AsyncIterator[Around]:
        yield around

    with pytest.raises(NoCluster):
        asyncio.run(keep(kept_in(tmp_path)[0], connect, every_s=0.0))


def test_lines_for_people_and_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = FollowLine(
        job=JOB, file="m", did="pulled", version=31, accuracy=0.94, examples=1204, reason="better\x1b[2J than 22"
    )
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    model._teller(json=True)(line)
    model._teller(json=False)(line)
    plain, text = out.getvalue().splitlines()
    assert json.loads(plain) == {
        "job": JOB,
        "file": "m",
        "did": "pulled",
        "version": 31,
        "accuracy": 0.94,
        "examples": 1204,
        "reason": "better\x1b[2J than 22",
        "metrics": {},
    }
    assert text == "version 31, 94.00 % of 1,204 examples right: better [2J than 22"
