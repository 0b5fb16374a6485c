"""The page of the door as a program that a person installs: it opens without a network, and keeps nothing of a job."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from browser_kit import ENGINE, IN_CHROMIUM
from kit import cluster_in, run

from shoal.browser import engine_files
from testbed.browsers.chromium import Chromium

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *IN_CHROMIUM,
]

TEXT = "document.getElementById('ask')?.innerText ?? ''"
IS_CONTROLLED = "navigator.serviceWorker.controller?.state === 'activated'"
KEPT = """caches.open("shoal-page").then((cache) => cache.keys())
    .then((keys) => JSON.stringify(keys.map(({ url }) => new URL(url).pathname).sort()))"""


def test_the_page_installs_and_opens_offline_in_words_that_say_so(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        tabs = ("--browser", "http://127.0.0.1:0")
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=tabs) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
                page = await asyncio.to_thread(browser.page, made.join_line, width=360, height=740, phone=True)
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                # Chromium itself says what it would miss to install it.
                manifest = await asyncio.to_thread(page.send, "Page.getAppManifest")
                assert (manifest["errors"], json.loads(manifest["data"])["display"]) == ([], "standalone")
                await asyncio.to_thread(page.wait_for, IS_CONTROLLED)
                lacks = await asyncio.to_thread(page.send, "Page.getInstallabilityErrors")
                assert lacks["installabilityErrors"] == []
                await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
                await site.connected("tab")
                kept = json.loads(await asyncio.to_thread(page.evaluate, KEPT))
                assert {"/", "/page.css", "/page.js", "/tab.js", "/manifest.webmanifest"} <= set(kept)
                assert not [path for path in kept if path.startswith(("/blob", "/about", "/enrol", "/door", "/engine"))]
                # The manager is gone, and so is the network: the page comes up, isolated as before, and says how it is.
                await site.kill_manager()
                offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
                await asyncio.to_thread(page.send, "Network.emulateNetworkConditions", **offline)
                await asyncio.to_thread(page.reload)
                told = "document.getElementById('refusal')?.textContent.startsWith('This device is offline.')"
                await asyncio.to_thread(page.wait_for, told)
                text = str(await asyncio.to_thread(page.evaluate, TEXT))
                assert "This page asks the cluster again when it is online." in text
                # The page cannot know whether there is a job, so it does not deny one.
                assert "There is no job" not in text
                assert "Train again as tab" in text
                assert await asyncio.to_thread(page.evaluate, "crossOriginIsolated")

    run(story())
