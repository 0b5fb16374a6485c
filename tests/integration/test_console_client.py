"""The console's page in a real browser, with a recording of a real cluster behind it: all of it but the server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from console_player import Player

from benchmarks import axe
from benchmarks.chromium import Chromium, Page, program

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


@pytest.mark.parametrize("screen", SCREENS)
def test_no_screen_complains_or_runs_over_its_edge(browser: Chromium, screen: str) -> None:
    with Player(at_s=LOST_S) as player:
        page = opened(browser, player, screen)
        if screen == "simulate":
            simulated(page)
        for width in (390, 820, 1400):
            page.size(width, 844, phone=width == 390)
            time.sleep(0.3)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{screen} at {width}"
        assert page.errors == []
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
        lost = {"state": "lost", "does": "lost", "reason": "the connection was cut"}
        player.push({"cluster": {"sentence": sentence, "tone": "trouble"}, "nodes": {"porch-pi5": lost}})
        page.wait_for("document.querySelector('h1').textContent.includes('porch-pi5 is lost')", seconds=60)
        row = "[...document.querySelectorAll('tr.bad')].find((each) => each.textContent.startsWith('porch-pi5'))"
        page.wait_for(f"{row}?.textContent.includes('the connection was cut')", seconds=60)
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
        page.wait_for("Shoal.store.record.from_s && Shoal.store.session")
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
