"""A blob from a URL: whole over broken connections, and nothing but the blob that was announced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import signature
from pathlib import Path

import pytest

from shoal.errors import PeerViolation
from shoal.runtime import direct_download
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.blob_fetcher import BlobFetcher
from shoal.runtime.direct_download import NotDownloaded, download
from shoal.store.blobs import BlobStore

pytestmark = pytest.mark.timeout(120)

DATA = bytes(range(256)) * 12_000
SHA = hashlib.sha256(DATA).hexdigest()

Answer = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A URL whose requests ``answer`` hears, each with its number from 0."""
    count = iter(range(1_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, next(count))

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/blobs/{SHA}?signature=secret"
    finally:
        running.shutdown()
        running.server_close()
        thread.join(timeout=30)


def give(request: BaseHTTPRequestHandler, *, most: int = len(DATA), ranges: bool = True, data: bytes = DATA) -> None:
    """Answer as a bucket does, with at most so many bytes; then the connection breaks."""
    asked = request.headers.get("Range")
    at = int(asked.removeprefix("bytes=").rstrip("-")) if asked and ranges else 0
    request.send_response(206 if asked and ranges else 200)
    if asked and ranges:
        request.send_header("Content-Range", f"bytes {at}-{len(data) - 1}/{len(data)}")
    request.send_header("Content-Length", str(len(data) - at))
    request.end_headers()
    request.wfile.write(data[at : at + most])
    request.close_connection = True


def fetch(url: str, folder: Path, *, stop: threading.Event | None = None, loopback_http: bool = True) -> bytes:
    store = BlobStore(folder)
    writer = store.writer(SHA, len(DATA))
    try:
        download(url, writer, size_bytes=len(DATA), stop=stop or threading.Event(), loopback_http=loopback_http)
        writer.commit()
    finally:
        writer.abort()
    return store.path(SHA).read_bytes()


def test_a_blob_comes_whole(tmp_path: Path) -> None:
    with server(lambda request, _: give(request)) as url:
        assert fetch(url, tmp_path) == DATA


def test_a_broken_connection_goes_on_where_it_broke(tmp_path: Path) -> None:
    asked: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        asked.append(request.headers.get("Range"))
        give(request, most=1_000_000 if number < 3 else len(DATA))

    with server(answer) as url:
        assert fetch(url, tmp_path) == DATA
    assert asked == [None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-"]


def test_a_server_without_ranges_is_given_up_once_a_connection_broke(tmp_path: Path) -> None:
    with (
        server(lambda request, _: give(request, most=1_000_000, ranges=False)) as url,
        pytest.raises(NotDownloaded, match="gives no part"),
    ):
        fetch(url, tmp_path)


def test_connections_that_bring_nothing_are_given_up(tmp_path: Path) -> None:
    numbers: list[int] = []

    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        numbers.append(number)
        give(request, most=0)

    with server(answer) as url, pytest.raises(NotDownloaded) as caught:
        fetch(url, tmp_path)
    assert len(numbers) == 3
    assert "secret" not in str(caught.value), "a signed URL is a key"


@pytest.mark.parametrize("code", [302, 307, 403, 404, 503])
def test_every_answer_but_the_blob_is_a_refusal(tmp_path: Path, code: int) -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler, _: int) -> None:
        asked.append(request.path)
        request.send_response(code)
        request.send_header("Location", "/elsewhere")
        request.send_header("Content-Length", "0")
        request.end_headers()

    with server(answer) as url, pytest.raises(NotDownloaded, match=str(code)):
        fetch(url, tmp_path)
    assert len(asked) == 1, "no redirect is followed"


def test_other_bytes_are_not_kept(tmp_path: Path) -> None:
    wrong = DATA[:-1] + b"?"
    with server(lambda request, _: give(request, data=wrong)) as url, pytest.raises(PeerViolation, match="hashes to"):
        fetch(url, tmp_path)
    assert not BlobStore(tmp_path).has(SHA)


def test_a_longer_object_is_not_read_beyond_what_was_announced(tmp_path: Path) -> None:
    with server(lambda request, _: give(request, data=DATA * 2, most=2 * len(DATA))) as url:
        assert fetch(url, tmp_path) == DATA


def test_silence_ends_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_download, "SILENCE_S", 0.2)
    over = threading.Event()

    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        if number:
            give(request)
        else:
            over.wait(30)

    with server(answer) as url:
        try:
            assert fetch(url, tmp_path) == DATA
        finally:
            over.set()


def test_it_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()

    def answer(request: BaseHTTPRequestHandler, _: int) -> None:
        stop.set()
        give(request)

    with server(answer) as url, pytest.raises(NotDownloaded, match="was stopped"):
        fetch(url, tmp_path, stop=stop)


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "http://10.0.0.1/x", "ftp://127.0.0.1/x", "file:///etc/passwd"]
)
def test_a_url_without_tls_is_refused(tmp_path: Path, url: str) -> None:
    for loopback_http in (False, True):
        with pytest.raises(NotDownloaded, match="is not https"):
            fetch(url, tmp_path, loopback_http=loopback_http)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_a_server_on_the_device_itself_gets_no_request(tmp_path: Path, host: str) -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler, _: int) -> None:
        asked.append(request.path)
        give(request)

    with server(answer) as url, pytest.raises(NotDownloaded, match="is not https"):
        fetch(url.replace("127.0.0.1", host), tmp_path, loopback_http=False)
    assert asked == []


def test_an_agent_takes_no_http_unless_a_test_starts_it_so() -> None:
    for callee in (download, BlobFetcher.__init__):
        assert signature(callee).parameters["loopback_http"].default is False, callee
    assert AgentOptions.parse([]).loopback_http is False
