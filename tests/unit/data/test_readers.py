"""Readers of files: rows by number, lengths that are cheap, errors that name the file and the line."""

import json
import os

import numpy as np
import pytest

from shoal import data
from shoal.errors import Corrupt, Misuse


def rows(dataset):
    return [dataset[index] for index in range(len(dataset))]


# Lines of JSON ----------------------------------------------------------------------------------------


def test_json_lines_are_read_by_number(tmp_path):
    file = tmp_path / "notes.jsonl"
    file.write_bytes(b'{"text": "\xc3\xa9", "n": 1}\r\n\n  \n{"text": "b", "n": 2}\n')
    found = data.jsonl(file)
    assert len(found) == 2
    assert rows(found) == [{"text": "é", "n": 1}, {"text": "b", "n": 2}]
    with pytest.raises(IndexError, match="0 to 1, not 2"):
        found[2]


@pytest.mark.parametrize(("line", "reason"), [("{", "this is no JSON"), ("[1]", "a line is an object")])
def test_a_line_that_is_none_is_named(tmp_path, line, reason):
    file = tmp_path / "notes.jsonl"
    file.write_text('{"a": 1}\n\n' + line + "\n")
    found = data.jsonl(file)
    assert found[0] == {"a": 1}
    with pytest.raises(Corrupt, match=f"notes.jsonl, line 3: {reason}"):
        found[1]


def test_a_file_that_grows_is_read_from_where_it_ended(tmp_path, monkeypatch):
    file = tmp_path / "notes.jsonl"
    file.write_text('{"a": 0}\n{"a": 1}')
    assert rows(data.jsonl(file)) == [{"a": 0}, {"a": 1}], "a last line without a line break counts"
    with file.open("a") as out:
        out.write('\n{"a": 2')
    assert len(data.jsonl(file)) == 2, "half a line does not"
    with file.open("a") as out:
        out.write("2}\n")
    assert rows(data.jsonl(file))[2] == {"a": 22}
    whole = file.stat().st_size
    with file.open("a") as out:
        out.write('{"a": 3}\n')
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: read.append(given[2]) or pread(*given))
    assert len(data.jsonl(file)) == 4
    assert min(read) == whole, "what was known is not read again"


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    file = tmp_path / "notes.jsonl"
    file.write_text('{"a": 0}\n{"a": 1}\n')
    assert len(data.jsonl(file)) == 2
    (tmp_path / "new").write_text('{"a": 7}\n{"a": 8}\n{"a": 9}\n')
    (tmp_path / "new").replace(file)
    assert rows(data.jsonl(file)) == [{"a": 7}, {"a": 8}, {"a": 9}]
    file.write_text('{"a": 5}\n')
    assert rows(data.jsonl(file)) == [{"a": 5}]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(Misuse, match=r"gone\.jsonl cannot be read"):
        data.jsonl(tmp_path / "gone.jsonl")


def test_a_long_file_is_indexed_across_reads(tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps({"n": number, "pad": "x" * (number % 700)}) + "\n" for number in range(9000)))
    found = data.jsonl(file)
    assert file.stat().st_size > 3 << 20
    assert len(found) == 9000
    assert all(found[number]["n"] == number for number in range(0, 9000, 97))


# Comma-separated values -----------------------------------------------------------------------------------

CSV = 'age,name,label\n3,"Ada, ""the first""",1\n4.5,Bob,0\n'


