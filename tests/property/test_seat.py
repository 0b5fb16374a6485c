"""Managers that stop, lose their database and come back, in any order: a job has one manager that writes, and what it
wrote stays.

Deployed parts (the watch, the seats, the fenced database, the registry) under a clock of the test's own. Every fence
has a mutant that the same stories must find.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.roles.manager import seat_watch
from shoal.roles.manager.seat_watch import LOOK_EVERY_S, RENEW_EVERY_S, SILENT_S, Seat, SeatWatch, may_serve, share
from shoal.scheduling.ledger import Applied
from shoal.store import registry as registry_module
from shoal.store import seat as seat_module
from shoal.store.base import Away, Database, Statements
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(300)

SEEDS = 40
JOBS = ("j", "k", "l", "m", "n")
STORY_S = 60.0
STEP_S = 0.2
#: In the end nothing is in the way for so long.
CALM_S = 25.0


class Link:
    """A manager's way to the database, which may be cut, or take no write."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.is_cut = False
        self.is_read_only = False

    def __getattr__(self, name: str) -> object:
        if self.is_cut and name in ("rows", "change", "change_each", "transaction"):
            raise Away("cut")
        if self.is_read_only and name in ("change", "change_each", "transaction"):
            raise Away("read-only")
        return getattr(self._database, name)


class Manager:
    """The driver's loop, one step at a time. It is started again when it finds that it was deposed."""

    def __init__(self, name: str, database: SqliteDatabase) -> None:
        self.name = name
        self.link = Link(database)
        self._database: Database = self.link  # type: ignore[assignment]
        self.seats = Seats(self._database)
        self.wakes_s = 0.0
        self._starts = 0
        self._restart()

    def _restart(self) -> None:
        self.tenure: Tenure | None = None
        self._watch = SeatWatch()
        self._look_s = self._write_s = 0.0
        #: How far the story was when it looked last.
        self.looked = 0
        #: Its jobs, and the newest version of each.
        self.jobs: dict[str, int] = {}
        self._silent: list[Seat] = []
        self._orphans: list[JobRow] = []

    def step(self, now_s: float, story: Story) -> None:
        if now_s < self.wakes_s:
            return
        try:
            if self.tenure is None:
                self._starts += 1
                self.tenure = self.seats.open(f"{self.name}{self._starts}")
                self.registry = Registry(FencedDatabase(self._database, self.tenure), holder=self.tenure.holder)
            # What it decided before it was stopped comes first: it goes on with what it saw.
            self._end_silent(now_s, story)
            self._take_orphans(now_s, story)
            if now_s >= self._look_s:
                self._look_s = now_s + LOOK_EVERY_S
                self._look(now_s, story)
            if now_s >= self._write_s:
                self._write_s = now_s + RENEW_EVERY_S
                self.seats.renew(self.tenure)
                self._watch.on_proven(now_s)
                story.proved(self)
                for job in sorted(self.jobs):
                    self._write(job, story)
        except Away:
            self._watch.blind()
        except Deposed:
            story.outcomes["deposed"] += 1
            self._restart()

    def _look(self, now_s: float, story: Story) -> None:
        assert self.tenure is not None
        self.looked = story.counted()
        others = [seat for seat in self.seats.look() if seat.holder != self.tenure.holder]
        self._silent = self._watch.silent(others, now_s)
        for seat in self._silent:
            story.would_end(self, seat, now_s)
        waiting = {row.job: row for row in self.registry.orphans()}
        own = share(dict.fromkeys(waiting, ""), self.tenure.holder, [seat.holder for seat in others])
        self._orphans = [waiting[job] for job in own]
        if story.is_stopped_between(self, now_s):
            return
        self._end_silent(now_s, story)
        self._take_orphans(now_s, story)

    def _end_silent(self, now_s: float, story: Story) -> None:
        assert self.tenure is not None
        while self._silent and now_s >= self.wakes_s:
            seat = self._silent.pop(0)
            if self.seats.end(seat, self.tenure):
                story.ended(self, seat)
                story.is_stopped_between(self, now_s)

    def _take_orphans(self, now_s: float, story: Story) -> None:
        assert self.tenure is not None
        while self._orphans and now_s >= self.wakes_s:
            job = self._orphans.pop(0)
            if self.registry.take_job(job):
                story.took(self, job)
                self.jobs[job.job] = story.newest_version(job.job)

    def _write(self, job: str, story: Story) -> None:
        assert self.tenure is not None
        version = self.jobs[job] + 1
        rows = [Applied(epoch=version, batch=0, version=version, node=self.tenure.holder, lease=version)]
        self.registry.restore_applied(job, rows, after=version - 1)
        self.jobs[job] = version
        story.wrote(self, job, version)


