"""Worse than it was, or only unlucky? What chance explains is not told as drift."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import evaluation, job, progress, status, story_of
from test_cli_view import drawn

from shoal.cli.drift import Drift, drift_of
from shoal.cli.job_history import Story
from shoal.cli.render.plain import PlainLines
from shoal.cli.render.plain_json import to_plain
from shoal.learning.significance import at_least, explained_gap
from shoal.wire.messages import EvaluationView


def judged(*shares: float, examples: int = 1000, **values: Any) -> list[EvaluationView]:
    usual: dict[str, Any] = {"loss": 0.2, "examples": examples, "seconds": 1.0}
    return [
        EvaluationView(version=10 * epoch, epoch=epoch, accuracy=share, **(usual | values))
        for epoch, share in enumerate(shares, start=1)
    ]


def test_the_least_a_share_is() -> None:
    # z = 2, n = 5, p = 1: (1 + 4/10 - 2 sqrt(4/100)) / (1 + 4/5) = (1.4 - 0.4) / 1.8
    assert at_least(1.0, 5) == pytest.approx(5 / 9)
    assert at_least(0.9, 1000) == pytest.approx(0.879, abs=1e-3)
    assert at_least(0.0, 10) == 0.0
    assert at_least(0.5, 0) == 0.0
    assert at_least(0.9, 100) < at_least(0.9, 1000) < at_least(0.91, 1000) < 0.91


def test_two_standard_deviations_of_a_difference() -> None:
    # Pooled 0.9: sqrt(0.09 * 2/1000) = 0.01342.
    assert explained_gap(0.91, 1000, 0.89, 1000) == pytest.approx(2 * 0.013416, rel=1e-3)
    # The best of e^2.5 or more: z² = 4 + 5 = 9.
    assert explained_gap(0.91, 1000, 0.89, 1000, picked_from=12) == pytest.approx(3 * 0.013416, rel=0.01)


def test_a_fall_that_chance_does_not_explain_is_drift() -> None:
    drift = drift_of(judged(0.6, 0.935, 0.93, 0.881))
    assert isinstance(drift, Drift)
    assert str(drift) == "drift: 88.1 % lately, 93.5 % at its best (epoch 2)"
    assert drift_of(judged(0.6, 0.935, 0.93, 0.92)) is None
    assert drift_of(judged(0.6, 0.935, 0.93, 0.881, examples=60)) is None, "over few examples it may be chance"


@pytest.mark.parametrize("shares", [(), (0.5,), (0.5, 0.9), (0.9, 0.9)])
def test_no_drift_without_a_fall(shares: tuple[float, ...]) -> None:
    assert drift_of(judged(*shares)) is None


def test_a_lucky_score_over_few_is_not_its_best() -> None:
    lucky = judged(0.9, 1.0, 0.8)
    lucky[1] = judged(1.0, 1.0, examples=4)[1]
    drift = drift_of(lucky)
    assert drift is not None
    assert drift.best.epoch == 1


def test_figures_that_are_no_shares_say_nothing() -> None:
    odd = [*judged(0.9), *judged(float("inf"), examples=5), *judged(3.0), *judged(0.2, examples=0)]
    assert drift_of(odd) is None
    assert drift_of([*odd, *judged(0.5)[:1]]) is not None


def test_steady_jobs_are_seldom_called_drifting() -> None:
    """Two hundred jobs that are always 90 % right, 150 evaluations each: the best of them is lucky, the last is not."""
    shares = np.random.default_rng(1).binomial(400, 0.9, (200, 150)) / 400
    alarms = sum(drift_of(judged(*map(float, row), examples=400)) is not None for row in shares)
    assert alarms <= 10


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10_000)), max_size=20))
def test_it_is_worse_and_of_the_past(shares: list[tuple[float, int]]) -> None:
    views = [judged(*[share] * (n + 1), examples=many)[n] for n, (share, many) in enumerate(shares)]
    drift = drift_of(views)
    if drift is not None:
        assert drift.latest.accuracy < drift.best.accuracy
        assert drift.latest.version > drift.best.version


DRIFTED = tuple(evaluation(epoch, share) for epoch, share in enumerate((0.8, 0.935, 0.93, 0.881), start=1))


def test_drift_is_a_line_of_the_picture_which_still_fits() -> None:
    text = "\n".join(drawn(story_of(status())))
    assert "drift" not in text
    lines = drawn(story_of(status(evaluations=DRIFTED)))
    (line,) = [line for line in lines if "drift: 88.1 % lately, 93.5 % at its best (epoch 2)" in line]
    assert len(line) == 100
    assert len(lines) <= 30
    crowded = progress(saturation="gains", saturation_reason="worth it", topology="star", workers=())
    full = status(job(progress=crowded), evaluations=DRIFTED)
    assert len(drawn(story_of(full), height=24)) <= 24


def test_drift_is_told_in_lines_with_the_evaluation_that_shows_it() -> None:
    lines, story = PlainLines(), Story("mnist-3fa2")
    assert not [
        line for line in lines.lines(story, story.take(status(evaluations=DRIFTED[:3])), 0.0) if "drift" in line
    ]
    told = lines.lines(story, story.take(status(evaluations=DRIFTED)), 1.0)
    assert told[-1] == "drift: 88.1 % lately, 93.5 % at its best (epoch 2)"
    assert not [line for line in lines.lines(story, story.take(status(evaluations=DRIFTED)), 9.0) if "drift" in line]


def test_drift_becomes_json() -> None:
    plain = json.loads(json.dumps(to_plain(drift_of(DRIFTED))))
    assert (plain["latest"]["epoch"], plain["best"]["epoch"]) == (4, 2)
