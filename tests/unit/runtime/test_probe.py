"""What a device tells of its link: the interface by which it reaches its manager, and whether that is air."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from shoal.runtime import probe


@pytest.fixture
def interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system tells of them, as a folder of the test's own."""
    monkeypatch.delenv(probe.MEDIUM_VARIABLE, raising=False)
    monkeypatch.setattr(probe, "_INTERFACES", tmp_path)
    return tmp_path


def test_a_wireless_interface_towards_the_manager_is_air_that_others_share(interfaces: Path) -> None:
    assert probe.medium("127.0.0.1:7070") == ""
    (interfaces / "other0" / "wireless").mkdir(parents=True)
    assert probe.medium("127.0.0.1:7070") == "", "another interface than the one in use"
    (interfaces / "lo" / "wireless").mkdir(parents=True)
    assert probe.medium("127.0.0.1:7070") == "wifi"
    assert probe.medium("localhost:7070") == "wifi"


def test_an_address_of_the_longer_kind_is_found_too(interfaces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = interfaces / "if_inet6"
    listing.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\nfe80" + "0" * 28 + " 02 40 20 80 wlan0\n"
    )
    monkeypatch.setattr(probe, "_IPV6_ADDRESSES", listing)
    assert probe._interface_of("::1") == "lo"
    assert probe._interface_of("fe80::%wlan0") == "wlan0"
    assert probe._interface_of("2001:db8::1") == ""


def test_a_person_knows_better_than_the_system(interfaces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (interfaces / "lo" / "wireless").mkdir(parents=True)
    for told, expected in (("", ""), ("mesh-2", "mesh-2"), ("a\nline", ""), ("x" * 500, "x" * 128)):
        monkeypatch.setenv(probe.MEDIUM_VARIABLE, told)
        assert probe.medium("127.0.0.1:7070") == expected


@pytest.mark.usefixtures("interfaces")
def test_what_cannot_be_found_out_is_not_known() -> None:
    assert probe.medium("no-such-host.invalid:7070") == ""
    assert probe.medium("not an endpoint") == ""


def test_the_version_of_torch_is_the_one_that_its_metadata_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        installed = ""
    assert probe.facts().torch == installed
    (tmp_path / "torch-9.1.dist-info").mkdir()
    (tmp_path / "torch-9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.4\nName: torch\nVersion: 9.1+odd\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert probe.facts().torch == importlib.metadata.version("torch") == "9.1+odd"


def test_torch_that_another_installer_brought_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch-9.2-py3.11.egg-info").mkdir()
    (tmp_path / "torch-9.2-py3.11.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 1.1\nName: torch\nVersion: 9.2\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert probe.facts().torch == "9.2"
