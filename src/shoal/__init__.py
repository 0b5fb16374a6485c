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
    from shoal import data
    from shoal.api import Result, fit
    from shoal.loop import worker
    from shoal.offload.api import offload
    from shoal.plan import Plan, Until, accuracy, endless, epochs, seconds
    from shoal.task import Task

__all__ = [
    "Plan",
    "Result",
    "Task",
    "Until",
    "accuracy",
    "data",
    "endless",
    "epochs",
    "fit",
    "offload",
    "seconds",
    "worker",
]

_HOME = {
    "Plan": "shoal.plan",
    "Result": "shoal.api",
    "Task": "shoal.task",
    "Until": "shoal.plan",
    "accuracy": "shoal.plan",
    "endless": "shoal.plan",
    "epochs": "shoal.plan",
    "fit": "shoal.api",
    "seconds": "shoal.plan",
    "worker": "shoal.loop",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "huggingface", "lightning", "offload"):
        # The last is a package that can be called: see there.
        return import_module(f"shoal.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
