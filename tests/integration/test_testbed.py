"""Networks made of this machine: devices reach it, a cut link passes nothing, a limit holds, and nothing is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from testbed.namespaces import Network, NoNamespaces, left_of, remove_stale, why_no_namespaces

DEVICES = ["one", "two"]
LIMIT_S = 20.0

_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as peer:
    peer.sendall(bytes(int(sys.argv[3])))
    peer.shutdown(socket.SHUT_WR)
    print(peer.recv(1).decode(), peer.getsockname()[0])
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    with Network(DEVICES) as network:
        yield network


class _Sink:
    """Takes in all that a connection brings, then says one letter."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT_S)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                while peer.recv(1 << 16):
                    pass
                peer.sendall(b"k")


def _send(network: Network, device: str, port: int, *, size: int = 1, timeout_s: float = LIMIT_S) -> str:
    words = (*network.enter(device), sys.executable, "-c", _SEND, network.address, str(port), str(size), str(timeout_s))
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_device_reaches_this_machine_under_its_own_address_until_it_is_cut_off(network: Network) -> None:
    with _Sink(network.address) as port:
        for device in DEVICES:
            assert _send(network, device, port) == f"k {network.address_of(device)}"
        network.cut("one")
        assert "Error" in _send(network, "one", port, timeout_s=1.0)
        assert _send(network, "two", port) == f"k {network.address_of('two')}"
        network.mend("one")
        assert _send(network, "one", port) == f"k {network.address_of('one')}"


def test_a_limit_holds_for_one_device_and_can_be_taken_away(network: Network) -> None:
    size = 1_000_000

    def took_s(device: str) -> float:
        began_s = time.monotonic()
        assert _send(network, device, port, size=size).startswith("k")
        return time.monotonic() - began_s

    with _Sink(network.address) as port:
        network.limit("one", down_mbps=4.0, up_mbps=4.0)
        # 8 Mbit at 4 Mbit/s, less what may pass at once.
        assert took_s("one") > 1.7
        assert took_s("two") < 1.7
        network.unlimit("one")
        assert took_s("one") < 1.7


def test_nothing_is_left_and_a_process_on_a_device_is_ended(network: Network) -> None:
    words = (*network.enter("one"), sys.executable, "-c", "import time; time.sleep(60)")
    with subprocess.Popen(words) as process:
        while "python" not in os.readlink(f"/proc/{process.pid}/exe"):
            time.sleep(0.01)
        assert left_of(os.getpid())
        network.close()
        assert process.wait(LIMIT_S) < 0
    assert left_of(os.getpid()) == []


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    made = (
        "import os, signal; from testbed.namespaces import Network; Network(['a']).__enter__(); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", made], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as maker:
        maker.wait(LIMIT_S)
    assert left_of(maker.pid)
    remove_stale()
    assert left_of(maker.pid) == []


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(NoNamespaces, match="different names"):
        Network(["a", "a"])
