"""Which addresses a server of Shoal takes connections on."""

from __future__ import annotations

import errno
import socket

import pytest

from shoal.identity.listening import families, listen, plain_address

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_everywhere_is_both_families(everywhere: str) -> None:
    with listen(everywhere, 0) as door:
        port = door.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port), timeout=10):
                caller, peer = door.accept()
                caller.close()
                assert plain_address(peer[0]) == address
    assert families(everywhere) == {socket.AF_INET, socket.AF_INET6}


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_one_address_is_one_family(host: str, family: int) -> None:
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    with listen(host, 0) as door:
        assert door.family == family
    assert families(host) == {family}


def test_a_system_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.create_server

    def without_ipv6(address: tuple[str, int], **options: object) -> socket.socket:
        if ":" in address[0]:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, family=socket.AF_INET)

    monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr("socket.create_server", without_ipv6)
    with listen("0.0.0.0", 0) as door:
        assert door.family == socket.AF_INET
    with pytest.raises(OSError, match="Cannot assign"):
        listen("::", 0)


def test_a_port_that_one_family_holds_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        listen("0.0.0.0", other.getsockname()[1])


def test_addresses_that_are_not_mapped_stay_as_they_are() -> None:
    for address in ("10.0.0.5", "fd77::1", "fe80::1%eth0", "not an address"):
        assert plain_address(address) == address
