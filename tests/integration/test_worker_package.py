"""The package @shoal/worker in a page of another site: refused until the operator names that site, then it trains."""

from __future__ import annotations

import asyncio
import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import worker_package
from browser_kit import FROM_THE_PACKAGE
from kit import HERE, cluster_in, run

from testbed.browsers.chromium import Chromium, Page

pytest.importorskip("onnx")

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *FROM_THE_PACKAGE,
]

CLOUDS = str(HERE / "clouds_task.py")

#: A page as somebody else writes it. `#DOOR` is the door; the secret comes from the test.
PAGE = """<!doctype html>
<title>Help us</title>
<link rel="icon" href="data:,">
<script type="importmap">{ "imports": { "@shoal/worker": "/node_modules/@shoal/worker/dist/index.js" } }</script>
<script type="module">
import { Device, webParts } from "@shoal/worker";
window.events = [];
const door = decodeURIComponent(location.hash.slice(1));
window.device = new Device(webParts(door));
device.on("state", ({ state, reason }) => events.push(["state", state, reason]));
device.on("progress", ({ done, of, leases, loss }) => events.push(["progress", done, of, leases, loss]));
window.isReady = true;
</script>
"""

#: A program that uses the types, and one that misuses them.
TYPED = """import { Device, webParts, type Progress } from "@shoal/worker";
import { nodeParts } from "@shoal/worker/node";
const device = new Device(webParts("https://shoal.example"));
const end: () => void = device.on("progress", ({ done, of }: Progress) => console.log(done / of));
device.on("offer", (offer) => console.log(offer.once_bytes.toFixed(0)));
export { device, end, nodeParts };
"""
MISTYPED = """import { Device, webParts } from "@shoal/worker";
new Device(webParts("https://shoal.example")).on("progres", () => undefined);
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A little server of somebody else; gives its origin."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_of_another_site_trains_where_the_operator_named_it(tmp_path: Path) -> None:
    async def story() -> None:
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        (project / "index.html").write_text(PAGE)
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        with served(project) as named, served(project) as stranger:
            tabs = ("--browser", "http://127.0.0.1:0", "--browser-origin", f"https://app.example,{named}")
            async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=tabs) as site:
                made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
                door, _, fragment = made.join_line.partition("/#")
                secret = fragment.partition("=")[2]
                with await asyncio.to_thread(Chromium.start) as browser:
                    # Another site: it neither learns what the cluster wants, nor opens a stream, nor frames the page.
                    page = await opened(browser, stranger, door)
                    looked = await asyncio.to_thread(page.evaluate, f"device.look({secret!r}).then((now) => now.about)")
                    assert looked is None
                    assert await asyncio.to_thread(page.evaluate, opens_socket(door)) is False
                    assert not await is_framed(page, door)
                    page = await opened(browser, named, door)
                    assert await is_framed(page, door)
                    cluster = f"device.look({secret!r}).then((now) => now.about.cluster)"
                    assert await asyncio.to_thread(page.evaluate, cluster) == "shoal"
                    plan = {"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2, "until": {"epochs": 6}}
                    await asyncio.to_thread(page.evaluate, "void device.later(100)")
                    await asyncio.to_thread(page.evaluate, f"device.join({secret!r}, 'app', 'Somebody’s app')")
                    assert (await site.connected("app")).facts.browser == "Somebody’s app"
                    job = await site.operator.prepare_and_submit(CLOUDS, plan=plan, portable=True)
                    await site.ended(job)
                    site.exactly_once(job, batches=15, epochs=6)
                    assert {row.node for row in site.history(job)[0]} == {"app"}
                    progress = "events.filter(([name, , , leases]) => name === 'progress' && leases > 0).length"
                    assert await asyncio.to_thread(page.evaluate, progress) >= 10
                    assert not page.errors
                    # Its key stays: another visit needs no secret.
                    again = await opened(browser, named, door)
                    assert await asyncio.to_thread(again.evaluate, "device.look('').then((now) => now.node)") == "app"

    run(story())


def test_the_types_of_the_package_are_whole(tmp_path: Path) -> None:
    project = worker_package.installed(tmp_path / "elsewhere")
    settings = "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler --types node"
    check = ["node", "node_modules/typescript/bin/tsc", *settings.split()]
    (project / "right.ts").write_text(TYPED)
    (project / "wrong.ts").write_text(MISTYPED)
    right = subprocess.run([*check, "right.ts"], cwd=project, capture_output=True, text=True, timeout=300)
    assert right.returncode == 0, right.stdout
    wrong = subprocess.run([*check, "wrong.ts"], cwd=project, capture_output=True, text=True, timeout=300)
    assert "progres" in wrong.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine")
def test_npm_test_passes() -> None:
    done = subprocess.run(
        ["npm", "test"], cwd=worker_package.SOURCES, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


async def opened(browser: Chromium, origin: str, door: str) -> Page:
    page = await asyncio.to_thread(browser.page, f"{origin}/#{door}", width=390, height=844)
    await asyncio.to_thread(page.wait_for, "window.isReady")
    return page


def opens_socket(door: str) -> str:
    """Whether a WebSocket of the door opens for this page."""
    address = f"ws{door.removeprefix('http')}/door"
    return f"""new Promise((told) => {{
      const socket = new WebSocket({address!r});
      socket.onmessage = () => (told(true), socket.close());
      socket.onclose = () => told(false);
    }})"""


async def is_framed(page: Page, door: str) -> bool:
    """Whether the door's page comes up in a frame of this page. The browser puts an error there if it may not."""
    script = f"""new Promise((loaded) => {{
      const frame = document.createElement("iframe");
      frame.onload = () => loaded(true);
      frame.src = {door!r};
      document.body.append(frame);
    }})"""
    await asyncio.to_thread(page.evaluate, script)
    tree = await asyncio.to_thread(page.send, "Page.getFrameTree")
    (child,) = tree["frameTree"]["childFrames"]
    return str(child["frame"]["url"]) == f"{door}/"
