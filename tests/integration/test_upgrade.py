"""A running cluster is upgraded node by node, manager first, from the code of the protocol before.

That code is the commit before the one that raised the protocol; without the project's history the test skips.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from unittest import mock

import pytest
from kit import HERE, Site, cluster_in, run

from shoal.trainer.spawn import end_process
from shoal.wire.messages import PROTOCOL, Progress

ROOT = HERE.parent.parent
SLOW_S = 0.4
#: Long enough for a busy machine to upgrade three devices meanwhile.
BATCHES, EPOCHS = 300, 6


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the protocol before, as it was committed last."""
    raised = _git("log", "--format=%H", "-S", f"PROTOCOL = {PROTOCOL}\n", "--", "src/shoal/wire/messages/base.py")
    if not raised:
        pytest.skip("needs the project's history: the commit that raised the protocol is not in this clone")
    archive = subprocess.run(
        ["git", "archive", f"{raised.split()[-1]}^", "src"], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    if archive.returncode != 0:
        pytest.skip("needs the project's history: the commit before that is not in this clone")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    spoken = (folder / "src" / "shoal" / "wire" / "messages" / "base.py").read_text()
    assert f"PROTOCOL = {PROTOCOL - 1}\n" in spoken
    return folder / "src"


def _git(*words: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


async def _protocols(site: Site) -> dict[str, int]:
    nodes = (await site.operator.status()).nodes
    return {node.node: node.protocol for node in nodes if node.node in site.cluster.agents and node.state == "alive"}


async def _goes_on(site: Site, job: str) -> None:
    """Batches are merged that were not when this was called."""
    before = await site.progress(job, "its leader reports", lambda told: True)

    def is_further(told: Progress) -> bool:
        return (told.epoch, told.batches_applied) > (before.epoch, before.batches_applied + 5)

    await site.progress(job, "it trains on", is_further)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lead", ["here", "devices"])
def test_a_cluster_is_upgraded_node_by_node_while_it_trains(previous: Path, lead: str, tmp_path: Path) -> None:
    async def story() -> None:
        with mock.patch.dict(os.environ, PYTHONPATH=str(previous)):
            async with cluster_in(tmp_path, workers=3, manager_options=("--lead", lead)) as site:
                site.may_lose_the_manager = True
                site.pace(SLOW_S)
                job = await site.submit_tally(batches=BATCHES, epochs=EPOCHS, workers_min=1)
                for name in site.cluster.agents:
                    await site.works(job, name)
                # From here on, what is started is of this checkout.
                os.environ["PYTHONPATH"] = str(HERE)
                await site.kill_manager()
                await site.cluster.start_manager()
                names = sorted(site.cluster.agents)
                for name in names:
                    await site.connected(name)
                assert await _protocols(site) == dict.fromkeys(names, PROTOCOL - 1)
                await _goes_on(site, job)
                for count, name in enumerate(names, start=1):
                    await site.operator.drain_node(name, "upgrade")
                    await end_process(site.cluster.agents[name])
                    await site.cluster.start_agent(name)
                    await site.operator.undrain_node(name)
                    await site.works(job, name)
                    spoken = await _protocols(site)
                    assert sorted(spoken.values()) == [PROTOCOL - 1] * (3 - count) + [PROTOCOL] * count
                    await _goes_on(site, job)
                site.pace(0.0)
                await site.ended(job)
                await site.tallied_once(job, batches=BATCHES, epochs=EPOCHS)

    run(story())