class Story:
    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = np.random.default_rng(seed)
        self.database = SqliteDatabase(folder / f"{seed}.db")
        nobody = Registry(self.database)
        for job in JOBS:
            nobody.add_job(job=job, name=job, spec_json="{}", now_s=1.0)
        self.managers = [Manager(name, self.database) for name in ("a", "b", "c")]
        self.acknowledged: dict[tuple[str, int], str] = {}
        #: Job -> the seat whose job it is by what managers were told.
        self.owners: dict[str, str] = {}
        self.gone: set[str] = set()
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._hurt_s: dict[str, float] = {}
        self._now_s = 0.0
        self._moment = 0
        self._proved: dict[str, int] = {}
        # The test's machine does not lose its power.
        self.database._connection.execute("PRAGMA synchronous = OFF")

    def counted(self) -> int:
        """Looks and proofs have an order."""
        self._moment += 1
        return self._moment

    def newest_version(self, job: str) -> int:
        query = "SELECT COALESCE(MAX(version), 0) AS newest FROM applied WHERE job = ?"
        return int(self.database.rows(query, (job,))[0]["newest"])

    # What managers did ---------------------------------------------------------------------------------------

    def proved(self, manager: Manager) -> None:
        assert manager.tenure is not None
        self._proved[manager.tenure.holder] = self.counted()

    def would_end(self, by: Manager, seat: Seat, now_s: float) -> None:
        if self._is_well(seat, now_s):
            self.problems.append(f"{by.name} would end {seat.holder}, which is well")

    def ended(self, by: Manager, seat: Seat) -> None:
        assert by.tenure is not None
        self.outcomes["ended"] += 1
        self.gone.add(seat.holder)
        if by.tenure.holder in self.gone:
            self.problems.append(f"{by.tenure.holder} was ended, and ended {seat.holder}")
        if self._proved.get(seat.holder, 0) > by.looked:
            self.problems.append(f"{by.name} ended {seat.holder}, which has counted on since")

    def took(self, by: Manager, job: JobRow) -> None:
        assert by.tenure is not None
        self.outcomes["taken"] += 1
        before = self.owners.get(job.job)
        if before is not None and before not in self.gone:
            self.problems.append(f"{by.tenure.holder} took {job.job} from {before}, whose seat did not end")
        self.owners[job.job] = by.tenure.holder

    def wrote(self, by: Manager, job: str, version: int) -> None:
        assert by.tenure is not None
        self.outcomes["written"] += 1
        self.acknowledged[job, version] = by.tenure.holder
        if self.owners.get(job) != by.tenure.holder:
            self.problems.append(f"{by.tenure.holder} wrote to {job}, which is the job of {self.owners.get(job)}")

    def _is_well(self, seat: Seat, now_s: float) -> bool:
        """It was neither stopped nor cut, nor was the database away, for as long as a silence lasts."""
        holder = next((each for each in self.managers if each.tenure and each.tenure.holder == seat.holder), None)
        return holder is not None and now_s - self._hurt_s.get(holder.name, -99.0) > 2 * SILENT_S

    def is_stopped_between(self, manager: Manager, now_s: float) -> bool:
        """A process may be stopped after it looked and before it does what it decided to."""
        if not manager._silent and not manager._orphans:
            return False
        if now_s > STORY_S or self._chance.random() > 0.5:
            return False
        manager.wakes_s = now_s + self._chance.uniform(1.0, 8.0)
        return True

    # What happens to them ------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        away_until_s = read_only_until_s = 0.0
        while self._now_s < STORY_S + CALM_S:
            self._now_s += STEP_S
            is_calm = self._now_s > STORY_S
            if not is_calm and self._chance.random() < 0.02:
                away_until_s = self._now_s + self._chance.uniform(0.5, 10.0)
            if not is_calm and self._chance.random() < 0.02:
                read_only_until_s = self._now_s + self._chance.uniform(0.5, 10.0)
            is_away = self._now_s < min(away_until_s, STORY_S)
            for manager in self.managers:
                if not is_calm and self._chance.random() < 0.01:
                    manager.wakes_s = self._now_s + self._chance.uniform(0.5, 12.0)
                if not is_calm and manager.tenure is not None and self._chance.random() < 0.002:
                    # Killed; another process is started in its place.
                    self.gone.add(manager.tenure.holder)
                    manager._restart()
                cut = manager.link.is_cut and self._chance.random() < 0.95
                manager.link.is_cut = is_away or (not is_calm and (cut or self._chance.random() < 0.004))
                # For all managers alike, so it says nothing of any of them.
                manager.link.is_read_only = self._now_s < min(read_only_until_s, STORY_S)
                if manager.link.is_cut or self._now_s < manager.wakes_s:
                    self._hurt_s[manager.name] = self._now_s
            for place in self._chance.permutation(len(self.managers)):
                self.managers[place].step(self._now_s, self)
        self._audit()
        self.database.close()
        return self.problems

    def _audit(self) -> None:
        rows = self.database.rows("SELECT job, version, node FROM applied")
        kept = {(str(row["job"]), int(row["version"])): str(row["node"]) for row in rows}
        lost = [at for at, by in self.acknowledged.items() if kept.get(at) != by]
        if lost:
            self.problems.append(f"acknowledged and lost: {lost[:5]}")
        if orphans := Registry(self.database).orphans():
            self.problems.append(f"not taken: {[job.job for job in orphans]}")
        running = Counter(job for manager in self.managers for job in manager.jobs)
        if sorted(running) != sorted(JOBS) or max(running.values()) > 1:
            self.problems.append(f"each is the job of one manager in the end: {running}")


