"""Sets of examples and readers of files, for tasks' ``examples``. Numpy; no torch.

Names are loaded when they are first used: an agent only reads a name from ``local``, and needs no numpy for that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.csv_rows import csv
    from shoal.data.digits import mnist
    from shoal.data.drebin import permissions
    from shoal.data.json_lines import jsonl
    from shoal.data.local import local_folder
    from shoal.data.npz_rows import npz
    from shoal.data.sensor_windows import windows

__all__ = ["csv", "jsonl", "local_folder", "mnist", "npz", "permissions", "windows"]

_HOME = {
    "csv": "csv_rows",
    "jsonl": "json_lines",
    "local_folder": "local",
    "mnist": "digits",
    "npz": "npz_rows",
    "permissions": "drebin",
    "windows": "sensor_windows",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"shoal.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'shoal.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
