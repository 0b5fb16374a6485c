"""A job whose code raises on every device while it is prepared fails with reason, file and line, and frees the devices:
a job that waited for them finishes. The real trainer, with torch."""

from pathlib import Path

import pytest
from kit import HERE, cluster_in, run

ABSENT = HERE / "absent_file_task.py"

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def test_a_job_that_no_device_can_prepare_fails_and_frees_its_devices(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            job = await site.submit_task(ABSENT, workers_min=1)
            plan = {"batch_size": 10, "workers_min": 2, "until": {"epochs": 1}}
            other = await site.submit_task(HERE / "faulty_task.py", **plan)
            failed = await site.ended(job, "failed")
            assert failed.reason.startswith("no device can prepare it: FileNotFoundError")
            assert "/absent/model.safetensors" in failed.reason
            line = next(n for n, text in enumerate(ABSENT.read_text().splitlines(), 1) if "read_bytes" in text)
            assert f"AbsentFile.model (absent_file_task.py:{line})" in failed.reason
            assert "on each of 2 devices" in failed.reason
            for name in ("device-1", "device-2"):
                # The last of them is written down a moment after the job's end is told.
                await site.event(job, "preparation.deferred", f"{name} gets the job again in")
            await site.ended(other)

    run(story())
