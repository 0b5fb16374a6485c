"""Clusters on the local network: what is heard of them is checked, and believed of nobody."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.errors import Misuse
from shoal.identity import discovery
from shoal.identity.discovery import Announcement, Found, find, heard_of

FINGERPRINT = "ab" * 20
SAID = {b"cluster": b"pond", b"ca": FINGERPRINT.encode()}
HERE = [bytes([127, 0, 0, 1])]

needs_zeroconf = pytest.mark.skipif(
    importlib.util.find_spec("zeroconf") is None, reason="needs zeroconf: pip install zeroconf"
)


def test_what_makes_sense_is_heard() -> None:
    assert heard_of(SAID, HERE, 7071) == [Found(cluster="pond", host="127.0.0.1", port=7071, fingerprint=FINGERPRINT)]
    both = heard_of(SAID, [*HERE, bytes(15) + b"\1"], 7071)
    assert [found.endpoint for found in both] == ["127.0.0.1:7071", "[::1]:7071"]
    assert heard_of(SAID, [], 7071) == []


@pytest.mark.parametrize(
    ("said", "port"),
    [
        ({}, 7071),
        (SAID | {b"cluster": b"\x1b[2J"}, 7071),
        (SAID | {b"cluster": b"Pond"}, 7071),
        (SAID | {b"cluster": b"p" * 64}, 7071),
        (SAID | {b"cluster": None}, 7071),
        (SAID | {b"cluster": "pönd".encode()}, 7071),
        (SAID | {b"ca": b"ab"}, 7071),
        (SAID | {b"ca": b"XY" * 20}, 7071),
        (SAID, 0),
        (SAID, None),
        (SAID, 70000),
    ],
)
def test_what_could_do_harm_on_a_terminal_is_not(said: dict[bytes, bytes | None], port: int | None) -> None:
    assert heard_of(said, HERE, port) == []


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(discovery.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    for command in (["join", "--find"], ["up", "--announce"]):
        assert main.run([*command, "--home", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "pip install zeroconf" in line
    with pytest.raises(Misuse, match="pip install zeroconf"):
        Announcement(cluster="pond", host="127.0.0.1", port=1, authority_sha256=bytes(32))


@needs_zeroconf
def test_a_cluster_announces_itself_until_it_stops() -> None:
    async def story() -> None:
        announcement = Announcement(
            cluster="pond", host="127.0.0.1", port=7071, authority_sha256=bytes.fromhex(FINGERPRINT) + bytes(12)
        )
        await announcement.start()
        try:
            found = await find(seconds=1.0, interfaces=["127.0.0.1"])
        finally:
            await announcement.stop()
        assert found == [Found(cluster="pond", host="127.0.0.1", port=7071, fingerprint=FINGERPRINT)]
        assert await find(seconds=0.5, interfaces=["127.0.0.1"]) == []

    asyncio.run(story())


@needs_zeroconf
def test_two_clusters_of_one_name_are_two() -> None:
    async def story() -> None:
        twins = [
            Announcement(cluster="pond", host="127.0.0.1", port=7071 + n, authority_sha256=bytes([n]) * 32)
            for n in range(2)
        ]
        for twin in twins:
            await twin.start()
        try:
            found = await find(seconds=1.0, interfaces=["127.0.0.1"])
        finally:
            for twin in twins:
                await twin.stop()
        assert [(each.cluster, each.port) for each in found] == [("pond", 7071), ("pond", 7072)]

    asyncio.run(story())
