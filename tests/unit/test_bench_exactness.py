"""The pure parts of ``benchmarks.exactness``: the references by plain PyTorch, and how differences are measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from benchmarks import exactness
from benchmarks.exactness import Course, largest, plain_gpt, plain_line, versions_of
from benchmarks.exactness_tasks import Gpt, Line
from shoal.scheduling.batches import batch_indices, epoch_order

pytestmark = pytest.mark.timeout(120)

#: Both batches of an epoch in one version, for two epochs.
VERSIONS = (((0, (0,)), (0, (1,))), ((1, (1,)), (1, (0,))))


@dataclass(frozen=True)
class Row:
    version: int
    lease: int
    epoch: int
    batch: int


def course(versions: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...] = VERSIONS) -> Course:
    torch.manual_seed(0)
    first = {name: each.detach().numpy() for name, each in Gpt().named_parameters()}
    return Course(first, first, versions)


def test_rows_of_history_are_grouped_by_version_and_lease() -> None:
    rows = [Row(2, 9, 1, 0), Row(1, 4, 0, 1), Row(1, 3, 0, 0), Row(1, 4, 0, 2)]
    assert versions_of(rows) == (((0, (0,)), (0, (1, 2))), ((1, (0,)),))


def test_the_largest_difference_names_its_tensor() -> None:
    one = {"a": np.array([1.0, 2.0]), "b": np.array([5.0])}
    assert largest(one, {"a": np.array([1.0, 2.5]), "b": np.array([5.25])}) == (0.5, "a")


def test_the_model_is_tied_and_decays_in_two_groups() -> None:
    model = Gpt()
    assert model.head.weight is model.tokens.weight
    matrices, vectors = exactness.adamw_two_groups(model).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (exactness.DECAY, 0.0)
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))


def test_a_version_is_one_step_whatever_its_leases() -> None:
    """Halves in any order are the whole; and a clip, a group or a precision is another run."""
    one = plain_gpt(course(), 0, exactness.adamw, dtype=torch.float64)
    swapped = tuple(tuple(reversed(leases)) for leases in VERSIONS)
    other = plain_gpt(course(swapped), 0, exactness.adamw, dtype=torch.float64)
    assert largest(one, other)[0] < 1e-6
    assert largest(one, plain_gpt(course(), 0, exactness.adamw_two_groups, dtype=torch.float64))[0] > 1e-5
    sgd = plain_gpt(course(), 0, exactness.heavy_ball, dtype=torch.float32)
    clipped = plain_gpt(course(), 0, exactness.heavy_ball, dtype=torch.float32, clip=exactness.CLIP)
    assert largest(sgd, clipped)[0] > 1e-3


def test_a_short_window_of_the_line_is_a_whole_step() -> None:
    lease = (0, (0, 1, 2, 3, 4, 5))
    found = plain_line(Course({"weight": np.zeros((1, 1), np.float32)}, {}, ((lease,),)))
    _, y = Line().examples("train")
    order = epoch_order(len(y), seed=0, epoch=0)
    windows = [np.concatenate([batch_indices(order, batch, 4) for batch in some]) for some in ((0, 1, 2, 3), (4, 5))]
    assert found == -exactness.LINE_RATE * sum(float(y[rows].mean(dtype=np.float64)) for rows in windows)
