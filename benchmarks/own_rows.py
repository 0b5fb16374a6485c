"""Devices of several kinds learn one model, each from rows of its own that stay with it.

Each device has digits that no other has, and most of them of few classes. They train one job with ``data = "local"``,
and then one that is private as well.

    python -m benchmarks.own_rows [--quick] --json

``accuracy``, ``private_accuracy``: of the last version, on held-out digits. ``private_epsilon``: what the device that
took part most often used of its privacy budget. ``accounts_agree``: the devices' accounts say the same as the leader's.
``examples_sent``: rows of devices that are found in anything that the manager, which leads the jobs, stored or logged
(files, versions, records), and in anything that tabs and devices in Node sent to its door. ``wire_bytes``: how much
they sent, or None if this process may not read packets. ``batches_lost``, ``batches_twice``: leases, from the audit of
the history. ``kinds_of_device``: kinds whose updates are in the history of both jobs; ``tab`` is a tab of Chromium,
``firefox`` one of Firefox.

``--quick`` has made-up digits and fewer epochs. Needs the extras ``export`` and ``browser``, Chromium, Firefox, and
Node with the package in ``tab/`` built: ``python tools/tasks.py tab``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np

import shoal
from shoal.browser import engine_files
from shoal.data.local import LOCAL_VARIABLE
from shoal.data.made_up_digits import made_up_digits
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.runtime.privacy_accounts import PrivacyAccount, accounts
from shoal.store.registry import Registry
from shoal.wire.messages import JobView
from testbed.browsers import chromium, firefox
from testbed.browsers.own_rows import KEPT
from testbed.chaos.kit import lost_and_twice
from testbed.door_capture import DoorCapture, may_capture
from testbed.results import finish, say

#: The program of devices in Node, which ``npm run build`` makes.
NODE_PROGRAM = Path(__file__).parents[1] / "tab" / "dist" / "cli.js"
#: ONNX Runtime for browsers, without which a manager opens no door for devices of the package.
PAGE_ENGINE = Path(__file__).parents[1] / "tab" / "node_modules" / "onnxruntime-web"
TASK = Path(__file__).with_name("own_rows_task.py")
LIMIT_S = 1800.0
_POLL_S = 0.5

Rows: TypeAlias = tuple[np.ndarray, np.ndarray]


# Kinds of device ----------------------------------------------------------------------------------------


async def onnx_agent(cluster: LocalCluster, name: str, rows: Rows, folder: Path) -> None:
    """An agent that trains by the job's graphs, with its rows in an archive."""
    await _agent(cluster, name, rows, folder, engine="onnx")


async def torch_agent(cluster: LocalCluster, name: str, rows: Rows, folder: Path) -> None:
    """An agent with PyTorch."""
    await _agent(cluster, name, rows, folder, engine="torch")


async def _agent(cluster: LocalCluster, name: str, rows: Rows, folder: Path, *, engine: str) -> None:
    folder.mkdir()
    x, y = rows
    np.savez(folder / "digits.npz", x=x, y=y)
    for path in (folder, folder / "digits.npz"):
        # A trainer is another user where the agent is root.
        path.chmod(0o755)
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder)}):
        await cluster.start_agent(name, "--engine", engine, "--threads", "1")


async def node_agent(cluster: LocalCluster, name: str, rows: Rows, folder: Path) -> None:
    """A device without Python, of the package in ``tab/``, with its rows in an archive."""
    folder.mkdir()
    x, y = rows
    np.savez(folder / "digits.npz", x=x, y=y)
    async with Operator.open(cluster.home) as operator:
        line = (await operator.make_token(role="browser", uses=1, valid_s=600, label=name)).join_line
    home = cluster.agent_home(name)
    home.mkdir(parents=True)
    command = ["node", str(NODE_PROGRAM), "join", line, "--home", str(home), "--name", name, "--threads", "1"]
    with (home / "log.txt").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, "--data", str(folder), stdout=log, stderr=log)
    # The cluster ends it with the others.
    cluster.agents[name] = process


