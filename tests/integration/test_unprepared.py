"""A job whose code raises on every device while it is prepared fails with reason, file and line, and frees the devices:
a job that waited for them finishes."""

import pytest
from kit import HERE, Site
from shared_cluster import SharedCluster, shared_cluster

cluster = shared_cluster(workers=2)

pytestmark = pytest.mark.timeout(400)


def test_a_job_that_no_device_can_prepare_fails_and_frees_its_devices(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_task(HERE / "absent_file_task.py", workers_min=1)
        other = await site.submit_tally(batches=4, workers_min=2)
        failed = await site.ended(job, "failed")
        assert failed.reason.startswith("no device can prepare it: FileNotFoundError")
        assert "/absent/model.safetensors" in failed.reason
        assert "AbsentFile.model (absent_file_task.py:17)" in failed.reason
        told = [event.reason for event in site.events(job) if event.kind == "unprepared"]
        assert {reason.split()[0] for reason in told} == {"device-1", "device-2"}
        await site.ended(other)

    cluster.run(story)
