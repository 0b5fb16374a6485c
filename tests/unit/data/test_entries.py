"""Entries of shared sets: what a manager counts, what it refuses, and how the reader gives them back."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shoal import data
from shoal.data.entries import count_entries, files_of
from shoal.data.shared_entries import SHARED_VARIABLE
from shoal.errors import Misuse, PeerViolation
from shoal.wire.limits import CONTRIBUTION_MAX_BYTES, ENTRIES_MAX, ENTRY_MAX_BYTES


def test_labelled_objects_of_the_same_columns_are_counted() -> None:
    assert count_entries(b'{"x":1,"y":0}\n{"x":[1,2],"y":1}\n') == 2
    deep = b'{"x":' + b"[" * 31 + b"]" * 31 + b',"y":"[[[[ \\ud83d\\ude00","z":-9223372036854775808}\n'
    assert count_entries(deep) == 1
    assert count_entries(b'{"labels":"weed"}\n') == 1


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b'{"y":1e999}\n', "line 1 is not JSON of finite numbers"),
        (b'{"y":"\\ud800"}\n', "line 1 is not JSON"),
        (b'{"y":' + b"9" * 19 + b"}\n", "whole numbers of 64 bits"),
        (b'{"x":' + b"[" * 32 + b"]" * 32 + b',"y":0}\n', "line 1 has values within values, deeper than 32"),
        # A reader may take a carriage return for the end of a line.
        (b'{"x":1,\r"y":0}\n', "line 1 is not as `shoal contribute` writes it"),
        (b'{"y":0}\n{"y":0 }\n', "line 2 is not as"),
        (b'{"y":0,"x":1}\n', "line 1 is not as"),
        (b'{"y":0,"y":1}\n', "line 1 is not as"),
        ('{"y":0}'.encode("utf-16-be") + b"\n", "line 1 is not as"),
        (b'{"y":0}', "does not end with a line break"),
        (b'{"y":0}\n\n', "line 2 is not JSON"),
        (b'{"x":0}\n', "line 1 is not an object with a label"),
        (b'{"y":null}\n', "line 1 is not an object with a label"),
        (b'{"y":true}\n', "line 1 is not an object with a label"),
        (b'{"y":[1]}\n', "line 1 is not an object with a label"),
        (b"[0]\n", "line 1 is not an object with a label"),
        (b'{"y":Infinity}\n', "line 1 is not JSON"),
        (b'{"y":' + b"9" * 5000 + b"}\n", "line 1 is not JSON"),
        (b'{"y":"\xff"}\n', "line 1 is not JSON"),
        (b"[" * 100_000 + b"\n", "line 1 has values within values"),
        (b'{"y":0}\n{"x":1,"y":0}\n', "line 2 has other columns"),
        (b'{"y":"' + b"a" * ENTRY_MAX_BYTES + b'"}\n', "line 1 has 262152 bytes; the maximum is 262144"),
        (b'{"y":0}\n' * (ENTRIES_MAX + 1), "100001 entries; the maximum is 100000"),
    ],
)
def test_anything_else_is_refused(file: bytes, why: str) -> None:
    with pytest.raises(PeerViolation, match=why):
        count_entries(file)


def test_too_many_lines_are_refused_before_there_is_an_object_for_each() -> None:
    file = b"1\n" * (CONTRIBUTION_MAX_BYTES // 2)
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation, match="8388608 entries; the maximum"):
            count_entries(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_same_entries_give_the_same_file() -> None:
    plain = files_of([{"y": 1, "x": [0.5, 2.0]}], source="here")
    assert plain == files_of([{"x": np.array([0.5, 2.0], np.float32), "y": np.int64(1)}], source="here")
    assert plain == [b'{"x":[0.5,2.0],"y":1}\n']


def test_many_entries_are_several_files_that_a_manager_takes() -> None:
    entry = {"y": 1, "x": "a" * 200_000}
    files = files_of((entry for _ in range(100)), source="here")
    assert len(files) == 2
    assert all(len(file) <= CONTRIBUTION_MAX_BYTES for file in files)
    assert sum(count_entries(file) for file in files) == 100


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"x": 1}, "here, entry 1 has no label"),
        ({"y": 1, "x": float("nan")}, "here, entry 1 cannot be written as JSON"),
        ({"y": 1, "x": b"raw"}, "here, entry 1 cannot be written as JSON"),
        ({"y": 1, "x": "a" * ENTRY_MAX_BYTES}, "here, entry 1 has"),
        ([1], "here, entry 1 is not an object"),
    ],
)
def test_an_entry_that_would_be_refused_is_named(entry: object, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        files_of([entry], source="here")


def test_a_task_reads_each_entry_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_bytes(b'{"y":2}\n{"y":0}\n')
    (tmp_path / "a").write_bytes(b'{"y":0}\n{"y":1}\n')
    monkeypatch.delenv(SHARED_VARIABLE, raising=False)
    with pytest.raises(Misuse, match="--shared SET"):
        data.shared()
    monkeypatch.setenv(SHARED_VARIABLE, str(tmp_path))
    entries = data.shared()
    assert [entries[number]["y"] for number in range(len(entries))] == [0, 1, 2]
    with pytest.raises(IndexError, match="0 to 2, not 3"):
        entries[3]
