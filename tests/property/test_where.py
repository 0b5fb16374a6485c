"""Expressions over labels: what they mean, and that whatever is typed is read or refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.where import FACTS, LABELS_MAX, parse_labels, parse_where

ATTIC = {"room": "3", "memory_mb": "926", "arch": "aarch64", "gpu": "no"}


@pytest.mark.parametrize(
    ("where", "is_taken"),
    [
        ("", True),
        ("room = 3", True),
        ("room == 3.0", True),
        ("room = 4", False),
        ("room != 4", True),
        ("room in (3, 4) and memory_mb > 900", True),
        ("room in (3, 4) and memory_mb > 926", False),
        ("memory_mb >= 926", True),
        ("memory_mb < 926 or arch = aarch64", True),
        ("room not in (3, 4)", False),
        ("not room in (3, 4)", False),
        ("not (room = 3 and gpu = yes)", True),
        ("not not room = 3", True),
        ("gpu = 'no'", True),
        ("room", True),
        ("floor", False),
        ("not floor", True),
        # A device without a label does not have its values.
        ("floor = 1", False),
        ("floor != 1", True),
        ("floor not in (1, 2)", True),
        ("floor > 0", False),
        ("floor <= 0", False),
        # `and` binds before `or`.
        ("floor = 1 and room = 3 or gpu = no", True),
        ("floor = 1 and (room = 3 or gpu = no)", False),
        ("arch > 3", False),
    ],
)
def test_what_an_expression_takes(where: str, is_taken: bool) -> None:
    assert parse_where(where)(ATTIC) is is_taken


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("room in", "expected `\\(` at its end"),
        ("room in (3", "expected `\\)` at its end"),
        ("room =", "expected a value at its end"),
        ("(room = 3", "expected `\\)`"),
        ("room = 3 gpu", "expected `and` or `or` at 'gpu'"),
        ("memory_mb > many", "is not a number at 'many'"),
        ("memory_mb > nan", "is not a number"),
        ("3 > memory_mb", "'3' is not the name of a label"),
        ("room ~ 3", "is not understood at '~ 3'"),
        ("room not 3", "expected `in`"),
        ("and", "is not the name"),
        ("(" * 40 + "room" + ")" * 40, "brackets within each other"),
        ("room = 3 or " * 200 + "room", "at most 1000 characters"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(where: str, reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        parse_where(where)
    with pytest.raises(Misuse, match=reason):
        Plan(where=where)


@given(st.text(alphabet="abcroom 0123.,()<>=!'\"~notandri_-", max_size=80))
def test_any_text_is_read_or_refused(where: str) -> None:
    try:
        test = parse_where(where)
    except Misuse:
        return
    assert test({}) in (True, False)
    assert parse_where(f"not ({where})" if where.strip() else "not x")({}) is (not test({}) if where.strip() else True)


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: name not in (*FACTS, "and", "or", "not", "in")
)
VALUES = st.from_regex(r"[A-Za-z0-9._/-]{1,20}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_labels_are_read_back_and_match_themselves(labels: dict[str, str]) -> None:
    assert parse_labels(f"{name}={value}" for name, value in labels.items()) == labels
    for name, value in labels.items():
        assert parse_where(f"{name} = '{value}'")(labels)
        assert parse_where(f"{name} in ('{value}', x)")(labels)


@pytest.mark.parametrize(
    "pair", ["room", "Room=3", "=3", "room=a b", "room=\n", "arch=arm", "not=1", "room=" + "x" * 61]
)
def test_what_is_not_a_label_is_refused(pair: str) -> None:
    with pytest.raises(Misuse, match="label"):
        parse_labels([pair])


def test_a_device_has_a_bounded_number_of_labels() -> None:
    with pytest.raises(Misuse, match=f"at most {LABELS_MAX}"):
        parse_labels(f"a{number}=1" for number in range(LABELS_MAX + 1))
