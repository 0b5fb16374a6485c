"""What a task may give as its examples, and what becomes of it."""

import re
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from shoal.errors import Misuse
from shoal.trainer.arrays import columns_of, count_of, first_rows, rows_of, rows_to_torch, write_examples
from shoal.trainer.columns import as_pair, labels_of
from shoal.trainer.local_examples import LocalExamples
from shoal.trainer.shards import Examples, write_shards


class Items(Dataset):
    """A Dataset of whatever it is given. Reads beyond its end fail otherwise than with an IndexError."""

    def __init__(self, items):
        self.items, self.read = items, []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        assert index < len(self.items)
        self.read.append(index)
        return self.items[index]


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Columnar(list):
    """As a Hugging Face Dataset looks from outside: columns with names, items that are dicts."""

    column_names = ("text", "label")


def stored(examples, folder, **options):
    manifest = write_examples(examples, folder, **options)
    return Examples([folder / shard.sha256 for shard in manifest.shards])


def taken(examples, folder, **options):
    found = stored(examples, folder, **options)
    return found.slice(0, len(found))


def plain(rows):
    return {name: [getattr(value, "tolist", lambda v=value: v)() for value in column] for name, column in rows.items()}


Point = namedtuple("Point", ["place", "weight"])

PAIRS = {"x": [[0.5, 1.0], [2.0, 3.0]], "y": [1, 0]}
NOTES = {"text": ["é", ""], "label": [1, 0]}


@pytest.mark.parametrize(
    ("examples", "wanted"),
    [
        ((np.array([[0.5, 1], [2, 3]]), [1, 0]), PAIRS),
        ([[[0.5, 1], [2, 3]], [1, 0]], PAIRS),
        (TensorDataset(torch.tensor([[0.5, 1], [2, 3]]), torch.tensor([1, 0])), PAIRS),
        (iter([([0.5, 1], 1), ([2, 3], 0)]), PAIRS),
        ({"x": torch.tensor([[0.5, 1], [2, 3]], dtype=torch.bfloat16), "y": np.array([1, 0])}, PAIRS),
        (np.arange(4).reshape(2, 2), {"x": [[0, 1], [2, 3]]}),
        (Items([torch.zeros(2), torch.ones(3)]), {"x": [[0, 0], [1, 1, 1]]}),
        (Stream([{"text": "é", "label": 1}, {"text": "", "label": 0}]), NOTES),
        (Columnar([{"text": "é", "label": 1}, {"text": "", "label": 0}]), NOTES),
        ({"text": np.array(["é", ""]), "label": (1, 0)}, NOTES),
        ((bytes([n]) * n for n in (2, 0)), {"x": [b"\2\2", b""]}),
        ([(1, 2.5, "a"), (2, 3, "b"), (3, 1, "")], {"0": [1, 2, 3], "1": [2.5, 3, 1], "2": ["a", "b", ""]}),
        ([Point(1, 2), Point(3, 4)], {"place": [1, 3], "weight": [2, 4]}),
        (
            Items([(np.zeros(2), {"boxes": [[1, 2]], "of": (7, "a")}),
                   (np.ones(2), {"boxes": [[3, 4], [5, 6]], "of": (8, "")})]),
            {"x": [[0, 0], [1, 1]], "y.boxes": [[[1, 2]], [[3, 4], [5, 6]]], "y.of.0": [7, 8], "y.of.1": ["a", ""]},
        ),
        ([{"boxes": []}, {"boxes": [[1, 2]]}, {"boxes": []}], {"boxes": [[], [[1, 2]], []]}),
        ({"ids": [[1, 2, 3], [4]], "image": [np.zeros((1, 2), np.uint8), np.ones((2, 1), np.uint8)]},
         {"ids": [[1, 2, 3], [4]], "image": [[[0, 0]], [[1], [1]]]}),
    ],
)  # fmt: skip
def test_all_that_examples_may_give(examples, wanted, tmp_path):
    assert plain(taken(examples, tmp_path)) == wanted


