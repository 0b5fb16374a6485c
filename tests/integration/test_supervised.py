"""A manager and an agent as services: they tell systemd's socket that they serve, and that their loops are alive."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from kit import WAIT_S, cluster_in, run

pytestmark = pytest.mark.timeout(300)

#: systemd waits this long for a word, and a service speaks four times as often.
WATCHDOG_S = 4.0
#: pid, uid, gid: who sent a datagram, by the word of the kernel.
_CREDENTIALS = struct.Struct("3i")


class Heard:
    """A socket as systemd's, and what came to it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))

    def close(self) -> None:
        self._socket.close()

    def new(self) -> list[tuple[int, str]]:
        """What came since this was last asked: the process, and its words."""
        found = []
        while True:
            try:
                text, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return found
            found.append((_CREDENTIALS.unpack(ancillary[0][2])[0], text.decode()))

    async def until(self, pid: int, beginning: str) -> str:
        give_up_s = time.monotonic() + WAIT_S
        while time.monotonic() < give_up_s:
            for sender, text in self.new():
                if sender == pid and text.startswith(beginning):
                    return text
            await asyncio.sleep(0.1)
        raise AssertionError(f"process {pid} did not say {beginning}")


@pytest.mark.parametrize("what", ["manager", "device-1"])
def test_a_service_says_that_it_serves_and_is_silent_when_it_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    # A short name: the path of a socket has 107 characters at most.
    heard = Heard(path := Path(f"/tmp/shoal-notify-{os.getpid()}-{what}"))  # noqa: S108
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))

    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            process = site.cluster.manager if what == "manager" else site.cluster.agents[what]
            assert process is not None
            pid = process.pid
            said = await heard.until(pid, "READY=1")
            assert ("serves devices at" if what == "manager" else "works for cluster") in said
            await heard.until(pid, "WATCHDOG=1")
            os.kill(pid, signal.SIGSTOP)
            try:
                # What it sent before it stopped.
                heard.new()
                await asyncio.sleep(WATCHDOG_S)
                assert [text for sender, text in heard.new() if sender == pid] == []
            finally:
                os.kill(pid, signal.SIGCONT)
            await heard.until(pid, "WATCHDOG=1")
            os.kill(pid, signal.SIGTERM)
            await heard.until(pid, "STOPPING=1")

    try:
        run(story())
    finally:
        heard.close()
        path.unlink()
