"""The suite's own fence: no test reaches another machine."""

from __future__ import annotations

import socket

import pytest


def test_another_machine_cannot_be_reached() -> None:
    with socket.socket() as outside, pytest.raises(AssertionError, match="only loopback is allowed"):
        outside.connect(("192.0.2.1", 9))


def test_loopback_can() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
