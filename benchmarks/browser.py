"""Tabs of a real browser in a cluster: a manager, two agents with PyTorch, three tabs of Chromium, some of them killed.

Each tab is a browser of its own with an empty profile: it opens a one-time link, its user agrees, and it learns digits
beside the agents. While they train, browsers are killed (SIGKILL), and others take their place with new links.

    python -m benchmarks.browser [--quick] --json

``updates_from_tabs``: leases of tabs whose batches are in the surviving history. ``refused``: updates that the leader
did not take. ``batches_lost``, ``batches_twice``: from the audit of the registry's history. ``download_mb``: what a
tab takes over the network before it can train any job: page, programs and engine, as they are sent, packed;
``download_webgpu_mb``: the same where the browser has a graphics processor, and loads the engine for that instead.
``traces``, ``trace_differences``: lives of the Python worker that the tab's role plays again (``tools/tab_traces.py``).

``--quick`` learns one epoch in larger batches, with one tab less, and kills one. Needs Chromium, Node, and the
tab's tools (``python tools/tasks.py tab``).

Then a visitor of each browser that is here, Chromium and Firefox, agrees, looks away three times, reloads the page and
opens a second one. ``bytes_after_three_hides_ratio``, ``bytes_after_reload_ratio``: what it fetched of the job's files
until then, by what it had fetched once a version was evaluated. ``consent_names``: what the page named before any
download.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shoal.browser import engine_files
from shoal.errors import Misuse
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.wire.messages import JobView
from testbed.browsers.chromium import BrowserFailed, Chromium, Page, program
from testbed.browsers.firefox import Firefox, FirefoxPage
from testbed.browsers.firefox import program as firefox_program
from testbed.chaos.kit import EVENTS_MANY, lost_and_twice
from testbed.results import finish, say

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tab" / "node_modules" / "onnxruntime-web"
AGENTS = 2
LIMIT_S = 1800.0
LEASE_BATCHES = 4
_POLL_S = 0.5


class Tabs:
    """Browsers of one page each."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._open: list[tuple[Chromium, Page]] = []
        self.killed = 0

    async def open(self) -> None:
        made = await self._operator.make_token(role="browser", uses=1, valid_s=600, label="")
        browser = await asyncio.to_thread(Chromium.start)
        page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844, phone=True)
        self._open.append((browser, page))
        await agree(page)

    async def train(self) -> None:
        """Wait until each has sent an update."""
        script = "Number(document.getElementById('leases').textContent) >= 1"
        for _, page in self._open:
            await asyncio.to_thread(page.wait_for, script, seconds=300)

    async def kill(self) -> None:
        """The browser that has been open longest dies in the midst, without a word."""
        browser, _ = self._open.pop(0)
        await asyncio.to_thread(browser.kill)
        self.killed += 1

    async def close(self) -> None:
        for browser, page in self._open:
            with contextlib.suppress(BrowserFailed):
                say(f"a tab showed: {await asyncio.to_thread(page.evaluate, 'document.body.innerText')!r}"[:300])
            await asyncio.to_thread(browser.close)


async def agree(page: AnyPage) -> None:
    """To what the page asks, and to later jobs."""
    await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
    await asyncio.to_thread(page.evaluate, "document.getElementById('later').checked = true")
    await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")


ASKED = "[...document.querySelectorAll('#asked li')].map((each) => each.textContent).join('\\n')"
TOLD = {"operator": "Ms Okafor", "purpose": "to read digits in class 7b"}
NAMED = ("cluster", "operator", "purpose", "job", "megabytes")
RATIOS = ("bytes_after_three_hides_ratio", "bytes_after_reload_ratio")
HIDES = 3

AnyPage = Page | FirefoxPage


async def look_away(page: AnyPage, *, is_hidden: bool) -> None:
    hidden = f"Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {str(is_hidden).lower()}}})"
    await asyncio.to_thread(page.evaluate, f"({hidden}, document.dispatchEvent(new Event('visibilitychange')))")


async def learns(page: AnyPage, more: int) -> None:
    """Wait until it has sent so many more updates."""
    leases = "Number(document.getElementById('leases').textContent)"
    before = await asyncio.to_thread(page.evaluate, leases)
    # A job that it comes back to counts from the start.
    await asyncio.to_thread(page.wait_for, f"{leases} > 0 && {leases} !== {before}", seconds=300)
    if more > 1:
        await learns(page, more - 1)