async def chromium_tab(cluster: LocalCluster, name: str, rows: Rows, folder: Path) -> None:
    """A tab of Chromium, whose user picks an archive."""
    await _tab(cluster, name, rows, folder, start=chromium.Chromium.start)


async def firefox_tab(cluster: LocalCluster, name: str, rows: Rows, folder: Path) -> None:
    """A tab of Firefox, whose user picks an archive."""
    await _tab(cluster, name, rows, folder, start=firefox.Firefox.start)


@dataclass(frozen=True, slots=True)
class Tab:
    browser: chromium.Chromium | firefox.Firefox
    page: chromium.Page | firefox.FirefoxPage
    digits: Path

    def answer(self) -> None:
        """Do what its user does: give the rows where they are asked for, and agree to a job that asks."""
        state, held, may = self.page.evaluate(ASKED)
        if state == "asking" and not held:
            self.page.choose("row-files", self.digits)
        elif state == "asking" and may:
            self.page.evaluate("(document.getElementById('take-job').click(), 0)")


#: What the page shows, whether it has rows, and whether its button can be pressed.
ASKED = """[document.body.dataset.state, !document.getElementById("forget-rows").hidden,
  !document.getElementById("take-job").disabled]"""
TABS: list[Tab] = []


async def _tab(
    cluster: LocalCluster,
    name: str,
    rows: Rows,
    folder: Path,
    *,
    start: Callable[[], chromium.Chromium] | Callable[[], firefox.Firefox],
) -> None:
    folder.mkdir()
    x, y = rows
    np.savez(folder / "digits.npz", x=x, y=y)
    async with Operator.open(cluster.home) as operator:
        made = await operator.make_token(role="browser", uses=1, valid_s=600, label=name)

    def opened() -> Tab:
        browser = start()
        tab = Tab(browser, browser.page(made.join_line, width=390, height=844), folder / "digits.npz")
        tab.page.wait_for("document.getElementById('agree')?.hidden === false", seconds=300)
        tab.page.evaluate("(document.getElementById('agree').click(), 0)")
        tab.page.wait_for("document.body.dataset.state === 'waiting'", seconds=300)
        return tab

    TABS.append(await asyncio.to_thread(opened))


async def _attended() -> None:
    """Be the persons in front of the tabs, until cancelled."""
    while True:
        for tab in TABS:
            with contextlib.suppress(chromium.BrowserFailed):
                await asyncio.to_thread(tab.answer)
        await asyncio.sleep(_POLL_S)


def _tabs_accounts() -> list[dict[str, Any]]:
    """Return the accounts of private jobs that the tabs keep."""
    return [account for tab in TABS for account in tab.page.evaluate(f"{KEPT}.then(({{ accounts }}) => accounts)")]


@contextlib.contextmanager
def _closing_tabs() -> Iterator[None]:
    try:
        yield
    finally:
        while TABS:
            TABS.pop().browser.close()