def test_a_stream_is_cut_as_arrays_are(tmp_path):
    x, y = np.arange(60, dtype=np.uint8).reshape(20, 3), np.arange(20)
    whole = write_shards(x, y, tmp_path, shard_bytes=80)
    assert write_examples(((a, b) for a, b in zip(x, y, strict=True)), tmp_path, shard_bytes=80) == whole


def test_a_stream_needs_the_memory_of_one_shard(tmp_path):
    """Rows are written before the next are asked for."""
    written = []

    def rows():
        for number in range(100):
            assert not written or number - written[-1] <= 12, "more than a shard is held"
            yield {"text": "a" * number, "x": np.zeros(100, np.uint8)}

    found = stored(rows(), tmp_path, shard_bytes=1200, wrote=written.append)
    assert len(found) == 100
    assert len(written) > 10
    assert found.take(np.array([41]))["text"] == ["a" * 41]


def test_a_column_that_turns_out_ragged_is_ragged_in_every_shard(tmp_path):
    # Two rows of 8 bytes to a shard: the first shards look equal-shaped.
    items = [np.zeros(2, np.float32)] * 4 + [np.ones(1, np.float32)] * 4
    found = stored(iter(items), tmp_path, shard_bytes=16)
    assert [value.tolist() for value in found.take(np.array([0, 7]))["x"]] == [[0, 0], [1]]
    assert isinstance(found.take(np.array([0, 1]))["x"], list), "also where a batch's rows have one shape"
    # Two shards of zeros that are the same file, and one of ones: what was written in the meantime is gone.
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        ((1, 2, 3), "gave 3 things"),
        (7, "gave int; it gives a pair"),
        ("text", "gave str"),
        ({}, "no columns"),
        ({"x": np.zeros(3), "z": np.zeros(2)}, "x has 3 examples and z has 2"),
        ({"x": 7}, "column x is a single number"),
        ({"train": Columnar()}, "give one split"),
        ([{"a": 1}, {"b": 1}, {"a": 2}], "item 1 of the examples has the columns b; the first has a"),
        ([{"a": None}], "a of item 0 of the examples is None"),
        ([{"a": "x"}, {"a": 1}], "a of item 1 is an array of int64; the first is str"),
        ([{"a": 1}, {"a": 1.5}], "a of item 1 is float32, and the first is int64, which cannot hold it"),
        ([{"a": [1]}, {"a": [[1]]}], "a of item 1 has 2 dimensions; the first has 1"),
        ([{"a": [[1], [1, 2]]}], "lists of unequal lengths"),
        ([{"a": ["x", "y"]}], "texts: join them"),
        ([{"a": 1j}], "not an array of numbers but of complex128"),
        ([{}], "is empty"),
        ([{"a": {str(number): 1 for number in range(300)}}], "more than 256"),
        ({"a": ["x", 1]}, "row 1 of column a is an array of int64; the first is str"),
    ],
)
def test_what_is_no_set_of_examples_is_named(examples, reason, tmp_path):
    with pytest.raises(Misuse, match=reason):
        write_examples(examples, tmp_path)


def test_rows_become_what_collate_gets():
    pair = rows_to_torch({"x": np.zeros((2, 3)), "y": np.array([1, 2])})
    assert isinstance(pair, tuple)
    assert [tuple(part.shape) for part in pair] == [(2, 3), (2,)]
    rows = rows_to_torch(
        {"x": np.zeros((2, 3)), "ids": [np.arange(2), np.arange(1)], "t": ["a", "b"], "b": [b"", b"c"]}
    )
    assert torch.equal(rows["x"], torch.zeros(2, 3, dtype=torch.float64))
    assert [ids.tolist() for ids in rows["ids"]] == [[0, 1], [0]]
    assert (rows["t"], rows["b"]) == (["a", "b"], [b"", b"c"])


def test_a_pair_and_labels_of_rows():
    with pytest.raises(Misuse, match="columns x, fault, not x and y: define collate"):
        as_pair({"x": np.zeros(2), "fault": np.zeros(2)})
    with pytest.raises(Misuse, match="x is text, bytes or arrays of unequal shapes"):
        as_pair({"x": ["a"], "y": np.zeros(1)})
    assert labels_of({"x": np.zeros(2), "labels": np.array([1, 2])}).tolist() == [1, 2]
    assert labels_of({"y": np.zeros(2), "label": np.array([3])}).tolist() == [3]
    assert labels_of({"y": np.zeros((2, 2), np.int64)}) is None


