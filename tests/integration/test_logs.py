"""What a real cluster logs: dates, levels, JSON; `shoal logs` of a job and of a device; `shoal status --check`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from unittest import mock

from kit import WAIT_S, Site, cluster_in, run

from shoal.runtime.event_kinds import KINDS

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) .+")


async def start(site: Site, *words: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-u", "-m", "shoal.cli.main", *words, "--home", str(site.cluster.home))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


async def shoal(site: Site, *words: str) -> tuple[int | None, str, str]:
    process = await start(site, *words)
    printed, said = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode, printed.decode(), said.decode()


def test_logs_have_a_date_and_a_level_and_a_check_has_a_code(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            for name in ("device-1", "device-2"):
                await site.connected(name)
            code, printed, _ = await shoal(site, "status", "--check")
            assert (code, printed) == (0, "all well: 2 devices alive, 0 open jobs\n")
            site.pace(0.05)
            job = await site.submit_tally(batches=200)
            following = await start(site, "logs", job, "-f")
            await site.works(job, "device-2")
            await site.kill(site.cluster.agents["device-2"])
            await site.event(job, "device.lost", "device-2")
            code, printed, _ = await shoal(site, "status", "--check")
            assert code == 1
            assert printed.startswith("attention: device-2 is lost (")
            site.pace(0.0)
            await site.ended(job)
            # It follows to the end, with the job's last event.
            printed_job, _ = await asyncio.wait_for(following.communicate(), WAIT_S)
            lines = printed_job.decode().splitlines()
            assert all(LINE.fullmatch(line) and f"[{job}]" in line for line in lines), lines
            assert any("WARNING" in line and "lost: device-2" in line for line in lines)
            assert any("job.finished: " in line for line in lines)
            assert len(lines) == len(set(lines)), "no event twice"

            _, printed, said = await shoal(site, "logs", "device-2", "--lines", "50")
            own = (site.cluster.home / "device-2.log").read_text().strip().splitlines()
            told = printed.splitlines()
            assert told[-1] == " ".join(own[-1].split())
            assert any("device.connected: device-2 " in line for line in told)
            assert not any("device-1 ready" in line for line in told)
            assert "device-2.log" in said
            (site.cluster.home / "device-2.log").unlink()
            _, _, said = await shoal(site, "logs", "device-2")
            assert "journalctl -u shoal-agent" in said
            (site.cluster.home / "device-2.log").touch()

            for name in ("manager", "device-1"):
                text = (site.cluster.home / f"{name}.log").read_text()
                assert all(LINE.fullmatch(line) for line in text.splitlines()), text
            await site.kill_manager()
            code, _, said = await shoal(site, "status", "--check")
            assert code == 3, said

    run(story())


def test_json_logs_of_manager_and_agents_tell_what_is_known(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            job = await site.submit_tally(batches=20)
            await site.ended(job)
            await site.event(job, "job.finished", "")
            text = (site.cluster.home / "manager.log").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            secret = site.cluster.join_line.rpartition("/")[2]
            assert secret[:20] not in text
            assert {line["event"] for line in lines} <= {*KINDS, "log"}
            joined = next(line for line in lines if line["event"] == "device.joined")
            assert (joined["job"], joined["node"], joined["term"]) == (job, "device-1", 1)
            assert joined["cluster"] == (await site.operator.status()).cluster
            # A line and the journal's event are one thing.
            kept = {event.seq: (event.kind, event.text) for event in site.events(job)}
            logged = {line["seq"]: (line["event"], line["reason"]) for line in lines if line.get("job") == job}
            assert logged.items() <= kept.items()
            assert len(logged) > 5
            device = [json.loads(line) for line in (site.cluster.home / "device-1.log").read_text().splitlines()]
            assert {line["node"] for line in device} == {"device-1"}
            assert {line["level"] for line in device} <= {"info", "warning"}
            code, printed, _ = await shoal(site, "logs", job, "--json")
            assert code == 0
            assert [json.loads(line)["seq"] for line in printed.splitlines()] == sorted(kept)[-50:]

    with mock.patch.dict(os.environ, SHOAL_LOG="json"):
        run(story())
