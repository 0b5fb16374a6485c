"""Two jobs on a real cluster, one of which fails on every device, and what the console shows of them in a browser.

The cluster is started once for all cases of the console. They judge what was read from the page.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.first_day_kit import WAIT_S, NotHeld, expect
from shoal.cli.connect import operator_of
from shoal.runtime.local import LocalCluster
from shoal.trainer.spawn import end_process, spawn
from testbed.browsers.chromium import Chromium, Page

SCREENS = ("cluster", "job", "models", "simulate")
#: A small phone, in pixels of its page.
PHONE_WIDTH, PHONE_HEIGHT = 390, 844

#: What a user's task raises on devices, and not while it is prepared.
REASON = "the sensor's scale is missing"

_HEAD = "import sys, time\nimport numpy as np\nfrom torch import nn\nimport shoal\n\n"
_FINE = f"""{_HEAD}
class Clouds(shoal.Task):
    def model(self):
        return nn.Linear(4, 3)

    def examples(self, split):
        count = 12000 if split == "train" else 600
        draw = np.random.default_rng(1)
        y = draw.integers(0, 3, count)
        return (draw.normal(size=(count, 4)) + y[:, None]).astype(np.float32), y

    def loss(self, output, y):
        time.sleep(0.1)
        return nn.functional.cross_entropy(output, y)
"""
# Each trainer fails after some calls, is started again and fails again: batches are applied all the while.
_FAILS = f"""{_HEAD}
calls = 0


