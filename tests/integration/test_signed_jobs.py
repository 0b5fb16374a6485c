"""Jobs that no operator signed as they are: a manager does not take them, and a device does not run them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from kit import Site, cluster_in, manager_site, run

from shoal.errors import Refused
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Authority
from shoal.identity.join_code import JoinCode
from shoal.identity.signing import sign
from shoal.plan import Plan
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from shoal.trainer.bundle import pack
from shoal.trainer.package import spec_of
from shoal.wire.encoding import from_json
from shoal.wire.messages import JobSpec, Submit
from testbed.echo_job import echo_job

DEVICE = "device-1"
BATCHES = 60


def job_in(folder: Path) -> JobSpec:
    return spec_of(echo_job(folder, values=4, batches=4), Plan(batch_size=1), job="echo-1")


async def submit(operator: Operator, spec: JobSpec) -> None:
    await operator._link.operate(Submit(spec=spec))


def test_a_manager_takes_what_an_operator_of_its_cluster_signed_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            spec = job_in(tmp_path)
            signed = site.signed(spec)
            elsewhere = Authority.create(tmp_path / "elsewhere", "shoal").identity(node="operator", role="operator")
            refusals = {
                "not signed by an operator: submit it again with `shoal train`": spec,
                "not what operator signed": dataclasses.replace(signed, bundle=spec.initial),
                "not issued by the cluster's authority": sign(spec, elsewhere),
            }
            for reason, wrong in refusals.items():
                with pytest.raises(Refused, match=f"the job was not taken: .*{reason}"):
                    await submit(site.operator, wrong)
            # Nothing was uploaded. That is said to whoever came that far, and no job is there.
            with pytest.raises(Refused, match="was not uploaded"):
                await submit(site.operator, signed)
            assert not (await site.operator.status()).jobs

    run(story())


def test_an_operator_who_was_shut_out_signs_no_more(tmp_path: Path) -> None:
    """Nor does one whose certificate ran out, until it is renewed."""

    async def story() -> None:
        async with manager_site(tmp_path) as site:
            made = await site.operator.make_token(role="operator", uses=1, valid_s=60.0, label="")
            ann = (await enrol(JoinCode.parse(made.join_line), wanted="ann")).identity
            by_ann = sign(job_in(tmp_path), ann)
            with pytest.raises(Refused, match="was not uploaded"):
                await submit(site.operator, by_ann)
            await site.operator.revoke_node("ann")
            with pytest.raises(Refused, match=r"the job was not taken: ann: .*revoked on .* \(by operator\)"):
                await submit(site.operator, by_ann)

            authority = Authority.load(Paths(site.cluster.home).authority)
            long_ago = authority.identity(node="operator", role="operator", now_s=1_000_000_000.0)
            with pytest.raises(Refused, match="valid from 1970-01-01 to 2001-10-09"):
                await submit(site.operator, sign(job_in(tmp_path), long_ago))

    run(story())


def edit_spec(site: Site, job: str, **changes: Any) -> dict[str, Any]:
    """Change a stored job behind its manager's back; what stood there."""
    with contextlib.closing(sqlite3.connect(Paths(site.cluster.home).registry)) as registry:
        ((text,),) = registry.execute("SELECT spec_json FROM jobs WHERE job = ?", (job,)).fetchall()
        old = json.loads(text)
        registry.execute("UPDATE jobs SET spec_json = ? WHERE job = ?", (json.dumps(old | changes), job))
        registry.commit()
    return {name: old[name] for name in changes}


async def restart(site: Site) -> None:
    """The manager, and the device: one that keeps a job keeps it as it was."""
    await site.cluster.start_manager()
    await site.cluster.start_agent(DEVICE)


async def stop(site: Site) -> None:
    await site.kill_manager()
    await site.kill(site.cluster.agents.pop(DEVICE))


@pytest.mark.gate("signed jobs")
def test_a_device_does_not_run_what_was_changed_in_the_registry(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            site.pace(0.05)
            job = await site.submit_tally(batches=BATCHES)
            await site.mid_epoch(job)
            await stop(site)

            # Someone who is no operator changes the job on the manager's disk, to have other code run.
            code = tmp_path / "task.py"
            code.write_text("import os\n\nos.abort()\n\n\nclass Echo:\n    pass\n")
            evil = BlobStore(Paths(site.cluster.home).blobs).put(pack(code, "task:Echo"))
            was = edit_spec(site, job, bundle=evil)
            seen = max(event.seq for event in site.events(job))
            await restart(site)
            refused = await site.event(job, "preparation.failed", "the job is not what operator signed", after=seen)
            assert DEVICE in refused.text
            assert not BlobStore(tmp_path / "cache" / "blobs").has(evil), "its code was fetched"
            assert not (tmp_path / "cache" / "bundles" / evil).exists()
            assert not site.trainers(DEVICE)
            log = (site.cluster.home / f"{DEVICE}.log").read_text()
            assert "preparation.failed: the job is not what operator signed" in log
            await site.progress(job, f"{DEVICE} fails", lambda told: [w.state for w in told.workers] == ["failing"])

            # As it was signed, it goes on where it was.
            await stop(site)
            edit_spec(site, job, **was)
            site.pace(0.0)
            await restart(site)
            await site.ended(job)
            await site.tallied_once(job, batches=BATCHES)

    run(story())


def test_a_signature_outlives_the_certificate_at_devices(tmp_path: Path) -> None:
    """A manager took the job in time. Its signer's certificate ran out since; a device that joins later works."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site:
            places = Paths(site.cluster.home)
            job = await site.submit_tally(batches=4)
            with contextlib.closing(sqlite3.connect(places.registry)) as registry:
                ((text,),) = registry.execute("SELECT spec_json FROM jobs WHERE job = ?", (job,)).fetchall()
            assert json.loads(text)["signer_pem"] == Enrolled.load(places.operator).identity.certificate_pem.decode()
            await site.kill_manager()
            # The same job, as an operator signed it whose certificate ended long ago.
            long_ago = Authority.load(places.authority).identity(
                node="operator", role="operator", now_s=1_000_000_000.0
            )
            old = sign(from_json(JobSpec, json.loads(text)), long_ago)
            edit_spec(site, job, signature=old.signature, signer_pem=old.signer_pem)
            await restart(site)
            await site.ended(job)

    run(story())