def stories(folder: Path, told: Counter[str] | None = None) -> Iterator[list[str]]:
    for seed in range(SEEDS):
        story = Story(seed, folder)
        yield story.run()
        if told is not None:
            told.update(story.outcomes)


def test_a_job_has_one_manager_and_nothing_acknowledged_is_lost() -> None:
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed, problems in enumerate(stories(Path(folder), told)):
            assert problems == [], f"seed {seed}"
    assert min(told[name] for name in ("written", "taken", "ended", "deposed")) > SEEDS


# Mutants --------------------------------------------------------------------------------------------------------


def _no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_module, "prove", lambda database, tenure: 0)


def _any_seat_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(database: Statements, tenure: Tenure) -> int:
        assert database.change("UPDATE seats SET beats = beats + 1")
        return 0

    monkeypatch.setattr(seat_module, "prove", prove)


def _ends_without_a_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Seats, silent: Seat, tenure: Tenure) -> bool:
        with self._database.transaction() as database:
            statement = "DELETE FROM seats WHERE holder = ? AND beats = ?"
            return database.change(statement, (silent.holder, silent.beats)) > 0

    monkeypatch.setattr(Seats, "end", end)


def _ends_what_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Seats, silent: Seat, tenure: Tenure) -> bool:
        with self._database.transaction() as database:
            seat_module.prove(database, tenure)
            return database.change("DELETE FROM seats WHERE holder = ?", (silent.holder,)) > 0

    monkeypatch.setattr(Seats, "end", end)


def _waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_watch.SeatWatch, "silent", lambda self, seats, now_s: list(seats))


def _counts_silence_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence of others counts while the own seat cannot be proven."""
    monkeypatch.setattr(seat_watch.SeatWatch, "blind", lambda self: None)
    monkeypatch.setattr(seat_watch, "PROOFS_LEAST", 0)


def _takes_from_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is taken though another manager has taken it since it was seen."""
    statement = "UPDATE jobs SET manager = ? WHERE job = ? AND ? IS NOT NULL"
    monkeypatch.setattr(registry_module, "_TAKE_JOB", statement)


