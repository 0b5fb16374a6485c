"""What people read when a bucket fails: one line, whatever page the service sent along; and the failure is counted."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("obstore", reason="object storage needs obstore: pip install 'shoal[s3]'")

from shoal.store.base import Away
from shoal.store.objects import Objects
from shoal.store.usage import StoreUsage

pytestmark = pytest.mark.timeout(120)

PAGE = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><RequestId>7f3</RequestId></Error>'


class Busy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to say."""


@contextlib.contextmanager
def busy_service() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join(30)


def test_a_bucket_that_answers_with_a_page_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    usage = StoreUsage()
    with busy_service() as endpoint:
        objects = Objects("s3://bucket/cluster", endpoint=endpoint, usage=usage)
        with pytest.raises(Away) as raised:
            # As a manager does that starts.
            objects.claim("owner")
    told = str(raised.value)
    assert told.startswith("s3://bucket/cluster: ")
    assert "503 Service Unavailable" in told
    assert "<" not in told
    assert (sum(usage.now().counts), usage.now().errors) == (1, 1)
