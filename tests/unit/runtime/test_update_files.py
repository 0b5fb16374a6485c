"""Room for updates: in memory or in a file without a name, and written to alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.runtime.update_files import put_away_in, room_in


def test_large_room_is_in_a_file_that_has_no_name(tmp_path: Path) -> None:
    made = room_in(tmp_path, memory_bytes=100)(5, 7)
    assert (made.shape, made.dtype, made.flags.writeable) == ((5, 7), np.float32, True)
    assert not made.flags.owndata
    made[:] = np.arange(35, dtype=np.float32).reshape(5, 7)
    assert made[4, 6] == 34
    assert list(tmp_path.iterdir()) == []


def test_small_room_is_in_memory(tmp_path: Path) -> None:
    assert room_in(tmp_path)(5, 7).flags.owndata


def test_without_a_disk_there_is_still_memory(tmp_path: Path) -> None:
    made = room_in(tmp_path / "gone", memory_bytes=0)(2, 3)
    made[:] = 1
    assert made.sum() == 6


def test_what_is_put_away_comes_back_and_leaves_no_file(tmp_path: Path) -> None:
    arrays = [np.arange(5, dtype=np.float32), np.zeros(0, np.float32), np.ones((2, 3), np.float32)]
    get = put_away_in(tmp_path, memory_bytes=10)(arrays)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        back = get()
        assert [each.tolist() for each in back] == [each.tolist() for each in arrays]
        assert not any(
            np.shares_memory(each, array) or each.flags.writeable for each, array in zip(back, arrays, strict=True)
        )


def test_a_small_array_or_a_full_disk_leaves_arrays_where_they_are(tmp_path: Path) -> None:
    arrays = [np.arange(5, dtype=np.float32)]
    assert put_away_in(tmp_path)(arrays)()[0] is arrays[0]
    assert put_away_in(tmp_path / "gone", memory_bytes=0)(arrays)()[0] is arrays[0]
