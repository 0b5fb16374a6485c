"""A headless Chromium, driven by DevTools over two pipes: no driver program, no websocket, nothing to download.

with Chromium.start() as browser:
    page = browser.page("http://127.0.0.1:8000/", width=1400, height=900)
    page.wait_for("document.querySelector('h1')")
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NO_GRAPHICS = ("--disable-gpu",)
#: A graphics processor in software, for WebGPU.
GRAPHICS = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
FLAGS = (
    "--headless", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe", "--mute-audio",
)  # fmt: skip

#: The browser reads its commands from 3 and answers on 4: put our pipes there, then become the browser. A shell cannot
#: be asked for it: some know no descriptor above 9.
ENTRY = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 10) for number in sys.argv[1:3]]
for number in sys.argv[1:3]:
    os.close(int(number))
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""

#: Patience with a busy machine.
ANSWER_S = 120.0
POLL_S = 0.05
#: A slowed page runs for a part of each such moment, and stands still for the rest.
MOMENT_S = 0.2

Fields = dict[str, Any]


def program() -> str | None:
    """Where the browser is; None: there is none on this machine."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserFailed(Exception):
    """The browser refused a command, or a script of ours failed in it."""


class Chromium:
    """A browser of one's own: an empty profile, which goes with it."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int, profile: Path) -> None:
        self._process, self._to, self._back, self._profile = process, to, back, profile
        self._count = 0
        self._lock = threading.Lock()
        self._answers: dict[int, queue.Queue[Fields]] = {}
        self._pages: dict[str, Page] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    @classmethod
    def start(cls, *flags: str, graphics: bool = False, home: Path | None = None) -> Chromium:
        """``flags``: more of the browser's own. ``graphics``: WebGPU, computed in software. ``home``: its user's
        folder, where the authorities are that this user trusts."""
        found = program()
        if found is None:
            raise FileNotFoundError(f"no browser: install one of {', '.join(PROGRAMS)}")
        profile = Path(tempfile.mkdtemp(prefix="shoal-chromium-"))
        read_there, to = os.pipe()
        back, write_there = os.pipe()
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, str(read_there), str(write_there), found, *FLAGS,
             *(GRAPHICS if graphics else NO_GRAPHICS), *flags, *root,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_there, write_there), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=os.environ | ({"HOME": str(home)} if home else {}),
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        return cls(process, to, back, profile)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(20)
        except (BrowserFailed, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        shutil.rmtree(self._profile, ignore_errors=True)

    def kill(self) -> None:
        """End it at once, as a phone whose battery is empty."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        shutil.rmtree(self._profile, ignore_errors=True)

    @contextlib.contextmanager
    def slowed(self, times: float) -> Iterator[None]:
        """Meanwhile pages and their workers have one part in so many of the processor: their processes are stopped for
        the rest of every moment. DevTools slows the thread of a page alone, and refuses workers."""
        over = threading.Event()

        def pace() -> None:
            while not over.wait(MOMENT_S / times):
                self._signal(signal.SIGSTOP, "renderer")
                over.wait(MOMENT_S * (1 - 1 / times))
                self._signal(signal.SIGCONT, "renderer")

        thread = threading.Thread(target=pace, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._signal(signal.SIGCONT, "renderer")

    def crash_graphics(self) -> None:
        """End the process that speaks to the graphics processor, as a driver's crash does."""
        self._signal(signal.SIGKILL, "gpu-process")

    def _signal(self, number: signal.Signals, kind: str) -> None:
        """To the processes of this browser of one kind; a "renderer" runs pages."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if f"--type={kind}" in process.cmdline():
                        process.send_signal(number)

    def send(self, method: str, session: str = "", **fields: Any) -> Fields:
        """Ask, and wait for the answer."""
        with self._lock:
            self._count += 1
            number = self._count
            self._answers[number] = queue.Queue()
            message = {"id": number, "method": method, "params": fields} | ({"sessionId": session} if session else {})
            _write(self._to, json.dumps(message).encode() + b"\0")
        try:
            answer = self._answers[number].get(timeout=ANSWER_S)
        except queue.Empty:
            raise BrowserFailed(f"{method}: no answer within {ANSWER_S:.0f} s") from None
        finally:
            del self._answers[number]
        if "error" in answer:
            raise BrowserFailed(f"{method}: {answer['error'].get('message')}")
        return dict(answer["result"])

    def page(self, url: str, *, width: int = 1400, height: int = 900, phone: bool = False, dark: bool = False) -> Page:
        """A new page of this size, before it has loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.size(width, height, phone=phone)
        page.send("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])  # fmt: skip
        page.send("Page.navigate", url=url)
        return page

    def _listen(self) -> None:
        rest = b""
        with os.fdopen(self._back, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                *whole, rest = (rest + chunk).split(b"\0")
                for part in whole:
                    self._take(json.loads(part))
        for waiting in list(self._answers.values()):
            waiting.put({"error": {"message": "the browser has ended"}})

    def _take(self, message: Fields) -> None:
        if "id" in message:
            if waiting := self._answers.get(message["id"]):
                waiting.put(message)
        elif page := self._pages.get(message.get("sessionId", "")):
            page.hear(message["method"], message["params"])


class Page:
    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        #: What the page complained about: exceptions, errors on its console, requests that failed.
        self.errors: list[str] = []
        #: Bytes as they came over the network, headers included.
        self.received_bytes = 0

    def send(self, method: str, **fields: Any) -> Fields:
        return self._browser.send(method, self._session, **fields)

    def hear(self, method: str, fields: Fields) -> None:
        if method == "Runtime.exceptionThrown":
            details = fields["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and fields["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in fields["args"]))
        elif method == "Log.entryAdded" and fields["entry"]["level"] == "error":
            self.errors.append(f"{fields['entry']['text']} {fields['entry'].get('url', '')}")
        elif method == "Network.loadingFinished":
            self.received_bytes += int(fields["encodedDataLength"])

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
                  deviceScaleFactor=2 if phone else 1)  # fmt: skip

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        said = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            details = said["exceptionDetails"]
            raise BrowserFailed(details.get("exception", {}).get("description") or details["text"])
        return said["result"].get("value")

    def wait_for(self, script: str, *, seconds: float = ANSWER_S) -> float:
        """Wait until an expression, or what it promises, is true; gives the seconds it took."""
        began_s = time.monotonic()
        while not self.evaluate(f"Promise.resolve({script}).then(Boolean)"):
            if time.monotonic() - began_s > seconds:
                raise BrowserFailed(f"not within {seconds:.0f} s: {script}; errors: {self.errors[:3]}")
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    def reload(self) -> None:
        self.send("Page.reload")

    def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def choose(self, element: str, *files: Path) -> None:
        """Choose these files in a field for files, as a person does in the browser's dialog."""
        root = self.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        field = self.send("DOM.querySelector", nodeId=root, selector=f"#{element}")["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=field, files=[str(path) for path in files])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
