"""A leader with little memory makes the same versions, bit for bit, and allocates no more than it needs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.leader import training_state
from shoal.roles.leader.memory import IN_MEMORY, Memory
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.runtime.update_files import put_away_in
from shoal.sim.jobs import bare_spec
from shoal.wire.messages import Update

BATCHES, BATCH = 30, 4
PLANS = {
    "sgd": Plan(batch_size=BATCH, momentum=0.9, until=Until(epochs=9)),
    "plain": Plan(batch_size=BATCH, momentum=0.0, until=Until(epochs=9)),
    "nesterov": Plan(batch_size=BATCH, outer="nesterov", momentum=0.9, outer_rate=0.7, until=Until(epochs=9)),
    "adamw": Plan(batch_size=BATCH, outer="adamw", weight_decay=0.1, learning_rate=0.5, until=Until(epochs=9)),
    "adacomp": Plan(batch_size=BATCH, momentum=0.0, pace="async", staleness="parameter", until=Until(epochs=9)),
}


def layout(values: int) -> Layout:
    """Parameters, and buffers after them."""
    return Layout.of([("w", (values,), "parameter"), ("mean", (7,), "buffer")])


def training(plan: Plan, memory: Memory, *, values: int = 1000) -> TrainingState:
    model = np.linspace(-1, 1, values + 7, dtype=np.float32)
    model.flags.writeable = False
    spec = bare_spec("job", plan, examples=BATCHES * BATCH)
    return TrainingState(Machine(), spec, layout(values), model, memory=memory)


def play_version(course: TrainingState, rng: np.random.Generator, *, workers: int) -> None:
    for number in range(workers):
        lease = course.ledger.lease(
            100 * course.version + number, f"w{number}", count=1, version=course.version, now_s=0.0, deadline_s=9.0
        )
        assert lease is not None
        delta = rng.standard_normal(course.model.size).astype(np.float32)
        update = Update(job="job", term=1, lease=lease.id, version=lease.version, examples=BATCH, loss_sum=1.0)
        course.merge(lease, update, delta)
    course.advance()


@pytest.mark.parametrize("name", PLANS)
def test_versions_are_the_same_however_the_leader_holds_its_arrays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = training(PLANS[name], IN_MEMORY)
    small = training(PLANS[name], Memory(put_away=put_away_in(tmp_path, memory_bytes=0), owned_from_bytes=1))
    for course, part in ((plain, 1 << 18), (small, 300)):
        monkeypatch.setattr(training_state, "STEP_VALUES", part)
        rng = np.random.default_rng(5)
        for version, workers in enumerate((1, 2, 3, 2)):
            play_version(course, rng, workers=workers)
            if version == 1:
                course.on_found_good()
        course.go_back()
        play_version(course, rng, workers=2)
    assert small.version == plain.version
    assert small.model.tobytes() == plain.model.tobytes()
    ours, theirs = small.snapshot()[0], plain.snapshot()[0]
    assert {key: array.tobytes() for key, array in ours.items()} == {
        key: each.tobytes() for key, each in theirs.items()
    }


def test_a_version_that_was_published_never_changes(tmp_path: Path) -> None:
    course = training(PLANS["sgd"], Memory(put_away=put_away_in(tmp_path, memory_bytes=0), owned_from_bytes=1))
    rng, held = np.random.default_rng(1), []
    for _ in range(3):
        play_version(course, rng, workers=2)
        tensors, _ = course.snapshot()
        held.append((tensors, {name: array.copy() for name, array in tensors.items()}))
    for tensors, copies in held:
        assert all(tensors[name].tobytes() == copies[name].tobytes() for name in copies)


def test_a_version_of_two_updates_takes_no_memory_beside_them(tmp_path: Path) -> None:
    values = 1 << 20
    course = training(
        PLANS["sgd"], Memory(put_away=put_away_in(tmp_path, memory_bytes=0), owned_from_bytes=1), values=values
    )
    rng = np.random.default_rng(1)
    play_version(course, rng, workers=2)
    model_bytes = course.model.nbytes
    tracemalloc.start()
    try:
        play_version(course, rng, workers=2)
        now_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two updates come, of which the next model and its velocity are made. Making one takes its float64 values, which
    # are twice as large: that is this test's own. The last arrays were allocated before and do not count.
    assert peak_bytes < 4.5 * model_bytes
    assert now_bytes < 2.2 * model_bytes