def _looks_at_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job of another is an orphan, and may be taken while it is as it was seen."""
    for name in ("_TAKE_JOB", "_ORPHANS"):
        statement = getattr(registry_module, name)
        shorter = statement.replace(" AND manager NOT IN (SELECT holder FROM seats)", "")
        assert shorter != statement
        monkeypatch.setattr(registry_module, name, shorter)


@pytest.mark.parametrize(
    "mutant",
    [
        _no_proof,
        _any_seat_is_proof,
        _ends_what_counted_on,
        _waits_for_nobody,
        _counts_silence_unproven,
        _takes_from_the_living,
        _looks_at_no_seat,
    ],
)
def test_a_fence_that_is_missing_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with tempfile.TemporaryDirectory() as folder:
        assert any(problems for problems in stories(Path(folder)))


def _writes_to_any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "_own", lambda self, database, job: None)


def _lone_story(folder: Path) -> list[str]:
    """What chance does not bring about: a manager that was ended ends one that is silent too, before any other does;
    and a manager writes to a job that it never had."""
    database = SqliteDatabase(folder / "lone.db")
    seats = Seats(database)
    a, b, _ = (seats.open(name) for name in "abc")
    registry_of_a, registry_of_b = (Registry(FencedDatabase(database, each), holder=each.holder) for each in (a, b))
    registry_of_b.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
    problems = []
    try:
        registry_of_a.next_term("j")
        problems.append("a wrote to the job of b")
    except Deposed:
        pass
    seen = {seat.holder: seat for seat in seats.look()}
    assert seats.end(seen["a"], b)
    try:
        seats.end(seen["c"], a)
    except Deposed:
        pass
    if [seat.holder for seat in seats.look()] != ["b", "c"]:
        problems.append("a was ended, and ended c")
    database.close()
    return problems


def test_a_fence_that_chance_does_not_reach_is_there(tmp_path: Path) -> None:
    assert _lone_story(tmp_path) == []


@pytest.mark.parametrize("mutant", [_ends_without_a_seat, _writes_to_any_job])
def test_a_fence_that_chance_does_not_reach_is_missed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant(monkeypatch)
    assert len(_lone_story(tmp_path)) == 1


# What is decided ------------------------------------------------------------------------------------------------


def test_a_manager_serves_until_another_may_have_ended_its_seat() -> None:
    assert may_serve(0.0)
    assert may_serve(SILENT_S + RENEW_EVERY_S)
    assert not may_serve(2 * SILENT_S + 0.1)


def test_a_silent_seat_may_be_ended_and_an_unseen_one_may_not() -> None:
    watch, seat = SeatWatch(silent_s=3.0, gap_max_s=1.5), Seat(holder="a", beats=7)

    def is_silent(seat: Seat, now_s: float) -> bool:
        silent = watch.silent([seat], now_s)
        assert silent in ([], [seat])
        watch.on_proven(now_s)
        return bool(silent)

    assert [is_silent(seat, now_s) for now_s in (0.0, 1.0, 2.0, 2.9, 3.0)] == [False] * 4 + [True]
    on = seat._replace(beats=8)
    assert not is_silent(on, 3.5), "it counted on"
    # The watch itself was stopped: that is worth one gap, and a slow watch gets there.
    assert [is_silent(on, now_s) for now_s in (9.0, 9.4, 12.0)] == [False, False, True]
    # The database was away.
    watch.blind()
    assert not is_silent(on, 9.0)
    watch.blind()
    assert [is_silent(on, now_s) for now_s in (9.5, 10.5, 11.5, 12.4, 12.5)] == [False] * 4 + [True]
    # What a manager wants is no sign of life: it is told in the same breath as the count.
    assert is_silent(on._replace(wants=3), 12.6)


def test_silence_counts_only_while_the_own_seat_is_proven() -> None:
    watch, seat = SeatWatch(silent_s=3.0, gap_max_s=1.5), Seat(holder="a", beats=7)
    assert [watch.silent([seat], float(now_s)) for now_s in range(9)] == [[]] * 9, "the own seat was never proven"
    watch.on_proven(-0.5)
    watch.on_proven(7.5)
    assert watch.silent([seat], 9.0) == [], "one proof was asked for before the silence began"
    watch.on_proven(8.5)
    assert watch.silent([seat], 10.0) == [seat]
    watch.blind()
    watch.on_proven(10.5)
    assert [watch.silent([seat], now_s) for now_s in (11.0, 12.5, 14.0, 15.5)] == [[]] * 4, "a proof of before"
    watch.on_proven(12.0)
    watch.on_proven(13.0)
    assert watch.silent([seat], 16.0) == [seat]


def test_each_seat_is_watched_for_itself() -> None:
    watch = SeatWatch(silent_s=3.0, gap_max_s=1.5)
    told: list[list[str]] = []
    for step in range(6):
        seats = [Seat(holder="quiet", beats=1), Seat(holder="well", beats=step)]
        if step >= 3:
            seats.append(Seat(holder="new", beats=0))
        told.append([seat.holder for seat in watch.silent(seats, float(step))])
        watch.on_proven(float(step))
    assert told == [[], [], [], ["quiet"], ["quiet"], ["quiet"]]
    assert [seat.holder for seat in watch.silent([Seat(holder="new", beats=0)], 6.0)] == ["new"]
    assert watch.silent([Seat(holder="quiet", beats=1)], 7.0) == [], "it was gone in between"


def test_jobs_without_a_manager_are_shared_out() -> None:
    jobs = dict.fromkeys((f"j{number}" for number in range(7)), "")
    holders = ["c", "a", "b"]
    shares = {holder: share(jobs, holder, holders) for holder in holders}
    assert {holder: len(part) for holder, part in shares.items()} == {"a": 3, "b": 3, "c": 3}
    assert set().union(*shares.values()) == set(jobs)
    assert shares["a"] == ["j0", "j1", "j2"]
    assert share({"j0": ""}, "c", holders) == ["j0"], "a manager that does not take its own leaves it to others"
    assert share(jobs, "a", []) == list(jobs)
    assert share({}, "a", holders) == []
    assert share(jobs, "b", holders) == share(jobs, "b", ["c", "a"]), "itself counted once"
    led = jobs | {"j0": "w1", "j5": "w1", "j2": "w2"}
    both = [part for part in (share(led, holder, holders) for holder in holders) if "j0" in part or "j5" in part]
    assert all({"j0", "j5"} <= set(part) for part in both), "a device that leads two jobs goes with both"