#: How a device of each kind is started, with rows that no other has.
Start: TypeAlias = Callable[[LocalCluster, str, Rows, Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    start: Start
    devices: int


KINDS = (
    Kind("onnx", onnx_agent, 2),
    Kind("torch", torch_agent, 1),
    Kind("node", node_agent, 1),
    Kind("tab", chromium_tab, 2),
    Kind("firefox", firefox_tab, 2),
)


# Rows ---------------------------------------------------------------------------------------------------


def digits_of(devices: int, *, made_up: bool) -> list[Rows]:
    """Divide the digits: no two devices have a row in common, and each has most of its rows of few classes."""
    x, y = made_up_digits("train") if made_up else shoal.data.mnist("train")
    partition = shoal.data.dirichlet(0.5, least=500)
    return [(x[rows, 0], y[rows]) for rows in partition.rows(y, devices, seed=1)]


def found_rows(everywhere: Iterator[bytes], owned: list[Rows]) -> int:
    """Return how many of the devices' pictures are somewhere in these bytes.

    Looks for the eight pixels of each picture of which most are not blank, at every place, and there for all of it.
    """
    pictures = np.concatenate([x.reshape(len(x), -1) for x, _ in owned])
    best = (pictures.reshape(len(pictures), -1, 8) > 0).sum(-1).argmax(1)
    keys = np.ascontiguousarray(pictures).view("<u8")[np.arange(len(pictures)), best]
    by_key: dict[int, list[int]] = {}
    for number, key in enumerate(keys.tolist()):
        by_key.setdefault(key, []).append(number)
    sent: set[int] = set()
    for content in everywhere:
        for shift in range(8):
            words = np.frombuffer(content, "<u8", max(0, len(content) - shift) // 8, offset=shift if content else 0)
            for word in np.flatnonzero(np.isin(words, keys)).tolist():
                for number in by_key[int(words[word])]:
                    start = shift + 8 * (word - int(best[number]))
                    if start >= 0 and content[start : start + pictures.shape[1]] == pictures[number].tobytes():
                        sent.add(number)
    return len(sent)


def kept_by_manager(home: Path) -> Iterator[bytes]:
    """Yield every file of the manager's, who leads the jobs and whose store has each version."""
    devices = home / "devices"
    for path in home.rglob("*"):
        if path.is_file() and not path.is_relative_to(devices):
            yield path.read_bytes()


# Jobs ---------------------------------------------------------------------------------------------------


async def ended(operator: Operator, job: str) -> JobView:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        (view,) = (await operator.status(job)).jobs
        if view.state.is_ended:
            return view
        await asyncio.sleep(_POLL_S)
    raise TimeoutError(f"the job is not over after {LIMIT_S:g} s")


async def trained(operator: Operator, plan: dict[str, Any], *, made_up: bool) -> JobView:
    job = await operator.prepare_and_submit(str(TASK), kwargs={"made_up": made_up}, plan=plan, portable=True)
    view = await ended(operator, job)
    say(f"{job}: {view.state}, {view.reason}")
    return view


def kinds_in(paths: Paths, job: str, names: dict[str, str]) -> set[str]:
    """Return the kinds of the devices whose updates are in the history. ``names``: kinds by a device's own name."""
    with contextlib.closing(Registry(paths.registry)) as registry:
        return {names.get(row.node, row.node).partition("-")[0] for row in registry.applied(job)}


def audited(paths: Paths, job: str) -> tuple[int, int]:
    """Return how many leases were lost, and how many came into the history twice."""
    with contextlib.closing(Registry(paths.registry)) as registry:
        rows = registry.applied(job)
        epochs, of_epoch = 1 + max(row.epoch for row in rows), 1 + max(row.batch for row in rows)
        return lost_and_twice(registry, job, batches=epochs * of_epoch)


def accounts_agree(cluster: LocalCluster, view: JobView) -> bool:
    """Whether the device that took part most often says of that what the leader says."""
    progress = view.progress
    if progress is None:
        return False
    own = [
        account
        for name in cluster.agents
        for account in accounts(cluster.agent_home(name) / "node")
        if account.job == view.job
    ]
    for path in cluster.home.glob(f"devices/*/*/rows/privacy-{view.job}.json"):
        kept = json.loads(path.read_text())
        own.append(_account(kept))
    own += [_account(kept) for kept in _tabs_accounts() if kept["job"] == view.job]
    often = max((account.participations for account in own), default=0)
    epsilon = max((account.epsilon for account in own), default=0.0)
    return often == progress.participations_worst and math.isclose(epsilon, progress.epsilon_worst, rel_tol=1e-6)


def _account(kept: dict[str, Any]) -> PrivacyAccount:
    return PrivacyAccount(kept["job"], len(kept["participations"]), kept["epsilon"], kept["delta"])


async def _port(operator: Operator) -> int:
    """Return the port of the door."""
    line = (await operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line
    return int(line.partition("/#")[0].rpartition(":")[2])


async def _started(cluster: LocalCluster, owned: list[Rows], home: Path) -> None:
    rows = iter(owned)
    for kind in KINDS:
        for number in range(kind.devices):
            name = f"{kind.name}-{number}"
            await kind.start(cluster, name, next(rows), home / name)


def _names_of_tabs() -> dict[str, str]:
    """Return the kind of each tab, by the name that the manager gave it."""
    kinds = {chromium.Chromium: "tab", firefox.Firefox: "firefox"}
    said = "document.getElementById('node').textContent"
    return {tab.page.evaluate(said): kinds[type(tab.browser)] for tab in TABS}


async def _both_jobs(operator: Operator, count: int, *, quick: bool) -> tuple[JobView, JobView]:
    """Train a job with local data, and then one that is private as well."""
    plan: dict[str, Any] = {"workers_min": count, "until": {"epochs": 8 if quick else 100}}
    open_ = await trained(operator, plan, made_up=quick)
    often = 40 if quick else 200
    promise = {
        "trust": "private(60, 1e-4)",
        "cohort": count,
        "clip_update": 1.0,
        "participations": often,
        "epoch_leases": count * 10,
        "until": {"epochs": often // 10},
    }
    return open_, await trained(operator, plan | promise, made_up=quick)


async def measure(home: Path, *, quick: bool) -> dict[str, Any]:
    count = sum(kind.devices for kind in KINDS)
    owned = digits_of(count, made_up=quick)
    home.chmod(0o755)
    engine_files.install(home / "home", PAGE_ENGINE)
    door = ("--browser", "http://127.0.0.1:0")
    local = LocalCluster(workers=0, home=home / "home", manager_options=door)
    async with local as cluster, Operator.open(cluster.home) as operator:
        capture = DoorCapture(await _port(operator)) if may_capture() else None
        with _closing_tabs(), capture or contextlib.nullcontext():
            await _started(cluster, owned, home)
            names = await asyncio.to_thread(_names_of_tabs)
            attending = asyncio.create_task(_attended())
            try:
                open_, private = await _both_jobs(operator, count, quick=quick)
            finally:
                attending.cancel()
                await asyncio.gather(attending, return_exceptions=True)
            paths = Paths(cluster.home)
            audits = [audited(paths, view.job) for view in (open_, private)]
            kinds = kinds_in(paths, open_.job, names) & kinds_in(paths, private.job, names)
            agree = await asyncio.to_thread(accounts_agree, cluster, private)
        wire = list(capture.sent) if capture else []
        sent = found_rows(itertools.chain(kept_by_manager(cluster.home), wire), owned)
    assert open_.progress is not None
    assert private.progress is not None
    return {
        "devices": count,
        "accuracy": open_.progress.accuracy or 0.0,
        "private_accuracy": private.progress.accuracy or 0.0,
        "private_epsilon": private.progress.epsilon_worst,
        "examples_sent": sent,
        "wire_bytes": sum(map(len, wire)) if capture else None,
        "batches_lost": sum(lost for lost, _ in audits),
        "batches_twice": sum(twice for _, twice in audits),
        "accounts_agree": agree,
        "kinds_of_device": len(kinds),
        "kinds": sorted(kinds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Devices of several kinds, each with rows of its own.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object; always so")
    given = parser.parse_args()
    if shutil.which("node") is None or not NODE_PROGRAM.exists():
        raise SystemExit("needs Node and the package in tab/: python tools/tasks.py tab")
    if chromium.program() is None or firefox.program() is None:
        raise SystemExit("needs Chromium and Firefox: apt-get install chromium firefox-esr")
    with tempfile.TemporaryDirectory(prefix="shoal-own-rows-") as scratch:
        finish(asyncio.run(measure(Path(scratch), quick=given.quick)))


if __name__ == "__main__":
    main()
