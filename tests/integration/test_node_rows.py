"""A device in Node learns from rows of its own, beside an agent without PyTorch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_package
from browser_kit import IN_NODE
from kit import HERE, Site, cluster_in, run
from own_rows_task import signs
from test_node_worker import joined, says
from test_own_rows import as_csv, as_npz, start

pytest.importorskip("onnx")

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *IN_NODE,
]

TASK = str(HERE / "own_rows_task.py")


async def submitted(site: Site, plan: dict[str, Any]) -> str:
    return await site.operator.prepare_and_submit(TASK, plan=plan, portable=True)


def test_a_node_agent_learns_from_its_own_rows_and_no_row_leaves(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        folder = tmp_path / "rows"
        folder.mkdir()
        tabs = ("--browser", "http://127.0.0.1:0")
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:
            line = (await site.operator.make_token(role="browser", uses=2, valid_s=600, label="")).join_line
            job = await submitted(site, {"workers_min": 2, "until": {"endless": True}})
            pictures = [await start(site, "onnx-0", tmp_path / "onnx-0", count=150, save=as_csv)]
            # Without a folder the job is not for it, and nothing of it is downloaded.
            with joined(project, line, tmp_path / "bare", "--name", "bare") as bare:
                await site.until("it says so", lambda: says(bare, "this one gives none"))
                assert not list((tmp_path / "bare").glob("*/blobs/*"))
            with joined(project, line, tmp_path / "attic", "--name", "attic", "--data", str(folder)) as node:
                # It has no rows yet: it asks again, and takes part once it has some.
                await site.connected("attic")
                await site.until("prepared", lambda: says(node, "training"))
                x, y = signs(150, seed=3, of=(3, 4, 5))
                as_npz(folder, x[:100], y[:100])
                await site.works(job, "attic")
                (folder / "more").mkdir()
                as_csv(folder / "more", x[100:], y[100:])
                (folder / "more" / "signs.csv").rename(folder / "later.csv")
                notes = next((tmp_path / "attic").glob("*/rows"))
                await site.until("new rows", lambda: has_seen(notes / "seen", job, 150))
                pictures.append(x)
                await site.progress(job, "epochs", lambda told: told.epoch >= 12)
                await site.operator.stop(job)
                await site.ended(job, "stopped")
            rows, _ = site.history(job)
            assert {row.node for row in rows} == {"attic", "onnx-0"}
            assert len(rows) == len({(row.epoch, row.batch) for row in rows})
            assert (site.evaluations(job)[-1].accuracy or 0.0) > 0.85, "each of them has seen half of the signs"
            stored = b"\0".join(
                path.read_bytes()
                for path in site.cluster.home.rglob("*")
                if path.is_file() and not path.is_relative_to(site.cluster.agent_home("onnx-0"))
            )
            assert b"sign-0" in stored, "the search finds what is there"
            assert not [each for own in pictures for each in own if each.tobytes() in stored], (
                "a row has left its device"
            )

    run(story())


def test_a_node_agent_names_the_file_and_the_column_that_do_not_fit(tmp_path: Path) -> None:
    async def story() -> None:
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        folder = tmp_path / "rows"
        folder.mkdir()
        np.savez(folder / "wide.npz", x=np.zeros((3, 8, 9), np.uint8), y=np.zeros(3, np.int64))
        tabs = ("--browser", "http://127.0.0.1:0")
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=tabs) as site:
            line = (await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line
            job = await submitted(site, {"until": {"epochs": 1}})
            reason = "wide.npz: column x is uint8 [8, 9]; the task declares uint8 [8, 8]"
            with joined(project, line, tmp_path / "attic", "--data", str(folder)) as node:
                await site.until("it says so", lambda: says(node, reason))
                (folder / "wide.npz").unlink()
                as_npz(folder, *signs(60, seed=3))
                await site.ended(job)

    run(story())


async def has_seen(path: Path, job: str, count: int) -> bool:
    return path.exists() and json.loads(path.read_text())["counts"].get(job) == count
