"""Any choice of columns comes back from its shards as it went in, and no hostile shard is read."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import Corrupt, Misuse
from shoal.trainer.columns import pack, picked, unpack
from shoal.trainer.shards import Examples, blocks_of, write_blocks
from shoal.wire import tensors

DTYPES = st.sampled_from([np.uint8, np.int64, np.float32, np.float16, np.bool_, np.int16])


def arrays(dtype, shape):
    return hnp.arrays(dtype, shape)


@st.composite
def columns(draw, count):
    """A column of so many rows: of one shape, ragged, text or bytes."""
    kind = draw(st.sampled_from(["plain", "ragged", "text", "bytes"]))
    if kind == "plain":
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        return draw(arrays(draw(DTYPES), (count, *shape)))
    if kind == "ragged":
        dtype, dimensions = draw(DTYPES), draw(st.integers(1, 3))
        shapes = hnp.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=3)
        return [draw(arrays(dtype, draw(shapes))) for _ in range(count)]
    texts = st.text(max_size=5) if kind == "text" else st.binary(max_size=5)
    return draw(st.lists(texts, min_size=count, max_size=count))


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@st.composite
def sets(draw):
    count = draw(st.integers(1, 12))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return {name: draw(columns(count)) for name in names}


def same(found, wanted):
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()
    if isinstance(wanted[0], np.ndarray):
        return all(
            left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
            for left, right in zip(found, wanted, strict=True)
        )
    return found == wanted


@given(sets(), st.integers(20, 200), st.randoms(use_true_random=False))
def test_every_column_round_trips_through_shards_of_any_size(rows, shard_bytes, random):
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_blocks(blocks_of(rows, shard_bytes), Path(folder))
        count = len(next(iter(rows.values())))
        assert manifest.examples == count
        assert {path.name for path in Path(folder).iterdir()} == {shard.sha256 for shard in manifest.shards}
        examples = Examples([Path(folder) / shard.sha256 for shard in manifest.shards])
        indices = np.array(random.choices(range(count), k=count))
        found = examples.take(indices)
        assert list(found) == list(rows)
        wanted = picked(rows, indices)
        assert all(same(found[name], wanted[name]) for name in rows)


@given(sets(), st.data())
def test_a_shard_that_was_tampered_with_is_refused_or_harmless(rows, data):
    """Change numbers and drop tensors: what is still read can be gathered, row by row, without another error."""
    stored, notes = pack(rows)
    stored = {name: array.copy() for name, array in stored.items()}
    name = data.draw(st.sampled_from(sorted(stored)))
    hurt = data.draw(st.sampled_from(["drop", "number", "note", "shape"]))
    if hurt == "drop":
        del stored[name]
    elif hurt == "shape":
        stored[name] = stored[name].reshape(data.draw(st.sampled_from([(-1,), (1, *stored[name].shape)])))
    elif hurt == "note":
        notes = data.draw(st.sampled_from([{}, {"columns": json.dumps({name: "ragged"})}, {"columns": "[" * 9999}]))
    elif stored[name].dtype == np.int64 and stored[name].size:
        stored[name].flat[data.draw(st.integers(0, stored[name].size - 1))] = data.draw(
            st.integers(-(2**63), 2**63 - 1)
        )
    try:
        found = unpack(stored, notes)
        for column in found.values():
            column.gather(np.arange(len(column)))
    except Corrupt:
        pass


OFFSETS = np.array([0, 2, 3], np.int64)
VALUES = np.zeros(3, np.float32)
SHAPES = np.array([[2], [1]], np.int64)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"v/offsets": np.array([0, 2, 4], np.int64)}, "offsets"),
        ({"v/offsets": np.array([0, 4, 3], np.int64)}, "offsets"),
        ({"v/offsets": np.array([1, 2, 3], np.int64)}, "offsets"),
        ({"v/offsets": np.array([0, -1, 3], np.int64)}, "offsets"),
        ({"v/offsets": OFFSETS.astype(np.int32)}, "offsets"),
        ({"v/offsets": np.zeros(0, np.int64)}, "offsets"),
        ({"v/shapes": np.array([[2], [2]], np.int64)}, "shapes"),
        ({"v/shapes": np.array([[-2], [1]], np.int64)}, "shapes"),
        # 2^32 times 2^32 is 0 in 64 bits.
        ({"v/shapes": np.array([[1 << 32, 1 << 32], [3, 1]], np.int64), "v/offsets": np.array([0, 0, 3])}, "shapes"),
        ({"v/shapes": np.array([[0, 1 << 31, 1 << 31], [3, 1, 1]]), "v/offsets": np.array([0, 0, 3])}, "shapes"),
        ({"v/shapes": np.ones((2, 33), np.int64)}, "shapes"),
        ({"v/shapes": None}, "shapes"),
        ({"v/offsets": None}, "offsets"),
        ({"v": VALUES.reshape(3, 1)}, "offsets"),
        ({"w": np.zeros((5, 2))}, "of one length"),
        ({"w": np.zeros((1 << 40, 0), np.uint8), "v": None, "v/offsets": None, "v/shapes": None}, "columns"),
    ],
)
def test_hostile_shards_are_refused(changed, reason, tmp_path):
    stored = {"v": VALUES, "v/offsets": OFFSETS, "v/shapes": SHAPES} | changed
    file = tmp_path / "shard"
    with file.open("wb") as out:
        present = {name: array for name, array in stored.items() if array is not None}
        tensors.write(out, present, {"columns": '{"v": "ragged"}'})
    with pytest.raises(Corrupt, match=f"shard is not a shard of examples: .*{reason}"):
        Examples([file])


def test_text_that_is_none_is_refused_when_it_is_read(tmp_path):
    rows = {"text": [b"\xff\xfe", b"a"]}
    stored, _ = pack(rows)
    with (tmp_path / "shard").open("wb") as out:
        tensors.write(out, stored, {"columns": '{"text": "text"}'})
    examples = Examples([tmp_path / "shard"])
    assert examples.take(np.array([1])) == {"text": ["a"]}
    with pytest.raises(Corrupt, match="not UTF-8"):
        examples.take(np.array([0]))


@pytest.mark.parametrize("name", ["", "a" * 129, "a\nb", 7])
def test_a_name_that_no_shard_can_hold(name):
    with pytest.raises(Misuse, match="cannot be the name of a column"):
        pack({name: np.zeros(3)})


def test_a_column_that_would_hide_a_part_of_another():
    with pytest.raises(Misuse, match="rename it"):
        pack({"a": ["text"], "a/offsets": np.zeros(1, np.int64)})
