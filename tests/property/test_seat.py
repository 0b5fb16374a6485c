"""Managers that stop, lose their database and come back, in any order: one of them writes, and what it wrote stays.

Deployed parts (the watch, the seat, the fenced database) under a clock of the test's own. Every fence has a mutant that
the same stories must find.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.roles.manager import standby
from shoal.roles.manager.standby import LOOK_EVERY_S, RENEW_EVERY_S, SILENT_S, Seat, SeatWatch, may_serve
from shoal.store import seat as seat_module
from shoal.store.base import Away
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(300)

SEEDS = 60
STORY_S = 60.0
STEP_S = 0.2


class Link:
    """A manager's way to the database, which may be cut."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.is_cut = False

    def __getattr__(self, name: str) -> object:
        if self.is_cut and name in ("rows", "change", "change_each", "transaction"):
            raise Away("cut")
        return getattr(self._database, name)


class Manager:
    """The driver's loop, one step at a time."""

    def __init__(self, name: str, database: SqliteDatabase) -> None:
        self.name = name
        self.link = Link(database)
        self._seats = Seats(self.link)  # type: ignore[arg-type]
        self._watch = SeatWatch()
        self.tenure: Tenure | None = None
        self.wakes_s = 0.0
        self._next_s = 0.0
        self._version = 0
        self.took_at_s: list[float] = []

    def step(self, now_s: float, story: Story) -> None:
        if now_s < max(self.wakes_s, self._next_s):
            return
        try:
            if self.tenure is None:
                self._next_s = now_s + LOOK_EVERY_S
                seen = self._seats.look()
                if self._watch.may_take(seen, now_s):
                    story.looked(self, seen, now_s)
                    if story.is_stopped_between(self):
                        return
                    self.tenure = self._seats.take(self.name, seen)
                    if self.tenure is not None:
                        self.took_at_s.append(now_s)
                        story.took(self, self.tenure)
                        self._version = story.newest_version()
            else:
                self._next_s = now_s + RENEW_EVERY_S
                self._write(story)
        except Away:
            self._watch.blind()
        except Deposed:
            self.tenure, self._watch = None, SeatWatch()

    def _write(self, story: Story) -> None:
        assert self.tenure is not None
        version = self._version + 1
        with FencedDatabase(self.link, self.tenure).transaction() as database:  # type: ignore[arg-type]
            database.change(
                "INSERT INTO applied VALUES ('j', ?, 0, ?, ?, ?) ON CONFLICT (job, epoch, batch) DO UPDATE SET"
                " node = excluded.node, lease = excluded.lease",
                (version, version, self.name, self.tenure.term),
            )
        self._version = version
        story.acknowledged[version] = (self.name, self.tenure.term)


