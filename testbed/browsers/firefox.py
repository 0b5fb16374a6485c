"""A headless Firefox, driven by WebDriver BiDi over its own port: no driver program. As ``chromium`` has it.

with Firefox.start() as browser:
    page = browser.page("http://127.0.0.1:8000/")
    page.wait_for("document.querySelector('h1')")
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from testbed.browsers.chromium import ANSWER_S, POLL_S, BrowserFailed

PROGRAMS = ("firefox-esr", "firefox")
START_S = 120.0
#: Nothing of its own over the network, and no questions.
PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}

Fields = dict[str, Any]


def program() -> str | None:
    """Where the browser is; None: there is none on this machine."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Firefox:
    """A browser of one's own: an empty profile, which goes with it."""

    def __init__(
        self, process: subprocess.Popen[str], socket: ClientConnection, profile: Path, ending: contextlib.ExitStack
    ) -> None:
        self._process, self._socket, self._profile, self._ending = process, socket, profile, ending
        self._numbers = itertools.count(1)

    @classmethod
    def start(cls) -> Firefox:
        found = program()
        if found is None:
            raise FileNotFoundError(f"no browser: install one of {', '.join(PROGRAMS)}")
        profile = Path(tempfile.mkdtemp(prefix="shoal-firefox-"))
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
        (profile / "user.js").write_text("\n".join(lines))
        process = subprocess.Popen(
            [found, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port=0", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"},
        )
        try:
            address = _address(process)
            # Nobody reads what it says from now on, and a full pipe would stop it.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            ending = contextlib.ExitStack()
            socket = ending.enter_context(connect(f"{address}/session", max_size=None, open_timeout=START_S))
            browser = cls(process, socket, profile, ending)
            browser.send("session.new", capabilities={})
        except BaseException:
            process.kill()
            process.wait()
            shutil.rmtree(profile, ignore_errors=True)
            raise
        return browser

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(BrowserFailed, OSError, subprocess.TimeoutExpired):
            self.send("browser.close")
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a phone whose battery is empty."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._ending.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **fields: Any) -> Fields:
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        try:
            self._socket.send(json.dumps({"id": number, "method": method, "params": fields}))
            until_s = time.monotonic() + ANSWER_S
            while True:
                answer = json.loads(self._socket.recv(timeout=max(0.0, until_s - time.monotonic())))
                if answer.get("id") == number:
                    break
        except (TimeoutError, OSError, EOFError) as error:
            raise BrowserFailed(f"{method}: no answer ({error!r})") from None
        if answer["type"] == "error":
            raise BrowserFailed(f"{method}: {answer['error']}: {answer['message']}")
        return dict(answer["result"])

    def page(self, url: str, *, width: int = 1400, height: int = 900) -> FirefoxPage:
        """A new page of this size, before it has loaded."""
        context = self.send("browsingContext.create", type="tab")["context"]
        page = FirefoxPage(self, context)
        with contextlib.suppress(BrowserFailed):  # Older ones know no sizes.
            self.send("browsingContext.setViewport", context=context, viewport={"width": width, "height": height})
        self.send("browsingContext.navigate", context=context, url=url, wait="none")
        return page


class FirefoxPage:
    def __init__(self, browser: Firefox, context: str) -> None:
        self._browser, self._context = browser, context

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for. What is no plain value comes as JSON."""
        said = self._browser.send(
            "script.evaluate",
            expression=f"(async () => JSON.stringify((await ({script})) ?? null))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        if said["type"] == "exception":
            raise BrowserFailed(said["exceptionDetails"]["text"])
        return json.loads(said["result"]["value"])

    def wait_for(self, script: str, *, seconds: float = ANSWER_S) -> float:
        """Wait until an expression, or what it promises, is true; gives the seconds it took."""
        began_s = time.monotonic()
        while True:
            # A page that is just loading has another realm a moment later.
            with contextlib.suppress(BrowserFailed):
                if self.evaluate(f"Promise.resolve({script}).then(Boolean)"):
                    return time.monotonic() - began_s
            if time.monotonic() - began_s > seconds:
                raise BrowserFailed(f"not within {seconds:.0f} s: {script}")
            time.sleep(POLL_S)

    def choose(self, element: str, *files: Path) -> None:
        """Choose these files in a field for files, as a person does in the browser's dialog."""
        found = self._browser.send(
            "browsingContext.locateNodes",
            context=self._context,
            locator={"type": "css", "value": f"#{element}"},
        )
        (field,) = found["nodes"]
        shared = {"sharedId": field["sharedId"]}
        self._browser.send("input.setFiles", context=self._context, element=shared, files=[str(path) for path in files])

    def reload(self) -> None:
        self._browser.send("browsingContext.reload", context=self._context, wait="none")

    def close(self) -> None:
        self._browser.send("browsingContext.close", context=self._context)


def _address(process: subprocess.Popen[str]) -> str:
    """Where it listens, as it says on its standard error."""
    assert process.stderr is not None
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        line = process.stderr.readline()
        if not line:
            raise BrowserFailed("Firefox ended at once")
        if found := re.search(r"WebDriver BiDi listening on (ws://\S+)", line):
            return found[1]
    raise BrowserFailed(f"Firefox does not listen after {START_S:.0f} s")


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    with process.stderr as said:
        for _ in said:
            pass
