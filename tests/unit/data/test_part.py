"""The part of a divided set that a device has: as it is typed, as a task asks for it, and as the simulator counts."""

import numpy as np
import pytest

from shoal import data
from shoal.data.local import PART_VARIABLE, parse_part
from shoal.data.partition import Dirichlet
from shoal.errors import Misuse

pytestmark = pytest.mark.timeout(60)

LABELS = np.arange(200) % 7


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch):
    monkeypatch.delenv(PART_VARIABLE, raising=False)


@pytest.mark.parametrize(("text", "part"), [("1/1", (0, 1)), ("17/1000", (16, 1000)), ("1000/1000", (999, 1000))])
def test_parts_are_counted_from_one(text, part):
    assert parse_part(text) == part


@pytest.mark.parametrize(
    "text", ["", "0/5", "18/17", "5", "1/0", "-1/5", "1/5/9", "a/b", " 1/5", "1.0/5", "1" * 12 + "/5"]
)
def test_what_is_no_part_is_refused(text, monkeypatch):
    with pytest.raises(Misuse, match=r"is not a part: write 17/1000 for device 17 of 1,000, counted from 1"):
        parse_part(text)
    if text:
        monkeypatch.setenv(PART_VARIABLE, text)
        with pytest.raises(Misuse, match="is not a part"):
            data.part()


def test_every_device_takes_its_rows_and_nobody_elses(monkeypatch):
    partition = data.dirichlet(0.3)
    expected = partition.rows(LABELS, 5, seed=3)
    for number, rows in enumerate(expected, start=1):
        monkeypatch.setenv(PART_VARIABLE, f"{number}/5")
        assert data.part() == (number - 1, 5)
        assert partition.here(LABELS.tolist(), seed=3).tolist() == rows.tolist()


def test_rows_are_divided_once_for_all_leases(monkeypatch):
    monkeypatch.setenv(PART_VARIABLE, "2/5")
    divided = []
    owners = Dirichlet.owners
    monkeypatch.setattr(Dirichlet, "owners", lambda *given, **more: divided.append(1) or owners(*given, **more))
    partition, writers = data.dirichlet(0.31), np.array(["ada", "bo", "cy", "di", "ed"])[LABELS % 5]
    first = partition.here(LABELS)
    first[:] = 0
    assert partition.here(LABELS).tolist() == partition.rows(LABELS, 5)[1].tolist()
    assert len(divided) == 2
    assert partition.here(LABELS + 1, seed=1).tolist() == partition.rows(LABELS, 5, seed=1)[1].tolist()
    assert len(set(writers[data.by("writer").here(writers)])) == 1


def test_without_a_part_all_rows_are_here():
    assert data.part() is None
    assert data.dirichlet(0.3).here(LABELS).tolist() == list(range(200))
