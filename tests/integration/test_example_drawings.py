"""The example page learns from what is drawn on it by touch and by mouse, and no drawing leaves the browser."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path

import pytest
import worker_package
from browser_kit import FROM_THE_PACKAGE
from example_sites import EXAMPLES
from kit import cluster_in, run
from test_worker_package import served

from testbed.browsers.chromium import Chromium, Page
from testbed.browsers.own_rows import KEPT

pytest.importorskip("onnx")

from shoal.browser import engine_files

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    *FROM_THE_PACKAGE,
]

SIDES = {0: 24, 1: 4, 2: 3}


def outline(shape: int, number: int) -> list[tuple[float, float]]:
    """Return the corners of a circle, a square or a triangle, somewhere on the paper."""
    sides = SIDES[shape]
    x, y, size, turn = 130 + 7 * (number % 4), 130 + 9 * (number % 3), 60 + 8 * (number % 5), 0.1 * (number % 4)
    angles = [turn + 2 * math.pi * (i % sides) / sides for i in range(sides + 1)]
    return [(x + size * math.cos(angle), y + size * math.sin(angle)) for angle in angles]


def draw(page: Page, shape: int, number: int, *, touch: bool) -> None:
    """Draw a shape with a finger or with a mouse, and say which it is."""
    script = "(({ left, top }) => [left, top])(document.getElementById('paper').getBoundingClientRect())"
    left, top = page.evaluate(script)
    points = [{"x": left + x, "y": top + y} for x, y in outline(shape, number)]
    for i, point in enumerate(points):
        if touch:
            kind = "touchMove" if i else "touchStart"
            page.send("Input.dispatchTouchEvent", type=kind, touchPoints=[point])
        else:
            kind = "mouseMoved" if i else "mousePressed"
            page.send("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **point)
    if touch:
        page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    else:
        page.send("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **points[-1])
    before = page.evaluate("parseInt(document.getElementById('held').textContent) || 0")
    page.evaluate(f"document.getElementById('shape-{shape}').click()")
    page.wait_for(f"parseInt(document.getElementById('held').textContent) === {before + 1}", seconds=60)


def test_a_page_learns_from_drawings_that_stay_in_it(tmp_path: Path) -> None:
    async def story() -> None:
        project = await asyncio.to_thread(worker_package.installed, tmp_path / "elsewhere")
        shutil.copytree(EXAMPLES / "drawings" / "page", project, dirs_exist_ok=True)
        engine_files.install(tmp_path / "home", worker_package.SOURCES / "node_modules" / "onnxruntime-web")
        with served(project) as origin:
            tabs = ("--browser", "http://127.0.0.1:0", "--browser-origin", origin)
            async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=tabs) as site:
                task = str(EXAMPLES / "drawings" / "task.py")
                job = await site.operator.prepare_and_submit(task, portable=True)
                line = (await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line
                with await asyncio.to_thread(Chromium.start) as browser:
                    page = await asyncio.to_thread(browser.page, f"{origin}/#{line}", width=390, height=844)
                    await asyncio.to_thread(page.wait_for, "document.getElementById('shape-2')", seconds=60)
                    leaves = await asyncio.to_thread(page.evaluate, "document.getElementById('leaves').innerText")
                    assert "No row leaves" in leaves
                    assert await asyncio.to_thread(page.evaluate, "document.getElementById('teach').disabled")
                    for number in range(12):
                        await asyncio.to_thread(draw, page, number % 3, number, touch=number % 2 == 0)
                    await asyncio.to_thread(page.evaluate, "document.getElementById('teach').click()")
                    await site.works(job, "drawings")
                    # It learns what was drawn, and is asked about what is drawn next before it learns from that.
                    loss = "device.now.loss !== null && device.now.loss < 0.3"
                    await asyncio.to_thread(page.wait_for, f"import('./page.js').then(({{ device }}) => {loss})")
                    for number in range(12, 18):
                        await asyncio.to_thread(draw, page, number % 3, number, touch=True)
                    known = "import('./page.js').then(({ known }) => known.length >= 2)"
                    await asyncio.to_thread(page.wait_for, known, seconds=120)
                    kept = await asyncio.to_thread(
                        page.evaluate, KEPT.replace('"shoal-rows"', f'"shoal-rows {line.partition("/#")[0]}"')
                    )
                    assert kept["parts"] == 18
                    ink = "[...document.getElementById('curve').getContext('2d').getImageData(0, 0, 640, 240).data]"
                    assert await asyncio.to_thread(page.evaluate, f"{ink}.some(Boolean)")
                    drawing = bytes(kept["last"]["x"])
                    assert sum(map(bool, drawing)) > 40
                    await asyncio.to_thread(page.screenshot, tmp_path / "drawings.png", whole=True)
                    await asyncio.to_thread(page.evaluate, "document.getElementById('delete').click()")
                    await asyncio.to_thread(
                        page.wait_for, "document.getElementById('held').textContent === 'No drawings yet.'"
                    )
                    assert not page.errors
                await site.operator.stop(job)
                await site.ended(job, "stopped")
                stored = b"\0".join(path.read_bytes() for path in site.cluster.home.rglob("*") if path.is_file())
                assert drawing not in stored, "a drawing has left its device"

    run(story())
