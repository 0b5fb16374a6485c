import json

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.layout import ENTRIES_MAX, SIZE_MAX, Entry, Layout

SMALL = Layout.of(
    [
        ("conv.weight", (2, 3), "parameter"),
        ("norm.mean", (2,), "buffer"),
        ("scale", (), "parameter"),
        ("empty", (0, 5), "parameter"),
    ]
)


def test_parameters_come_first_and_entries_are_back_to_back():
    assert SMALL.entries == (
        Entry("conv.weight", (2, 3), 0, "parameter"),
        Entry("scale", (), 6, "parameter"),
        Entry("empty", (0, 5), 7, "parameter"),
        Entry("norm.mean", (2,), 7, "buffer"),
    )
    assert (SMALL.size, SMALL.parameters_size) == (9, 7)


def test_views_are_windows_not_copies():
    flat = np.arange(9, dtype=np.float32)
    views = SMALL.views(flat)
    views["conv.weight"][1, 2] = 50
    views["scale"][()] = 60
    assert flat.tolist() == [0, 1, 2, 3, 4, 50, 60, 7, 8]
    assert views["norm.mean"].tolist() == [7, 8]
    assert views["empty"].shape == (0, 5)


@pytest.mark.parametrize("flat", [np.zeros(8, np.float32), np.zeros((9, 1), np.float32)])
def test_a_vector_of_another_size_is_refused(flat):
    with pytest.raises(Misuse, match="9 values in one row"):
        SMALL.views(flat)


def test_json_round_trip_and_hash_literal():
    assert Layout.from_json(SMALL.to_json()) == SMALL
    one = Layout.of([("w", (2, 3), "parameter")])
    assert one.to_json() == '[["w",[2,3],"parameter"]]'
    # printf '[["w",[2,3],"parameter"]]' | sha256sum
    assert one.sha256 == "9820de2a94711cb2d4fc39791b56fca5bb9642e36e90d55dc8179a7c9361d411"


def test_the_hash_sees_names_shapes_and_kinds():
    others = [("v", (2, 3), "parameter"), ("w", (3, 2), "parameter"), ("w", (2, 3), "buffer")]
    hashes = {Layout.of([tensor]).sha256 for tensor in [("w", (2, 3), "parameter"), *others]}
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 100_000,
        "[]",
        '[["w",[2],"weird"]]',
        '[["w",[-1],"parameter"]]',
        '[["w",[1.5],"parameter"]]',
        '[["w",[true],"parameter"]]',
        '[["",[1],"parameter"]]',
        '[["w",[1],"parameter"],["w",[1],"parameter"]]',
        '[["b",[1],"buffer"],["w",[1],"parameter"]]',
        '[["w",[0],"parameter"]]',
        f'[["w",[{SIZE_MAX},{SIZE_MAX}],"parameter"]]',
        f'[["w",[{SIZE_MAX}],"parameter"],["v",[1],"parameter"]]',
        json.dumps([["w", [1] * 17, "parameter"]]),
        json.dumps([[f"w{i}", [1], "parameter"] for i in range(ENTRIES_MAX + 1)]),
        " " * ((1 << 20) + 1),
    ],
)
def test_from_json_refuses_what_to_json_never_writes(text):
    with pytest.raises(Misuse):
        Layout.from_json(text)


def test_difference_names_the_first_tensor_that_parts():
    other = Layout.of([("conv.weight", (2, 4), "parameter")])
    assert SMALL.difference(SMALL) == ""
    assert SMALL.difference(other) == "parameter conv.weight [2, 3] here, parameter conv.weight [2, 4] there"
