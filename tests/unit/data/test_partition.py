"""Partitions: every row at most once, the same rows everywhere and always, and as unequal as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import data
from shoal.data.draws import dirichlet_shares, log_gammas, uniforms
from shoal.data.partition import Partition
from shoal.errors import Misuse

pytestmark = pytest.mark.timeout(60)

#: Ten classes of uneven sizes, mixed.
LABELS = np.repeat(np.arange(10), np.arange(55, 105, 5))[np.argsort(np.sin(np.arange(775)))]

PARTITIONS = (
    data.iid(),
    data.dirichlet(0.1),
    data.dirichlet(0.5, least=6),
    data.pathological(2),
    data.sizes(1.2, data.dirichlet(0.3, least=3)),
    data.sizes(0.5),
)

#: Rows that were once the answer. A change of these breaks every experiment that names its partition.
PINNED = {
    "iid": "e049ef86ac7a37509654be4d7314891390e8ebd0ad2d9354f6121cb1f31330a2",
    "dirichlet(0.1)": "acb0ad4774c42d85bd8d4e2b2c4a3e5ffbda7be9dc987097a35755e4ff8c7cbb",
    "dirichlet(2, least=9)": "bf848dafb5d7237ea7e00ed801af117f3f15c45d6abd4eb93ddfac23402b02ea",
    "pathological(2)": "a63ebd09738bb3492b7202e9892a3a27b211028ca27dcc4632899cee11ad0ad2",
    "by(writer)": "4ad0a677af3fbeea762c3b7a5f4486be5eccc2084b23ddc4fd6f89cb2fcc01fb",
    "drawn(6, 0.3)": "38313c6ea73d0b5ef82b934be218eb45c6baa84cbfa7bcad81bb5a9f2a73fe3a",
    "sizes(1.2, dirichlet(0.3))": "838d7c9a6ee7a01d672484bb6306e4bbef2b8f67da195aef8fb34eecf8f92996",
}


def classes_on(rows, labels=LABELS):
    return len(set(labels[rows].tolist()))


@pytest.mark.parametrize("text", PINNED)
def test_the_rows_are_pinned(text):
    values = LABELS % 5 if text.startswith("by") else LABELS
    parts = data.parse_partition(text).rows(values, 5 if text.startswith("by") else 40, seed=7)
    assert data.hash_of(parts) == PINNED[text]


def test_some_rows_literally():
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    assert [part.tolist() for part in data.iid().rows(labels, 3)] == [[2, 6, 3], [4, 1, 7], [5, 0]]
    assert [part.tolist() for part in data.pathological(1).rows(labels, 2)] == [[5, 1, 3, 7], [2, 6, 4, 0]]
    assert [part.tolist() for part in data.dirichlet(0.5).rows(labels, 3)] == [[6, 4, 5, 1, 7], [2], [3, 0]]


@given(
    partition=st.sampled_from(PARTITIONS),
    labels=st.lists(st.integers(-3, 9), min_size=60, max_size=200),
    devices=st.integers(1, 10),
    seed=st.integers(0, 2**63),
)
def test_no_row_is_used_twice_and_nobody_is_without(partition, labels, devices, seed):
    parts = partition.rows(labels, devices, seed=seed)
    whole = np.concatenate(parts)
    assert len(parts) == devices
    assert len(set(whole.tolist())) == len(whole)
    assert whole.min() >= 0
    assert whole.max() < len(labels)
    assert min(map(len, parts)) >= 1
    if not str(partition).startswith("sizes"):
        assert len(whole) == len(labels), "all rows are used"
    again = partition.rows(np.array(labels), devices, seed=seed)
    assert data.hash_of(again) == data.hash_of(parts)


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_another_seed_gives_other_rows(partition):
    first, second = (data.hash_of(partition.rows(LABELS, 12, seed=seed)) for seed in (0, 1))
    assert first != second


def test_iid_gives_everyone_as_many_and_a_bit_of_everything():
    parts = data.iid().rows(LABELS, 10)
    assert {len(part) for part in parts} == {77, 78}
    assert min(map(classes_on, parts)) == 10


def test_a_small_alpha_is_unequal_and_a_large_one_is_not():
    unequal, equal = data.dirichlet(0.05).rows(LABELS, 10), data.dirichlet(1000).rows(LABELS, 10)
    assert np.mean([classes_on(part) for part in unequal]) < 5
    assert min(map(classes_on, equal)) == 10
    assert max(map(len, equal)) < 1.3 * min(map(len, equal))
    assert max(map(len, unequal)) > 3 * min(map(len, unequal))


def test_least_is_held_and_takes_from_the_largest():
    without, filled = data.dirichlet(0.05, least=0).rows(LABELS, 60), data.dirichlet(0.05, least=5).rows(LABELS, 60)
    assert min(map(len, without)) == 0
    assert min(map(len, filled)) == 5
    assert max(map(len, filled)) < max(map(len, without))
    # Whoever had enough and was not the largest kept exactly what it had.
    kept = [sorted(a.tolist()) == sorted(b.tolist()) for a, b in zip(without, filled, strict=True) if 5 <= len(a) < 15]
    assert kept
    assert all(kept)


def test_pathological_devices_have_about_as_many_classes_as_asked():
    labels = np.repeat(np.arange(10), 100)[::-1]
    for wanted in (1, 2, 3):
        parts = data.pathological(wanted).rows(labels, 100)
        # Pieces differ by a row where they do not divide the set.
        assert {len(part) for part in parts} <= ({10} if wanted < 3 else {9, 10, 11, 12})
        assert np.mean([classes_on(part, labels) for part in parts]) <= wanted + 0.4


def test_rows_of_one_writer_are_on_one_device():
    writers = np.array(["ada", "bo", "cy", "di", "ed", "flo", "gil"])[np.arange(700) % 7]
    parts = data.by("writer").rows(writers.tolist(), 3)
    found = [set(writers[part]) for part in parts]
    assert sorted(map(len, found)) == [2, 2, 3]
    assert set.union(*found) == set(writers)
    assert sum(map(len, found)) == 7
    assert len(np.concatenate(parts)) == 700


def test_sizes_follow_the_power_law():
    parts = data.sizes(1.0).rows(np.zeros(6400), 64)
    assert sorted(map(len, parts), reverse=True) == [int(np.ceil(100 / rank)) for rank in range(1, 65)]
    assert [len(part) for part in parts] != sorted(map(len, parts), reverse=True), "ranks are drawn"
    whole = data.iid().rows(np.zeros(6400), 64)
    assert all(set(part.tolist()) <= set(all_.tolist()) for part, all_ in zip(parts, whole, strict=True))


def test_a_power_that_is_too_large_for_a_float_leaves_every_device_a_row():
    assert [len(rows) for rows in data.sizes(1000).rows(LABELS, 5)].count(1) == 4


def test_seeds_of_numpy_are_seeds():
    ours, theirs = (data.iid().rows(LABELS, 3, seed=seed) for seed in (7, np.int64(7)))
    assert data.hash_of(ours) == data.hash_of(theirs)


def test_a_devices_rows_are_mixed():
    """Its last ones count as the newest, and the first lease begins with them."""
    part = data.dirichlet(100).rows(np.repeat([0, 1], 200), 2)[0]
    assert 0.3 < np.mean(np.repeat([0, 1], 200)[part[-40:]]) < 0.7


def test_uniform_numbers_are_uniform():
    drawn = uniforms(100_000, seed=5)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert np.abs(np.quantile(drawn, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.01


@pytest.mark.parametrize("shape", [0.1, 0.7, 1.0, 4.0])
def test_gamma_numbers_have_their_mean_and_variance(shape):
    drawn = np.exp(log_gammas(shape, 200_000, seed=2))
    assert drawn.mean() == pytest.approx(shape, rel=0.02)
    assert drawn.var() == pytest.approx(shape, rel=0.04)


def test_shares_have_the_variance_of_a_dirichlet_distribution():
    alpha, count = 0.3, 8
    drawn = np.array([np.diff(dirichlet_shares(alpha, count, seed=seed), prepend=0.0) for seed in range(3000)])
    assert drawn.mean(0) == pytest.approx(np.full(count, 1 / count), abs=0.015)
    expected = (count - 1) / (count**2 * (count * alpha + 1))
    assert drawn.var(0).mean() == pytest.approx(expected, rel=0.04)


def test_a_tiny_alpha_gives_one_device_each_class():
    ends = dirichlet_shares(1e-4, 50, seed=1)
    assert np.isfinite(ends).all()
    assert ends[-1] == 1.0


# Text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("iid", data.iid()),
        ("iid()", data.iid()),
        (" dirichlet( 0.1 ) ", data.dirichlet(0.1)),
        ("dirichlet(0.1, least=5)", data.dirichlet(0.1, least=5)),
        ("dirichlet(0.12345678901)", data.dirichlet(0.12345678901)),
        ("pathological(2)", data.pathological(2)),
        ("by(writer)", data.by("writer")),
        ('by("writer id")', data.by("writer id")),
        (r'by("the \"writer\"")', data.by('the "writer"')),
        ("sizes(1.2)", data.sizes(1.2)),
        ("sizes(1.2, iid)", data.sizes(1.2)),
        ("sizes(1.2, dirichlet(0.1, least=3))", data.sizes(1.2, data.dirichlet(0.1, least=3))),
    ],
)
def test_a_partition_is_read_and_written(text, partition):
    assert data.parse_partition(text) == partition
    assert data.parse_partition(str(partition)) == partition


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "dirichlet", "dirichlet()", "dirichlet(a)", "dirichlet(0.1", "by(user-id)", "iid(3)", "sizes('a')"),
        *("__import__('os').getcwd()", "dirichlet(**{})", "dirichlet(*[1])", "iid if 1 else iid", "(" * 150, "i" * 999),
    ],
)
def test_what_is_no_partition_is_answered_with_what_is(text):
    with pytest.raises(Misuse, match=r"is not a partition; there are: iid, dirichlet\(0.1\), .*by\(writer\)"):
        data.parse_partition(text)


# Refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: data.dirichlet(0), "alpha is above 0"),
        (lambda: data.dirichlet(0.1, least=-1), "least is a whole number of rows"),
        (lambda: data.parse_partition("dirichlet(0.1, least=2.0)"), "least is a whole number of rows"),
        (lambda: data.parse_partition("dirichlet(0.1, least=1e999)"), "least is a whole number of rows"),
        (lambda: data.parse_partition("pathological(2.0)"), "a whole number from 1"),
        (lambda: data.pathological(0), "a whole number from 1"),
        (lambda: data.pathological(1.5), "a whole number from 1"),
        (lambda: data.by(""), "names a column"),
        (lambda: data.sizes(-1), "the power is a number from 0"),
        (lambda: data.sizes(1, "iid"), "is another partition"),
        (lambda: data.iid().rows(LABELS, 0), "at least one device"),
        (lambda: data.iid().rows(LABELS, 776), "775 examples are too few for 776 devices"),
        (lambda: data.iid().rows(np.zeros((9, 2)), 3), "one value for each example"),
        (lambda: data.dirichlet(0.1, least=8).rows(LABELS, 100), "do not give 100 devices 8 each"),
        (lambda: data.dirichlet(0.1).rows(LABELS / 2, 4), "the labels are float64"),
        (lambda: data.pathological(8).rows(LABELS, 100), "cannot be cut into 8 pieces"),
        (lambda: data.pathological(1).rows(LABELS / 2, 4), "the labels are float64"),
        (lambda: data.by("writer").rows(LABELS, 11), "10 different values, too few for 11"),
    ],
)
def test_what_cannot_be_divided_says_why(make, why):
    with pytest.raises(Misuse, match=why):
        make()


def test_what_decides_is_a_column():
    assert [each.column for each in (data.iid(), data.dirichlet(1), data.pathological(1), data.by("w"))] == [
        *("", "y", "y", "w")
    ]
    assert (data.sizes(1).column, data.sizes(1, data.by("w")).column) == ("", "w")
    assert isinstance(data.iid(), Partition)
    assert len({*PARTITIONS, *PARTITIONS}) == len(PARTITIONS), "values: equal ones are one"


def test_drawn_rows_serve_more_devices_than_there_are_rows():
    parts = data.drawn(20, 0.1).rows(LABELS, 2_000, seed=3)
    assert len(parts) == 2_000
    assert {len(rows) for rows in parts} == {20}
    assert len(np.unique(np.concatenate(parts))) > 0.9 * len(LABELS)
    # Most devices have few classes; with a large alpha they have most of them.
    assert np.mean([classes_on(rows) for rows in parts]) < 4
    assert np.mean([classes_on(rows) for rows in data.drawn(20, 100.0).rows(LABELS, 200)]) > 7
    # Shares are drawn device by device: over all of them, classes are equally frequent whatever their sizes.
    assert np.bincount(LABELS[np.concatenate(parts)]) / 40_000 == pytest.approx(np.full(10, 0.1), abs=0.02)


def test_drawn_rows_are_a_function_of_the_seed_and_are_here_what_they_are_there(monkeypatch):
    partition = data.drawn(5, 0.3)
    parts = partition.rows(LABELS, 30, seed=1)
    assert data.hash_of(parts) == data.hash_of(partition.rows(LABELS, 30, seed=1))
    assert data.hash_of(parts) != data.hash_of(partition.rows(LABELS, 30, seed=2))
    monkeypatch.setenv("SHOAL_PART", "7/30")
    assert partition.here(LABELS, seed=1).tolist() == parts[6].tolist()


def test_what_cannot_be_drawn_is_refused():
    for count, alpha in ((0, 0.1), (5, 0.0), (5, float("inf"))):
        with pytest.raises(Misuse):
            data.drawn(count, alpha)
    with pytest.raises(Misuse, match="gives a row to several devices"):
        data.sizes(1.2, data.drawn(5, 0.1)).rows(LABELS, 4)
    with pytest.raises(Misuse, match="too few"):
        data.iid().rows(LABELS, 1_000)


def test_the_parts_of_many_devices_are_slices_of_one_array():
    parts = data.iid().rows(LABELS, 25)
    assert [rows.tolist() for rows in parts[3:5]] == [parts[3].tolist(), parts[4].tolist()]
    assert parts[-1].tolist() == parts[24].tolist()
    with pytest.raises(IndexError):
        parts[25]
