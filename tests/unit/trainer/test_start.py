"""A first model that begins with tensors of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.trainer.prepared_job import cache_key
from shoal.trainer.start import StartPlace, start_from
from shoal.wire import tensors

LAYOUT = Layout.of([("a", (2, 3), "parameter"), ("b", (3,), "parameter"), ("mean", (1,), "buffer")])


def written(folder: Path, arrays: dict[str, np.ndarray], bfloat16: frozenset[str] = frozenset()) -> Path:
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        tensors.write(file, arrays, {}, bfloat16=bfloat16)
    return path


def test_what_fits_is_copied_and_the_rest_is_named(tmp_path: Path) -> None:
    flat = np.zeros(LAYOUT.size, np.float32)
    file = written(
        tmp_path,
        {
            "a": np.arange(6, dtype=np.float64).reshape(2, 3),
            "b": np.ones(4, np.float32),
            "head.weight": np.ones(2, np.float32),
        },
    )
    started = start_from(flat, LAYOUT, file)
    views = LAYOUT.views(flat)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"].tolist() == [0, 0, 0]
    assert str(started) == (
        "started from 1 tensor of the file; b [4] to [3] differ in shape; mean are not in the file; "
        "head.weight are not in the model"
    )


def test_a_file_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    flat = np.zeros(LAYOUT.size, np.float32)
    with pytest.raises(Misuse, match=r"no tensor of model\.safetensors fits: it has x, the model has a, b"):
        start_from(flat, LAYOUT, written(tmp_path, {"x": np.ones(2, np.float32)}))


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00.", b"\0" * 64])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(data)
    with pytest.raises(Misuse, match="is not a safetensors file"):
        start_from(np.zeros(LAYOUT.size, np.float32), LAYOUT, path)


#: Every number of half precision, by its bits: Hypothesis would throw most floats of that width away.
HALVES = st.builds(
    lambda bits, sign: float(np.array(bits | sign << 15, np.uint16).view(np.float16)),
    st.integers(0, 0x7C00),
    st.integers(0, 1),
)


@given(st.lists(HALVES, min_size=6, max_size=6))
def test_half_precision_becomes_the_same_numbers(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    wanted = np.array(values, np.float32).reshape(2, 3)
    bits = (wanted.view(np.uint32) >> 16).astype(np.uint16)
    folder = tmp_path_factory.mktemp("half")
    flat = np.zeros(LAYOUT.size, np.float32)
    start_from(flat, LAYOUT, written(folder, {"a": wanted.astype(np.float16)}))
    assert np.array_equal(LAYOUT.views(flat)["a"], wanted)
    start_from(flat, LAYOUT, written(folder, {"a": bits}, frozenset({"a"})))
    assert np.array_equal(LAYOUT.views(flat)["a"].view(np.uint32), wanted.view(np.uint32) >> 16 << 16)


def test_the_file_is_part_of_what_names_a_prepared_task() -> None:
    keys = {cache_key(b"code", "task:T", {}, 0, "", start) for start in ("", "0" * 64, "1" * 64)}
    assert len(keys) == 3
    assert cache_key(b"code", "task:T", {}, 0) in keys


def test_a_frozen_tensor_of_a_checkpoint_is_taken_too(tmp_path):
    flat = np.zeros(LAYOUT.size, np.float32)
    body = np.zeros(3, np.float32)
    place = StartPlace(shape=(3,), put=lambda array: body.__setitem__(..., array))
    file = written(tmp_path, {"body.weight": np.arange(3, dtype=np.float32)})
    started = start_from(flat, LAYOUT, file, frozen={"body.weight": place})
    assert started.copied == ("body.weight",)
    assert body.tolist() == [0, 1, 2]
