"""A tab of a real browser as a device: it joins by a link, trains, is closed in the midst, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kit import HERE, Site, cluster_in, run

from benchmarks.chromium import Chromium, Page, program

pytest.importorskip("onnx")
pytest.importorskip("starlette")
pytest.importorskip("websockets")

from shoal.browser import engine_files

PACKAGE = HERE.parents[1] / "tab" / "node_modules" / "onnxruntime-web"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(program() is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not PACKAGE.is_dir(), reason="no onnxruntime-web: python tools/tasks.py tab"),
]

TABS = ("--browser", "http://127.0.0.1:0")


async def agreed(site: Site, browser: Chromium) -> Page:
    """A page whose user opened the link and agreed."""
    made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
    page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844, phone=True)
    await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
    await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
    return page


async def shows(page: Page, state: str, *, leases: int = 0) -> None:
    script = (
        f"document.getElementById('state').textContent === {state!r}"
        f" && Number(document.getElementById('leases').textContent) >= {leases}"
    )
    await asyncio.to_thread(page.wait_for, script, seconds=300)


def test_a_tab_trains_beside_an_agent_and_is_killed(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", PACKAGE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                view = await site.connected("tab")
                assert (view.facts.torch, view.facts.browser.startswith("Chromium")) == ("", True)
                job = await site.operator.prepare_and_submit(
                    str(HERE / "clouds_task.py"),
                    kwargs={"count": 4000},
                    plan={"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2, "until": {"epochs": 8}},
                    portable=True,
                )
                await shows(page, "Training", leases=10)
                # The address holds no secret any longer, and the key cannot be read.
                assert await asyncio.to_thread(page.evaluate, "location.hash") == ""
                assert not page.errors
                await asyncio.to_thread(page.close)
            # Its lease goes to a device that comes later.
            await site.cluster.start_agent("onnx-0", "--engine", "onnx")
            await site.ended(job)
            site.exactly_once(job, batches=250, epochs=8)
            assert site.evaluations(job)[-1].accuracy >= 0.95
            workers = {row.node for row in site.history(job)[0]}
            assert workers == {"tab", "onnx-0"}

    run(story())


def test_a_stopped_tab_goes_on_and_a_hidden_one_rests(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", PACKAGE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                await asyncio.to_thread(page.evaluate, "document.getElementById('stop').click()")
                await shows(page, "Stopped")
                await site.until("gone", lambda: _state(site, "tab", "lost"))
                await asyncio.to_thread(page.evaluate, "document.getElementById('go-on').click()")
                await shows(page, "Connected")
                # The key is kept by the browser: another visit needs no link.
                await asyncio.to_thread(page.send, "Page.reload")
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                again = await asyncio.to_thread(page.evaluate, "document.getElementById('agree').textContent")
                assert again == "Train again as tab"
                await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
                await shows(page, "Connected")
                hide = "Object.defineProperty(document, 'hidden', { get: () => true })"
                tell = "document.dispatchEvent(new Event('visibilitychange'))"
                await asyncio.to_thread(page.evaluate, f"{hide}; {tell}")
                await shows(page, "Resting")
                await site.until("rests", lambda: _state(site, "tab", "lost"))
                await asyncio.to_thread(page.evaluate, "document.getElementById('allow-hidden').click()")
                await shows(page, "Connected")
                assert not page.errors

    run(story())


async def _state(site: Site, name: str, state: str) -> bool | None:
    status = await site.operator.status()
    return True if any((view.node, str(view.state)) == (name, state) for view in status.nodes) else None
