"""Join lines: one spelling, and an error a person can act on."""

from __future__ import annotations

import hashlib

import pytest

from shoal.errors import Misuse
from shoal.identity.join_code import JoinCode, new_secret

AUTHORITY_DER = b"an authority's certificate"
CODE = JoinCode(
    host="192.168.1.10",
    port=7070,
    ca_sha256=hashlib.sha256(AUTHORITY_DER).digest(),
    secret="000102030405060708090a0b0c0d0e0f",
)
LINE = str(CODE)


def test_a_line_reads_as_promised() -> None:
    # Frozen: a line that somebody wrote down must still be read by the next release.
    assert LINE == "shoal://192.168.1.10:7070/pp5qdsgcy6ckzyalnz4vqh3ece3kzgm3aaaqeayeaudaocajbifqydiob5qtqwzu"
    assert JoinCode.parse(LINE) == CODE


def test_a_line_survives_how_people_paste_it() -> None:
    assert JoinCode.parse(f"  {LINE.upper()}\n") == CODE


def test_a_line_pins_one_authority() -> None:
    parsed = JoinCode.parse(LINE)
    assert parsed.pins(AUTHORITY_DER)
    assert not parsed.pins(AUTHORITY_DER + b".")


@pytest.mark.parametrize(
    ("host", "written"),
    [("fd00:0::1", "[fd00::1]"), ("::ffff:10.0.0.1", "10.0.0.1"), ("Hub.Local", "hub.local")],
)
def test_hosts_have_one_spelling(host: str, written: str) -> None:
    code = JoinCode(host=host, port=1, ca_sha256=bytes(32), secret=new_secret())
    assert str(code).startswith(f"shoal://{written}:1/")
    assert JoinCode.parse(str(code)) == code


def test_the_secret_is_not_printed() -> None:
    assert CODE.secret not in repr(CODE)


def test_secrets_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("", "starts with shoal://"),
        ("http://192.168.1.10:7070/", "starts with shoal://"),
        ("shoal://", "shoal://HOST:PORT/CODE"),
        ("shoal://192.168.1.10/abc", "shoal://HOST:PORT/CODE"),
        ("shoal://fd00::1:7070/abc", "shoal://HOST:PORT/CODE"),
        ("shoal://192.168.1.10:7070", "looks cut off"),
        (LINE[:-1], "looks cut off"),
        (LINE[:40], "looks cut off"),
        (LINE + "a", "1 characters too many"),
        (LINE.replace("7070/", "7070/0"), "'0' never occurs"),
        (LINE + "\nrm -rf", "never occurs|shoal://HOST:PORT/CODE"),
        (LINE.replace("192.168.1.10", "192.168.1.11"), "a character of this line is wrong"),
        (LINE.replace(":7070", ":7071"), "a character of this line is wrong"),
        (LINE.replace(":7070", ":99999"), "not a port"),
        (LINE.replace(":7070", ":0"), "not a port"),
        (LINE.replace("192.168.1.10", "ho st"), "not a host name"),
        (LINE.replace("192.168.1.10", "[fd00::1::2]"), "not an IPv6 address"),
        ("shoal://" + "a" * 100_000, "too long"),
    ],
)
def test_a_wrong_line_says_what_to_do(line: str, advice: str) -> None:
    with pytest.raises(Misuse, match=advice):
        JoinCode.parse(line)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ca_sha256": bytes(16)},
        {"secret": "short"},
        {"secret": "X" * 32},
        {"port": 0},
        {"port": 65536},
        {"host": ""},
        {"host": "a/b"},
        {"host": "fe80::1%eth0"},
        {"host": "é.example"},
    ],
)
def test_a_code_is_valid_once_built(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"host": "hub", "port": 7070, "ca_sha256": bytes(32), "secret": "0" * 32}
    with pytest.raises(Misuse):
        JoinCode(**(right | wrong))  # type: ignore[arg-type]
