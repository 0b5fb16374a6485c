"""The table of a job's evaluations."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.history import History
from shoal.wire.messages import EvaluationView, MetricView


def view(version: int, **values: Any) -> EvaluationView:
    known = {"epoch": 1, "seconds": 2.0, "examples": 10, "loss": 0.5, "accuracy": 0.9}
    return EvaluationView(version=version, **{**known, **values})


def test_rows_by_place_and_columns_by_name() -> None:
    history = History([view(4, loss=0.25), view(2)])
    assert len(history) == 2
    assert [row.version for row in history] == [2, 4]
    assert history[-1].loss == history[-1]["loss"] == 0.25
    assert history["loss"] == [0.5, 0.25]
    assert history[:1] == [history[0]]
    with pytest.raises(KeyError, match="it has version, epoch, seconds, examples, loss, accuracy"):
        history["f1"]
    assert "2 evaluations" in repr(history)


def test_a_version_is_new_once_and_again_when_it_was_judged_again() -> None:
    history = History()
    assert [row.version for row in history.take([view(2), view(4)])] == [2, 4]
    assert history.take([view(2), view(4)]) == ()
    assert [row.version for row in history.take([view(4, loss=0.1)])] == [4]
    assert history["loss"][1] == 0.1


def test_metrics_by_name_are_columns() -> None:
    told = (
        MetricView(name="loss", value=0.5, lower=True),
        MetricView(name="f1", value=0.75, lower=False),
        MetricView(name="mae", value=None, lower=True),
    )
    history = History([view(1), view(2, accuracy=None, metrics=told)])
    assert history.columns == ("version", "epoch", "seconds", "examples", "loss", "accuracy", "f1", "mae")
    assert history["f1"] == [None, 0.75]
    assert history[-1].measured == {"loss": 0.5, "f1": 0.75}
    assert history[-1].lower == {"loss", "mae"}


def test_the_html_of_a_strange_name_is_escaped() -> None:
    told = (MetricView(name="<script>", value=1.0),)
    assert "<script>" not in History([view(1, metrics=told)])._repr_html_()


def test_a_data_frame_has_the_columns_or_says_what_is_missing() -> None:
    history = History([view(1), view(2)])
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(Misuse, match="pip install pandas"):
            history.to_dataframe()
        return
    frame = history.to_dataframe()
    assert list(frame.columns) == list(history.columns)
    assert list(frame["version"]) == [1, 2]
