"""A device in Node, without a browser and without Python, from the packed package: it trains beside an agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import worker_package
from browser_kit import IN_NODE
from kit import HERE, Site, cluster_in, run

pytest.importorskip("onnx")

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *IN_NODE,
]

CLOUDS = str(HERE / "clouds_task.py")
PLAN = {"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2}


@dataclass(frozen=True, slots=True)
class Node:
    """A process of `npx @shoal/worker`, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def interrupt(self) -> None:
        """Press Ctrl-C, which a terminal sends to npx and to the program, and wait until both have ended."""
        os.killpg(self.process.pid, signal.SIGINT)
        # npx ends by the same signal, after the program.
        assert self.process.wait(30) in (0, -signal.SIGINT)


@contextmanager
def joined(project: Path, line: str, home: Path, *options: str, name: str = "") -> Iterator[Node]:
    log = home.with_name(f"{name or home.name}.txt")
    command = ["npx", "--no-install", "@shoal/worker", "join", line, "--home", str(home), *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=project, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield Node(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_node_agent_trains_beside_an_agent_reconnects_and_leaves(tmp_path: Path) -> None:
    async def story() -> None:
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        tabs = ("--browser", f"http://127.0.0.1:{free_port()}")
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=tabs) as site:
            made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
            line = made.join_line
            with joined(project, line, tmp_path / "attic", "--name", "attic") as node:
                view = await site.connected("attic")
                assert view.facts.browser.startswith("Node ")
                assert view.facts.onnx
                job = await site.operator.prepare_and_submit(
                    CLOUDS, kwargs={"count": 4000}, plan={**PLAN, "until": {"epochs": 10_000}}, portable=True
                )
                await site.works(job, "attic")
                # Another process with the same key is refused before it dials.
                with joined(project, line, tmp_path / "attic", name="twin") as twin:
                    assert await asyncio.to_thread(twin.process.wait, 60) == 1
                    assert "already trains as this device" in twin.said
                await site.cluster.start_agent("onnx-0", "--engine", "onnx")
                await site.works(job, "onnx-0")
                # A manager that is killed and returns finds it again.
                await site.kill_manager()
                await site.cluster.start_manager()
                await site.connected("attic")
                merged = by(site, job, "attic")
                await site.until("it goes on", lambda: at_least(site, job, "attic", merged + 4))
                # Ctrl-C: it says goodbye, so nobody waits for it.
                await asyncio.to_thread(node.interrupt)
                assert node.said.splitlines()[-1] == "left", node.said
            await site.until("gone", lambda: is_unlisted(site, "attic"))
            # The key is kept, and nobody else may read it. From now on the address is enough, and nothing comes twice.
            kept = next((tmp_path / "attic").glob("*/identity.json"))
            assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            assert "key_pkcs8" in json.loads(kept.read_text())
            blobs = {path: path.stat().st_ino for path in (kept.parent / "blobs").iterdir()}
            with joined(project, line.partition("#")[0], tmp_path / "attic"):
                merged = by(site, job, "attic")
                await site.until("it trains again", lambda: at_least(site, job, "attic", merged + 4))
                assert {path: path.stat().st_ino for path in blobs} == blobs
                await site.operator.stop(job)
                await site.ended(job, "stopped")
            rows, audits = site.history(job)
            assert {row.node for row in rows} == {"attic", "onnx-0"}
            assert len(rows) == len({(row.epoch, row.batch) for row in rows})
            whole = [audit for audit in audits if audit.epoch < max(row.epoch for row in rows)]
            assert whole
            assert all((audit.batches, audit.distinct) == (250, 250) for audit in whole)
            assert (site.evaluations(job)[-1].accuracy or 0.0) >= 0.95

    run(story())


def test_a_node_agent_says_why_it_does_not_train(tmp_path: Path) -> None:
    async def story() -> None:
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        tabs = ("--browser", "http://127.0.0.1:0", "--browser-operator", "Ms Okafor")
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=tabs) as site:
            line = (await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line
            job = await site.operator.prepare_and_submit(CLOUDS, plan={**PLAN, "until": {"epochs": 1}}, portable=True)
            with joined(project, line, tmp_path / "small", "--max-mb", "0") as node:
                await site.until("it says what it does not take", lambda: says(node, "not taken, for --max-mb is 0"))
                assert "run by Ms Okafor" in node.said
                assert not list((tmp_path / "small").glob("*/blobs/*"))
            with joined(project, line, tmp_path / "late") as node:
                assert await asyncio.to_thread(node.process.wait, 60) == 1
                assert "This link was used already. Ask for another." in node.said
            with joined(project, line.partition("#")[0], tmp_path / "stranger") as node:
                assert await asyncio.to_thread(node.process.wait, 60) == 1
                assert "has not joined: give the whole line" in node.said
            await site.operator.stop(job)

    run(story())


def by(site: Site, job: str, node: str) -> int:
    return sum(row.node == node for row in site.history(job)[0])


async def at_least(site: Site, job: str, node: str, least: int) -> bool:
    return by(site, job, node) >= least


async def is_unlisted(site: Site, name: str) -> bool | None:
    return True if all(view.node != name for view in (await site.operator.status()).nodes) else None


async def says(node: Node, text: str) -> bool:
    return text in node.said
