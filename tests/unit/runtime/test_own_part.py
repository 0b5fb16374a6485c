"""The file of a device's own part: it holds what the last update that was taken left, whatever came after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.layout import Layout
from shoal.runtime import own_part
from shoal.runtime.own_part import OwnPartFile

LAYOUT = Layout.of([("head.weight", (2, 2), "parameter"), ("head.bias", (2,), "parameter")])


def values(number: float) -> np.ndarray:
    return np.full(LAYOUT.size, number, np.float32)


def begun(folder: Path, layout: Layout = LAYOUT) -> OwnPartFile:
    own = OwnPartFile(folder, "job-1", layout)
    own.begin_with(values(0))
    return own


def holds(own: OwnPartFile) -> float:
    assert own.values is not None
    assert len(set(own.values.tolist())) == 1
    return float(own.values[0])


def test_what_was_taken_is_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    own = begun(tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    own.made(1, values(1))
    assert holds(begun(tmp_path)) == 0, "the leader has not spoken yet"
    own.settle(1, taken=True)
    assert (holds(own), holds(begun(tmp_path))) == (1, 1)
    own.made(2, values(2))
    own.settle(2, taken=False)
    assert (holds(own), holds(begun(tmp_path))) == (1, 1)


def test_an_update_that_is_refused_after_all_is_taken_back(tmp_path: Path) -> None:
    own = begun(tmp_path)
    for lease in (1, 2):
        own.made(lease, values(lease))
        own.settle(lease, taken=True)
    # Of a lease that is void, which finished late.
    own.made(9, values(9))
    own.settle(2, taken=False)
    assert (holds(own), holds(begun(tmp_path))) == (1, 1)
    own.settle(2, taken=False)
    assert holds(own) == 1


def test_the_first_lease_refused_after_all_leads_back_to_the_first_model(tmp_path: Path) -> None:
    own = begun(tmp_path)
    own.made(1, values(1))
    own.settle(1, taken=True)
    own.settle(1, taken=False)
    assert (holds(own), holds(begun(tmp_path))) == (0, 0)


def test_leases_that_were_lost_with_their_leader_are_taken_back(tmp_path: Path) -> None:
    own = begun(tmp_path)
    for lease in (1, 2, 3, 4):
        own.made(lease, values(lease))
        own.settle(lease, taken=True, undoable=min(lease, 3))
    own.undo(2)
    assert (holds(own), holds(begun(tmp_path))) == (2, 2)
    own.undo(5)
    assert holds(own) == 1, "what was before the third last is forgotten"
    own.undo(1)
    assert holds(own) == 1


def test_what_is_kept_does_not_change_with_the_memory_it_came_in(tmp_path: Path) -> None:
    own, memory = begun(tmp_path), values(1)
    own.made(1, memory)
    memory[:] = 7
    own.settle(1, taken=True)
    assert holds(own) == 1


def test_a_file_of_another_model_or_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    own = begun(tmp_path)
    own.made(1, values(1))
    own.settle(1, taken=True)
    other = Layout.of([("head.weight", (3, 2), "parameter")])
    assert OwnPartFile(tmp_path, "job-1", other).values is None
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    assert holds(begun(tmp_path)) == 0


def test_a_file_with_values_that_are_not_finite_is_set_aside(tmp_path: Path) -> None:
    own = begun(tmp_path)
    # No lease leaves such values. A device that began with them would diverge at every lease.
    own.made(1, values(float("nan")))
    own.settle(1, taken=True)
    assert holds(begun(tmp_path)) == 0


def test_files_of_old_jobs_go(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(own_part, "JOBS_KEPT", 3)
    for number in range(5):
        own = OwnPartFile(tmp_path, f"job-{number}", LAYOUT)
        own.begin_with(values(0))
        own.made(1, values(1))
        own.settle(1, taken=True)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    assert (tmp_path / "own" / "job-4.safetensors").exists()


@given(st.lists(st.sampled_from(["taken", "lost", "refused late", "restart", "void"]), max_size=30))
def test_it_is_what_the_last_update_that_was_taken_left(tmp_path_factory, story) -> None:
    folder = tmp_path_factory.mktemp("own")
    own, taken = begun(folder), [0.0]
    for lease, what in enumerate(story, start=1):
        match what:
            case "restart":
                own = begun(folder)
            case "void":
                own.made(lease, values(lease))
            case _:
                own.made(lease, values(lease))
                own.settle(lease, taken=what != "lost")
                if what == "taken":
                    taken.append(lease)
                elif what == "refused late":
                    own.settle(lease, taken=False)
        assert holds(own) == taken[-1]
    assert holds(begun(folder)) == taken[-1]
