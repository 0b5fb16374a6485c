"""Blobs by job: a device fetches what its own job is made of, and learns nothing of what others' are. Real sockets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from kit import Site
from shared_cluster import SharedCluster, shared_cluster

from shoal.errors import Refused
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.join_code import JoinCode
from shoal.net.grpc import GrpcLink
from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Manifest
from shoal.wire.encoding import from_json
from shoal.wire.messages import JobSpec

STRANGE = "0" * 64

cluster = shared_cluster(workers=2)


async def fetched(member: Enrolled, sha256: str) -> bytes:
    link = GrpcLink(member.identity, server_node=member.manager_node, endpoint=member.manager_endpoint)
    try:
        return b"".join([bytes(chunk) async for chunk in link.fetch(sha256)])
    finally:
        await link.close()


async def refusal(member: Enrolled, sha256: str) -> str:
    """What is said to it, but for the hash that it knows anyway."""
    with pytest.raises(Refused) as refused:
        await fetched(member, sha256)
    return str(refused.value).replace(sha256[:12], "HASH")


def spec_of(site: Site, job: str) -> JobSpec:
    with site.registry() as registry:
        row = registry.job(job)
        assert row is not None
        return from_json(JobSpec, json.loads(row.spec_json))


def blobs_of(site: Site, spec: JobSpec) -> list[str]:
    blobs = BlobStore(Paths(site.cluster.home).blobs)
    manifests = {spec.train.manifest, spec.test.manifest} - {""}
    lists = [Manifest.from_json(blobs.path(manifest).read_bytes()) for manifest in sorted(manifests)]
    shards = [shard.sha256 for each in lists for shard in each.shards]
    return [spec.bundle, spec.initial, spec.train.manifest, *shards]


@pytest.mark.gate("blobs by job")
def test_a_device_fetches_what_its_own_job_is_made_of_and_nothing_else(tmp_path: Path, cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        site.pace(0.2)
        # It may have as many workers as come, so that who is left out is left out on purpose.
        job = await site.submit_tally(batches=400, workers_max=1)
        await site.mid_epoch(job, applied=2)
        (worker,) = [view.node for view in (await site.operator.status()).nodes if view.job == job]
        idle = await enrol(JoinCode.parse(site.cluster.join_line), wanted="idle")
        at_work = Enrolled.load(Paths(site.cluster.agent_home(worker)).node)
        own = blobs_of(site, spec_of(site, job))
        assert len(own) > 3, "there is data among it"
        unknown = await refusal(idle, STRANGE)
        assert "no blob HASH… for idle" in unknown
        for sha256 in own:
            assert hashlib.sha256(await fetched(at_work, sha256)).hexdigest() == sha256
            assert await refusal(idle, sha256) == unknown, "what is not here and what is not its own look the same"
        # A model is for operators, also of the job that the device works for.
        model = tmp_path / "model"
        await site.operator.pull_model(job, model, newest=True)
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        assert await refusal(at_work, sha256) == await refusal(at_work, STRANGE)
        # What it was allowed ends with its job.
        await site.operator.stop(job)
        await site.ended(job, "stopped")
        assert await refusal(at_work, own[0]) == await refusal(at_work, STRANGE)

    cluster.run(story)


def test_a_device_that_is_asked_to_lead_has_what_it_needs(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        site.pace(0.05)
        job = await site.submit_tally(batches=200)
        await site.mid_epoch(job, applied=5)
        leader = sorted(site.cluster.agents)[0]
        await site.operator.transfer(job, leader)
        await site.event(job, "leader.appointed", f"{leader}, term ")
        await site.ended(job)
        await site.tallied_once(job, batches=200)

    cluster.run(story)
