"""The page of the door in a browser that is as near to a phone as a computer comes.

It has a phone's screen, fingers, a slow processor, a saver of data, a battery and a name with a certificate. DevTools
has no speed for WebSockets, and tells a computer's page nothing of mobile networks: those two are for a real phone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from browser_kit import ENGINE, IN_CHROMIUM
from kit import HERE, cluster_in, run
from test_browser import Certified, shows

from testbed.browsers.chromium import Chromium, Page

pytest.importorskip("onnx")

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *IN_CHROMIUM,
]

#: The battery of this browser, which a test empties, and what the page does with the screen's lock.
PHONE = """
const battery = Object.assign(new EventTarget(), { level: 0.9, charging: false });
navigator.getBattery = () => Promise.resolve(battery);
window.discharge = (level, charging) => {
  Object.assign(battery, { level, charging });
  for (const name of ["levelchange", "chargingchange"]) battery.dispatchEvent(new Event(name));
};
window.locks = [];
const request = navigator.wakeLock.request.bind(navigator.wakeLock);
navigator.wakeLock.request = async (kind) => {
  const lock = await request(kind);
  locks.push(lock);
  return lock;
};
"""
HIDDEN = "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {} }})"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
REASON = "document.getElementById('reason').textContent"
AWAKE = "locks.some(({ released }) => !released)"


async def tap(page: Page, element: str) -> None:
    """Put a finger on the middle of an element."""
    script = f"""(() => {{
      const each = document.getElementById({element!r});
      each.scrollIntoView({{ block: "center" }});
      const {{ left, top, width, height }} = each.getBoundingClientRect();
      return [left + width / 2, top + height / 2];
    }})()"""
    x, y = await asyncio.to_thread(page.evaluate, script)
    await asyncio.to_thread(page.send, "Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    await asyncio.to_thread(page.send, "Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


async def rests(page: Page, reason: str) -> None:
    await shows(page, "Resting")
    assert await asyncio.to_thread(page.evaluate, REASON) == reason
    # The screen may go dark again, whatever was asked of it meanwhile.
    await asyncio.to_thread(page.wait_for, f"!{AWAKE}")


def test_a_page_on_something_like_a_phone_trains_and_rests_as_its_owner_would_want(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        certified = Certified.made("shoal.test", tmp_path)
        flags = ("--host-resolver-rules=MAP shoal.test 127.0.0.1", certified.trusts_key)
        async with cluster_in(
            tmp_path, workers=0, options=("--threads", "1"), manager_options=certified.served
        ) as site:
            job = await site.operator.prepare_and_submit(
                str(HERE / "clouds_task.py"),
                plan={"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2, "until": {"epochs": 100_000}},
                portable=True,
            )
            made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
            with await asyncio.to_thread(Chromium.start, *flags) as browser:
                page = await asyncio.to_thread(browser.page, "about:blank", width=360, height=740, phone=True)
                for method, fields in (
                    ("Page.addScriptToEvaluateOnNewDocument", {"source": PHONE}),
                    ("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5}),
                    ("Emulation.setCPUThrottlingRate", {"rate": 6}),
                    ("Page.navigate", {"url": made.join_line}),
                ):
                    await asyncio.to_thread(page.send, method, **fields)
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                assert await asyncio.to_thread(
                    page.evaluate, "isSecureContext && matchMedia('(pointer: coarse)').matches"
                )
                # The button is in reach of a thumb without a scroll to the side.
                assert not await asyncio.to_thread(page.evaluate, "document.documentElement.scrollWidth > innerWidth")
                await tap(page, "agree")
                # Six times slower, page and worker, and it goes on.
                with browser.slowed(6):
                    await shows(page, "Training", leases=3)
                await asyncio.to_thread(page.wait_for, AWAKE)
                # An empty battery, then a charger.
                await asyncio.to_thread(page.evaluate, "discharge(0.2, false)")
                await rests(page, "the battery is below 30 % and is not charging")
                await asyncio.to_thread(page.evaluate, "discharge(0.2, true)")
                await shows(page, "Training", leases=1)
                # Its owner looks at something else, and comes back.
                await asyncio.to_thread(page.evaluate, f"{HIDDEN.format('true')}; {LOOK}")
                await rests(page, "this page is in the background")
                await asyncio.to_thread(page.evaluate, f"{HIDDEN.format('false')}; {LOOK}")
                await shows(page, "Training", leases=1)
                # The saver of data is on: nothing moves until its owner allows it.
                await asyncio.to_thread(page.send, "Emulation.setDataSaverOverride", dataSaverEnabled=True)
                await asyncio.to_thread(page.evaluate, LOOK)
                await rests(page, "this connection may cost money")
                await asyncio.to_thread(page.evaluate, "document.getElementById('more').open = true")
                await tap(page, "allow-metered")
                await shows(page, "Training", leases=1)
                await tap(page, "stop")
                await shows(page, "Stopped")
                assert not page.errors
            await site.operator.stop(job)

    run(story())