async def evaluated(operator: Operator, job: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        status = await operator.status()
        view = next(each for each in status.jobs if each.job == job)
        if view.progress is not None and view.progress.accuracy is not None:
            return
        await asyncio.sleep(_POLL_S)
    raise TimeoutError("no version was evaluated")


async def files_mb(page: AnyPage) -> float:
    """What a page fetched of jobs since it was loaded."""
    return float(await asyncio.to_thread(page.evaluate, "Number(document.body.dataset.files)")) / 1e6


def started(kind: type[Chromium] | type[Firefox]) -> Chromium | Firefox:
    return kind.start()


def opened(browser: Chromium | Firefox, url: str) -> AnyPage:
    return browser.page(url, width=390, height=844)


async def visit(kind: type[Chromium] | type[Firefox], *, home: Path) -> dict[str, Any]:
    """What one visitor is told and pays: it looks away three times, reloads the page, and opens a second one."""
    engine_files.install(home, PACKAGE)
    told = ("--browser-operator", TOLD["operator"], "--browser-purpose", TOLD["purpose"])
    options = ("--browser", "http://127.0.0.1:0", *told)
    async with (
        LocalCluster(workers=0, home=home, manager_options=options) as cluster,
        Operator.open(cluster.home) as operator,
    ):
        plan = {"lease_batches": 16, "until": {"epochs": 1_000}, "batch_size": 256}
        job = await operator.prepare_and_submit(str(ROOT / "examples" / "mnist"), plan=plan, portable=True)
        status = await operator.status()
        made = await operator.make_token(role="browser", uses=1, valid_s=600, label="")
        with await asyncio.to_thread(started, kind) as browser:
            page = await asyncio.to_thread(opened, browser, made.join_line)
            await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
            asked = str(await asyncio.to_thread(page.evaluate, ASKED))
            named = {"cluster": status.cluster, **TOLD, "job": next(each.name for each in status.jobs)}
            names = [name for name, text in named.items() if text and text in asked]
            names += ["megabytes"] if re.search(r"\d MB once", asked) else []
            before = await files_mb(page)
            await agree(page)
            # Examples held out come with the first evaluation.
            await evaluated(operator, job)
            first = await files_mb(page)
            for count in range(HIDES):
                await look_away(page, is_hidden=True)
                await asyncio.to_thread(page.wait_for, "document.body.dataset.state === 'paused'")
                await look_away(page, is_hidden=False)
                await learns(page, 1)
                say(f"looked away {count + 1} times: {await files_mb(page):.1f} MB")
            hides = await files_mb(page)
            await asyncio.to_thread(page.reload)
            await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
            await agree(page)
            await learns(page, 1)
            reload = hides + await files_mb(page)
            second = await asyncio.to_thread(opened, browser, made.join_line.partition("#")[0])
            await asyncio.to_thread(second.wait_for, "document.body?.dataset.state === 'elsewhere'")
            is_told = bool(await asyncio.to_thread(second.evaluate, "document.getElementById('reason').textContent"))
        await operator.stop(job)
        await ended(operator, job)
    return {
        "consent_names": names,
        "mb_before_consent": round(before, 2),
        "mb_once": round(first, 1),
        "bytes_after_three_hides_ratio": round(hides / first, 3),
        "bytes_after_reload_ratio": round(reload / first, 3),
        "second_tab_told": is_told,
    }


def visits(scratch: Path) -> dict[str, Any]:
    """A visit by each browser that is here. The figures at the top are the worst of them."""
    found: dict[str, dict[str, Any]] = {}
    kinds: dict[str, type[Chromium] | type[Firefox]] = {"chromium": Chromium, "firefox": Firefox}
    for name, kind in kinds.items():
        if name == "firefox" and firefox_program() is None:
            say("no Firefox here: apt-get install firefox-esr")
            continue
        found[name] = asyncio.run(visit(kind, home=scratch / name))
        say(f"{name}: {found[name]}")
    worst = {key: max(each[key] for each in found.values()) for key in RATIOS}
    names = [name for name in NAMED if all(name in each["consent_names"] for each in found.values())]
    is_told = all(each["second_tab_told"] for each in found.values())
    return {**worst, "consent_names": names, "second_tab_told": is_told, "visits": found}


async def measure(*, tabs: int, kills: int, epochs: int, quick: bool, home: Path) -> dict[str, Any]:
    engine_files.install(home, PACKAGE)
    options = ("--browser", "http://127.0.0.1:0")
    async with (
        LocalCluster(workers=AGENTS, home=home, agent_options=("--threads", "1"), manager_options=options) as cluster,
        Operator.open(cluster.home) as operator,
    ):
        opened = Tabs(operator)
        try:
            plan = {"lease_batches": LEASE_BATCHES, "until": {"epochs": epochs}, "batch_size": 256 if quick else 64}
            job = await operator.prepare_and_submit(str(ROOT / "examples" / "mnist"), plan=plan, portable=True)
            for _ in range(tabs):
                await opened.open()
            say(f"{tabs} tabs are open")
            await opened.train()
            for number in range(kills):
                await opened.kill()
                say(f"killed {number + 1} of {kills}")
                await opened.open()
                await opened.train()
            view = await ended(operator, job)
        finally:
            await opened.close()
        found = from_history(Paths(cluster.home), job)
        return {"tabs": tabs, "agents": AGENTS, "killed_tabs": opened.killed, **found, **from_status(view)}


async def ended(operator: Operator, job: str) -> JobView:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        status = await operator.status()
        view = next(each for each in status.jobs if each.job == job)
        if view.state.is_ended:
            return view
        await asyncio.sleep(_POLL_S)
    raise TimeoutError(f"the job is not over after {LIMIT_S:g} s")


def from_status(view: JobView) -> dict[str, Any]:
    progress = view.progress
    assert progress is not None
    return {"state": str(view.state), "accuracy": progress.accuracy or 0.0, "refused": progress.refused}


def from_history(paths: Paths, job: str) -> dict[str, Any]:
    with contextlib.closing(Registry(paths.registry)) as registry:
        rows = registry.applied(job)
        epochs = 1 + max(row.epoch for row in rows)
        of_epoch = 1 + max(row.batch for row in rows)
        lost, twice = lost_and_twice(registry, job, batches=epochs * of_epoch)
        leases = {(row.node, row.version, row.lease) for row in rows if row.node.startswith("tab")}
        events = registry.events_after(job, 0, limit=EVENTS_MANY)
        reasons = sorted({event.text for event in events if event.kind == "update.rejected"})
        shares = {name: sum(row.node == name for row in rows) for name in sorted({row.node for row in rows})}
    return {
        "updates_from_tabs": len(leases),
        "batches_lost": lost,
        "batches_twice": twice,
        "batches_by": shares,
        "refusals": reasons,
    }


def downloaded_mb(home: Path, *, without: Iterable[str]) -> float:
    """As it crosses the network: every file of the page is packed once, and sent so. A tab loads one engine of two."""
    from shoal.browser.page_files import page_files

    others = {f"/engine/{engine_files.VERSION}/{name}" for name in without}
    return sum(len(each.gzipped) for address, each in page_files(home).items() if address not in others) / 1e6


def traces(count: int, folder: Path) -> dict[str, int]:
    """Lives of the Python worker, decided again by the tab's."""
    recorded = folder / "lives.jsonl"
    with recorded.open("w") as file:
        subprocess.run(
            [sys.executable, ROOT / "tools" / "tab_traces.py", "--count", str(count)], stdout=file, check=True
        )
    node = shutil.which("node")
    if node is None:
        raise Misuse("there is no Node here to play the tab's worker: apt-get install nodejs npm")
    subprocess.run([node, ROOT / "tab" / "build.mjs", folder], check=True)
    played = subprocess.run([node, ROOT / "tab" / "test" / "traces.mjs", recorded], stdout=subprocess.PIPE)
    counts = json.loads(played.stdout)
    return {"traces": counts["traces"], "trace_differences": counts["differences"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tabs of a real browser in a cluster.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object; always so")
    given = parser.parse_args()
    if program() is None or not PACKAGE.is_dir():
        raise SystemExit("needs Chromium, and the tab's tools: python tools/tasks.py tab")
    with tempfile.TemporaryDirectory(prefix="shoal-browser-") as scratch:
        home = Path(scratch) / "home"
        tabs, kills, epochs = (2, 1, 1) if given.quick else (3, 3, 3)
        result: dict[str, Any] = traces(1_000 if given.quick else 10_000, Path(scratch))
        say(f"{result['traces']} lives, {result['trace_differences']} differences")
        result |= asyncio.run(measure(tabs=tabs, kills=kills, epochs=epochs, quick=given.quick, home=home))
        result |= visits(Path(scratch))
        result["download_mb"] = downloaded_mb(home, without=engine_files.GRAPHICS_FILES)
        result["download_webgpu_mb"] = downloaded_mb(home, without=engine_files.PLAIN_FILES)
    finish(result)


if __name__ == "__main__":
    main()
