"""The console in a real browser: does every screen show, is it live, how soon, how large, and what it costs a manager.

A real manager, three agents and `shoal console`; headless Chromium opens the link that it prints. Then a manager with
a thousand devices that beat, and how its memory grows while a console asks it.

    screens                            screens that showed without a complaint
    console_errors                     exceptions, failed requests and breaches of the policy, over all screens
    live, live_s                       the page named a worker killed with -9 within 3 s, without a reload
    first_view_ms                      from opening the page to its sentence, with an empty cache: the median of three
    page_kb                            what crossed the network for the first view, as it was sent
    manager_rss_growth_mb_1000_devices resident memory of the manager after a console's looks, less before
    accessibility_violations           what axe-core finds over all screens; null where axe-core is not to be had

    python -m benchmarks.console --quick --json
    python -m benchmarks.console --played --json     # the page alone, with a recording behind it
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.fan_in import Clients, enrol_all
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.wire.messages import Lane
from testbed.browsers import axe
from testbed.browsers.chromium import Chromium, Page
from testbed.echo_job import echo_job
from testbed.processes import memory_mb
from testbed.results import finish, say

SCREENS = ("cluster", "job", "models", "simulate")
VIEWS = 3
LIVE_S = 3.0
PATIENCE_S = 120.0
LINK = re.compile(rb"http://127\.0\.0\.1:\d+/open\?k=\S+")

ECHO = ("--child-module", "shoal.trainer.echo", "--pace-s", "0.4")


@contextlib.asynccontextmanager
async def console_of(home: Path) -> AsyncIterator[str]:
    """`shoal console` on this cluster; gives the link that it prints, which opens once."""
    command = ("-m", "shoal.cli.main", "console", "--home", str(home), "--port", "0", "--no-open")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    heard = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := LINK.search(heard)):
                line = await process.stdout.readline()
                if not line:
                    raise RuntimeError(f"`shoal console` ended without a link: {heard.decode(errors='replace')[-500:]}")
                heard += line
        draining = asyncio.create_task(process.stdout.read())
        yield found[0].decode()
        draining.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


# The page ------------------------------------------------------------------------------------------------------------


def first_views(browser: Chromium, url: str, *, views: int = VIEWS) -> tuple[list[float], list[float]]:
    """Milliseconds to the sentence, and kB, of pages with an empty cache."""
    took_ms, size_kb = [], []
    for _ in range(views):
        page = browser.page("about:blank")
        page.send("Network.clearBrowserCache")
        page.received_bytes = 0
        page.send("Page.navigate", url=url)
        page.wait_for("document.querySelector('main h1')")
        # By the page's own clock: asking takes time as well.
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        took_ms.append(float(page.evaluate("Shoal.firstViewMs ?? performance.now()")))
        size_kb.append(page.received_bytes / 1000)
        page.close()
    return took_ms, size_kb


def walk(browser: Chromium, url: str) -> dict[str, Any]:
    """Open every screen in both themes; count what went wrong."""
    source = axe.script()
    checker = source.read_text(encoding="utf-8") if source else None
    if checker is None:
        say("axe-core is not here, and npm does not reach it: accessibility is not judged")
    shown, errors, violations = 0, 0, 0
    for screen in SCREENS:
        page = browser.page(f"{url}#/{screen}")
        page.wait_for(f"document.querySelector('main[data-screen={screen}] h1')")
        time.sleep(0.5)
        found = axe.violations(page, checker) if checker else []
        for each in (*page.errors, *found):
            say(f"{screen}: {each}")
        shown += not page.errors
        errors += len(page.errors)
        violations += len(found)
        page.close()
    return {
        "screens": shown,
        "console_errors": errors,
        "accessibility_violations": violations if checker else None,
    }


def names(page: Page, device: str) -> bool:
    """The page says that this device is lost."""
    lost = f"document.querySelector('h1')?.textContent.includes('{device}')"
    row = f"[...document.querySelectorAll('tr.bad')].some((each) => each.textContent.includes('{device}'))"
    return bool(page.evaluate(f"({lost}) || ({row})"))


# The cluster ---------------------------------------------------------------------------------------------------------


async def live_s(cluster: LocalCluster, operator: Operator, page: Page, device: str) -> tuple[float, float, bool]:
    """Kill a worker. Seconds until the manager tells, until the page tells after that, and whether it was reloaded."""
    await asyncio.to_thread(page.evaluate, "window.notReloaded = true")
    began_s = time.monotonic()
    os.kill(cluster.agents[device].pid, signal.SIGKILL)
    told_s = shown_s = 0.0
    while not (told_s and shown_s) and time.monotonic() - began_s < PATIENCE_S:
        if not told_s:
            states = {view.node: view.state for view in (await operator.status()).nodes}
            told_s = 0.0 if states[device] == "alive" else time.monotonic() - began_s
        if not shown_s and await asyncio.to_thread(names, page, device):
            shown_s = time.monotonic() - began_s
        await asyncio.sleep(0.05)
    reloaded = await asyncio.to_thread(page.evaluate, "window.notReloaded !== true")
    return told_s, shown_s or PATIENCE_S, bool(reloaded)


async def small(browser: Chromium) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shoal-console-") as folder:
        job = echo_job(Path(folder), values=20_000, batches=64)
        async with LocalCluster(workers=3, agent_options=ECHO) as cluster, Operator.open(cluster.home) as operator:
            await operator.submit(job, plan={"until": {"endless": True}, "checkpoint_every_s": 1.0})
            async with console_of(cluster.home) as link:
                page = await asyncio.to_thread(browser.page, link)
                await asyncio.to_thread(page.wait_for, "document.querySelectorAll('[data-device]').length === 3")
                url = str(await asyncio.to_thread(page.evaluate, "location.origin + '/'"))
                took_ms, size_kb = await asyncio.to_thread(first_views, browser, url)
                say(f"first views took {', '.join(f'{each:.0f}' for each in took_ms)} ms, {size_kb[0]:.0f} kB")
                walked = await asyncio.to_thread(walk, browser, url)
                told_s, shown_s, reloaded = await live_s(cluster, operator, page, "device-2")
                say(f"the manager told of the lost device after {told_s:.1f} s, the page after {shown_s:.1f} s")
                for each in page.errors:
                    say(f"cluster, while live: {each}")
                await asyncio.to_thread(page.close)
                walked["console_errors"] += len(page.errors)
    return walked | {
        "live": shown_s <= LIVE_S and not reloaded,
        "live_s": shown_s,
        "first_view_ms": statistics.median(took_ms),
        "page_kb": max(size_kb),
    }


async def growth_mb(devices: int, *, seconds: float) -> dict[str, float]:
    """How a manager of this many devices grows while a console asks it."""
    with tempfile.TemporaryDirectory(prefix="shoal-console-") as folder:
        homes = Path(folder) / "homes"
        async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
            assert cluster.manager is not None
            await enrol_all(cluster, homes, devices)
            port = int(cluster.endpoint.rpartition(":")[2])
            fleet = await Clients.start(Lane.CONTROL, homes, first=0, count=devices, port=port, values=1)
            try:
                await fleet.heard("welcomed")
                # One look of any operator makes buffers of the answer's size; they are not the console's.
                for _ in range(3):
                    await operator.status()
                await asyncio.sleep(3)
                before_mb = memory_mb(cluster.manager.pid)
                async with console_of(cluster.home):
                    await asyncio.sleep(seconds)
                    after_mb = memory_mb(cluster.manager.pid)
            finally:
                await fleet.stop()
    say(f"{devices} devices: the manager holds {before_mb:.0f} MB before, {after_mb:.0f} MB after {seconds:.0f} s")
    return {"manager_rss_growth_mb_1000_devices": after_mb - before_mb, "manager_rss_mb_1000_devices": after_mb}


async def measure(*, quick: bool) -> dict[str, Any]:
    with Chromium.start() as browser:
        result = await small(browser)
    return result | await growth_mb(1000, seconds=10 if quick else 120)


def played() -> dict[str, Any]:
    """The page alone: the same figures, but for the manager's, with a recording behind it."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "kits"))
    from console_player import Player  # type: ignore[import-not-found, unused-ignore]

    with Player(at_s=60) as player, Chromium.start() as browser:
        took_ms, size_kb = first_views(browser, player.url)
        walked = walk(browser, player.url)
        page = browser.page(player.url)
        page.wait_for("document.querySelectorAll('[data-device]').length === 5")
        began_s = time.monotonic()
        player.push({"nodes": {"porch-pi5": {"state": "lost", "does": "lost", "reason": "connection closed"}}})
        while not names(page, "porch-pi5") and time.monotonic() - began_s < PATIENCE_S:
            time.sleep(0.02)
        shown_s = time.monotonic() - began_s
    return walked | {
        "played": True,
        "live": shown_s <= LIVE_S,
        "live_s": shown_s,
        "first_view_ms": statistics.median(took_ms),
        "page_kb": max(size_kb),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="look at the manager for 10 s instead of two minutes")
    parser.add_argument("--played", action="store_true", help="the page alone, with a recording behind it")
    parser.add_argument("--json", action="store_true", help="for scripts: the last line is JSON either way")
    asked = parser.parse_args()
    finish(played() if asked.played else asyncio.run(measure(quick=asked.quick)))


if __name__ == "__main__":
    main()
