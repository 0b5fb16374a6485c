"""A cluster whose state is in PostgreSQL and in a bucket: it trains, dies and goes on as one that has it at home."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

import numpy as np
import psycopg
import pytest
from kit import Site, cluster_in, run

from shoal.cli import main
from shoal.cli.standing import standing
from shoal.errors import Misuse, Refused, Unreachable
from shoal.identity.chain import split_pem
from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Authority, Identity
from shoal.net.grpc import GrpcLink
from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.runtime.backup import back_up
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.checkpoints import version_in
from shoal.store.objects import Objects
from shoal.store.opening import open_stores
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry
from shoal.store.seat import Seats
from shoal.wire.messages import JobView
from testbed.echo_job import echo_job
from testbed.servers import haproxy_server, object_servers, postgres_server
from testbed.servers.object_servers import BUCKET, ObjectServer
from testbed.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    found = postgres_server.programs()
    if found is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    with postgres_server.running(found) as running:
        yield running


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[ObjectServer]:
    if why := object_servers.missing("rclone"):
        pytest.skip(why)
    with (
        object_servers.running("rclone", tmp_path / "objects") as running,
        mock.patch.dict(os.environ, running.environment),
    ):
        yield running


class StoredSite(Site):
    """A site whose registry is in PostgreSQL."""

    url = ""

    def registry(self) -> Registry:
        return Registry(PostgresDatabase(self.url))

    async def view(self, job: str) -> JobView | None:
        """How a job stands; None also while its manager has no database to ask."""
        with contextlib.suppress(Refused):
            return await super().view(job)
        return None


@contextlib.asynccontextmanager
async def stored_in(
    folder: Path, url: str, *, workers: int, manager_options: tuple[str, ...]
) -> AsyncIterator[StoredSite]:
    async with cluster_in(folder, workers=workers, manager_options=manager_options) as plain:
        site = StoredSite(plain.cluster, plain.operator, folder)
        site.url = url
        yield site


def test_a_job_survives_its_manager_and_its_database(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket)
        async with stored_in(tmp_path, url, workers=2, manager_options=options) as site:
            # Slow enough that it lasts longer than the outage, during which its leader goes on.
            site.pace(0.6)
            job = await site.submit_tally(batches=60)
            before = await site.mid_epoch(job)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(3.0)
            await asyncio.to_thread(server.start)
            durable = before.durable_version
            await site.progress(job, "a newer version is durable", lambda now: now.durable_version > durable)
            await site.kill_manager()
            # Its own disk is lost with it, but for its keys.
            for name in ("blobs", "checkpoints", "published"):
                await asyncio.to_thread(_forget, site.cluster.home / "cluster" / name)
            await site.cluster.start_manager()
            site.pace(0.0)
            await site.ended(job)
            applied, audits = await asyncio.to_thread(site.history, job)
            assert [(audit.batches, audit.distinct) for audit in audits] == [(60, 60)]
            assert {row.batch for row in applied} == set(range(60))
            await asyncio.to_thread(_check_home, site, url, bucket)

    run(story())


@pytest.mark.parametrize(
    ("downloads", "loopback_http", "said"),
    [
        ("bucket", ("--loopback-http",), "downloaded"),
        ("bucket", (), "http://127.0.0.1 is not https; the manager sends it instead"),
        ("https://127.0.0.1:1/nobody-listens", (), "the manager sends it instead"),
    ],
)
def test_devices_download_from_the_bucket_or_else_from_the_manager(
    tmp_path: Path, objects: ObjectServer, downloads: str, loopback_http: tuple[str, ...], said: str
) -> None:
    ready = echo_job(tmp_path, values=400_000, batches=8)

    async def story() -> None:
        options = ("--blobs", f"s3://{BUCKET}/cluster", "--downloads", downloads)
        # The bucket of the tests has no certificate.
        devices = ("--child-module", "shoal.trainer.echo", *loopback_http)
        async with cluster_in(tmp_path, workers=2, options=devices, manager_options=options, share_cache=False) as site:
            job = await site.operator.submit(ready, plan={"workers_min": 2, "until": {"epochs": 1}})
            await site.ended(job)
            for device in site.cluster.agents:
                log = (site.cluster.home / f"{device}.log").read_text()
                assert said in log
                assert "X-Amz" not in log, "a signed URL is a key"

    run(story())


def _forget(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _check_home(site: StoredSite, url: str, bucket: str) -> None:
    folder = site.cluster.home / "cluster"
    assert not (folder / "registry.sqlite").exists()
    held = Objects(bucket)
    assert held.list("checkpoints")
    assert held.list("blobs")
    with pytest.raises(Misuse, match="back it up with its own tools"):
        back_up(site.cluster.home, site.cluster.home / "backup.tar")
    with pytest.raises(Misuse, match="same --store"):
        open_stores(folder, owner="x", blobs=bucket)
    with pytest.raises(Misuse, match="start it with --blobs"):
        open_stores(folder, owner="x", store=url)
    with pytest.raises(Misuse, match="belongs to another cluster"):
        open_stores(folder, owner="x", store=url, blobs=bucket)
    log = (site.cluster.home / "manager.log").read_text()
    assert "a-secret-of-the-tests" not in log


def test_a_database_that_is_not_there_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    async def story() -> None:
        options = ("--store", "postgresql://shoal:hunter2@127.0.0.1:1/none")
        with pytest.raises(Unreachable, match="cannot be reached") as caught:
            async with cluster_in(tmp_path, workers=0, manager_options=options):
                pass
        assert "hunter2" not in str(caught.value)
        assert not (tmp_path / "home" / "cluster" / "registry.sqlite").exists()

    run(story())


# A database that goes back in time ---------------------------------------------------------------------------------


def _dump(server: PostgresServer, url: str) -> Path:
    file = server.folder / f"{_schema(url)}.dump"
    server.run("pg_dump", "-Fc", "-n", _schema(url), "-f", str(file), *_there(server), "postgres")
    return file


def _schema(url: str) -> str:
    return unquote(url).rpartition("=")[2]


def _there(server: PostgresServer) -> tuple[str, ...]:
    return "-h", "127.0.0.1", "-p", str(server.port), "-U", "shoal"


def _put_back(server: PostgresServer, url: str, dump: Path) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shoal'")
        connection.execute(f"DROP SCHEMA {_schema(url)} CASCADE")
    server.run("pg_restore", "-d", "postgres", *_there(server), str(dump))
    dump.unlink()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_manager_goes_on_from_a_database_that_was_restored(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer, is_running: bool
) -> None:
    """The job keeps what was acknowledged since, the revoked device stays out, and the job that ended stays so."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket, "--lead", "here")
        async with stored_in(tmp_path, url, workers=3, manager_options=options) as site:
            site.pace(0.3)
            job = await site.submit_tally(batches=60, workers_max=1, momentum=0.0)
            await site.mid_epoch(job, applied=4)
            over = await site.submit_tally(batches=9, workers_max=1)
            dump = await asyncio.to_thread(_dump, server, url)
            await site.operator.revoke_node("device-3", "stolen")
            await site.ended(over)
            before = await site.progress(job, "much is lost", lambda now: now.durable_version > 20)
            if not is_running:
                await site.kill_manager()
            await asyncio.to_thread(_put_back, server, url, dump)
            if not is_running:
                await site.cluster.start_manager()
            told = await site.event("cluster", "store.reverted", "revoked again: device-3")
            assert "terms jump ahead" in told.text
            assert f"ended again: {over}" in told.text
            await site.event(job, "store.reverted", "goes on from version")
            now = await site.progress(job, "it goes on", lambda now: now.durable_version > before.durable_version)
            assert now.term > TERMS_PASSED_OVER
            site.pace(0.0)
            await site.ended(job)
            # The history may have a hole. The model has none, and no batch is in it twice.
            model = (await site.model(job))["flat"]
            assert np.array_equal(np.rint(model), np.ones(60))
            with site.registry() as registry:
                states = {row.job: row.state for row in registry.jobs()}
                assert states == {job: "finished", over: "finished"}
                node = registry.node("device-3")
                assert node is not None
                assert node.state == "revoked"
            assert site.cluster.manager is not None
            assert site.cluster.manager.returncode is None, "it starts over by itself"

    run(story())


