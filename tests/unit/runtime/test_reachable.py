"""Which host a join line carries, and when a person is warned that devices cannot dial it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from shoal.errors import Misuse
from shoal.runtime import probe
from shoal.runtime.reachable import parse_advertised, reachable

Interfaces = dict[str, list[str]]


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the system says of its interfaces."""

    def are(addresses: Interfaces, *, down: tuple[str, ...] = ()) -> None:
        entries = {
            name: [SimpleNamespace(family=socket.AF_INET, address=address) for address in found]
            for name, found in addresses.items()
        }
        stats = {name: SimpleNamespace(isup=name not in down) for name in addresses}
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
        monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)

    return are


def test_an_interface_that_is_up_and_not_loopback_tells_the_address(interfaces: Callable[..., None]) -> None:
    interfaces({"lo": ["127.0.0.1"], "eth0": ["10.77.0.11"], "eth1": ["10.78.0.1"]})
    assert probe.own_address() == "10.77.0.11"
    interfaces({"lo": ["127.0.0.1"], "eth0": ["10.77.0.11"], "eth1": ["10.78.0.1"]}, down=("eth0",))
    assert probe.own_address() == "10.78.0.1"
    interfaces({"lo": ["127.0.0.1"], "usb0": ["169.254.3.4"], "eth1": ["10.78.0.1"]})
    assert probe.own_address() == "10.78.0.1", "an address that a device gave itself is the last choice"
    interfaces({"lo": ["127.0.0.1"], "usb0": ["169.254.3.4"]})
    assert probe.own_address() == "169.254.3.4"
    interfaces({"lo": ["127.0.0.1"]})
    with pytest.raises(Misuse, match="no network"):
        probe.own_address()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attic.lan", ("attic.lan", 0)),
        ("Attic.LAN:9000", ("attic.lan", 9000)),
        ("192.168.1.10", ("192.168.1.10", 0)),
        ("192.168.1.10:7070", ("192.168.1.10", 7070)),
        ("fd00::1", ("fd00::1", 0)),
        ("[fd00::1]", ("fd00::1", 0)),
        ("[fd00::1]:7070", ("fd00::1", 7070)),
    ],
)
def test_what_is_advertised_is_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_advertised(text) == expected


@pytest.mark.parametrize("text", ["attic.lan:", "attic.lan:x", "attic:65535", "a b", "[fd00::1]7070", "0.0.0.0", "::"])
def test_what_no_device_could_dial_is_not_advertised(text: str) -> None:
    with pytest.raises(Misuse):
        parse_advertised(text)


@pytest.mark.parametrize(("listens_on", "advertised"), [("127.0.0.1", ""), ("0.0.0.0", "localhost"), ("::1", "")])
def test_loopback_is_never_told_without_a_warning_that_says_what_to_do(listens_on: str, advertised: str) -> None:
    assert "--advertise HOST" in reachable(listens_on, advertised).warning


def test_other_managers_follow_after_commas() -> None:
    told = reachable("0.0.0.0", "127.0.0.1,[fd00::1]:9000,127.0.0.3")
    assert (told.host, told.port) == ("127.0.0.1", 0)
    assert told.endpoints(7070) == ("127.0.0.1:7070", "[fd00::1]:9000", "127.0.0.3:7070")
    with pytest.raises(Misuse, match="at most 8"):
        reachable("0.0.0.0", ",".join(f"127.0.0.{n}" for n in range(1, 10)))


def test_a_machine_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.reachable.own_address", lambda: "127.0.0.1")
    told = reachable("0.0.0.0")
    assert told.host == "127.0.0.1"
    assert "has no network" in told.warning
    assert "--advertise" in told.warning


def test_a_name_that_this_machine_cannot_look_up_is_told_with_a_warning() -> None:
    told = reachable("0.0.0.0", "attic.invalid:9000")
    assert (told.host, told.port) == ("attic.invalid", 9000)
    assert "cannot look up attic.invalid" in told.warning


def test_an_address_that_others_can_dial_needs_no_warning() -> None:
    told = reachable("0.0.0.0", "192.168.1.10")
    assert (told.host, told.port, told.warning) == ("192.168.1.10", 0, "")


@pytest.mark.parametrize(
    ("listens_on", "advertised", "family"),
    [("198.18.0.1", "fd77::1", "IPv6"), ("fd77::1", "198.18.0.1", "IPv4")],
)
def test_an_address_of_a_family_that_nobody_listens_on_is_told_with_a_warning(
    listens_on: str, advertised: str, family: str
) -> None:
    warning = reachable(listens_on, advertised).warning
    assert f"takes no {family} connections" in warning
    assert "without --host" in warning
    assert reachable("0.0.0.0", advertised).warning == ""
    assert reachable("::", advertised).warning == ""