def test_the_first_rows_are_read_alone():
    items = Items([(number, number) for number in range(9)])
    assert plain(first_rows(items, 2)) == {"x": [0, 1], "y": [0, 1]}
    assert items.read == [0, 1]
    assert plain(first_rows((np.arange(9), np.arange(9)), 2)) == {"x": [0, 1], "y": [0, 1]}
    assert rows_of([]) == {}
    assert [count_of(given) for given in (items, (np.zeros(3), 0), {"a": [1]}, iter([]), [[1], [2]])] == [9, 3, 1, 0, 1]


@pytest.mark.parametrize(
    "examples",
    [
        (np.arange(5), np.arange(5)),
        {"x": np.arange(5), "y": list(range(5))},
        Items([(number, number) for number in range(5)]),
        Columnar([{"x": number, "y": number} for number in range(5)]),
    ],
)
def test_a_devices_own_examples_take_the_same_forms(examples):
    class Task:
        def examples(self, split):
            return examples

    local = LocalExamples(Task())
    assert local.look() == 5
    assert plain(local.take(np.array([4, 0]))) == {"x": [4, 0], "y": [4, 0]}
    if isinstance(examples, Items):
        assert examples.read == [4, 0], "a lease reads its own rows alone"


def test_a_devices_own_iterable_is_read_before_every_lease():
    class Task:
        def examples(self, split):
            return ({"text": "a" * number} for number in range(3))

    local = LocalExamples(Task())
    assert (local.look(), local.look()) == (3, 3)
    assert local.take(np.array([2])) == {"text": ["aa"]}


def test_an_empty_list_has_the_type_of_the_others(tmp_path):
    found = taken(iter([{"ids": []}, {"ids": [1]}, {"ids": []}]), tmp_path)["ids"]
    assert [(value.dtype, value.ndim) for value in found] == [(np.int64, 1)] * 3


def test_columns_that_come_whole_are_not_copied():
    x = np.arange(6, dtype=np.float32)
    assert np.shares_memory(columns_of({"x": x})["x"], x)


def test_a_data_frame_is_its_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"text": ["é", "", "b"], "label": [1, 0, 2], "size": [0.5, 1.5, 2.5], "ids": [[1, 2], [3], []]}
    )
    wanted = {"text": ["é", ""], "label": [1, 0], "size": [0.5, 1.5], "ids": [[1, 2], [3]]}
    # Rows keep their labels where some are left out; their order counts, not those.
    for given in (frame[:2], dict(frame[:2]), frame[frame["label"] < 2]):
        assert plain(taken(given, tmp_path)) == wanted
        assert count_of(given) == 2
    pair = (frame[["size", "label"]], frame["label"])
    assert plain(taken(pair, tmp_path)) == {"x": [[0.5, 1], [1.5, 0], [2.5, 2]], "y": [1, 0, 2]}
    two = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(Misuse, match=r"a data frame with two columns of one name: a, a\. Rename one"):
        taken(two, tmp_path)


def test_a_parquet_file_is_read_as_the_documents_say(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    said = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    (line,) = re.findall(r"`return (pandas\.read_parquet\([^`]*\))`", said)
    pandas.DataFrame({"a": [1.5, 2.5], "label": [0, 1]}).to_parquet(tmp_path / "train.parquet")
    monkeypatch.chdir(tmp_path)
    found = eval(line, {"pandas": pandas, "split": "train"})  # noqa: S307 - a line of our own documents
    assert plain(taken(found, tmp_path / "shards")) == {"a": [1.5, 2.5], "label": [0, 1]}


def test_a_data_loader_is_refused_with_what_to_give_instead(tmp_path):
    loader = DataLoader(TensorDataset(torch.tensor([[0.5, 1], [2, 3]]), torch.tensor([1, 0])), batch_size=2)
    with pytest.raises(Misuse, match=r"whose items are batches: give what it reads, `loader\.dataset`"):
        write_examples(loader, tmp_path)
    assert plain(taken(loader.dataset, tmp_path)) == PAIRS
