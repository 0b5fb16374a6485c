"""What a check of health is answered, over HTTP where devices join, and by the standard service of gRPC."""

from __future__ import annotations

import pytest

from shoal.identity import health as http
from shoal.net import health


@pytest.mark.parametrize(
    ("asked", "trouble", "status", "text"),
    [
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n", "", b"200 OK", b"ready\n"),
        (b"GET /readyz?x=1 HTTP/1.0\r\n\r\n", "its database fails", b"503 ", b"not ready: its database fails\n"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", "its database fails", b"200 OK", b"ok\n"),
        (b"HEAD /readyz HTTP/1.1\r\n\r\n", "its database fails", b"503 ", b""),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "", b"404 ", b"ask for /healthz or /readyz\n"),
        (b"POST /readyz HTTP/1.1\r\n\r\n", "", b"405 ", b"ask with GET\n"),
        (b"\xff\xfe\r\n\r\n", "", b"405 ", b"ask with GET\n"),
    ],
)
def test_over_http(asked: bytes, trouble: str, status: bytes, text: bytes) -> None:
    head, _, body = http.answer(asked, trouble).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == text


def test_a_request_names_a_service_or_the_whole_server() -> None:
    assert health.asked_service(b"") == ""
    # Field 1 of the wire type 2, and its length: what protobuf writes for HealthCheckRequest(service="shoal.v1.Shoal").
    assert health.asked_service(b"\x0a\x0eshoal.v1.Shoal") == "shoal.v1.Shoal"
    for odd in (b"\x0a", b"\x0a\x05abc", b"\x12\x01a", b"\x0a\xff" + b"a" * 255):
        with pytest.raises(ValueError, match="HealthCheckRequest"):
            health.asked_service(odd)
