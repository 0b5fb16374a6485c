"""The console on a real cluster: a killed worker is seen, the past is replayed, an act is done and logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the console's packages are not installed: pip install '.[console]'")
pytest.importorskip("uvicorn", reason="the console's packages are not installed: pip install '.[console]'")

from browser import Browser, Stream
from kit import WAIT_S, Site, cluster_in, run

from shoal.console.patch import apply
from shoal.trainer.spawn import end_process, spawn


class Seen:
    """A viewer that holds the state, patch by patch."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._stream: Stream = browser.stream().begin()
        self.state: dict[str, Any] = {}

    async def until(self, what: str, condition: Callable[[dict[str, Any]], Any]) -> Any:
        """Read on until the state is so."""
        async with asyncio.timeout(WAIT_S):
            while not (self.state and (found := condition(self.state))):
                told = await asyncio.to_thread(self._stream.next)
                assert told is not None, f"the stream ended before {what}"
                _, kind, data = told
                self.state = data if kind == "state" else apply(self.state, data)
        return found

    def close(self) -> None:
        self._stream.close()


@contextlib.asynccontextmanager
async def console_of(home: Path, *options: str) -> AsyncIterator[tuple[Browser, Path]]:
    """`shoal console` as a process, and a browser that opened its link; and where it logs."""
    log = home / "console.log"
    with log.open("ab") as file:
        process = await spawn(
            "shoal.cli.main",
            *("console", "--home", str(home), "--port", "0", "--json", "--leash", *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        assert line, log.read_text()
        ready = json.loads(line)
        browser = Browser(ready["port"])
        answer = await asyncio.to_thread(browser.get, "/open?k=" + ready["link"].partition("?k=")[2])
        assert answer.status == 303
        yield browser, log
        assert process.returncode is None, log.read_text()
    finally:
        await end_process(process)


@pytest.mark.gate("console")
def test_a_killed_worker_is_seen_and_the_past_is_replayed(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            cluster_in(tmp_path, workers=2) as site,
            console_of(site.cluster.home, "--allow", "devices,jobs") as (browser, log),
        ):
            site.pace(0.3)
            job = await site.submit_tally(batches=4000, workers_min=1)
            seen = await asyncio.to_thread(Seen, browser)
            try:
                await _watched(site, seen, job, browser, log)
            finally:
                seen.close()

    run(story())


async def _watched(site: Site, seen: Seen, job: str, browser: Browser, log: Path) -> None:
    def trains(state: dict[str, Any]) -> bool:
        both = [state["nodes"].get(f"device-{number}", {}) for number in (1, 2)]
        return all(node.get("job") == job and node.get("batches", 0) > 0 for node in both)

    await seen.until("both devices train", trains)
    before = seen.state
    assert before["cluster"]["manager"] == "reachable"
    assert before["jobs"][job]["state"] == "training"
    assert before["jobs"][job]["topology"]["kind"] == "star"
    assert sorted(before["jobs"][job]["workers"]) == ["device-1", "device-2"]
    assert {node["does"] for node in before["nodes"].values()} <= {"train", "upload", "wait", "evaluate"}
    assert any(event["kind"] == "device.joined" for event in before["jobs"][job]["events"])

    await site.kill(site.cluster.agents["device-2"])
    await seen.until("device-2 is lost", lambda state: state["nodes"]["device-2"]["state"] == "lost")
    await seen.until("it is said", lambda state: "device-2 is lost" in state["cluster"]["sentence"])
    assert seen.state["cluster"]["tone"] == "trouble"
    assert seen.state["nodes"]["device-2"]["does"] == "lost"
    lost_s = seen.state["at_s"]
    await seen.until("two further looks", lambda state: state["at_s"] > lost_s + 1.5)

    then = (await asyncio.to_thread(browser.get, f"/api/replay?at={before['at_s']}")).json
    assert then == before, "what was seen then is what is replayed now"
    bar = (await asyncio.to_thread(browser.get, "/api/replay")).json
    assert [mark for mark in bar["marks"] if mark["kind"] == "device.lost" and "device-2" in mark["text"]]
    lanes = (await asyncio.to_thread(browser.get, "/api/lanes")).json["lanes"]
    assert lanes["device-2"][-1][2] == "lost"
    series = (await asyncio.to_thread(browser.get, f"/api/series?job={job}")).json
    assert len(series["at_s"]) == len(series["bytes_per_s"]) >= 2
    assert max(series["version"]) >= 1

    csrf = await asyncio.to_thread(lambda: browser.csrf)
    act = {"do": "drain", "node": "device-1", "reason": "an update"}
    answer = await asyncio.to_thread(lambda: browser.post("/api/act", act, x_shoal_csrf=csrf))
    assert answer.status == 200, answer.body
    await seen.until("it is drained", lambda state: state["nodes"]["device-1"]["standing"] == "drained")
    drained = seen.state["nodes"]["device-1"]["reason"]
    assert "an update (by the console, session 1 from 127.0.0.1)" in drained
    assert "drain device-1, an update (by the console, session 1 from 127.0.0.1)" in log.read_text()
    refused = {"do": "stop", "job": "no-such-job", "reason": "x"}
    answer = await asyncio.to_thread(lambda: browser.post("/api/act", refused, x_shoal_csrf=csrf))
    assert answer.status == 409
    assert answer.json["denied"]
    stop = {"do": "stop", "job": job, "reason": "enough was seen"}
    answer = await asyncio.to_thread(lambda: browser.post("/api/act", stop, x_shoal_csrf=csrf))
    assert answer.status == 200
    await seen.until("it is stopped", lambda state: state["jobs"][job]["state"] == "stopped")
    assert "by the console, session 1" in seen.state["jobs"][job]["reason"]

    await site.kill_manager()
    await seen.until("the manager is away", lambda state: state["cluster"]["manager"] == "unreachable")
    assert seen.state["cluster"]["sentence"].startswith("the manager has not answered for")
    await site.cluster.start_manager()
    await seen.until("the manager is back", lambda state: state["cluster"]["manager"] == "reachable")


def test_the_headline_tells_of_the_job_that_fails_and_each_job_has_its_sentence(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site, console_of(site.cluster.home) as (browser, _):
            site.pace(0.2)
            well = await site.submit_tally(batches=4000, workers_max=1)
            seen = await asyncio.to_thread(Seen, browser)
            try:
                await seen.until("the first job trains", lambda state: _batches(state, well) > 0)
                # Its trainer reads how long a batch takes, and cannot.
                site.pace_file = tmp_path / "no-such-file"
                ill = await site.submit_tally(batches=3000, workers_max=1)
                await seen.until("it fails", lambda state: state["jobs"].get(ill, {}).get("state") == "failing")
                cluster, job = seen.state["cluster"], seen.state["jobs"][ill]
                (device,) = job["workers"]
                assert cluster["tone"] == job["tone"] == "trouble"
                assert job["sentence"].startswith(f"tally fails on its only device, {device}: FileNotFoundError")
                assert f"`shoal jobs stop {ill}`" in job["sentence"]
                assert cluster["sentence"] == f"{job['sentence']}; 1 other job is open"
                assert "FileNotFoundError" in seen.state["nodes"][device]["fails"]
                assert seen.state["jobs"][well]["tone"] == "ok"
            finally:
                seen.close()

    run(story())


def _batches(state: dict[str, Any], job: str) -> int:
    return sum(node.get("batches", 0) for node in state["nodes"].values() if node.get("job") == job)


def test_two_plans_are_simulated(tmp_path: Path, real_data: Path) -> None:
    pytest.importorskip("torch", reason="the task of a simulation is prepared with PyTorch")

    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site, console_of(site.cluster.home) as (browser, _):
            csrf = await asyncio.to_thread(lambda: browser.csrf)
            asked = {"a": {"plan": {"topology": "star"}}, "b": {"plan": {"topology": "shard"}}, "devices": 4}
            begun = await asyncio.to_thread(lambda: browser.post("/api/simulate", asked, x_shoal_csrf=csrf))
            assert begun.status == 202, begun.body
            second = await asyncio.to_thread(lambda: browser.post("/api/simulate", asked, x_shoal_csrf=csrf))
            assert second.status == 429, "one at a time"
            path = f"/api/simulate/{begun.json['id']}"
            while (told := (await asyncio.to_thread(browser.get, path)).json)["state"] == "running":
                await asyncio.sleep(0.5)
            assert told["state"] == "done", told["reason"]
            assert told["progress"] == 1.0
            for name in ("a", "b"):
                assert told[name]["rounds"] > 0
                assert len(told[name]["lanes"]) == 4

    run(story())
