"""What callbacks do with what they hear."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal import callbacks
from shoal.callbacks import CSV, EarlyStopping, MLflow, TensorBoard, WandB
from shoal.errors import Misuse
from shoal.history import HistoryRow
from shoal.plan import Plan
from shoal.result import Result
from shoal.states import JobState


def row(version: int, loss: float = 0.5, accuracy: float | None = 0.5, **metrics: float) -> HistoryRow:
    return HistoryRow(
        version=version, epoch=version, seconds=1.0, examples=10, loss=loss, accuracy=accuracy, metrics=metrics
    )


JOB: Any = SimpleNamespace(id="clouds-0000", status=lambda: SimpleNamespace(plan=Plan()))


def ended(path: Path | None = None) -> Result:
    return Result(
        job=JOB.id,
        state=JobState.FINISHED,
        reason="",
        accuracy=0.5,
        loss=0.5,
        seconds=1.0,
        version=2,
        workers=1,
        path=path,
        task=None,
    )


def answers(callback: EarlyStopping, rows: list[HistoryRow]) -> list[bool]:
    return [callback.on_evaluation(each) is shoal.STOP for each in rows]


def test_early_stopping_waits_for_its_patience() -> None:
    losses = [0.5, 0.4, 0.41, 0.39, 0.4, 0.4]
    assert answers(EarlyStopping("loss", 2), [row(i, loss) for i, loss in enumerate(losses)]) == [False] * 5 + [True]


def test_early_stopping_takes_more_for_better_unless_the_metric_says_less() -> None:
    rows = [row(i, f1=value) for i, value in enumerate([0.1, 0.2, 0.3])]
    assert answers(EarlyStopping("f1", 1), rows) == [False] * 3
    assert answers(EarlyStopping("f1", 1, "lower"), rows) == [False, True, True]
    assert answers(EarlyStopping("f1", 1, least=0.5), rows) == [False, True, True]
    assert answers(EarlyStopping("loss", 1), [row(1, 0.5), row(2, float("nan"))]) == [False, True]


def test_early_stopping_refuses_what_it_cannot_watch() -> None:
    with pytest.raises(Misuse, match="'higher'"):
        EarlyStopping("loss", better="more")
    with pytest.raises(Misuse, match="at least one"):
        EarlyStopping("loss", 0)
    with pytest.raises(Misuse, match="the job measures accuracy"):
        EarlyStopping("f1").on_evaluation(row(1))


def test_a_csv_gets_a_new_first_line_with_a_new_column(tmp_path: Path) -> None:
    file = CSV(tmp_path / "log.csv")
    file.on_start(JOB)
    for each in (row(1), row(2, f1=0.5), row(3)):
        file.on_evaluation(each)
    with file.path.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [each["version"] for each in rows] == ["1", "2", "3"]
    assert [each["f1"] for each in rows] == ["", "0.5", ""]


@pytest.mark.parametrize(
    ("callback", "module", "package"),
    [
        (TensorBoard("runs"), "tensorboard.summary.writer.event_file_writer", "tensorboard"),
        (MLflow(), "mlflow", "mlflow-skinny"),
        (WandB(), "wandb", "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named(
    callback: callbacks.Callback, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(Misuse, match=f"pip install {package}"):
        callback.on_start(JOB)
    callback.on_end(ended())


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"model")
    callback = MLflow("clouds", tracking_uri=uri)
    callback.on_start(JOB)
    for version in (1, 2):
        callback.on_evaluation(row(version, 1 / version))
    callback.on_end(ended(model))
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name("clouds")
    (run,) = client.search_runs([found.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == str(Plan().batch_size)
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [(1, 1.0), (2, 0.5)]
    kept = tmp_path / "runs" / found.experiment_id / run.info.run_id / "artifacts" / model.name
    assert kept.read_bytes() == b"model"


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_writes_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    callback = WandB("clouds", mode="offline", dir=str(tmp_path))
    callback.on_start(JOB)
    callback.on_evaluation(row(1))
    callback.on_end(ended())
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
