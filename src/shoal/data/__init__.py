"""Sets of examples, readers of files and partitions, for tasks' ``examples``. Numpy; no torch.

Names are loaded when they are first used: an agent only reads names from ``local``, and needs no numpy for that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.csv_rows import csv
    from shoal.data.digits import mnist
    from shoal.data.drebin import permissions
    from shoal.data.json_lines import jsonl
    from shoal.data.local import local_folder, part
    from shoal.data.npz_rows import npz
    from shoal.data.partition import Partition, by, dirichlet, drawn, hash_of, iid, pathological, sizes
    from shoal.data.partition_text import parse_partition
    from shoal.data.sensor_windows import windows
    from shoal.data.shared_entries import shared

__all__ = [
    "Partition",
    "by",
    "csv",
    "dirichlet",
    "drawn",
    "hash_of",
    "iid",
    "jsonl",
    "local_folder",
    "mnist",
    "npz",
    "parse_partition",
    "part",
    "pathological",
    "permissions",
    "shared",
    "sizes",
    "windows",
]

_HOME = {
    "Partition": "partition",
    "by": "partition",
    "csv": "csv_rows",
    "dirichlet": "partition",
    "drawn": "partition",
    "hash_of": "partition",
    "iid": "partition",
    "jsonl": "json_lines",
    "local_folder": "local",
    "mnist": "digits",
    "npz": "npz_rows",
    "parse_partition": "partition_text",
    "part": "local",
    "pathological": "partition",
    "permissions": "drebin",
    "shared": "shared_entries",
    "sizes": "partition",
    "windows": "sensor_windows",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"shoal.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'shoal.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
