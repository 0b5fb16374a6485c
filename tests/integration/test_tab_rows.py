"""A tab learns from rows that a person gives it. They stay in the browser, and the page says first what leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_kit import ENGINE, IN_CHROMIUM
from kit import HERE, Site, cluster_in, run
from own_rows_task import signs
from test_browser import TABS, shows
from test_own_rows import as_csv, as_npz, start

from testbed.browsers.chromium import Chromium, Page
from testbed.browsers.firefox import Firefox
from testbed.browsers.firefox import program as firefox_program
from testbed.browsers.own_rows import KEPT
from testbed.door_capture import DoorCapture, may_capture

pytest.importorskip("onnx")
pytest.importorskip("PIL")

from PIL import Image

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.timeout(900),
    *IN_CHROMIUM,
]

TASK = str(HERE / "own_rows_task.py")
SCALARS = str(HERE / "own_scalars_task.py")
PRIVATE = {"trust": "private(60, 1e-4)", "cohort": 2, "clip_update": 1.0, "participations": 40, "epoch_leases": 20}


async def opened(site: Site, browser: Chromium | Firefox) -> Any:
    made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
    page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844)
    await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
    return page


async def text(page: Page, element: str) -> str:
    return str(await asyncio.to_thread(page.evaluate, f"document.getElementById({element!r}).innerText"))


async def click(page: Page, element: str) -> None:
    await asyncio.to_thread(page.evaluate, f"document.getElementById({element!r}).click()")


async def holds(page: Page, rows: int) -> None:
    """Wait until the page says that it keeps this many rows."""
    said = "No rows yet" if not rows else "1 row is kept here" if rows == 1 else f"{rows} rows are kept here"
    await asyncio.to_thread(
        page.wait_for, f"document.getElementById('rows-held').textContent.startsWith({said!r})", seconds=60
    )


async def give(page: Page, *files: Path) -> None:
    await asyncio.to_thread(page.choose, "row-files", *files)


async def submitted(site: Site, task: str = TASK, plan: dict[str, Any] | None = None, **kwargs: Any) -> str:
    plan = {"until": {"endless": True}} | (plan or {})
    return await site.operator.prepare_and_submit(task, kwargs=kwargs, plan=plan, portable=True)


@pytest.mark.gate("tab")
def test_a_tab_learns_from_files_that_a_person_gives_and_no_row_leaves(tmp_path: Path) -> None:
    x, y = signs(150, seed=3, of=(3, 4, 5))
    as_npz(tmp_path, x[:100], y[:100])
    (tmp_path / "more").mkdir()
    as_csv(tmp_path / "more", x[100:], y[100:])
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 8, 9), np.uint8), y=np.zeros(3, np.int64))
    Image.fromarray(x[0]).save(tmp_path / "sign.png")

    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            # On a fast machine the model has converged on three signs when the fourth comes. At the task's own rate
            # that update would be longer than what is always taken, and far from usual.
            job = await submitted(site, plan={"learning_rate": 0.02})
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await opened(site, browser)
                # What it wants, and what leaves, before anything does.
                assert "rows of your own" in await text(page, "rows-lead")
                told = await text(page, "leaves")
                assert "How many rows you have." in told
                assert "No row leaves" in told
                # A file of another form keeps nothing, and the page names it.
                await give(page, tmp_path / "wide.npz")
                await asyncio.to_thread(page.wait_for, "document.getElementById('rows-told').textContent", seconds=60)
                wide = "wide.npz: column x is uint8 [8, 9]; the task declares uint8 [8, 8]"
                assert await text(page, "rows-told") == wide
                await holds(page, 0)
                # Without rows, nothing of the job is fetched: the page asks for them.
                await click(page, "agree")
                await shows(page, "A new job")
                assert await asyncio.to_thread(page.evaluate, "document.getElementById('take-job').disabled")
                assert await asyncio.to_thread(page.evaluate, "Number(document.body.dataset.files)") == 0
                await give(page, tmp_path / "signs.npz")
                await holds(page, 100)
                await click(page, "take-job")
                await site.works(job, "tab")
                # More rows while it trains: they are evaluated before they are trained on.
                await give(page, tmp_path / "more" / "signs.csv")
                await holds(page, 150)
                await asyncio.to_thread(
                    page.evaluate, "(document.getElementById('class-of-pictures').value = 'sign-4', 0)"
                )
                await give(page, tmp_path / "sign.png")
                await holds(page, 151)
                seen = f"{KEPT}.then(({{ seen }}) => seen[{job!r}])"
                await asyncio.to_thread(page.wait_for, f"({seen}).then((count) => count === 151)", seconds=120)
                # The picture has the size that the job declares: it is kept as it is.
                kept = await asyncio.to_thread(page.evaluate, f"{KEPT}.then(({{ last }}) => last)")
                assert kept == {"x": x[0].reshape(-1).tolist(), "y": [4, 0, 0, 0, 0, 0, 0, 0]}
                # A reload keeps the rows, and asks again.
                await asyncio.to_thread(page.send, "Page.reload")
                await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
                await holds(page, 151)
                await click(page, "agree")
                await shows(page, "Training", leases=2)
                # They go at once when the person says so, and the job waits for others.
                await click(page, "forget-rows")
                await holds(page, 0)
                await shows(page, "A new job")
                assert await asyncio.to_thread(page.evaluate, f"{KEPT}.then(({{ parts }}) => parts)") == 0
                assert not page.errors
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            assert {row.node for row in site.history(job)[0]} == {"tab"}
            stored = b"\0".join(path.read_bytes() for path in site.cluster.home.rglob("*") if path.is_file())
            assert b"sign-0" in stored, "the search finds what is there"
            assert not [each for each in x if each.tobytes() in stored], "a row has left its device"

    run(story())


@pytest.mark.full
@pytest.mark.parametrize("kind", ["chromium", "firefox"])
def test_a_private_job_has_an_account_in_the_browser_that_outlives_the_rows(tmp_path: Path, kind: str) -> None:
    if kind == "firefox" and firefox_program() is None:
        pytest.skip("no Firefox on this machine: apt-get install firefox-esr")
    x, y = signs(150, seed=3, of=(3, 4, 5))
    as_npz(tmp_path, x, y)

    async def story() -> None:
        tmp_path.chmod(0o755)
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=TABS) as site:
            others = await start(site, "onnx-0", tmp_path / "onnx-0", count=150, save=as_npz)
            job = await submitted(site, plan=PRIVATE | {"workers_min": 2, "until": {"epochs": 4}})
            with await asyncio.to_thread(Chromium.start if kind == "chromium" else Firefox.start) as browser:
                page = await opened(site, browser)
                told = await text(page, "leaves")
                assert "epsilon 60, delta 0.0001" in told
                assert "The loss, and how many rows it used, stay here." in told
                await give(page, tmp_path / "signs.npz")
                await holds(page, 150)
                await click(page, "agree")
                await site.ended(job)
                view = await site.view(job)
                assert view is not None
                assert view.progress is not None
                taken = await accounts(page)
                own = json.loads(next(site.cluster.agent_home("onnx-0").rglob("privacy/*.json")).read_text())
                often = max(len(account["participations"]) for account in (own, *taken))
                assert [account["job"] for account in taken] == [job]
                assert len({tuple(pair) for pair in taken[0]["participations"]}) == len(taken[0]["participations"]) > 0
                assert view.progress.participations_worst == often
                assert max(own["epsilon"], taken[0]["epsilon"]) == pytest.approx(view.progress.epsilon_worst, rel=1e-6)
                # Rows can be deleted. What has left the device cannot.
                await click(page, "forget-rows")
                await holds(page, 0)
                assert await accounts(page) == taken
            assert {row.node for row in site.history(job)[0]} == {"tab", "onnx-0"}
            stored = b"\0".join(
                path.read_bytes()
                for path in site.cluster.home.rglob("*")
                if path.is_file() and not path.is_relative_to(site.cluster.agent_home("onnx-0"))
            )
            assert not [each for each in (*x, *others) if each.tobytes() in stored], "a row has left its device"

    run(story())


async def accounts(page: Any) -> list[dict[str, Any]]:
    return list(await asyncio.to_thread(page.evaluate, f"{KEPT}.then(({{ accounts }}) => accounts)"))


@pytest.mark.full
def test_rows_come_by_a_form_and_a_reload_keeps_an_own_part_of_the_model(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=(), manager_options=TABS) as site:
            job = await submitted(site, SCALARS)
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await opened(site, browser)
                for values, problem in (
                    (["1.5", "5", "1"], ""),
                    (["hot", "5", "1"], "row 1: column heat is not float32"),
                ):
                    script = f"""{json.dumps(values)}.forEach((value, i) =>
                      (document.getElementById(`row-field-${{i}}`).value = value))"""
                    await asyncio.to_thread(page.evaluate, script)
                    await asyncio.to_thread(page.evaluate, "document.getElementById('row-form').requestSubmit()")
                    said = problem or "1 row was added."
                    await asyncio.to_thread(
                        page.wait_for, f"document.getElementById('rows-told').textContent === {said!r}", seconds=60
                    )
                await holds(page, 1)
                await click(page, "agree")
                await site.works(job, "tab")
                await site.operator.stop(job)
                await site.ended(job, "stopped")
                # Another job, of another form, is another question.
                own = await submitted(site, own_head=True)
                await shows(page, "A new job")
                as_npz(tmp_path, *signs(60, seed=3))
                await give(page, tmp_path / "signs.npz")
                await holds(page, 60)
                assert "A part of the model is for this device alone." in await text(page, "leaves")
                await click(page, "take-job")
                kept = f"{KEPT}.then(({{ own }}) => own.map(({{ job, values }}) => [job, values.length > 0]))"
                await shows(page, "Training", leases=3)
                assert await asyncio.to_thread(page.evaluate, kept) == [[own, True]]
                await asyncio.to_thread(page.send, "Page.reload")
                await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
                assert await asyncio.to_thread(page.evaluate, kept) == [[own, True]]
                await click(page, "agree")
                await shows(page, "Training", leases=2)
                await click(page, "forget-rows")
                await holds(page, 0)
                assert await asyncio.to_thread(page.evaluate, kept) == []
                await site.operator.stop(own)

    run(story())


@pytest.mark.full
@pytest.mark.skipif(not may_capture(), reason="this process may not read packets (CAP_NET_RAW)")
def test_no_row_crosses_the_wire(tmp_path: Path) -> None:
    x, y = signs(150, seed=3)
    as_npz(tmp_path, x, y)

    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
            door = made.join_line.partition("/#")[0]
            with DoorCapture(int(door.rpartition(":")[2])) as capture:
                job = await submitted(site, plan={"until": {"epochs": 3}})
                with await asyncio.to_thread(Chromium.start) as browser:
                    page = await opened(site, browser)
                    await give(page, tmp_path / "signs.npz")
                    await holds(page, 150)
                    await click(page, "agree")
                    await site.ended(job)
            sent = b"\0".join(capture.sent)
            assert b"upgrade: websocket" in sent.lower(), "the search finds what crossed the wire"
            assert not [each for each in x if each.tobytes() in sent], "a row has left its device"
            assert b"signs.npz" not in sent

    run(story())
