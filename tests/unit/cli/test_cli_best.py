"""A file at the best version so far: what is fetched, what is kept, why, and that the file is always whole."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import JOB, job, progress, status

from shoal.cli import model
from shoal.cli.best import Held, Keep, Pull, decide, judged_at, settle
from shoal.cli.chance import at_least
from shoal.cli.exits import Exit, NoCluster
from shoal.cli.kept import KeptFile, Line, keep, version_in
from shoal.errors import Misuse, Refused, Unreachable
from shoal.plan import Plan, Until
from shoal.wire import tensors
from shoal.wire.messages import EvaluationView, Status


def seen(version: int, share: float, examples: int = 1000) -> EvaluationView:
    return EvaluationView(
        version=version, epoch=version // 10, accuracy=share, loss=0.2, examples=examples, seconds=1.0
    )


# What to do.


def test_a_file_that_is_not_there_is_fetched_whatever_it_is_worth() -> None:
    assert decide(None, durable=40, evaluations=()) == Pull("the first one here")
    assert decide(None, durable=0, evaluations=()) == Keep("there is no durable version yet")


def test_better_is_fetched_and_worse_is_not() -> None:
    held = Held(version=31, judged=seen(30, 0.94))
    views = (seen(30, 0.94), seen(40, 0.912))
    assert decide(held, durable=40, evaluations=views) == Keep(
        "version 40 is worse, 91.20 % against 94.00 %: keeping version 31"
    )
    better = (*views, seen(50, 0.95))
    assert decide(held, durable=52, evaluations=better) == Pull("better than version 31, 94.00 %")
    same = (*views, seen(50, 0.94))
    assert decide(held, durable=50, evaluations=same) == Keep(
        "version 50 is no better, 94.00 % against 94.00 %: keeping version 31"
    )


def test_what_the_file_holds_is_not_told_of_again() -> None:
    held = Held(version=30, judged=seen(30, 0.94))
    assert decide(held, durable=30, evaluations=(seen(30, 0.94),)) == Keep()
    assert decide(held, durable=35, evaluations=(seen(30, 0.94),)) == Keep()
    assert decide(held, durable=35, evaluations=()) == Keep()


def test_what_was_never_evaluated_gives_way_to_what_is_newer() -> None:
    held = Held(version=30)
    assert decide(held, durable=30, evaluations=()) == Keep()
    assert decide(held, durable=35, evaluations=()) == Pull("newer than version 30, which was not evaluated")
    assert settle(held, version=35, evaluations=()) == Held(version=35)
    assert settle(held, version=35, evaluations=(seen(32, 0.1),)) == Held(version=35, judged=seen(32, 0.1))


def test_the_newest_is_taken_even_if_it_is_worse() -> None:
    held = Held(version=30, judged=seen(30, 0.94))
    views = (seen(30, 0.94), seen(40, 0.5))
    assert decide(held, durable=41, evaluations=views, newest=True) == Pull("newer than version 30")
    assert decide(held, durable=30, evaluations=views, newest=True) == Keep()


def test_a_lucky_score_over_few_does_not_stand_for_ever() -> None:
    held = Held(version=10, judged=seen(10, 1.0, examples=4))
    assert isinstance(decide(held, durable=20, evaluations=(seen(10, 1.0, 4), seen(20, 0.9))), Pull)
    sure = Held(version=20, judged=seen(20, 0.9))
    lucky = (seen(20, 0.9), seen(30, 1.0, examples=4))
    assert decide(sure, durable=30, evaluations=lucky) == Keep(
        "version 30 had 100.00 % of 4 examples right, too few to be sure against 90.00 % of 1,000 examples right: "
        "keeping version 20"
    )


def test_an_evaluation_speaks_for_those_that_come_soon_after() -> None:
    views = (seen(20, 0.8), seen(30, 0.9))
    assert judged_at(views, 19) is None
    assert judged_at(views, 20) == judged_at(views, 29) == views[0]
    assert judged_at(views, 30) == judged_at(views, 40) == views[1]
    assert judged_at(views, 41) is None, "another was due by then"
    held = Held(version=20, judged=views[0])
    told = decide(held, durable=95, evaluations=views)
    assert told == Keep(
        "version 30 was better, 90.00 % of 1,000 examples right, and version 95 is what there is by now: "
        "keeping version 20 until that is evaluated"
    )


def test_news_speak_for_what_there_is_by_now() -> None:
    """New examples come seldom: many versions are made between two evaluations, and as many between two looks."""
    views = (seen(20, 0.8), seen(30, 0.9))
    held = Held(version=20, judged=views[0])
    assert judged_at(views, 95, seen=20) == views[1]
    assert judged_at(views, 95, seen=30) is None
    assert decide(held, durable=95, evaluations=views, seen=20) == Pull("better than version 20, 80.00 %")
    assert isinstance(decide(held, durable=95, evaluations=views, seen=30), Keep)
    assert settle(held, version=97, evaluations=views, seen=20) == Held(version=97, judged=views[1])


def test_what_came_is_judged_by_what_is_known_of_it() -> None:
    held = Held(version=20, judged=seen(20, 0.8))
    views = (seen(20, 0.8), seen(30, 0.9), seen(40, 0.7))
    assert settle(held, version=30, evaluations=views) == Held(version=30, judged=views[1])
    assert settle(held, version=40, evaluations=views) == Keep(
        "version 40 is worse, 70.00 % against 80.00 %: keeping version 20"
    )
    assert isinstance(settle(held, version=90, evaluations=views), Keep)
    assert settle(held, version=90, evaluations=views, newest=True) == Held(version=90)
    assert settle(None, version=90, evaluations=()) == Held(version=90)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5000)), min_size=1, max_size=20))
def test_what_is_held_never_becomes_worse(rounds: list[tuple[float, int]]) -> None:
    views: list[EvaluationView] = []
    held: Held | None = None
    for number, (share, examples) in enumerate(rounds, start=1):
        views.append(seen(10 * number, share, examples))
        before = held
        if isinstance(decide(held, durable=10 * number, evaluations=views), Pull):
            after = settle(held, version=10 * number, evaluations=views)
            assert isinstance(after, Held)
            held = after
        assert held is not None
        assert held.judged is not None
        if before is not None and before.judged is not None and held is not before:
            assert held.version > before.version
            assert at_least(held.judged.accuracy, held.judged.examples) > at_least(
                before.judged.accuracy, before.judged.examples
            )
    best = max(at_least(share, examples) for share, examples in rounds)
    assert held is not None
    assert held.judged is not None
    assert at_least(held.judged.accuracy, held.judged.examples) == best


# The file.


class Around:
    """A cluster that stands as it is told to, and gives out the version that is durable then."""

    def __init__(self) -> None:
        self.durable = 0
        self.evaluations: tuple[EvaluationView, ...] = ()
        self.state = "running"
        self.until = Until(endless=True)
        self.known = True
        self.error: Exception | None = None
        self.refuses = False
        #: Happens between the answer and the model.
        self.meanwhile: list[tuple[int, tuple[EvaluationView, ...]]] = []
        self.pulls = 0

    async def status(self, job_id: str = "", after_event: int = 0) -> Status:
        if self.error is not None:
            raise self.error
        view = job(
            state=self.state,
            reason="because",
            plan=Plan(until=self.until),
            progress=progress(durable_version=self.durable),
        )
        return status(*((view,) if self.known else (job(job="other"),)), evaluations=self.evaluations)

    async def pull_model(self, job_id: str, path: Path) -> None:
        self.pulls += 1
        if self.meanwhile:
            self.durable, self.evaluations = self.meanwhile.pop(0)
        if self.refuses:
            raise Refused("no blob here")
        write(path, version=self.durable, job_id=job_id)


def write(path: Path, *, version: int, job_id: str = JOB) -> None:
    with path.open("wb") as file:
        values = {"w": np.full(3, version, np.float32)}
        tensors.write(file, values, {"job": job_id, "version": str(version)})


def kept_in(folder: Path, *, newest: bool = False) -> tuple[KeptFile, list[Line]]:
    lines: list[Line] = []
    return KeptFile(job=JOB, path=folder / "model.safetensors", newest=newest, tell=lines.append), lines


def look(kept: KeptFile, around: Around) -> None:
    asyncio.run(kept.look(around))


def test_the_file_becomes_better_and_stays_so(tmp_path: Path) -> None:
    kept, lines = kept_in(tmp_path)
    around = Around()
    look(kept, around)
    assert not kept.path.exists()
    around.durable, around.evaluations = 10, (seen(10, 0.7),)
    look(kept, around)
    look(kept, around)
    around.durable, around.evaluations = 20, (seen(10, 0.7), seen(20, 0.9))
    look(kept, around)
    around.durable, around.evaluations = 30, (*around.evaluations, seen(30, 0.5))
    look(kept, around)
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 20
    assert [(line.did, line.version, line.text) for line in lines] == [
        ("kept", None, "there is no durable version yet"),
        ("pulled", 10, "version 10, 70.00 % of 1,000 examples right: the first one here"),
        ("pulled", 20, "version 20, 90.00 % of 1,000 examples right: better than version 10, 70.00 %"),
        ("kept", 20, "version 30 is worse, 50.00 % against 90.00 %: keeping version 20"),
    ]
    assert around.pulls == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_a_worse_version_that_came_instead_is_dropped(tmp_path: Path) -> None:
    kept, lines = kept_in(tmp_path)
    around = Around()
    around.durable, around.evaluations = 10, (seen(10, 0.7),)
    look(kept, around)
    around.durable, around.evaluations = 20, (seen(10, 0.7), seen(20, 0.9))
    around.meanwhile = [(30, (*around.evaluations, seen(30, 0.6)))]
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 10
    assert lines[-1].reason == "version 30 is worse, 60.00 % against 70.00 %: keeping version 10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_one_that_begins_again_knows_what_its_file_holds(tmp_path: Path) -> None:
    around = Around()
    around.durable, around.evaluations = 30, (seen(10, 0.7), seen(20, 0.9), seen(30, 0.8))
    write(tmp_path / "model.safetensors", version=20)
    kept, lines = kept_in(tmp_path)
    look(kept, around)
    assert around.pulls == 0
    assert lines[-1].reason == "version 30 is worse, 80.00 % against 90.00 %: keeping version 20"
    newest, _ = kept_in(tmp_path, newest=True)
    look(newest, around)
    assert version_in(newest.path, job=JOB) == 30


def test_a_file_of_another_job_is_replaced_and_what_is_no_model_is_not(tmp_path: Path) -> None:
    around = Around()
    around.durable, around.evaluations = 30, (seen(30, 0.8),)
    kept, _ = kept_in(tmp_path)
    write(kept.path, version=99, job_id="other")
    look(kept, around)
    assert version_in(kept.path, job=JOB) == 30
    kept.path.write_text("a letter to a friend")
    again, _ = kept_in(tmp_path)
    with pytest.raises(Misuse, match="is no model"):
        look(again, around)
    assert kept.path.read_text() == "a letter to a friend"


def test_news_that_could_not_be_had_stay_news(tmp_path: Path) -> None:
    around = Around()
    kept, lines = kept_in(tmp_path)
    around.durable, around.evaluations = 10, (seen(10, 0.7),)
    look(kept, around)
    around.durable, around.evaluations, around.refuses = 500, (seen(10, 0.7), seen(12, 0.9)), True
    look(kept, around)
    around.durable, around.refuses = 900, False
    look(kept, around)
    look(kept, around)
    assert [line.did for line in lines] == ["pulled", "kept", "pulled"]
    assert (lines[-1].version, lines[-1].accuracy) == (900, 0.9)


def test_a_model_that_is_not_given_is_asked_for_again(tmp_path: Path) -> None:
    around = Around()
    around.durable, around.refuses = 30, True
    kept, lines = kept_in(tmp_path)
    look(kept, around)
    assert lines[-1].did == "kept"
    around.refuses = False
    look(kept, around)
    assert (lines[-1].did, lines[-1].text) == ("pulled", "version 30, not judged: the first one here")


def test_a_job_that_is_gone(tmp_path: Path) -> None:
    around = Around()
    around.known = False
    with pytest.raises(Misuse, match="no longer knows"):
        look(kept_in(tmp_path)[0], around)


def test_it_goes_on_while_the_manager_is_away_and_ends_with_the_job(tmp_path: Path) -> None:
    around = Around()
    kept, lines = kept_in(tmp_path)
    turns: list[Any] = [
        {"durable": 10, "evaluations": (seen(10, 0.7),)},
        {"error": Unreachable("gone")},
        {"error": Unreachable("gone")},
        {"error": None, "state": "stopped", "durable": 20, "evaluations": (seen(10, 0.7), seen(20, 0.8))},
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
    line = Line(
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
    }
    assert text == "version 31, 94.00 % of 1,204 examples right: better [2J than 22"
