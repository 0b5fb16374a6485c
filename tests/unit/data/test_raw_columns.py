"""Columns as a task declares them: what is refused, and what a file of graphs says of them."""

from __future__ import annotations

from typing import ClassVar

import pytest

import shoal
from shoal.data.raw_columns import RawColumn, checked_columns, columns_from_plain, columns_to_plain
from shoal.errors import Corrupt, Misuse

DIGITS = {"x": shoal.column("uint8", (28, 28)), "y": shoal.column("int64", classes=("odd", "even"))}


def test_a_column_says_its_type_and_shape() -> None:
    assert str(DIGITS["x"]) == "uint8 [28, 28]"
    assert (DIGITS["x"].size, DIGITS["y"].size) == (784, 1)
    assert shoal.column("float32", 9) == RawColumn(dtype="float32", shape=(9,))
    assert [shoal.column(kind).is_label for kind in ("int64", "uint8", "bool", "float32")] == [True, True, False, False]
    assert not shoal.column("int64", 2).is_label


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "float64"}, "not 'float64'"),
        ({"dtype": "uint8", "shape": (0,)}, "sizes from 1"),
        ({"dtype": "uint8", "shape": (True,)}, "sizes from 1"),
        ({"dtype": "uint8", "shape": (1,) * 9}, "at most 8 sizes"),
        ({"dtype": "float32", "classes": ("a",)}, "classes are for a column of one integer"),
        ({"dtype": "int64", "shape": (2,), "classes": ("a",)}, "classes are for a column of one integer"),
        ({"dtype": "int64", "classes": ("a", "a")}, "each with its own name"),
        ({"dtype": "int64", "classes": ("a\n",)}, "printable"),
    ],
)
def test_a_column_that_cannot_be_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        RawColumn(**given)  # type: ignore[arg-type]


def test_columns_that_cannot_be_are_refused() -> None:
    for columns, reason in (
        ({"x": (28, 28)}, "columns says what rows"),
        (["x"], "columns says what rows"),
        ({str(number): shoal.column("bool") for number in range(33)}, "the maximum is 32"),
        ({"": shoal.column("bool")}, "cannot name a column"),
        ({"n" * 65: shoal.column("bool")}, "1 to 64"),
        ({"x": shoal.column("float32", (1 << 22, 2))}, "a row of these columns has 33,554,432 bytes"),
    ):
        with pytest.raises(Misuse, match=reason):
            checked_columns(columns)


def test_a_task_with_unsound_columns_is_refused_where_it_is_written() -> None:
    with pytest.raises(Misuse, match="columns says what rows"):

        class Wrong(shoal.Task):
            columns: ClassVar = {"x": "uint8"}

    class Sized(shoal.Task):
        def __init__(self, side: int = 3) -> None:
            self._side = side

        @property
        def columns(self) -> dict[str, RawColumn]:  # type: ignore[override]
            return {"x": shoal.column("uint8", (self._side, self._side))}

    assert Sized(side=5)._declared_columns()["x"].shape == (5, 5)


def test_a_task_may_keep_something_else_by_this_name() -> None:
    class Table(shoal.Task):
        def __init__(self, columns: int = 3) -> None:
            self.columns = columns  # type: ignore[assignment, misc]

    assert Table()._declared_columns() == {}


def test_columns_are_read_as_they_were_written() -> None:
    plain = columns_to_plain(DIGITS)
    assert plain[0] == {"name": "x", "dtype": "uint8", "shape": [28, 28], "classes": []}
    assert columns_from_plain(plain) == DIGITS
    assert list(columns_from_plain(plain)) == ["x", "y"]


@pytest.mark.parametrize(
    "plain",
    [
        [{"name": "x", "dtype": "uint8", "shape": [28]}],
        [{"name": "x", "dtype": "complex64", "shape": [], "classes": []}],
        [{"name": "x", "dtype": "uint8", "shape": [-1], "classes": []}],
        [{"name": ["x"], "dtype": "uint8", "shape": [], "classes": []}],
        [{"name": "x", "dtype": "uint8", "shape": 3, "classes": []}],
        [{"name": "x", "dtype": "uint8", "shape": [], "classes": []}] * 2,
        [7],
        7,
    ],
)
def test_columns_of_a_hostile_file_are_refused(plain: object) -> None:
    with pytest.raises(Corrupt):
        columns_from_plain(plain)
