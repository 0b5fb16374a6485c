"""Random numbers for graphs: the same on every device, of the shape and the kind that was asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.trainer.portable.draws import Drawn, draw_all

SEEDS = st.integers(0, (1 << 64) - 1)


@given(seed=SEEDS, examples=st.integers(1, 40))
def test_draws_repeat_and_keep_their_bounds(seed: int, examples: int) -> None:
    draws = (
        Drawn(name="draw0", kind="uniform", shape=((1, 0), (0, 3))),
        Drawn(name="draw1", kind="normal", shape=((2, 1),)),
        Drawn(name="draw2", kind="integers", shape=((1, 0),), low=-2, high=5),
        Drawn(name="draw3", kind="permutation", shape=((1, 0),)),
    )
    found, again = draw_all(draws, examples, seed), draw_all(draws, examples, seed)
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert found["draw0"].shape == (examples, 3)
    assert found["draw0"].dtype == np.float32
    assert 0 <= found["draw0"].min() <= found["draw0"].max() < 1
    assert found["draw1"].shape == (2 * examples + 1,)
    assert np.isfinite(found["draw1"]).all()
    assert -2 <= found["draw2"].min() <= found["draw2"].max() < 5
    assert sorted(found["draw3"]) == list(range(examples))


def test_draws_spread_as_they_should() -> None:
    # Of 40,000 numbers the mean is within 5 standard errors: 5 * 0.289 / 200 and 5 / 200.
    even = Drawn(name="draw0", kind="uniform", shape=((1, 0),)).draw(40_000, 7)
    assert abs(even.mean() - 0.5) < 0.0073
    normal = Drawn(name="draw0", kind="normal", shape=((1, 0),)).draw(40_000, 7)
    assert abs(normal.mean()) < 0.025
    assert abs(normal.std() - 1) < 0.02
    assert abs(np.corrcoef(normal[:-1], normal[1:])[0, 1]) < 0.025