def test_csv_columns_are_named_and_typed(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("\ufeff" + CSV)
    assert rows(data.csv(file)) == [
        {"age": 3.0, "name": 'Ada, "the first"', "label": 1.0},
        {"age": 4.5, "name": "Bob", "label": 0.0},
    ]
    assert rows(data.csv(file, columns=["name"])) == [{"name": 'Ada, "the first"'}, {"name": "Bob"}]
    typed = data.csv(file, columns={"label": int, "age": str})
    assert rows(typed) == [{"label": 1, "age": "3"}, {"label": 0, "age": "4.5"}]
    assert type(typed[0]["label"]) is int


def test_a_last_line_counts_once_it_is_whole(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text(CSV + "5,Cid")
    assert len(data.csv(file)) == 2
    file.write_text(CSV + "5,Cid,1")
    assert data.csv(file)[2] == {"age": 5.0, "name": "Cid", "label": 1.0}
    file.write_text("age,name\n")
    assert len(data.csv(file)) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CSV + "5\n", "people.csv, line 4: 1 values for 3 columns"),
        (CSV + "old,Cid,1\n", "people.csv, line 4: age is 'old', not float"),
        (CSV + '5,"Cid\n,1"\n', "people.csv, line 4: .*a quoted value ends on its own line"),
        ("", "line 1: the names of the columns are missing"),
        ("a,a\n1,2\n", "line 1: two columns have the same name"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path, text, reason):
    file = tmp_path / "people.csv"
    file.write_text(text)
    with pytest.raises(Corrupt, match=reason):
        rows(data.csv(file))


def test_columns_that_are_not_there_and_types_that_are_none(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text(CSV)
    with pytest.raises(Misuse, match="has no column height; it has age, name, label"):
        data.csv(file, columns=["height"])
    with pytest.raises(Misuse, match="int, float or str"):
        data.csv(file, columns={"age": list})


# Arrays -----------------------------------------------------------------------------------------------------


def test_an_archive_of_arrays(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "set.npz", x=np.arange(6).reshape(3, 2), fault=np.array([0, 1, 0]))
    load = np.load
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("a length is told by headers"))
    found = data.npz(tmp_path / "set.npz")
    assert len(found) == 3
    monkeypatch.setattr(np, "load", load)
    assert {name: value.tolist() for name, value in found[1].items()} == {"x": [2, 3], "fault": 1}


def test_archives_that_are_none(tmp_path):
    np.savez(tmp_path / "uneven.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(Corrupt, match=r"uneven\.npz holds x \(3,\), y \(2,\)"):
        data.npz(tmp_path / "uneven.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([None, {}]))
    with pytest.raises(Corrupt, match="Python objects"):
        data.npz(tmp_path / "objects.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(Corrupt, match=r"text\.npz is not an archive"):
        data.npz(tmp_path / "text.npz")
    with pytest.raises(Misuse, match=r"gone\.npz cannot be read"):
        data.npz(tmp_path / "gone.npz")


# Windows ------------------------------------------------------------------------------------------------------


def test_windows_run_over_every_file_and_across_none(tmp_path):
    np.save(tmp_path / "b.npy", np.arange(100, 105, dtype=np.float32))
    np.save(tmp_path / "a.npy", np.arange(7, dtype=np.float32))
    np.save(tmp_path / "c.npy", np.arange(2, dtype=np.float32))
    found = data.windows(tmp_path / "*.npy", length=3, hop=2)
    assert [window.tolist() for window in rows(found)] == [
        [0, 1, 2],
        [2, 3, 4],
        [4, 5, 6],
        [100, 101, 102],
        [102, 103, 104],
    ]
    assert len(data.windows(tmp_path / "*.npy", length=3)) == 3
    assert len(data.windows(tmp_path / "none*.npy", length=3)) == 0


def test_windows_grow_at_the_end(tmp_path):
    np.save(tmp_path / "day1.npy", np.zeros((4, 2), np.float32))
    pattern = tmp_path / "*.npy"
    assert len(data.windows(pattern, length=2)) == 2
    with (tmp_path / "day1.npy").open("ab") as out:
        out.write(np.ones((2, 2), np.float32).tobytes() + b"\0\0")
    grown = data.windows(pattern, length=2)
    assert (len(grown), grown[2].tolist()) == (3, [[1, 1], [1, 1]])
    np.save(tmp_path / "day2.npy", np.full((2, 2), 7, np.float32))
    assert rows(data.windows(pattern, length=2))[3].tolist() == [[7, 7], [7, 7]]


def test_recordings_that_are_none(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((4, 3), np.float32))
    with pytest.raises(Corrupt, match=r"b\.npy holds moments of float32 \(3,\), and"):
        data.windows(tmp_path / "*.npy", length=2)
    (tmp_path / "a.npy").write_text("none")
    with pytest.raises(Corrupt, match=r"a\.npy is no \.npy file"):
        data.windows(tmp_path / "a.npy", length=2)
    with pytest.raises(Misuse, match="at least 1"):
        data.windows(tmp_path / "*.npy", length=0)
