"""The console's page in a real browser, with a recording of a real cluster behind it: all of it but the server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from console_player import Player

from testbed.browsers import axe
from testbed.browsers.chromium import Chromium, Page, program

pytestmark = [
    pytest.mark.skipif(program() is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(600),
]

SCREENS = ("cluster", "job", "models", "simulate")
#: Where the recording has a device that is lost.
LOST_S = 36.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium.start() as started:
        yield started


def opened(browser: Chromium, player: Player, screen: str, **size: object) -> Page:
    page = browser.page(f"{player.url}#/{screen}", **size)  # type: ignore[arg-type]
    page.wait_for(f"document.querySelector('main[data-screen={screen}] h1')")
    if screen == "job":
        page.wait_for("document.querySelector('.curve canvas')")
    return page


def simulated(page: Page) -> None:
    page.evaluate("document.querySelector('.question .primary').click()")
    page.wait_for("document.querySelector('.simulated .curve canvas')")


def second_job(player: Player, name: str, **values: object) -> dict[str, object]:
    """A patch with one more job, like the recorded one but for these values."""
    recorded = next(iter(player.state["jobs"].values()))
    return {"jobs": {name: {**recorded, "name": name.partition("-")[0], **values}}}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_no_screen_complains_or_runs_over_its_edge(browser: Chromium, screen: str, dark: bool) -> None:
    with Player(at_s=LOST_S, allow=("models", "devices", "jobs")) as player:
        player.push(second_job(player, "a-second-job-of-a-long-name-4f1e", sentence="word " * 40, tone="attention"))
        page = opened(browser, player, screen, dark=dark)
        if screen == "simulate":
            simulated(page)
        page.wait_for("Shoal.store.session")
        for width in (390, 820, 1400):
            page.size(width, 844, phone=width == 390)
            time.sleep(0.3)
            # On a phone the window grows with what runs over its edge: its own width would hide it.
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{screen} at {width}"
        assert page.errors == []
        page.close()


def test_each_of_several_jobs_has_a_line_and_each_device_its_job(browser: Chromium) -> None:
    with Player(at_s=60) as player:
        (first,) = player.state["jobs"]
        # The recorded job has a line to the one, and none to the other.
        other, name = "porch-pi5", "cellar-pi4"
        sentence = f"sensors fails on its only device, {name}: RuntimeError: no scale. Mend it with `shoal jobs stop`"
        edges = [[name, "manager", 12.0], ["manager", name, 3.0]]
        ill = {
            "sentence": sentence,
            "tone": "trouble",
            "state": "failing",
            "topology": {"kind": "star", "edges": edges},
        }
        lines = "[...document.querySelectorAll('.job-lines li')].map((each) => each.textContent)"
        page = opened(browser, player, "cluster")
        assert page.evaluate(lines) == [], "one job is told by the headline"
        player.push(second_job(player, "sensors-1", **ill))
        player.push(
            {
                "cluster": {"sentence": sentence, "tone": "trouble"},
                "nodes": {
                    name: {"state": "alive", "does": "wait", "job": "sensors-1", "fails": "RuntimeError: no scale"},
                    other: {"job": first},
                },
            }
        )
        page.wait_for("document.querySelectorAll('.job-lines li').length === 2", seconds=60)
        page.wait_for("document.querySelector('table.devices').textContent.includes('no scale')", seconds=60)
        assert page.evaluate("document.querySelectorAll('tr.device.bad').length") == 1
        assert page.evaluate("document.querySelector('h1 .tone').textContent") == "✕"
        assert page.evaluate("document.querySelector('.sentence code').textContent") == "shoal jobs stop"
        assert any("sensors-1" in line for line in page.evaluate(lines))
        rows = page.evaluate("[...document.querySelectorAll('tr.device')].map((each) => each.textContent)")
        row = next(each for each in rows if each.startswith(name))
        assert "sensors" in row
        assert "failsRuntimeError: no scale" in row
        page.evaluate("document.querySelector('.as-table summary').click()")
        page.wait_for("document.querySelector('.as-table tbody tr')")
        drawn = page.evaluate("document.querySelector('.as-table table').textContent")
        assert name in drawn, "a device of the second job has its line"
        assert other in drawn
        assert page.errors == []
        page.close()


def test_a_job_that_ended_leaves_the_first_screen_and_is_kept_behind_a_link(browser: Chromium) -> None:
    listed = "[...document.querySelectorAll('.jobs tbody th')].map((each) => each.textContent).join()"
    with Player(at_s=60) as player:
        player.push(second_job(player, "old-1", state="failed", open=False, since_s=900.0, tone="trouble"))
        player.push(second_job(player, "new-1", state="finished", open=False, since_s=30.0, tone="ok"))
        page = opened(browser, player, "cluster")
        assert "new-1" in page.evaluate(listed)
        assert "old-1" not in page.evaluate(listed)
        more = "[...document.querySelectorAll('.more')].find((each) => each.textContent.includes('1 ended job'))"
        assert "1 of them failed" in page.evaluate(f"{more}.textContent")
        page.evaluate(f"{more}.click()")
        page.wait_for(f"{listed}.includes('old-1')")
        assert page.errors == []
        page.close()


def test_a_job_that_has_published_nothing_is_no_warning(browser: Chromium) -> None:
    with Player(at_s=60, allow=("models",)) as player:
        (job,) = player.state["jobs"]
        player.push({"jobs": {job: {"served": None, "versions": []}}})
        page = opened(browser, player, "models")
        assert page.evaluate("document.querySelector('.sentence').className") == "sentence tone-plain"
        lines = page.evaluate("[...document.querySelectorAll('.command code')].map((each) => each.textContent)")
        assert lines == [f"shoal model publish {job}"], "the line beside the button does what the button does"
        page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(browser: Chromium, screen: str, dark: bool) -> None:
    source = axe.script()
    if source is None:
        pytest.skip("axe-core is not here, and npm does not reach it")
    with Player(at_s=LOST_S, allow=("models", "devices", "jobs")) as player:
        page = opened(browser, player, screen, dark=dark)
        if screen == "simulate":
            simulated(page)
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        page.evaluate("document.querySelector('[data-device]')?.click()")
        time.sleep(0.3)
        assert axe.violations(page, source.read_text()) == []
        page.close()


def test_targets_are_large_enough_for_a_thumb(browser: Chromium) -> None:
    small = """[...document.querySelectorAll('button, nav a, select, input, summary')]
        .filter((each) => each.checkVisibility() && each.getBoundingClientRect().height < 40)
        .map((each) => each.outerHTML.slice(0, 80))"""
    with Player(at_s=LOST_S) as player:
        for screen in SCREENS:
            page = opened(browser, player, screen, width=390, height=844, phone=True)
            assert page.evaluate(small) == []
            page.close()


def test_a_patch_changes_the_page_without_a_reload(browser: Chromium) -> None:
    with Player(at_s=60) as player:
        page = opened(browser, player, "cluster")
        page.evaluate("window.notReloaded = true")
        sentence = "porch-pi5 is lost; training goes on with 3."
        lost = {"state": "lost", "does": "lost", "reason": "connection closed"}
        player.push({"cluster": {"sentence": sentence, "tone": "trouble"}, "nodes": {"porch-pi5": lost}})
        page.wait_for("document.querySelector('h1').textContent.includes('porch-pi5 is lost')", seconds=60)
        row = "[...document.querySelectorAll('tr.bad')].find((each) => each.textContent.startsWith('porch-pi5'))"
        page.wait_for(f"{row}?.textContent.includes('connection closed')", seconds=60)
        assert page.evaluate("window.notReloaded") is True
        # What a patch takes away is gone.
        player.push({"nodes": {"porch-pi5": None}})
        page.wait_for("!document.querySelector('table.devices').textContent.includes('porch-pi5')", seconds=60)
        assert page.errors == []
        page.close()


def test_names_and_reasons_stay_text(browser: Chromium) -> None:
    name = "<img src=x onerror=window.hurt=1>"
    node = {"state": "alive", "does": "train", "why": "<script>window.hurt=1</script>", "reason": "", "role": "worker"}
    with Player(at_s=60) as player:
        job = next(iter(player.state["jobs"]))
        events = [{"seq": 999, "at_s": player.state["at_s"], "kind": "<b>lost</b>", "reason": name}]
        player.push({"nodes": {name: node, "__proto__": node, "constructor": node}})
        player.push(
            {"jobs": {job: {"name": name, "events": events, "sentence": f"{name} is at 90 %", "plan": {name: name}}}}
        )
        for screen in SCREENS:
            page = opened(browser, player, screen)
            assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
            if screen == "cluster":
                shown = page.evaluate(
                    "[...document.querySelectorAll('[data-device] b')].map((each) => each.textContent)"
                )
                assert {name, "__proto__", "constructor"} <= set(shown)
            assert page.evaluate("window.hurt") is None
            assert page.errors == []
            page.close()


def test_keys_move_between_screens_devices_and_moments(browser: Chromium) -> None:
    with Player() as player:
        page = opened(browser, player, "cluster")
        # Until the recording is here, the page takes the first live state for its beginning.
        page.wait_for(f"Shoal.store.record.to_s - Shoal.store.record.from_s > {LOST_S} && Shoal.store.session")
        page.press("j")
        assert page.evaluate("document.activeElement.dataset.device") == ""
        page.press("j")
        assert page.evaluate("document.activeElement.textContent").startswith("cellar-pi4")
        page.press("ArrowLeft")
        page.wait_for("document.querySelector('.then')")
        page.evaluate(f"Shoal.look(Shoal.store.record.from_s + {LOST_S})")
        page.wait_for("document.querySelector('h1').textContent.includes('cellar-pi4 is lost')")
        page.press("2")
        page.wait_for("document.querySelector('main[data-screen=job] .then')")
        page.evaluate("document.querySelector('.replay .now').click()")
        page.wait_for("!document.querySelector('.then')")
        assert page.errors == []
        page.close()


def test_acts_appear_where_they_are_allowed_and_take_a_reason_and_the_name(browser: Chromium) -> None:
    with Player() as player:
        page = opened(browser, player, "models")
        page.wait_for("Shoal.store.session")
        assert page.evaluate("document.querySelectorAll('.act').length") == 0
        page.close()
    with Player(allow=("models",)) as player:
        page = opened(browser, player, "job")
        page.wait_for("Shoal.store.session")
        assert page.evaluate("document.querySelectorAll('.act').length") == 0, "only models may be changed"
        page.evaluate("location.hash = '#/models'")
        page.wait_for("document.querySelectorAll('.act').length > 1")
        page.evaluate("[...document.querySelectorAll('.versions .act')].at(-1).click()")
        page.wait_for("document.querySelector('dialog[open]')")
        fill = """(name, text) => { const field = document.querySelector(`dialog [name=${name}]`);
            field.value = text; field.dispatchEvent(new Event('input', {bubbles: true})); }"""
        page.evaluate(f"({fill})('reason', \"it's wrong\")")
        assert page.evaluate("document.querySelector('dialog .primary').disabled") is True, "the name was not typed"
        job = next(iter(player.state["jobs"]))
        page.evaluate(f"({fill})('typed', '{job}')")
        page.wait_for("!document.querySelector('dialog .primary').disabled")
        line = page.evaluate("document.querySelector('dialog .command code').textContent")
        assert line == f"shoal model rollback {job} --to 9 --reason 'it'\\''s wrong'"
        page.evaluate("document.querySelector('dialog .primary').click()")
        page.wait_for("document.querySelector('dialog .done')")
        assert player.acts == [{"do": "roll-back", "job": job, "version": 9, "reason": "it's wrong"}]
        assert page.errors == []
        page.close()


def test_a_thousand_devices_are_a_band_and_a_table_of_those_in_view(browser: Chromium) -> None:
    with Player(many=True) as player:
        page = opened(browser, player, "cluster")
        page.wait_for("document.querySelector('.band canvas').width > 0")
        page.evaluate(
            "[...document.querySelectorAll('.more')].find((each) => each.textContent.includes('1,000')).click()"
        )
        page.wait_for("document.querySelector('.virtual')")
        assert page.evaluate("document.querySelectorAll('.virtual tbody tr').length") < 60
        page.evaluate("document.querySelector('.virtual').scrollTop = 1e6")
        page.wait_for("document.querySelector('.virtual tr[aria-rowindex=\"1001\"]')")
        assert page.errors == []
        page.close()


def test_a_hidden_page_closes_its_stream(browser: Chromium) -> None:
    with Player(at_s=60) as player:
        page = opened(browser, player, "cluster")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        player.push({"cluster": {"sentence": "Nobody looks."}})
        time.sleep(1)
        assert "Nobody looks" not in page.evaluate("document.querySelector('h1').textContent")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for("document.querySelector('h1').textContent.includes('Nobody looks')", seconds=60)
        assert page.errors == []
        page.close()
