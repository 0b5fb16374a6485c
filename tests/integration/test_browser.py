"""A tab of a real browser as a device: it joins by a link, trains, is closed in the midst, and nothing is lost."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from browser_kit import ENGINE, IN_CHROMIUM
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from kit import HERE, Site, cluster_in, run

from testbed.browsers import axe
from testbed.browsers.chromium import Chromium, Page
from testbed.browsers.firefox import Firefox
from testbed.browsers.firefox import program as firefox_program

pytest.importorskip("onnx")

from shoal.browser import engine_files
from shoal.plan import Plan
from shoal.trainer.package import ReadyTask
from shoal.trainer.portable.capturing import Captured, capture_ready

pytestmark = [
    pytest.mark.timeout(900),
    *IN_CHROMIUM,
]

TABS = ("--browser", "http://127.0.0.1:0")


async def agreed(site: Site, browser: Chromium) -> Page:
    """A page whose user opened the link and agreed."""
    made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
    page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844, phone=True)
    await agree(page)
    return page


async def agree(page: Page) -> None:
    """To what the page asks, and to later jobs of this cluster."""
    await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
    await asyncio.to_thread(page.evaluate, "document.getElementById('later').checked = true")
    await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")


async def shows(page: Page, state: str, *, leases: int = 0) -> None:
    script = (
        f"document.getElementById('state')?.textContent === {state!r}"
        f" && Number(document.getElementById('leases').textContent) >= {leases}"
    )
    await asyncio.to_thread(page.wait_for, script, seconds=300)


@pytest.mark.gate("tab")
def test_a_tab_trains_beside_an_agent_and_is_killed(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
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
                # This browser has no graphics processor.
                assert (await engine(page)).startswith("WebAssembly\nno ")
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


async def engine(page: Page) -> str:
    """What the page says it computes by, and why."""
    await asyncio.to_thread(page.wait_for, "document.getElementById('engine').textContent.length > 1", seconds=300)
    return str(await asyncio.to_thread(page.evaluate, "document.getElementById('engine').textContent"))


@asynccontextmanager
async def with_graphics(tmp_path: Path) -> AsyncIterator[tuple[Site, Chromium, Page]]:
    """A tab of a browser with a graphics processor in software."""
    async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
        with await asyncio.to_thread(Chromium.start, graphics=True) as browser:
            page = await agreed(site, browser)
            await shows(page, "Connected")
            if not await asyncio.to_thread(page.evaluate, "navigator.gpu?.requestAdapter().then(Boolean)"):
                pytest.skip("this browser offers no adapter for WebGPU, not even in software")
            yield site, browser, page


WANT_GRAPHICS = "document.getElementById('want-graphics').click()"
CLOUDS = str(HERE / "clouds_task.py")


async def submitted(site: Site, task: str, *, epochs: int) -> str:
    plan = {"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2, "until": {"epochs": epochs}}
    return await site.operator.prepare_and_submit(task, plan=plan, portable=True)


def test_a_tab_computes_by_webgpu_until_that_fails(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with with_graphics(tmp_path) as (site, browser, page):
            await asyncio.to_thread(page.evaluate, WANT_GRAPHICS)
            job = await submitted(site, CLOUDS, epochs=6)
            assert await engine(page) == "WebGPU"
            await site.until("it trains", lambda: _applied(site, job, 10, "tab"))
            # Its driver crashes in the midst: the processor takes the same step again.
            await asyncio.to_thread(browser.crash_graphics)
            failed = "document.getElementById('engine').textContent.endsWith('the graphics processor failed')"
            await asyncio.to_thread(page.wait_for, failed, seconds=300)
            await site.ended(job)
            site.exactly_once(job, batches=15, epochs=6)
            assert (site.evaluations(job)[-1].accuracy or 0.0) >= 0.95
            assert not [
                event.text
                for event in site.events(job)
                if event.kind in ("lease.failed", "lease.expired", "update.rejected")
            ]

    run(story())


def test_a_tab_computes_by_webassembly_where_webgpu_is_slower_or_lacks_an_operation(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with with_graphics(tmp_path) as (site, _, page):
            job = await submitted(site, CLOUDS, epochs=1000)
            assert await engine(page) == "WebAssembly\nthe graphics processor is slower"
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            await shows(page, "Connected")
            await asyncio.to_thread(page.evaluate, WANT_GRAPHICS)
            # Its kernels do not say where a maximum was.
            await submitted(site, f"{HERE.parents[1] / 'benchmarks' / 'portable_tasks.py'}:LeNet", epochs=1)
            assert await engine(page) == "WebAssembly\nthe graphics processor does not run this job"

    run(story())


MOVES = "[...document.querySelectorAll('#asked li, #offered li')].map((each) => each.textContent)"
FILES = "Number(document.body.dataset.files)"
HIDDEN = "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {} }})"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"


async def lines(page: Page) -> str:
    return "\n".join(await asyncio.to_thread(page.evaluate, MOVES))


async def files(page: Page) -> int:
    return int(await asyncio.to_thread(page.evaluate, FILES))


@pytest.mark.gate("tab")
def test_a_visitor_is_asked_before_each_download_and_pays_for_it_once(tmp_path: Path) -> None:
    told = ("--browser-operator", "Ms Okafor <b>", "--browser-purpose", "to tell clouds apart")

    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=(*TABS, *told)) as site:
            job = await submitted(site, CLOUDS, epochs=10_000)
            with await asyncio.to_thread(Chromium.start) as browser:
                made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
                page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844, phone=True)
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                # Who asks, what for, which job and how much: as text, whatever they are called.
                asked = await lines(page)
                assert "Ms Okafor <b>" in asked
                assert "to tell clouds apart" in asked
                assert re.search(r"The job clouds_task downloads up to [\d.]+ MB once", asked), asked
                assert await files(page) == 0
                await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
                # Examples held out come with the first evaluation.
                await site.until("evaluated", lambda: _is_evaluated(site, job))
                once = await files(page)
                assert once > 0
                # Three looks away cost nothing again, and neither does a reload.
                for count in range(3):
                    await asyncio.to_thread(page.evaluate, f"{HIDDEN.format('true')}; {LOOK}")
                    await shows(page, "Resting")
                    await asyncio.to_thread(page.evaluate, f"{HIDDEN.format('false')}; {LOOK}")
                    merged = _by(site, job, "tab")
                    await site.until(f"back {count}", lambda merged=merged: _applied(site, job, merged + 2, "tab"))
                assert await files(page) <= once * 1.02
                await asyncio.to_thread(page.send, "Page.reload")
                await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
                await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
                await shows(page, "Training", leases=1)
                assert await files(page) <= once * 0.05
                # A second tab of the same browser says where the first is, and goes on when that closes.
                other = await asyncio.to_thread(browser.page, made.join_line.partition("#")[0], width=390, height=844)
                await shows(other, "Open in another tab")
                await asyncio.to_thread(page.close)
                await asyncio.to_thread(other.wait_for, "document.getElementById('agree')?.hidden === false")
                await asyncio.to_thread(other.evaluate, "document.getElementById('agree').click()")
                await shows(other, "Training", leases=1)
                assert await files(other) <= once * 0.05
                # Another job is another question: nothing of it comes before the answer.
                before = await files(other)
                await site.operator.stop(job)
                await site.ended(job, "stopped")
                second = await submitted(site, f"{CLOUDS}", epochs=2)
                await shows(other, "A new job")
                assert "downloads" in await lines(other)
                assert await files(other) == before
                await asyncio.to_thread(other.evaluate, "document.getElementById('take-job').click()")
                await site.ended(second)
                assert {row.node for row in site.history(second)[0]} == {"tab"}
                assert not other.errors
            # A link that was used says so before anything is asked, in words for visitors.
            with await asyncio.to_thread(Chromium.start) as browser:
                late = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844, phone=True)
                await asyncio.to_thread(late.wait_for, "document.getElementById('refusal')?.textContent")
                said = await asyncio.to_thread(late.evaluate, "document.getElementById('refusal').textContent")
                assert said == "This link was used already. Ask for another."

    run(story())


@pytest.mark.skipif(firefox_program() is None, reason="no Firefox on this machine: apt-get install firefox-esr")
def test_firefox_trains_and_keeps_what_it_fetched(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            job = await submitted(site, CLOUDS, epochs=10_000)
            made = await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")
            with await asyncio.to_thread(Firefox.start) as browser:
                page = await asyncio.to_thread(browser.page, made.join_line, width=390, height=844)
                isolated = "isSecureContext && crossOriginIsolated"
                for is_first in (True, False):
                    await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                    assert await asyncio.to_thread(page.evaluate, isolated)
                    await asyncio.to_thread(page.evaluate, "document.getElementById('agree').click()")
                    merged = _by(site, job, "tab")
                    await site.until("it trains", lambda merged=merged: _applied(site, job, merged + 40, "tab"))
                    fetched = await asyncio.to_thread(page.evaluate, FILES)
                    assert (fetched > 0) is is_first
                    await asyncio.to_thread(page.reload)
                    await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
            await site.operator.stop(job)

    run(story())


#: A graphics processor that is wrong without a word, from one step on: what it gives is 2 % too large.
WRONG_FROM = """;{
const create = SESSION.create.bind(SESSION);
SESSION.create = async (graph, options) => {
  const made = await create(graph, options), run = made.run.bind(made);
  let steps = 0;
  if (options.executionProviders.length > 1) made.run = async (feed) => {
    const found = await run(feed);
    if (++steps > FIRST)
      for (const { data } of Object.values(found)) data.forEach((value, i) => (data[i] = value * 1.02));
    return found;
  };
  return made;
}; }"""


@pytest.mark.parametrize("right_steps", [0, 1], ids=["known-batch", "whole-batch"])
def test_a_graphics_processor_that_is_silently_wrong_is_not_used(tmp_path: Path, right_steps: int) -> None:
    async def story() -> None:
        installed = engine_files.install(tmp_path / "home", ENGINE)
        script = (installed / "ort.jspi.min.mjs").read_text()
        session = re.search(r"export\{(\w+) as InferenceSession", script)
        assert session is not None
        wrong = WRONG_FROM.replace("SESSION", session.group(1)).replace("FIRST", str(right_steps))
        packed = gzip.compress(script.replace("export{", wrong + "export{").encode())
        (installed / "ort.jspi.min.mjs.gz").write_bytes(packed)
        async with with_graphics(tmp_path) as (site, _, page):
            await asyncio.to_thread(page.evaluate, WANT_GRAPHICS)
            job = await submitted(site, CLOUDS, epochs=6)
            assert await engine(page) == "WebAssembly\nthe graphics processor computes otherwise"
            await site.ended(job)
            site.exactly_once(job, batches=15, epochs=6)
            assert (site.evaluations(job)[-1].accuracy or 0.0) >= 0.95

    run(story())


def test_a_stopped_tab_goes_on_and_a_hidden_one_rests(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                await asyncio.to_thread(page.evaluate, "document.getElementById('stop').click()")
                await shows(page, "Stopped")
                # Its user left: it is no device that was lost, and nobody lists it.
                await site.until("gone", lambda: _is_unlisted(site, "tab"))
                await asyncio.to_thread(page.evaluate, "document.getElementById('go-on').click()")
                await shows(page, "Connected")
                # The key is kept by the browser: another visit needs no link.
                await asyncio.to_thread(page.send, "Page.reload")
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                again = await asyncio.to_thread(page.evaluate, "document.getElementById('agree').textContent")
                assert again == "Train again as tab"
                await agree(page)
                await shows(page, "Connected")
                hide = "Object.defineProperty(document, 'hidden', { get: () => true })"
                tell = "document.dispatchEvent(new Event('visibilitychange'))"
                await asyncio.to_thread(page.evaluate, f"{hide}; {tell}")
                await shows(page, "Resting")
                await site.until("rests", lambda: _is_unlisted(site, "tab"))
                await asyncio.to_thread(page.evaluate, "document.getElementById('allow-hidden').click()")
                await shows(page, "Connected")
                assert not page.errors

    run(story())


def test_a_tab_refuses_a_graph_with_an_operation_that_is_not_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doctored(ready: ReadyTask, plan: Plan, **rest: Any) -> Captured:
        """The graphs of an operator that means harm: sound, but for the name of one operation."""
        captured = await capture_ready(ready, plan, **rest)
        assert captured.path is not None
        raw = captured.path.read_bytes()
        assert b"Tanh" in raw
        raw = raw.replace(b"Tanh", b"Loop")
        captured.path.write_bytes(raw)
        return replace(captured, sha256=hashlib.sha256(raw).hexdigest())

    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        monkeypatch.setattr("shoal.runtime.operator.capture_ready", doctored)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                job = await site.operator.prepare_and_submit(
                    str(HERE / "clouds_task.py"), plan={"batch_size": 16, "until": {"epochs": 1}}, portable=True
                )
                await site.event(job, "preparation.failed", 'tab: a graph has the operation "Loop"')
                assert not site.history(job)[0]
                await site.operator.stop(job)

    run(story())


LEASE_S = 3.0


def test_a_tab_that_slows_down_loses_its_lease_and_no_batch(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            await site.cluster.start_agent("onnx-0", "--engine", "onnx")
            with await asyncio.to_thread(Chromium.start) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                plan = {"batch_size": 16, "learning_rate": 0.1, "lease_batches": 100, "lease_s": LEASE_S}
                job = await site.operator.prepare_and_submit(
                    str(HERE / "clouds_task.py"),
                    kwargs={"count": 16_000},
                    plan=plan | {"until": {"epochs": 400}},
                    portable=True,
                )
                await shows(page, "Training", leases=2)
                began = len(site.events(job))

                async def is_late() -> bool:
                    """The tab ends the lease itself, or the leader takes it back."""
                    told = [
                        event.text
                        for event in site.events(job)[began:]
                        if event.kind in ("lease.failed", "lease.expired")
                    ]
                    given_up = f"tab: no result within the lease's {LEASE_S} s"
                    return any(given_up in text or "of tab: no update" in text for text in told)

                # The same tab on a device that is so hot that it does next to nothing.
                with browser.slowed(100):
                    await site.until("the tab's lease is over", is_late)
                    after = len(site.history(job)[0])
                    # Its batches are others': the job goes on without it.
                    await site.until("others go on", lambda: _applied(site, job, after + 1000))
                # Cool again, it takes part again.
                merged = _by(site, job, "tab")
                await site.until("the tab goes on", lambda: _applied(site, job, merged + 1, "tab"))
                await site.operator.stop(job)
                await site.ended(job, "stopped")
            rows, audits = site.history(job)
            assert len(rows) == len({(row.epoch, row.batch) for row in rows})
            whole = [audit for audit in audits if audit.epoch < max(row.epoch for row in rows)]
            assert whole
            assert all((audit.batches, audit.distinct) == (1000, 1000) for audit in whole)

    run(story())


def _by(site: Site, job: str, node: str) -> int:
    return sum(row.node == node for row in site.history(job)[0])


async def _applied(site: Site, job: str, least: int, node: str = "") -> bool:
    rows = site.history(job)[0]
    return (_by(site, job, node) if node else len(rows)) >= least


def test_a_tab_trains_over_tls_with_the_certificate_of_the_operator(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        certified = Certified.made("shoal.test", tmp_path)
        # The name is this machine's for this browser, and of all authorities it believes ours in this one key alone.
        flags = ("--host-resolver-rules=MAP shoal.test 127.0.0.1", certified.trusts_key)
        async with cluster_in(
            tmp_path, workers=0, options=("--threads", "1"), manager_options=certified.served
        ) as site:
            with await asyncio.to_thread(Chromium.start, *flags) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                where = "JSON.stringify([location.protocol, location.hostname, isSecureContext, crossOriginIsolated])"
                told = json.loads(await asyncio.to_thread(page.evaluate, where))
                assert told == ["https:", "shoal.test", True, True]
                job = await site.operator.prepare_and_submit(
                    str(HERE / "clouds_task.py"),
                    plan={"batch_size": 16, "learning_rate": 0.1, "until": {"epochs": 6}},
                    portable=True,
                )
                await site.ended(job)
                site.exactly_once(job, batches=15, epochs=6)
                assert {row.node for row in site.history(job)[0]} == {"tab"}
                assert not page.errors
                address = await asyncio.to_thread(page.evaluate, "location.origin")
            # A browser that does not know the authority shows no page of ours, and runs nothing.
            with await asyncio.to_thread(Chromium.start, flags[0]) as stranger:
                page = await asyncio.to_thread(stranger.page, address)
                await asyncio.to_thread(page.wait_for, "document.readyState === 'complete'")
                assert not await asyncio.to_thread(page.evaluate, "Boolean(document.getElementById('agree'))")

    run(story())


CERTUTIL = shutil.which("certutil")


@pytest.mark.skipif(
    CERTUTIL is None, reason="no certutil, which makes a browser trust an authority: apt-get install libnss3-tools"
)
def test_a_browser_follows_the_chain_to_a_root_that_it_trusts_and_no_other_host(tmp_path: Path) -> None:
    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        certified = Certified.made("shoal.test", tmp_path)
        trusting, trusting_nobody = (
            user_who_trusts(tmp_path / "trusting", certified.root),
            user_who_trusts(tmp_path / "not"),
        )
        # Names are this machine's for these browsers. No error of a certificate is ignored.
        named = "--host-resolver-rules=MAP *.test 127.0.0.1"
        async with cluster_in(
            tmp_path, workers=0, options=("--threads", "1"), manager_options=certified.served
        ) as site:
            with await asyncio.to_thread(Chromium.start, named, home=trusting) as browser:
                page = await agreed(site, browser)
                await shows(page, "Connected")
                job = await site.operator.prepare_and_submit(
                    str(HERE / "clouds_task.py"),
                    plan={"batch_size": 16, "learning_rate": 0.1, "until": {"epochs": 2}},
                    portable=True,
                )
                await site.ended(job)
                assert {row.node for row in site.history(job)[0]} == {"tab"}
                assert not page.errors
                address = str(await asyncio.to_thread(page.evaluate, "location.origin"))
                # The same door under a name that is not the certificate's.
                assert await refusal(browser, address.replace("shoal.", "other.")) == "ERR_CERT_COMMON_NAME_INVALID"
            with await asyncio.to_thread(Chromium.start, named, home=trusting_nobody) as browser:
                assert await refusal(browser, address) == "ERR_CERT_AUTHORITY_INVALID"

    run(story())


async def refusal(browser: Chromium, address: str) -> str:
    """Why the browser shows no page of this address."""
    page = await asyncio.to_thread(browser.page, address)
    await asyncio.to_thread(page.wait_for, "document.readyState === 'complete' && location.protocol !== 'about:'")
    assert not await asyncio.to_thread(page.evaluate, "Boolean(document.getElementById('agree'))")
    said = await asyncio.to_thread(page.evaluate, "document.documentElement.textContent.match(/ERR_CERT_[A-Z_]+/)?.[0]")
    return str(said)


def user_who_trusts(home: Path, root: str = "") -> Path:
    """The home of a user whose browser trusts this authority beside the usual ones."""
    for place in (".pki/nssdb", ".local/share/pki/nssdb"):
        (home / place).mkdir(parents=True)
        command = [str(CERTUTIL), "-d", f"sql:{home / place}"]
        subprocess.run([*command, "-N", "--empty-password"], check=True)
        if root:
            subprocess.run([*command, "-A", "-t", "C,,", "-n", "Somebody's authority", "-i", root], check=True)
    return home


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """A certificate of an authority below one that was made here: files of its chain, its key and the root."""

    host: str
    chain: str
    key: str
    root: str
    spki: bytes

    @property
    def served(self) -> tuple[str, ...]:
        given = ("--browser-certificate", self.chain, "--browser-key", self.key)
        return ("--browser", f"https://{self.host}:0", *given)

    @property
    def trusts_key(self) -> str:
        """A browser's flag."""
        pin = base64.b64encode(hashlib.sha256(self.spki).digest()).decode()
        return f"--ignore-certificate-errors-spki-list={pin}"

    @classmethod
    def made(cls, host: str, folder: Path) -> Certified:
        now = datetime.datetime.now(datetime.UTC)
        ends = now + datetime.timedelta(days=2)

        def made(name: str, issuer: str, public: Any, by: Any, is_ca: bool) -> x509.Certificate:
            named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
            builder = x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(public)
            builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(ends)
            builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            return (builder if is_ca else builder.add_extension(names, critical=False)).sign(by, hashes.SHA256())

        root_key, middle_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        root = made("Somebody's authority", "Somebody's authority", root_key.public_key(), root_key, True)
        middle = made("Its office", "Somebody's authority", middle_key.public_key(), root_key, True)
        leaf = made(host, "Its office", key.public_key(), middle_key, False)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # A browser knows the root by itself; the rest of the chain is the server's to show.
        chain = b"".join(each.public_bytes(Encoding.PEM) for each in (leaf, middle))
        files = {"chain.pem": chain, "key.pem": secret, "root.pem": root.public_bytes(Encoding.PEM)}
        for name, content in files.items():
            (folder / name).write_bytes(content)
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        paths = [str(folder / name) for name in files]
        return cls(host=host, chain=paths[0], key=paths[1], root=paths[2], spki=spki)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_on_the_page(tmp_path: Path, dark: bool) -> None:
    source = axe.script()
    if source is None:
        pytest.skip("axe-core is not here, and npm does not reach it")
    text = source.read_text()

    async def story() -> None:
        engine_files.install(tmp_path / "home", ENGINE)
        async with cluster_in(tmp_path, workers=0, options=("--threads", "1"), manager_options=TABS) as site:
            with await asyncio.to_thread(Chromium.start) as browser:
                link = (await site.operator.make_token(role="browser", uses=1, valid_s=600, label="")).join_line
                page = await asyncio.to_thread(
                    browser.page, link.partition("#")[0], width=390, height=844, phone=True, dark=dark
                )
                await asyncio.to_thread(page.wait_for, "document.body?.dataset.state === 'new'")
                # Without a link, asked, at work, stopped.
                assert await asyncio.to_thread(axe.violations, page, text) == []
                page = await asyncio.to_thread(browser.page, link, width=390, height=844, phone=True, dark=dark)
                await asyncio.to_thread(page.wait_for, "document.getElementById('agree')?.hidden === false")
                assert await asyncio.to_thread(axe.violations, page, text) == []
                await agree(page)
                await shows(page, "Connected")
                await asyncio.to_thread(page.evaluate, "document.querySelector('details').open = true")
                assert await asyncio.to_thread(axe.violations, page, text) == []
                small = """[...document.querySelectorAll('button, summary, label')]
                    .filter((each) => each.checkVisibility() && each.getBoundingClientRect().height < 44)
                    .map((each) => each.outerHTML.slice(0, 80))"""
                assert await asyncio.to_thread(page.evaluate, small) == []
                wide = "document.documentElement.scrollWidth > innerWidth"
                assert not await asyncio.to_thread(page.evaluate, wide)
                await asyncio.to_thread(page.evaluate, "document.getElementById('stop').click()")
                await shows(page, "Stopped")
                assert await asyncio.to_thread(axe.violations, page, text) == []

    run(story())


async def _is_evaluated(site: Site, job: str) -> bool:
    return bool(site.evaluations(job))


async def _is_unlisted(site: Site, name: str) -> bool | None:
    status = await site.operator.status()
    return True if all(view.node != name for view in status.nodes) else None
