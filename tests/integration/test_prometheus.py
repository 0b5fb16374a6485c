"""A real Prometheus scrapes a real cluster and its devices, and answers how many examples a second it trains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kit import TALLY, WAIT_S, Site, cluster_in, run

from shoal.trainer.spawn import end_process

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

PROMETHEUS = shutil.which("prometheus")

SETTINGS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: shoal
    static_configs: [{{targets: ["{cluster}"]}}]
  - job_name: shoal-devices
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ["{device}"]}}]
"""

RULES = Path(__file__).parents[2] / "docs" / "operations" / "prometheus-rules.yml"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def got(url: str, **headers: str) -> str:
    assert url.startswith("http://127.0.0.1:")
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return str(answer.read().decode())


@contextlib.asynccontextmanager
async def exporter(site: Site) -> AsyncIterator[str]:
    """`shoal metrics` as a process; yields HOST:PORT."""
    command = (sys.executable, "-m", "shoal.cli.main", "metrics", "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *command, "--home", str(site.cluster.home), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), WAIT_S)).decode()
        found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)
        assert found, line
        yield found[1]
    finally:
        await end_process(process)
        assert process.returncode == 0


@contextlib.asynccontextmanager
async def prometheus(folder: Path, **targets: str) -> AsyncIterator[str]:
    """A Prometheus of its own on loopback; yields the address of its API."""
    assert PROMETHEUS is not None
    folder.mkdir()
    (folder / "prometheus.yml").write_text(SETTINGS.format(rules=RULES, **targets))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await end_process(process)


async def answered(site: Site, api: str, query: str, *, above: float) -> float:
    """Ask Prometheus until its answer is above this."""

    async def ask() -> list[float] | None:
        with contextlib.suppress(OSError):
            text = await asyncio.to_thread(got, f"{api}/api/v1/query?query={urllib.parse.quote(query)}")
            told: dict[str, Any] = json.loads(text)
            assert told["status"] == "success", told
            values = [float(each["value"][1]) for each in told["data"]["result"]]
            return [value for value in values if value > above] or None
        return None

    return (await site.until(f"{query} is above {above}", ask))[0]


async def evaluated(api: str) -> bool:
    told = json.loads(await asyncio.to_thread(got, f"{api}/api/v1/rules"))
    health = {rule["name"]: rule["health"] for rule in told["data"]["groups"][0]["rules"]}
    assert "err" not in health.values(), health
    return set(health.values()) == {"ok"}


@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed: apt-get install prometheus")
def test_prometheus_scrapes_a_cluster_that_trains(tmp_path: Path) -> None:
    async def story() -> None:
        token = tmp_path / "token"
        token.write_text("a-token-of-a-test-0123\n")
        options = (*TALLY, "--metrics", "127.0.0.1:0", "--metrics-token-file", str(token))
        async with cluster_in(tmp_path, workers=2, options=options) as site, exporter(site) as cluster:
            log = (site.cluster.home / "device-1.log").read_text()
            found = re.search(r"metrics of this device are at http://(127\.0\.0\.1:\d+)/metrics", log)
            assert found, log
            site.pace(0.05)
            job = await site.submit_tally(batches=64, epochs=1000)
            targets = {"cluster": cluster, "device": found[1], "token": str(token)}
            async with prometheus(tmp_path / "prometheus", **targets) as api:
                rate = await answered(site, api, f'rate(shoal_job_examples_total{{shoal_job="{job}"}}[10s])', above=0)
                print(f"{rate:.1f} examples a second, says Prometheus")
                await answered(site, api, 'shoal_nodes{state="alive"}', above=1)
                await answered(site, api, 'rate(shoal_agent_training_seconds_total{node="device-1"}[10s])', above=0)
                await answered(site, api, f'shoal_agent_job_info{{node="device-1",shoal_job="{job}"}}', above=0)
                await answered(site, api, "shoal_certificate_expiry_timestamp_seconds - time()", above=86400)
                await answered(site, api, "shoal_disk_free_bytes", above=0)
                # The manager says how it is itself: it is ready, writes to its database, and its authority lasts.
                await answered(site, api, "shoal_manager_ready", above=0)
                calls = 'rate(shoal_store_call_seconds_count{store="database"}[10s])'
                await answered(site, api, calls, above=0)
                await answered(site, api, "shoal_authority_expiry_timestamp_seconds - time()", above=86400)
                # A device that is killed is counted, and why.
                await site.kill(site.cluster.agents["device-2"])
                await answered(site, api, 'shoal_node_losses_total{cause="cut"}', above=0)
                await site.until("Prometheus evaluates every rule", lambda: evaluated(api))
                # Without a manager the exporter still answers, and says so.
                await site.kill_manager()
                await answered(site, api, "1 - shoal_manager_reachable", above=0)

    run(story())