class Sensors(shoal.Task):
    def model(self):
        return nn.Linear(4, 3)

    def examples(self, split):
        count = 12000 if split == "train" else 60
        return np.ones((count, 4), np.float32), np.arange(count)

    def loss(self, output, y):
        global calls
        calls += 1
        if sys.argv[0] != "shoal-prepare" and calls > 8:
            raise RuntimeError("{REASON}")
        return nn.functional.cross_entropy(output, y % 3)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a person reads on the console while one of two jobs fails."""

    #: The mark before the headline, and the headline with what follows it.
    mark: str
    headline: str
    #: One per job: its mark and its sentence.
    lines: tuple[str, ...]
    #: The text of each device's row, and of the table of lines between devices.
    rows: tuple[str, ...]
    drawn: str
    #: Of the job that trains, which has published nothing: the class of the headline, and the commands below it.
    models_class: str
    models_commands: tuple[str, ...]
    job: str
    #: By screen and theme: the page's width, and how far right the last button of the bar reaches.
    widths: dict[tuple[str, str], tuple[int, int]]
    errors: tuple[str, ...]


_once = threading.Lock()


def shown() -> Shown:
    """Return what was read, from one run for all cases."""
    with _once:
        return _seen()


@cache
def _seen() -> Shown:
    with tempfile.TemporaryDirectory(prefix="shoal-day-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        return asyncio.run(asyncio.wait_for(_watched(Path(name)), 4 * WAIT_S))


async def _watched(folder: Path) -> Shown:
    plan: dict[str, Any] = {"workers_min": 2, "workers_max": 2, "until": {"epochs": 1000}, "batch_size": 32}
    jobs: list[str] = []
    async with LocalCluster(workers=4, home=folder / "home") as cluster, operator_of(cluster.home) as operator:
        for task, text in (("clouds", _FINE), ("sensors", _FAILS)):
            file = folder / f"{task}.py"
            file.write_text(text, encoding="utf-8")
            jobs.append(await operator.prepare_and_submit(str(file), name=task, kwargs={}, plan=plan))
        async with _console(cluster.home) as link:
            return await asyncio.to_thread(_read, link, *jobs)


@asynccontextmanager
async def _console(home: Path) -> AsyncIterator[str]:
    """Run `shoal console` and give the link that it prints."""
    with (home / "console.log").open("wb") as log:
        process = await spawn(
            "shoal.cli.main",
            *("console", "--home", str(home), "--port", "0", "--json", "--leash", "--allow", "models,devices,jobs"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT_S))["link"]
    finally:
        await end_process(process)


def _read(link: str, fine: str, fails: str) -> Shown:
    with Chromium.start() as browser:
        page = browser.page(link, width=1280, height=900)
        page.wait_for("document.querySelector('main[data-screen=cluster] h1')")
        # The jobs are submitted: one trains and the other fails within the time that PyTorch takes to start.
        page.wait_for(f"document.querySelector('.job-lines')?.textContent.includes('{REASON[:10]}') || "
                      "[...document.querySelectorAll('tr.device.bad')].length === 2 || "
                      "document.querySelector('h1').textContent.includes('failed')", seconds=2 * WAIT_S)  # fmt: skip
        page.wait_for(f"document.querySelector('.drawing') && Shoal.state().jobs['{fine}'].workers.length === 2",
                      seconds=WAIT_S)  # fmt: skip
        text = "[...document.querySelectorAll('{}')].map((each) => each.textContent)"
        page.evaluate("document.querySelector('.as-table summary').click()")
        page.wait_for("document.querySelector('.as-table tbody')")
        first = {
            "mark": page.evaluate("document.querySelector('h1 .tone').textContent"),
            "headline": " ".join(page.evaluate(text.format(".sentence h1, .sentence > p:not(.unseen)"))),
            "lines": tuple(page.evaluate(text.format(".job-lines li"))),
            "rows": tuple(page.evaluate(text.format("tr.device"))),
            "drawn": page.evaluate("document.querySelector('.as-table table').textContent"),
        }
        _go(page, f"models/{fine}")
        models = {
            "models_class": page.evaluate("document.querySelector('.sentence').className"),
            "models_commands": tuple(page.evaluate(text.format(".command code"))),
        }
        widths = _widths(page, fails)
        return Shown(**first, **models, job=fine, widths=widths, errors=tuple(page.errors))


def _go(page: Page, place: str) -> None:
    page.evaluate(f"location.hash = '#/{place}'")
    page.wait_for(f"document.querySelector('main[data-screen={place.partition('/')[0]}] h1')")
    # A frame or two, for what a screen draws once it knows its width.
    time.sleep(0.5)


def _widths(page: Page, job: str) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    page.size(PHONE_WIDTH, PHONE_HEIGHT, phone=True)
    for _ in range(2):
        theme = page.evaluate("document.documentElement.dataset.theme")
        for screen in SCREENS:
            _go(page, f"job/{job}" if screen == "job" else screen)
            wide = page.evaluate("document.documentElement.scrollWidth")
            right = page.evaluate("Math.ceil(document.querySelector('button.theme').getBoundingClientRect().right)")
            found[screen, theme] = (wide, right)
        page.evaluate("document.querySelector('button.theme').click()")
    return found


# What is judged ---------------------------------------------------------------------------------------------------


def judge_failing(seen: Shown) -> str:
    """The headline is red, and names the job, the reason, the line of code and what to do."""
    expect(seen.mark == "✕", f"the mark before the headline is {seen.mark}: {seen.headline}")
    # A job that the leader has given up on is told as failed; before that, as one that fails.
    expect("sensors fail" in seen.headline, f"the headline tells of another job: {seen.headline}")
    for words in (f"RuntimeError: {REASON}", "sensors.py:"):
        expect(words in seen.headline, f"{words!r} is not in the headline: {seen.headline}")
    expect("shoal jobs stop" in seen.headline or "failed" in seen.headline, f"nothing to do is said: {seen.headline}")
    return seen.headline


def judge_two_jobs(seen: Shown) -> str:
    """Each job has a line, the one that trains with a tick; each of its devices names it and is drawn."""
    expect(len(seen.lines) == 2, f"{len(seen.lines)} lines for two jobs: {seen.lines}")
    fine = next((line for line in seen.lines if "clouds" in line), "")
    expect(fine.startswith("✓"), f"the job that trains has no tick: {fine}")
    working = [row for row in seen.rows if "clouds" in row]
    expect(len(working) == 2, f"{len(working)} of 2 devices say that they work for clouds: {seen.rows}")
    missing = [row for row in working if row.split("x86_64")[0].split("aarch64")[0] not in seen.drawn]
    expect(not missing, f"no line is drawn for {missing}: {seen.drawn}")
    return " / ".join(seen.lines)


def judge_models(seen: Shown) -> str:
    """A job that has published nothing is no warning, and the command publishes."""
    expect("tone-attention" not in seen.models_class, "a job that has published nothing is a warning")
    expect(f"shoal model publish {seen.job}" in seen.models_commands, f"the commands are {seen.models_commands}")
    expect(not any("rollback" in line for line in seen.models_commands), "a rollback is offered with nothing published")
    return f"{seen.models_class}; {'; '.join(seen.models_commands)}"


def judge_phone(seen: Shown, screen: str) -> str:
    """A screen is no wider than the phone, in either theme, and its last button is on it."""
    told = []
    for theme in ("light", "dark"):
        if (screen, theme) not in seen.widths:
            raise NotHeld(f"{screen} was not seen in {theme} colours")
        wide, right = seen.widths[screen, theme]
        expect(wide <= PHONE_WIDTH, f"{screen}, {theme}: {wide} pixels wide on a phone of {PHONE_WIDTH}")
        expect(right <= PHONE_WIDTH, f"{screen}, {theme}: the last button ends at {right} of {PHONE_WIDTH} pixels")
        told.append(f"{theme} {wide} px")
    expect(not seen.errors, f"the page complained: {seen.errors[:3]}")
    return ", ".join(told)
