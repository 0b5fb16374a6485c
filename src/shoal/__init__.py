"""Shoal: train PyTorch models on the devices people already have at the edge.

    class Digits(shoal.Task): ...
    result = shoal.fit(Digits(), workers=4, until=shoal.accuracy(0.98))

Names are loaded when they are first used: an agent that only waits for work does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.version import __version__ as __version__

if TYPE_CHECKING:
    from shoal import callbacks, data
    from shoal.api import fit, job, jobs, load, submit
    from shoal.ask import evaluate, tally
    from shoal.callbacks import STOP, Callback
    from shoal.data.raw_columns import column
    from shoal.experiments import compare, simulate
    from shoal.handle import Job
    from shoal.history import History
    from shoal.learning.algorithm import Algorithm
    from shoal.loop import worker
    from shoal.metrics import auc, confusion, f1, mean, ratio
    from shoal.offload.api import offload
    from shoal.plan import Plan, Until, accuracy, endless, epochs, seconds
    from shoal.questions import Tally
    from shoal.result import Result
    from shoal.task import Task
    from shoal.trainer.exporting import export
    from shoal.until import metric, plateau

__all__ = [
    "STOP",
    "Algorithm",
    "Callback",
    "History",
    "Job",
    "Plan",
    "Result",
    "Tally",
    "Task",
    "Until",
    "accuracy",
    "auc",
    "callbacks",
    "column",
    "compare",
    "confusion",
    "data",
    "endless",
    "epochs",
    "evaluate",
    "export",
    "f1",
    "fit",
    "job",
    "jobs",
    "load",
    "mean",
    "metric",
    "offload",
    "plateau",
    "ratio",
    "seconds",
    "simulate",
    "submit",
    "tally",
    "worker",
]

_HOME = {
    "STOP": "shoal.callbacks",
    "Algorithm": "shoal.learning.algorithm",
    "Callback": "shoal.callbacks",
    "History": "shoal.history",
    "Job": "shoal.handle",
    "Plan": "shoal.plan",
    "Result": "shoal.result",
    "Tally": "shoal.questions",
    "Task": "shoal.task",
    "Until": "shoal.plan",
    "accuracy": "shoal.until",
    "auc": "shoal.metrics",
    "column": "shoal.data.raw_columns",
    "compare": "shoal.experiments",
    "confusion": "shoal.metrics",
    "endless": "shoal.until",
    "epochs": "shoal.until",
    "evaluate": "shoal.ask",
    "export": "shoal.trainer.exporting",
    "f1": "shoal.metrics",
    "fit": "shoal.api",
    "job": "shoal.api",
    "jobs": "shoal.api",
    "load": "shoal.api",
    "mean": "shoal.metrics",
    "metric": "shoal.until",
    "plateau": "shoal.until",
    "ratio": "shoal.metrics",
    "seconds": "shoal.until",
    "simulate": "shoal.experiments",
    "submit": "shoal.api",
    "tally": "shoal.ask",
    "worker": "shoal.loop",
}


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "data", "huggingface", "lightning", "offload"):
        # The last is a package that can be called: see there.
        return import_module(f"shoal.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
