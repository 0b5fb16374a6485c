"""Sets of examples and readers of files, for tasks' ``examples``. Numpy; no torch."""

from shoal.data.csv_rows import csv
from shoal.data.digits import mnist
from shoal.data.drebin import permissions
from shoal.data.json_lines import jsonl
from shoal.data.local import local_folder
from shoal.data.npz_rows import npz
from shoal.data.sensor_windows import windows

__all__ = ["csv", "jsonl", "local_folder", "mnist", "npz", "permissions", "windows"]
