"""What goes with a person's rows stays deleted, though another tab of the browser has it in memory."""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import worker_package
from browser_kit import FROM_THE_PACKAGE

from testbed.browsers.chromium import Chromium

pytestmark = [pytest.mark.timeout(300), *FROM_THE_PACKAGE]

OPEN = """import("/index.js").then(({ BrowserRows }) => {
  globalThis.rows = new BrowserRows(location.origin);
  globalThis.kept = (name, text) => rows.keep(name, text).then(() => rows.recall(name), (error) => error.message);
  return true;
})"""
NOTES = ("own-jobs", "own-job-1.json", "seen", "privacy-job-1.json")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=worker_package.SOURCES, check=True, timeout=300)
    (tmp_path / "index.html").write_text("<!doctype html><title>rows</title>")
    program = (worker_package.SOURCES / "dist" / "index.js").read_bytes()
    (tmp_path / "index.js").write_bytes(program)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_no_tab_writes_back_what_another_one_deleted(origin: str) -> None:
    with Chromium.start() as browser:
        at_work, other = (browser.page(origin, width=400, height=400) for _ in range(2))
        for page in (at_work, other):
            page.wait_for("document.title === 'rows'")
            assert page.evaluate(OPEN)
        for name in NOTES:
            assert at_work.evaluate(f"rows.recall({name!r})") is None
            assert at_work.evaluate(f"kept({name!r}, 'old')") == "old"
        other.evaluate("rows.forget()")
        for name in NOTES:
            is_account = name.startswith("privacy")
            told = at_work.evaluate(f"kept({name!r}, 'older')")
            assert told == ("older" if is_account else "this browser kept nothing")
            assert other.evaluate(f"rows.recall({name!r})") == ("older" if is_account else None)
        # What is let go needs no leave, and a job that begins again has its part kept.
        assert at_work.evaluate("kept('own-job-1.json', '')") == ""
        for name in NOTES:
            at_work.evaluate(f"rows.recall({name!r})")
            assert at_work.evaluate(f"kept({name!r}, 'new')") == "new"
        at_work.evaluate("rows.forget()")
        assert at_work.evaluate("kept('seen', 'newer')") == "this browser kept nothing"