class Story:
    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = np.random.default_rng(seed)
        self.database = SqliteDatabase(folder / f"{seed}.db")
        self.database.change("INSERT INTO jobs VALUES ('j','j','{}','running','',0,1,NULL,'{}','','{}','')")
        self.managers = [Manager(name, self.database) for name in ("a", "b", "c")]
        self.acknowledged: dict[int, tuple[str, int]] = {}
        self.terms: dict[int, str] = {}
        self.problems: list[str] = []
        self._now_s = 0.0
        self._pending: dict[str, Seat | None] = {}

    def newest_version(self) -> int:
        (row,) = self.database.rows("SELECT COALESCE(MAX(version), 0) AS newest FROM applied WHERE job = 'j'")
        return int(row["newest"])

    def took(self, manager: Manager, tenure: Tenure) -> None:
        if tenure.term in self.terms:
            self.problems.append(f"term {tenure.term} was given twice")
        self.terms[tenure.term] = manager.name

    def looked(self, manager: Manager, seen: Seat | None, now_s: float) -> None:
        holder = next((each for each in self.managers if seen and each.name == seen.holder), None)
        if holder is not None and holder is not manager and self._is_well(holder, now_s):
            self.problems.append(f"{manager.name} would take the seat of {holder.name}, which is well")

    def _is_well(self, holder: Manager, now_s: float) -> bool:
        """It was neither stopped nor cut, nor was the database away, for as long as a silence lasts."""
        return holder.tenure is not None and now_s - self._hurt_s.get(holder.name, -99.0) > 2 * SILENT_S

    def is_stopped_between(self, manager: Manager) -> bool:
        """A process may be stopped after it looked and before it takes: it goes on with what it saw."""
        if self._chance.random() > 0.1:
            return False
        seen = manager._seats.look()
        self._late.append((self._now_s + self._chance.uniform(1.0, 8.0), manager, seen))
        manager.wakes_s = self._late[-1][0]
        return True

    def run(self) -> list[str]:
        self._hurt_s: dict[str, float] = {}
        self._late: list[tuple[float, Manager, Seat | None]] = []
        away_until_s = 0.0
        while self._now_s < STORY_S:
            self._now_s += STEP_S
            if self._chance.random() < 0.02:
                away_until_s = self._now_s + self._chance.uniform(0.5, 10.0)
            is_away = self._now_s < away_until_s
            for manager in self.managers:
                if self._chance.random() < 0.01:
                    manager.wakes_s = self._now_s + self._chance.uniform(0.5, 12.0)
                cut = is_away or (manager.link.is_cut and self._chance.random() < 0.95) or self._chance.random() < 0.004
                manager.link.is_cut = cut
                if cut or self._now_s < manager.wakes_s:
                    self._hurt_s[manager.name] = self._now_s
            for due in [each for each in self._late if each[0] <= self._now_s]:
                self._late.remove(due)
                self._take_late(*due[1:])
            for place in self._chance.permutation(len(self.managers)):
                self.managers[place].step(self._now_s, self)
        self._audit()
        self.database.close()
        return self.problems

    def _take_late(self, manager: Manager, seen: Seat | None) -> None:
        if manager.link.is_cut or manager.tenure is not None:
            return
        before = manager._seats.look()
        taken = manager._seats.take(manager.name, seen)
        if taken is not None:
            self.looked(manager, before, self._now_s)
            manager.tenure = taken
            self.took(manager, taken)
            manager._version = self.newest_version()

    def _audit(self) -> None:
        rows = self.database.rows("SELECT version, node, lease FROM applied WHERE job = 'j' ORDER BY version")
        kept = {int(row["version"]): (str(row["node"]), int(row["lease"])) for row in rows}
        lost = [version for version, by in self.acknowledged.items() if kept.get(version) != by]
        if lost:
            self.problems.append(f"acknowledged and lost: {lost[:5]}")
        terms = [term for _, (_, term) in sorted(kept.items())]
        if terms != sorted(terms):
            self.problems.append("a version of an older term came after one of a newer")
        if not kept:
            self.problems.append("nothing was written")


def stories(folder: Path) -> Iterator[list[str]]:
    for seed in range(SEEDS):
        yield Story(seed, folder).run()


def test_one_manager_writes_and_nothing_acknowledged_is_lost() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for seed, problems in enumerate(stories(Path(folder))):
            assert problems == [], f"seed {seed}"


def _no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_module, "prove", lambda database, tenure: None)


def _holder_alone_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(database: SqliteDatabase, tenure: Tenure) -> None:
        counted = database.change("UPDATE seats SET beats = beats + 1 WHERE job = ?", (tenure.job,))
        assert counted

    monkeypatch.setattr(seat_module, "prove", prove)


def _takes_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Seats.take

    def blindly(self: Seats, holder: str, seen: Seat | None, job: str = "") -> Tenure | None:
        return take(self, holder, self.look(job), job)

    monkeypatch.setattr(Seats, "take", blindly)


def _waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby.SeatWatch, "may_take", lambda self, seat, now_s: True)


@pytest.mark.parametrize("mutant", [_no_proof, _holder_alone_is_proof, _takes_without_a_look, _waits_for_nobody])
def test_a_fence_that_is_missing_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with tempfile.TemporaryDirectory() as folder:
        assert any(problems for problems in stories(Path(folder)))


def test_a_manager_serves_until_another_may_have_its_seat() -> None:
    assert may_serve(0.0)
    assert may_serve(SILENT_S + RENEW_EVERY_S)
    assert not may_serve(2 * SILENT_S + 0.1)


def test_a_silent_seat_may_be_taken_and_an_unseen_one_may_not() -> None:
    watch, seat = SeatWatch(silent_s=3.0, gap_max_s=1.5), Seat(holder="a", term=1, beats=7)
    assert watch.may_take(None, 0.0)
    assert watch.may_take(Seat(holder="", term=1, beats=8), 0.0)
    assert [watch.may_take(seat, now_s) for now_s in (0.0, 1.0, 2.0, 2.9, 3.0)] == [False] * 4 + [True]
    # It counted on.
    assert not watch.may_take(seat._replace(beats=8), 3.5)
    # The watch itself was stopped: that is worth one gap, and a slow watch gets there.
    assert [watch.may_take(seat._replace(beats=8), now_s) for now_s in (9.0, 9.4, 12.0)] == [False, False, True]
    # The database was away.
    watch.blind()
    assert not watch.may_take(seat._replace(beats=8), 9.0)
    watch.blind()
    assert [watch.may_take(seat._replace(beats=8), now_s) for now_s in (9.5, 10.5, 11.5, 12.4, 12.5)] == [False] * 4 + [
        True
    ]
