"""A part of the model that stays on the device, in Node and in a tab: as an agent's, to the lease and to the digit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import worker_package
from browser_kit import IN_CHROMIUM, IN_NODE
from kit import HERE, Site, cluster_in, run
from own_counts_task import BY_A_LEASE
from own_rows_task import SIGNS, signs
from test_node_worker import Node, free_port, joined
from test_own_rows import as_npz, start
from test_tab_rows import accounts, click, give, holds, opened, text

pytest.importorskip("onnx")

from shoal.browser import engine_files
from shoal.trainer.prepared_job import LAYOUT_NOTE
from shoal.wire import tensors
from testbed.browsers.chromium import Chromium, Page
from testbed.browsers.own_rows import KEPT
from testbed.door_capture import DoorCapture, may_capture

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *IN_NODE,
    *IN_CHROMIUM,
]

TASK = str(HERE / "own_rows_task.py")
COUNTS = str(HERE / "own_counts_task.py")
EPOCHS = 400
#: Several passes; one plain step, whose update is scaled; and an optimiser with a state for both parts.
LEASES = ({"local_epochs": 2}, {"lease_batches": 1}, {"inner": "adam", "inner_state": "kept", "learning_rate": 1e-3})
PRIVATE = {"trust": "private(60, 1e-4)", "cohort": 2, "clip_update": 1.0, "participations": 40, "epoch_leases": 20}


async def project_of(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
    return await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")


async def line_of(site: Site) -> str:
    return str((await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line)


async def kill(site: Site, node: Node, home: Path) -> None:
    """End npx and the program as a power cut would, and wait until the program is gone: it claims its folder."""
    (claim,) = home.glob("*/process")
    program = int(claim.read_text())
    os.killpg(node.process.pid, signal.SIGKILL)
    await asyncio.to_thread(node.process.wait, 30)
    await site.until("the program is gone", lambda: is_gone(program))


async def is_gone(process: int) -> bool:
    return not psutil.pid_exists(process)


# What devices keep ----------------------------------------------------------------------------------------


def kept_by_agent(site: Site, name: str, job: str) -> np.ndarray | None:
    """The values in the order of their layout, as a tab keeps them."""
    path = site.cluster.agent_home(name) / "node" / "own" / f"{job}.safetensors"
    if not path.exists():
        return None
    arrays, notes = tensors.read(path, mmap=False)
    return np.concatenate([arrays[row[0]].reshape(-1) for row in json.loads(notes[LAYOUT_NOTE])])


def kept_in_node(home: Path, job: str) -> np.ndarray | None:
    path = next(home.glob(f"*/rows/own-{job}.json"), None)
    return None if path is None else values_of(json.loads(path.read_text()))


def values_of(note: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(note["values"]), np.float32)


async def kept_in_tab(page: Page, job: str) -> np.ndarray | None:
    notes = await asyncio.to_thread(page.evaluate, f"{KEPT}.then(({{ own }}) => own)")
    return next((values_of(note) for note in notes if note["job"] == job), None)


# Each merged update once ----------------------------------------------------------------------------------


def as_numbers(folder: Path, *_: np.ndarray) -> None:
    np.savez(folder / "numbers.npz", x=np.arange(16, dtype=np.float32), y=np.zeros(16, np.int64))


def leases_in(values: np.ndarray | None) -> float:
    """How many leases the own part of a model that counts has in it."""
    return 0.0 if values is None else float(-values[0]) / BY_A_LEASE


def test_own_parts_have_each_merged_update_once_though_leaders_die(tmp_path: Path) -> None:
    async def story() -> None:
        project, folder, home = await project_of(tmp_path), tmp_path / "rows", tmp_path / "attic"
        folder.mkdir()
        as_numbers(folder)
        tabs = ("--browser", f"http://127.0.0.1:{free_port()}")
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:
            site.may_lose_the_manager = True
            await start(site, "onnx-0", tmp_path / "onnx-0", count=0, save=as_numbers)
            line = await line_of(site)
            # Versions are lost with a leader: few of them are durable.
            plan = {"workers_min": 3, "checkpoint_every_s": 1.0, "until": {"epochs": EPOCHS}}
            job = await site.operator.prepare_and_submit(COUNTS, plan=plan, portable=True)
            with contextlib.ExitStack() as stack:
                node = stack.enter_context(joined(project, line, home, "--name", "attic", "--data", str(folder)))
                page = await opened(site, stack.enter_context(await asyncio.to_thread(Chromium.start)))
                assert "A part of the model is for this device alone." in await text(page, "leaves")
                await give(page, folder / "numbers.npz")
                await holds(page, 16)
                await click(page, "agree")
                for name in ("onnx-0", "attic", "tab"):
                    await site.works(job, name)
                for _ in range(2):
                    began = (await site.progress(job, "any", lambda told: True)).epoch
                    await site.progress(job, "ten epochs", lambda told, began=began: told.epoch >= began + 10)
                    await site.kill_manager()
                    await site.cluster.start_manager()
                    for name in ("onnx-0", "attic", "tab"):
                        await site.works(job, name)
                assert "the own part goes back" in node.said
                await kill(site, node, home)
                kept = leases_in(kept_in_node(home, job))
                assert kept > 0
                again = joined(project, line.partition("#")[0], home, "--data", str(folder), name="attic-again")
                stack.enter_context(again)
                await site.ended(job)
                merged = Counter(row.node for row in site.exactly_once(job, batches=12, epochs=EPOCHS))

                async def is_settled() -> bool:
                    tab, agent = await kept_in_tab(page, job), kept_by_agent(site, "onnx-0", job)
                    return (leases_in(tab), leases_in(agent)) == (merged["tab"], merged["onnx-0"])

                await site.until("the tab and the agent have each of their merged updates once", is_settled)
                # Of a lease that was under way when it was killed it knows nothing.
                assert merged["attic"] - 1 <= leases_in(kept_in_node(home, job)) <= merged["attic"]
                assert kept < leases_in(kept_in_node(home, job))
            versions = max(row.version for row in site.history(job)[0])
            assert float((await site.model(job))["shared"][0]) == -versions * BY_A_LEASE

    run(story())


# What it learned, and where that is -----------------------------------------------------------------------


def pieces(values: np.ndarray) -> list[bytes]:
    """Return every four values in a row as they lie in memory, and as a part of the text that is kept."""
    raw = values.astype("<f4").tobytes()
    # Any three bytes begin four letters.
    texts = [base64.b64encode(raw[start : start + 18]) for start in range(0, len(raw) - 18, 6)]
    return [raw[start : start + 16] for start in range(0, len(raw) - 16, 4)] + texts


def test_an_own_head_outlives_its_process_and_never_leaves_the_device(tmp_path: Path) -> None:
    async def story() -> None:
        project, folder, home = await project_of(tmp_path), tmp_path / "rows", tmp_path / "attic"
        folder.mkdir()
        x, y = signs(170, seed=3)
        # Its user calls every sign otherwise than the others do.
        as_npz(folder, x[:140], (y[:140] + 3) % SIGNS)
        as_npz(tmp_path, *signs(140, seed=4))
        port = free_port()
        tabs = ("--browser", f"http://127.0.0.1:{port}")
        capture = DoorCapture(port) if may_capture() else None
        snapshots: list[np.ndarray] = []
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:
            await start(site, "onnx-0", tmp_path / "onnx-0", count=140, save=as_npz)
            line = await line_of(site)
            with contextlib.ExitStack() as stack:
                if capture is not None:
                    stack.enter_context(capture)
                kwargs = {"own_head": True, "held_out": False}
                job = await site.operator.prepare_and_submit(
                    TASK, kwargs=kwargs, plan={"workers_min": 3, "until": {"endless": True}}, portable=True
                )
                node = stack.enter_context(joined(project, line, home, "--name", "attic", "--data", str(folder)))
                page = await opened(site, stack.enter_context(await asyncio.to_thread(Chromium.start)))
                await give(page, tmp_path / "signs.npz")
                await holds(page, 140)
                await click(page, "agree")
                for name in ("onnx-0", "attic", "tab"):
                    await site.works(job, name)
                began = (await site.progress(job, "any", lambda told: True)).epoch
                for more in (3, 6, 9, 12):
                    await site.progress(job, "more epochs", lambda told, more=more: told.epoch >= began + more)
                    found = [await kept_in_tab(page, job), kept_in_node(home, job), kept_by_agent(site, "onnx-0", job)]
                    snapshots += [values for values in found if values is not None]
                assert len(snapshots) == 12
                await kill(site, node, home)
                # New ones for it alone, no more than a lease takes: they are judged when it is back, before it trains.
                np.savez(folder / "later.npz", x=x[140:], y=(y[140:] + 3) % SIGNS)
                before = (await site.progress(job, "any", lambda told: True)).epoch
                again = joined(project, line.partition("#")[0], home, "--data", str(folder), name="attic-again")
                stack.enter_context(again)
                await site.until("they are judged", lambda: judged(site, job, before, 30))
                views = [view for view in site.evaluations(job) if view.epoch >= before and view.examples]
                right = sum(view.examples * (view.accuracy or 0.0) for view in views) / 30
                assert right > 0.7, f"{right:.0%} of new rows right with the head that was kept"
                # Rows go, and what was made of them. It begins again as a new device does.
                await click(page, "forget-rows")
                await holds(page, 0)
                assert await kept_in_tab(page, job) is None
                await site.operator.stop(job)
                await site.ended(job, "stopped")
            ours = site.cluster.agent_home("onnx-0")
            stored = [path for path in site.cluster.home.rglob("*") if path.is_file() and not path.is_relative_to(ours)]
            everywhere = b"\0".join([path.read_bytes() for path in stored] + (list(capture.sent) if capture else []))
            assert b"sign-0" in everywhere, "the search finds what is there"
            assert capture is None or b"upgrade: websocket" in everywhere.lower()
            assert f"own-{job}".encode() not in everywhere
            for values in snapshots:
                assert values.size == 24 * SIGNS + SIGNS
                assert not [piece for piece in pieces(values) if piece in everywhere], "an own part has left its device"

    run(story())


async def judged(site: Site, job: str, since: int, rows: int) -> bool:
    return sum(view.examples for view in site.evaluations(job) if view.epoch >= since) == rows


# As an agent's --------------------------------------------------------------------------------------------


def test_own_parts_are_those_of_agents_with_the_same_rows(tmp_path: Path) -> None:
    """One device at a time, with one folder, trains jobs of the same leases: with PyTorch, with graphs, and in Node."""

    async def story() -> None:
        project, folder, home = await project_of(tmp_path), tmp_path / "rows", tmp_path / "attic"
        folder.mkdir()
        x, y = signs(90, seed=3)
        as_npz(folder, x, y)
        tabs = ("--browser", "http://127.0.0.1:0")
        #: By device and plan: its own part, and what all share.
        kept: dict[str, list[np.ndarray | None]] = {}
        shared: dict[str, list[dict[str, np.ndarray]]] = {}
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:

            async def train_all(name: str, own: Callable[[str], np.ndarray | None]) -> None:
                kept[name], shared[name] = [], []
                for plan in LEASES:
                    chosen = {"workers_min": 1, "epoch_leases": 6, "until": {"epochs": 4}, **plan}
                    job = await site.operator.prepare_and_submit(
                        TASK, kwargs={"own_head": True}, plan=chosen, portable=True
                    )
                    await site.ended(job)
                    await site.until("it is kept", lambda job=job: is_there(own(job)))
                    kept[name].append(own(job))
                    shared[name].append(await site.model(job))

            for name in ("torch-0", "onnx-0"):
                await start(site, name, tmp_path / name, count=0, save=lambda to, *_: as_npz(to, x, y))
                await train_all(name, lambda job, name=name: kept_by_agent(site, name, job))
                await site.kill(site.cluster.agents.pop(name))
            with joined(project, await line_of(site), home, "--name", "attic", "--data", str(folder)):
                await train_all("attic", lambda job: kept_in_node(home, job))
        for name in ("onnx-0", "attic"):
            for number, plan in enumerate(LEASES):
                np.testing.assert_allclose(kept[name][number], kept["torch-0"][number], atol=1e-5, err_msg=str(plan))
                for tensor, values in shared["torch-0"][number].items():
                    np.testing.assert_allclose(shared[name][number][tensor], values, atol=1e-5, err_msg=str(plan))
        assert all(set(model) == {"0.weight", "0.bias"} for model in shared["attic"])

    run(story())


async def is_there(values: np.ndarray | None) -> bool:
    return values is not None


def test_a_private_job_has_an_own_part_and_an_account(tmp_path: Path) -> None:
    async def story() -> None:
        project, folder, home = await project_of(tmp_path), tmp_path / "rows", tmp_path / "attic"
        folder.mkdir()
        as_npz(folder, *signs(150, seed=3))
        as_npz(tmp_path, *signs(150, seed=4))
        tabs = ("--browser", "http://127.0.0.1:0")
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:
            plan = PRIVATE | {"workers_min": 2, "work": "sized", "budget_s": 0.3, "until": {"epochs": 3}}
            job = await site.operator.prepare_and_submit(TASK, kwargs={"own_head": True}, plan=plan, portable=True)
            with contextlib.ExitStack() as stack:
                page = await opened(site, stack.enter_context(await asyncio.to_thread(Chromium.start)))
                await give(page, tmp_path / "signs.npz")
                await holds(page, 150)
                await click(page, "agree")
                stack.enter_context(
                    joined(project, await line_of(site), home, "--name", "attic", "--data", str(folder))
                )
                await site.ended(job)
                assert {row.node for row in site.history(job)[0]} == {"tab", "attic"}
                tab, node = await kept_in_tab(page, job), kept_in_node(home, job)
                assert tab is not None
                assert node is not None
                assert np.abs(tab - node).max() > 0.01, "each has its own"
                # Rows can be deleted, and what was made of them. What has left the device cannot.
                (account,) = await accounts(page)
                await click(page, "forget-rows")
                await holds(page, 0)
                assert await kept_in_tab(page, job) is None
                assert await accounts(page) == [account]

    run(story())
