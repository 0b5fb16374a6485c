import hashlib

import numpy as np
import pytest

from shoal.errors import Corrupt, Misuse
from shoal.trainer.shards import Examples, Manifest, as_pair, write_shards
from shoal.wire import tensors


@pytest.fixture
def pair():
    return np.arange(60, dtype=np.uint8).reshape(20, 3), np.arange(20, dtype=np.int64)


def paths(manifest, directory):
    return [directory / shard.sha256 for shard in manifest.shards]


def test_a_set_is_cut_by_size_and_named_by_hash(pair, tmp_path):
    # A row is 3 + 8 bytes, so 80 bytes hold seven.
    manifest = write_shards(*pair, tmp_path, shard_bytes=80)
    assert manifest.examples == 20
    assert [shard.examples for shard in manifest.shards] == [7, 7, 6]
    # As version 0.1.0 stored them: a device that has them does not fetch them again.
    assert [shard.sha256[:16] for shard in manifest.shards] == [
        "94b7e6b28f8f0f27",
        "e14b4bc8d9576909",
        "a7708959e61909d9",
    ]
    for shard in manifest.shards:
        data = (tmp_path / shard.sha256).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (shard.sha256, shard.bytes)
    assert len(list(tmp_path.iterdir())) == 3
    assert write_shards(*pair, tmp_path, shard_bytes=80) == manifest
    assert Manifest.from_plain(manifest.to_plain()) == manifest


def test_rows_come_in_the_order_asked_for_across_shards(pair, tmp_path):
    examples = Examples(paths(write_shards(*pair, tmp_path, shard_bytes=80), tmp_path))
    assert len(examples) == 20
    wanted = np.array([19, 0, 7, 6, 13, 14, 0])
    x, y = as_pair(examples.take(wanted))
    assert y.tolist() == wanted.tolist()
    assert x.tolist() == pair[0][wanted].tolist()
    assert x.dtype == np.uint8
    x[:] = 0
    assert examples.slice(0, 2)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("wanted", [[20], [-1], []])
def test_rows_that_are_not_there(pair, tmp_path, wanted):
    examples = Examples(paths(write_shards(*pair, tmp_path), tmp_path))
    with pytest.raises(Misuse, match="0 to 19"):
        examples.take(np.array(wanted, np.int64))


def test_an_empty_set():
    assert len(Examples([])) == 0


def test_x_and_y_must_pair_up(pair, tmp_path):
    with pytest.raises(Misuse, match="20 examples and y has 19"):
        write_shards(pair[0], pair[1][:-1], tmp_path)


@pytest.mark.parametrize("arrays", [{}, {"x": np.zeros(2), "y": np.zeros(3)}, {"x": np.zeros(())}])
def test_other_files_are_not_shards(arrays, tmp_path):
    with (tmp_path / "f").open("wb") as file:
        tensors.write(file, arrays, {})
    with pytest.raises(Corrupt, match="not a shard"):
        Examples([tmp_path / "f"])


def test_shards_must_fit_each_other(pair, tmp_path):
    manifest = write_shards(*pair, tmp_path)
    other = write_shards(np.zeros((4, 5), np.uint8), np.zeros(4, np.int64), tmp_path)
    with pytest.raises(Corrupt, match="another shape"):
        Examples(paths(manifest, tmp_path) + paths(other, tmp_path))
