"""Join lines: every code comes back, and no single slip of the hand goes unnoticed."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.identity.join_code import JoinCode

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?", fullmatch=True)
hosts = st.one_of(
    st.lists(labels, min_size=1, max_size=4).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).filter(lambda ip: isinstance(ip, ipaddress.IPv6Address)).map(str),
)
codes = st.builds(
    JoinCode,
    host=hosts,
    port=st.integers(1, 65535),
    ca_sha256=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=16, max_size=16).map(bytes.hex),
)


@given(codes)
def test_a_code_comes_back(code: JoinCode) -> None:
    assert JoinCode.parse(str(code)) == code


@given(codes, st.data())
def test_one_wrong_character_is_noticed(code: JoinCode, data: st.DataObject) -> None:
    line = str(code)
    place = data.draw(st.integers(0, len(line) - 1))
    wrong = data.draw(st.sampled_from(string.printable.strip()))
    assume(wrong.lower() != line[place])
    try:
        # 0:2:3:4:5:6:7:8 and ::2:3:4:5:6:7:8 are the same address: such a slip changes nothing.
        assert JoinCode.parse(line[:place] + wrong + line[place + 1 :]) == code
        assert ":" in code.host
        assert place < line.index("]")
    except Misuse:
        pass


@given(codes, st.data())
def test_two_swapped_neighbours_are_noticed(code: JoinCode, data: st.DataObject) -> None:
    line = str(code)
    place = data.draw(st.integers(0, len(line) - 2))
    assume(line[place] != line[place + 1])
    with pytest.raises(Misuse):
        JoinCode.parse(line[:place] + line[place + 1] + line[place] + line[place + 2 :])


@given(codes, st.data())
def test_a_lost_character_is_noticed(code: JoinCode, data: st.DataObject) -> None:
    line = str(code)
    place = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(Misuse):
        JoinCode.parse(line[:place] + line[place + 1 :])


@given(st.text())
def test_text_that_is_no_code_is_misuse_and_nothing_worse(text: str) -> None:
    # 64 characters with a checksum that fits are not found by chance.
    for line in (text, f"shoal://{text}", f"shoal://hub:7070/{text}"):
        with pytest.raises(Misuse):
            JoinCode.parse(line)
