"""A device's rows from a folder: every kind of file, files that grow and come, and errors that name file and column."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.data import own_rows
from shoal.data.own_rows import OwnRows
from shoal.errors import Misuse

COLUMNS = {"x": shoal.column("float32", 2), "y": shoal.column("int64", classes=("no", "yes"))}


def write_npz(file: Path, *values: float, **other: Any) -> None:
    x = np.array([[value, -value] for value in values])
    np.savez(file, **{"x": x, "y": np.arange(len(values)) % 2, "name": np.array(["Ann"] * len(values))} | other)


def at(file: Path, second: int) -> None:
    os.utime(file, (second, second))


def firsts(rows: OwnRows, count: int) -> list[float]:
    return [float(value) for value in rows.take(np.arange(count))["x"][:, 0]]


def test_rows_of_all_files_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", 3, 4)
    (tmp_path / "b.csv").write_text("y,x.1,x.0,note\nyes,-1,1,hello\n0,-2.0,2.0,\n")
    (tmp_path / "readme.txt").write_text("not rows")
    (tmp_path / ".hidden.npz").write_text("not rows")
    at(tmp_path / "a.npz", 2000)
    at(tmp_path / "b.csv", 1000)
    rows = OwnRows(tmp_path, COLUMNS)
    assert rows.look() == 4
    assert firsts(rows, 4) == [1, 2, 3, 4]
    taken = rows.take(np.array([3, 0, 3]))
    assert taken["x"].tolist() == [[4, -4], [1, -1], [4, -4]]
    assert taken["y"].tolist() == [1, 1, 1]
    assert (taken["x"].dtype, taken["y"].dtype) == (np.float32, np.int64)
    with pytest.raises(Misuse, match="rows 0 to 3"):
        rows.take(np.array([4]))


def test_what_appears_later_comes_last_whatever_file_it_is_in(tmp_path: Path) -> None:
    write_npz(tmp_path / "b.npz", 1, 2)
    (tmp_path / "c.csv").write_text("x.0,x.1,y\n3,0,1\n")
    at(tmp_path / "b.npz", 1000)
    at(tmp_path / "c.csv", 2000)
    rows = OwnRows(tmp_path, COLUMNS)
    assert rows.look() == 3
    # Two files grow and one is new; its name is the first.
    write_npz(tmp_path / "b.npz", 1, 2, 5)
    with (tmp_path / "c.csv").open("a") as more:
        more.write("4,0,1\n")
    write_npz(tmp_path / "a.npz", 6)
    for number, name in enumerate(("c.csv", "b.npz", "a.npz")):
        at(tmp_path / name, 3000 + number)
    assert rows.look() == 6
    assert firsts(rows, 6) == [1, 2, 3, 4, 5, 6]
    (tmp_path / "b.npz").unlink()
    assert rows.look() == 3
    assert firsts(rows, 3) == [3, 4, 6]


def test_a_file_that_lost_rows_is_read_again(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", 1, 2, 3)
    rows = OwnRows(tmp_path, COLUMNS)
    assert rows.look() == 3
    write_npz(tmp_path / "a.npz", 7, 8)
    assert rows.look() == 2
    assert firsts(rows, 2) == [7, 8]


def test_an_empty_folder_has_no_rows_and_a_missing_one_is_named(tmp_path: Path) -> None:
    assert OwnRows(tmp_path, COLUMNS).look() == 0
    (tmp_path / "empty.csv").write_text("x.0,x.1,y\n")
    assert OwnRows(tmp_path, COLUMNS).look() == 0
    with pytest.raises(Misuse, match="the folder of this device's rows cannot be read"):
        OwnRows(tmp_path / "absent", COLUMNS).look()


def test_memory_of_archives_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_npz(tmp_path / f"{name}.npz", *range(8))
    rows = OwnRows(tmp_path, COLUMNS)
    rows.look()
    kept = lambda: [file.kept_bytes for _, file in rows._files.values()]  # noqa: E731
    rows.take(np.arange(24))
    assert all(kept())
    monkeypatch.setattr(own_rows, "KEPT_BYTES", 300)
    rows.take(np.arange(8))
    assert sorted(map(bool, kept())) == [False, False, True], "the last one stays"
    assert firsts(rows, 24)[8:16] == list(range(8))


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("a.npz", lambda file: write_npz(file, 1, x=np.zeros((1, 3))), r"column x is float64 \[3\]; .* float32 \[2\]"),
        (
            "a.npz",
            lambda file: write_npz(file, 1, y=np.array([5])),
            "column y has a value outside its 2 classes",
        ),
        ("a.npz", lambda file: write_npz(file, 1, y=np.arange(3)), "its columns have 1 and 3 rows"),
        ("a.npz", lambda file: np.savez(file, x=np.zeros((1, 2))), "column y is missing"),
        ("a.npz", lambda file: write_npz(file, 1, y=np.array([{}])), "column y is not an array with a value per row"),
        ("a.npz", lambda file: file.write_bytes(b"PK\x03\x04 and no more"), "not a complete archive"),
        ("a.csv", lambda file: file.write_text("x.0,y\n1,1\n"), "its first line does not name x.1"),
        ("a.csv", lambda file: file.write_text("x.0,x.1,y\n1,4711m,1\n"), "row 1: column x is not float32"),
        ("a.csv", lambda file: file.write_text("x.0,x.1,y\n1,inf,1\n"), "column x has a value that is not a finite"),
        ("a.csv", lambda file: file.write_text("x.0,x.1,y\n1,2,4711\n"), "column y has a value outside its 2"),
        (
            "a.csv",
            lambda file: file.write_text("x.0,x.1,y\n1,2,maybe4711\n"),
            "a text that is not one of its 2 classes",
        ),
        ("a.csv", lambda file: file.write_text("x.0,x.1,y\n1,2\n"), "row 1 is not a line"),
        ("a.parquet", lambda file: file.write_bytes(b"PAR1"), "not a complete Parquet file"),
        ("a.png", lambda file: file.write_bytes(b""), "a folder of pictures is for a task with one column of uint8"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_column_and_no_value(
    tmp_path: Path, name: str, write: Any, reason: str
) -> None:
    write(tmp_path / name)
    rows = OwnRows(tmp_path, COLUMNS)
    with pytest.raises(Misuse, match=f"^{name}: .*{reason}") as refused:
        rows.take(np.arange(rows.look()))
    assert "4711" not in str(refused.value), "the device reports this text"


def test_archives_hold_no_python_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 2)), y=np.array([print], dtype=object))
    with pytest.raises(Misuse, match="column y is not an array"):
        OwnRows(tmp_path, COLUMNS).look()


def test_truths_in_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("b,n\ntrue,300\n0,-2\nFALSE,3\n")
    rows = OwnRows(tmp_path, {"b": shoal.column("bool"), "n": shoal.column("int16")})
    assert rows.take(np.arange(rows.look()))["b"].tolist() == [True, False, False]
    assert rows.take(np.arange(3))["n"].tolist() == [300, -2, 3]
    small = OwnRows(tmp_path, {"n": shoal.column("uint8")})
    small.look()
    with pytest.raises(Misuse, match="column n has values of int64 that uint8 cannot hold"):
        small.take(np.arange(1))


# Parquet ------------------------------------------------------------------------------------------------


@pytest.fixture
def parquet() -> Any:
    return pytest.importorskip("pyarrow.parquet")


def test_parquet_has_numbers_texts_and_lists(tmp_path: Path, parquet: Any) -> None:
    import pyarrow

    table = pyarrow.table(
        {
            "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "y": ["yes", "no", "yes"],
            "z": [[[1, 2], [3, 4]]] * 3,
            "other": [0] * 3,
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    rows = OwnRows(tmp_path, COLUMNS | {"z": shoal.column("uint8", (2, 2))})
    taken = rows.take(np.arange(rows.look())[::-1])
    assert taken["x"].tolist() == [[5, 6], [3, 4], [1, 2]]
    assert taken["y"].tolist() == [1, 0, 1]
    assert taken["z"].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([[1.0], [1.0, 2.0, 3.0]], "column x has lists of unequal lengths"),
        ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "column x has 3 values per row"),
        ([[1.0, None], [1.0, 2.0]], "column x has rows without a value"),
        ([None, [1.0, 2.0]], "column x has"),
    ],
)
def test_parquet_that_does_not_fit(tmp_path: Path, parquet: Any, x: Any, reason: str) -> None:
    import pyarrow

    parquet.write_table(pyarrow.table({"x": x, "y": [0, 1]}), tmp_path / "a.parquet")
    rows = OwnRows(tmp_path, COLUMNS)
    rows.look()
    with pytest.raises(Misuse, match=f"^a.parquet: {reason}"):
        rows.take(np.arange(2))


# Pictures -----------------------------------------------------------------------------------------------


def draw(file: Path, values: np.ndarray, **options: Any) -> None:
    from PIL import Image

    file.parent.mkdir(exist_ok=True)
    Image.fromarray(values).save(file, **options)


ANIMALS = shoal.column("int64", classes=("cat", "dog"))
GREY = np.arange(30, dtype=np.uint8).reshape(5, 6)
COLOURS = np.arange(90, dtype=np.uint8).reshape(5, 6, 3)


@pytest.fixture
def pillow() -> None:
    pytest.importorskip("PIL.Image")


@pytest.mark.usefixtures("pillow")
def test_pictures_are_rows_and_their_folder_is_their_class(tmp_path: Path) -> None:
    draw(tmp_path / "dog" / "rex.png", GREY)
    draw(tmp_path / "cat" / "tom.png", 20 + GREY)
    draw(tmp_path / "cat" / "Tim.JPG", np.full((5, 6), 77, np.uint8), quality=95)
    for number, name in enumerate(("dog/rex.png", "cat/tom.png", "cat/Tim.JPG")):
        at(tmp_path / name, 1000 + number)
    rows = OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6)), "y": ANIMALS})
    taken = rows.take(np.arange(rows.look()))
    assert taken["y"].tolist() == [1, 0, 0]
    assert taken["x"][0].tolist() == GREY.tolist()
    assert abs(taken["x"][2].astype(int) - 77).max() <= 2


@pytest.mark.usefixtures("pillow")
def test_channels_come_last_or_first(tmp_path: Path) -> None:
    draw(tmp_path / "1" / "a.png", COLOURS)
    label = {"y": shoal.column("uint8")}
    last = OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6, 3))} | label)
    first = OwnRows(tmp_path, {"x": shoal.column("uint8", (3, 5, 6))} | label)
    assert last.look() == first.look() == 1
    assert last.take(np.arange(1))["x"][0].tolist() == COLOURS.tolist()
    assert first.take(np.arange(1))["x"][0].tolist() == COLOURS.transpose(2, 0, 1).tolist()
    assert first.take(np.arange(1))["y"].tolist() == [1]


@pytest.mark.usefixtures("pillow")
def test_pictures_without_a_class_lie_in_the_folder_itself(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", GREY)
    rows = OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6))})
    assert rows.look() == 1
    with pytest.raises(Misuse, match=r"^a.png: a picture is in a folder with the name of its class"):
        OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6)), "y": ANIMALS}).look()


@pytest.mark.usefixtures("pillow")
def test_a_picture_that_a_telephone_turned_is_upright(tmp_path: Path) -> None:
    from PIL import Image

    turned = Image.Exif()
    turned[0x0112] = 6
    draw(tmp_path / "a.jpg", np.full((6, 5), 9, np.uint8), exif=turned)
    rows = OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6))})
    rows.look()
    assert rows.take(np.arange(1))["x"].shape == (1, 5, 6)


@pytest.mark.usefixtures("pillow")
@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("cat/a.png", shoal.column("uint8", (5, 7)), "has 6 x 5 pixels, and column x 7 x 5: scale it"),
        ("horse/a.png", shoal.column("uint8", (5, 6)), "column y has a text that is not one of its 2 classes"),
        ("cat/a.png", shoal.column("uint8", (5, 6, 2)), "a picture has 1, 3 or 4 channels"),
        ("cat/a.png", shoal.column("float32", (5, 6)), "one column of uint8"),
    ],
)
def test_a_picture_that_does_not_fit(tmp_path: Path, name: str, column: Any, reason: str) -> None:
    draw(tmp_path / name, GREY)
    rows = OwnRows(tmp_path, {"x": column, "y": ANIMALS})
    with pytest.raises(Misuse, match=f"^{name}: .*{reason}"):
        rows.take(np.arange(rows.look()))


@pytest.mark.usefixtures("pillow")
def test_half_a_picture_is_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", GREY)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    rows = OwnRows(tmp_path, {"x": shoal.column("uint8", (5, 6))})
    rows.look()
    with pytest.raises(Misuse, match=r"^a.png: this is not a complete picture"):
        rows.take(np.arange(1))


def crafted_npz(file: Path, header: str) -> None:
    """Write an archive whose column x has this header and few values."""
    y = io.BytesIO()
    np.save(y, np.array([0, 1]))
    text = header.encode() + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        archive.writestr("y.npy", y.getvalue())


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, -2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 4611686018427387904, 4)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2)}",
        "{'descr': [('SECRET', '<f4')], 'fortran_order': False, 'shape': (2, 2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (((((",
        "-" * 9000 + "1",
    ],
    ids=["negative", "beyond-memory", "no-values", "structure", "open", "deep"],
)
def test_a_crafted_archive_is_refused_with_its_name(tmp_path: Path, header: str) -> None:
    crafted_npz(tmp_path / "a.npz", header)
    rows = OwnRows(tmp_path, COLUMNS)
    with pytest.raises(Misuse, match=r"^a\.npz") as error:
        rows.take(np.arange(rows.look()))
    assert "SECRET" not in str(error.value)


def test_rows_that_an_archive_only_claims_are_refused_before_any_memory_is_taken(tmp_path: Path) -> None:
    crafted_npz(tmp_path / "a.npz", "{'descr': '<f8', 'fortran_order': False, 'shape': (500000000, 2)}")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", members["x.npy"])
        archive.writestr("y.npy", members["x.npy"].replace(b"(500000000, 2)", b"(500000000,)").replace(b"f8", b"i8"))
    with pytest.raises(Misuse, match=r"^a\.npz: this is not a complete archive"):
        OwnRows(tmp_path, COLUMNS).look()


@pytest.mark.parametrize(
    "line", [b"3,4,Zo\xe9", b"3,4", b'"3,4,yes', b"3,4,yes," + b"9" * 200_000], ids=["byte", "short", "quote", "long"]
)
def test_a_bad_line_is_told_without_its_bytes_and_without_the_folder(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(b"x.0,x.1,y\n1,2,no\n" + line + b"\n")
    rows = OwnRows(tmp_path, COLUMNS)
    with pytest.raises(Misuse, match=r"^a\.csv: row 2 is not a line") as error:
        rows.take(np.arange(rows.look()))
    assert "0xe9" not in str(error.value)
    assert str(tmp_path) not in str(error.value)


def test_a_first_line_that_is_no_text_is_told_without_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x.0,\xff,y\n1,2,no\n")
    with pytest.raises(Misuse, match=r"^a\.csv: its first line") as error:
        OwnRows(tmp_path, COLUMNS).look()
    assert str(tmp_path) not in str(error.value)


def test_a_link_that_leads_to_itself_is_no_file_of_rows(tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    write_npz(tmp_path / "a.npz", 1, 2)
    assert OwnRows(tmp_path, COLUMNS).look() == 2


def test_a_file_that_shrinks_between_the_look_and_the_lease_is_told_by_name(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", 1, 2, 3)
    rows = OwnRows(tmp_path, COLUMNS)
    assert rows.look() == 3
    write_npz(tmp_path / "a.npz", 1)
    with pytest.raises(Misuse, match=r"^a\.npz cannot be read: IndexError$"):
        rows.take(np.array([2]))


def test_a_label_too_long_for_a_number_is_told_without_it(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for text in ("9" * 5000, str(2**70)):
        parquet.write_table(pa.table({"x": [[1.0, 2.0]], "y": [text]}), tmp_path / "a.parquet")
        rows = OwnRows(tmp_path, COLUMNS)
        with pytest.raises(Misuse, match=r"^a\.parquet") as error:
            rows.take(np.arange(rows.look()))
        assert text[:20] not in str(error.value)


def test_a_picture_of_sixteen_bits_is_refused_and_not_cut(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((4, 4), 1000, np.uint16)).save(tmp_path / "a.png")
    rows = OwnRows(tmp_path, {"x": shoal.column("uint8", (4, 4))})
    rows.look()
    with pytest.raises(Misuse, match=r"^a\.png: the picture has more than 8 bits"):
        rows.take(np.array([0]))
