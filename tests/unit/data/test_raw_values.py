"""Values of own rows: what is converted, what is refused, and that an error never has a value in it."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.data.raw_values import class_of, fitted, fitted_rows, made_up_rows
from shoal.errors import Misuse


def test_values_are_converted_if_that_loses_nothing() -> None:
    found = fitted(np.array([0, 255], np.int64), "x", shoal.column("uint8"))
    assert found.dtype == np.uint8
    assert found.tolist() == [0, 255]
    assert fitted(np.array([1.0, 3.0]), "x", shoal.column("int64")).tolist() == [1, 3]
    assert fitted(np.array([0.1]), "x", shoal.column("float32")).dtype == np.float32
    assert fitted(np.array([0, 1]), "x", shoal.column("bool")).tolist() == [False, True]


@pytest.mark.parametrize(
    ("values", "column", "reason"),
    [
        (np.array([7, 4711]), shoal.column("uint8"), "values of int64 that uint8 cannot hold"),
        (np.array([0.25]), shoal.column("int64"), "values of float64 that int64 cannot hold"),
        (np.array([np.nan, 47.11]), shoal.column("float32"), "not a finite number"),
        (np.array([1e300]), shoal.column("float32"), "not a finite number"),
        (np.array([3, 4711]), shoal.column("int64", classes=("a", "b")), "outside its 2 classes"),
        (np.array([-1]), shoal.column("int64", classes=("a", "b")), "outside its 2 classes"),
        (np.zeros((2, 4711)), shoal.column("float32", 3), r"float64 \[4711\]; the task declares float32 \[3\]"),
        (np.array(["4711"]), shoal.column("float32"), "the task declares float32"),
        (np.array([2**53 + 1]), shoal.column("float32"), "float32 cannot hold"),
    ],
)
def test_values_that_do_not_fit_are_refused_without_being_shown(
    values: np.ndarray, column: shoal.data.raw_columns.RawColumn, reason: str
) -> None:
    with pytest.raises(Misuse, match=f"column place .*{reason}") as refused:
        fitted(values, "place", column)
    assert values.ndim > 1 or "4711" not in str(refused.value), "the device reports this text"


def test_rows_have_every_declared_column_and_no_other() -> None:
    columns = {"x": shoal.column("float32", 2), "y": shoal.column("int64")}
    rows = {"y": np.array([1]), "name": np.array(["Ann"]), "x": np.ones((1, 2))}
    assert list(fitted_rows(rows, columns)) == ["x", "y"]
    with pytest.raises(Misuse, match="column y is missing"):
        fitted_rows({"x": np.ones((1, 2))}, columns)
    with pytest.raises(Misuse, match="column x has rows of unequal shapes"):
        fitted_rows({"x": [np.ones(2), np.ones(3)], "y": np.array([1, 2])}, columns)


def test_a_class_goes_by_its_name_or_number() -> None:
    animals = shoal.column("int64", classes=("cat", "dog", "0"))
    assert [class_of(text, "y", animals) for text in ("dog", "1", "0")] == [1, 1, 2]
    with pytest.raises(Misuse, match="column y has a text that is not one of its 3 classes") as refused:
        class_of("horse", "y", animals)
    assert "horse" not in str(refused.value)


def test_made_up_rows_are_what_the_columns_say_and_the_same_each_time() -> None:
    columns = {
        "x": shoal.column("uint8", (2, 3)),
        "y": shoal.column("int64", classes=("a", "b", "c")),
        "word": shoal.column("int32", 4),
        "w": shoal.column("float32"),
        "b": shoal.column("bool"),
    }
    rows, again = made_up_rows(columns), made_up_rows(columns)
    assert fitted_rows(rows, columns).keys() == columns.keys()
    assert all(rows[name].tobytes() == again[name].tobytes() for name in columns)
    assert set(rows["y"].tolist()) == {0, 1, 2}
    assert set(rows["word"].reshape(-1).tolist()) == {0, 1}, "a larger one may be no word of the task"
    assert rows["x"].max() > 200
    large = made_up_rows({"x": shoal.column("uint8", (1 << 20,))})
    assert len(large["x"]) == 64