def test_a_restored_dump_is_made_fit_where_no_manager_remembers(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket, "--lead", "here")
        async with stored_in(tmp_path, url, workers=1, manager_options=options) as site:
            site.pace(0.3)
            job = await site.submit_tally(batches=40, workers_max=1, momentum=0.0)
            await site.mid_epoch(job, applied=4)
            dump = await asyncio.to_thread(_dump, server, url)
            before = await site.progress(job, "much is lost", lambda now: now.durable_version > 12)
            await site.kill_manager()
            await asyncio.to_thread(_forget, site.cluster.home / "cluster" / "remembered")
            await asyncio.to_thread(_forget, site.cluster.home / "cluster" / "checkpoints")
            await asyncio.to_thread(_put_back, server, url, dump)
            await asyncio.to_thread(main.run, ["restore", "--store", url, "--home", str(tmp_path / "nobody")])
            assert "join lines are void" in capsys.readouterr().err
            with site.registry() as registry:
                row = registry.job(job)
                assert row is not None
                assert row.term > TERMS_PASSED_OVER
                assert version_in(row.checkpoint) >= before.durable_version
                assert registry.tokens() == []
            await site.cluster.start_manager()
            site.pace(0.0)
            await site.ended(job)
            assert np.array_equal(np.rint((await site.model(job))["flat"]), np.ones(40))

    run(story())


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _owner(home: Path) -> str:
    return Authority.load(Paths(home).authority).fingerprint.hex()


