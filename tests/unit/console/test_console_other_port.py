"""The console in a real browser, beside another local server that the same browser opens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the console's packages are not installed: pip install '.[console]'")
pytest.importorskip("uvicorn", reason="the console's packages are not installed: pip install '.[console]'")

from browser import Browser
from console_kit import console_server
from statuses import node, status

from testbed.browsers.chromium import Chromium, program

pytestmark = [
    pytest.mark.skipif(program() is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(300),
]


@contextmanager
def other_server() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """A server of another user on this machine: its port, and the headers of every request that it got."""
    heard: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title><h1>other</h1>")

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running.server_port, heard
    finally:
        running.shutdown()
        running.server_close()
        thread.join(timeout=30)


def test_what_another_port_gets_from_the_browser_opens_nothing(tmp_path: Path) -> None:
    with (
        console_server(tmp_path, allow=("models",)) as server,
        other_server() as (port, heard),
        Chromium.start() as chromium,
    ):
        server.take(status(nodes=(node("one"), node("two"))))
        secret = server.do(server.console.access.new_link)
        page = chromium.page(f"http://127.0.0.1:{server.port}/open?k={secret}")
        page.wait_for("document.querySelectorAll('[data-device]').length === 2")
        key = str(page.evaluate("localStorage.getItem('shoal-key')"))
        assert len(key) == 32
        assert "key=" not in str(page.evaluate("location.href"))

        other = chromium.page(f"http://127.0.0.1:{port}/")
        other.wait_for("document.querySelector('h1')")
        cookies = {each["cookie"] for each in heard if "cookie" in each}
        assert len(cookies) == 1, "the cookie goes to every port: that is why it is not enough"
        assert not [each for each in heard if key in str(each)]
        assert other.evaluate("localStorage.getItem('shoal-key')") is None
        ask = f"fetch('http://127.0.0.1:{server.port}/api/session', {{credentials: 'include'}})"
        assert other.evaluate(f"{ask}.then((answer) => answer.text(), () => 'refused')") == "refused"

        thief = Browser(server.port)
        thief.cookie = cookies.pop()
        assert thief.get("/").status == 200, "it is the cookie of this session"
        for path in ("/api/session", "/api/state", "/api/stream"):
            assert thief.get(path).status == 401, path

        # A second tab of the operator needs no second link.
        again = chromium.page(f"http://127.0.0.1:{server.port}/")
        again.wait_for("document.querySelectorAll('[data-device]').length === 2")
        assert again.errors == []
