"""The callbacks of a program that follows a job, and loggers that write what they get. Each imports its package
late.
"""

from __future__ import annotations

import csv
import importlib
import math
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.handle import Job
    from shoal.history import HistoryRow
    from shoal.result import Result
    from shoal.wire.messages import JobView


class CallbackReply(Enum):
    """What a callback may answer."""

    STOP = "stop"


#: The job is stopped: its last version is saved, and ``fit`` gives its model.
STOP: Final = CallbackReply.STOP


class Callback:
    """Subclass this and override what you want to hear. Methods are called in the program's own thread.

    Each but the last may answer ``shoal.STOP``. What a method raises ends ``fit``.
    """

    def on_start(self, job: Job) -> CallbackReply | None:
        """The job is on its cluster."""
        return None

    def on_evaluation(self, row: HistoryRow) -> CallbackReply | None:
        """A version was judged."""
        return None

    def on_progress(self, view: JobView) -> CallbackReply | None:
        """How the job stands; about twice a second."""
        return None

    def on_end(self, result: Result) -> None:
        """Once, however it ends: ``result.state`` says how, and is an open state if this program leaves the job."""


class CSV(Callback):
    """A row an evaluation in a file, which is whole after each."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows: list[dict[str, Any]] = []
        self._columns: tuple[str, ...] = ()

    def on_start(self, job: Job) -> None:
        self._rows, self._columns = [], ()

    def on_evaluation(self, row: HistoryRow) -> None:
        plain = row.to_dict()
        self._rows.append(plain)
        columns = tuple(dict.fromkeys((*self._columns, *_in_order(plain))))
        # A column that was not there before changes the first line, and with it the file.
        is_new = columns != self._columns
        self._columns = columns
        with self.path.open("w" if is_new else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            if is_new:
                writer.writeheader()
            writer.writerows(self._rows if is_new else [plain])


def _in_order(plain: dict[str, Any]) -> list[str]:
    first = ("version", "epoch", "seconds", "examples", "loss", "accuracy")
    return [*first, *(name for name in plain if name not in first)]


class TensorBoard(Callback):
    """Scalars by version in a folder of event files. Needs the package ``tensorboard``, and no torch."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: Any = None

    def on_start(self, job: Job) -> None:
        events = _package("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._writer = events.EventFileWriter(str(self._folder / job.id))

    def on_evaluation(self, row: HistoryRow) -> None:
        event_pb2 = _package("tensorboard.compat.proto.event_pb2", "tensorboard")
        summary_pb2 = _package("tensorboard.compat.proto.summary_pb2", "tensorboard")
        values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.measured.items()]
        summary = summary_pb2.Summary(value=values)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=row.version, summary=summary))
        self._writer.flush()

    def on_end(self, result: Result) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow(Callback):
    """A run of MLflow: the plan as parameters, evaluations as metrics by version, the model as a file.

    Without ``run_id`` it makes a run of its own in ``experiment``. Needs ``mlflow`` or ``mlflow-skinny``.
    """

    def __init__(
        self, experiment: str = "shoal", *, tracking_uri: str | None = None, run_id: str = "", log_model: bool = True
    ) -> None:
        self._experiment, self._tracking_uri, self._run, self._log_model = experiment, tracking_uri, run_id, log_model
        self._client: Any = None

    def on_start(self, job: Job) -> None:
        self._client = _package("mlflow", "mlflow-skinny").MlflowClient(tracking_uri=self._tracking_uri)
        if not self._run:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
            self._run = self._client.create_run(experiment, run_name=job.id, tags={"shoal.job": job.id}).info.run_id
        for name, value in _plan_of(job).items():
            self._client.log_param(self._run, name, value)

    def on_evaluation(self, row: HistoryRow) -> None:
        for name, value in row.measured.items():
            self._client.log_metric(self._run, name, value, step=row.version)

    def on_end(self, result: Result) -> None:
        if self._client is None:
            return
        if self._log_model and result.path is not None:
            self._client.log_artifact(self._run, str(result.path))
        ends = {"finished": "FINISHED", "failed": "FAILED"}
        self._client.set_terminated(self._run, ends.get(result.state, "KILLED"))


class WandB(Callback):
    """A run of Weights & Biases: the plan as its configuration, evaluations by version. Needs ``wandb``.

    What else ``wandb.init`` takes is given by name, such as ``mode="offline"``.
    """

    def __init__(self, project: str = "shoal", **settings: Any) -> None:
        self._settings = {"project": project, **settings}
        self._run: Any = None

    def on_start(self, job: Job) -> None:
        settings = {"name": job.id, "config": _plan_of(job), **self._settings}
        self._run = _package("wandb", "wandb").init(**settings)

    def on_evaluation(self, row: HistoryRow) -> None:
        self._run.log({"epoch": row.epoch, "seconds": row.seconds, **row.measured}, step=row.version)

    def on_end(self, result: Result) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if result.state == "failed" else 0)
            self._run = None


class EarlyStopping(Callback):
    """Stop the job once a metric has not become better for ``patience`` evaluations.

    ``better`` is ``"lower"`` or ``"higher"``; without it, what the metric itself says. ``least`` is how much better
    counts.
    """

    def __init__(self, metric: str = "loss", patience: int = 5, better: str = "", *, least: float = 0.0) -> None:
        if patience < 1:
            raise Misuse(f"EarlyStopping waits for at least one evaluation, not {patience}")
        if better not in ("", "lower", "higher"):
            raise Misuse(f"EarlyStopping: better is 'lower' or 'higher', not {better!r}")
        self._metric, self._patience, self._better, self._least = metric, patience, better, least
        self._best: float | None = None
        self._waited = 0

    def on_start(self, job: Job) -> None:
        self._best, self._waited = None, 0

    def on_evaluation(self, row: HistoryRow) -> CallbackReply | None:
        known = row.to_dict()
        if self._metric not in known:
            raise Misuse(f"EarlyStopping watches {self._metric!r}, and the job measures {', '.join(sorted(known))}")
        value = known[self._metric]
        if value is not None and math.isfinite(value) and self._is_better(value, row):
            self._best, self._waited = value, 0
            return None
        self._waited += 1
        return STOP if self._waited >= self._patience else None

    def _is_better(self, value: float, row: HistoryRow) -> bool:
        is_lower = self._better == "lower" or (not self._better and self._metric in row.lower)
        if self._best is None:
            return True
        gain = self._best - value if is_lower else value - self._best
        return gain > self._least


def _plan_of(job: Job) -> dict[str, Any]:
    from shoal.wire.encoding import to_json

    plain: dict[str, Any] = to_json(job.status().plan)
    return plain


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Misuse(f"this callback needs {package}: pip install {package}") from None
