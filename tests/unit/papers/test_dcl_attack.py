"""The attack on shuffles: it puts pixels back from a static one, and finds nothing under a mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from papers.dcl.attack import (
    IMAGES,
    PIXELS,
    Recovered,
    apart_view,
    attacked,
    chance_level,
    masked_view,
    recover,
    shuffled_view,
)
from shoal.errors import Misuse

SEED = bytes(range(16))


def test_within_counts_diagonals_and_no_wrapping() -> None:
    truth = np.arange(PIXELS)
    # 0 is at the left of row 0; 27 at its right, 28 below 0, 29 diagonal to it, 56 two below.
    found = Recovered(active=np.array([0, 0, 0, 0, 0]), pixels=np.array([0, 27, 28, 29, 56]))
    assert found.within(truth) == pytest.approx(3 / 5)
    assert found.within(truth, distance=0) == pytest.approx(1 / 5)
    assert chance_level() == pytest.approx(9 / 784)


def test_views_keep_histograms_unless_masked() -> None:
    images = np.random.default_rng(0).random((12, PIXELS), dtype=np.float32)
    for view in (shuffled_view, apart_view):
        observed, truth = view(images, SEED)
        for place in (0, 100, 783):
            assert sorted(observed[:, place]) == sorted(images[:, truth[place]])
    observed, _ = masked_view(images, SEED)
    assert observed.min() < 2**28 < 2**31 < observed.max()


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(Misuse, match="as many pixels"):
        recover(np.zeros((3, 5)), np.zeros((3, 6)))


@pytest.mark.needs_data
def test_a_static_shuffle_is_undone_and_a_mask_is_not(real_data: Path) -> None:
    found = attacked(images=IMAGES, seed=5)
    assert found["static"] >= 0.90
    # Rows shuffled for each feature by itself: histograms still tell several times as much as chance.
    assert found["apart"] > 4 * chance_level()
    # 784 pixels at chance 9/784 are 9 ± 3: at most 5 deviations above.
    assert found["mask"] < chance_level() + 5 * np.sqrt(chance_level() / PIXELS)
