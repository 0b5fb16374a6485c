"""The memory benchmark's pure parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import anonymous_bytes, largest_tensor_bytes, models_above
from shoal.wire import tensors


def test_anonymous_memory_is_read_from_a_process_status() -> None:
    status = "Name:\tpython\nVmRSS:\t   900 kB\nRssAnon:\t   500 kB\nRssFile:\t   400 kB\n"
    assert anonymous_bytes(status) == 512_000
    with pytest.raises(ValueError, match="RssAnon"):
        anonymous_bytes("Name:\tkthreadd\n")


def test_memory_counts_in_models_above_what_was_idle() -> None:
    assert models_above(460, 60, 100) == 4.0


def test_the_largest_tensor_of_several_files_is_found(tmp_path: Path) -> None:
    for name, size in (("a", 3), ("b", 7)):
        with (tmp_path / name).open("wb") as file:
            tensors.write(file, {"x": np.zeros(size, np.float32), "y": np.zeros(1, np.float32)}, {})
    assert largest_tensor_bytes([tmp_path / "a", tmp_path / "b"]) == 28