# Several managers ------------------------------------------------------------------------------------------------


async def another(site: Site, home: Path, port: int, *options: str) -> asyncio.subprocess.Process:
    """A second manager that is up, in a home of its own to which the cluster's authority was copied."""
    (home / "cluster").mkdir(parents=True)
    shutil.copytree(site.cluster.home / "cluster" / "authority", home / "cluster" / "authority")
    process = await started(home, port, *options)
    await ready_within(process, 120)
    return process


async def started(home: Path, port: int, *options: str) -> asyncio.subprocess.Process:
    command = ("-m", "shoal.runtime.manager_main", "--home", str(home), "--port", str(port), *options)
    with (home / "manager.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log
        )


async def ready_within(process: asyncio.subprocess.Process, limit_s: float) -> float:
    """How long it takes a manager to be up."""
    assert process.stdout is not None
    began_s = time.monotonic()
    line = await asyncio.wait_for(process.stdout.readline(), limit_s)
    assert b"endpoint" in line, line
    return time.monotonic() - began_s


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def test_another_manager_takes_over_the_jobs_of_one_that_was_killed(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    """Its devices were told where the other is, and go there; what was durable counts once."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket)
        async with stored_in(tmp_path, url, workers=0, manager_options=options) as site:
            site.pace(0.05)
            home = tmp_path / "second"
            second = await another(site, home, 0, *options)
            try:
                for name in ("device-1", "device-2"):
                    await site.cluster.start_agent(name)
                    await site.connected(name)
                job = await site.submit_tally(batches=60)
                before = await site.mid_epoch(job)
                await site.kill_manager()
                site.pace(0.0)
                async with Operator.open(home) as operator:
                    site.operator = operator
                    await site.ended(job)
                _, audits = await asyncio.to_thread(site.history, job)
                assert [(audit.batches, audit.distinct) for audit in audits] == [(60, 60)]
                assert max(audit.last_version for audit in audits) >= before.durable_version
            finally:
                await end(second)
            log = (home / "manager.log").read_text()
            assert "was silent: its seat has ended" in log
            assert f"job {job} is this manager's now" in log
            assert "Traceback" not in log

    run(story())


def test_each_manager_has_jobs_of_its_own_and_devices_go_where_the_work_is(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    """Devices joined at one manager; the other's job lacks some. Either manager answers for all jobs and members."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket)
        async with stored_in(tmp_path, url, workers=3, manager_options=options) as site:
            for name in site.cluster.agents:
                await site.connected(name)
            site.pace(0.1)
            first, home = site.operator, tmp_path / "second"
            second = await another(site, home, 0, *options)
            try:
                async with Operator.open(home) as operator:
                    own = await site.submit_tally(batches=200, workers_min=1, workers_max=2)
                    site.operator = operator
                    other = await site.submit_tally(batches=201, workers_min=1, workers_max=2)
                    await site.mid_epoch(other)
                    await site.mid_epoch(own)
                    with site.registry() as registry:
                        assert registry.manager_of(own) != registry.manager_of(other)
                    for each in (first, operator):
                        # Both show all jobs; one that the other has is asked for there.
                        assert {view.job for view in (await each.status()).jobs} == {own, other}
                        assert [view.job for view in (await each.status(other)).jobs] == [other]
                    worked = {view.node for view in (await site.progress(other, "works", bool)).workers}
                    gone = min(worked)
                    # It is with the second manager, and the first one's operator shuts it out.
                    await first.revoke_node(gone, "lost")
                    assert await asyncio.wait_for(site.cluster.agents[gone].wait(), 60) == 4
                    await operator.stop(own)
                    site.pace(0.0)
                    await site.ended(other)
                    site.operator = first
                    await site.ended(own, "stopped")
                    await first.remove_job(other)
                    assert {view.job for view in (await first.status()).jobs} == {own}
                _, audits = await asyncio.to_thread(site.history, own)
                assert all(audit.batches == audit.distinct for audit in audits)
            finally:
                await end(second)
            for log in (home / "manager.log", site.cluster.home / "manager.log"):
                assert "Traceback" not in log.read_text()

    run(story())


async def job_view(site: Site, job: str) -> JobView:
    """How a job stands, as its manager says."""
    view = await site.view(job)
    assert view is not None
    return view


@pytest.mark.parametrize("lead", ["home", "devices"])
def test_a_job_of_a_drained_manager_goes_on_at_another(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer, lead: str
) -> None:
    """Its leader hands over, or goes with it; every batch is in the history once."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket, *(("--lead", "devices") if lead == "devices" else ()))
        async with stored_in(tmp_path, url, workers=2, manager_options=options) as site:
            for name in site.cluster.agents:
                await site.connected(name)
            site.pace(0.1)
            first, home = site.operator, tmp_path / "second"
            with pytest.raises(Refused, match="start another manager"):
                await first.drain_manager()
            second = await another(site, home, 0, *options)
            try:
                job = await site.submit_tally(batches=300, workers_min=1, workers_max=2)
                before = await site.mid_epoch(job)
                led_by = (await job_view(site, job)).leader
                drained = [view.manager for view in await first.managers() if view.jobs]
                assert len(drained) == 1
                assert "takes no more" in await first.drain_manager(drained[0], "new disk")

                async def moved() -> bool:
                    views = {view.manager: view for view in await first.managers()}
                    return views[drained[0]].is_drained and [v.jobs for v in views.values() if not v.is_drained] == [1]

                await site.until("the other manager has the job", moved)
                with site.registry() as registry:
                    there = (registry.manager_of(job) or ("", ""))[1]
                assert there != drained[0]
                await site.progress(job, "it goes on", lambda p: p.version > before.version)
                view = await job_view(site, job)
                assert view.term == before.term + (lead == "home")
                assert view.leader == led_by
                # A new job goes to the other manager too, whichever is asked.
                another_job = await site.submit_tally(batches=5, workers_min=1, workers_max=1)
                with site.registry() as registry:
                    assert (registry.manager_of(another_job) or ("", ""))[1] == there
                site.pace(0.0)
                await site.ended(job)
                await asyncio.to_thread(site.exactly_once, job, batches=300, epochs=1)
                acts = [(act.kind, act.subject, act.text) for act in await first.acts() if "drain" in act.kind]
                assert acts[-1] == ("drain a manager", drained[0], "new disk")
                assert "takes jobs again" in await first.undrain_manager(drained[0])
            finally:
                await end(second)
            for log in (home / "manager.log", site.cluster.home / "manager.log"):
                assert "Traceback" not in log.read_text()

    run(story())


async def checked(home: Path) -> tuple[int | None, str]:
    """What `shoal status --check` says at a manager's home, and its exit code."""
    command = ("-m", "shoal", "status", "--check", "--home", str(home))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return process.returncode, said.decode()


def test_every_manager_answers_for_the_jobs_and_devices_of_all(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    """Two managers with a job each, led on devices: both say the same of all devices and jobs, well or not."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket, "--lead", "devices")
        async with stored_in(tmp_path, url, workers=4, manager_options=options) as site:
            for name in site.cluster.agents:
                await site.connected(name)
            site.pace(0.3)
            first, homes = site.operator, (site.cluster.home, tmp_path / "second")
            second = await another(site, homes[1], 0, *options)
            try:
                async with Operator.open(homes[1]) as operator:
                    plan = {"workers_min": 2, "workers_max": 2}
                    own = await site.submit_tally(batches=5000, **plan)
                    site.operator = operator
                    other = await site.submit_tally(batches=5001, **plan)
                    with site.registry() as registry:
                        at = {job: (registry.manager_of(job) or ("", ""))[1] for job in (own, other)}
                    assert len(set(at.values())) == 2

                    async def agree() -> bool:
                        """Both managers say that every device is alive and works, and at which manager."""
                        for each in (first, operator):
                            status = await each.status()
                            jobs = {view.job: view for view in status.jobs}
                            placed = [(view.state, view.manager == at.get(view.job)) for view in status.nodes]
                            if placed != [("alive", True)] * 4 or {job: jobs[job].manager for job in at} != at:
                                return False
                            if any(standing(view).state != "training" for view in status.jobs):
                                return False
                            if any(len(view.progress.workers) != 2 for view in status.jobs if view.progress):
                                return False
                        return True

                    await site.until("both managers show all devices and jobs as they are", agree)
                    told = [await checked(home) for home in homes]
                    assert told == [(0, "all well: 4 devices alive, 2 open jobs\n")] * 2

                    async def moved_on() -> bool:
                        """The first manager shows what the other's job has made since."""
                        shown = {view.job: view.progress for view in (await first.status()).jobs}[other]
                        return shown is not None and shown.version > before

                    before = (await site.progress(other, "it goes on", bool)).version
                    await site.until("the other manager's job has a newer version", moved_on)
                    gone = next(view.node for view in (await operator.status()).nodes if view.job == other)
                    await site.kill(site.cluster.agents[gone])

                    async def lost() -> bool:
                        found = [
                            (view.node, view.manager)
                            for each in (first, operator)
                            for view in (await each.status()).nodes
                            if view.state == "lost"
                        ]
                        return found == [(gone, at[other])] * 2

                    await site.until("both managers show which device is lost, and where", lost)
                    for home in homes:
                        code, sentence = await checked(home)
                        assert code == 1
                        assert f"{gone} is lost at {at[other]}" in sentence
            finally:
                await end(second)
            for home in homes:
                assert "Traceback" not in (home / "manager.log").read_text()

    run(story())


@pytest.mark.parametrize("door", ["haproxy", "addresses"])
def test_devices_find_the_manager_that_took_their_job_over(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer, door: str
) -> None:
    """By one address, where HAProxy passes TLS through, or by those of all managers. Their leader leads on."""
    if door == "haproxy" and (why := haproxy_server.missing()):
        pytest.skip(why)
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"
    front, *ports = (haproxy_server.free_pair() for _ in range(4))

    def options(port: int, other: int) -> tuple[str, ...]:
        told = f"127.0.0.1:{front}" if door == "haproxy" else f"127.0.0.1:{port},127.0.0.1:{other}"
        direct = ("--direct", f"127.0.0.1:{port}") if door == "haproxy" else ()
        at = ("--port", str(port), "--advertise", told, *direct)
        return ("--store", url, "--blobs", bucket, "--lead", "devices", *at)

    async def story() -> None:
        async with stored_in(tmp_path, url, workers=0, manager_options=options(ports[0], ports[1])) as site:
            site.pace(0.2)
            for name in ("device-1", "device-2"):
                await joined(site, name)
            home = tmp_path / "second"
            second = await another(site, home, ports[1], *options(ports[1], ports[0]))
            try:
                job = await site.submit_tally(batches=120)
                before = await site.mid_epoch(job)
                await site.kill_manager()
                async with Operator.open(home) as operator:
                    site.operator = operator
                    durable = before.durable_version
                    await site.progress(job, "a newer version is durable", lambda now: now.durable_version > durable)
                    site.pace(0.0)
                    await site.ended(job)
                _, audits = await asyncio.to_thread(site.history, job)
                assert [(audit.batches, audit.distinct) for audit in audits] == [(120, 120)]
            finally:
                await end(second)
            log = (home / "manager.log").read_text()
            assert "still leads" in log, "its leader was on a device, and led on"
            assert "did not join" not in log, "the proxy's checks are no devices"
            kept = Enrolled.load(site.cluster.agent_home("device-1") / "node")
            if door == "haproxy":
                assert f"127.0.0.1:{front}" in kept.managers
            else:
                assert kept.managers == (f"127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[0]}")
                assert kept.manager_endpoint == f"127.0.0.1:{ports[1]}"

    if door == "haproxy":
        with haproxy_server.running(tmp_path, door=front, managers=ports):
            run(story())
    else:
        run(story())


async def joined(site: Site, name: str) -> None:
    """A device that joins by a line that may name a proxy, which looks for the manager twice a second."""
    for _ in range(120):
        with contextlib.suppress(Unreachable):
            await site.cluster.start_agent(name)
            return
        await asyncio.sleep(0.5)
    pytest.fail("nobody answered where devices join")


def test_a_manager_that_was_stopped_finds_itself_deposed_and_ends(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket)
        async with cluster_in(tmp_path, workers=0, manager_options=options) as site:
            second = await another(site, tmp_path / "second", 0, *options)
            try:
                first = site.cluster.manager
                assert first is not None
                # Longer than a silence: each sees that the other's seat is held.
                await asyncio.sleep(5.0)
                assert second.returncode is None
                assert first.returncode is None
                with pytest.raises(Misuse, match="share them with one"):
                    await asyncio.to_thread(
                        open_stores, _folder(tmp_path / "third"), owner=_owner(site.cluster.home), store=url
                    )
                database = PostgresDatabase(url)
                assert len(Seats(database).look()) == 2
                first.send_signal(signal.SIGSTOP)
                for _ in range(300):
                    if len(Seats(database).look()) == 1:
                        break
                    await asyncio.sleep(0.2)
                first.send_signal(signal.SIGCONT)
                assert await asyncio.wait_for(first.wait(), 60) == 2
                assert "another manager has taken over" in (site.cluster.home / "manager.log").read_text()
                # One that is told to end leaves the seat at once.
                second.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(second.wait(), 60) == 0
                assert Seats(database).look() == []
                database.close()
            finally:
                await end(second)
                site.cluster.manager = None

    run(story())


# An authority of a manager's own -----------------------------------------------------------------------------


def test_a_manager_with_its_own_authority_shares_members_until_it_is_revoked(
    tmp_path: Path, server: PostgresServer, objects: ObjectServer
) -> None:
    """A device that one manager enrolled works at the other; and not any more once that one's authority is void."""
    url, bucket = server.new(), f"s3://{BUCKET}/cluster"

    async def story() -> None:
        options = ("--store", url, "--blobs", bucket)
        async with stored_in(tmp_path, url, workers=1, manager_options=options) as site:
            await site.connected("device-1")
            home, port = tmp_path / "second", int(site.cluster.endpoint.rsplit(":", 1)[1])
            issue = ["authority", "issue", "west", "--to", str(home / "cluster" / "authority")]
            assert await asyncio.to_thread(main.run, [*issue, "--home", str(site.cluster.home)]) == 0
            root = Authority.load(Paths(site.cluster.home).authority)
            assert root._key_pem.decode() not in (Paths(home).authority / "authority.json").read_text()

            await site.kill_manager()
            second = await started(home, port, *options)
            try:
                assert second.stdout is not None
                ready = json.loads(await asyncio.wait_for(second.stdout.readline(), 120))
                site.cluster.join_line = ready["join_line"]
                async with Operator.open(home) as operator:
                    site.operator = operator
                    await site.connected("device-1")
                    # Who joins here knows the cluster's authority alone, and is handed a chain to it.
                    await site.cluster.start_agent("device-2")
                    await site.connected("device-2")
                    member = Identity.load(Paths(site.cluster.agent_home("device-2")).node)
                    assert member.ca_pem == root.certificate_pem
                    assert len(split_pem(member.certificate_pem.decode())) == 2
                    with pytest.raises(Refused, match="revoke it at another manager"):
                        await operator.revoke_node("west")
            finally:
                await end(second)

            await site.cluster.start_manager()
            async with Operator.open(site.cluster.home) as operator:
                site.operator = operator
                await site.connected("device-1")
                await site.connected("device-2")
                job = await site.submit_tally(batches=20, workers_min=2)
                await site.ended(job)
                rows, _ = await asyncio.to_thread(site.history, job)
                assert {row.node for row in rows} == {"device-1", "device-2"}, "both were accepted, and worked"

                told = await operator.revoke_node("west", "its machine was stolen")
                assert "the authority of the manager west is void" in told
                # Its agent is told why, and gives up.
                assert await asyncio.wait_for(site.cluster.agents["device-2"].wait(), 60) == 4
                assert "west" in (site.cluster.home / "device-2.log").read_text().splitlines()[-1]
                nodes = {node.node: node for node in (await operator.status()).nodes}
                assert nodes["device-2"].standing == "revoked"
                assert (nodes["device-1"].standing, nodes["device-1"].state) == ("", "alive")

                # A certificate that the thief makes now, under a name that is in good standing, is of no use.
                west = Authority.load(Paths(home).authority)
                forged = west.identity(node="device-1", role="node")
                for identity in (member, forged):
                    link = GrpcLink(identity, server_node="manager", endpoint=site.cluster.endpoint)
                    with pytest.raises(Refused, match="west, whose authority was revoked"):
                        async for _ in link.fetch("0" * 64):
                            pass
                    await link.close()

                # Nor does its manager start again.
                third = await started(home, 0, *options)
                assert await asyncio.wait_for(third.wait(), 60) != 0
                assert "west, was revoked" in (home / "manager.log").read_text()
                await site.connected("device-1")

    run(story())
